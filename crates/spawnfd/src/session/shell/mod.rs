// SPDX-License-Identifier: MIT OR Apache-2.0
//! The shell of a session, and a command that runs inside the shell.
//!
//! The shell opens the files of a command (its text, streams, and status pipe) through `/proc/OWNER/fd` (`channel.rs`). A
//! shell in a sandbox opens them through `/proc/HELPER/fd` of a helper (`broker.rs`). The shell's own redirections undo
//! themselves when the command is over, so no process of a later command has these files.

mod broker;
mod channel;
mod command;
mod report;
mod terminal;

use std::cmp::Reverse;
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{Mode, fchmod};
use spawnfd_guard::process::{Process, Stat, all_processes, is_proc_foreign};

use crate::command::{Command, Stdio};
use crate::error::{Errno, Error, Result, Stage, errno, from_io};
use crate::host::descriptors::above_standard;
use crate::host::per_process::PerProcess;
use crate::job::{Connections, EngineOrder, Job, Output, Producer, Run, RunHandle, RunState, Source, adopt, start_job};
use crate::limiter::Permit;
use crate::signal;
use crate::tree::{Tier, TreeControl};
pub(crate) use broker::BrokerNumbers;
use broker::DescriptorBroker;
use channel::{Channel, Dialect, Options, Paths};
pub(crate) use channel::{Completed, Text, file_with};
use command::ShellCommand;
pub(crate) use report::Number;
pub(crate) use terminal::SessionTerminal;

/// A session's shell, which the library supervises as a job of its own.
#[derive(Debug)]
pub(crate) struct Shell {
    /// The name of the shell's program.
    name: String,
    pub(super) job: Job,
    shared: Arc<PerProcess<ShellState>>,
}

/// The process of a shell, and the processes above it.
#[derive(Clone, Debug)]
struct ShellProcess {
    process: Process,
    session: i32,
    /// The shell's ancestors as far as they belong to its job: the processes of its sandbox, and the subreaper of the
    /// session's tree. Orphans become children of one of them.
    ancestors: Vec<Process>,
}

impl ShellProcess {
    /// Reads the process of a shell. `top` is the program of the shell's job, which is the shell or its ancestor.
    fn read(pid: i32, top: i32, has_subreaper: bool) -> ShellProcess {
        // Without an entry in /proc, the shell has ended. Its pid then matches no process.
        let Some(stat) = Stat::read(pid) else {
            return ShellProcess { process: Process { pid, start: 0 }, session: 0, ancestors: Vec::new() };
        };
        let mut ancestors = Vec::new();
        let mut current = stat;
        while current.process.pid != top
            && let Some(parent) = Stat::read(current.parent)
        {
            ancestors.push(parent.process);
            current = parent;
        }
        if current.process.pid == top {
            let subreaper = has_subreaper.then(|| Stat::read(current.parent)).flatten();
            ancestors.extend(subreaper.map(|subreaper| subreaper.process));
        } else {
            // The sandbox command has ended. The ancestors beyond the helper may be any processes.
            ancestors.truncate(1);
        }
        ShellProcess { process: stat.process, session: stat.session, ancestors }
    }

    /// Whether one of the ancestors has this pid.
    fn has_ancestor(&self, pid: i32) -> bool {
        self.ancestors.iter().any(|ancestor| ancestor.pid == pid)
    }

    /// Forgets the ancestors that are not in `list`. Other processes may have their pids.
    fn forget_ended(&mut self, list: &[Stat]) {
        self.ancestors.retain(|ancestor| list.iter().any(|stat| stat.process == *ancestor));
    }

    /// Whether a process is in the shell's session, and that session belongs to the job.
    fn has_in_session(&self, stat: &Stat) -> bool {
        let is_own = self.session == self.process.pid || self.has_ancestor(self.session);
        is_own && stat.session == self.session && stat.process.start >= self.process.start
    }

    /// Whether a process is a child of the shell, or an orphan.
    fn is_parent_of(&self, stat: &Stat) -> bool {
        stat.parent == self.process.pid
            // The sandbox command may have started other processes before the shell.
            || self.has_ancestor(stat.parent) && stat.process.start >= self.process.start
    }

    /// Whether a process is the shell, or one of the processes above it.
    fn contains(&self, stat: &Stat) -> bool {
        stat.process == self.process || self.has_ancestor(stat.process.pid)
    }
}

