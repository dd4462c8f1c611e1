// SPDX-License-Identifier: MIT OR Apache-2.0
//! The system calls that the kernel and the calling thread's seccomp filters permit. The library probes them once and
//! remembers the answers.
//!
//! A filter may kill the process for a call (SECCOMP_RET_KILL_PROCESS), so the host cannot try the call.
//! In a thread with a filter, a probe child tries all calls of [`Call::ALL`].
//! See decision record 0021.

use std::cell::RefCell;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use spawnfd_child::{ChildMemory, probe_killed_calls};
use spawnfd_sys::{Builder, Call, CallSet, Errno, RawFd, abi, call, has_clone3, prctl};

use crate::error::errno;
use crate::host::one_start::{self, Remembered};
use crate::host::own_proc::{self, CAP_SYS_ADMIN};
use crate::host::per_process::PerProcess;

/// A feature that the library probes once and remembers. A seccomp filter added later may make the answer wrong.
#[derive(Debug)]
pub(crate) struct Feature(AtomicU8);

const UNKNOWN: u8 = 0;
const YES: u8 = 1;
const NO: u8 = 2;

/// The features that are available to all threads with the same seccomp filters.
#[derive(Debug)]
pub(crate) struct Features {
    /// The calls for which a filter kills the process. Neither the host nor a child makes them.
    pub(crate) killed_calls: CallSet,
    builder: Feature,
    clone3: Feature,
    pub(crate) close_range: Feature,
    pub(crate) pidfd_getfd: Feature,
    pub(crate) trim_table: Feature,
    /// Whether a child can leave the caller's table and receive descriptors over a socket. Index 0 is for a child
    /// without sources (descriptors of the caller that the child needs), index 1 for a child with sources.
    scm_rights: [Feature; 2],
}

/// The features of threads without a filter.
static UNFILTERED: Features = Features::new(CallSet::NONE);

/// The number of seccomp filters of the process's first thread, and the features of all threads that have exactly
/// these filters.
static SHARED: PerProcess<Option<(u32, Arc<Features>)>> = PerProcess::new(None);

/// The remembered features of a thread with filters. A forked process has the same filters, so the features stay
/// valid in it.
#[derive(Clone)]
pub(crate) struct ThreadFeatures {
    /// The number of filters; `None` if the kernel does not count them.
    count: Option<u32>,
    /// The result of [`cannot_add_filter`] at the time of the probe.
    cannot_add_filter: bool,
    features: Arc<Features>,
}

thread_local! {
    static FILTERED: RefCell<Option<ThreadFeatures>> = const { RefCell::new(None) };

    /// The features of the calling thread during a start.
    static DURING_START: Remembered<FeaturesOfThread> = const { RefCell::new(None) };
}

/// The features of one thread.
#[derive(Clone, Debug)]
pub(crate) enum FeaturesOfThread {
    /// The thread has no filter.
    Unfiltered,
    /// The thread has filters.
    Filtered(Arc<Features>),
}

impl FeaturesOfThread {
    /// Whether the thread has a seccomp filter.
    pub(crate) fn is_filtered(&self) -> bool {
        matches!(self, FeaturesOfThread::Filtered(_))
    }
}

impl Deref for FeaturesOfThread {
    type Target = Features;

    fn deref(&self) -> &Features {
        match self {
            FeaturesOfThread::Unfiltered => &UNFILTERED,
            FeaturesOfThread::Filtered(features) => features,
        }
    }
}

/// The features of the calling thread. In a thread with a filter the first call may start probe children.
pub(crate) fn of_calling_thread() -> FeaturesOfThread {
    one_start::known(&DURING_START).unwrap_or_else(|| {
        let features = read();
        one_start::remember(&DURING_START, features.clone());
        features
    })
}

fn read() -> FeaturesOfThread {
    if call::seccomp_mode() == 0 {
        return FeaturesOfThread::Unfiltered;
    }
    let cached = FILTERED.try_with(|cached| cached.borrow().clone());
    FeaturesOfThread::Filtered(match cached {
        Ok(Some(cached)) if cached.is_current() => cached.features,
        Ok(_) => find_filtered(),
        // The thread is exiting, so it has no thread-local storage for the features.
        Err(_) => unprobed(),
    })
}

impl ThreadFeatures {
    /// Whether the thread has added no filter since the probe. A new filter may kill the process for a call that
    /// was probed.
    fn is_current(&self) -> bool {
        self.cannot_add_filter && cannot_add_filter() || self.count.is_none() || count_filters() == self.count
    }
}

/// Whether the calling thread cannot add a filter: it has neither CAP_SYS_ADMIN nor no_new_privs.
fn cannot_add_filter() -> bool {
    call::prctl(prctl::PR_GET_NO_NEW_PRIVS, 0, 0) == Ok(0)
        && call::capabilities().is_ok_and(|[_, permitted, _]| permitted >> CAP_SYS_ADMIN & 1 == 0)
}

