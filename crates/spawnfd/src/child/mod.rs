// SPDX-License-Identifier: MIT OR Apache-2.0
//! A running program, identified by its pidfd.

pub(crate) mod signaller;
mod subreaper_handle;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::io::{PipeReader, PipeWriter};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use spawnfd_guard::sys;
use spawnfd_sys::{Ended, Errno, Used, call, reap_unsignalled, wait_pidfd};

use crate::cold_reason::ColdReason;
use crate::constants::signal;
use crate::error::{Error, Result, Stage, errno, reason};
use crate::host::descriptors::{CheckedFd, above_standard};
use crate::host::features;
use crate::host::per_process::PerProcess;
use crate::reaper;
use crate::signals::{SignalSet, check_number};
use signaller::Signaller;
pub(crate) use subreaper_handle::Subreaper;

/// A child process that has become its program.
///
/// A pidfd identifies the process, so waits and signals never reach another process. If the application has put
/// another file at the pidfd's number, waits and signals fail with EBADF, and the library does not close that file.
/// Since Linux 6.9, where each process's pidfd has an inode of its own, the library also recognizes another pidfd at
/// that number.
///
/// Dropping a `Child` does not kill the program. If the program still runs, a thread of the library reaps it. That
/// thread ends when it has no dropped child left.
///
/// # Examples
/// ```
/// use spawnfd::{Command, Stdio};
/// use std::io::Write;
/// let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
/// println!("pid {}", child.id());
/// child.stdin.take().unwrap().write_all(b"input")?; // dropping the pipe ends the input
/// assert!(child.wait()?.success());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Child {
    pid: i32,
    /// `None` once `drop` or `into_pidfd` has taken the pidfd. A job's handle has a weak reference to it.
    pidfd: Option<Arc<CheckedFd>>,
    ended: Option<Ended>,
    started: Started,
    /// The signals that the handle's owner has sent, as a set.
    sent: AtomicU64,
    /// The handle's owner sent SIGTERM before the parked process began to start the program.
    withdrawn: bool,
    /// The start, until the library knows its outcome. `None` if the caller has waited for exec.
    pending: Option<Box<dyn PendingStart>>,
    /// The reason why the child did not become the program.
    failure: Option<Error>,
    /// The program's parent, if that is a subreaper and not this process.
    subreaper: Option<Arc<Subreaper>>,
    /// The writing end of standard input if that is [`Stdio::Piped`](crate::Stdio::Piped).
    pub stdin: Option<PipeWriter>,
    /// The reading end of standard output if that is piped.
    pub stdout: Option<PipeReader>,
    /// The reading end of standard error if that is piped.
    pub stderr: Option<PipeReader>,
}

/// How a program was started.
///
/// # Examples
/// ```
/// use spawnfd::Command;
/// use spawnfd::child::Started;
/// let started = Command::new("true").run()?.started;
/// assert!(matches!(started, Started::Clone | Started::Kernel));
/// assert_eq!(Started::Cold("not added").name(), "cold: not added");
/// # Ok::<(), spawnfd::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
#[non_exhaustive]
pub enum Started {
    /// The calling thread started the program by clone and exec.
    #[default]
    Clone,
    /// The calling thread started the program by one system call of a patched kernel.
    Kernel,
    /// A process that a [`Warm`](crate::Warm) had parked for this program became the program.
    Reserve,
    /// A fork of a parked process of a [`Warm`](crate::Warm) became the program.
    Fork,
    /// The zygote of a [`Warm`](crate::Warm) executed the program in a new child of this process.
    Zygote,
    /// A process of the pool of a [`Warm`](crate::Warm) executed the program. Such a process is
    /// created in advance and can exec any one program.
    Pool,
    /// The shell of a [`Session`](crate::Session) ran the command.
    Session,
    /// The calling thread started the program by clone and exec, although the command uses a
    /// [`Warm`](crate::Warm). The text says why.
    Cold(&'static str),
}

impl Started {
    /// A short lower-case name, the same in every language; for a cold start, "cold: " and the reason.
    pub fn name(self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            Started::Clone => "clone",
            Started::Kernel => "kernel",
            Started::Reserve => "reserve",
            Started::Fork => "fork",
            Started::Zygote => "zygote",
            Started::Pool => "pool",
            Started::Session => "session",
            Started::Cold(why) => return Cow::Owned(format!("cold: {why}")),
        })
    }

    /// The variant with this name.
    pub fn from_name(name: &str) -> Option<Started> {
        use Started::{Clone, Fork, Kernel, Pool, Reserve, Session, Zygote};
        let plain = [Clone, Kernel, Reserve, Fork, Zygote, Pool, Session];
        let cold = || Some(Started::Cold(interned(name.strip_prefix("cold: ")?).unwrap_or(ColdReason::Unknown.word())));
        plain.into_iter().find(|started| started.name() == name).or_else(cold)
    }
}

