// SPDX-License-Identifier: MIT OR Apache-2.0
//! `spawnfd run`: the library's command builder as flags.

mod actions;
mod captured;
mod confine;
mod environment;
mod names;
mod program;
mod report;
mod signals;
mod stdio;
mod terminal;
mod values;

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{ArgAction, Args};
use spawnfd::{Command, Error, Namespaces, SignalSet, Stage};

use crate::failure::{Failure, NOT_FOUND};
use crate::os;
use actions::Actions;
use captured::Capture;
use environment::Environment;
pub use report::Report;
use report::Timing;
use signals::Signals;
use stdio::Standard;
use terminal::Terminal;

/// Run a program
///
/// The program gets this command's standard input, output and error and no other descriptor, its environment, its working
/// directory, and no blocked signal, unless flags say otherwise.
///
/// Actions are performed by the child in the order in which their flags are given, after --cwd and before the program;
/// the place of all other flags does not matter. Everything is checked before a child exists.
#[derive(Debug, Args)]
#[command(after_help = NOTES)]
pub struct Run {
    /// The program, by path or by a name searched in PATH, and its arguments; flags for this command stand before it
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM", num_args = 1..)]
    program: Vec<OsString>,

    /// Print wall time, CPU time, peak memory and (without --capture) spawn latency on standard error
    #[arg(long)]
    time: bool,
    /// Print the result as JSON: on standard output with --capture, else on standard error
    #[arg(long)]
    json: bool,

    /// Start the program in this directory
    #[arg(long, value_name = "DIR", help_heading = PROGRAM)]
    cwd: Option<PathBuf>,
    /// What the program sees as argv[0]
    #[arg(long, value_name = "NAME", help_heading = PROGRAM)]
    arg0: Option<OsString>,
    /// Execute strictly by descriptor: exactly the file that was checked runs (no scripts)
    #[arg(long, help_heading = PROGRAM)]
    strict: bool,
    /// Run an immutable copy of the executable (no scripts)
    #[arg(long, help_heading = PROGRAM)]
    snapshot: bool,

    #[command(flatten)]
    environment: Environment,
    #[command(flatten)]
    standard: Standard,
    #[command(flatten)]
    actions: Actions,

    /// Let the program have all descriptors this command was started with
    #[arg(long, help_heading = ATTRIBUTES)]
    inherit_descriptors: bool,
    /// Signals the program has blocked: TERM,INT, 'all' or 'none' [default: none]
    #[arg(long, value_name = "LIST", value_parser = names::signals, help_heading = ATTRIBUTES)]
    signal_mask: Option<SignalSet>,
    /// Signals made default if they are ignored [default: PIPE,XFSZ]
    #[arg(long, value_name = "LIST", value_parser = names::signals, help_heading = ATTRIBUTES)]
    default_signals: Option<SignalSet>,
    /// Leave blocked and ignored signals as this command has them, but for what --signal-mask and --default-signals say
    #[arg(long, help_heading = ATTRIBUTES)]
    inherit_signals: bool,
    /// Send the program this signal when this command dies
    #[arg(long, value_name = "SIGNAL", value_parser = names::signal, help_heading = ATTRIBUTES)]
    parent_death_signal: Option<i32>,
    /// Make the program the first process of new namespaces: mount, uts, ipc, pid, net, cgroup
    #[arg(long, value_name = "LIST", value_parser = names::namespaces, action = ArgAction::Set, help_heading = ATTRIBUTES)]
    namespaces: Option<Namespaces>,
    /// Start it in a new user namespace, in which it appears under these ids
    #[arg(long, value_name = "UID:GID", value_parser = values::user, help_heading = ATTRIBUTES)]
    user_namespace: Option<(u32, u32)>,
    /// Lay a seccomp filter over the program: a file of raw BPF instructions; asks for --no-new-privs unless privileged
    #[arg(long, value_name = "FILE", help_heading = ATTRIBUTES)]
    seccomp: Option<PathBuf>,

    #[command(flatten)]
    capture: Capture,
}

const SIGPIPE: u64 = 1 << (libc::SIGPIPE - 1);