/// The state of the shell between two commands.
#[derive(Debug, Default)]
struct ShellState {
    has_ended: bool,
    /// The library ends the shell's input after the running command.
    is_closing: bool,
    /// The files that the shell opens, until the shell has ended. Then the library closes the status pipe, so that the
    /// running command reads EOF.
    channel: Option<Channel>,
    /// Whether the shell had executed the text of its last command when it ended.
    had_begun: bool,
    /// The paths of these files.
    paths: Paths,
    /// `None` until the shell has reported its version.
    dialect: Option<Dialect>,
    /// The helper of a shell in a sandbox, until the shell has ended.
    broker: Option<DescriptorBroker>,
    /// `None` until the helper has started the shell.
    process: Option<ShellProcess>,
    /// The status of a shell in a sandbox. The sandbox command may report another one, for example 137 in place of
    /// SIGKILL.
    end: Option<ExitStatus>,
    /// Whether a command runs.
    is_busy: bool,
    /// The files of a command that the library no longer watches, until the shell has ended. Until then the shell may
    /// open their numbers.
    abandoned: Vec<OwnedFd>,
    /// The command that runs, or the last one.
    run: Option<Running>,
    /// The CPU time of the shell and of the children that it has waited for.
    cpu: Duration,
    last: Option<Completed>,
    /// The status and the options that the next command finds.
    options: Options,
}

/// The means to interrupt a command.
#[derive(Clone, Debug)]
enum Running {
    /// The engine drives the command.
    InEngine(RunHandle),
    /// A thread drives the command and sleeps. A write to the eventfd wakes it.
    InThread(Arc<OwnedFd>),
}

/// The task of a command: to wait for the shell's start, or to run a text.
pub(crate) enum ScriptText<'a> {
    /// It waits until the shell, which has just been started, has reported this number.
    Start(Number),
    Run(Text<'a>),
}

/// One command for the shell.
pub(crate) struct Script<'a> {
    pub(crate) text: ScriptText<'a>,
    /// Whether standard error goes to standard output.
    pub(crate) merge: bool,
    /// The terminal that is the command's standard output and error, and its standard input if it has any.
    pub(crate) terminal: Option<&'a SessionTerminal>,
}

impl Shell {
    /// Starts the shell, with the state of an earlier one. `name` is the name of its program. `numbers`: a sandbox command
    /// starts the shell's helper. `exported`: variables that the shell gets with its first command. `reports_variables`:
    /// after each command the shell reports its exported variables.
    pub(crate) fn start(
        command: &mut Command<'_>,
        name: &OsStr,
        numbers: Option<BrokerNumbers>,
        run: &Run,
        restored: Option<&Completed>,
        exported: &[(String, Vec<u8>)],
        reports_variables: bool,
    ) -> Result<(Arc<Shell>, Number)> {
        if is_proc_foreign() {
            let message = "a session needs the /proc of this process's pid namespace";
            return Err(Error::new(Stage::Capture, Errno::EOPNOTSUPP, "/proc/self").saying(message));
        }
        // A session runs for long, and its commands may start daemons, so its tree has the most complete tier.
        let run = run.clone().tree(run.tree.unwrap_or(TreeControl::Auto));
        let channel = Channel::new(reports_variables)?;
        let (broker, given) = numbers.map(DescriptorBroker::connect).transpose()?.unzip();
        let mut paths = Paths::own();
        if let Some(broker) = &broker {
            let files = channel.files();
            // The sandbox command may change the user. Opening a pipe through /proc requires permission for the pipe
            // itself. Only processes that may trace the helper, or this process, can find the pipes there.
            files[..2].iter().try_for_each(permit_all)?;
            let numbers = broker.session_numbers(&files);
            broker.hold(&numbers)?;
            paths = Paths::of_helper(None, numbers);
        }
        let number = Number::random();
        channel.prepare_start(&paths, number, restored)?;
        let lines = channel.lines().try_clone_to_owned();
        command.stdin(lines.map_err(|e| Error::new(Stage::Capture, from_io(&e), "fcntl(F_DUPFD_CLOEXEC)"))?);
        let job = command.start_giving(&run, given.into_iter().collect());
        command.stdin(Stdio::Null);
        let job = job?;
        let pid = job.id() as i32;
        let process = broker.is_none().then(|| ShellProcess::read(pid, pid, job.tier == Tier::Subreaper));
        let options = Options { exported: exported.to_vec(), ..Options::default() };
        let state = ShellState { channel: Some(channel), paths, broker, process, options, ..ShellState::default() };
        let shared = Arc::new(PerProcess::for_this_process(state, ShellState::ended));
        let on_end = shared.clone();
        job.when_done(move || {
            let mut state = on_end.lock();
            state.has_ended = true;
            let broker = state.broker.take().map(|mut broker| {
                broker.receive();
                state.end = broker.end;
                broker
            });
            state.had_begun = state.channel.as_ref().is_some_and(Channel::has_begun);
            let closed = (state.channel.take(), std::mem::take(&mut state.abandoned), broker);
            drop(state);
            drop(closed);
        });
        Ok((Arc::new(Shell { name: name.to_string_lossy().into_owned(), job, shared }), number))
    }