/// Stores a reason until the process ends. `None` if the process has stored too many different reasons.
pub(crate) fn interned(reason: &str) -> Option<&'static str> {
    const MAX_REASONS: usize = 512;
    static KNOWN: PerProcess<BTreeSet<&'static str>> = PerProcess::new(BTreeSet::new());
    let mut known = KNOWN.lock();
    if let Some(reason) = known.get(reason) {
        return Some(reason);
    }
    if known.len() >= MAX_REASONS {
        return None;
    }
    let reason: &'static str = Box::leak(reason.into());
    known.insert(reason);
    Some(reason)
}

/// A start whose caller did not wait for exec.
pub(crate) trait PendingStart: Debug + Send + Sync {
    /// Checks whether an ended child had become the program before it ended.
    ///
    /// # Errors
    /// The reason why the child had not become the program.
    fn outcome(&self, ended: Option<Ended>) -> Result<()>;

    /// The time within which a parked process must begin to start the program; `None` if the child begins at once.
    fn begin_timeout(&self) -> Option<Duration> {
        None
    }

    /// Cancels the start unless the child has begun it. Returns whether the start was cancelled.
    fn withdraw(&self) -> bool {
        false
    }
}

/// A child's resource usage, as wait4(2) reports it.
///
/// # Examples
/// ```
/// let mut child = spawnfd::Command::new("true").spawn()?;
/// child.wait()?;
/// let usage = child.usage().expect("this handle has reaped the child");
/// println!("{:?} of CPU time, {} KiB", usage.cpu, usage.max_rss / 1024);
/// assert!(usage.max_rss > 0);
/// # Ok::<(), spawnfd::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Usage {
    /// User and system time of the child and the descendants it has waited for.
    pub cpu: Duration,
    /// The largest resident set size of any of these processes, in bytes. It is never less than the caller's own at
    /// the spawn: the kernel keeps the larger value when a child leaves shared memory by exec (fs/exec.c,
    /// exec_mmap).
    pub max_rss: u64,
}

impl Child {
    pub(crate) fn new(pid: i32, pidfd: OwnedFd, started: Started, pending: Option<Box<dyn PendingStart>>) -> Child {
        Child {
            pid,
            pidfd: Some(Arc::new(CheckedFd::new(pidfd))),
            ended: None,
            started,
            sent: AtomicU64::new(0),
            withdrawn: false,
            pending,
            failure: None,
            subreaper: None,
            stdin: None,
            stdout: None,
            stderr: None,
        }
    }

    /// The same child; `reason` says why it was not started from a parked process.
    pub(crate) fn cold(mut self, reason: ColdReason) -> Child {
        self.started = Started::Cold(reason.word());
        self
    }

    /// The same child, as the handle of a program whose parent is a subreaper.
    pub(crate) fn below(mut self, subreaper: Arc<Subreaper>) -> Child {
        self.subreaper = Some(subreaper);
        self
    }

    /// The time at which to call [`reap`](Child::reap) again, if the program has ended and its subreaper has not reported
    /// its status yet. The pidfd is readable meanwhile.
    pub(crate) fn report_due(&self) -> Option<Instant> {
        self.subreaper.as_ref().filter(|_| self.ended.is_none())?.report_due()
    }

    /// The deadline for a parked process to begin to start the program, if it has one.
    pub(crate) fn begins_by(&self, now: Instant) -> Option<Instant> {
        Some(now + self.pending.as_ref()?.begin_timeout()?)
    }

    /// Kills a parked process that has not begun to start the program. The start then counts as not made. Returns
    /// whether it has killed the process.
    pub(crate) fn withdraw(&self) -> bool {
        let (Some(pending), Some(pidfd)) = (&self.pending, self.own_pidfd()) else { return false };
        let withdrawn = pending.withdraw();
        if withdrawn {
            // This signal does not count as one from the handle's owner.
            let _ = call::pidfd_send_signal(features::killed_calls(), pidfd.as_raw_fd(), 9);
        }
        withdrawn
    }

