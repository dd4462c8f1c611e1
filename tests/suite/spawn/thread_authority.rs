// SPDX-License-Identifier: MIT OR Apache-2.0
//! A zygote serves a calling thread only if this thread has the authority, and the inheritable attributes, of the
//! thread that parked the zygote. Any other thread's start is cold, and reports the reason.

use crate::common;
use std::fs;
use std::path::Path;

use crate::common::zygote::{assert_goes_cold, assert_zygote_used, prctl, raw, zygote};
use crate::common::{code, state};
use ::landlock::{ABI, AccessFs, Ruleset, RulesetAttr, RulesetCreatedAttr, path_beneath_rules};
use spawnfd::{Command, Stdio, Warm};
use spawnfd_tests::confine::{self, Confinement};
use spawnfd_tests::{State, copy_of_program, isolated, require_root, require_syscall, scratch, skip};

/// Returns the state of a child that the standard library forks. A pre_exec closure makes it fork.
fn by_fork(path: &Path) -> State {
    let mut command = std::process::Command::new(path);
    // SAFETY: the closure does nothing.
    unsafe { std::os::unix::process::CommandExt::pre_exec(&mut command, || Ok(())) };
    let output =
        command.stdin(std::process::Stdio::null()).stderr(std::process::Stdio::inherit()).output().expect("starts");
    assert!(output.status.success());
    State::from_json(&output.stdout)
}

/// Asserts that a program started with this `Warm` has exactly the state of a forked child.
#[track_caller]
fn same_as_fork(warm: &Warm, oracle: &Path) {
    let fork = by_fork(oracle);
    let mut command = Command::new(oracle);
    let ours = state(command.warm(warm).stdin(Stdio::Null));
    State::assert_same(&fork, &ours, &["pid", "mappings", "fds.1.inode", "fds.1.target"]);
}

/// Says whether the library uses the zygote that the changed thread has parked. A zygote is a
/// parked process that forks.
#[derive(Clone, Copy)]
enum After {
    Used,
    /// Exec would give the zygote another authority than the thread has, so the library parks none.
    ExecChanges,
}
use After::{ExecChanges, Used};

/// Changes one of two threads. This thread's starts do not use a zygote parked before the change.
/// They use a zygote that the thread parks afterwards. The other thread still uses the first
/// zygote.
fn changed(reason: &'static str, after: After, change: impl Fn() -> bool + Sync) {
    changed_after(|| (), reason, after, change);
}

/// Does the same as `changed`, in a process whose threads `prepare` has confined.
fn changed_after(prepare: impl Fn(), reason: &'static str, after: After, change: impl Fn() -> bool + Sync) {
    // Under a seccomp filter, a zygote serves several threads only if the process started with one
    // thread.
    common::in_single_threaded_fork(|| {
        let directory = scratch();
        let oracle = &copy_of_program("spawnfd-oracle", directory.path());
        prepare();
        let before = &zygote();
        assert_zygote_used(before);
        std::thread::scope(|scope| {
            let body = || {
                if !change() {
                    return skip("refused here");
                }
                assert_goes_cold(before, reason);
                same_as_fork(before, oracle);
                // A change of ids clears the dumpable flag. Without that flag, /proc does not show
                // the thread's Landlock domain.
                assert!(prctl(libc::PR_SET_DUMPABLE, 1));
                let own = zygote();
                match after {
                    Used => assert_zygote_used(&own),
                    ExecChanges => {
                        let stats = own.stats();
                        assert!(stats.cannot.values().all(|why| why.starts_with("exec changes ")), "{stats:?}");
                        assert_eq!((stats.cannot.len(), stats.parked), (1, 0), "{stats:?}");
                    }
                }
                same_as_fork(&own, oracle);
            };
            scope.spawn(body).join().expect("the thread's assertions hold");
        });
        assert_zygote_used(before);
    });
}

macro_rules! goes_cold_after {
    ($($name:ident $reason:literal $after:ident: $change:expr;)*) => {
        mod goes_cold_after {
            use super::*;
            $(
        #[test]
        fn $name() {
            isolated!(|| changed($reason, $after, $change));
        }
    )*
        }};
}

