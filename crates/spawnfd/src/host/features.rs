// SPDX-License-Identifier: MIT OR Apache-2.0
//! The system calls that the kernel and the calling thread's seccomp filters permit. The library probes once and
//! remembers.
//!
//! A filter may kill the process for a call (SECCOMP_RET_KILL_PROCESS), so the host cannot try the call.
//! In a thread with a filter, a probe child tries all calls of [`Call::ALL`] first.
//! See docs/adr/0021-filters-that-kill.md.

use std::cell::RefCell;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use spawnfd_child::{ChildMemory, killed_calls};
use spawnfd_sys::{Builder, Call, Calls, Errno, RawFd, abi, call, has_clone3, prctl};

use crate::host::authority;
use crate::host::own_proc::{self, Own};
use crate::host::per_process::PerProcess;

/// A yes or no that the library probes at most a few times. A filter added later may make a yes wrong.
#[derive(Debug)]
pub(crate) struct Feature(AtomicU8);

const UNKNOWN: u8 = 0;
const YES: u8 = 1;
const NO: u8 = 2;

/// The features of all threads with the same seccomp filters.
#[derive(Debug)]
pub(crate) struct Features {
    /// The calls for which a filter kills the process. Neither the host nor a child makes them.
    pub(crate) killed: Calls,
    kernel: Feature,
    clone3: Feature,
    pub(crate) close_range: Feature,
    pub(crate) fetch: Feature,
    pub(crate) trim: Feature,
    /// For a child without sources, and for a child with sources.
    passing: [Feature; 2],
}

/// The features of threads without a filter.
static UNFILTERED: Features = Features::new(Calls::NONE);

/// A number of filters, and the features of all threads with that number.
static SHARED: PerProcess<Option<(u32, Arc<Features>)>> = PerProcess::new(None);

/// The features that a thread with filters keeps. A forked process has the same filters, so it keeps them too.
#[derive(Clone)]
struct Kept {
    /// The number of filters; `None` if the kernel does not count them.
    count: Option<u32>,
    /// The thread could not add a filter.
    is_settled: bool,
    features: Arc<Features>,
}

thread_local! {
    static FILTERED: RefCell<Option<Kept>> = const { RefCell::new(None) };
}

/// The features of one thread.
#[derive(Clone, Debug)]
pub(crate) enum OfThread {
    /// The thread has no filter.
    Unfiltered,
    /// The thread has filters.
    Filtered(Arc<Features>),
}

impl Deref for OfThread {
    type Target = Features;

    fn deref(&self) -> &Features {
        match self {
            OfThread::Unfiltered => &UNFILTERED,
            OfThread::Filtered(features) => features,
        }
    }
}

/// The features of the calling thread. In a thread with a filter the first call may start probe children.
pub(crate) fn of_calling_thread() -> OfThread {
    if call::seccomp_mode() == 0 {
        return OfThread::Unfiltered;
    }
    let kept = FILTERED.try_with(|kept| kept.borrow().clone());
    OfThread::Filtered(match kept {
        Ok(Some(kept)) if kept.is_current() => kept.features,
        Ok(_) => find_filtered(),
        // The thread is exiting and cannot store them.
        Err(_) => unprobed(),
    })
}

impl Kept {
    /// Whether the thread has added no filter since the probe. A new filter may kill the process for a call that
    /// was probed.
    fn is_current(&self) -> bool {
        self.is_settled && is_settled() || self.count.is_none() || count_filters() == self.count
    }
}

/// Whether the calling thread cannot add a filter. Adding one needs no_new_privs, which is never cleared, or
/// CAP_SYS_ADMIN.
fn is_settled() -> bool {
    call::prctl(prctl::PR_GET_NO_NEW_PRIVS, 0, 0) == Ok(0)
        && call::capabilities().is_ok_and(|[_, permitted, _]| permitted >> authority::CAP_SYS_ADMIN & 1 == 0)
}

/// The calls that the calling thread must not make.
pub fn killed() -> Calls {
    of_calling_thread().killed
}

