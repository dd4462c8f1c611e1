// SPDX-License-Identifier: MIT OR Apache-2.0
//! The guard of this process: a helper process for all trees of this process. The guard starts with
//! the first tree, and exits some time after the last.
//!
//! A guard serves only callers with the same [`Reach`] (what the kernel permits a thread to do to processes, and its
//! scheduling). Threads with another reach use another guard.

use std::cell::RefCell;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, WaitId, WaitIdOptions, getpid, pidfd_open, waitid};
use spawnfd_child::GuardRegistration;
use spawnfd_guard::process::ProcessIdentity;
use spawnfd_guard::sys;
use spawnfd_guard::table::{SIZE, SLOTS, SlotState, TreeTable};
use spawnfd_sys::{Call, Errno, abi, call, prctl, wait_pidfd};

use super::{failed, image, own_session};
use crate::child::Child;
use crate::command::CapabilitySets;
use crate::command::Command;
use crate::error::{Error, Result, Stage, errno};
use crate::host::authority::Reach;
use crate::host::descriptors::{CheckedFd, above_standard};
use crate::host::features;
use crate::host::memfd;
use crate::host::per_process::PerProcess;
use crate::reaper;

/// The guards. No two of them have the same reach.
static GUARDS: PerProcess<Vec<Guard>> = PerProcess::new(Vec::new());

#[derive(Debug)]
struct Guard {
    /// The pid of this process.
    owner: i32,
    /// The reach of the helper and of each caller.
    reach: Arc<Reach>,
    table: Arc<TreeTable>,
    /// The table's file. If a signal kills the helper, the next helper maps the same file.
    memory: CheckedFd,
    helper: GuardHelper,
}

/// The guard's first process. The second one is its child (`spawnfd_guard::watch`).
#[derive(Debug)]
struct GuardHelper {
    pid: i32,
    identity: Option<ProcessIdentity>,
    pidfd: CheckedFd,
    /// True if the reaper thread has a copy of the pidfd. It gets the copy when the guard's last tree is gone, because
    /// the helper may exit from then on. Before that time, this module reaps a helper that has died.
    reaper_has_copy: bool,
}

/// The time for which a thread does not try again after a failed start of a guard. A failed start can take as long as
/// the start of a program.
const REFUSAL_LIFETIME: Duration = Duration::from_secs(1);

/// A failed start of a guard.
#[derive(Debug)]
struct Refusal {
    /// The reach of the thread at the failed start.
    reach: Weak<Reach>,
    error: Error,
    at: Instant,
}

thread_local! {
    /// The calling thread's last failed start of a guard.
    static REFUSAL: RefCell<Option<Refusal>> = const { RefCell::new(None) };
}

impl Refusal {
    /// The error of the calling thread's last attempt, if another attempt would most likely fail too.
    fn current(reach: &Arc<Reach>) -> Option<Error> {
        let applies = |refusal: &Refusal| {
            refusal.at.elapsed() < REFUSAL_LIFETIME && std::ptr::eq(refusal.reach.as_ptr(), Arc::as_ptr(reach))
        };
        let current =
            |refusal: &RefCell<Option<Refusal>>| Some(refusal.borrow().as_ref().filter(|r| applies(r))?.error.clone());
        // A thread that is exiting has no thread-local storage.
        REFUSAL.try_with(current).ok().flatten()
    }

    /// Remembers the error, unless it is temporary.
    fn remember(reach: &Arc<Reach>, error: &Error) {
        // ECHILD: the helper ended before it was ready, for example because a seccomp filter killed it.
        if matches!(error.errno(), Errno::EACCES | Errno::EPERM | Errno::ENOSYS | Errno::ECHILD) {
            let refusal = Refusal { reach: Arc::downgrade(reach), error: error.clone(), at: Instant::now() };
            let _ = REFUSAL.try_with(|last| last.replace(Some(refusal)));
        }
    }
}

/// A tree's registration with a guard: its slot in the guard's table. The tree records its processes there.
#[derive(Debug)]
pub(super) struct Registration {
    pub(super) table: Arc<TreeTable>,
    pub(super) slot: usize,
    /// The pid of this process.
    owner: i32,
    /// The value of the slot's process word until the program starts.
    ticket: u64,
}