/// The system calls for which a seccomp filter would kill the calling thread.
pub fn killed_calls() -> CallSet {
    of_calling_thread().killed_calls
}

/// Creates a pair of connected sockets for messages. A seccomp filter may kill the process for this call; then the
/// function returns EPERM.
pub(crate) fn socket_pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    killed_calls().refuse(Call::Socketpair)?;
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).map_err(errno)
}

/// The calling thread's features, for a thread that it is about to start. The new thread inherits its filters. `None`: the
/// calling thread has no filter, or could not probe.
pub(crate) fn for_new_thread() -> Option<ThreadFeatures> {
    of_calling_thread();
    FILTERED.try_with(|cached| cached.borrow().clone()).ok().flatten()
}

/// Stores the features of the thread that started the calling thread. Without them, the calling thread would have to
/// probe, which might fail because no descriptor is free.
pub(crate) fn inherit(features: Option<ThreadFeatures>) {
    let _ = FILTERED.try_with(|cached| cached.replace(features));
}

/// Forgets the calling thread's features if the thread had another number of filters than `count`
/// when the library probed them.
pub(crate) fn probe_again_if_not(count: Option<u32>) {
    let differs = |cached: &mut ThreadFeatures| cached.count.is_some() && count.is_some() && cached.count != count;
    let _ = FILTERED.try_with(|cached| cached.borrow_mut().take_if(differs));
}

/// The features of a thread that could not start a probe child: assume that a filter kills the process for any call.
fn unprobed() -> Arc<Features> {
    Arc::new(Features::new(CallSet::ALL))
}

/// Uses the features of another thread with the same filters, or probes.
fn find_filtered() -> Arc<Features> {
    own_proc::remember_if_single_threaded();
    let (cannot_add_filter, count) = (cannot_add_filter(), count_filters());
    let shared = count.filter(|&count| own_proc::come_from_first_thread(count));
    let known = || SHARED.lock().clone().filter(|(known, _)| Some(*known) == shared).map(|(_, features)| features);
    let features = match known() {
        Some(features) => features,
        None => {
            let Ok(killed_calls) = probe() else { return unprobed() };
            let features = Arc::new(Features::new(killed_calls));
            if let Some(count) = shared {
                *SHARED.lock() = Some((count, features.clone()));
            }
            features
        }
    };
    let _ = FILTERED.try_with(|cached| {
        cached.replace(Some(ThreadFeatures { count, cannot_add_filter, features: features.clone() }))
    });
    features
}

/// The number of seccomp filters of the calling thread. `None` if the kernel does not count them (before Linux 5.9),
/// or if there is no /proc.
fn count_filters() -> Option<u32> {
    own_proc::read_status().ok()?.filters
}

/// Finds the calls for which a filter kills the process, by probe children.
///
/// # Errors
/// No probe child could be started, or a probe child ended in another way than by a filter's SIGSYS.
fn probe() -> Result<CallSet, Errno> {
    let calls = if is_patched_version() { CallSet::ALL } else { CallSet::ALL.without(Call::Builder) };
    let killed_calls = probe_killed_calls(&mut ChildMemory::new()?, calls, probe_may_share_memory())?;
    spawnfd_guard::sys::disable_calls(
        killed_calls.contains(Call::PidfdOpen),
        killed_calls.contains(Call::PidfdSendSignal),
    );
    Ok(killed_calls)
}

/// Whether a probe child, which a filter may kill, may share this process's memory.
///
/// Before Linux 5.16, such a kill is a core dump and kills all processes with the same memory. On later kernels the
/// child sets a core size limit of 1, so that the kernel does not dump the memory. The hard limit must permit that.
fn probe_may_share_memory() -> bool {
    kernel_version() >= Some((5, 16)) && call::limit(abi::RLIMIT_CORE).is_ok_and(|limit| limit.rlim_max >= 1)
}

