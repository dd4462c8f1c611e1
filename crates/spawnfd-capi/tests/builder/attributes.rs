// SPDX-License-Identifier: MIT OR Apache-2.0
//! Actions that change signals, ids, limits and other attributes of the process.

use super::support::*;

#[test]
fn signals_are_set() {
    // Not by the shell, which may unblock signals.
    let builder = Builder::open();
    builder.path(c"/bin/grep");
    builder.argv(&[c"grep", c"-E", c"Sig(Blk|Ign)", c"/proc/self/status"]);
    let bit = |signal: i32| 1u64 << (signal - 1);
    let (user, pipe, all, none) = (bit(libc::SIGUSR1), bit(libc::SIGPIPE), u64::MAX, 0);
    let (user, pipe, all, none) = (set_of(&user), set_of(&pipe), set_of(&all), set_of(&none));
    let set = |kind, set: &SpawnSigset| with_arg(kind, address(set));
    let states = |actions: &[SpawnAction]| {
        let output = builder.output(actions).unwrap();
        let mut words = output.lines().map(|line| u64::from_str_radix(line.split('\t').nth(1).unwrap(), 16).unwrap());
        (words.next().unwrap(), words.next().unwrap())
    };
    // The program inherits ignored signals. Rust's runtime ignores SIGPIPE.
    let own = std::fs::read_to_string("/proc/self/status").unwrap();
    let own = own.lines().find_map(|line| line.strip_prefix("SigIgn:\t")).unwrap();
    let own = u64::from_str_radix(own, 16).unwrap();
    assert!(own & bit(libc::SIGPIPE) != 0 && own & bit(libc::SIGUSR1) == 0);
    assert_eq!(states(&[]), (0, own));
    assert_eq!(states(&[set(SPAWN_ACTION_SIGMASK, &user)]), (bit(libc::SIGUSR1), own));
    assert_eq!(states(&[set(SPAWN_ACTION_SIGMASK, &user), set(SPAWN_ACTION_SIGMASK, &none)]).0, 0);
    let unblockable = bit(libc::SIGKILL) | bit(libc::SIGSTOP);
    assert_eq!(states(&[set(SPAWN_ACTION_SIGMASK, &all)]).0, !unblockable);
    assert_eq!(states(&[set(SPAWN_ACTION_SIGDEFAULT, &all)]).1, 0);
    assert_eq!(states(&[set(SPAWN_ACTION_SIGDEFAULT, &user)]).1, own);
    // The last of two actions counts.
    let (default, ignore) = (set(SPAWN_ACTION_SIGDEFAULT, &pipe), set(SPAWN_ACTION_SIGIGNORE, &pipe));
    assert_eq!(states(&[default, ignore]).1, own);
    assert_eq!(states(&[ignore, default]).1, own & !bit(libc::SIGPIPE));
    assert_eq!(states(&[set(SPAWN_ACTION_SIGIGNORE, &user), set(SPAWN_ACTION_SIGDEFAULT, &all)]).1, 0);
    let unsupported = Err((EOPNOTSUPP, SPAWN_FAILED_SETUP));
    assert_eq!(builder.code(&[set(SPAWN_ACTION_SIGIGNORE, &user)]), unsupported);
}