/// The features that a thread of the library inherits, together with the filters, from the thread that starts it.
pub(crate) struct Inheritance(OfThread, Option<u32>);

/// The calling thread's features, for a thread that it is about to start.
pub(crate) fn to_hand_down() -> Inheritance {
    let features = of_calling_thread();
    let count = FILTERED.try_with(|kept| kept.borrow().as_ref().and_then(|kept| kept.count)).ok().flatten();
    Inheritance(features, count)
}

/// Stores the features that the starting thread hands to the calling thread. A probe child later might find no free
/// descriptor.
pub(crate) fn inherit(Inheritance(features, count): Inheritance) {
    if let OfThread::Filtered(features) = features {
        let _ = FILTERED.try_with(|kept| kept.replace(Some(Kept { count, is_settled: is_settled(), features })));
    }
}

/// Forgets the calling thread's features if it had another number of filters than `count` when they were probed.
pub(crate) fn probe_again_if_not(count: Option<u32>) {
    let differs = |kept: &mut Kept| kept.count.is_some() && count.is_some() && kept.count != count;
    let _ = FILTERED.try_with(|kept| kept.borrow_mut().take_if(differs));
}

/// For a thread that could start no probe child: a filter may kill the process for any call.
fn unprobed() -> Arc<Features> {
    Arc::new(Features::new(Calls::ALL))
}

/// Takes the features of a thread with the same filters, or probes.
fn find_filtered() -> Arc<Features> {
    authority::remember_if_alone();
    let (is_settled, count) = (is_settled(), count_filters());
    let shared = count.filter(|&count| authority::were_handed_down(count));
    let known = || SHARED.lock().clone().filter(|(known, _)| Some(*known) == shared).map(|(_, features)| features);
    let features = match known() {
        Some(features) => features,
        None => {
            let Ok(killed) = probe() else { return unprobed() };
            let features = Arc::new(Features::new(killed));
            if let Some(count) = shared {
                *SHARED.lock() = Some((count, features.clone()));
            }
            features
        }
    };
    let _ = FILTERED.try_with(|kept| kept.replace(Some(Kept { count, is_settled, features: features.clone() })));
    features
}

/// The number of seccomp filters of the calling thread. `None`: the kernel does not count them (before Linux 5.9),
/// or there is no /proc.
fn count_filters() -> Option<u32> {
    let status = own_proc::read(Own::Status).ok()?;
    let count = status.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(b"Seccomp_filters:"))?;
    std::str::from_utf8(count.trim_ascii()).ok()?.parse().ok()
}

/// # Errors
/// No probe child can be started, or another signal ended it.
fn probe() -> Result<Calls, Errno> {
    let calls = if is_patched_version() { Calls::ALL } else { Calls::ALL.without(Call::Builder) };
    let killed =
        killed_calls(&mut ChildMemory::new()?, calls, probe_may_share_memory()).map_err(|refused| refused.0)?;
    spawnfd_guard::sys::give_up(killed.contains(Call::PidfdOpen), killed.contains(Call::PidfdSendSignal));
    Ok(killed)
}

/// Whether a probe child may die in this process's memory.
///
/// Its death must not kill this process (Linux 5.16), nor dump this process's memory. The child prevents a dump by
/// a core size limit of 1, if the hard limit permits it.
fn probe_may_share_memory() -> bool {
    let number = |part: Option<&[u8]>| std::str::from_utf8(part?).ok()?.parse::<u32>().ok();
    let is_recent = call::release().is_ok_and(|release| {
        let mut parts = release.split(|byte| !byte.is_ascii_digit());
        (number(parts.next()), number(parts.next())) >= (Some(5), Some(16))
    });
    is_recent && call::limit(abi::RLIMIT_CORE).is_ok_and(|limit| limit.rlim_max >= 1)
}

/// The patches in `kernel/patches` are for one version. Other versions may have other calls at the patches'
/// numbers.
fn is_patched_version() -> bool {
    call::release().is_ok_and(|release| release.starts_with(b"6.12."))
}

