// SPDX-License-Identifier: MIT OR Apache-2.0
//! The confinements of one thread, and other attributes in which a thread can differ from its
//! process.

use landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetCreatedAttr, Scope, path_beneath_rules,
};
use spawnfd_tests::confine::{self, Confinement};
use spawnfd_tests::{has_syscall, is_root};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A restriction that a test puts on one thread.
#[derive(Clone, Copy)]
pub struct ThreadConfinement {
    pub name: &'static str,
    /// Confines the calling thread. Returns `false` if this kernel or this user cannot.
    pub apply: fn() -> bool,
    /// Whether a confined thread can signal its own children.
    pub can_signal: bool,
    /// Whether a confined thread can start threads. A thread whose children are in another pid namespace cannot.
    pub can_start_threads: bool,
}

const fn confinement(name: &'static str, apply: fn() -> bool) -> ThreadConfinement {
    ThreadConfinement { name, apply, can_signal: true, can_start_threads: true }
}

/// The confinements that the tests apply to one thread.
pub const CONFINEMENTS: &[ThreadConfinement] = &[
    confinement("landlock_files", landlock_files),
    confinement("landlock_files_without_no_new_privs", || is_root() && ruled(false, file_rules())),
    confinement("landlock_scopes", || ruled(true, scoped())),
    confinement("seccomp", || apply(Confinement::default().deny("mkdirat", errno(libc::EDOM)).expect("a known call"))),
    ThreadConfinement { can_signal: false, ..confinement("seccomp_signals", deny_signals) },
    confinement("docker", || apply(Confinement::default().docker())),
    confinement("no_new_privs", || apply(Confinement::default().no_new_privs())),
    confinement("root_with_one_capability", || is_root() && apply(Confinement::default().capabilities(&["kill"]))),
    confinement("root_without_capabilities", || is_root() && apply(Confinement::default().capabilities(&[]))),
    confinement("user", || is_root() && apply(Confinement::default().user(USER, USER))),
    confinement("user_with_a_capability", || {
        is_root() && apply(Confinement::default().user(USER, USER).capabilities(&["sys_nice"]))
    }),
    confinement("groups", || is_root() && groups(&[7, 8, 9])),
    confinement("bounding_set", || is_root() && prctl(libc::PR_CAPBSET_DROP, 21, 0)),
    confinement("inheritable_set", || is_root() && inheritable()),
    confinement("ambient_set", || {
        is_root() && inheritable() && prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_RAISE as usize, KILL)
    }),
    confinement("securebits", || is_root() && prctl(libc::PR_SET_SECUREBITS, 1, 0)),
    confinement("mount_namespace", || unshare(libc::CLONE_NEWNS)),
    confinement("network_namespace", || unshare(libc::CLONE_NEWNET)),
    ThreadConfinement { can_start_threads: false, ..confinement("pid_namespace", pid_namespace) },
    confinement("nice", || nice(7)),
    confinement("batch", batch),
    confinement("affinity", affinity),
];

pub const USER: u32 = 54_321;
const KILL: usize = 5;

fn errno(number: i32) -> spawnfd_tests::Errno {
    spawnfd_tests::Errno::new(number)
}

fn apply(confinement: Confinement) -> bool {
    confinement.apply().is_ok()
}

fn landlock_files() -> bool {
    ruled(true, file_rules())
}

type Ruled = Option<landlock::RulesetCreated>;

/// A Landlock ruleset that allows a thread to read what programs need, and nothing else.
fn file_rules() -> Ruled {
    let ruleset = Ruleset::default().handle_access(AccessFs::from_all(ABI::V1)).ok()?.create().ok()?;
    let readable =
        path_beneath_rules(["/usr", "/lib", "/lib64", "/bin", "/proc", "/tmp"], AccessFs::from_read(ABI::V1));
    let devices = path_beneath_rules(["/dev"], AccessFs::from_all(ABI::V1));
    // The oracle (a program that prints its own state) is in the build directory of this test.
    let test = std::env::current_exe().ok()?;
    let programs = path_beneath_rules(test.ancestors().nth(2), AccessFs::from_read(ABI::V1));
    ruleset.add_rules(readable).ok()?.add_rules(devices).ok()?.add_rules(programs).ok()
}