    /// Completes the start of a shell that has reported this version of bash, or an empty one.
    pub(crate) fn complete_start(&self, version: &Path) -> Result<()> {
        let dialect = if version.as_os_str().is_empty() { Dialect::Dash } else { Dialect::Bash };
        let mut state = self.shared.lock();
        let state = &mut *state;
        let Some(channel) = &state.channel else { return Ok(()) };
        let paths = match &mut state.broker {
            Some(broker) => Paths::of_helper(broker.helper(), broker.session_numbers(&channel.files())),
            None => state.paths.clone(),
        };
        channel.complete_start(&state.paths, &paths, dialect)?;
        (state.paths, state.dialect) = (paths, Some(dialect));
        Ok(())
    }

    /// The shell's process id. Until a helper has started the shell, the process id of its job.
    pub(crate) fn id(&self) -> u32 {
        self.process().map_or(self.job.id(), |shell| shell.process.pid as u32)
    }

    /// The shell's process group.
    fn group(&self) -> Option<i32> {
        self.process().and_then(|shell| Stat::read(shell.process.pid)).map(|stat| stat.group)
    }

    /// The shell's status. `None`: the shell has not ended, or its status is lost.
    pub(crate) fn status(&self) -> Option<ExitStatus> {
        let reported = self.shared.lock().end;
        reported.or_else(|| self.job.try_wait().ok().flatten().and_then(|output| output.status))
    }

    /// The shell's process. `None`: its helper has not started it yet.
    fn process(&self) -> Option<ShellProcess> {
        let mut state = self.shared.lock();
        if state.process.is_none()
            && let Some(broker) = &mut state.broker
        {
            broker.receive();
            let (top, has_subreaper) = (self.job.id() as i32, self.job.tier == Tier::Subreaper);
            state.process = broker.pids.map(|[_, shell]| ShellProcess::read(shell, top, has_subreaper));
        }
        state.process.clone()
    }

    /// Whether the shell has been started. A helper starts it once the sandbox is complete.
    pub(crate) fn has_started(&self) -> bool {
        self.process().is_some() || self.shared.lock().end.is_some()
    }

    /// Whether the shell has ended, or the library has given up on a shell that SIGKILL does not end.
    pub(crate) fn has_ended(&self) -> bool {
        self.shared.lock().has_ended
    }

    /// Whether the shell and its commands have reached a limit of their tree, which ends all of them.
    fn has_reached_limit(&self) -> bool {
        self.job.command_limits.as_ref().is_some_and(|limits| limits.shell_has_reached())
    }

    /// Whether /proc shows the shell's process.
    fn is_running(&self) -> bool {
        let shell = self.process().map(|shell| shell.process);
        shell.is_some_and(|shell| Stat::read(shell.pid).is_some_and(|stat| stat.process == shell && stat.is_alive()))
    }

