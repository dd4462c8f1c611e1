// SPDX-License-Identifier: MIT OR Apache-2.0
//! `spawnfd run`: the library's command builder as flags.

mod actions;
mod captured;
mod confine;
mod environment;
mod preload;
mod program;
mod report;
mod signals;
mod stdio;
mod terminal;

use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use spawnfd::error::{Errno, Stage};
use spawnfd::tree::{Tree, TreeControl};
use spawnfd::{Command, Env, Error};

use crate::failure::{Failure, NOT_FOUND, code_of, print};
use crate::os;
use actions::Actions;
use captured::Capture;
pub use environment::Environment;
pub use report::RunReport;
use report::Timing;
use signals::Signals;
use stdio::{Standard, Streams};
use terminal::Terminal;

/// Run a program
///
/// By default the program inherits this command's standard streams, environment and working directory. It inherits no
/// other descriptor and no blocked signal.
///
/// The child performs the actions in command-line order, after --cwd and before it executes the program. The order of
/// all other flags does not matter. This command checks all arguments before it creates the child.
#[derive(Debug, Args)]
#[command(after_help = NOTES)]
pub struct Run {
    /// The program, as a path or as a name to search in PATH, and its arguments. Relative and empty parts of PATH start
    /// at --cwd, or at this command's directory. Flags of this command come before the program
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM", num_args = 1..)]
    program: Vec<OsString>,

    /// Print wall time, CPU time, peak memory and (without --capture) spawn latency on standard error
    #[arg(long)]
    time: bool,
    /// Print the result as JSON: on standard output with --capture but not --stream, otherwise on standard error
    #[arg(long)]
    json: bool,

    /// Print the actions and attributes of the child instead of starting it, for tests
    #[arg(long, hide = true)]
    print_plan: bool,

    /// Start the program in this directory
    #[arg(long, value_name = "DIR", help_heading = PROGRAM)]
    cwd: Option<PathBuf>,
    /// Set the program's argv[0]
    #[arg(long, value_name = "NAME", help_heading = PROGRAM)]
    arg0: Option<OsString>,
    /// Execute the checked file by its descriptor, so that no other file can run in its place (no scripts)
    #[arg(long, help_heading = PROGRAM)]
    strict: bool,
    /// Run an immutable copy of the executable (no scripts)
    #[arg(long, help_heading = PROGRAM)]
    snapshot: bool,
    /// Replace posix_spawn(3) in the program and its descendants by a faster one, with LD_PRELOAD
    #[arg(long, help_heading = PROGRAM)]
    posix_spawn: bool,

    #[command(flatten)]
    environment: Environment,
    #[command(flatten)]
    standard: Standard,
    #[command(flatten)]
    actions: Actions,

    #[command(flatten)]
    capture: Capture,
}

const PROGRAM: &str = "Program";

const NOTES: &str = "\
Environment: the inheritance flags (--env-clear, --env-only, --env-deny) apply first, then --noninteractive, then --env and \
--unset in command-line order.

Replacement of posix_spawn: --posix-spawn adds libspawnfd-spawn.so to the end of LD_PRELOAD in the program's \
environment, after all other changes of the environment. The environment variable SPAWNFD_POSIX_SPAWN names the \
library. Without it, this command searches its own directory DIR, DIR/../lib, DIR/../lib/TRIPLET, /usr/local/lib, \
/usr/lib and /usr/lib/TRIPLET, where TRIPLET is x86_64-linux-gnu or aarch64-linux-gnu. The library requires glibc \
2.28 or later. It has no effect in static programs, nor in set-user-ID programs that other users own: 'spawnfd \
doctor PROGRAM' reports whether it has an effect. Programs of musl are not supported, and a program that is linked \
with libasan aborts unless ASAN_OPTIONS contains verify_asan_link_order=0. With --chroot, the library needs the same \
path under the new root; otherwise the loader prints an error for each program and ignores the library.

Values: a TIME is a number of seconds, or a number with ms, s, m or h. BYTES may have K, M, G or T (powers of 1024). The \
page https://github.com/spawnfd/spawnfd/blob/main/docs/options.md lists the options of all fronts.

Paths: this command opens the paths of --cgroup, --join-namespace, --landlock-ro, --landlock-rw, --seccomp and --input before \
the program starts. The child opens the paths of all other actions, relative to its working directory at that point. A \
relative PROGRAM starts at this command's working directory.

Open modes: options of --open and --open-at follow the mode after commas. Octal digits set the permissions of a created file, \
before the umask applies (default 666). 'existing' never creates or truncates the file. These options have the meaning of the \
flags of open(2): create, excl, trunc, append, tmpfile, directory, path, nofollow, nonblock, noctty, noatime, sync, dsync, direct. \
These restrict how the path is resolved, as in openat2(2): beneath, in-root, no-symlinks, no-magiclinks, no-xdev, cached.

Capabilities: a set that --capabilities does not name keeps its value from the previous --capabilities or from this command, \
reduced to what the named sets permit. --uid and --user-ids clear the ambient set, and also the effective set unless the new \
user is root.

