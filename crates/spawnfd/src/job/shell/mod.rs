// SPDX-License-Identifier: MIT OR Apache-2.0
//! The shell of a session, and a command that runs inside the shell.
//!
//! The shell opens the files of a command (its text, streams, and status pipe) through `/proc/OWNER/fd`. A shell in a
//! sandbox opens them through `/proc/HELPER/fd` of a helper (`holder.rs`). The shell's own redirections undo themselves
//! when the command is over, so no process of a later command has these files.

mod command;
mod holder;
mod terminal;

use std::cmp::Reverse;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{PipeReader, PipeWriter};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, memfd_create};
use spawnfd_guard::process::{Process, Stat, all_processes, is_proc_foreign};

use super::command::{connect_events, start_job};
use super::engine::{self, EngineOrder, RunHandle};
use super::run_state::{Connections, Program, RunState};
use super::{EventOptions, Events, Job, Output, Producer, Run, Source};
use crate::command::Command;
use crate::error::{Errno, Error, Result, Stage, errno};
use crate::host::descriptors::above_standard;
use crate::host::per_process::PerProcess;
use crate::limiter::Permit;
use crate::signal;
use crate::tree::{Tier, TreeControl};
pub(super) use command::ShellCommand;
use holder::Holder;
pub(crate) use holder::HolderNumbers;
pub(crate) use terminal::SessionTerminal;

/// The number of bytes of control lines that may wait for the shell. The lines of a command have a few hundred bytes; the
/// first lines may have a long path.
const CONTROL_QUEUE: usize = 1 << 20;

/// A session's shell, which the library supervises as a job of its own.
#[derive(Debug)]
pub(crate) struct Shell {
    /// The name of the shell's program.
    name: String,
    job: Job,
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
    /// The helper of a shell in a sandbox, until the shell has ended.
    holder: Option<Holder>,
    /// `None` until the helper has started the shell.
    process: Option<ShellProcess>,
    /// The status of a shell in a sandbox. The sandbox command may report another one, for example 137 in place of
    /// SIGKILL.
    end: Option<ExitStatus>,
    /// The write end of the running command's status pipe. The shell opens it through /proc. The library closes it when
    /// the shell has ended, so that the command reads EOF.
    status: Option<PipeWriter>,
    /// The status pipe of an earlier command, to which the shell may still write a repeated status line. If the pipe
    /// were closed, its number could belong to another file.
    retired: Option<(PipeReader, PipeWriter)>,
    /// The files of a command that the library no longer watches, until the shell has ended. Until then the shell may
    /// open their numbers.
    abandoned: Vec<OwnedFd>,
    /// The command that runs, or the last one.
    run: Option<Running>,
    /// The CPU time of the shell and of the children that it has waited for.
    cpu: Duration,
    last: Option<Completed>,
}

/// The means to interrupt a command.
#[derive(Clone, Debug)]
enum Running {
    /// The engine drives the command.
    InEngine(RunHandle),
    /// A thread drives the command and sleeps. A write to the eventfd wakes it.
    InThread(Arc<OwnedFd>),
}

/// The end of the command that the shell has completed last.
#[derive(Clone, Debug)]
pub(crate) struct Completed {
    /// The value of `$?`.
    pub(crate) code: u8,
    /// The working directory of the shell.
    pub(crate) cwd: PathBuf,
    /// The number of the command in its shell, beginning with 0.
    pub(crate) serial: u64,
}

/// One command for the shell.
pub(crate) struct Script<'a> {
    /// Returns the control lines.
    pub(crate) lines: &'a dyn Fn(&Files) -> Result<ControlLines>,
    /// The files that the lines use besides those of the command.
    pub(crate) files: &'a [BorrowedFd<'a>],
    /// The number of the command in its shell.
    pub(crate) serial: u64,
    /// Whether standard error goes to standard output.
    pub(crate) merge: bool,
    /// The terminal that is the command's standard output and error, and its standard input if it has any.
    pub(crate) terminal: Option<&'a SessionTerminal>,
}