#[test]
fn process_attributes_are_set() {
    let builder = Builder::shell(
        c"cat /proc/$$/stat; umask; ulimit -n; grep NoNewPrivs /proc/$$/status; cat /proc/$$/oom_score_adj",
    );
    assert_eq!(builder.strings(PIDFD_CONFIG_KEY_ENVP, &[c"PATH=/usr/bin:/bin"]), Ok(()));
    let limit = [64u64, 128];
    let batch = [48u64 | 3 << 32, 0, 5, 0, 0, 0];
    let cpu = 1u64;
    let actions = [
        action(SPAWN_ACTION_SETSID),
        with_fd(SPAWN_ACTION_UMASK, 0o123),
        SpawnAction { fd: libc::RLIMIT_NOFILE as i32, ..with_arg(SPAWN_ACTION_RLIMIT, address(&limit)) },
        action(SPAWN_ACTION_NO_NEW_PRIVS),
        with_arg(SPAWN_ACTION_SCHED_ATTR, address(&batch)),
        with_fd(SPAWN_ACTION_OOM_SCORE_ADJ, 500),
        SpawnAction { fd: 8, ..with_arg(SPAWN_ACTION_AFFINITY, address(&cpu)) },
        with_fd(SPAWN_ACTION_PDEATHSIG, libc::SIGKILL),
    ];
    let output = builder.output(&actions).unwrap();
    let lines: Vec<&str> = output.lines().collect();
    let stat: Vec<&str> = lines[0].split(' ').collect();
    assert_eq!((stat[0], stat[0]), (stat[4], stat[5]), "process group and session");
    assert_eq!((stat[18], stat[40]), ("5", "3"), "nice value and policy");
    assert_eq!(&lines[1..], ["0123", "64", "NoNewPrivs:\t1", "500"]);
    // Nice values are limited to the range that the kernel has.
    let nice =
        |value| builder.output(&[with_fd(SPAWN_ACTION_NICE, value)]).unwrap().split(' ').nth(18).unwrap().to_owned();
    assert_eq!((nice(7), nice(1000)), ("7".into(), "19".into()));
    let idle = SpawnAction { newfd: 0, ..with_fd(SPAWN_ACTION_SCHEDULER, libc::SCHED_IDLE) };
    let unchanged = with_fd(SPAWN_ACTION_SCHEDULER, -1);
    for actions in [&[idle][..], &[idle, unchanged]] {
        assert_eq!(builder.output(actions).unwrap().split(' ').nth(40), Some("5"));
    }
    // Errors of these actions.
    let (backwards, no_cpu, odd) = ([10u64, 5], 0u64, [48u64 | 99 << 32, 0, 0, 0, 0, 0]);
    let affinity = SpawnAction { fd: 8, ..with_arg(SPAWN_ACTION_AFFINITY, address(&no_cpu)) };
    let limit = SpawnAction { fd: 7, ..with_arg(SPAWN_ACTION_RLIMIT, address(&backwards)) };
    let real_time = SpawnAction { newfd: 100, ..with_fd(SPAWN_ACTION_SCHEDULER, libc::SCHED_FIFO) };
    let policy = with_arg(SPAWN_ACTION_SCHED_ATTR, address(&odd));
    for bad in [affinity, limit, real_time, policy, with_fd(SPAWN_ACTION_SCHEDULER, 6)] {
        assert_eq!(builder.code(&[umask(), bad]), Err((EINVAL, 1)), "{bad:?}");
    }
    let (setsid, setpgid) = (action(SPAWN_ACTION_SETSID), action(SPAWN_ACTION_SETPGID));
    for (first, second) in [(setsid, setsid), (setsid, setpgid), (setpgid, setsid)] {
        assert_eq!(builder.code(&[first, second]), Err((EPERM, 1)));
    }
    assert_eq!(builder.code(&[with_fd(SPAWN_ACTION_SETPGID, 1 << 22)]), Err((EPERM, 0)));
    // A limit of an action applies to later actions.
    assert_eq!(builder.code(&[actions[2], dup2(1, 64)]), Err((EBADF, 1)));
    assert_eq!(builder.code(&[actions[2], dup2(1, 63)]), Ok(0));
}

