// SPDX-License-Identifier: MIT OR Apache-2.0
//! A command that runs inside a session's shell: its status, and its end by signals.

mod interrupt;

use std::io::PipeReader;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::{Errno as IoErrno, ioctl_fionread};
use rustix::pipe::fcntl_getpipe_size;
use spawnfd_guard::process::{Stat, ticks_now};

use super::channel::{Streams, new_pipe};
use super::report::{ShellReport, ShellReports};
use super::{Completed, Number, Options, Script, ScriptText, SessionTerminal, Shell, permit_all};
use crate::child::{Started, Usage};
use crate::error::Result;
use crate::job::{ProgramEnd, Supervised};
use crate::signal;
use crate::tree::Tier;
use interrupt::{Interrupt, has_pending};

/// When a command first checks that the shell has begun with it.
const FIRST_CHECK: Duration = Duration::from_millis(20);

/// How often a running command checks that the shell will still report the command's status.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// How long the shell may take to receive a SIGINT that came as a command ended, and the processes of a killed command to
/// end; and the pause between two checks.
const DELIVERY_TIMEOUT: Duration = Duration::from_millis(100);
const DELIVERY_INTERVAL: Duration = Duration::from_millis(1);

/// How long the shell may take to return after the first SIGKILL to the command's processes. The library then kills the
/// shell.
const RETURN_TIMEOUT: Duration = Duration::from_secs(1);

/// How long the run waits after the first SIGKILL for the end of the command, or of the shell.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);

/// How long after the first SIGKILL the library also kills processes that may be background jobs of an earlier command.
const DOUBT_TIMEOUT: Duration = Duration::from_millis(100);

/// How many checks in a row find that the shell waits for a command, although its report of this one is missing, before
/// the library acts; and the pause between them.
const MAX_IDLE_CHECKS: u32 = 2;
const IDLE_CHECK_INTERVAL: Duration = Duration::from_millis(3);

/// How many clock ticks (10 ms each) of CPU time a shell may use before it takes the command. A trap may run at that time.
const MAX_BUSY_TICKS: u64 = 150;

/// How often a shell may run the report before it takes the command, other than after an interrupt. It does so without
/// end if it cannot read the byte that wakes it.
const MAX_EARLY_REPORTS: u32 = 2000;

/// How often a shell may report an interrupt before it takes the command. Another process may send it many, but a user
/// may also have made the report lie.
const MAX_EARLY_INTERRUPTS: u32 = 50_000;

/// How often the library wakes a shell that waits although it has not begun with the text.
const MAX_WAKES: u32 = 3;

/// The largest number of bytes that the library reads from the status pipe before it turns to other work.
const MAX_READ: usize = 256 << 10;

/// How many checks the library waits for an answer of the shell's helper, which it continues at each check.
const MAX_ANSWER_CHECKS: u32 = 40;

/// The library's ends of a command's standard input, and of its output streams.
type Pipes = (Option<OwnedFd>, [Option<PipeReader>; 2]);

/// A command that runs inside a shell.
#[derive(Debug)]
pub(super) struct ShellCommand {
    shell: Arc<Shell>,
    /// Whether this is the start of the shell.
    is_start: bool,
    /// The directory to which the shell returns after a command with a directory of its own.
    returns_to: Option<PathBuf>,
    /// The read end of the status pipe; `None` once the command is over.
    status: Option<OwnedFd>,
    reports: ShellReports,
    /// The files that the shell opens through /proc. The library closes them once the command is over. A shell in a
    /// sandbox opens them in its helper.
    files: Vec<OwnedFd>,
    /// The numbers of the files in the helper, if there is one.
    held: Option<Vec<(RawFd, RawFd)>>,
    /// How many answers the helper owes before the shell can run the command.
    awaited_answers: u32,
    /// Whether the shell has been told to run the command.
    is_sent: bool,
    /// Whether the helper has been told to close the files.
    is_closed: bool,
    /// Whether the shell has been told to exit.
    ends_shell: bool,
    /// The time of the command's start, in the clock ticks of /proc.
    began: u64,
    /// How many checks in a row have found that the shell waits for a command.
    idle_checks: u32,
    /// How many lines the shell has read, at the last look.
    seen_lines: u32,
    /// How many interrupts the shell has reported, at the last look.
    seen_interrupts: u32,
    /// The CPU time of the shell, in clock ticks, when a check first found it busy with something else than the command.
    /// The later checks have found the same.
    busy_from: Option<u64>,
    /// The time at which to read more from the status pipe.
    read_again_at: Option<Instant>,
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
    is_over: bool,
}