/// The descriptors of this process that the shell opens for a command.
pub(crate) struct Files {
    /// `None`: /dev/null.
    pub(crate) stdin: Option<RawFd>,
    pub(crate) stdout: RawFd,
    /// `None`: the same as standard output.
    pub(crate) stderr: Option<RawFd>,
    pub(crate) status: RawFd,
    /// Whether `stdout` is a terminal, which the shell opens for reading and writing.
    pub(crate) is_terminal: bool,
    /// The directory of the process that has the files, as a word of the shell.
    directory: String,
    /// For each descriptor its number in the helper, if there is one.
    held: Vec<(RawFd, RawFd)>,
}

impl Files {
    /// The path through which the shell opens a descriptor of this process, as a word of the shell.
    pub(crate) fn path(&self, fd: RawFd) -> String {
        let number = self.held.iter().find(|(own, _)| *own == fd).map_or(fd, |(_, held)| *held);
        format!("{}{number}", self.directory)
    }
}

/// The lines that the library writes to the shell for one command.
pub(crate) struct ControlLines {
    /// Runs the command.
    pub(crate) command: Vec<u8>,
    /// Reports the command's status. The library sends the line again if the shell has discarded it, as dash does when
    /// SIGINT interrupts a command.
    pub(crate) status: Vec<u8>,
    /// The same report by commands with a redirection each, which takes longer. The library sends this line if a DEBUG
    /// trap of bash has written to the redirection of the group in `status`.
    pub(crate) separate_status: Vec<u8>,
}

/// A command in a shell that the calling thread drives.
#[derive(Debug)]
pub(crate) struct ThreadCommand {
    state: RunState,
    interrupts: Arc<OwnedFd>,
}

impl ThreadCommand {
    /// Drives the command to its end. Leaves the output of background jobs to the engine.
    pub(crate) fn run(self) -> Result<Output> {
        let (output, left) = self.state.run_blocking(Some(self.interrupts.as_fd()), || false)?;
        left.into_iter().for_each(engine::adopt);
        Ok(output)
    }
}

impl Shell {
    /// Starts the shell. Its standard input carries the control lines. `name` is the name of its program. `numbers`: a
    /// sandbox command starts the shell's helper.
    pub(crate) fn start(
        command: &mut Command<'_>,
        name: &OsStr,
        numbers: Option<HolderNumbers>,
        run: &Run,
    ) -> Result<Shell> {
        if is_proc_foreign() {
            let message = "a session needs the /proc of this process's pid namespace";
            return Err(Error::new(Stage::Capture, Errno::EOPNOTSUPP, "/proc/self").saying(message));
        }
        // A session runs for long, and its commands may start daemons, so its tree has the most complete tier.
        let run = run.clone().tree(run.tree.unwrap_or(TreeControl::Auto)).writable(CONTROL_QUEUE);
        let holder = numbers.map(|numbers| Holder::connect(command, numbers)).transpose()?;
        let job = command.start(&run);
        numbers.into_iter().for_each(|numbers| Holder::started(command, numbers));
        let job = job?;
        let pid = job.id() as i32;
        let process = holder.is_none().then(|| ShellProcess::read(pid, pid, job.tier() == Tier::Subreaper));
        let state = ShellState { holder, process, ..ShellState::default() };
        let shared =
            Arc::new(PerProcess::for_this_process(state, || ShellState { has_ended: true, ..ShellState::default() }));
        let on_end = shared.clone();
        job.when_done(move || {
            let mut state = on_end.lock();
            state.has_ended = true;
            let holder = state.holder.take().map(|mut holder| {
                holder.receive();
                state.end = holder.end();
                holder
            });
            let closed = (state.status.take(), std::mem::take(&mut state.abandoned), holder);
            drop(state);
            drop(closed);
        });
        Ok(Shell { name: name.to_string_lossy().into_owned(), job, shared })
    }

    /// The job of the shell process.
    pub(crate) fn job(&self) -> &Job {
        &self.job
    }