    /// Kills a parked process that has not begun to start the program. Reports the end that SIGTERM would have
    /// caused.
    pub(crate) fn terminate_unbegun(&mut self) {
        if self.withdraw() {
            self.withdrawn = true;
            self.note_signal(9);
        }
    }

    /// Adds the caller's ends of the pipes.
    pub(crate) fn with_pipes(mut self, [stdin, stdout, stderr]: [Option<OwnedFd>; 3]) -> Child {
        self.stdin = stdin.map(above_standard).map(PipeWriter::from);
        self.stdout = stdout.map(above_standard).map(PipeReader::from);
        self.stderr = stderr.map(above_standard).map(PipeReader::from);
        self
    }

    /// The process id, for display and for interfaces that take no pidfd. Another process may have this id once the
    /// child is reaped.
    pub fn id(&self) -> u32 {
        self.pid as u32
    }

    /// How the program was started.
    pub fn started(&self) -> Started {
        self.started
    }

    fn pidfd_number(&self) -> i32 {
        self.pidfd.as_ref().map_or(-1, |pidfd| pidfd.as_fd().as_raw_fd())
    }

    /// The pidfd, unless the application has put something else at its number.
    pub(crate) fn own_pidfd(&self) -> Option<&OwnedFd> {
        self.pidfd.as_ref()?.get()
    }

    /// A reference to the pidfd, for a job's handle.
    pub(crate) fn shared_pidfd(&self) -> Weak<CheckedFd> {
        self.pidfd.as_ref().map(Arc::downgrade).unwrap_or_default()
    }

    /// The pidfd, for a process tree. The tree keeps it open.
    pub(crate) fn share_pidfd(&self) -> Option<sys::Fd> {
        let pidfd = self.pidfd.clone()?;
        let (number, (_, inode)) = (pidfd.as_fd().as_raw_fd(), pidfd.identity());
        Some(sys::Fd::shared(number, inode, pidfd))
    }

    /// Returns an object that sends signals to the child while a future waits for it.
    #[doc(hidden)]
    pub fn signaller(&self) -> Signaller {
        Signaller::new(self.shared_pidfd())
    }

    /// Whether the pidfd's number still refers to the pidfd, as far as the kernel distinguishes pidfds (before Linux
    /// 6.9, all pidfds have the same inode).
    pub(crate) fn is_own(&self) -> bool {
        self.own_pidfd().is_some()
    }

    pub(crate) fn failed(&self, errno: Errno) -> Error {
        let (pidfd, pid) = (self.pidfd_number(), self.pid);
        let message = match errno {
            Errno::ECHILD if self.subreaper.is_some() => {
                format!("the exit status of process {pid} is lost: the process that reaps its tree was killed")
            }
            Errno::ECHILD => {
                format!("the exit status of process {pid} is lost: other code of this process has taken it")
            }
            Errno::EBADF => self.replaced_pidfd(),
            errno => format!("cannot wait for process {pid}: {}", reason(errno)),
        };
        Error::new(Stage::Wait, errno, format!("waitid(P_PIDFD, {pidfd}) of process {pid}")).saying(message)
    }

    fn replaced_pidfd(&self) -> String {
        let (pidfd, pid) = (self.pidfd_number(), self.pid);
        format!("the application has closed or replaced descriptor {pidfd}, the pidfd of process {pid}")
    }

    /// Like `reap`, after checking that the pidfd is still the child's own.
    pub(crate) fn reap_own(&mut self, block: bool) -> Result<Option<ExitStatus>> {
        if self.ended.is_none() && !self.is_own() {
            return Err(self.failed(Errno::EBADF));
        }
        self.reap(block)
    }