const PROGRAM: &str = "Program";
const ATTRIBUTES: &str = "Attributes";

const NOTES: &str = "\
Environment: what is inherited (--env-clear, --env-only, --env-deny) comes first, then --noninteractive, then --env and \
--unset in their order.

Paths: those in --cgroup, --join-namespace, --landlock-ro, --landlock-rw, --seccomp and --input are opened by this \
command before the program starts; those in other actions by the child, from where it then is. A relative PROGRAM is \
relative to this command's directory.

Opening: after the mode of --open and --open-at stand, with commas between, the permissions of a file that is made, in octal \
(666), less the umask; existing (make none, empty none), or create, excl, trunc, append, tmpfile, directory, path, nofollow, \
nonblock, noctty, noatime, sync, dsync, direct, as open(2) has them; and how the path is resolved, as openat2(2) has it: beneath, \
in-root, no-symlinks, no-magiclinks, no-xdev, cached.

Capabilities: a set that is not named stays as this command, or the --capabilities before, has it, as far as the others leave that; \
--uid and --user-ids empty the ambient one, and the effective one unless that user is root.

Signals: TERM, USR1 and USR2 sent to this command are passed on to the program; so are HUP, INT and QUIT, unless it is in \
the same process group and they come from the terminal, which sends them to both. What kill(1) sends to that whole group reaches the \
program twice, as nothing tells it from what is sent to this command alone: a program with --process-group 0 gets it once. With --capture \
the first HUP, INT, QUIT, TERM, USR1 or USR2 ends the program and its process tree.

Jobs: when a program with --foreground stops (Ctrl-Z), this command does, with its process group, and a shell has the terminal \
again. Continued, it continues the program, and gives it the terminal if the shell has given that. After the program's end the \
terminal is whose it was before.

Exit status: that of the program; 128+N if signal N killed it; 124 if its --timeout was over; 125 if this command failed, \
how the program ended is not known, or it could not be killed; 126 if the program cannot be executed; 127 if there is none.

JSON: one line, an object with program, ok, code, signal, stop (exited, timeout, cancelled, output_limit or limit), limit, \
started, wall_seconds, cpu_seconds, max_rss_bytes and template_seconds; also spawn_seconds and pid, or with --capture \
stdout and stderr (as UTF-8, what is none replaced), omitted_bytes, seen_bytes, spill_path, spilled, input_refused, tree, \
tree_complete (false: a process that has called setsid may have survived, and is not named), \
limits, leftovers (pid, name and fate of each; fate is killed, detached, not_permitted or uninterruptible; a program that could \
not be killed comes first), leftovers_unknown, drain and status_lost (somebody else has taken its status: code and signal are null). \
Where there was no run: error, with message, exit_code, argument, stage, action, \
errno and call. So it is where the command line is wrong, if --json can be found on it before the program.

Examples:
  spawnfd run --time git status
  spawnfd run --chdir /srv --close 5 --open r:/etc/passwd:7 -- sh -c 'cat <&7'
  spawnfd run --capture --timeout 10 --json -- python3 -c 'print(1)'
  spawnfd run --no-new-privs --landlock-ro / --landlock-rw /tmp -- sh -c 'echo x > /tmp/x'";

impl Run {
    /// Runs the program. Returns this command's exit code.
    pub fn run(&self) -> Result<u8, Failure> {
        let report = Report { time: self.time, json: self.json, captured: self.capture.is_wanted() };
        self.perform(report).or_else(|failure| {
            if self.json {
                report.failure(&failure)?;
                return Ok(failure.code);
            }
            Err(failure)
        })
    }

