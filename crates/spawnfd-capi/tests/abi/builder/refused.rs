// SPDX-License-Identifier: MIT OR Apache-2.0
//! Actions that fail, that are invalid, or that the library does not support.

use super::*;

#[test]
fn the_first_failing_action_is_reported() {
    let scratch = Scratch::new();
    let builder = Builder::shell(c"exit 0");
    let missing = |number| with_fd(SPAWN_ACTION_CLOSE, i32::MAX - number);
    for failing in 0..5 {
        let mut actions: Vec<SpawnAction> =
            (0..5).map(|index| if index < failing { umask() } else { missing(index) }).collect();
        assert_eq!(builder.code(&actions), Err((EBADF, failing)));
        // Invalid actions are found before there is a child.
        actions[4].reserved = 1;
        assert_eq!(builder.code(&actions), Err((EINVAL, 4)));
    }
    // The child performs the actions before the failing one, and no action after it.
    let (first, second) = (scratch.c_path("first"), scratch.c_path("second"));
    let opens = [&first, &second].map(|path| open_of(path, libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY, 0o600));
    let actions = [open_action(AT_FDCWD, &opens[0], 9), missing(0), open_action(AT_FDCWD, &opens[1], 9)];
    assert_eq!(builder.code(&actions), Err((EBADF, 1)));
    assert!(scratch.path("first").exists() && !scratch.path("second").exists());
    assert_eq!(builder.code(&actions), Err((EEXIST, 0)));
    // Actions that the core refuses before there is a child.
    let backwards = [10u64, 5];
    let limit = with_data(SPAWN_ACTION_RLIMIT, libc::RLIMIT_CORE as i32, &backwards);
    assert_eq!(builder.code(&[umask(), limit]), Err((EINVAL, 1)));
    assert_eq!(builder.code(&[umask(), missing(1), limit]), Err((EBADF, 1)));
    assert_eq!(builder.code(&[chdir(c"/nonexistent"), limit]), Err((ENOENT, 0)));
    assert_eq!(builder.code(&[dup2(1, 1 << 30), limit, limit]), Err((EBADF, 0)));
    // Descriptors that are not open.
    let nowhere = 100_000;
    for bad in [
        dup2(nowhere, 5),
        dup2(nowhere, nowhere),
        with_fd(SPAWN_ACTION_FCHDIR, nowhere),
        open_action(nowhere, &open_of(c"x", 0, 0), 5),
        with_fd(SPAWN_ACTION_CTTY, nowhere),
        with_fd(SPAWN_ACTION_TCSETPGRP, nowhere),
        with_fd(SPAWN_ACTION_SETNS, nowhere),
        with_fd(SPAWN_ACTION_LANDLOCK, nowhere),
    ] {
        assert_eq!(builder.code(&[umask(), bad]), Err((EBADF, 1)), "{bad:?}");
    }
}

