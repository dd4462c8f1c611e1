// SPDX-License-Identifier: MIT OR Apache-2.0
//! A command that runs inside a session's shell: its status, and its end by signals.

use std::ffi::OsString;
use std::io::{ErrorKind, PipeReader, PipeWriter, Read, pipe};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, fchmod, fcntl_setfl};
use rustix::io::ioctl_fionread;
use spawnfd_guard::hold::ANSWER;
use spawnfd_guard::process::{Process, Stat, ticks_now};

use super::{Completed, Files, Script, SessionTerminal, Shell};
use crate::child::Usage;
use crate::error::{Error, Result, Stage, errno, from_io};
use crate::signal;
use crate::tree::Tier;

/// How often a running command checks that the shell will still report the command's status.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// How long the shell may take to receive a SIGINT that came as a command ended, and the processes of a killed command to
/// end; and the pause between two checks.
const DELIVERY_TIMEOUT: Duration = Duration::from_millis(100);
const DELIVERY_INTERVAL: Duration = Duration::from_millis(1);

/// How long the shell may take to return after the end of the processes that the first SIGKILL has reached.
const RETURN_TIMEOUT: Duration = Duration::from_millis(300);

/// How long after the first SIGKILL the library kills the shell in any case. The run gives up after 1 s.
const SHELL_TIMEOUT: Duration = Duration::from_millis(800);

/// How long after the first SIGKILL the library also kills processes that may be background jobs of an earlier command.
const DOUBT_TIMEOUT: Duration = Duration::from_millis(100);

/// How long an interrupt reaches more processes after it has reached the first one.
const INTERRUPT_TIME: Duration = Duration::from_millis(250);

/// For how many clock ticks (10 ms each) a child of the shell with the shell's name may be starting a program.
const START_TICKS: u64 = 2;

/// How often an interrupt waits for a process that is starting a program. A subshell looks the same.
const MAX_START_WAITS: u32 = 5;

/// How often an interrupt sends SIGINT to a shell that runs no other process.
const MAX_SHELL_INTERRUPTS: u32 = 10;

/// The shortest and the longest pause between two searches for such processes.
const MIN_INTERRUPT_PAUSE: Duration = Duration::from_millis(2);
const MAX_INTERRUPT_PAUSE: Duration = Duration::from_millis(50);

/// How many more status lines the library sends before it takes the shell for unusable.
const MAX_REPEATS: u32 = 10;

/// How many checks the library waits for an answer of the shell's helper, which it continues at each check.
const MAX_ANSWER_CHECKS: u32 = 40;

/// A command that runs inside a shell.
#[derive(Debug)]
pub(in crate::job) struct ShellCommand {
    shell: Arc<Shell>,
    serial: u64,
    /// The read end of the status pipe; `None` once the command is over.
    status: Option<PipeReader>,
    received: Vec<u8>,
    /// The files that the shell opens through /proc. The library closes them once the command is over. A shell in a
    /// sandbox opens them in its helper.
    files: Vec<OwnedFd>,
    /// The numbers of the files in the helper, if there is one: the status pipe, and then the others.
    held: Option<Vec<RawFd>>,
    /// The control lines, until they are sent. A shell in a sandbox gets them once the helper holds the files.
    unsent: Option<Vec<u8>>,
    /// The shell's report, until the helper has closed the files and the shell has received each SIGINT.
    report: Option<Report>,
    /// The time of the command's start, in the clock ticks of /proc.
    began: u64,
    status_line: Vec<u8>,
    /// The line to repeat after a report with another form ([`ControlLines::separate_status`]).
    separate_status: Vec<u8>,
    /// The value of `$?` in such a report. A repeated line does not find it any more.
    code: Option<u8>,
    repeats: u32,
    /// How many checks have found that the helper has not answered.
    answer_checks: u32,
    next_check: Option<Instant>,
    /// The time at which the library sends SIGTERM, after SIGINT had no effect.
    terminate_at: Option<Instant>,
    interrupt: Option<Interrupt>,
    /// The library has sent SIGINT to the shell, which may not have received the signal yet.
    is_signaled: bool,
    /// The times of the next check for that signal and for processes of a killed command, and of the last one.
    delivery: Option<[Instant; 2]>,
    /// The time of the first SIGKILL.
    killed: Option<Instant>,
    /// The processes that this SIGKILL has reached, until they have ended. One that frees much memory takes its time.
    dying: Vec<Process>,
    /// The time at which one of them was last alive.
    dying_at: Option<Instant>,
    end: Option<CommandEnd>,
}