/// A ruleset that forbids signals to processes outside the thread's Landlock domain. It needs Linux
/// 6.12.
fn scoped() -> Ruled {
    Ruleset::default().set_compatibility(CompatLevel::HardRequirement).scope(Scope::Signal).ok()?.create().ok()
}

fn ruled(no_new_privs: bool, ruleset: Ruled) -> bool {
    has_syscall("landlock_create_ruleset")
        && ruleset.is_some_and(|ruleset| ruleset.no_new_privs(no_new_privs).restrict_self().is_ok())
}

fn deny_signals() -> bool {
    confine::deny(&["kill", "tkill", "pidfd_send_signal"].map(|call| (call, libc::EPERM))).is_ok()
}

fn prctl(option: i32, second: usize, third: usize) -> bool {
    // SAFETY: these options take integers, and change only the calling thread.
    unsafe { libc::prctl(option, second, third, 0, 0) == 0 }
}

fn groups(groups: &[u32]) -> bool {
    // SAFETY: the kernel reads `groups.len()` ids from the slice. libc's setgroups would change
    // every thread.
    unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) == 0 }
}

/// Makes CAP_KILL inheritable for the calling thread.
fn inheritable() -> bool {
    let header = [0x2008_0522_u32, 0];
    let mut sets = [0_u32; 6];
    // SAFETY: version 3 of these calls reads or writes two structs of three words, the size of
    // `sets`.
    unsafe {
        libc::syscall(libc::SYS_capget, header.as_ptr(), sets.as_mut_ptr()) == 0 && {
            sets[2] |= 1 << KILL;
            libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr()) == 0
        }
    }
}

fn unshare(kinds: i32) -> bool {
    // SAFETY: unshare takes an integer, and changes only the calling thread's namespaces.
    is_root() && unsafe { libc::syscall(libc::SYS_unshare, kinds) == 0 }
}

/// Puts the thread's later children in a new pid namespace. The first child sleeps until this process ends: without that
/// child, the kernel allows no further forks. The child waits for a pidfd. A parent-death signal would not reach the
/// child if this process gave up the permission to send signals to it.
fn pid_namespace() -> bool {
    // SAFETY: pidfd_open takes integers, and the new descriptor belongs to the returned value. The child makes system
    // calls only.
    unsafe {
        let process = libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0) as i32;
        if process < 0 {
            return false;
        }
        let process = OwnedFd::from_raw_fd(process);
        if !unshare(libc::CLONE_NEWPID) {
            return false;
        }
        let pid = libc::fork();
        if pid == 0 {
            let mut ended = libc::pollfd { fd: process.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            while libc::poll(&raw mut ended, 1, -1) != 1 {}
            libc::_exit(0);
        }
        pid > 0
    }
}

fn nice(value: i32) -> bool {
    // SAFETY: setpriority takes integers; 0 means the calling thread.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, value) == 0 }
}

fn batch() -> bool {
    let priority = libc::sched_param { sched_priority: 0 };
    // SAFETY: the kernel only reads the struct.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const priority) == 0 }
}

/// Pins the thread to one processor. On a machine with one processor this changes nothing.
fn affinity() -> bool {
    // SAFETY: an all-zero cpu_set_t is a valid, empty set. The calls read and write only this set.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) == 0 && {
            let first = (0..libc::CPU_SETSIZE as usize).find(|&cpu| libc::CPU_ISSET(cpu, &set));
            libc::CPU_ZERO(&mut set);
            libc::CPU_SET(first.unwrap_or(0), &mut set);
            libc::sched_setaffinity(0, size_of_val(&set), &raw const set) == 0
        }
    }
}
