// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whom a launcher thread serves: a calling thread that may do what it may, and of which a child inherits the same; nobody else.

use crate::common;
use std::fs;
use std::path::Path;

use crate::common::thread::{falls_back, is_used, prctl, raw, starts};
use crate::common::{code, state};
use ::landlock::{ABI, AccessFs, Ruleset, RulesetAttr};
use spawnfd::{Command, LauncherThread, Stdio};
use spawnfd_tests::confine::{self, Confinement};
use spawnfd_tests::{State, copy_of_program, isolated, require_root, require_syscall, scratch, skip};

/// By std's fork, which a pre_exec closure asks for.
fn by_fork(path: &Path) -> State {
    let mut command = std::process::Command::new(path);
    // SAFETY: does nothing.
    unsafe { std::os::unix::process::CommandExt::pre_exec(&mut command, || Ok(())) };
    let output =
        command.stdin(std::process::Stdio::null()).stderr(std::process::Stdio::inherit()).output().expect("starts");
    assert!(output.status.success());
    State::from_json(&output.stdout)
}

/// The whole state of a child is that of a fork's.
#[track_caller]
fn same_as_fork(launcher: &LauncherThread, oracle: &Path) {
    let fork = by_fork(oracle);
    let mut command = Command::new(oracle);
    let ours = state(command.launcher(launcher).stdin(Stdio::Null));
    State::assert_same(&fork, &ours, &["pid", "mappings", "fds.1.inode", "fds.1.target"]);
}

/// A thread changes itself: a launcher made before, by another, is not used for it, one that it makes then is; and another thread goes
/// on with the first.
fn changed(reason: &str, change: impl Fn() -> bool + Sync) {
    changed_after(|| (), reason, change);
}

/// The same where that thread and the first launcher's are not free to begin with.
fn changed_after(prepare: impl Fn(), reason: &str, change: impl Fn() -> bool + Sync) {
    // Under a filter a launcher serves no other thread otherwise.
    common::alone(|| changed_alone(prepare, reason, change));
}

fn changed_alone(prepare: impl Fn(), reason: &str, change: impl Fn() -> bool + Sync) {
    let directory = scratch();
    let oracle = &copy_of_program("spawnfd-oracle", directory.path());
    prepare();
    let before = &LauncherThread::new().expect("a launcher thread");
    is_used(before);
    std::thread::scope(|scope| {
        let body = || {
            if !change() {
                return skip("refused here");
            }
            falls_back(before, reason);
            same_as_fork(before, oracle);
            // A change of ids takes it away, and with it all that could be shown of Landlock.
            assert!(prctl(libc::PR_SET_DUMPABLE, 1));
            let after = LauncherThread::new().expect("a launcher thread");
            is_used(&after);
            same_as_fork(&after, oracle);
            let stats = after.stats();
            assert_eq!((stats.spawned, stats.fell_back.len()), (2, 0), "{stats:?}");
        };
        scope.spawn(body).join().expect("its assertions hold");
    });
    is_used(before);
}

macro_rules! changes {
    ($($name:ident $reason:literal: $change:expr;)*) => {$(
        #[test]
        fn $name() {
            isolated!(|| changed($reason, $change));
        }
    )*};
}