/// An interrupt (SIGINT) of a command.
#[derive(Debug, Default)]
struct Interrupt {
    /// The programs that have got SIGINT: each process with its name.
    reached: Vec<(Process, Vec<u8>)>,
    /// How often the shell has got SIGINT.
    shell: u32,
    /// How often the library has waited for a process that was starting a program.
    waits: u32,
    /// `None`: no program has got SIGINT yet.
    ends_at: Option<Instant>,
    pause: Duration,
    /// The time of the next search for processes.
    next: Option<Instant>,
}

/// How a command in a shell ended.
#[derive(Debug)]
pub(in crate::job) struct CommandEnd {
    /// `None`: the status of the shell is lost.
    pub(in crate::job) status: Option<ExitStatus>,
    pub(in crate::job) usage: Usage,
    /// `None`: the shell has ended, or the library has given up on it.
    pub(in crate::job) cwd: Option<PathBuf>,
    pub(in crate::job) shell_exited: bool,
}

/// The library's ends of a command's standard input, and of its output streams.
type Pipes = (Option<OwnedFd>, [Option<PipeReader>; 2]);

impl ShellCommand {
    pub(super) fn prepare(shell: &Arc<Shell>, script: &Script<'_>, has_input: bool) -> Result<(ShellCommand, Pipes)> {
        let terminal = script.terminal.map(SessionTerminal::number);
        script.terminal.map(SessionTerminal::reset).transpose()?;
        let stdin = (has_input && terminal.is_none()).then(new_pipe).transpose()?;
        let stdout = terminal.is_none().then(new_pipe).transpose()?;
        let stderr = (!script.merge && terminal.is_none()).then(new_pipe).transpose()?;
        let (status, writer) = new_pipe()?;
        fcntl_setfl(&status, OFlags::NONBLOCK)
            .map_err(|e| Error::new(Stage::Capture, errno(e), "fcntl(F_SETFL, O_NONBLOCK)"))?;
        let (stdin_file, stdin) = stdin.unzip();
        let (stdout, stdout_file) = stdout.unzip();
        let (stderr, stderr_file) = stderr.unzip();
        let number = |file: &Option<OwnedFd>| file.as_ref().map(AsRawFd::as_raw_fd);
        let [stdin_file, stdout_file, stderr_file] =
            [stdin_file.map(OwnedFd::from), stdout_file.map(OwnedFd::from), stderr_file.map(OwnedFd::from)];
        let mut files = Files {
            stdin: number(&stdin_file).or(terminal.filter(|_| has_input)),
            stdout: number(&stdout_file).or(terminal).unwrap_or(-1),
            stderr: number(&stderr_file),
            status: writer.as_raw_fd(),
            is_terminal: terminal.is_some(),
            directory: format!("/proc/{}/fd/", std::process::id()),
            held: Vec::new(),
        };
        let mut kept: Vec<OwnedFd> = [stdout_file, stdin_file, stderr_file].into_iter().flatten().collect();
        let mut held = None;
        let lines;
        {
            let mut state = shell.shared.lock();
            let sent: Vec<BorrowedFd<'_>> = [writer.as_fd()]
                .into_iter()
                .chain(kept.iter().map(AsFd::as_fd))
                .chain(script.files.iter().copied())
                .collect();
            if let Some(holder) = &mut state.holder {
                let numbers = holder.numbers(sent.len() - 1);
                files.directory = holder.directory();
                files.held = sent.iter().map(AsRawFd::as_raw_fd).zip(numbers.iter().copied()).collect();
                held = Some(numbers);
            }
            lines = (script.lines)(&files)?;
            if let (Some(holder), Some(numbers)) = (&mut state.holder, &held) {
                // The sandbox command may change the user. Opening a pipe through /proc requires permission for the pipe
                // itself. Only processes that may trace the helper, or this process, can find the pipes there.
                for pipe in &sent[..=kept.len()] {
                    fchmod(pipe, Mode::from(0o666))
                        .map_err(|e| Error::new(Stage::Capture, errno(e), "fchmod(pipe, 0666)"))?;
                }
                holder.hold(numbers, &sent)?;
                drop(sent);
                // The helper has its own copies.
                kept.clear();
            }
            // The writer of an ended shell is closed at once, and the command reads EOF.
            state.status = Some(writer).filter(|_| !state.has_ended);
        }
        let command = ShellCommand {
            shell: shell.clone(),
            serial: script.serial,
            status: Some(status),
            received: Vec::new(),
            files: kept,
            held,
            unsent: Some([&lines.command[..], &lines.status].concat()),
            report: None,
            began: ticks_now(),
            status_line: lines.status,
            separate_status: lines.separate_status,
            code: None,
            repeats: 0,
            answer_checks: 0,
            next_check: Instant::now().checked_add(CHECK_INTERVAL),
            terminate_at: None,
            interrupt: None,
            is_signaled: false,
            delivery: None,
            killed: None,
            dying: Vec::new(),
            dying_at: None,
            end: None,
        };
        Ok((command, (stdin.map(Into::into), [stdout, stderr])))
    }