impl ShellCommand {
    /// Prepares a command: its streams, and the files that the shell opens.
    pub(super) fn prepare(shell: &Arc<Shell>, script: &Script<'_>, has_input: bool) -> Result<(ShellCommand, Pipes)> {
        let terminal = script.terminal.map(|terminal| terminal.peer_end.as_raw_fd());
        script.terminal.map(SessionTerminal::reset).transpose()?;
        let text = match &script.text {
            ScriptText::Start(number) => return ShellCommand::start(shell, *number),
            ScriptText::Run(text) => text,
        };
        let stdin = (has_input && terminal.is_none()).then(new_pipe).transpose()?;
        let stdout = terminal.is_none().then(new_pipe).transpose()?;
        let stderr = (!script.merge && terminal.is_none()).then(new_pipe).transpose()?;
        let (stdin_file, stdin) = stdin.unzip();
        let (stdout, stdout_file) = stdout.unzip();
        let (stderr, stderr_file) = stderr.unzip();
        let foreground = script.terminal.and_then(|terminal| terminal.foreground_helper(shell));
        let number = |file: &Option<OwnedFd>| file.as_ref().map(AsRawFd::as_raw_fd);
        let [stdin_file, stdout_file, stderr_file] =
            [stdin_file.map(OwnedFd::from), stdout_file.map(OwnedFd::from), stderr_file.map(OwnedFd::from)];
        let streams = Streams {
            stdin: number(&stdin_file).or(terminal.filter(|_| has_input)),
            stdout: number(&stdout_file).or(terminal).unwrap_or(-1),
            stderr: number(&stderr_file),
            is_terminal: terminal.is_some(),
            foreground: foreground.map(|helper| helper.as_raw_fd()),
        };
        let mut kept: Vec<OwnedFd> = [stdout_file, stdin_file, stderr_file].into_iter().flatten().collect();
        let mut command = ShellCommand::new(shell, Number::random());
        let mut state = shell.shared.lock();
        if let (Some(channel), Some(dialect)) = (&state.channel, state.dialect) {
            let mut paths = state.paths.clone();
            if let Some(broker) = &state.broker {
                // See the same call in `Shell::start`.
                kept.iter().map(AsFd::as_fd).try_for_each(|pipe| permit_all(&pipe))?;
                let peer_end = script.terminal.map(|terminal| terminal.peer_end.as_fd());
                let files: Vec<BorrowedFd<'_>> =
                    kept.iter().map(AsFd::as_fd).chain(peer_end).chain(foreground).collect();
                let numbers = broker.command_numbers(&files);
                broker.hold(&numbers)?;
                paths = paths.with(numbers.iter().copied());
                command.held = Some(numbers);
                command.awaited_answers = 1;
                // The helper has its own copies.
                kept.clear();
            }
            // A shell that is about to exit runs no further text. The command reads the end of the status pipe.
            command.is_sent = state.is_closing;
            if !state.is_closing {
                channel.prepare(&paths, (dialect, &state.options, command.reports.number), &streams, text)?;
            }
            command.status = Some(channel.status()?);
            state.is_busy = true;
        }
        drop(state);
        command.files = kept;
        command.returns_to = text.cwd.and(text.directory).map(Path::to_owned);
        Ok((command, (stdin.map(Into::into), [stdout, stderr])))
    }