changes! {
    another_user "user ids": || Confinement::default().user(54_321, 54_322).apply().is_ok();
    another_file_system_user "user ids": || {
        // It takes effective capabilities away: see another_effective_user.
        raw(libc::SYS_setfsuid, [54_321, 0, 0]) && raw_answer(libc::SYS_setfsuid) == 54_321 && may_trace()
    };
    another_group "group ids": || raw(libc::SYS_setresgid, [usize::MAX, 54_321, usize::MAX]) && may_trace();
    other_groups "groups": || raw(libc::SYS_setgroups, [2, [7_u32, 8].as_ptr() as usize, 0]);
    fewer_capabilities_to_come "capabilities": || prctl(libc::PR_CAPBSET_DROP, 0);
    other_securebits "securebits": || prctl(libc::PR_SET_SECUREBITS, 1);
    no_new_privileges "no_new_privs": || prctl(libc::PR_SET_NO_NEW_PRIVS, 1);
    other_namespaces "namespaces": || raw(libc::SYS_unshare, [(libc::CLONE_NEWUTS | libc::CLONE_NEWNET) as usize, 0, 0]);
    a_mount_namespace "namespaces": || raw(libc::SYS_unshare, [libc::CLONE_NEWNS as usize, 0, 0]);
    // Before Linux 6.3 there are no more threads afterwards.
    a_time_namespace_for_children "namespaces": || {
        raw(libc::SYS_unshare, [0x80, 0, 0]) && std::thread::Builder::new().spawn(|| ()).is_ok()
    };
    a_session_keyring "keyrings": || raw(libc::SYS_keyctl, [1, 0, 0]);
    own_mask "directories": || {
        raw(libc::SYS_unshare, [libc::CLONE_FS as usize, 0, 0]) && raw(libc::SYS_umask, [0o57, 0, 0])
    };
    own_directory "directories": || {
        raw(libc::SYS_unshare, [libc::CLONE_FS as usize, 0, 0]) && std::env::set_current_dir("/usr").is_ok()
    };
    a_nice_value "scheduling": || raw(libc::SYS_setpriority, [0, 0, 19]);
    a_policy "scheduling": || raw(libc::SYS_sched_setscheduler, [0, 3, [0_u32].as_ptr() as usize]);
    an_io_priority "I/O priority": || raw(libc::SYS_ioprio_set, [1, 0, 2 << 13 | 6]);
    timer_slack "switches": || prctl(libc::PR_SET_TIMERSLACK, 70_001);
    a_machine_check_policy "switches": || {
        // SAFETY: integers; this thread's own.
        unsafe { libc::prctl(libc::PR_MCE_KILL, 1, 1, 0, 0) == 0 }
    };
    a_memory_policy "memory policy": || raw(libc::SYS_set_mempolicy, [1, [1_u64].as_ptr() as usize, 64]);
    a_persona "personality": || raw(libc::SYS_personality, [libc::ADDR_NO_RANDOMIZE as usize, 0, 0]);
    one_processor "affinity": || {
        std::thread::available_parallelism().is_ok_and(|count| count.get() > 1)
            && raw(libc::SYS_sched_setaffinity, [0, 8, [1_u64].as_ptr() as usize])
    };
}

fn may_trace() -> bool {
    let status = fs::read_to_string("/proc/thread-self/status").expect("there");
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:")).expect("a line").trim();
    u64::from_str_radix(effective, 16).expect("hexadecimal") >> 19 & 1 == 1
}

/// What a call answers that changes nothing.
fn raw_answer(number: libc::c_long) -> libc::c_long {
    // SAFETY: an invalid id.
    unsafe { libc::syscall(number, -1) }
}

#[test]
fn a_filter() {
    isolated!(|| {
        // Without privileges it takes this, which would show otherwise.
        let prepare = || assert!(prctl(libc::PR_SET_NO_NEW_PRIVS, 1));
        changed_after(prepare, "seccomp", || confine::deny(&[("mkdirat", libc::EDOM)]).is_ok());
    });
}

/// What nobody says of either thread is not the same for that.
#[test]
fn directories_that_cannot_be_told() {
    isolated!(|| {
        confine::deny(&[("statx", libc::EPERM)]).expect("confined");
        let launcher = LauncherThread::new().expect("a launcher thread");
        if !raw(libc::SYS_unshare, [libc::CLONE_FS as usize, 0, 0]) || std::env::set_current_dir("/usr").is_err() {
            return skip("refused here");
        }
        falls_back(&launcher, "directories");
    });
}

/// Against writing only: /proc can be read.
fn landlock() -> bool {
    let ruleset = Ruleset::default().handle_access(AccessFs::from_write(ABI::V1)).expect("known");
    ruleset.create().expect("a ruleset").restrict_self().is_ok()
}

#[test]
fn a_landlock_domain() {
    isolated!(|| {
        if require_syscall("landlock_create_ruleset") {
            // Which would show otherwise.
            changed_after(|| assert!(prctl(libc::PR_SET_NO_NEW_PRIVS, 1)), "landlock", landlock);
        }
    });
}

