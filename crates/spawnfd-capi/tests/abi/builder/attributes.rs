// SPDX-License-Identifier: MIT OR Apache-2.0
//! Actions that change signals, ids, limits and other attributes of the process.

use super::*;

#[test]
fn the_last_action_on_a_signal_counts() {
    let builder = Builder::shell(c"");
    let bit = |signal: i32| 1u64 << (signal - 1);
    let (user, pipe, all, none) = (bit(libc::SIGUSR1), bit(libc::SIGPIPE), u64::MAX, 0);
    let (user, pipe, all, none) = (set_of(&user), set_of(&pipe), set_of(&all), set_of(&none));
    let set = |kind, set: &SpawnSigset| with_arg(kind, address(set));
    let (mask, default, ignore) = (SPAWN_ACTION_SIGMASK, SPAWN_ACTION_SIGDEFAULT, SPAWN_ACTION_SIGIGNORE);
    // SIGKILL and SIGSTOP are left out. The program inherits ignored signals, and Rust's runtime ignores SIGPIPE.
    for (actions, expected) in [
        (&[set(mask, &user), set(mask, &none)][..], &["sigprocmask(0x0)"][..]),
        (&[set(mask, &all)], &["sigprocmask(0xfffffffffffbfeff)"]),
        (&[set(default, &all)], &["default_signals(0xfffffffffffbfeff)"]),
        (&[set(default, &pipe), set(ignore, &pipe)], &[]),
        (&[set(ignore, &pipe), set(default, &pipe)], &["default_signals(0x1000)"]),
        (&[set(ignore, &user), set(default, &user)], &["default_signals(0x200)"]),
    ] {
        assert_eq!(builder.plan(actions), expected);
    }
    assert_eq!(builder.code(&[set(ignore, &user)]), Err((EOPNOTSUPP, SPAWN_FAILED_SETUP)));
}