#[test]
fn invalid_actions_are_refused_in_both_places() {
    let builder = Builder::shell(c"exit 0");
    let (signals, text) = (0u64, c"/");
    let set = set_of(&signals);
    let wrong_size = SpawnSigset { sigsetsize: 128, ..set };
    let null_set = SpawnSigset { sigset: 0, ..set };
    let unknown_how = SpawnOpen { how: OpenHow { flags: 1 << 50, ..OpenHow::default() }, ..open_of(text, 0, 0) };
    let mode_without_create = open_of(text, 0, 0o600);
    let unknown_resolve = SpawnOpen { how: OpenHow { resolve: 1 << 40, ..OpenHow::default() }, ..open_of(text, 0, 0) };
    let null_path = SpawnOpen { path: 0, ..open_of(text, 0, 0) };
    let long = CString::new(vec![b'a'; 4096]).unwrap();
    let capabilities = SpawnCapabilities { ambient: 1 << 63, ..SpawnCapabilities::default() };
    let sched_attr =
        |size: u32, policy: i32, flags: u64| [u64::from(size) | (policy as u64) << 32, flags, 0, 0, 0, 0, 0];
    let short_attr = sched_attr(4, 0, 0);
    let long_attr = sched_attr(4097, 0, 0);
    let keep_attr = sched_attr(48, 0, 8);
    let negative_attr = sched_attr(48, -1, 0);
    let mut all: Vec<(SpawnAction, i32)> = Vec::new();
    let mut next = |action, errno| all.push((action, errno));
    for kind in [34, 255, 65536, u32::MAX] {
        next(action(kind), EINVAL);
    }
    for kind in 0..=SPAWN_ACTION_SECCOMP {
        next(SpawnAction { reserved: 1 << 63, ..action(kind) }, EINVAL);
    }
    for kind in [SPAWN_ACTION_SETSID, SPAWN_ACTION_NO_NEW_PRIVS, SPAWN_ACTION_KEEP_CAPS, SPAWN_ACTION_DENY_SETGROUPS] {
        for unused in [
            with_fd(kind, 1),
            SpawnAction { newfd: 1, ..action(kind) },
            with_arg(kind, 1),
            SpawnAction { flags: 1, ..action(kind) },
        ] {
            next(unused, EINVAL);
        }
    }
    next(SpawnAction { flags: 1, ..dup2(1, 5) }, EINVAL);
    next(SpawnAction { flags: O_CLOEXEC as u32, ..dup2(1, 1) }, EINVAL);
    next(SpawnAction { newfd: 9, ..with_fd(SPAWN_ACTION_CLOSE_RANGE, 10) }, EINVAL);
    next(SpawnAction { newfd: -2, ..with_fd(SPAWN_ACTION_CLOSE_RANGE, 10) }, EINVAL);
    next(SpawnAction { newfd: -1, flags: 2, ..with_fd(SPAWN_ACTION_CLOSE_RANGE, 10) }, EINVAL);
    for fd in [-1, -2, AT_FDCWD, i32::MIN] {
        for kind in [
            SPAWN_ACTION_CLOSE,
            SPAWN_ACTION_FCHDIR,
            SPAWN_ACTION_UMASK,
            SPAWN_ACTION_SETPGID,
            SPAWN_ACTION_PDEATHSIG,
            SPAWN_ACTION_TCSETPGRP,
            SPAWN_ACTION_CTTY,
            SPAWN_ACTION_SETNS,
            SPAWN_ACTION_LANDLOCK,
        ] {
            next(with_fd(kind, fd), EINVAL);
        }
        next(dup2(fd, 5), EINVAL);
        next(dup2(1, fd), EINVAL);
        next(open_action(AT_FDCWD, &null_path, fd), EINVAL);
        next(with_data(SPAWN_ACTION_SETGROUPS, fd, &signals), EINVAL);
        next(with_data(SPAWN_ACTION_AFFINITY, fd, &signals), EINVAL);
        next(with_data(SPAWN_ACTION_RLIMIT, fd, &signals), EINVAL);
    }
    next(with_fd(SPAWN_ACTION_UMASK, 0o1000), EINVAL);
    next(with_fd(SPAWN_ACTION_PDEATHSIG, 65), EINVAL);
    next(with_fd(SPAWN_ACTION_OOM_SCORE_ADJ, 1001), EINVAL);
    next(with_fd(SPAWN_ACTION_SCHEDULER, -2), EINVAL);
    next(SpawnAction { flags: 2, ..with_fd(SPAWN_ACTION_CTTY, 0) }, EINVAL);
    next(SpawnAction { flags: libc::CLONE_VM as u32, ..with_fd(SPAWN_ACTION_SETNS, 0) }, EINVAL);
    next(with_data(SPAWN_ACTION_RLIMIT, 16, &signals), EINVAL);
    next(with_data(SPAWN_ACTION_SETGROUPS, 65537, &signals), EINVAL);
    next(with_arg(SPAWN_ACTION_SETGROUPS, address(&signals)), EINVAL);
    next(SpawnAction { fd: -1, newfd: -1, ..with_arg(SPAWN_ACTION_SETRESUID, 1 << 32) }, EINVAL);
    next(with_data(SPAWN_ACTION_SECCOMP, 4097, &signals), EINVAL);
    next(with_arg(SPAWN_ACTION_SECCOMP, address(&signals)), EINVAL);
    next(SpawnAction { fd: 1, flags: 1, ..with_arg(SPAWN_ACTION_SECCOMP, address(&signals)) }, EINVAL);
    for kind in [SPAWN_ACTION_SIGMASK, SPAWN_ACTION_SIGDEFAULT, SPAWN_ACTION_SIGIGNORE] {
        next(with_arg(kind, address(&wrong_size)), EINVAL);
        next(with_arg(kind, address(&null_set)), EFAULT);
        next(action(kind), EFAULT);
    }
    for open in [&unknown_how, &mode_without_create, &unknown_resolve] {
        next(open_action(AT_FDCWD, open, 5), EINVAL);
    }
    next(open_action(AT_FDCWD, &null_path, 5), EFAULT);
    next(chdir(&long), ENAMETOOLONG);
    next(with_arg(SPAWN_ACTION_CAPABILITIES, address(&capabilities)), EINVAL);
    next(with_arg(SPAWN_ACTION_SCHED_ATTR, address(&short_attr)), E2BIG);
    next(with_arg(SPAWN_ACTION_SCHED_ATTR, address(&long_attr)), E2BIG);
    next(with_arg(SPAWN_ACTION_SCHED_ATTR, address(&keep_attr)), EINVAL);
    next(with_arg(SPAWN_ACTION_SCHED_ATTR, address(&negative_attr)), EINVAL);
    for kind in [
        SPAWN_ACTION_CHDIR,
        SPAWN_ACTION_CHROOT,
        SPAWN_ACTION_UID_MAP,
        SPAWN_ACTION_GID_MAP,
        SPAWN_ACTION_RLIMIT,
        SPAWN_ACTION_SCHED_ATTR,
        SPAWN_ACTION_CAPABILITIES,
    ] {
        next(action(kind), EFAULT);
    }
    for (bad, errno) in all {
        assert_eq!(builder.actions(&[umask(), bad]), Err((errno, 1)), "{bad:?}");
        assert_eq!(builder.code(&[umask(), bad]), Err((errno, 1)), "{bad:?}");
    }
}

