// SPDX-License-Identifier: MIT OR Apache-2.0
//! Attributes of a child, and actions other than those on descriptors.

use crate::common;
use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::common::{Launcher, Refused, capability_sets, every_launcher, output, state};
use spawnfd::command::{FilterInstruction, Namespaces};
use spawnfd::error::{Errno, Stage};
use spawnfd::signal::SignalSet;
use spawnfd::{Command, Stdio};
use spawnfd_tests::{Limit, State, Uids, require_root, skip};

fn known<T>(answer: &spawnfd_tests::Answer<T>) -> &T {
    answer.known().expect("the kernel answers")
}

fn all_ids(id: u32) -> Uids {
    Uids { real: id, effective: id, saved: id, fs: id }
}

/// A seccomp filter that allows every system call.
const ALLOW: FilterInstruction = FilterInstruction { code: 0x06, jt: 0, jf: 0, k: 0x7fff_0000 };

every_launcher! {
    process_attributes_are_set [steps under No]: |launcher| {
        let own = State::of_self();
        let mut command = launcher.oracle();
        command.umask(0o7).nice(7).oom_score_adj(321).affinity([1, 0]).affinity([0]).no_new_privs();
        command.limit(libc::RLIMIT_CORE, Some(1), Some(2)).limit(libc::RLIMIT_STACK, Some(4 << 20), None);
        command.limit(libc::RLIMIT_NOFILE, Some(40), Some(50)).limit(libc::RLIMIT_FSIZE, Some(1 << 30), Some(1 << 40));
        let child = state(&mut command);
        assert_eq!(child.umask, "0007");
        assert_eq!((known(&child.nice), known(&child.oom_score_adj).as_str()), (&7, "321"));
        assert_eq!((known(&child.affinity), known(&child.no_new_privs)), (&vec![0], &true));
        let limit = |name: &str| *known(&child.rlimits[name]);
        assert_eq!(limit("core"), Limit { soft: 1, hard: 2 });
        assert_eq!(limit("stack"), Limit { soft: 4 << 20, hard: u64::MAX });
        assert_eq!(limit("nofile"), Limit { soft: 40, hard: 50 });
        assert_eq!(limit("fsize"), Limit { soft: 1 << 30, hard: 1 << 40 });
        assert_eq!(child.sid, own.sid, "no new session by default");
    };

    scheduling_policies_are_set [steps under No]: |launcher| {
        for (policy, name) in [(3, "SCHED_BATCH"), (5, "SCHED_IDLE"), (0, "SCHED_OTHER")] {
            let child = state(launcher.oracle().scheduler(policy, 0));
            assert_eq!(known(&child.scheduler).policy, name);
        }
    };

    real_time_policies_are_set_or_refused [steps under No]: |launcher| {
        for (policy, name) in [(libc::SCHED_FIFO, "SCHED_FIFO"), (libc::SCHED_RR, "SCHED_RR")] {
            let mut command = launcher.oracle();
            command.scheduler(policy as u32, 3);
            if may_be_real_time(policy) {
                let child = state(&mut command);
                let scheduler = known(&child.scheduler);
                assert_eq!((scheduler.policy.as_str(), scheduler.priority), (name, 3));
            } else {
                let error = command.refused("real-time policies are not permitted");
                assert_eq!((error.action(), error.errno()), (Some(command.action_count() - 1), Errno::EPERM));
            }
        }
    };

    sessions_and_process_groups_are_created_and_joined [exec under Docker]: |launcher| {
        let own = State::of_self();
        let child = state(launcher.oracle().setsid());
        assert_eq!((&child.sid, &child.pgid), (&child.pid, &child.pid));
        let child = state(launcher.oracle().process_group(0));
        assert_eq!((&child.sid, &child.pgid), (&own.sid, &child.pid));
        // The next child joins the group, so the group must exist by then.
        let mut leader = launcher.command("/bin/sleep");
        let mut leader = leader.arg("60").process_group(0).wait_for_exec(true).spawn().expect("starts");
        let member = state(launcher.oracle().process_group(leader.id() as i32));
        assert_eq!(known(&member.pgid), &(leader.id() as usize));
        leader.kill().expect("own child");
        leader.wait().expect("own child");
        let mut command = launcher.oracle();
        let error = command.setsid().process_group(0).refused("a session leader cannot change its group");
        assert_eq!((error.action(), error.errno()), (Some(command.action_count() - 1), Errno::EPERM));
    };

    controlling_terminals_are_set [steps under Docker]: |launcher| {
        let (_ours, theirs) = common::terminal();
        let number = theirs.as_raw_fd();
        let device = File::from(theirs.try_clone().expect("a copy")).metadata().expect("open").rdev();
        let child = state(launcher.oracle().setsid().descriptor(&theirs, 10).controlling_terminal(10).foreground(10));
        assert_eq!(known(&child.tty), &Some(device as i64), "{number}");
        assert_eq!(known(&child.tpgid).map(|group| group as usize), child.pgid.known().copied());
        let mut command = launcher.oracle();
        let error = command.descriptor(&theirs, 10).foreground(10).refused("not the session's terminal");
        assert_eq!((error.action(), error.errno()), (Some(command.action_count() - 1), Errno::ENOTTY));
    };

    signal_masks_and_dispositions_are_set [exec under No]: |launcher| {
        let usr1 = SignalSet::of(libc::SIGUSR1).expect("a signal");
        let child = state(launcher.oracle().signal_mask(SignalSet::ALL));
        // SIGKILL and SIGSTOP cannot be blocked.
        assert_eq!(known(&child.signal_mask).len(), 62);
        let child = state(launcher.oracle().signal_mask(usr1));
        assert_eq!(known(&child.signal_mask), &["SIGUSR1"]);
        // SAFETY: SIG_IGN installs no handler, and no process sends these signals here.
        unsafe {
            for signal in [libc::SIGUSR1, libc::SIGUSR2, libc::SIGPIPE, libc::SIGXFSZ] {
                libc::signal(signal, libc::SIG_IGN);
            }
        }
        let disposed = |command: &mut Command<'_>| {
            let child = state(command);
            ["SIGUSR1", "SIGUSR2", "SIGPIPE", "SIGXFSZ"].map(|name| known(&child.dispositions[name]) == "ignore")
        };
        assert_eq!(disposed(&mut launcher.oracle()), [true, true, false, true]);
        assert_eq!(disposed(launcher.oracle().default_signals(SignalSet::EMPTY)), [true; 4]);
        assert_eq!(disposed(launcher.oracle().default_signals(usr1)), [false, true, true, true]);
        assert_eq!(disposed(launcher.oracle().default_signals(SignalSet::ALL)), [false; 4]);
    };

    a_signal_ignored_after_it_had_a_handler_stays_ignored [steps under User]: |launcher| {
        extern "C" fn nothing(_: libc::c_int) {}
        // SAFETY: the handler does nothing, and no process sends SIGHUP here.
        unsafe { libc::signal(libc::SIGHUP, nothing as *const () as usize) };
        assert_eq!(known(&state(&mut launcher.oracle()).dispositions["SIGHUP"]), "default");
        // SAFETY: SIG_IGN installs no handler.
        unsafe { libc::signal(libc::SIGHUP, libc::SIG_IGN) };
        for _ in 0..10 {
            assert_eq!(known(&state(&mut launcher.oracle()).dispositions["SIGHUP"]), "ignore");
        }
    };

    a_parent_death_signal_is_set [authority under No]: |launcher| {
        if launcher.has_subreaper() {
            let error = launcher.oracle().parent_death_signal(libc::SIGURG).refused("not a child of this process");
            assert_eq!((error.stage(), error.errno()), (Stage::Tree, Errno::EINVAL), "{error}");
            return;
        }
        let child = state(launcher.oracle().parent_death_signal(libc::SIGURG));
        assert_eq!(known(&child.parent_death_signal), &libc::SIGURG);
        let mut command = launcher.command("/bin/sleep");
        let child = std::thread::scope(|scope| {
            let thread = scope.spawn(|| command.arg("60").parent_death_signal(libc::SIGTERM).spawn().expect("starts"));
            thread.join().expect("no panic")
        });
        let status = { child }.wait().expect("own child");
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(libc::SIGTERM));
    };

    a_seccomp_filter_is_installed [steps under Docker]: |launcher| {
        let own = State::of_self();
        let count = |state: &State| known(&state.seccomp_filters).as_ref().map(|text| text.parse::<u32>().expect("a number"));
        let child = state(launcher.oracle().no_new_privs().seccomp([ALLOW]));
        assert_eq!(known(&child.seccomp), "filter");
        assert_eq!(count(&child), count(&own).map(|count| count + 1));
        // The kernel refuses this filter.
        let bad = FilterInstruction { code: 0xffff, ..ALLOW };
        let error = launcher.oracle().no_new_privs().seccomp([bad]).refused("no program");
        assert_eq!((error.stage(), error.errno()), (Stage::Filter, Errno::EINVAL));
    };

    ids_and_groups_are_set [steps under No]: |launcher| {
        if !require_root() {
            return;
        }
        let directory = spawnfd_tests::scratch();
        let oracle = spawnfd_tests::copy_of_program("spawnfd-oracle", directory.path());
        let mut command = launcher.command(&oracle);
        command.stdin(Stdio::Null).groups([7, 8]).gid(1234).uid(4321);
        let death_signal = if launcher.has_subreaper() { 0 } else { libc::SIGURG };
        if death_signal != 0 {
            command.parent_death_signal(death_signal);
        }
        let child = state(&mut command);
        assert_eq!((known(&child.uids), known(&child.gids)), (&all_ids(4321), &all_ids(1234)));
        assert_eq!(known(&child.groups), &[7, 8]);
        assert_eq!(known(&child.capabilities["effective"]), &Vec::<String>::new());
        assert_eq!(known(&child.parent_death_signal), &death_signal, "a change of ids clears it");
        // When a child gives up root's ids, it also drops root's supplementary groups.
        // SAFETY: setgroups reads the array, and changes only this thread.
        unsafe {
            let groups = [0_u32, 3, 4];
            assert_eq!(libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()), 0);
        }
        let child = state(launcher.command(&oracle).stdin(Stdio::Null).gid(1234).uid(4321));
        assert_eq!(known(&child.groups), &Vec::<u32>::new());
        let mut command = launcher.command(&oracle);
        let child = state(command.stdin(Stdio::Null).group_ids(1, 2, u32::MAX).user_ids(u32::MAX, 5, 6));
        assert_eq!(known(&child.gids), &Uids { real: 1, effective: 2, saved: 2, fs: 2 });
        assert_eq!(known(&child.uids), &Uids { real: 0, effective: 5, saved: 5, fs: 5 }, "exec saves the effective id");
    };

    capability_sets_are_set [authority under No]: |launcher| {
        if !require_root() {
            return;
        }
        let directory = spawnfd_tests::scratch();
        let oracle = spawnfd_tests::copy_of_program("spawnfd-oracle", directory.path());
        let kill = 1 << 5;
        let some = capability_sets([kill, kill, kill, kill | 1, kill]);
        for user in [None, Some(4321)] {
            let mut command = launcher.command(&oracle);
            command.stdin(Stdio::Null);
            if let Some(user) = user {
                command.gid(user).uid(user);
            }
            let child = state(command.capabilities(some));
            let sets = ["inheritable", "ambient", "bounding"].map(|name| known(&child.capabilities[name]).join(" "));
            assert_eq!(sets, ["kill", "kill", "chown kill"], "{user:?}");
            // At exec, root gains all capabilities of its bounding set, unless it has no_new_privs.
            let promised = *known(&child.no_new_privs);
            let permitted = if user.is_some() || promised { "kill" } else { "chown kill" };
            let sets = ["permitted", "effective"].map(|name| known(&child.capabilities[name]).join(" "));
            assert_eq!(sets, [permitted; 2], "{user:?}");
        }
    };

    namespaces_are_created_and_joined [steps under No]: |launcher| {
        if !require_root() || !spawnfd_tests::require_syscall("unshare") {
            return;
        }
        let own = State::of_self();
        let kinds = Namespaces::MOUNT | Namespaces::UTS | Namespaces::IPC | Namespaces::PID | Namespaces::NET;
        let child = state(launcher.oracle().namespaces(kinds | Namespaces::CGROUP));
        assert_eq!(known(&child.pid), &1);
        let (theirs, ours) = (known(&child.namespaces), known(&own.namespaces));
        for name in ["mnt", "uts", "ipc", "net", "cgroup"] {
            assert_ne!(theirs[name], ours[name], "{name}");
        }
        assert_eq!(theirs["user"], ours["user"]);
        let hostname = File::open("/proc/self/ns/uts").expect("it exists");
        let child = state(launcher.oracle().namespaces(Namespaces::UTS).join_namespace(&hostname, 0));
        assert_eq!(known(&child.namespaces)["uts"], ours["uts"]);
        // The command joins several namespaces of another process at once, and only the requested
        // kinds.
        let mut holder = launcher.command("/bin/cat");
        holder.stdin(Stdio::Piped).namespaces(Namespaces::UTS | Namespaces::IPC | Namespaces::NET).wait_for_exec(true);
        let mut holder = holder.spawn().expect("starts");
        let theirs = ["uts", "ipc", "net"].map(|name| {
            let link = std::fs::read_link(format!("/proc/{}/ns/{name}", holder.id())).expect("alive");
            link.into_os_string().into_string().expect("text")
        });
        let kinds = (libc::CLONE_NEWUTS | libc::CLONE_NEWNET) as u32;
        let child = state(launcher.oracle().join_namespace(&holder, kinds));
        let seen = ["uts", "ipc", "net"].map(|name| known(&known(&child.namespaces)[name]));
        assert_eq!(seen, [&theirs[0], known(&ours["ipc"]), &theirs[2]]);
        assert_ne!(seen, ["uts", "ipc", "net"].map(|name| known(&ours[name])));
        drop(holder.stdin.take());
        common::wait_success(holder);
    };

    a_user_namespace_is_created [steps under User]: |launcher| {
        let mut command = launcher.oracle();
        let mut child = match command.stdout(Stdio::Piped).user_namespace(1000, 100).spawn() {
            Ok(child) => child,
            Err(error) => return skip(&format!("cannot create a user namespace: {error}")),
        };
        let json = std::io::read_to_string(child.stdout.take().expect("piped")).expect("own pipe");
        assert!(child.wait().expect("own child").success());
        let child = State::from_json(json.as_bytes());
        assert_eq!((known(&child.uids), known(&child.gids)), (&all_ids(1000), &all_ids(100)));
        let both = state(launcher.oracle().user_namespace(0, 0).namespaces(Namespaces::PID | Namespaces::NET));
        assert_eq!(known(&both.pid), &1);
    };

    the_root_directory_is_changed [authority under Docker]: |launcher| {
        if !require_root() {
            return;
        }
        let child = state(launcher.oracle().chroot("/"));
        assert_eq!(known(&child.root.path), "/");
        // In this root directory, the program and its libraries have the same paths as outside.
        if std::fs::canonicalize("/bin").is_ok_and(|bin| bin == Path::new("/usr/bin")) {
            let mut command = launcher.command("/bin/ls");
            let seen = output(command.args(["-A", "/"]).stdin(Stdio::Null).chroot("/usr"));
            let names = std::fs::read_dir("/usr").expect("it exists").map(|entry| entry.expect("it exists").file_name());
            let names: BTreeSet<_> = names.map(|name| name.into_string().expect("text")).collect();
            assert_eq!(seen.lines().map(str::to_owned).collect::<BTreeSet<_>>(), names);
        } else {
            skip("/bin is not /usr/bin: no other root has the same program");
        }
        if launcher == Launcher::ByDescriptor {
            return;
        }
        let directory = spawnfd_tests::scratch();
        let error = launcher.oracle().chroot(directory.path()).refused("the new root has no such program");
        assert_eq!((error.stage(), error.errno()), (Stage::Revalidate, Errno::ESTALE));
    };

    a_cgroup_is_joined [steps under No]: |launcher| {
        let Some(group) = common::Cgroup::new() else { return skip("no writable cgroup v2") };
        let dir = File::open(&group.0).expect("own directory");
        let name = group.0.file_name().expect("a name").to_string_lossy().into_owned();
        let child = state(launcher.oracle().cgroup(&dir));
        assert!(known(&child.cgroup).iter().any(|line| line.ends_with(&name)), "{:?}", child.cgroup);
        let error = launcher.oracle().cgroup(File::open("/tmp").expect("it exists")).refused("not a cgroup");
        assert!(matches!(error.stage(), Stage::Action(_)), "{error}");
    };

    a_landlock_ruleset_is_applied [authority under User]: |launcher| {
        use landlock::{ABI, Access, AccessFs, Ruleset, RulesetAttr, RulesetCreatedAttr, path_beneath_rules};
        if !spawnfd_tests::require_syscall("landlock_create_ruleset") {
            return;
        }
        let ruleset = Ruleset::default().handle_access(AccessFs::from_all(ABI::V1)).expect("known access rights").create();
        let readable = path_beneath_rules(["/usr", "/lib", "/lib64", "/bin"], AccessFs::from_read(ABI::V1));
        let ruleset: Option<OwnedFd> = ruleset.and_then(|set| set.add_rules(readable)).expect("a ruleset").into();
        let ruleset = ruleset.expect("this kernel has Landlock");
        let read = |command: &mut Command<'_>| {
            let script = "cat /etc/hostname >/dev/null 2>&1 && echo yes || echo no";
            output(command.args(["-c", script]).stderr(Stdio::Null))
        };
        assert_eq!(read(launcher.command("/bin/sh").no_new_privs()), "yes\n");
        assert_eq!(read(launcher.command("/bin/sh").no_new_privs().landlock(&ruleset)), "no\n");
        assert_eq!(read(&mut launcher.command("/bin/sh")), "yes\n", "the caller is not confined");
    };
}

/// Returns true if a thread with this thread's privileges can get the scheduling policy.
fn may_be_real_time(policy: i32) -> bool {
    let own = std::thread::spawn(move || {
        let parameters = libc::sched_param { sched_priority: 3 };
        // SAFETY: the call reads a struct, and changes only the thread that ends here.
        unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) == 0 }
    });
    own.join().expect("no panic")
}