impl Features {
    const fn new(killed: Calls) -> Features {
        Features {
            killed,
            kernel: Feature::new(),
            clone3: Feature::new(),
            close_range: Feature::new(),
            fetch: Feature::new(),
            trim: Feature::new(),
            passing: [Feature::new(), Feature::new()],
        }
    }

    /// Whether the kernel has the builder (`kernel/patches`).
    pub(crate) fn has_kernel(&self) -> bool {
        self.kernel.or_ask(|| is_patched_version() && Builder::open(self.killed).is_ok())
    }

    /// Notes that the kernel, or a filter added since, refuses the builder.
    pub(crate) fn refuse_kernel(&self) {
        self.kernel.learn(false);
    }

    /// Whether clone3 works (Linux 5.3; ENOSYS under Docker's default profile).
    pub(crate) fn has_clone3(&self) -> bool {
        self.clone3.or_ask(|| has_clone3(self.killed))
    }

    /// Whether clone3 works now: a filter may have been added since the last answer.
    pub(crate) fn ask_for_clone3(&self) -> bool {
        let answer = has_clone3(self.killed);
        self.clone3.learn(answer);
        answer
    }

    /// Whether clone may be called with namespace flags. No filter sees the flags of clone3.
    pub(crate) fn can_clone_namespaces(&self) -> bool {
        !self.killed.contains(Call::CloneNamespaces)
    }

    /// Whether close_range works (Linux 5.9). Without it, the cost of leaving the caller's table grows with that
    /// table.
    pub(crate) fn has_close_range(&self) -> bool {
        self.close_range.or_ask(|| call::close_range(self.killed, u32::MAX, u32::MAX, 0).is_ok())
    }

    /// Whether a child can leave the caller's table by close_range alone.
    pub(crate) fn can_trim(&self) -> bool {
        self.trim.or_ask(|| true)
    }

    /// Whether a child may use pidfd_getfd on its caller (Linux 6.9 for pidfds of threads).
    ///
    /// Docker's default profile and Yama refuse it. Only a child can find out, so the answer is yes until a child
    /// fails.
    pub(crate) fn can_fetch(&self) -> bool {
        self.fetch.or_ask(|| ![Call::PidfdGetfd, Call::PidfdOpen].iter().any(|&call| self.killed.contains(call)))
    }

    /// Whether descriptors may be sent to a child over a socket: no filter kills the process for these calls.
    pub(crate) fn can_pass(&self) -> bool {
        ![Call::Socketpair, Call::Sendmsg, Call::Recvmsg].iter().any(|&call| self.killed.contains(call))
    }

    /// Whether a child can receive these descriptors over a socket. Unknown until a child has tried.
    ///
    /// The caller waits for the child that tries, so it can start another one after a failure. A child without
    /// sources shows only that it can leave the caller's table.
    pub(crate) fn passing(&self, sources: &[RawFd]) -> &Feature {
        &self.passing[usize::from(!sources.is_empty())]
    }
}

impl Feature {
    const fn new() -> Feature {
        Feature(AtomicU8::new(UNKNOWN))
    }

    /// The answer, probed at the first call and remembered.
    fn or_ask(&self, ask: impl FnOnce() -> bool) -> bool {
        self.known().unwrap_or_else(|| {
            let answer = ask();
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

    /// A filter that kills the process for these calls.
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
            let calls = Calls::ALL.without(Call::Builder);
            let own_memory = killed_calls(&mut memory, calls, false);
            let shared = if probe_may_share_memory() { killed_calls(&mut memory, calls, true) } else { own_memory };
            (own_memory, shared, killed())
        });
        let found = Calls::NONE.with(Call::PidfdGetfd).with(Call::Kcmp).with(Call::Personality);
        assert_eq!(probed.join().unwrap(), (Ok(found), Ok(found), found));
        assert_eq!(killed(), Calls::NONE, "another thread");
    }
}
