// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds the processes of a session's command, and interrupts and kills them.

use std::time::{Duration, Instant};

use spawnfd_guard::process::{Process, Stat, ticks_now};

use super::ShellCommand;
use crate::signal;

/// How long an interrupt reaches more processes after it has reached the first one.
const INTERRUPT_TIME: Duration = Duration::from_millis(250);

/// How often an interrupt waits for a process that is starting a program. A subshell that has just started looks the same.
const MAX_START_WAITS: u32 = 8;

/// How often an interrupt waits for a shell that may be starting a process, or for a process that sleeps in its start.
const MAX_DOUBT_WAITS: u32 = 3;

/// The age in clock ticks (10 ms) from which a program probably does not end by itself just now.
const SURE_TICKS: u64 = 2;

/// How often an interrupt sends SIGINT to a shell that runs no other process.
const MAX_SHELL_INTERRUPTS: u32 = 10;

/// The time that a shell has to react to SIGINT before it gets another one.
const SHELL_INTERRUPT_PAUSE: Duration = Duration::from_millis(20);

/// The shortest and the longest pause between two searches for such processes.
const MIN_INTERRUPT_PAUSE: Duration = Duration::from_millis(2);
const MAX_INTERRUPT_PAUSE: Duration = Duration::from_millis(50);

/// An interrupt (SIGINT) of a command.
#[derive(Debug, Default)]
pub(super) struct Interrupt {
    /// The programs that have got SIGINT: each process with its name.
    reached: Vec<(Process, Vec<u8>)>,
    /// How often the shell has got SIGINT, and when it may get it again.
    shell: u32,
    shell_at: Option<Instant>,
    /// Whether the shell slept beside programs that had run for a while when it got the last SIGINT.
    is_sure: bool,
    /// How often the library has waited for a process that was starting a program.
    waits: u32,
    /// `None`: no program has got SIGINT yet.
    ends_at: Option<Instant>,
    pause: Duration,
    /// The time of the next search for processes.
    pub(super) next: Option<Instant>,
}

impl ShellCommand {
    /// Sends SIGINT to the shell and to the processes of the command, to each program once.
    ///
    /// A shell that is just starting a process may lose its own signal, and so may one whose program ends by itself. So the
    /// library looks for further programs until it has reached one, and [`INTERRUPT_TIME`] longer. Unless the shell has
    /// certainly got the signal, it interrupts the shell again.
    pub(super) fn continue_interrupt(&mut self, now: Instant) {
        let Some(mut interrupt) = self.interrupt.take() else { return };
        if self.has_begun()
            && !self.has_unread_report()
            && let Some(shell) = self.shell.process()
        {
            // A shell that sleeps has started all processes that it waits for.
            let stat = Stat::read(shell.process.pid);
            let sleeps = stat.as_ref().is_some_and(Stat::is_sleeping);
            let foreground: Vec<Stat> = self.foreground().collect();
            let children = || foreground.iter().filter(|stat| stat.parent == shell.process.pid);
            // After a signal that the shell has certainly taken, it may run a trap.
            let is_due = interrupt.reached.is_empty() || !interrupt.is_sure;
            // Around a fork, bash may lose SIGINT, or die of it. A process that is starting a program loses the signal until
            // it has removed the shell's handler. So wait until the shell sleeps, and the processes have started their
            // programs: parents get the signal before their children, and the last process of a pipeline before the
            // others. A subshell of bash keeps the handler, but it has children, sleeps, or has used CPU time.
            let in_doubt = interrupt.waits < MAX_DOUBT_WAITS;
            let has_child = |stat: &Stat| foreground.iter().any(|other| other.parent == stat.process.pid);
            let is_starting = |child: &Stat| {
                stat.as_ref().is_some_and(|stat| stat.name() == child.name())
                    && (in_doubt || !child.is_sleeping())
                    && child.cpu == 0
                    && !has_child(child)
                    && has_signal(child.process.pid, &["SigCgt:"], signal::INT)
            };
            let is_forking = interrupt.shell == 0 && in_doubt && !sleeps;
            let waits = interrupt.waits < MAX_START_WAITS && (is_forking || foreground.iter().any(is_starting));
            interrupt.waits += u32::from(waits);
            let may_signal = !waits && interrupt.shell < MAX_SHELL_INTERRUPTS;
            if is_due && may_signal && interrupt.shell_at.is_none_or(|at| at <= now) {
                // The shell gets the signal before its children. If a child ended first, the shell would go on.
                shell.process.signal(signal::INT);
                self.is_signaled = true;
                // If a program ends by itself at this moment, bash goes on.
                let youngest = children().map(|child| child.process.start).max();
                interrupt.is_sure = sleeps && youngest.is_some_and(|start| start + SURE_TICKS < ticks_now());
                interrupt.shell += 1;
                interrupt.shell_at = now.checked_add(SHELL_INTERRUPT_PAUSE);
            }
            for stat in foreground.into_iter().filter(|_| !waits) {
                let program = (stat.process, stat.name().to_vec());
                if !interrupt.reached.contains(&program) {
                    stat.process.signal(signal::INT);
                    interrupt.reached.push(program);
                    interrupt.ends_at = interrupt.ends_at.or_else(|| now.checked_add(INTERRUPT_TIME));
                }
            }
        }
        let is_final = interrupt.is_sure || interrupt.shell >= MAX_SHELL_INTERRUPTS;
        let is_over = is_final && interrupt.ends_at.is_some_and(|at| at <= now);
        interrupt.pause = (interrupt.pause * 2).clamp(MIN_INTERRUPT_PAUSE, MAX_INTERRUPT_PAUSE);
        interrupt.next = now.checked_add(interrupt.pause);
        self.interrupt = Some(interrupt).filter(|_| !is_over);
    }