#[test]
fn each_action_results_in_its_plan() {
    const KILL: u64 = 1 << 5;
    let (limit, batch, cpus, groups) = ([64u64, 128], [48u64 | 3 << 32, 0, 5, 0, 0, 0], 5u64, [5u32, 6, 70000]);
    let sets = SpawnCapabilities { effective: 0, permitted: KILL, inheritable: KILL, bounding: 1, ambient: KILL };
    let (signals, filter, text) = (0x201u64, [6u64 | 0x7fff_0000 << 32], c"/dir");
    let (set, open) = (set_of(&signals), open_of(text, libc::O_CREAT, 0o600));
    let fd = |fd, action| SpawnAction { fd, ..action };
    let newfd = |newfd, action| SpawnAction { newfd, ..action };
    let null = file("/dev/null");
    let number = null.as_raw_fd();
    let builder = Builder::shell(c"");
    for (action, expected) in [
        (with_fd(SPAWN_ACTION_CLOSE, 1), "close(1)"),
        (dup2(1, 5), "dup2(1, 5)"),
        (with_fd(SPAWN_ACTION_FCHDIR, number), &format!("fchdir({number})")),
        (open_action(AT_FDCWD, &open, 7), "open(\"/dir\", 0o100, 0o600) as 7"),
        (newfd(-1, with_fd(SPAWN_ACTION_CLOSE_RANGE, 5)), "close_range(5, 2147483647)"),
        (with_arg(SPAWN_ACTION_SIGMASK, address(&set)), "sigprocmask(0x201)"),
        (with_arg(SPAWN_ACTION_SIGDEFAULT, address(&set)), "default_signals(0x201)"),
        (chdir(text), "chdir(\"/dir\")"),
        (action(SPAWN_ACTION_SETSID), "setsid()"),
        (action(SPAWN_ACTION_SETPGID), "setpgid(0, 0)"),
        (with_fd(SPAWN_ACTION_UMASK, 0o123), "umask(0o123)"),
        (fd(7, with_arg(SPAWN_ACTION_RLIMIT, address(&limit))), "setrlimit(7, {64, 128})"),
        (fd(3, with_arg(SPAWN_ACTION_SETGROUPS, address(&groups))), "setgroups([5, 6, 70000])"),
        (action(SPAWN_ACTION_SETGROUPS), "setgroups([])"),
        (newfd(2, fd(1, with_arg(SPAWN_ACTION_SETRESGID, 3))), "setresgid(1, 2, 3)"),
        (newfd(5, fd(4, with_arg(SPAWN_ACTION_SETRESUID, 6))), "setresuid(4, 5, 6)"),
        (newfd(-1, fd(-1, with_arg(SPAWN_ACTION_SETRESUID, u64::MAX))), "setresuid(-1, -1, -1)"),
        (newfd(-1, fd(-1, with_arg(SPAWN_ACTION_SETRESUID, u32::MAX.into()))), "setresuid(-1, -1, -1)"),
        (action(SPAWN_ACTION_NO_NEW_PRIVS), "prctl(PR_SET_NO_NEW_PRIVS, 1)"),
        (with_fd(SPAWN_ACTION_PDEATHSIG, libc::SIGKILL), "prctl(PR_SET_PDEATHSIG, 9)"),
        (with_arg(SPAWN_ACTION_SCHED_ATTR, address(&batch)), "sched_setscheduler(3, 0)"),
        (with_arg(SPAWN_ACTION_SCHED_ATTR, address(&batch)), "setpriority(5)"),
        (fd(8, with_arg(SPAWN_ACTION_AFFINITY, address(&cpus))), "sched_setaffinity([0, 2])"),
        (with_text(SPAWN_ACTION_CHROOT, text), "chroot(\"/dir\")"),
        (with_fd(SPAWN_ACTION_CTTY, number), &format!("ioctl({number}, TIOCSCTTY)")),
        (with_fd(SPAWN_ACTION_TCSETPGRP, number), &format!("tcsetpgrp({number})")),
        // Nice values are limited to the range that the kernel has.
        (with_fd(SPAWN_ACTION_NICE, 7), "setpriority(7)"),
        (with_fd(SPAWN_ACTION_NICE, 1000), "setpriority(19)"),
        (newfd(3, with_fd(SPAWN_ACTION_SCHEDULER, libc::SCHED_FIFO)), "sched_setscheduler(1, 3)"),
        (with_fd(SPAWN_ACTION_OOM_SCORE_ADJ, 500), "oom_score_adj(500)"),
        (with_arg(SPAWN_ACTION_CAPABILITIES, address(&sets)), "capset(0x0, 0x20, 0x20), bounding 0x1, ambient 0x20"),
        (
            SpawnAction { flags: libc::CLONE_NEWUTS as u32, ..with_fd(SPAWN_ACTION_SETNS, number) },
            &format!("setns({number}, 0x4000000)"),
        ),
        (with_fd(SPAWN_ACTION_LANDLOCK, number), &format!("landlock_restrict_self({number})")),
        (fd(1, with_arg(SPAWN_ACTION_SECCOMP, address(&filter))), "seccomp(1 instructions)"),
    ] {
        let lines = builder.plan(&[action]);
        assert!(lines.iter().any(|line| line == expected), "{expected}: {lines:?}");
    }
    // A policy of -1 is that of an earlier action.
    let idle = with_fd(SPAWN_ACTION_SCHEDULER, libc::SCHED_IDLE);
    let lines = builder.plan(&[idle, with_fd(SPAWN_ACTION_SCHEDULER, -1)]);
    assert_eq!(lines, ["sched_setscheduler(5, 0)"; 2]);
    // A change of user ids alone keeps the groups.
    if is_root() {
        let mut groups = vec![0; 1 << 16];
        let count = call::groups(&mut groups).unwrap();
        groups.truncate(count);
        let lines = builder.plan(&[ids(SPAWN_ACTION_SETRESUID, 1000)]);
        assert_eq!(lines, [format!("setgroups({groups:?})"), "setresuid(1000, 1000, 1000)".to_owned()]);
    }
}