#[test]
fn a_landlock_domain_within_another() {
    isolated!(|| {
        if require_syscall("landlock_create_ruleset") {
            changed_after(|| assert!(landlock()), "landlock", landlock);
        }
    });
}

#[test]
fn a_host_that_is_not_dumpable() {
    isolated!(|| {
        // By a capability of root's it can be shown all the same.
        if require_root() && Confinement::default().user(54_321, 54_322).apply().is_ok() {
            let launcher = LauncherThread::new().expect("a launcher thread");
            falls_back(&launcher, "not dumpable");
            assert!(prctl(libc::PR_SET_DUMPABLE, 1));
            is_used(&LauncherThread::new().expect("a launcher thread"));
        }
    });
}

#[test]
fn another_effective_user() {
    isolated!(|| {
        if !require_root() {
            return;
        }
        let directory = scratch();
        let oracle = copy_of_program("spawnfd-oracle", directory.path());
        let before = LauncherThread::new().expect("a launcher thread");
        assert!(raw(libc::SYS_setresuid, [usize::MAX, 54_321, usize::MAX]));
        falls_back(&before, "user ids");
        // One that could have its capabilities back may not look into its own kind.
        assert!(prctl(libc::PR_SET_DUMPABLE, 1));
        let after = LauncherThread::new().expect("a launcher thread");
        falls_back(&after, "capabilities");
        [before, after].iter().for_each(|launcher| same_as_fork(launcher, &oracle));
    });
}

#[test]
fn as_many_filters_but_others() {
    isolated!(|| {
        let directory = scratch();
        let path = directory.path().join("made");
        let deny = |call, errno| Confinement::default().no_new_privs().deny(call, errno).expect("known").apply();
        let (send, receive) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                deny("uname", spawnfd_tests::Errno::EDOM).expect("confined");
                send.send(LauncherThread::new().expect("a launcher thread")).expect("waited for");
                let _ = ended.recv();
            });
            let launcher = receive.recv().expect("comes");
            deny("mkdir", spawnfd_tests::Errno::EDOM).expect("confined");
            falls_back(&launcher, "seccomp");
            let mut command = Command::new("/bin/mkdir");
            assert_ne!(code(command.launcher(&launcher).arg(&path).stderr(Stdio::Null).spawn()), Ok(0));
            assert!(!path.exists());
            drop(end);
        });
    });
}

#[test]
fn filters_from_before_there_were_threads() {
    isolated!(|| {
        let confinement = Confinement::default().no_new_privs();
        confinement.deny("mkdirat", spawnfd_tests::Errno::EDOM).expect("known").apply().expect("confined");
        let other_thread = |body: &(dyn Fn() + Sync)| {
            std::thread::scope(|scope| scope.spawn(body).join().expect("its assertions hold"));
        };
        let launcher = LauncherThread::new().expect("a launcher thread");
        is_used(&launcher);
        other_thread(&|| falls_back(&launcher, "seccomp"));
        common::alone(|| {
            // The first use, by whatever it is.
            starts(&launcher);
            other_thread(&|| {
                let launcher = LauncherThread::new().expect("a launcher thread");
                is_used(&launcher);
                other_thread(&|| is_used(&launcher));
            });
        });
    });
}

#[test]
fn ids_of_all_threads() {
    isolated!(|| {
        if !require_root() {
            return;
        }
        let launcher = LauncherThread::new().expect("a launcher thread");
        is_used(&launcher);
        // SAFETY: integers. libc changes all threads, the launcher's too.
        assert_eq!(unsafe { libc::seteuid(54_321) }, 0);
        falls_back(&launcher, "user ids");
        // And this one alone is as it was again.
        assert!(raw(libc::SYS_setresuid, [usize::MAX, 0, usize::MAX]));
        falls_back(&launcher, "launcher's ids");
        // SAFETY: as above.
        assert_eq!(unsafe { libc::seteuid(0) }, 0);
        is_used(&launcher);
    });
}