    /// Whether the child is known to have ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.is_some() || self.failure.is_some()
    }

    /// Reaps the child if it has ended. Returns an error if the child never became the program.
    pub(crate) fn reap(&mut self, block: bool) -> Result<Option<ExitStatus>> {
        if self.ended.is_none() {
            let ended = match &self.subreaper {
                Some(subreaper) => subreaper.wait(self.as_fd(), block),
                None => wait_pidfd(self.pidfd_number(), block),
            };
            self.ended = ended.map_err(|errno| self.failed(errno))?;
            if self.ended.is_some() {
                self.finish_start();
            }
        }
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        Ok(self.ended.map(|ended| ExitStatus::from_raw(ended.status)))
    }

    /// Like `reap`, but returns `Some(None)` if other code has already taken the status. A forked copy of this
    /// process must not call this, because the child is not a child of the copy.
    pub(crate) fn reap_or_note_lost(&mut self) -> Result<Option<Option<ExitStatus>>> {
        match self.reap(false) {
            Err(error) if (error.stage(), error.errno()) == (Stage::Wait, Errno::ECHILD) => {
                self.finish_start();
                match &self.failure {
                    Some(failure) => Err(failure.clone()),
                    None => Ok(Some(self.ended.map(|ended| ExitStatus::from_raw(ended.status)))),
                }
            }
            reaped => Ok(reaped?.map(Some)),
        }
    }

    /// Records whether a child that has ended had become the program.
    fn finish_start(&mut self) {
        let Some(pending) = self.pending.take() else { return };
        // If the handle's owner killed the child before exec, the owner's signal was meant for the program. Then the
        // start does not count as failed.
        self.failure = pending
            .outcome(self.ended)
            .err()
            .filter(|error| !error.is_signal_before_exec() || !self.has_sent(self.ended))
            .map(|error| error.with_signal(self.ended));
        if self.withdrawn {
            self.ended = Some(Ended { status: 15, used: self.ended.and_then(|ended| ended.used) });
        }
    }

    /// Waits for the program to end, and reaps it. First closes standard input if it is piped and the handle still
    /// has it.
    ///
    /// # Errors
    /// - ECHILD: before Linux 6.15, other code of the host has taken the status (by `wait(-1)`, or because SIGCHLD
    ///   is ignored).
    /// - EBADF: the application has put another file at the pidfd's number.
    /// - If the spawn did not [wait for exec](crate::Command::wait_for_exec): the reason why the child did not
    ///   become the program, unless a signal sent by this handle killed it.
    pub fn wait(&mut self) -> Result<ExitStatus> {
        drop(self.stdin.take());
        match self.reap_own(true)? {
            Some(status) => Ok(status),
            // A blocking wait that succeeds has a status.
            None => Err(self.failed(Errno::ECHILD)),
        }
    }

    /// Reaps the program if it has ended; `None` while it runs.
    ///
    /// # Errors
    /// The errors of [`wait`](Child::wait).
    pub fn try_wait(&mut self) -> Result<Option<ExitStatus>> {
        self.reap_own(false)
    }

    /// Waits for at most `timeout`; `None` if the program still runs then. The timeout does not affect the program.
    ///
    /// # Errors
    /// The errors of [`wait`](Child::wait).
    pub fn wait_timeout(&mut self, timeout: Duration) -> Result<Option<ExitStatus>> {
        match Instant::now().checked_add(timeout) {
            Some(deadline) => self.wait_deadline(deadline),
            None => self.wait().map(Some),
        }
    }

    /// Waits until `deadline`; `None` if the program still runs then. The timeout does not affect the program.
    ///
    /// # Errors
    /// The errors of [`wait`](Child::wait).
    pub fn wait_deadline(&mut self, deadline: Instant) -> Result<Option<ExitStatus>> {
        loop {
            if let Some(status) = self.reap_own(false)? {
                return Ok(Some(status));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
            match poll(&mut [PollFd::from_borrowed_fd(self.as_fd(), PollFlags::IN)], Some(&timeout)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(self.failed(errno(e))),
            }
        }
    }

    /// Reaps the child if a signal killed it inside execve, and returns its status. The library reports such a child as
    /// a program that started. But the child has no exit signal, so a wait without `__WALL` does not find it.
    ///
    /// Call this before [giving the pidfd away](Child::into_pidfd) to code that waits without `__WALL`. The result
    /// is always `None` for a parked process, and for a spawn that did not [wait for
    /// exec](crate::Command::wait_for_exec).
    pub fn ended_in_exec(&mut self) -> Option<ExitStatus> {
        if self.pending.is_none() && self.ended.is_none() {
            self.ended = reap_unsignalled(self.pidfd_number());
            return self.ended.map(|ended| ExitStatus::from_raw(ended.status));
        }
        None
    }

    /// Returns the pidfd; the library no longer reaps this child. Closes the pipes that the handle still has. Only
    /// a wait with `__WALL` finds a child that was [killed inside execve](Child::ended_in_exec).
    ///
    /// # Examples
    /// ```
    /// use rustix::process::{WaitId, WaitIdOptions, waitid};
    /// use std::os::fd::AsFd;
    /// let pidfd = spawnfd::Command::new("false").spawn()?.into_pidfd();
    /// let status = waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED).unwrap();
    /// assert_eq!(status.unwrap().exit_status(), Some(1));
    /// # Ok::<(), spawnfd::Error>(())
    /// ```
    pub fn into_pidfd(self) -> OwnedFd {
        self.into_checked_pidfd().into()
    }

    /// The same as [`into_pidfd`](Child::into_pidfd), with the identity of the pidfd.
    #[doc(hidden)]
    pub fn into_checked_pidfd(mut self) -> CheckedFd {
        // Without the pidfd, Drop does nothing.
        let pidfd = self.pidfd.take().and_then(Arc::into_inner);
        pidfd.expect("a child has its pidfd until it is dropped, and only a job shares it")
    }

    /// The resources that the child used; `None` before it is reaped, or if other code has reaped it.
    pub fn usage(&self) -> Option<Usage> {
        let Used { cpu_micros, max_rss_kib } = self.ended?.used?;
        Some(Usage { cpu: Duration::from_micros(cpu_micros), max_rss: max_rss_kib * 1024 })
    }

    /// Records a signal that the child gets in another way than by [`signal`](Child::signal).
    pub(crate) fn note_signal(&self, signal: i32) {
        if let Some(set) = SignalSet::of(signal) {
            self.sent.fetch_or(set.bits(), Ordering::Relaxed);
        }
    }

    /// Whether the handle's owner sent the signal that ended the child. If that signal is unknown, any sent signal
    /// counts.
    fn has_sent(&self, ended: Option<Ended>) -> bool {
        let signal_of = |ended: Ended| ExitStatus::from_raw(ended.status).signal().and_then(SignalSet::of);
        let signals = ended.map_or(u64::MAX, |ended| signal_of(ended).map_or(0, SignalSet::bits));
        signals & self.sent.load(Ordering::Relaxed) != 0
    }

    /// Sends SIGKILL.
    ///
    /// # Errors
    /// The errors of [`signal`](Child::signal).
    pub fn kill(&self) -> Result<()> {
        self.signal(signal::KILL)
    }

    /// Sends a signal by the pidfd, so that only this process can get it. Succeeds without effect
    /// if the process has ended. Signal 0 sends nothing and tests only whether the signal would be permitted.
    /// [`signal`] has the numbers of the signals.
    ///
    /// # Errors
    /// EINVAL: no such signal. EPERM: the program runs under other ids. EBADF: the application has put another file
    /// at the pidfd's number.
    #[doc(alias = "pidfd_send_signal")]
    pub fn signal(&self, signal: i32) -> Result<()> {
        check_number(signal)?;
        if self.ended.is_some() {
            return Ok(());
        }
        let pidfd = self.pidfd_number();
        let failed = |errno| {
            let message = match errno {
                Errno::EBADF => self.replaced_pidfd(),
                errno => format!("cannot send signal {signal} to process {}: {}", self.pid, reason(errno)),
            };
            Error::new(Stage::Wait, errno, format!("pidfd_send_signal({pidfd}, {signal})")).saying(message)
        };
        if !self.is_own() {
            return Err(failed(Errno::EBADF));
        }
        self.note_signal(signal);
        match call::pidfd_send_signal(features::killed_calls(), pidfd, signal) {
            Ok(_) | Err(Errno::ESRCH) => Ok(()),
            Err(errno) => Err(failed(errno)),
        }
    }
}

#[cfg(feature = "warm")]
impl Child {
    /// The handle of a parked process that has become the program, or whose outcome `pending` will report.
    pub(crate) fn restarted(mut self, started: Started, pending: Option<Box<dyn PendingStart>>) -> Child {
        (self.started, self.pending) = (started, pending);
        self
    }

    /// Device and inode of the pidfd, as [`CheckedFd`] records them.
    pub(crate) fn identity(&self) -> (u64, u64) {
        self.pidfd.as_ref().map_or((0, 0), |pidfd| pidfd.identity())
    }
}

impl AsFd for Child {
    /// The pidfd, which becomes readable when the program ends.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // Only `drop` and `into_pidfd` take the pidfd, and both consume the handle.
        self.pidfd.as_ref().expect("a child has its pidfd until it is dropped").as_fd()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let Some(pidfd) = self.pidfd.take() else { return };
        // The wait fails if nothing is left to reap, or if this process is a forked copy, which does not have this
        // child.
        let runs = |pidfd: &OwnedFd| matches!(wait_pidfd(pidfd.as_raw_fd(), false), Ok(None));
        if self.ended.is_none() && pidfd.get().is_some_and(runs) {
            reaper::adopt(pidfd);
        }
    }
}