Control of the process tree: --timeout, --grace, --tree, --leftovers and the limits also work without --capture. The program then has \
this command's standard streams. If this command is in the foreground group of its terminal, the program is in that group too: it \
can read from the terminal, and Ctrl-C and Ctrl-Z reach it. The tree then has tier 'auto' by default, because no signal to the \
group can end it. Otherwise the program is in a process group of its own. --setsid and --process-group say otherwise.

Job control: when a program with --foreground stops (Ctrl-Z), this command stops its own process group too, and the shell gets \
the terminal back. When the shell continues this command, this command continues the program, and passes it the terminal if the \
job is in the foreground. After the program ends, the previous foreground group gets the terminal back.

JSON: --json prints one object on one line. Every run has program, args (which begin with the program), ok, code, signal, stop \
(exited, timeout, idle_timeout, cancelled, output_limit, limit or lost), started, wall_seconds, cpu_seconds, max_rss_bytes and prepare_seconds (the time \
to find and check the program). Without --capture and without control of the process tree, the object also has spawn_seconds and pid. Otherwise it has:
  limit: the limit that was reached, and the mechanism that enforced it; only if stop is limit
  stdout, stderr: the kept output as UTF-8, with --marker where bytes are omitted; invalid bytes
    become U+FFFD
  output: with --combined, the pieces of both streams in order of arrival: stream and text; also
    omitted, if the piece stands for this many omitted bytes
  omitted_bytes, seen_bytes: how many bytes were not kept, and how many were read
  omitted: for stdout and for stderr, bytes (how many are omitted) and offset (the position of the
    first one in the stream)
  spill_path: the file with the output, or null
  spilled: the length of this file (bytes), and how writing it ended: end (whole, capped or
    failed), and errno if it failed; only if there is more output than --keep
  input_refused: true if the program did not read all of its input, or a terminal has cut a line of
    it at 4,095 bytes
  tree: the tier that controlled the process tree
  tree_complete: false if a process that called setsid may have survived without being listed
  limits: each limit, and the mechanism that enforced it
  leftovers: pid, name and fate (killed, detached, not_permitted or uninterruptible) of each
    process that outlived the program; a program that could not be killed comes first
  leftovers_unknown: true if this command could not look for such processes
  drain: eof; or cut, and the pids of the processes that still had the output open
  status_lost: true if the exit status is unknown; code and signal are then null
If the program did not start, the object has only error, with message, exit_code, argument, stage, action, errno and call. Errors in \
the command line have the same form if --json precedes the program.

Ctrl-C and exit:

Ctrl-C: a terminal sends INT to this command. If the program is in the same process group, the terminal also sends INT to the \
program; otherwise this command forwards INT. HUP and QUIT have the same effect. With --capture, or a flag that controls the \
process tree (such as --timeout), the first HUP, INT, QUIT, TERM, USR1 or USR2 ends the program and its process tree.

Signals from other processes: this command forwards HUP, INT, QUIT, TERM, USR1 and USR2 to the program. A signal that kill(1) \
sends to the whole group reaches the program twice, because it looks like one sent to this command alone; to prevent that, use \
--process-group 0.

End of this command: if this command ends before the program, for example by SIGKILL, a helper process (the guard) kills the \
program and its process tree. With --tree group there is no guard. Processes that outlive the program run on, except with \
--capture or a flag that controls the process tree.

Exit status: the program's own; 128+N if signal N killed the program; 124 if --timeout or --idle-timeout expired; 125 if this command failed, if \
the program could not be killed, or if its exit status is unknown; 126 if the program cannot be executed; 127 if the program was not \
found.

Examples:
  spawnfd run --time git status
  spawnfd run --chdir /srv --close 5 --open r:/etc/passwd:7 -- sh -c 'cat <&7'
  spawnfd run --timeout 10 make test
  spawnfd run --capture --timeout 10 --json -- python3 -c 'print(1)'
  spawnfd run --no-new-privs --landlock-ro / --landlock-rw /tmp -- sh -c 'echo x > /tmp/x'";

impl Run {
    /// Runs the program. Returns this command's exit code.
    pub fn run(&self) -> Result<u8, Failure> {
        let has_output = self.capture.is_wanted() && !self.capture.streams();
        let report = RunReport { time: self.time, json: self.json, has_output };
        self.perform(report).or_else(|failure| {
            if self.json {
                report.failure(&failure)?;
                return Ok(failure.code);
            }
            Err(failure)
        })
    }