/// Registers a tree with a guard. `cgroup` is the path of the tree's cgroup, or empty if the tree has none. `state` says
/// whether the tree has a subreaper.
pub(super) fn register(cgroup: &[u8], state: SlotState) -> Result<Registration> {
    image::program()?;
    let reach = Reach::of_calling_thread(Stage::Tree)?;
    let mut guards = GUARDS.lock();
    // Drop the guards that have ended, because no thread with their reach may exist any more.
    guards.retain_mut(Guard::is_in_use);
    // A guard may exit just before the registration. In that case, start another guard. A new guard runs long enough
    // for the registration.
    for _ in 0..3 {
        let index = guards.iter().position(|guard| guard.reach.equals(&reach));
        let index = match index {
            // A helper that exits by itself closes the table. If a signal has killed the helper, start another helper
            // for the table's trees.
            Some(index)
                if !guards[index].helper.is_running()
                    && guards[index].helper.has_ended()
                    && !guards[index].restart()? =>
            {
                guards.remove(index);
                None
            }
            index => index,
        };
        let index = match index {
            Some(index) => index,
            None => {
                if let Some(error) = Refusal::current(&reach) {
                    return Err(error);
                }
                guards.push(Guard::start(reach.clone()).inspect_err(|error| Refusal::remember(&reach, error))?);
                guards.len() - 1
            }
        };
        if guards[index].table.register_tree() {
            return guards[index].take_slot(cgroup, state);
        }
        guards.remove(index);
    }
    Err(failed(Errno::EAGAIN, "guard"))
}

/// Ends each guard that has no tree.
pub(crate) fn end_guard_if_idle() {
    for guard in GUARDS.lock().iter_mut().filter(|guard| guard.table.close()) {
        guard.helper.hand_to_reaper();
        // The helper ends its second process and exits. SIGKILL would leave the second process to pid 1.
        for signal in [abi::SIGTERM, abi::SIGCONT] {
            let _ = guard.helper.signal(signal as i32);
        }
    }
}

/// Continues the calling thread's guard if it has been stopped, and starts another one if it was killed. The threads that
/// drive runs call this every few seconds.
pub(crate) fn maintain_guard() {
    let mut guards = GUARDS.lock();
    if guards.is_empty() {
        return;
    }
    let Ok(reach) = Reach::of_calling_thread(Stage::Tree) else { return };
    if let Some(guard) = guards.iter_mut().find(|guard| !guard.table.is_closed() && guard.reach.equals(&reach)) {
        if guard.helper.has_ended() {
            // After a failure, the next call tries again.
            let _ = guard.restart();
        } else {
            let _ = guard.helper.signal(abi::SIGCONT as i32);
        }
    }
}

/// Closes the descriptors of the guards that have ended.
pub(crate) fn forget_ended_guards() {
    GUARDS.lock().retain_mut(Guard::is_in_use);
}

/// Whether a guard is exiting and has not been reaped yet.
pub(crate) fn is_guard_exiting() -> bool {
    let is_exiting = |guard: &Guard| guard.table.is_closed() && guard.helper.signal(0).is_ok();
    let has_exiting = GUARDS.lock().iter().any(is_exiting);
    // If no reaper thread can be started, the calling thread reaps the guard.
    has_exiting && (reaper::is_running() || reaper::reap_unclaimed())
}

impl Guard {
    fn start(reach: Arc<Reach>) -> Result<Guard> {
        let memory =
            memfd::shared("spawnfd-trees", SIZE).map(above_standard).map_err(|(call, errno)| failed(errno, call))?;
        let table = TreeTable::map(memory.as_raw_fd()).map_err(|e| failed(Errno::from_raw(e.0), "mmap()"))?;
        let helper = GuardHelper::start(&memory)?;
        let memory = CheckedFd::new(memory);
        let owner = getpid().as_raw_nonzero().get();
        Ok(Guard { owner, reach, table: Arc::new(table), memory, helper })
    }

    /// Whether the guard accepts trees, or its helper still runs.
    fn is_in_use(&mut self) -> bool {
        !self.table.is_closed() || !self.helper.has_ended()
    }