goes_cold_after! {
    another_user "user ids" Used: || Confinement::default().user(54_321, 54_322).apply().is_ok();
    another_fs_user "user ids" ExecChanges: || {
        raw(libc::SYS_setfsuid, [54_321, 0, 0]) && raw_answer(libc::SYS_setfsuid) == 54_321 && may_trace()
    };
    another_group "group ids" ExecChanges: || raw(libc::SYS_setresgid, [usize::MAX, 54_321, usize::MAX]) && may_trace();
    other_groups "groups" Used: || raw(libc::SYS_setgroups, [2, [7_u32, 8].as_ptr() as usize, 0]);
    a_smaller_bounding_set "capabilities" ExecChanges: || prctl(libc::PR_CAPBSET_DROP, 0);
    other_securebits "securebits" ExecChanges: || prctl(libc::PR_SET_SECUREBITS, 1);
    no_new_privs "no_new_privs" Used: || prctl(libc::PR_SET_NO_NEW_PRIVS, 1);
    other_namespaces "namespaces" Used: || raw(libc::SYS_unshare, [(libc::CLONE_NEWUTS | libc::CLONE_NEWNET) as usize, 0, 0]);
    a_mount_namespace "namespaces" Used: || raw(libc::SYS_unshare, [libc::CLONE_NEWNS as usize, 0, 0]);
    // Before Linux 6.3, a process cannot start threads after this change.
    a_time_namespace_for_children "namespaces" Used: || {
        raw(libc::SYS_unshare, [0x80, 0, 0]) && std::thread::Builder::new().spawn(|| ()).is_ok()
    };
    a_session_keyring "keyrings" Used: || raw(libc::SYS_keyctl, [1, 0, 0]);
    a_nice_value "scheduling" Used: || raw(libc::SYS_setpriority, [0, 0, 19]);
    a_scheduling_policy "scheduling" Used: || raw(libc::SYS_sched_setscheduler, [0, 3, [0_u32].as_ptr() as usize]);
    an_io_priority "I/O priority" Used: || raw(libc::SYS_ioprio_set, [1, 0, 2 << 13 | 6]);
    timer_slack "switches" Used: || prctl(libc::PR_SET_TIMERSLACK, 70_001);
    a_machine_check_policy "switches" Used: || {
        // SAFETY: prctl takes integers and changes only this thread.
        unsafe { libc::prctl(libc::PR_MCE_KILL, 1, 1, 0, 0) == 0 }
    };
    a_memory_policy "memory policy" Used: || raw(libc::SYS_set_mempolicy, [1, [1_u64].as_ptr() as usize, 64]);
    another_personality "personality" Used: || raw(libc::SYS_personality, [libc::ADDR_NO_RANDOMIZE as usize, 0, 0]);
    one_processor "affinity" Used: || {
        std::thread::available_parallelism().is_ok_and(|count| count.get() > 1)
            && raw(libc::SYS_sched_setaffinity, [0, 8, [1_u64].as_ptr() as usize])
    };
}

fn may_trace() -> bool {
    let status = fs::read_to_string("/proc/thread-self/status").expect("it exists");
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:")).expect("a line").trim();
    u64::from_str_radix(effective, 16).expect("hexadecimal") >> 19 & 1 == 1
}

/// Makes a system call with the id -1, which changes nothing, and returns the result.
fn raw_answer(number: libc::c_long) -> libc::c_long {
    // SAFETY: the call takes an id. The id -1 is invalid, so the call changes nothing.
    unsafe { libc::syscall(number, -1) }
}

#[test]
fn a_start_goes_cold_after_a_filter() {
    isolated!(|| {
        // A thread without privileges needs no_new_privs for a filter. All threads set it, so that
        // it is not the reason.
        let prepare = || assert!(prctl(libc::PR_SET_NO_NEW_PRIVS, 1));
        changed_after(prepare, "seccomp", Used, || confine::deny(&[("mkdirat", libc::EDOM)]).is_ok());
    });
}

#[test]
fn a_zygote_hands_on_a_threads_own_directory_and_umask() {
    isolated!(|| {
        let directory = scratch();
        let oracle = &copy_of_program("spawnfd-oracle", directory.path());
        let warm = &zygote();
        let body = || {
            if !raw(libc::SYS_unshare, [libc::CLONE_FS as usize, 0, 0]) {
                return skip("refused here");
            }
            assert!(raw(libc::SYS_umask, [0o57, 0, 0]));
            std::env::set_current_dir("/usr").expect("it exists");
            assert_zygote_used(warm);
            same_as_fork(warm, oracle);
        };
        std::thread::scope(|scope| scope.spawn(body).join().expect("the thread's assertions hold"));
    });
}