    fn perform(&self, report: RunReport) -> Result<u8, Failure> {
        let mut environment = self.environment.build();
        if self.posix_spawn {
            environment = Some(preload::add(environment.unwrap_or_else(Env::inherit))?);
        }
        let begun = Instant::now();
        let path = program::search_path(environment.as_ref());
        let mut command = program::command(self.name(), &path, self.cwd.as_deref(), self.strict, self.snapshot)?;
        let preparing = begun.elapsed();
        if let Some(environment) = &environment {
            command.environment(environment);
        }
        command.args(&self.program[1..]);
        let flags = self.attributes(&mut command)?;
        let failed = |error| self.failed(error, &flags);
        let begun = Instant::now();
        command.validate().map_err(failed)?;
        if self.print_plan {
            let lines = spawnfd::internal::printed(&command).join("\n") + "\n";
            return print(lines.as_bytes()).map(|()| 0);
        }
        let mut timing = Timing { prepare: preparing + begun.elapsed(), spawn: None };
        if self.capture.supervises() {
            let ended = self.capture.run(&mut command, self.shared_group().is_some(), failed)?;
            report.supervised(&self.program, &self.capture, &ended, timing)?;
            return Ok(ended.code);
        }
        let terminal = self.actions.flag("foreground").and_then(|_| Terminal::open());
        let signals = Signals::watch(terminal)?;
        os::close_streams_closed_at_start();
        // If this command is killed, the guard kills the program and its process tree.
        let mut tree = Tree::prepare(TreeControl::Guard).ok();
        if let Some(tree) = &tree {
            command.tree(tree);
        }
        let begun = Instant::now();
        let mut started = command.spawn();
        if tree.is_some() && started.as_ref().is_err_and(|error| error.errno() == Errno::EAGAIN) {
            // The guard may have taken the last process that this user may have.
            tree = None;
            spawnfd::internal::end_idle_threads();
            command.tree(&Tree::prepare(TreeControl::Group).map_err(failed)?);
            started = command.spawn();
        }
        let mut child = started.inspect_err(|_| signals.start_failed()).map_err(failed)?;
        timing.spawn = Some(begun.elapsed());
        if let Some(tree) = &mut tree {
            tree.program_started(child.id(), child.as_fd());
            tree.program_is_kept();
        }
        drop(command);
        let status = signals.wait(&mut child, || tree.iter_mut().for_each(Tree::program_ended))?;
        let wall: Duration = begun.elapsed();
        // Processes that outlive the program run on.
        tree.into_iter().for_each(Tree::detach);
        drop(signals);
        report.ended(&self.program, &child, status, wall, timing)?;
        Ok(code_of(status))
    }

    fn name(&self) -> &OsStr {
        &self.program[0]
    }

    /// The terminal's foreground group, if this command is in it and a supervised program joins it. The program can then
    /// read from the terminal, and the terminal's signals reach it.
    ///
    /// Otherwise the program gets a process group of its own, in this command's session.
    fn shared_group(&self) -> Option<i32> {
        let is_own = !self.capture.is_wanted() && self.capture.supervises() && !self.actions.set_group_or_session();
        os::foreground_group().filter(|_| is_own)
    }

    /// Adds all settings except the program to `command`. Returns the flag of each of its actions.
    fn attributes(&self, command: &mut Command<'_>) -> Result<Vec<String>, Failure> {
        if let Some(arg0) = &self.arg0 {
            command.arg0(arg0);
        }
        if let Some(dir) = &self.cwd {
            command.current_dir(dir);
        }
        let streams = match (self.capture.is_wanted(), self.capture.supervises()) {
            (true, _) => Streams::Captured,
            (false, true) => Streams::Passed,
            (false, false) => Streams::Inherited,
        };
        let mut flags = Vec::new();
        for number in self.standard.apply(command, streams) {
            command.close(number);
            flags.push(format!("--close {number}"));
        }
        if streams == Streams::Passed && !self.actions.set_group_or_session() {
            let group = self.shared_group().unwrap_or(0);
            command.process_group(group);
            flags.push(format!("--process-group {group}"));
        }
        flags.append(&mut self.actions.apply(command)?);
        // Rust's runtime ignores SIGPIPE. Reset it for the program, unless this command inherited it as ignored.
        self.actions.apply_attributes(command, (!os::sigpipe_was_ignored_at_start()).then_some(libc::SIGPIPE))?;
        Ok(flags)
    }

    /// Converts an error of the library. Names the flag that caused the error, if only one flag can have caused it.
    fn failed(&self, error: Error, flags: &[String]) -> Failure {
        let flag = match error.stage() {
            Stage::Action(index) => flags.get(index).cloned(),
            Stage::CurrentDir => self.cwd.as_ref().map(|dir| format!("--cwd {}", dir.display())),
            Stage::Filter => self.actions.flag("seccomp"),
            Stage::Validate | Stage::Limit => Capture::flag_of_error(&error),
            Stage::Signals => self.actions.flag("parent_death_signal"),
            Stage::Clone => {
                let names = ["cgroup", "namespaces", "user_namespace"];
                let mut given = names.into_iter().filter_map(|name| self.actions.flag(name));
                given.next().filter(|_| given.next().is_none())
            }
            Stage::Template | Stage::Exec | Stage::Revalidate => {
                let mut failure = Failure::program(self.name(), error);
                if failure.code == NOT_FOUND && self.capture.is_misplaced_size(self.name()) {
                    failure.message +=
                        &format!("; to set the terminal's size, use --terminal={}", self.name().display());
                }
                return failure;
            }
            _ => None,
        };
        Failure::spawn(error, flag)
    }
}