    /// Starts another helper for the same table, unless the last helper has exited by itself and closed the table.
    /// Returns false if the application has closed the table's file, so that no helper can map it.
    fn restart(&mut self) -> Result<bool> {
        if self.table.is_closed() {
            return Ok(true);
        }
        let Some(memory) = self.memory.get() else { return Ok(false) };
        // Dropping the dead helper reaps it.
        self.helper = GuardHelper::start(memory)?;
        Ok(true)
    }

    /// Takes a slot for a tree that the caller has already counted by `register_tree`.
    fn take_slot(&mut self, cgroup: &[u8], state: SlotState) -> Result<Registration> {
        // Take the first free slot. A search that continues at the last slot would touch all pages of the table.
        let Some(slot) = (0..SLOTS).find(|&slot| self.table.state(slot) == SlotState::Free) else {
            self.table.unregister_tree();
            return Err(failed(Errno::ENOSPC, "guard"));
        };
        let ticket = self.table.take_slot(slot, state, own_session(), cgroup);
        Ok(Registration { table: self.table.clone(), slot, owner: self.owner, ticket })
    }
}

impl GuardHelper {
    fn start(memory: &OwnedFd) -> Result<GuardHelper> {
        let capabilities = capabilities_to_restore()?;
        let child = start(memory, |command| {
            // An exec by root would restore capabilities that the caller has dropped; no_new_privs prevents that.
            command.no_new_privs();
            if let Some(sets) = capabilities {
                command.capabilities(sets);
            }
        })?;
        let pid = child.id() as i32;
        let identity =
            sys::Fd::duplicate(child.as_fd().as_raw_fd()).ok().and_then(|pidfd| ProcessIdentity::of(&pidfd, pid));
        let pidfd = CheckedFd::new(child.into_pidfd());
        Ok(GuardHelper { pid, identity, pidfd, reaper_has_copy: false })
    }

    /// The helper's pidfd. If the application has replaced the descriptor, opens another pidfd.
    fn pidfd(&mut self) -> Option<BorrowedFd<'_>> {
        if self.pidfd.get().is_none() {
            features::killed_calls().refuse(Call::PidfdOpen).ok()?;
            let pidfd = pidfd_open(Pid::from_raw(self.pid)?, PidfdFlags::empty()).ok()?;
            // `open` succeeds only if the helper still has its pid now, so `pidfd_open` has opened the helper's
            // pidfd.
            self.identity?.open(self.pid)?;
            self.pidfd = CheckedFd::new(pidfd);
            // The application may have replaced the reaper's copy, too.
            self.reaper_has_copy = false;
        }
        Some(self.pidfd.as_fd())
    }

    fn signal(&self, signal: i32) -> std::result::Result<usize, Errno> {
        let pidfd = self.pidfd.get().ok_or(Errno::EBADF)?;
        call::pidfd_send_signal(features::killed_calls(), pidfd.as_raw_fd(), signal)
    }

    /// Whether the helper runs, by one system call. `false` also if the application has closed or replaced the pidfd.
    fn is_running(&self) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        matches!(waitid(WaitId::PidFd(self.pidfd.as_fd()), options), Ok(None))
    }

    fn has_ended(&mut self) -> bool {
        self.pidfd().is_none_or(|pidfd| sys::wait_for_end(pidfd.as_raw_fd(), 0))
    }

    /// Gives the reaper thread a copy of the helper's pidfd, so that the helper is reaped whenever it ends.
    fn hand_to_reaper(&mut self) {
        if self.reaper_has_copy {
            return;
        }
        if let Some(pidfd) = self.pidfd()
            && let Ok(None) = wait_pidfd(pidfd.as_raw_fd(), false)
            && let Ok(copy) = pidfd.try_clone_to_owned()
        {
            reaper::adopt(CheckedFd::new(copy));
        }
        self.reaper_has_copy = true;
    }
}

impl Drop for GuardHelper {
    fn drop(&mut self) {
        self.hand_to_reaper();
    }
}