#[test]
fn a_thread_that_cannot_be_compared_goes_cold() {
    isolated!(|| {
        let warm = zygote();
        confine::deny(&[("statx", libc::EPERM)]).expect("confined");
        assert_goes_cold(&warm, "/proc");
    });
}

/// Confines the thread by a Landlock domain that forbids writing. /proc stays readable, and /dev
/// writable for the output of the parked process.
fn landlock() -> bool {
    let writing = AccessFs::from_write(ABI::V1);
    let ruleset = Ruleset::default().handle_access(writing).expect("known access rights").create().expect("a ruleset");
    let ruleset = ruleset.add_rules(path_beneath_rules(["/dev"], writing)).expect("rules");
    ruleset.restrict_self().is_ok()
}

#[test]
fn a_start_goes_cold_after_a_landlock_domain() {
    isolated!(|| {
        if require_syscall("landlock_create_ruleset") {
            // Landlock needs no_new_privs. All threads set it, so that it is not the reason.
            changed_after(|| assert!(prctl(libc::PR_SET_NO_NEW_PRIVS, 1)), "landlock", Used, landlock);
        }
    });
}

#[test]
fn a_start_goes_cold_after_a_nested_landlock_domain() {
    isolated!(|| {
        if require_syscall("landlock_create_ruleset") {
            changed_after(|| assert!(landlock()), "landlock", Used, landlock);
        }
    });
}

#[test]
fn a_start_goes_cold_after_a_change_of_effective_user() {
    isolated!(|| {
        if !require_root() {
            return;
        }
        let directory = scratch();
        let oracle = copy_of_program("spawnfd-oracle", directory.path());
        let before = zygote();
        assert!(raw(libc::SYS_setresuid, [usize::MAX, 54_321, usize::MAX]));
        assert_goes_cold(&before, "user ids");
        same_as_fork(&before, &oracle);
    });
}

#[test]
fn a_start_goes_cold_with_an_equal_number_of_other_filters() {
    isolated!(|| {
        let directory = scratch();
        let path = directory.path().join("made");
        let deny = |call, errno| Confinement::default().no_new_privs().deny(call, errno).expect("a known call").apply();
        let (send, receive) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                deny("uname", spawnfd_tests::Errno::EDOM).expect("confined");
                let warm = zygote();
                assert_zygote_used(&warm);
                send.send(warm).expect("the receiver is alive");
                let _ = ended.recv();
            });
            let warm = receive.recv().expect("a message");
            deny(spawnfd_tests::confine::MKDIR, spawnfd_tests::Errno::EDOM).expect("confined");
            assert_goes_cold(&warm, "seccomp");
            let mut command = Command::new("/bin/mkdir");
            assert_ne!(code(command.warm(&warm).arg(&path).stderr(Stdio::Null).spawn()), Ok(0));
            assert!(!path.exists());
            drop(end);
        });
    });
}

#[test]
fn threads_share_a_zygote_under_filters_of_the_whole_process() {
    isolated!(|| {
        let confinement = Confinement::default().no_new_privs();
        confinement.deny("mkdirat", spawnfd_tests::Errno::EDOM).expect("a known call").apply().expect("confined");
        let other_thread = |body: &(dyn Fn() + Sync)| {
            std::thread::scope(|scope| scope.spawn(body).join().expect("the thread's assertions hold"));
        };
        let warm = zygote();
        assert_zygote_used(&warm);
        other_thread(&|| assert_goes_cold(&warm, "seccomp"));
        common::in_single_threaded_fork(|| {
            // The process must use the library once before it starts other threads.
            assert_eq!(code(Command::new("/bin/true").spawn()), Ok(0));
            other_thread(&|| {
                let warm = zygote();
                assert_zygote_used(&warm);
                other_thread(&|| assert_zygote_used(&warm));
            });
        });
    });
}

#[test]
fn a_start_goes_cold_while_all_threads_have_other_ids() {
    isolated!(|| {
        if !require_root() {
            return;
        }
        let warm = zygote();
        assert_zygote_used(&warm);
        // SAFETY: seteuid takes an integer. libc changes the ids of all threads, including the
        // keeper thread (which parks processes).
        assert_eq!(unsafe { libc::seteuid(54_321) }, 0);
        assert_goes_cold(&warm, "user ids");
        // SAFETY: seteuid takes an integer.
        assert_eq!(unsafe { libc::seteuid(0) }, 0);
        assert_zygote_used(&warm);
    });
}