    /// Kills the processes of the command. Returns whether there were any. In the clock tick of 10 ms in which the command began, a
    /// background job of an earlier command may have started. `spares_doubtful` spares what may be such a job.
    pub(super) fn kill_processes(&self, spares_doubtful: bool) -> bool {
        let found: Vec<Stat> = self.processes().collect();
        let in_doubt = |stat: &Stat| stat.process.start <= self.began && ignores_sigint(stat.process.pid);
        // A process whose parent belongs to the command is not in doubt.
        let has_parent = |stat: &Stat| found.iter().any(|other| other.process.pid == stat.parent && !in_doubt(other));
        let spares = |stat: &Stat| spares_doubtful && in_doubt(stat) && !has_parent(stat);
        let found: Vec<Stat> = without_jobs(found.iter().cloned(), spares).collect();
        for stat in &found {
            stat.process.signal(signal::KILL);
        }
        !found.is_empty()
    }

    /// The processes that have started since the command began, except those that belong to an earlier background job.
    fn processes(&self) -> impl Iterator<Item = Stat> + use<> {
        let began = self.began;
        without_jobs(self.shell.processes(), move |stat| stat.process.start < began)
    }

    /// The processes of the command, except background jobs.
    pub(super) fn foreground(&self) -> impl Iterator<Item = Stat> + use<> {
        self.processes().filter(|stat| !ignores_sigint(stat.process.pid))
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

/// Whether a process ignores SIGINT. A shell without job control makes its background jobs ignore SIGINT.
fn ignores_sigint(pid: i32) -> bool {
    has_signal(pid, &["SigIgn:"], signal::INT)
}

/// Whether a process has not received a signal yet that was sent to it.
pub(super) fn has_pending(pid: i32, signal: i32) -> bool {
    has_signal(pid, &["SigPnd:", "ShdPnd:"], signal)
}

/// Whether one of these sets in /proc/PID/status contains a signal.
fn has_signal(pid: i32, sets: &[&str], signal: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let found = status.lines().filter_map(|line| sets.iter().find_map(|set| line.strip_prefix(set)));
    found.filter_map(|set| u64::from_str_radix(set.trim(), 16).ok()).any(|set| set & 1 << (signal - 1) != 0)
}