#[test]
fn runs_that_the_core_cannot_express_are_unsupported() {
    let builder = Builder::shell(c"exit 0");
    let root = open_of(c"/", O_DIRECTORY, 0);
    let file = open_of(c"dev/null", 0, 0);
    let opened = open_action(AT_FDCWD, &root, 20);
    let (reset, extended) = ([48u64, 1, 0, 0, 0, 0], [48u64 | 6 << 32, 0, 0, 1, 1, 1]);
    let unsupported = Err((EOPNOTSUPP, SPAWN_FAILED_SETUP));
    for actions in [
        &[opened, with_fd(SPAWN_ACTION_FCHDIR, 20)][..],
        &[opened, dup2(20, 21), open_action(21, &file, 22)],
        &[with_arg(SPAWN_ACTION_SCHED_ATTR, address(&reset))],
        &[with_arg(SPAWN_ACTION_SCHED_ATTR, address(&extended))],
        &[with_fd(SPAWN_ACTION_SCHEDULER, libc::SCHED_RESET_ON_FORK)],
        &[with_fd(SPAWN_ACTION_SCHEDULER, 7)],
    ] {
        assert_eq!(builder.code(actions), unsupported, "{actions:?}");
    }
    // An earlier action that is certain to fail is reported first.
    assert_eq!(
        builder.code(&[with_fd(SPAWN_ACTION_CLOSE, i32::MAX), opened, with_fd(SPAWN_ACTION_FCHDIR, 20)]),
        Err((EBADF, 0))
    );
}