    /// Sends the control lines, unless the helper must hold the files first.
    pub(in crate::job) fn begin(&mut self) -> Result<()> {
        match self.unsent.take_if(|_| self.held.is_none()) {
            Some(lines) => self.shell.send(&lines).inspect_err(|_| self.unsent = Some(lines)),
            None => Ok(()),
        }
    }

    pub(in crate::job) fn id(&self) -> u32 {
        self.shell.id()
    }

    pub(in crate::job) fn tier(&self) -> Tier {
        self.shell.job.tier()
    }

    /// The descriptor to watch until the command is over.
    pub(in crate::job) fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.status.as_ref().map(AsFd::as_fd)
    }

    pub(in crate::job) fn end(&self) -> Option<&CommandEnd> {
        self.end.as_ref()
    }

    pub(in crate::job) fn take_cwd(&mut self) -> Option<PathBuf> {
        self.end.as_mut().and_then(|end| end.cwd.take())
    }

    /// Reads the command's status. Returns whether the command is over.
    pub(in crate::job) fn reap(&mut self) -> bool {
        let Some(status) = &mut self.status else { return true };
        let has_ended = self.shell.has_ended();
        let mut buffer = [0; 4096];
        loop {
            let read = match status.read(&mut buffer) {
                // A forked copy of this process may have the write end, so the pipe of an ended shell may have no EOF.
                Err(e) if e.kind() == ErrorKind::WouldBlock && has_ended => Ok(0),
                read => read,
            };
            match read {
                Ok(0) => {
                    // The shell has ended: the library has closed its own end.
                    match self.report.take() {
                        Some(report) => self.complete(report),
                        None => {
                            let (status, usage) = (self.shell.status(), Usage::new(Duration::ZERO, 0));
                            let shell_exited = status.is_some() || !self.shell.is_running();
                            self.finish(CommandEnd { status, usage, cwd: None, shell_exited });
                        }
                    }
                    return true;
                }
                Ok(length) => self.received.extend(&buffer[..length]),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        if self.unsent.is_some() {
            if !self.take_answer() {
                return false;
            }
            // The helper holds the files.
            self.next_check = Instant::now().checked_add(CHECK_INTERVAL);
            if let Some(lines) = self.unsent.take() {
                let _ = self.shell.send(&lines);
            }
        }
        if self.report.is_none() {
            // A repeated status line makes the shell report twice. Use the first report.
            let Some(report) = Report::take(&mut self.received) else { return false };
            let Some(parsed) = Report::parse(&report) else {
                // SIGINT has interrupted a command of the status line, a DEBUG trap has written to its redirection, or the
                // user has replaced such a command.
                self.code = self.code.or_else(|| Report::code(&report));
                self.status_line.clone_from(&self.separate_status);
                self.received.clear();
                self.repeat_status_line();
                return false;
            };
            self.report = Some(Report { code: self.code.unwrap_or(parsed.code), ..parsed });
            if let (Some(numbers), Some(holder)) = (&self.held, &self.shell.shared.lock().holder) {
                holder.close(numbers, self.repeats > 0);
            }
        }
        // Wait until the helper has closed the files, so that the streams end. The shell may be repeating its report, so
        // the answer may be a part of the second report.
        if self.held.is_some() && self.repeats == 0 && self.delivery.is_none() && !self.take_answer() {
            return false;
        }
        if self.has_pending_interrupt() || self.has_late_forks() {
            return false;
        }
        self.report.take().into_iter().for_each(|report| self.complete(report));
        true
    }

    /// Whether the shell has not received a SIGINT yet that the library has sent. The shell must not receive it while it
    /// reads the lines of the next command. Sets the time of the next check.
    fn has_pending_interrupt(&mut self) -> bool {
        let Some(shell) = self.shell.process().filter(|_| self.is_signaled) else { return false };
        let now = Instant::now();
        let [next, last] = self.delivery.get_or_insert([now, now + DELIVERY_TIMEOUT]);
        *next = now + DELIVERY_INTERVAL;
        now < *last && has_signal(shell.process.pid, PENDING, signal::INT)
    }

    /// Whether processes of a killed command are left. A process may have forked just before its SIGKILL, so this kills
    /// those that it finds. Sets the time of the next check.
    fn has_late_forks(&mut self) -> bool {
        if self.killed.is_none() {
            return false;
        }
        let now = Instant::now();
        let [next, last] = self.delivery.get_or_insert([now, now + DELIVERY_TIMEOUT]);
        *next = now + DELIVERY_INTERVAL;
        // The shell has returned, so only processes that certainly belong to the command are killed.
        now < *last && !self.kill_processes(true).is_empty()
    }

    /// The time at which to call [`reap`](ShellCommand::reap) again.
    pub(in crate::job) fn report_due(&self) -> Option<Instant> {
        let ended = self.next_check.filter(|_| self.shell.has_ended());
        self.delivery.map(|[next, _]| next).or(ended).filter(|_| self.end.is_none())
    }

    /// Removes the helper's answer from the received bytes. Returns whether it has arrived.
    fn take_answer(&mut self) -> bool {
        let has_arrived = self.received.starts_with(ANSWER);
        self.received.drain(..if has_arrived { ANSWER.len() } else { 0 });
        has_arrived
    }

    /// Ends the command with the shell's report.
    fn complete(&mut self, mut report: Report) {
        if self.serial > 0 {
            report.cwd = self.shell.directory(report.cwd);
        }
        let mut state = self.shell.shared.lock();
        let cpu = report.cpu.saturating_sub(state.cpu);
        state.cpu = report.cpu;
        state.last = Some(Completed { code: report.code, cwd: report.cwd.clone(), serial: self.serial });
        drop(state);
        let status = Some(ExitStatus::from_raw(i32::from(report.code) << 8));
        let usage = Usage::new(cpu, 0);
        self.finish(CommandEnd { status, usage, cwd: Some(report.cwd), shell_exited: false });
    }

    /// Whether the shell has reported something that [`reap`](ShellCommand::reap) has not read yet.
    fn has_report(&self) -> bool {
        self.report.is_some()
            || self.status.as_ref().is_none_or(|status| ioctl_fionread(status).is_ok_and(|length| length > 0))
    }

    fn finish(&mut self, end: CommandEnd) {
        let mut state = self.shell.shared.lock();
        let retired = match (self.status.take(), state.status.take(), self.repeats) {
            (Some(reader), Some(writer), 1..) => state.retired.replace((reader, writer)),
            (reader, writer, _) => {
                let before = state.retired.take();
                drop((reader, writer));
                before
            }
        };
        let is_closing = state.is_closing;
        drop(state);
        drop(retired);
        if is_closing {
            self.shell.end_input();
        }
        self.files.clear();
        self.end = Some(end);
    }

    /// The time of the next [`tick`](ShellCommand::tick).
    pub(in crate::job) fn due(&self) -> Option<Instant> {
        let interrupt = self.interrupt.as_ref().and_then(|interrupt| interrupt.next);
        self.next_check.into_iter().chain(self.terminate_at).chain(interrupt).min().filter(|_| self.end.is_none())
    }

    pub(in crate::job) fn tick(&mut self, now: Instant) {
        if self.interrupt.as_ref().and_then(|interrupt| interrupt.next).is_some_and(|at| at <= now) {
            self.continue_interrupt(now);
        }
        if self.terminate_at.take_if(|at| *at <= now).is_some() {
            self.signal(signal::TERM);
        }
        if self.next_check.is_some_and(|at| at <= now) {
            self.next_check = now.checked_add(CHECK_INTERVAL);
            self.continue_helper();
            self.repeat_status_line();
            let has_no_report = self.repeats > MAX_REPEATS && !self.has_report();
            if (has_no_report || self.answer_checks > MAX_ANSWER_CHECKS) && self.killed.is_none() {
                self.shell.kill();
            }
        }
    }

    /// Continues the helper if it has not answered. The command may have stopped it.
    fn continue_helper(&mut self) {
        if self.held.is_some() && (self.unsent.is_some() || self.report.is_some()) {
            self.answer_checks += 1;
            let helper = self.shell.process().and_then(|shell| shell.ancestors.first().copied());
            helper.inspect(|helper| _ = helper.signal(signal::CONT));
        }
    }

    /// Sends the status line again if the shell has read the first one and has not reported a status.
    fn repeat_status_line(&mut self) {
        if self.unsent.is_none() && self.shell.job.unread_input() == Some(0) && !self.has_report() {
            self.repeats += 1;
            let _ = self.shell.job.write(&self.status_line);
        }
    }

    /// Interrupts the command, and sends SIGTERM if it has not ended after half of `grace`.
    pub(in crate::job) fn interrupt_then_terminate(&mut self, grace: Duration) {
        self.signal(signal::INT);
        self.terminate_at = Instant::now().checked_add(grace / 2);
    }

    /// Sends a signal to the processes of the command, except background jobs. SIGINT also goes to the shell, as from a
    /// terminal, so that the shell abandons the rest of the command. A completed command gets no signal: processes that
    /// have started since may belong to a later command.
    pub(in crate::job) fn signal(&mut self, signal: i32) {
        if self.end.is_some() {
            return;
        }
        if signal == signal::INT {
            self.interrupt = Some(Interrupt::default());
            self.continue_interrupt(Instant::now());
        } else {
            self.foreground().for_each(|stat| _ = stat.process.signal(signal));
        }
    }

    /// Sends SIGINT to the shell and to the processes of the command, to each program once.
    ///
    /// A shell that is just starting a process may lose its own signal. So the library looks for further programs until
    /// it has reached one, and [`INTERRUPT_TIME`] longer. If there is none, it interrupts the shell again.
    fn continue_interrupt(&mut self, now: Instant) {
        let Some(mut interrupt) = self.interrupt.take() else { return };
        // If the shell were interrupted within a line, it would read the rest of the line as another command.
        let has_read = self.unsent.is_none()
            && self.shell.job.unread_input().is_none_or(|unread| unread <= self.status_line.len() as u64);
        if has_read
            && !self.has_report()
            && let Some(shell) = self.shell.process()
        {
            if interrupt.reached.is_empty() && interrupt.shell < MAX_SHELL_INTERRUPTS {
                // The shell gets the signal before its children. If a child ended first, the shell would go on.
                shell.process.signal(signal::INT);
                self.is_signaled = true;
                self.repeat_status_line();
                interrupt.shell += 1;
            }
            let foreground: Vec<Stat> = self.foreground().collect();
            // A child of the shell that has not executed its program yet would lose the signal. Send no signal to any
            // process then, because parents get theirs before their children.
            let comm = Stat::read(shell.process.pid).map(|stat| stat.name().to_vec()).unwrap_or_default();
            let is_starting = |stat: &Stat| stat.name() == comm && stat.process.start + START_TICKS > ticks_now();
            let waits = interrupt.waits < MAX_START_WAITS && foreground.iter().any(is_starting);
            interrupt.waits += u32::from(waits);
            for stat in foreground.into_iter().filter(|_| !waits) {
                let program = (stat.process, stat.name().to_vec());
                if !interrupt.reached.contains(&program) {
                    stat.process.signal(signal::INT);
                    interrupt.reached.push(program);
                    interrupt.ends_at = interrupt.ends_at.or_else(|| now.checked_add(INTERRUPT_TIME));
                }
            }
        }
        let is_over = interrupt.ends_at.is_some_and(|at| at <= now);
        interrupt.pause = (interrupt.pause * 2).clamp(MIN_INTERRUPT_PAUSE, MAX_INTERRUPT_PAUSE);
        interrupt.next = now.checked_add(interrupt.pause);
        self.interrupt = Some(interrupt).filter(|_| !is_over);
    }

    /// Kills the processes of the command. Kills the shell if it has not returned [`RETURN_TIMEOUT`] after their end.
    pub(in crate::job) fn kill(&mut self) {
        if self.end.is_some() {
            return;
        }
        if self.serial == 0 {
            // The shell is starting.
            return self.shell.kill();
        }
        let now = Instant::now();
        let is_first = self.killed.is_none();
        let killed = *self.killed.get_or_insert(now);
        let found = self.kill_processes(killed.elapsed() < DOUBT_TIMEOUT);
        if found.is_empty() {
            self.signal(signal::INT);
        }
        // A shell that does not return may start further processes.
        self.dying.retain(|process| found.contains(process));
        if is_first {
            self.dying = found;
        }
        if !self.dying.is_empty() {
            self.dying_at = Some(now);
        }
        let is_late = self.dying_at.unwrap_or(killed).elapsed() >= RETURN_TIMEOUT || killed.elapsed() >= SHELL_TIMEOUT;
        if is_late && !self.has_report() {
            self.shell.kill();
        }
    }

    /// Kills the processes of the command, and returns them. In the clock tick of 10 ms in which the command began, a
    /// background job of an earlier command may have started. `spares_doubtful` spares what may be such a job.
    fn kill_processes(&self, spares_doubtful: bool) -> Vec<Process> {
        let found: Vec<Stat> = self.processes().collect();
        let in_doubt = |stat: &Stat| stat.process.start <= self.began && ignores_sigint(stat.process.pid);
        // A process whose parent belongs to the command is not in doubt.
        let has_parent = |stat: &Stat| found.iter().any(|other| other.process.pid == stat.parent && !in_doubt(other));
        let spares = |stat: &Stat| spares_doubtful && in_doubt(stat) && !has_parent(stat);
        let found: Vec<Process> = without_jobs(found.iter().cloned(), spares).map(|stat| stat.process).collect();
        for process in &found {
            process.signal(signal::KILL);
        }
        found
    }

    /// The processes that have started since the command began, except those that belong to an earlier background job.
    fn processes(&self) -> impl Iterator<Item = Stat> + use<> {
        let began = self.began;
        without_jobs(self.shell.processes(), move |stat| stat.process.start < began)
    }

    /// The processes of the command, except background jobs.
    fn foreground(&self) -> impl Iterator<Item = Stat> + use<> {
        self.processes().filter(|stat| !ignores_sigint(stat.process.pid))
    }
}

impl Drop for ShellCommand {
    /// Ends the shell of a command that has not ended, because the shell would go on with it.
    fn drop(&mut self) {
        if self.end.is_some() {
            return;
        }
        let mut state = self.shell.shared.lock();
        let writer = state.status.take();
        if self.unsent.is_some() || state.has_ended {
            return;
        }
        state.abandoned.append(&mut self.files);
        state.abandoned.extend(self.status.take().map(OwnedFd::from));
        state.abandoned.extend(writer.map(OwnedFd::from));
        drop(state);
        self.shell.kill();
    }
}

/// Removes the background jobs that `is_job` finds, and their descendants. Parents come before their children.
fn without_jobs(
    processes: impl IntoIterator<Item = Stat>,
    is_job: impl Fn(&Stat) -> bool,
) -> impl Iterator<Item = Stat> {
    let mut jobs = Vec::new();
    processes.into_iter().filter(move |stat| {
        let belongs_to_job = jobs.contains(&stat.parent) || is_job(stat);
        jobs.extend(belongs_to_job.then_some(stat.process.pid));
        !belongs_to_job
    })
}

/// The lines of /proc/PID/status with signals that a process ignores, and that it has not received yet.
const IGNORED: &[&str] = &["SigIgn:"];
const PENDING: &[&str] = &["SigPnd:", "ShdPnd:"];

/// Whether a process ignores SIGINT. A shell without job control makes its background jobs ignore SIGINT.
fn ignores_sigint(pid: i32) -> bool {
    has_signal(pid, IGNORED, signal::INT)
}

/// Whether one of these sets of a process contains a signal.
fn has_signal(pid: i32, sets: &[&str], signal: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let found = status.lines().filter_map(|line| sets.iter().find_map(|set| line.strip_prefix(set)));
    found.filter_map(|set| u64::from_str_radix(set.trim(), 16).ok()).any(|set| set & 1 << (signal - 1) != 0)
}

/// The report of the shell at the end of a command: `$?`, the output of `times`, and `$PWD`. A NUL byte precedes it, and
/// two follow it.
#[derive(PartialEq, Eq, Debug)]
struct Report {
    code: u8,
    cpu: Duration,
    cwd: PathBuf,
}

impl Report {
    /// Removes the first complete report. SIGINT may have cut an earlier one short.
    fn take(received: &mut Vec<u8>) -> Option<Vec<u8>> {
        let end = received.windows(2).skip(1).position(|pair| pair == [0, 0])? + 1;
        let report: Vec<u8> = received.drain(..end + 2).take(end).collect();
        let begin = report.iter().rposition(|byte| *byte == 0).map_or(0, |nul| nul + 1);
        Some(report[begin..].to_vec())
    }

    /// The status at the beginning of a report.
    fn code(bytes: &[u8]) -> Option<u8> {
        let code = bytes.split(|byte| *byte == b' ').next()?;
        std::str::from_utf8(code).ok()?.parse().ok()
    }

    /// Parses a report, without its NUL bytes.
    fn parse(bytes: &[u8]) -> Option<Report> {
        let mut parts = bytes.splitn(3, |byte| *byte == b'\n');
        let [own, children, cwd] = [parts.next()?, parts.next()?, parts.next()?];
        let own = std::str::from_utf8(own).ok()?;
        let (code, own) = own.split_once(' ')?;
        let times = [own, std::str::from_utf8(children).ok()?].map(|line| line.split_once(' '));
        let times: Vec<Duration> = times
            .into_iter()
            .flat_map(|pair| pair.map_or(["", ""], |(user, system)| [user, system]))
            .map(parse_time)
            .collect::<Option<_>>()?;
        let cwd = OsString::from_vec(cwd.strip_prefix(b"=")?.to_vec()).into();
        Some(Report { code: code.parse().ok()?, cpu: times.iter().sum(), cwd })
    }
}

/// Parses a time such as `1m2.345s`. Some locales have a comma.
fn parse_time(text: &str) -> Option<Duration> {
    let (minutes, seconds) = text.strip_suffix('s')?.split_once('m')?;
    let seconds: f64 = seconds.replace(',', ".").parse().ok()?;
    Duration::try_from_secs_f64(minutes.parse::<f64>().ok()? * 60.0 + seconds).ok()
}

fn new_pipe() -> Result<(PipeReader, PipeWriter)> {
    pipe().map_err(|e| Error::new(Stage::Capture, from_io(&e), "pipe2(O_CLOEXEC)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_complete_report_is_taken() {
        let mut received = b"\x000 0m0s\n0m".to_vec();
        assert_eq!(Report::take(&mut received), None);
        received.extend(b"\x00130 0m0s\n\n/a\0");
        assert_eq!(Report::take(&mut received), None);
        received.extend(b"\0\x001 rest");
        assert_eq!(Report::take(&mut received).as_deref(), Some(&b"130 0m0s\n\n/a"[..]));
        assert_eq!(received, b"\x001 rest");
    }

    #[test]
    fn a_report_has_status_times_and_directory() {
        let report = Report::parse(b"130 0m0.010s 0m1,002s\n1m0.000s 0m0.000000s\n=/a\nb").expect("a report");
        assert_eq!(report, Report { code: 130, cpu: Duration::from_millis(61_012), cwd: "/a\nb".into() });
        let wrong =
            ["", "1", "1 /", "x 0m0s 0m0s\n0m0s 0m0s\n=/", "300 0m0s 0m0s\n0m0s 0m0s\n=/", "0 0m0s\n0m0s 0m0s\n=/"];
        for wrong in wrong.into_iter().chain([
            "0 trap\n0m0s 0m0s\n0m0s 0m0s\n=/",
            "0 0m0s 0m0s\ntrap\n0m0s 0m0s\n=/",
            "0 0m0s 0m0s\n0m0s 0m0s\ntrap\n=/",
        ]) {
            assert_eq!(Report::parse(wrong.as_bytes()), None, "{wrong:?}");
        }
    }
}