#[test]
fn the_child_refuses_attributes() {
    let builder = Builder::shell(c"exit 0");
    let (backwards, no_cpu, odd) = ([10u64, 5], 0u64, [48u64 | 99 << 32, 0, 0, 0, 0, 0]);
    let affinity = with_data(SPAWN_ACTION_AFFINITY, 8, &no_cpu);
    let limit = |limit: &[u64; 2]| with_data(SPAWN_ACTION_RLIMIT, 7, limit);
    let real_time = SpawnAction { newfd: 100, ..with_fd(SPAWN_ACTION_SCHEDULER, libc::SCHED_FIFO) };
    let policy = with_arg(SPAWN_ACTION_SCHED_ATTR, address(&odd));
    for bad in [affinity, limit(&backwards), real_time, policy, with_fd(SPAWN_ACTION_SCHEDULER, 6)] {
        assert_eq!(builder.code(&[umask(), bad]), Err((EINVAL, 1)), "{bad:?}");
    }
    let (setsid, setpgid) = (action(SPAWN_ACTION_SETSID), action(SPAWN_ACTION_SETPGID));
    for (first, second) in [(setsid, setsid), (setsid, setpgid), (setpgid, setsid)] {
        assert_eq!(builder.code(&[first, second]), Err((EPERM, 1)));
    }
    assert_eq!(builder.code(&[with_fd(SPAWN_ACTION_SETPGID, 1 << 22)]), Err((EPERM, 0)));
    // A limit of an action applies to later actions.
    let few = [64u64, 128];
    assert_eq!(builder.code(&[limit(&few), dup2(1, 64)]), Err((EBADF, 1)));
    assert_eq!(builder.code(&[limit(&few), dup2(1, 63)]), Ok(0));
    // Without root, the child may not change ids.
    if is_root() {
        let (groups, user) = ([5u32, 6], ids(SPAWN_ACTION_SETRESUID, 1000));
        let groups = with_data(SPAWN_ACTION_SETGROUPS, 2, &groups);
        for second in [ids(SPAWN_ACTION_SETRESGID, 1000), groups, ids(SPAWN_ACTION_SETRESUID, 0)] {
            assert_eq!(builder.code(&[user, second]), Err((EPERM, 1)));
        }
    }
}

#[test]
fn keep_caps_needs_a_later_change_of_capabilities() {
    const KILL: u64 = 1 << 5;
    let builder = Builder::shell(c"exit 0");
    let sets = SpawnCapabilities { effective: KILL, permitted: KILL, inheritable: KILL, bounding: KILL, ambient: KILL };
    let user = ids(SPAWN_ACTION_SETRESUID, 1000);
    let (capabilities, keep) = (with_arg(SPAWN_ACTION_CAPABILITIES, address(&sets)), action(SPAWN_ACTION_KEEP_CAPS));
    assert_eq!(builder.plan(&[keep]), [""; 0]);
    let lines = builder.plan(&[keep, user, capabilities]);
    assert_eq!(
        lines[lines.len() - 2..],
        ["setresuid(1000, 1000, 1000)", "capset(0x20, 0x20, 0x20), bounding 0x20, ambient 0x20"]
    );
    assert_eq!(builder.code(&[keep, user]), Err((EOPNOTSUPP, SPAWN_FAILED_SETUP)));
    let more = SpawnCapabilities { permitted: 0, ..sets };
    assert_eq!(builder.code(&[umask(), with_arg(SPAWN_ACTION_CAPABILITIES, address(&more))]), Err((EPERM, 1)));
}

#[test]
fn the_child_starts_in_new_namespaces_and_a_cgroup() {
    let builder = Builder::shell(c"exit 0");
    let kinds = libc::CLONE_NEWPID | libc::CLONE_NEWUTS | libc::CLONE_NEWIPC;
    assert_eq!(builder.namespaces(kinds), Ok(()));
    assert!(builder.whole_plan(&[]).contains(&format!("clone({kinds:#x})")));
    // A user namespace with its maps.
    let [_, user, _, _, group, _] = call::ids();
    let [users, groups] = [user, group].map(|id| CString::new(format!("7 {id} 1\n")).unwrap());
    let expected = format!("uid_map \"7 {user} 1\", gid_map \"7 {group} 1\"");
    let deny = action(SPAWN_ACTION_DENY_SETGROUPS);
    let (users, groups) = (with_text(SPAWN_ACTION_UID_MAP, &users), with_text(SPAWN_ACTION_GID_MAP, &groups));
    let unsupported = Err((EOPNOTSUPP, SPAWN_FAILED_SETUP));
    assert_eq!(builder.namespaces(libc::CLONE_NEWUSER), Ok(()));
    for maps in [[deny, users, groups], [users, deny, groups], [deny, groups, users]] {
        assert!(builder.whole_plan(&maps).contains(&expected));
    }
    for maps in [&[deny, users][..], &[groups, deny, users]] {
        assert_eq!(builder.code(maps), unsupported);
    }
    assert_eq!(builder.reset(PIDFD_CONFIG_KEY_NAMESPACES), Ok(()));
    assert_eq!(builder.code(&[deny, users, groups]), unsupported);
    assert_eq!(builder.namespaces(0x80), Ok(()));
    assert_eq!(builder.code(&[]), unsupported);
    assert_eq!(builder.namespaces(0), Ok(()));
    // A cgroup must be open, and be a directory of cgroup v2.
    let null = file("/dev/null");
    for number in [1 << 20, null.as_raw_fd()] {
        assert_eq!(builder.fd(PIDFD_CONFIG_KEY_CGROUP, number), Ok(()));
        assert_eq!(builder.code(&[]), Err((EBADF, SPAWN_FAILED_SETUP)));
    }
    assert!(builder.whole_plan(&[]).contains(&format!("cgroup({})", null.as_raw_fd())));
    let Some(own) = spawnfd::internal::own_cgroup().filter(|_| is_root()) else { return };
    let own = path_only(own.to_str().unwrap());
    assert_eq!(builder.fd(PIDFD_CONFIG_KEY_CGROUP, own.as_raw_fd()), Ok(()));
    assert_eq!(builder.code(&[]), Ok(0));
}