#[test]
fn ids_change_in_order() {
    if !is_root() {
        return;
    }
    // Not by the shell, which may set the effective ids to the real ones.
    let builder = Builder::open();
    builder.path(c"/bin/grep");
    builder.argv(&[c"grep", c"-E", c"^(Uid|Gid|Groups|CapEff|CapPrm)", c"/proc/self/status"]);
    let groups = [5u32, 6, 70000];
    let set_groups = SpawnAction { fd: 3, ..with_arg(SPAWN_ACTION_SETGROUPS, address(&groups)) };
    let group = SpawnAction { fd: 1, newfd: 2, ..with_arg(SPAWN_ACTION_SETRESGID, 3) };
    let user = SpawnAction { fd: 4, newfd: 5, ..with_arg(SPAWN_ACTION_SETRESUID, 6) };
    let output = builder.output(&[set_groups, group, user]).unwrap();
    assert!(output.contains("Uid:\t4\t5\t5\t5\n") && output.contains("Gid:\t1\t2\t2\t2\n"), "{output}");
    assert!(output.contains("Groups:\t5 6 70000"), "{output}");
    // A change of user ids alone keeps the groups.
    let own = builder.output(&[]).unwrap();
    let line = |output: &str, name: &str| output.lines().find(|line| line.starts_with(name)).unwrap().trim().to_owned();
    let output = builder.output(&[ids(SPAWN_ACTION_SETRESUID, 1000)]).unwrap();
    assert_eq!(line(&output, "Groups"), line(&own, "Groups"));
    assert_eq!(
        (line(&output, "CapEff"), line(&output, "CapPrm")),
        ("CapEff:\t0000000000000000".into(), "CapPrm:\t0000000000000000".into())
    );
    for unchanged in [u64::MAX, u64::from(u32::MAX)] {
        let none = SpawnAction { fd: -1, newfd: -1, ..with_arg(SPAWN_ACTION_SETRESUID, unchanged) };
        assert_eq!(builder.output(&[none]), Ok(own.clone()));
    }
    // Without root, the child may not change ids.
    let first = ids(SPAWN_ACTION_SETRESUID, 1000);
    for second in [ids(SPAWN_ACTION_SETRESGID, 1000), set_groups, ids(SPAWN_ACTION_SETRESUID, 0)] {
        assert_eq!(builder.code(&[first, second]), Err((EPERM, 1)));
    }
    let no_groups = action(SPAWN_ACTION_SETGROUPS);
    assert_eq!(line(&builder.output(&[no_groups]).unwrap(), "Groups"), "Groups:");
}

#[test]
fn capabilities_are_set() {
    if !is_root() {
        return;
    }
    let builder = Builder::shell(c"grep -E '^Cap(Eff|Bnd|Amb)' /proc/self/status");
    assert_eq!(builder.strings(PIDFD_CONFIG_KEY_ENVP, &[c"PATH=/usr/bin:/bin"]), Ok(()));
    const KILL: u64 = 1 << 5;
    let sets = SpawnCapabilities { effective: KILL, permitted: KILL, inheritable: KILL, bounding: KILL, ambient: KILL };
    let capabilities = with_arg(SPAWN_ACTION_CAPABILITIES, address(&sets));
    let user = ids(SPAWN_ACTION_SETRESUID, 1000);
    let expected = "CapEff:\t0000000000000020\nCapBnd:\t0000000000000020\nCapAmb:\t0000000000000020\n";
    assert_eq!(builder.output(&[action(SPAWN_ACTION_KEEP_CAPS), user, capabilities]), Ok(expected.into()));
    assert_eq!(builder.output(&[capabilities]), Ok(expected.into()));
    assert!(builder.output(&[action(SPAWN_ACTION_KEEP_CAPS)]).is_ok());
    let unsupported = Err((EOPNOTSUPP, SPAWN_FAILED_SETUP));
    assert_eq!(builder.code(&[action(SPAWN_ACTION_KEEP_CAPS), user]), unsupported);
    let more = SpawnCapabilities { permitted: 0, ..sets };
    let refused = with_arg(SPAWN_ACTION_CAPABILITIES, address(&more));
    assert_eq!(builder.code(&[umask(), refused]), Err((EPERM, 1)));
}