    /// The shell's working directory: `pwd`, the value of `$PWD`, if it names that directory.
    fn directory(&self, pwd: PathBuf) -> PathBuf {
        let Some(shell) = self.process() else { return pwd };
        let own = format!("/proc/{}/cwd", shell.process.pid);
        // This process may not be permitted to look there.
        let Ok(directory) = std::fs::metadata(&own) else { return pwd };
        // In a sandbox, the shell may have another root directory.
        let root = format!("/proc/{}/root", shell.process.pid);
        let named = pwd.strip_prefix("/").ok().and_then(|path| Path::new(&root).join(path).metadata().ok());
        let is_same = named.is_some_and(|named| (named.dev(), named.ino()) == (directory.dev(), directory.ino()));
        // A removed directory has no other name.
        let has_name = is_same || directory.nlink() == 0 && pwd.is_absolute();
        if has_name { pwd } else { std::fs::read_link(own).unwrap_or(pwd) }
    }

    /// The working directory of a shell that runs no command. `None`: this process may not see it.
    pub(crate) fn current_directory(&self) -> Option<PathBuf> {
        Some(self.directory(PathBuf::new())).filter(|directory| directory.is_absolute())
    }

    /// Whether a command runs, or the start is not complete.
    pub(crate) fn is_busy(&self) -> bool {
        let state = self.shared.lock();
        state.is_busy || state.dialect.is_none()
    }

    /// The state after the last completed command. `None`: the shell has completed none.
    pub(crate) fn last(&self) -> Option<Completed> {
        self.shared.lock().last.clone()
    }

    /// Starts a command in the shell.
    pub(crate) fn start_command(
        self: &Arc<Shell>,
        script: &Script<'_>,
        run: &Run,
        permits: Vec<Permit>,
    ) -> Result<Job> {
        self.start_with(script, run, permits, |_| (None, ())).map(|(job, ())| job)
    }

    /// Starts a command in the shell. `connect` creates what consumes the command's output.
    pub(crate) fn start_with<E>(
        self: &Arc<Shell>,
        script: &Script<'_>,
        run: &Run,
        permits: Vec<Permit>,
        connect: impl FnOnce(&RunHandle) -> (Option<Producer>, E),
    ) -> Result<(Job, E)> {
        let begin = |connections| self.begin(script, run, Connections { permits, ..connections });
        let started = start_job(run, Connections::of_job(), connect, begin)?;
        self.shared.lock().run = Some(Running::InEngine(started.0.handle.clone()));
        Ok(started)
    }

    /// Starts a command, and returns a function that drives the command to its end in the calling thread. This saves a
    /// switch to the engine's thread and back.
    pub(crate) fn start_in_thread(
        self: &Arc<Shell>,
        script: &Script<'_>,
        run: &Run,
        permits: Vec<Permit>,
    ) -> Result<impl FnOnce() -> Result<Output> + use<>> {
        let interrupts = self.interrupts()?;
        let source = run.input.clone().map(Source::bytes);
        let state = self.begin(script, run, Connections { source, permits, ..Connections::of_job() })?;
        Ok(move || {
            let (output, left) = state.run_blocking(Some(interrupts.as_fd()), || false)?;
            // The engine reads the output of background jobs.
            left.into_iter().for_each(adopt);
            Ok(output)
        })
    }

    /// The eventfd of commands that run in a thread, without an interrupt of an earlier command.
    fn interrupts(&self) -> Result<Arc<OwnedFd>> {
        let mut state = self.shared.lock();
        let eventfd = match &state.run {
            Some(Running::InThread(eventfd)) => eventfd.clone(),
            _ => {
                let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
                let new = eventfd(0, flags).map_err(|e| Error::new(Stage::Capture, errno(e), "eventfd2()"))?;
                Arc::new(above_standard(new))
            }
        };
        let _ = rustix::io::read(&*eventfd, &mut [0; 8]);
        state.run = Some(Running::InThread(eventfd.clone()));
        Ok(eventfd)
    }

    /// Writes a command to the shell.
    fn begin(self: &Arc<Shell>, script: &Script<'_>, run: &Run, mut connections: Connections) -> Result<RunState> {
        let started = Instant::now();
        let (command, pipes) = ShellCommand::prepare(self, script, connections.source.is_some())?;
        connections.terminal = script.terminal.map(|terminal| terminal.pty.clone());
        connections.limits = self.job.command_limits.as_ref().map(|limits| limits.for_command());
        let (stdin, outputs) = pipes;
        RunState::new(Box::new(command), stdin, outputs, self.name.clone(), started, run, connections)
    }