    /// The shell's process id. Until a helper has started the shell, the process id of its job.
    pub(crate) fn id(&self) -> u32 {
        self.process().map_or(self.job.id(), |shell| shell.process.pid as u32)
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
            && let Some(holder) = &mut state.holder
        {
            holder.receive();
            let (top, has_subreaper) = (self.job.id() as i32, self.job.tier() == Tier::Subreaper);
            state.process = holder.shell().map(|pid| ShellProcess::read(pid, top, has_subreaper));
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

    /// Whether a command runs.
    pub(crate) fn is_busy(&self) -> bool {
        self.shared.lock().status.is_some()
    }

    /// The end of the last completed command.
    pub(crate) fn last(&self) -> Option<Completed> {
        self.shared.lock().last.clone()
    }

    /// Starts a command in the shell.
    pub(crate) fn start_command(
        self: &Arc<Shell>,
        script: &Script<'_>,
        run: &Run,
        permit: Option<Permit>,
    ) -> Result<Job> {
        self.start_with(script, run, permit, |_| (None, ())).map(|(job, ())| job)
    }

    /// Starts a command in the shell and also delivers its output as events.
    pub(crate) fn start_command_events(
        self: &Arc<Shell>,
        script: &Script<'_>,
        run: &Run,
        permit: Option<Permit>,
        options: EventOptions,
    ) -> Result<(Job, Events)> {
        self.start_with(script, run, permit, connect_events(options))
    }

    fn start_with<E>(
        self: &Arc<Shell>,
        script: &Script<'_>,
        run: &Run,
        permit: Option<Permit>,
        connect: impl FnOnce(&RunHandle) -> (Option<Producer>, E),
    ) -> Result<(Job, E)> {
        let begin = |connections| self.begin(script, run, Connections { permit, ..connections });
        let started = start_job(run, true, connect, begin)?;
        self.shared.lock().run = Some(Running::InEngine(started.0.handle.clone()));
        Ok(started)
    }

    /// Starts a command that the calling thread will drive. This saves a switch to the engine's thread and back.
    pub(crate) fn start_in_thread(
        self: &Arc<Shell>,
        script: &Script<'_>,
        run: &Run,
        permit: Option<Permit>,
    ) -> Result<ThreadCommand> {
        let interrupts = self.interrupts()?;
        let source = run.input.clone().map(Source::bytes);
        let state = self.begin(script, run, Connections { is_job: true, source, permit, ..Connections::default() })?;
        Ok(ThreadCommand { state, interrupts })
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
        connections.terminal = script.terminal.map(SessionTerminal::pty);
        let (stdin, outputs) = pipes;
        let program = Program::InShell(Box::new(command));
        let mut state = RunState::new(program, stdin, outputs, self.name.clone(), started, run, connections)?;
        state.begin_command()?;
        Ok(state)
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

    /// Writes control lines.
    fn send(&self, lines: &[u8]) -> Result<()> {
        match self.job.write(lines) {
            Ok(accepted) if accepted == lines.len() => Ok(()),
            // The shell has ended. The command reads the end of its status pipe.
            Err(error) if error.errno() == Errno::EPIPE => Ok(()),
            Err(error) => Err(error),
            Ok(_) => {
                let message = "the shell has not read the control lines of earlier commands";
                Err(Error::new(Stage::Capture, Errno::EAGAIN, "write(control)").saying(message))
            }
        }
    }

    /// Ends the shell's input, after the running command. If SIGINT came later than the last line, dash would drop it.
    pub(crate) fn close_input(&self) {
        let mut state = self.shared.lock();
        state.is_closing = true;
        let is_busy = state.status.is_some();
        drop(state);
        if !is_busy {
            self.end_input();
        }
    }

    /// Ends the shell's input. A forked copy of this process may have the pipe, so the shell may not read EOF.
    fn end_input(&self) {
        let _ = self.send(b"exit\n");
        self.job.close_stdin();
    }

    /// Kills the shell and all processes of the session.
    fn kill(&self) {
        self.job.stop(Duration::ZERO);
    }

    /// The processes of the session except the shell and those of its sandbox, as far as /proc shows them: descendants of
    /// the shell, orphans, and processes in the shell's session (setsid(2)). Parents come before their children, and of a
    /// pipeline the last process comes first: if an earlier process of a pipeline ended first, the last one could read EOF
    /// and exit normally.
    pub(crate) fn processes(&self) -> Vec<Stat> {
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
}

/// Creates an empty file in memory.
pub(crate) fn memory_file() -> Result<File> {
    let created = memfd_create("spawnfd-session", MemfdFlags::CLOEXEC);
    created.map(File::from).map_err(|e| Error::new(Stage::Capture, errno(e), "memfd_create(MFD_CLOEXEC)"))
}