    /// The start of the shell, which runs its first text by itself.
    fn start(shell: &Arc<Shell>, number: Number) -> Result<(ShellCommand, Pipes)> {
        let mut command = ShellCommand::new(shell, number);
        let mut state = shell.shared.lock();
        if let Some(channel) = &state.channel {
            command.status = Some(channel.status()?);
            state.is_busy = true;
        }
        drop(state);
        (command.is_start, command.is_sent) = (true, true);
        Ok((command, (None, [None, None])))
    }

    fn new(shell: &Arc<Shell>, number: Number) -> ShellCommand {
        ShellCommand {
            shell: shell.clone(),
            is_start: false,
            returns_to: None,
            status: None,
            reports: ShellReports::new(number),
            files: Vec::new(),
            held: None,
            awaited_answers: 0,
            is_sent: false,
            is_closed: false,
            ends_shell: false,
            began: ticks_now(),
            idle_checks: 0,
            seen_lines: 0,
            seen_interrupts: 0,
            busy_from: None,
            read_again_at: None,
            answer_checks: 0,
            next_check: Instant::now().checked_add(FIRST_CHECK),
            terminate_at: None,
            interrupt: None,
            is_signaled: false,
            delivery: None,
            killed: None,
            is_over: false,
        }
    }

    /// Ends the command with its shell. The status of the shell is not that of the command.
    fn finish_without_report(&mut self) -> ProgramEnd {
        let shell_exited = self.shell.status().is_some() || !self.shell.is_running();
        self.finish_with_shell(ProgramEnd { usage: Some(Usage::default()), shell_exited, ..ProgramEnd::default() })
    }

    /// Ends the command with its shell, of whose end `end` gets the details.
    fn finish_with_shell(&mut self, mut end: ProgramEnd) -> ProgramEnd {
        if end.shell_exited {
            end.shell_status = self.shell.status();
            let leftovers = self.shell.job.try_wait().ok().flatten().map(|output| output.leftovers.clone());
            end.leftovers = leftovers.unwrap_or_default();
        }
        self.finish(end)
    }

    /// Checks soon whether the shell waits, if it has gone to its next line. After an interrupt from outside the library,
    /// the shell may have lost the byte that wakes it.
    fn note_lines(&mut self) {
        if std::mem::replace(&mut self.seen_lines, self.reports.lines) != self.reports.lines && !self.has_begun() {
            (self.idle_checks, self.busy_from) = (0, None);
            let check = Instant::now().checked_add(IDLE_CHECK_INTERVAL);
            self.next_check = self.next_check.into_iter().chain(check).min();
        }
    }

    /// Whether the shell has not received a SIGINT yet that the library has sent. The shell must not receive it while it
    /// reads the lines of the next command. Sets the time of the next check.
    fn has_pending_interrupt(&mut self) -> bool {
        let Some(shell) = self.shell.process().filter(|_| self.is_signaled) else { return false };
        let now = Instant::now();
        let [next, last] = self.delivery.get_or_insert([now, now + DELIVERY_TIMEOUT]);
        *next = now + DELIVERY_INTERVAL;
        now < *last && has_pending(shell.process.pid, signal::INT)
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
        now < *last && self.kill_processes(true)
    }