#[test]
fn the_child_starts_in_new_namespaces() {
    if !has_cap_sys_admin() {
        return;
    }
    let builder = Builder::shell(c"echo $$");
    assert_eq!(builder.namespaces(libc::CLONE_NEWPID | libc::CLONE_NEWUTS | libc::CLONE_NEWIPC), Ok(()));
    assert_eq!(builder.output(&[]), Ok("1\n".into()));
    // A namespace of the caller.
    let own = file("/proc/self/ns/uts");
    let join = SpawnAction { flags: libc::CLONE_NEWUTS as u32, ..with_fd(SPAWN_ACTION_SETNS, own.as_raw_fd()) };
    assert_eq!(builder.code(&[join]), Ok(0));
    let wrong = SpawnAction { flags: libc::CLONE_NEWIPC as u32, ..join };
    assert_eq!(builder.code(&[umask(), wrong]), Err((EINVAL, 1)));
    let root = with_text(SPAWN_ACTION_CHROOT, c"/");
    assert_eq!(builder.code(&[root]), Ok(0));
    assert_eq!(builder.code(&[with_text(SPAWN_ACTION_CHROOT, c"/nonexistent")]), Err((ENOENT, 0)));
    // A user namespace with its maps.
    let map = |id: u32| CString::new(format!("7 {id} 1\n")).unwrap();
    // SAFETY: geteuid and getegid have no requirements.
    let (users, groups) = unsafe { (map(libc::geteuid()), map(libc::getegid())) };
    let deny = action(SPAWN_ACTION_DENY_SETGROUPS);
    let (users, groups) = (with_text(SPAWN_ACTION_UID_MAP, &users), with_text(SPAWN_ACTION_GID_MAP, &groups));
    let builder = Builder::shell(c"id -u; id -g");
    assert_eq!(builder.strings(PIDFD_CONFIG_KEY_ENVP, &[c"PATH=/usr/bin:/bin"]), Ok(()));
    assert_eq!(builder.namespaces(libc::CLONE_NEWUSER), Ok(()));
    for maps in [[deny, users, groups], [users, deny, groups], [deny, groups, users]] {
        assert_eq!(builder.actions(&maps), Ok(()));
        let mut args = args_of(&[]);
        let pidfd = call_run(builder.0, &mut args);
        match pidfd {
            Ok(pidfd) => assert_eq!(reap(&owned(pidfd)), 0),
            Err(errno) => assert_eq!((errno, args.failed), (EPERM, SPAWN_FAILED_SETUP), "user namespaces are disabled"),
        }
    }
    let unsupported = Err((EOPNOTSUPP, SPAWN_FAILED_SETUP));
    assert_eq!(builder.actions(&[deny, users]), Ok(()));
    assert_eq!(builder.code(&[]), unsupported);
    assert_eq!(builder.actions(&[groups, deny, users]), Ok(()));
    assert_eq!(builder.code(&[]), unsupported);
    assert_eq!(builder.reset(PIDFD_CONFIG_KEY_NAMESPACES), Ok(()));
    assert_eq!(builder.code(&[]), unsupported);
    assert_eq!(builder.reset(PIDFD_CONFIG_KEY_ACTIONS), Ok(()));
    assert_eq!(builder.namespaces(0x80), Ok(()));
    assert_eq!(builder.code(&[]), unsupported);
}

#[test]
fn the_child_starts_in_a_cgroup() {
    let builder = Builder::shell(c"cat /proc/self/cgroup");
    assert_eq!(builder.strings(PIDFD_CONFIG_KEY_ENVP, &[c"PATH=/usr/bin:/bin"]), Ok(()));
    assert_eq!(builder.fd(PIDFD_CONFIG_KEY_CGROUP, 1 << 20), Ok(()));
    assert_eq!(builder.code(&[]), Err((EBADF, SPAWN_FAILED_SETUP)));
    let null = file("/dev/null");
    assert_eq!(builder.fd(PIDFD_CONFIG_KEY_CGROUP, null.as_raw_fd()), Ok(()));
    assert_eq!(builder.code(&[]), Err((EBADF, SPAWN_FAILED_SETUP)));
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
    let Some(mount) = mounts.lines().find(|line| line.split(' ').nth(2) == Some("cgroup2")) else { return };
    let name = format!("spawnfd-builder-{}", std::process::id());
    let path = Path::new(mount.split(' ').nth(1).unwrap()).join(&name);
    if !is_root() || std::fs::create_dir(&path).is_err() {
        return;
    }
    let cgroup = directory(path.to_str().unwrap());
    assert_eq!(builder.fd(PIDFD_CONFIG_KEY_CGROUP, cgroup.as_raw_fd()), Ok(()));
    let output = builder.output(&[]);
    std::fs::remove_dir(&path).unwrap();
    assert!(output.unwrap().lines().any(|line| line == format!("0::/{name}")));
}

