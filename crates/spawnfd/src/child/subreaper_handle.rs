// SPDX-License-Identifier: MIT OR Apache-2.0
//! A program's subreaper: the helper process that is the parent of the program, and of each orphan of its tree. The
//! helper reports the program's end to this process, because the program is not a child of this process.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use spawnfd_child::{CapabilitySets, GuardRegistration};
use spawnfd_guard::descendants::EndOfProgram;
use spawnfd_sys::{Ended, Errno, Used, abi, call, fork_generation, receive, wait_pidfd};

use crate::error::{Error, Result, Stage};
use crate::host::descriptors::{CheckedFd, above_standard};
use crate::host::features;
use crate::host::features::socket_pair;
use crate::reaper;
use crate::template::Template;

/// The time that the first non-blocking wait after the program's end gives the helper to report that end. The helper
/// usually reports within a fraction of this time.
const REPORT_WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// The time until the next non-blocking wait, if the helper has not reported yet.
const ATTEMPT_INTERVAL: Duration = Duration::from_millis(5);

/// The pause between two checks for a report in a blocking wait.
const REPORT_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };

/// The time after a program's end at which this process kills a helper that has not reported the end, for example
/// because a process of the tree keeps stopping the helper.
const REPORT_TIMEOUT: Duration = Duration::from_secs(1);

/// How long to wait until another process has reaped a program that has lost its helper.
const REAPING_TIMEOUT: Duration = Duration::from_millis(100);

/// The subreaper of one program. The program's tree, its command and its handle share this value.
#[derive(Debug)]
pub(crate) struct Subreaper {
    /// The helper's executable.
    template: Template,
    /// The capability sets that the helper needs before its exec, if the exec would remove capabilities of the caller.
    capabilities: Option<CapabilitySets>,
    /// The data with which the helper registers with the guard.
    registration: GuardRegistration,
    /// The fork generation of the process that has created this value. A forked copy of the host does not own the helper.
    generation: u64,
    state: Mutex<SubreaperState>,
}

#[derive(Debug)]
struct SubreaperState {
    /// This process's end of the socket to the helper.
    channel: Arc<CheckedFd>,
    /// The helper's end of the socket, until the helper has started.
    peer_end: Option<OwnedFd>,
    helper: Option<Helper>,
    end: Option<EndOfProgram>,
    /// The first time at which the program had ended and the helper had not reported it.
    missing_since: Option<Instant>,
    /// The time of the next attempt to get the status, if the last one was too early.
    next_attempt: Option<Instant>,
    /// The first time at which the helper had ended without a report.
    orphaned_since: Option<Instant>,
}

/// The helper process, a child of this process.
#[derive(Debug)]
struct Helper {
    pid: i32,
    pidfd: CheckedFd,
    /// The helper's wait status, once this process has reaped it. `Some(None)`: other code has taken the status.
    status: Option<Option<i32>>,
}