    /// Ends the command with the shell's report.
    fn complete(&mut self, mut report: ShellReport) -> ProgramEnd {
        // Without the text's own `eval`, the status is not that of the text.
        let is_proved = self.has_begun();
        if !self.is_start {
            report.cwd = self.returns_to.take().unwrap_or_else(|| self.shell.directory(report.cwd));
        }
        let mut state = self.shell.shared.lock();
        if let (false, Some(channel)) = (is_proved, &state.channel) {
            channel.forget_text();
        }
        let code = report.code.filter(|_| is_proved);
        let cpu = report.cpu.map_or(Duration::ZERO, |cpu| cpu.saturating_sub(state.cpu));
        state.cpu = report.cpu.unwrap_or(state.cpu);
        if !self.is_start {
            let has = |flag| report.flags.contains(flag);
            let exported = std::mem::take(&mut state.options.exported);
            let (code, exported) = (code.unwrap_or(0), if is_proved { Vec::new() } else { exported });
            state.options = Options { code, traces: has('x'), is_verbose: has('v'), exported };
            // After `set -t`, a shell exits.
            state.is_closing |= has('t');
            let variables = report.variables.or_else(|| state.last.take()?.variables);
            state.last = Some(Completed { cwd: report.cwd.clone(), variables });
        }
        drop(state);
        let status = code.map(|code| ExitStatus::from_raw(i32::from(code) << 8));
        let end = ProgramEnd { status, usage: Some(Usage { cpu, max_rss: 0 }), ..ProgramEnd::default() };
        if self.shell.has_ended() {
            self.finish_with_shell(ProgramEnd { shell_exited: true, ..end })
        } else {
            self.finish(ProgramEnd { cwd: Some(report.cwd), ..end })
        }
    }

    /// Whether the report is complete.
    fn has_report(&self) -> bool {
        self.reports.end.is_some()
    }

    /// Whether the shell has reported something that [`reap`](ShellCommand::reap) has not read yet.
    fn has_unread_report(&self) -> bool {
        self.has_report()
            || self.status.as_ref().is_none_or(|status| ioctl_fionread(status).is_ok_and(|length| length > 0))
    }

    /// SIGKILL of a command's programs gives the command an ordinary exit status.
    fn finish(&mut self, end: ProgramEnd) -> ProgramEnd {
        let mut state = self.shell.shared.lock();
        state.is_busy = false;
        let is_closing = state.is_closing && !state.has_ended;
        drop(state);
        self.status = None;
        if is_closing {
            self.shell.exit();
        }
        self.files.clear();
        self.is_over = true;
        ProgramEnd { may_be_killed: true, ..end }
    }

    /// Continues the helper if it has not answered. The command may have stopped it.
    fn continue_helper(&mut self) {
        if self.awaited_answers > 0 {
            self.answer_checks += 1;
            let helper = self.shell.process().and_then(|shell| shell.ancestors.first().copied());
            helper.inspect(|helper| _ = helper.signal(signal::CONT));
        }
    }

    /// Whether the shell has run the text and will not report its status, because the user has redefined a command that
    /// the report needs. A shell that waits although it has not begun with the text has lost the byte that wakes it, so
    /// this wakes it again.
    fn is_stuck(&mut self) -> bool {
        let shell = self.shell.process().map(|shell| shell.process.pid);
        let state = self.shell.shared.lock();
        let (Some(channel), Some(dialect), Some(shell)) = (&state.channel, state.dialect, shell) else { return false };
        if !channel.is_awake() {
            // A shell that cannot run any line of its standard input reads one after the other.
            let is_interrupted =
                std::mem::replace(&mut self.seen_interrupts, self.reports.interrupts) != self.reports.interrupts;
            let is_busy = |stat: &Stat| !is_interrupted && !channel.has_begun() && stat.is_running();
            let cpu = Stat::read(shell).filter(is_busy).map(|stat| stat.cpu);
            self.busy_from = self.busy_from.filter(|_| cpu.is_some()).or(cpu);
            let used = cpu.zip(self.busy_from).map_or(0, |(cpu, from)| cpu.saturating_sub(from));
            return used > MAX_BUSY_TICKS
                || self.reports.early > MAX_EARLY_REPORTS
                || self.reports.interrupts > MAX_EARLY_INTERRUPTS;
        }
        // A shell that has read the byte may wait for a processor before it closes the pipe.
        let sleeps = || Stat::read(shell).is_some_and(|stat| !stat.is_running());
        let is_idle = self.is_sent && channel.is_awaited_by(shell, dialect) && sleeps();
        if !is_idle || self.has_unread_report() {
            self.idle_checks = 0;
            return false;
        }
        self.idle_checks += 1;
        self.next_check = Instant::now().checked_add(IDLE_CHECK_INTERVAL);
        if !self.idle_checks.is_multiple_of(MAX_IDLE_CHECKS) {
            return false;
        }
        if channel.has_begun() || self.idle_checks > MAX_WAKES * MAX_IDLE_CHECKS {
            return true;
        }
        // If the shell has not lost the byte, it finds an empty file after the text.
        let _ = channel.wake();
        false
    }