    /// Interrupts the running command.
    pub(crate) fn interrupt(&self) {
        let run = self.shared.lock().run.clone();
        match run.filter(|_| self.is_busy()) {
            Some(Running::InEngine(run)) => run.order(EngineOrder::Signal { signal: signal::INT, tree: true }),
            Some(Running::InThread(eventfd)) => _ = rustix::io::write(&*eventfd, &1u64.to_ne_bytes()),
            None => {}
        }
    }

    /// Ends the shell after the running command: it runs its EXIT trap and exits.
    pub(crate) fn close_input(&self) {
        let mut state = self.shared.lock();
        state.is_closing = true;
        let is_busy = state.is_busy;
        drop(state);
        if !is_busy {
            self.exit();
        }
    }

    /// Makes a shell that waits for a command exit.
    fn exit(&self) {
        self.job.remember_members();
        if let Some(channel) = &self.shared.lock().channel {
            let _ = channel.prepare_exit().and_then(|()| channel.wake());
        }
    }

    /// Kills the shell and all processes of the session.
    fn kill(&self) {
        self.job.stop(Duration::ZERO);
    }

    /// The processes of the session except the shell and those of its sandbox, as far as /proc shows them: descendants of
    /// the shell, orphans, and processes in the shell's session (setsid(2)). Parents come before their children, and of a
    /// pipeline the last process comes first: if an earlier process of a pipeline ended first, the last one could read EOF
    /// and exit normally.
    fn processes(&self) -> Vec<Stat> {
        let Some(mut shell) = self.process() else { return Vec::new() };
        let mut left = all_processes().unwrap_or_default();
        shell.forget_ended(&left);
        left.retain(|stat| stat.is_alive() && !shell.contains(stat));
        let mut found: Vec<Stat> = Vec::new();
        loop {
            let is_child =
                |stat: &Stat| shell.is_parent_of(stat) || found.iter().any(|member| member.process.pid == stat.parent);
            let has_children = left.iter().any(is_child);
            let is_member = |stat: &Stat| if has_children { is_child(stat) } else { shell.has_in_session(stat) };
            let (mut members, others): (Vec<_>, Vec<_>) = left.into_iter().partition(is_member);
            members.sort_unstable_by_key(|stat| Reverse((stat.process.start, stat.process.pid)));
            if members.is_empty() {
                return found;
            }
            found.extend(members);
            left = others;
        }
    }

    /// The processes of the session except the shell and those of its sandbox. Those that a shell has left when it ended are
    /// in its tree.
    pub(crate) fn session_processes(&self) -> Vec<Stat> {
        if !self.has_ended() {
            return self.processes();
        }
        let shell = self.process();
        let is_of_sandbox = |stat: &Stat| shell.as_ref().is_some_and(|shell| shell.contains(stat));
        self.job.survivors().into_iter().filter(|stat| !is_of_sandbox(stat)).collect()
    }
}

impl ShellState {
    /// The state of a shell that has ended.
    fn ended() -> ShellState {
        ShellState { has_ended: true, ..ShellState::default() }
    }
}

/// Lets each user open a pipe through /proc.
fn permit_all(pipe: &BorrowedFd<'_>) -> Result<()> {
    fchmod(pipe, Mode::from(0o666)).map_err(|e| Error::new(Stage::Capture, errno(e), "fchmod(pipe, 0666)"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{Drain, Stop};

    #[test]
    fn a_command_for_a_shell_that_has_just_ended_reports_the_shells_status() {
        let job = Command::new("sh").args(["-c", "exit 7"]).start(&Run::new()).expect("started");
        job.wait().expect("waited");
        let shared = Arc::new(PerProcess::for_this_process(ShellState::ended(), ShellState::ended));
        let shell = Arc::new(Shell { name: "sh".to_owned(), job, shared });
        let text = Text { text: b"echo no", cwd: None, env: &[], directory: None };
        let script = Script { text: ScriptText::Run(text), merge: false, terminal: None };
        let output = shell.start_command(&script, &Run::new(), Vec::new()).expect("started").wait().expect("waited");
        assert_eq!((output.stop, output.code(), output.shell_exited), (Stop::Lost, None, true), "{output:?}");
        assert_eq!(output.shell_status.and_then(|status| status.code()), Some(7));
        assert!(output.stdout.is_empty() && output.drain == Drain::Eof, "{output:?}");
    }
}