impl Subreaper {
    pub(crate) fn new(
        template: Template,
        capabilities: Option<CapabilitySets>,
        registration: GuardRegistration,
    ) -> Result<Subreaper> {
        let (channel, peer_end) = new_channel()?;
        let state = SubreaperState {
            channel,
            peer_end,
            helper: None,
            end: None,
            missing_since: None,
            next_attempt: None,
            orphaned_since: None,
        };
        let generation = fork_generation().unwrap_or(1);
        Ok(Subreaper { template, capabilities, registration, generation, state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, SubreaperState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn template(&self) -> &Template {
        &self.template
    }

    pub(crate) fn capabilities(&self) -> Option<CapabilitySets> {
        self.capabilities
    }

    pub(crate) fn registration(&self) -> &GuardRegistration {
        &self.registration
    }

    /// Takes the helper's end of the socket. `None`: a program has already been started below this subreaper.
    pub(crate) fn take_peer_end(&self) -> Option<OwnedFd> {
        self.state().peer_end.take()
    }

    /// Replaces the socket after a failed start, unless a helper has started.
    pub(crate) fn renew_channel(&self) -> Result<()> {
        let mut state = self.state();
        if state.helper.is_none() {
            (state.channel, state.peer_end) = new_channel()?;
            (state.end, state.missing_since, state.next_attempt) = (None, None, None);
        }
        Ok(())
    }

    fn channel(&self) -> Arc<CheckedFd> {
        self.state().channel.clone()
    }

    /// Receives the program's pidfd from the intermediate process that becomes the helper. `None`: no descriptor is free.
    pub(crate) fn receive_pidfd(&self) -> Option<OwnedFd> {
        receive(self.channel().get()?.as_raw_fd(), &mut [0; 1]).ok()?.1.map(above_standard)
    }

    /// Records the helper, and tells it the pid of its program.
    pub(crate) fn helper_started(&self, pid: i32, pidfd: OwnedFd, program: i32) {
        self.state().helper = Some(Helper { pid, pidfd: CheckedFd::new(pidfd), status: None });
        self.tell(&program.to_ne_bytes());
    }

    /// Sends a message to the helper. The send fails if the helper has been killed, and the program's handle finds that
    /// out.
    fn tell(&self, message: &[u8]) {
        let _ = self.channel().get().map(|channel| send(channel, message, SendFlags::NOSIGNAL));
    }

    /// Lets the helper reap a program whose exec has failed, and end. Returns how the program ended.
    pub(crate) fn reap_failed_program(&self, pid: i32, pidfd: &OwnedFd) -> Option<Ended> {
        self.tell(&pid.to_ne_bytes());
        self.wait(pidfd.as_fd(), true).ok().flatten()
    }

    /// Tells the helper that the tree may outlive this process.
    pub(crate) fn release(&self) {
        self.tell(&[0]);
    }

    /// The helper's pid and a copy of its pidfd. `None`: no helper has started.
    pub(crate) fn helper(&self) -> Option<(i32, OwnedFd)> {
        let state = self.state();
        let helper = state.helper.as_ref()?;
        Some((helper.pid, helper.pidfd.get()?.try_clone().ok()?))
    }

    /// Whether the helper has reported that the program was the last process of the tree.
    pub(crate) fn was_last(&self) -> bool {
        self.state().end.is_some_and(|end| !end.has_left_others)
    }

    /// Whether the helper was killed, so that the tree's orphans no longer become its children.
    pub(crate) fn is_lost(&self) -> bool {
        let mut state = self.state();
        let was_last = state.end.is_some_and(|end| !end.has_left_others);
        let Some(helper) = &mut state.helper else { return false };
        // The helper exits with 0 once it has no children.
        match helper.reap() {
            Some(status) => status != Some(0) && !was_last,
            None => false,
        }
    }

    /// Sends a signal to the helper.
    fn signal_helper(&self, signal: i32) {
        if let Some(pidfd) = self.state().helper.as_ref().and_then(|helper| helper.pidfd.get()) {
            let _ = call::pidfd_send_signal(features::killed_calls(), pidfd.as_raw_fd(), signal);
        }
    }

    /// The time at which to call [`wait`](Subreaper::wait) again, if the program has ended and the helper has not reported
    /// it yet.
    pub(crate) fn report_due(&self) -> Option<Instant> {
        let state = self.state();
        state.next_attempt.filter(|_| state.end.is_none())
    }

    /// The end of the program behind `pidfd`. `None`: the program runs, or its status is not available yet, and `block` is
    /// false.
    ///
    /// # Errors
    /// ECHILD: the helper was killed, and the kernel does not tell the status.
    pub(crate) fn wait(&self, pidfd: BorrowedFd<'_>, block: bool) -> std::result::Result<Option<Ended>, Errno> {
        if fork_generation().unwrap_or(1) != self.generation {
            return Err(Errno::ECHILD);
        }
        const NO_TIME: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
        if !is_readable(pidfd, (!block).then_some(&NO_TIME)) {
            return Ok(None);
        }
        let called = Instant::now();
        let channel = self.channel();
        let report = loop {
            if let Some(report) = self.read_report() {
                break report;
            }
            let (interval, is_first) = (if block { REPORT_INTERVAL } else { REPORT_WAIT }, self.report_due().is_none());
            let may_wait = block || is_first;
            if may_wait && channel.get().is_some_and(|channel| is_readable(channel.as_fd(), Some(&interval))) {
                continue;
            }
            // Look for the helper's end directly. The socket may show no EOF, because a forked copy of the host may
            // have the helper's end of the socket open.
            if self.has_no_helper() {
                break self.read_report().flatten();
            }
            let since = *self.state().missing_since.get_or_insert(called);
            // A process of the tree may have stopped the helper.
            self.signal_helper(if since.elapsed() < REPORT_TIMEOUT { abi::SIGCONT } else { abi::SIGKILL } as i32);
            if since.elapsed() >= REPORT_TIMEOUT * 2 {
                // This process may not signal the helper any more.
                break None;
            }
            if !block {
                return Ok(self.try_later());
            }
        };
        let used = report.map(|end| Used { cpu_micros: end.cpu_micros, max_rss_kib: end.max_rss_kib });
        // The program has been reaped, so since Linux 6.15 the kernel tells its status.
        let mut by_kernel = wait_pidfd(pidfd.as_raw_fd(), false);
        if by_kernel.is_err() && report.is_none() {
            // The helper has ended. The kernel has given the program another parent, which may reap it soon.
            let since = *self.state().orphaned_since.get_or_insert(called);
            if !block && since.elapsed() < REAPING_TIMEOUT {
                return Ok(self.try_later());
            }
            let left = Timespec::try_from(REAPING_TIMEOUT.saturating_sub(since.elapsed())).ok();
            let _ = poll(&mut [PollFd::from_borrowed_fd(pidfd, PollFlags::empty())], left.as_ref());
            by_kernel = wait_pidfd(pidfd.as_raw_fd(), false);
        }
        let status = match (by_kernel, report) {
            (Ok(Some(ended)), _) => ended.status,
            (_, Some(end)) => end.status,
            (Ok(None), None) => return Err(Errno::ECHILD),
            (Err(errno), None) => return Err(errno),
        };
        Ok(Some(Ended { status, used }))
    }

    /// Sets the time of the next attempt to get the status.
    fn try_later(&self) -> Option<Ended> {
        self.state().next_attempt = Some(Instant::now() + ATTEMPT_INTERVAL);
        None
    }

    /// Whether no helper runs.
    fn has_no_helper(&self) -> bool {
        self.state().helper.as_mut().is_none_or(|helper| helper.reap().is_some())
    }

    /// Reads the helper's report if it has arrived. `Some(None)`: the helper has ended without a report.
    fn read_report(&self) -> Option<Option<EndOfProgram>> {
        let mut state = self.state();
        if state.end.is_some() {
            return Some(state.end);
        }
        let mut message = [0; EndOfProgram::SIZE];
        let channel = state.channel.clone();
        let Some(channel) = channel.get() else { return Some(None) };
        match recv(channel, &mut message[..], RecvFlags::DONTWAIT) {
            Ok((EndOfProgram::SIZE, _)) => {
                state.end = Some(EndOfProgram::unpack(&message));
                Some(state.end)
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => None,
            _ => Some(None),
        }
    }
}

impl Helper {
    /// Reaps the helper if it has ended, and returns its status.
    fn reap(&mut self) -> Option<Option<i32>> {
        if self.status.is_none() {
            let pidfd = self.pidfd.get().map_or(-1, AsRawFd::as_raw_fd);
            self.status = match wait_pidfd(pidfd, false) {
                Ok(ended) => ended.map(|ended| Some(ended.status)),
                Err(_) => Some(None),
            };
        }
        self.status
    }
}

impl Drop for Subreaper {
    /// Leaves a helper that still runs to the reaper thread.
    fn drop(&mut self) {
        if fork_generation().unwrap_or(1) != self.generation {
            return;
        }
        if let Some(mut helper) = self.state().helper.take()
            && helper.reap().is_none()
        {
            reaper::adopt(helper.pidfd);
        }
    }
}

/// Creates the socket to the helper: this process's end and the helper's.
fn new_channel() -> Result<(Arc<CheckedFd>, Option<OwnedFd>)> {
    let (near, far) =
        socket_pair().map_err(|errno| Error::new(Stage::Tree, errno, "socketpair(AF_UNIX, SOCK_SEQPACKET)"))?;
    Ok((Arc::new(CheckedFd::new(near)), Some(above_standard(far))))
}

/// Waits until a descriptor is readable, or hung up, or the time is over.
fn is_readable(fd: BorrowedFd<'_>, timeout: Option<&Timespec>) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    loop {
        match poll(&mut polled, timeout) {
            Err(rustix::io::Errno::INTR) => {}
            answer => return answer.is_ok_and(|ready| ready > 0),
        }
    }
}