    /// Whether the shell runs the command's text, or has reported its status.
    fn has_begun(&self) -> bool {
        let state = self.shell.shared.lock();
        let has_begun = || state.channel.as_ref().map_or(state.had_begun, |channel| channel.has_begun());
        self.is_sent && (self.is_start || has_begun())
    }
}

impl Supervised for ShellCommand {
    fn id(&self) -> u32 {
        self.shell.id()
    }

    fn tier(&self) -> Tier {
        self.shell.job.tier
    }

    fn started(&self) -> Started {
        Started::Session
    }

    /// The read end of the status pipe.
    fn end_fd(&self) -> Option<BorrowedFd<'_>> {
        self.status.as_ref().map(AsFd::as_fd)
    }

    /// Makes the shell run the command, unless the helper must hold the files first.
    fn begin(&mut self) -> Result<()> {
        if self.is_sent || self.awaited_answers > 0 {
            return Ok(());
        }
        self.is_sent = true;
        match &self.shell.shared.lock().channel {
            Some(channel) => channel.wake(),
            None => Ok(()),
        }
    }

    /// Reads the command's status.
    fn reap(&mut self, _is_owner: bool) -> Result<Option<ProgramEnd>> {
        // Without a status pipe, the shell had ended before the command was prepared.
        let Some(status) = &self.status else { return Ok(Some(self.finish_without_report())) };
        let has_ended = self.shell.has_ended();
        let mut buffer = [0; 4096];
        // A read that does not fill the buffer has emptied the pipe, so it ends where a write ends. This keeps the others.
        let mut whole = Vec::new();
        let mut total = 0;
        // All that an ended shell has written is in the pipe now.
        let size = has_ended.then(|| fcntl_getpipe_size(status).unwrap_or(MAX_READ));
        self.read_again_at = None;
        loop {
            let read = match rustix::io::read(status, &mut buffer) {
                // Another process may have the write end, so the pipe of an ended shell may have no EOF.
                Err(IoErrno::AGAIN) if has_ended => Ok(0),
                Ok(_) if size.is_some_and(|size| total >= size) => Ok(0),
                read => read,
            };
            match read {
                Ok(0) => {
                    self.reports.add(&whole);
                    // The shell has ended: the library has closed its own end.
                    let report = self.reports.end.take();
                    return Ok(Some(match report {
                        Some(report) => self.complete(report),
                        None => self.finish_without_report(),
                    }));
                }
                Ok(length) => {
                    whole.extend(&buffer[..length]);
                    if length < buffer.len() {
                        self.reports.add(&std::mem::take(&mut whole));
                    }
                    total += length;
                    if total >= MAX_READ && !has_ended {
                        // A program may write without end.
                        self.read_again_at = Some(Instant::now() + DELIVERY_INTERVAL);
                        break;
                    }
                }
                Err(IoErrno::INTR) => {}
                Err(_) => break,
            }
        }
        self.reports.add(&whole);
        self.note_lines();
        while self.awaited_answers > 0 && self.reports.take_answer() {
            self.awaited_answers -= 1;
        }
        if self.awaited_answers == 0 && !self.is_sent {
            // The helper holds the files.
            self.next_check = Instant::now().checked_add(CHECK_INTERVAL);
            let _ = self.begin();
        }
        if !self.has_report() {
            return Ok(None);
        }
        if let Some(numbers) = self.held.as_ref().filter(|_| !std::mem::replace(&mut self.is_closed, true))
            && let Some(broker) = &self.shell.shared.lock().broker
        {
            broker.close(numbers);
            self.awaited_answers += 1;
        }
        // A limit of the session's tree ends the session. The shell may not react to the SIGTERM that it has got.
        if self.shell.has_reached_limit() && !has_ended {
            if !std::mem::replace(&mut self.ends_shell, true) {
                self.shell.exit();
            }
            return Ok(None);
        }
        // Wait until the helper has closed the files, so that the streams end.
        if self.awaited_answers > 0 || self.has_pending_interrupt() || self.has_late_forks() {
            return Ok(None);
        }
        let report = self.reports.end.take();
        Ok(report.map(|report| self.complete(report)))
    }

    fn due(&self) -> Option<Instant> {
        let interrupt = self.interrupt.as_ref().and_then(|interrupt| interrupt.next);
        let times = [self.next_check, self.terminate_at, self.read_again_at, interrupt];
        let delivery = self.delivery.map(|[next, _]| next);
        times.into_iter().flatten().chain(delivery).min().filter(|_| !self.is_over)
    }

    fn tick(&mut self, now: Instant) {
        if self.interrupt.as_ref().and_then(|interrupt| interrupt.next).is_some_and(|at| at <= now) {
            self.continue_interrupt(now);
        }
        if self.terminate_at.take_if(|at| *at <= now).is_some() {
            self.signal(signal::TERM, false);
        }
        if self.next_check.is_some_and(|at| at <= now) {
            self.next_check = now.checked_add(CHECK_INTERVAL);
            self.continue_helper();
            if self.is_sent && !self.has_begun() {
                self.next_check = now.checked_add(IDLE_CHECK_INTERVAL);
            }
            let is_unusable = self.is_stuck() || self.answer_checks > MAX_ANSWER_CHECKS;
            if is_unusable && !self.has_unread_report() && self.killed.is_none() {
                self.shell.kill();
            }
        }
    }

    /// Sends a signal to the processes of the command, except background jobs. SIGINT also goes to the shell, as from a
    /// terminal, so that the shell abandons the rest of the command. A completed command gets no signal: processes that
    /// have started since may belong to a later command.
    fn signal(&mut self, signal: i32, tree: bool) {
        if self.is_over {
            return;
        }
        if tree && signal == signal::KILL {
            self.kill();
            return;
        }
        self.shell.job.remember_members();
        if signal == signal::INT {
            self.interrupt = Some(Interrupt::default());
            self.continue_interrupt(Instant::now());
        } else {
            self.foreground().for_each(|stat| _ = stat.process.signal(signal));
        }
    }

    /// Interrupts the command, and sends SIGTERM if it has not ended after half of `grace`.
    fn terminate(&mut self, grace: Duration) {
        self.signal(signal::INT, false);
        self.terminate_at = Instant::now().checked_add(grace / 2);
    }

    fn kill_timeout(&self) -> Duration {
        KILL_TIMEOUT
    }

    /// Kills the processes of the command. Kills the shell if it has not returned after [`RETURN_TIMEOUT`].
    fn kill(&mut self) -> bool {
        if self.is_over {
            return true;
        }
        if self.is_start {
            // The shell is starting.
            self.shell.kill();
            return true;
        }
        if self.killed.is_none() {
            self.shell.job.remember_members();
        }
        let killed = *self.killed.get_or_insert_with(Instant::now);
        if !self.kill_processes(killed.elapsed() < DOUBT_TIMEOUT) {
            self.signal(signal::INT, false);
        }
        if killed.elapsed() >= RETURN_TIMEOUT && !self.has_unread_report() {
            self.shell.kill();
        }
        true
    }
}

impl Drop for ShellCommand {
    /// Ends the shell of a command that has not ended, because the shell would go on with it.
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let mut state = self.shell.shared.lock();
        state.is_busy = false;
        if !self.is_sent || state.has_ended {
            return;
        }
        state.abandoned.append(&mut self.files);
        drop(state);
        self.shell.kill();
    }
}