/// The first two numbers of the kernel's version.
pub(super) fn kernel_version() -> Option<(u32, u32)> {
    let release = call::release().ok()?;
    let parts = release.split(|byte| !byte.is_ascii_digit());
    let mut numbers = parts.map(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

/// The project's kernel patches are for one version. Other versions may have other calls at the patches' numbers.
fn is_patched_version() -> bool {
    call::release().is_ok_and(|release| release.starts_with(b"6.12."))
}

impl Features {
    const fn new(killed_calls: CallSet) -> Features {
        Features {
            killed_calls,
            builder: Feature::new(),
            clone3: Feature::new(),
            close_range: Feature::new(),
            pidfd_getfd: Feature::new(),
            trim_table: Feature::new(),
            scm_rights: [Feature::new(), Feature::new()],
        }
    }

    /// Whether the kernel has the builder of the project's kernel patches.
    pub(crate) fn has_builder(&self) -> bool {
        self.builder.or_probe(|| is_patched_version() && Builder::open(self.killed_calls).is_ok())
    }

    /// Records that the kernel, or a filter added since, refuses the builder.
    pub(crate) fn refuse_builder(&self) {
        self.builder.learn(false);
    }

    /// Whether clone3 works (Linux 5.3; ENOSYS under Docker's default profile).
    pub(crate) fn has_clone3(&self) -> bool {
        self.clone3.or_probe(|| has_clone3(self.killed_calls))
    }

    /// Probes clone3 again, because the application may have added a filter since the last probe.
    pub(crate) fn probe_clone3(&self) -> bool {
        let answer = has_clone3(self.killed_calls);
        self.clone3.learn(answer);
        answer
    }

    /// Whether the library may call clone with namespace flags. A filter can read the flags of clone, but not the
    /// flags of clone3.
    pub(crate) fn can_clone_namespaces(&self) -> bool {
        !self.killed_calls.contains(Call::CloneNamespaces)
    }

    /// Whether close_range works (Linux 5.9). Without it, the cost of leaving the caller's table grows with that
    /// table.
    pub(crate) fn has_close_range(&self) -> bool {
        self.close_range.or_probe(|| call::close_range(self.killed_calls, u32::MAX, u32::MAX, 0).is_ok())
    }

    /// Whether a child can leave the caller's table by close_range alone (strategy `TrimTable`).
    pub(crate) fn can_trim_table(&self) -> bool {
        self.trim_table.or_probe(|| true)
    }

    /// Whether a child may use pidfd_getfd on its caller (Linux 6.9 for pidfds of threads).
    ///
    /// Docker's default profile and Yama refuse it. Only a child can find this out, so the answer is `true` until a
    /// child fails.
    pub(crate) fn can_use_pidfd_getfd(&self) -> bool {
        self.pidfd_getfd
            .or_probe(|| ![Call::PidfdGetfd, Call::PidfdOpen].iter().any(|&call| self.killed_calls.contains(call)))
    }

    /// Whether the library may send descriptors to a child over a socket: no filter kills the process for the calls.
    pub(crate) fn can_send_descriptors(&self) -> bool {
        ![Call::Socketpair, Call::Sendmsg, Call::Recvmsg].iter().any(|&call| self.killed_calls.contains(call))
    }

    /// Whether a child can receive these descriptors over a socket. The answer is unknown until a child has tried.
    ///
    /// The caller waits for the child that tries, so it can start another child after a failure. The success of a
    /// child without sources shows only that a child can leave the caller's table.
    pub(crate) fn scm_rights(&self, sources: &[RawFd]) -> &Feature {
        &self.scm_rights[usize::from(!sources.is_empty())]
    }
}

impl Feature {
    const fn new() -> Feature {
        Feature(AtomicU8::new(UNKNOWN))
    }

    /// Returns the answer. The first call probes it, and later calls return the remembered answer.
    fn or_probe(&self, probe: impl FnOnce() -> bool) -> bool {
        self.known().unwrap_or_else(|| {
            let answer = probe();
            self.learn(answer);
            answer
        })
    }

    /// The answer, if it is known.
    pub(crate) fn known(&self) -> Option<bool> {
        match self.0.load(Ordering::Relaxed) {
            UNKNOWN => None,
            known => Some(known == YES),
        }
    }

    /// Remembers an answer.
    pub(crate) fn learn(&self, works: bool) {
        self.0.store(if works { YES } else { NO }, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use spawnfd_sys::call::FilterInstruction;

    use super::*;

    /// Returns a filter that kills the process for these calls.
    fn filter(calls: &[u32]) -> Vec<FilterInstruction> {
        let instruction = |code, jt, jf, k| FilterInstruction { code, jt, jf, k };
        let (load, jump_if_equal, answer) = (0x20, 0x15, 0x06);
        let mut program = vec![instruction(load, 0, 0, 0)];
        for &call in calls {
            program.extend([instruction(jump_if_equal, 0, 1, call), instruction(answer, 0, 0, 0x8000_0000)]);
        }
        program.push(instruction(answer, 0, 0, 0x7fff_0000));
        program
    }

    #[test]
    fn probe_children_find_each_killed_call() {
        let probed = std::thread::spawn(|| {
            call::prctl(prctl::PR_SET_NO_NEW_PRIVS, 1, 0).unwrap();
            let calls = [abi::__NR_pidfd_getfd, abi::__NR_kcmp, abi::__NR_personality];
            call::set_seccomp_filter(&filter(&calls)).unwrap();
            let mut memory = ChildMemory::new().unwrap();
            let calls = CallSet::ALL.without(Call::Builder);
            let separate_mm = probe_killed_calls(&mut memory, calls, false);
            let shared =
                if probe_may_share_memory() { probe_killed_calls(&mut memory, calls, true) } else { separate_mm };
            (separate_mm, shared, killed_calls())
        });
        let found = CallSet::NONE.with(Call::PidfdGetfd).with(Call::Kcmp).with(Call::Personality);
        assert_eq!(probed.join().unwrap(), (Ok(found), Ok(found), found));
        assert_eq!(killed_calls(), CallSet::NONE, "the filter is the other thread's alone");
    }
}