/// Starts the helper with the settings of `configure`. Returns once the helper is ready.
pub(super) fn start(memory: &OwnedFd, configure: impl Fn(&mut Command<'_>)) -> Result<Child> {
    // The helper makes these two calls once the owner has died. A seccomp filter that kills the
    // process for one of them would kill the helper at that time.
    let killed_calls = features::killed_calls();
    killed_calls.refuse(Call::PidfdOpen).map_err(|errno| failed(errno, "pidfd_open()"))?;
    killed_calls.refuse(Call::PidfdSendSignal).map_err(|errno| failed(errno, "pidfd_send_signal()"))?;
    let owner = pidfd_open(getpid(), PidfdFlags::empty()).map_err(|e| failed(errno(e), "pidfd_open()"))?;
    let (ready, writer) = pipe_with(PipeFlags::CLOEXEC).map_err(|e| failed(errno(e), "pipe2()"))?;
    let child = image::spawn([&owner, memory, &writer], configure)?;
    drop(writer);
    loop {
        match rustix::io::read(&ready, &mut [0; 1]) {
            Ok(1) => return Ok(child),
            Err(rustix::io::Errno::INTR) => {}
            // The helper has ended. Its status does not help the caller.
            _ => return Err(failed(Errno::ECHILD, "guard")),
        }
    }
}

/// The capabilities that a helper needs to signal and find processes: CAP_KILL, CAP_SYS_PTRACE, CAP_DAC_OVERRIDE and
/// CAP_DAC_READ_SEARCH.
const NEEDED_CAPABILITIES: u64 = 1 << 5 | 1 << 19 | 1 << 1 | 1 << 2;

/// The capability sets that give the helper the caller's capabilities after its exec. For a user other than root,
/// exec removes all capabilities that are not ambient. Returns `None` if no change is needed.
///
/// # Errors
/// EPERM: exec always removes a capability that the helper needs.
pub(super) fn capabilities_to_restore() -> Result<Option<CapabilitySets>> {
    const NOROOT: usize = 1;
    let [effective, permitted, inheritable] = call::capabilities().map_err(|errno| failed(errno, "capget()"))?;
    let is_bounded = |capability: &usize| call::prctl(prctl::PR_CAPBSET_READ, *capability, 0) == Ok(1);
    let owned = (0..64).filter(|capability| effective >> capability & 1 == 1);
    let bounding = owned.filter(is_bounded).fold(0, |set, capability| set | 1 << capability);
    let kept = effective & (bounding | inheritable);
    if (effective & !kept) & NEEDED_CAPABILITIES != 0 {
        return Err(failed(Errno::EPERM, "guard: the bounding set lacks a capability of the caller"));
    }
    let [_, user, ..] = call::ids();
    let is_root = user == 0 && call::prctl(prctl::PR_GET_SECUREBITS, 0, 0).is_ok_and(|bits| bits & NOROOT == 0);
    // An exec by root grants the whole bounding set, less the capabilities that were not permitted before, because
    // the helper starts with no_new_privs.
    let is_kept = kept == 0 || is_root && effective == permitted;
    let mut sets = CapabilitySets::new();
    (sets.effective, sets.permitted, sets.inheritable, sets.ambient) = (kept, kept, kept, kept);
    sets.bounding = u64::MAX;
    Ok((!is_kept).then_some(sets))
}

impl Registration {
    pub(super) fn registration(&self) -> GuardRegistration {
        let (slot, ticket) = (self.slot, self.ticket);
        GuardRegistration::new(self.table.clone(), move |table| table.root(slot), ticket, self.owner)
    }

    /// Ends the registration.
    pub(super) fn release(self) {
        self.table.free_slot(self.slot);
        if self.table.unregister_tree() == 0 {
            self.hand_to_reaper();
        }
    }

    /// Ends the registration. The guard removes the tree's cgroup once the cgroup is empty.
    pub(super) fn leave_cgroup_to_guard(self) {
        self.table.leave_cgroup_to_guard(self.slot);
        self.hand_to_reaper();
    }

    /// Gives the reaper thread a copy of the helper's pidfd, so that the helper is reaped whenever it ends.
    fn hand_to_reaper(&self) {
        if let Some(guard) = GUARDS.lock().iter_mut().find(|guard| Arc::ptr_eq(&guard.table, &self.table)) {
            guard.helper.hand_to_reaper();
        }
    }
}