    fn perform(&self, report: Report) -> Result<u8, Failure> {
        let environment = self.environment.build();
        let begun = Instant::now();
        let path = environment.as_ref().map(|env| env.get("PATH").map(OsStr::to_owned));
        let mut command = program::command(self.name(), path, self.strict, self.snapshot)?;
        let preparing = begun.elapsed();
        if let Some(environment) = &environment {
            command.environment(environment);
        }
        command.args(&self.program[1..]);
        let flags = self.attributes(&mut command)?;
        let failed = |error| self.failed(error, &flags);
        let begun = Instant::now();
        command.validate().map_err(failed)?;
        let mut timing = Timing { template: preparing + begun.elapsed(), spawn: None };
        if self.capture.is_wanted() {
            let ended = self.capture.run(&mut command, failed)?;
            report.captured(self.name(), &ended.output, timing)?;
            return Ok(ended.code);
        }
        let terminal = self.actions.give_terminal().then(Terminal::open).flatten();
        let signals = Signals::watch(terminal)?;
        os::close_as_it_began();
        let begun = Instant::now();
        let mut child = command.spawn().inspect_err(|_| signals.nobody_came()).map_err(failed)?;
        timing.spawn = Some(begun.elapsed());
        drop(command);
        let status = signals.wait(&mut child)?;
        let wall: Duration = begun.elapsed();
        drop(signals);
        report.ended(self.name(), &child, status, wall, timing)?;
        Ok(report::code(status))
    }

    fn name(&self) -> &OsStr {
        &self.program[0]
    }

    /// Adds all settings except the program. Returns the flag of each of the command's actions.
    fn attributes(&self, command: &mut Command<'_>) -> Result<Vec<String>, Failure> {
        if let Some(arg0) = &self.arg0 {
            command.arg0(arg0);
        }
        if let Some(dir) = &self.cwd {
            command.current_dir(dir);
        }
        self.standard.apply(command, self.capture.is_wanted())?;
        let flags = self.actions.apply(command)?;
        command.inherit_descriptors(self.inherit_descriptors);
        let (mask, default) = match self.inherit_signals {
            true => (None, SignalSet::EMPTY),
            false => (Some(SignalSet::EMPTY), SignalSet::from_bits(SIGPIPE | 1 << (libc::SIGXFSZ - 1))),
        };
        if let Some(mask) = self.signal_mask.or(mask) {
            command.signal_mask(mask);
        }
        // Rust's runtime has set SIGPIPE to ignored. Reset it for the program, unless this command inherited that.
        let pipe = SignalSet::from_bits(if os::began_without_sigpipe() { 0 } else { SIGPIPE });
        command.default_signals(self.default_signals.unwrap_or(default) | pipe);
        if let Some(signal) = self.parent_death_signal {
            command.parent_death_signal(signal);
        }
        if let Some(namespaces) = self.namespaces {
            command.namespaces(namespaces);
        }
        if let Some((uid, gid)) = self.user_namespace {
            command.user_namespace(uid, gid);
        }
        if let Some(path) = &self.seccomp {
            command.seccomp(confine::filter(path)?);
        }
        Ok(flags)
    }

    /// Converts an error of the library, with the flag that caused it if only one can have.
    fn failed(&self, error: Error, flags: &[String]) -> Failure {
        let flag = match error.stage() {
            Stage::Action(index) => flags.get(index).cloned(),
            Stage::CurrentDir => self.cwd.as_ref().map(|dir| format!("--cwd {}", dir.display())),
            Stage::Filter => self.seccomp.as_ref().map(|path| format!("--seccomp {}", path.display())),
            Stage::Validate | Stage::Limit => Capture::limit_flag(&error),
            Stage::Signals => self.parent_death_signal.map(|_| "--parent-death-signal".to_owned()),
            Stage::Clone => {
                let cgroup = flags.iter().find(|flag| flag.starts_with("--cgroup ")).cloned();
                let namespaces = self.namespaces.map(|_| "--namespaces".to_owned());
                let user = self.user_namespace.map(|(uid, gid)| format!("--user-namespace {uid}:{gid}"));
                let mut asked = [cgroup, namespaces, user].into_iter().flatten();
                asked.next().filter(|_| asked.next().is_none())
            }
            Stage::Template | Stage::Exec | Stage::Revalidate => {
                let mut failure = Failure::program(self.name(), error);
                if failure.code == NOT_FOUND && self.capture.misses_size(self.name()) {
                    failure.message += &format!("; a size is given as --terminal={}", self.name().display());
                }
                return failure;
            }
            _ => None,
        };
        Failure::spawn(error, flag)
    }
}