#[test]
fn a_terminal_becomes_the_controlling_terminal() {
    // SAFETY: the calls get a valid descriptor, and a buffer of the given size.
    let (terminal, _master) = unsafe {
        let master = owned(libc::posix_openpt(libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC));
        assert_eq!((libc::grantpt(master.as_raw_fd()), libc::unlockpt(master.as_raw_fd())), (0, 0));
        let mut name = [0; 64];
        assert_eq!(libc::ptsname_r(master.as_raw_fd(), name.as_mut_ptr(), name.len()), 0);
        (owned(libc::open(name.as_ptr(), libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC)), master)
    };
    let number = terminal.as_raw_fd();
    let script = c"read -r pid name state parent group session tty foreground rest < /proc/$$/stat
        [ $tty -ne 0 ] && [ $foreground = $group ] && echo yes
        [ -e /proc/$$/fd/$0 ] && echo open
        :";
    let builder = Builder::shell(script);
    let text = CString::new(number.to_string()).unwrap();
    builder.argv(&[c"sh", c"-c", script, &text]);
    let (session, control) = (action(SPAWN_ACTION_SETSID), with_fd(SPAWN_ACTION_CTTY, number));
    let foreground = with_fd(SPAWN_ACTION_TCSETPGRP, number);
    assert_eq!(builder.output(&[session, control, foreground]), Ok("yes\n".into()));
    assert_eq!(builder.output(&[session, dup2(number, 0), with_fd(SPAWN_ACTION_CTTY, 0)]), Ok("yes\n".into()));
    assert!(builder.code(&[umask(), foreground]).is_err_and(|(errno, failed)| errno == libc::ENOTTY && failed == 1));
    let null = file("/dev/null");
    let wrong = with_fd(SPAWN_ACTION_CTTY, null.as_raw_fd());
    assert_eq!(builder.code(&[session, wrong]), Err((libc::ENOTTY, 1)));
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
    let filter =
        |program: &[u64]| SpawnAction { fd: program.len() as i32, ..with_arg(SPAWN_ACTION_SECCOMP, address(program)) };
    let builder = Builder::shell(c"cd / && exit 1; exit 7");
    let (no_chdir, no_exec) = (refuse(libc::SYS_chdir), refuse(libc::SYS_execve));
    let privileges = action(SPAWN_ACTION_NO_NEW_PRIVS);
    assert_eq!(builder.code(&[privileges, filter(&no_chdir)]), Ok(7));
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

#[test]
fn a_ruleset_restricts_the_program() {
    let scratch = Scratch::new();
    scratch.write("file", "text", 0o644);
    // LANDLOCK_ACCESS_FS_MAKE_REG: only programs that create files are affected.
    let handled = 1u64 << 8;
    // SAFETY: the attributes are valid for reads of 8 bytes.
    let ruleset = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, &handled, 8usize, 0) };
    if ruleset < 0 {
        return;
    }
    let ruleset = owned(ruleset as i32);
    let builder = Builder::shell(c": < file && : > new");
    let path = scratch.c_path("");
    let actions =
        [action(SPAWN_ACTION_NO_NEW_PRIVS), chdir(&path), with_fd(SPAWN_ACTION_LANDLOCK, ruleset.as_raw_fd())];
    assert_eq!(builder.code(&actions), Ok(2));
    assert_eq!(builder.code(&actions[..2]), Ok(0));
    let null = file("/dev/null");
    assert_eq!(builder.code(&[actions[0], with_fd(SPAWN_ACTION_LANDLOCK, null.as_raw_fd())]), Err((libc::EBADFD, 1)));
}