#[test]
fn an_action_finds_the_terminal_at_its_number() {
    let null = file("/dev/null");
    let number = null.as_raw_fd();
    let builder = Builder::shell(c"exit 0");
    let (session, control) = (action(SPAWN_ACTION_SETSID), with_fd(SPAWN_ACTION_CTTY, number));
    // The child has the descriptor at the caller's number until exec.
    let close = format!("close_range({number}, {number})");
    let placed = [format!("dup2({number}, {number})"), format!("ioctl({number}, TIOCSCTTY)"), close];
    assert_eq!(builder.plan(&[control]), placed);
    let copied = [format!("dup2({number}, 0)"), "ioctl(0, TIOCSCTTY)".to_owned()];
    assert_eq!(builder.plan(&[dup2(number, 0), with_fd(SPAWN_ACTION_CTTY, 0)]), copied);
    assert_eq!(builder.code(&[session, control]), Err((libc::ENOTTY, 1)));
    assert_eq!(builder.code(&[umask(), with_fd(SPAWN_ACTION_TCSETPGRP, number)]), Err((libc::ENOTTY, 1)));
    let steal = SpawnAction { flags: 1, ..control };
    assert_eq!(builder.code(&[session, steal]), Err((EOPNOTSUPP, SPAWN_FAILED_SETUP)));
}

#[test]
fn a_filter_applies_to_the_program() {
    // Instructions of classic BPF: load the number of the call, compare, return an action.
    let instruction = |code: u64, jt: u64, jf: u64, k: u64| code | jt << 16 | jf << 24 | k << 32;
    let refuse = |call: i64| {
        [
            instruction(0x20, 0, 0, 0),
            instruction(0x15, 0, 1, call as u64),
            instruction(0x06, 0, 0, 0x0005_0000 | libc::EXDEV as u64),
            instruction(0x06, 0, 0, 0x7fff_0000),
        ]
    };
    let filter = |program: &[u64]| with_data(SPAWN_ACTION_SECCOMP, program.len() as i32, program);
    let builder = Builder::shell(c"cd / && exit 1; exit 7");
    let (no_chdir, no_exec) = (refuse(libc::SYS_chdir), refuse(libc::SYS_execve));
    let privileges = action(SPAWN_ACTION_NO_NEW_PRIVS);
    // The filter does not apply to later actions.
    assert_eq!(builder.code(&[privileges, filter(&no_chdir), chdir(c"/")]), Ok(7));
    assert_eq!(builder.code(&[privileges, filter(&no_exec)]), Err((libc::EXDEV, SPAWN_FAILED_EXEC)));
    let invalid = [instruction(0xffff, 0, 0, 0)];
    assert_eq!(builder.code(&[privileges, umask(), filter(&invalid)]), Err((EINVAL, 2)));
    let unsupported = Err((EOPNOTSUPP, SPAWN_FAILED_SETUP));
    assert_eq!(builder.code(&[privileges, filter(&no_chdir), filter(&no_chdir)]), unsupported);
    let log = SpawnAction { flags: 2, ..filter(&no_chdir) };
    assert_eq!(builder.code(&[privileges, log]), unsupported);
}
