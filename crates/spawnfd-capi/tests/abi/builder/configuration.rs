// SPDX-License-Identifier: MIT OR Apache-2.0
//! Opening a builder, and its configuration.

use super::*;

#[test]
fn open_accepts_only_nonblock() {
    for bit in 0..32 {
        let flag = 1u32 << bit;
        match result(spawnfd_builder_open(flag)) {
            Ok(fd) => {
                let builder = owned(fd);
                let status = call::status_flags(builder.as_raw_fd()).unwrap();
                assert!(flag == O_NONBLOCK as u32 || flag == PIDFD_EMPTY, "{flag:#x}");
                assert_eq!((status & O_NONBLOCK) as u32, flag & O_NONBLOCK as u32);
                assert_eq!(descriptor_flags(fd), libc::FD_CLOEXEC);
            }
            Err(errno) => assert!(errno == EINVAL && flag != O_NONBLOCK as u32, "{flag:#x}"),
        }
    }
}

#[test]
fn refused_configurations_change_nothing() {
    let builder = Builder::shell(c"exit 5");
    let path = address(SHELL);
    let empty = address(c"");
    let one = [umask()];
    let list = list_of(&one);
    let list = address(&list);
    use {PIDFD_CONFIG_RESET as RESET, PIDFD_CONFIG_SET_ACTIONS as ACTIONS, PIDFD_CONFIG_SET_FD as FD};
    use {PIDFD_CONFIG_SET_FLAGS as FLAGS, PIDFD_CONFIG_SET_STRING as STRING, PIDFD_CONFIG_SET_STRINGS as STRINGS};
    for (cmd, key, value, aux, errno) in [
        // Unknown commands and keys, and keys of other commands.
        (6, PIDFD_CONFIG_KEY_PATH, path, 0, EINVAL),
        (u32::MAX, PIDFD_CONFIG_KEY_PATH, path, 0, EINVAL),
        (STRING, 11, path, 0, EINVAL),
        (STRING, u32::MAX, path, 0, EINVAL),
        (STRING, PIDFD_CONFIG_KEY_ALL, path, 0, EINVAL),
        (STRING, PIDFD_CONFIG_KEY_EXEC_FD, path, 0, EINVAL),
        (STRING, PIDFD_CONFIG_KEY_ARGV, path, 0, EINVAL),
        (STRING, PIDFD_CONFIG_KEY_NAMESPACES, path, 0, EINVAL),
        (FD, PIDFD_CONFIG_KEY_PATH, 0, 0, EINVAL),
        (STRINGS, PIDFD_CONFIG_KEY_ACTIONS, path, 0, EINVAL),
        (ACTIONS, PIDFD_CONFIG_KEY_ARGV, 0, 0, EINVAL),
        (FLAGS, PIDFD_CONFIG_KEY_PATH, 0, 0, EINVAL),
        (RESET, 11, 0, 0, EINVAL),
        // Unused arguments. The library checks them before the value.
        (RESET, PIDFD_CONFIG_KEY_PATH, path, 0, EINVAL),
        (RESET, PIDFD_CONFIG_KEY_PATH, 0, 1, EINVAL),
        (STRING, PIDFD_CONFIG_KEY_PATH, path, -1, EINVAL),
        (STRING, PIDFD_CONFIG_KEY_PATH, 0, 1, EINVAL),
        (STRING, PIDFD_CONFIG_KEY_ALL, 0, 0, EINVAL),
        (STRINGS, PIDFD_CONFIG_KEY_ARGV, path, i32::MIN, EINVAL),
        (FD, PIDFD_CONFIG_KEY_EXEC_FD, path, 0, EINVAL),
        (FLAGS, PIDFD_CONFIG_KEY_NAMESPACES, path, 0, EINVAL),
        // Values.
        (STRING, PIDFD_CONFIG_KEY_PATH, 0, 0, EFAULT),
        (STRING, PIDFD_CONFIG_KEY_SEARCH_PATH, 0, 0, EFAULT),
        (STRING, PIDFD_CONFIG_KEY_PATH, empty, 0, ENOENT),
        (STRING, PIDFD_CONFIG_KEY_NAME, empty, 0, ENOENT),
        (STRINGS, PIDFD_CONFIG_KEY_ARGV, 0, 0, EFAULT),
        (STRINGS, PIDFD_CONFIG_KEY_ENVP, 0, 0, EFAULT),
        (FD, PIDFD_CONFIG_KEY_EXEC_FD, 0, -1, EBADF),
        (FD, PIDFD_CONFIG_KEY_CWD, 0, AT_FDCWD, EBADF),
        (FD, PIDFD_CONFIG_KEY_CGROUP, 0, i32::MIN, EBADF),
        (ACTIONS, PIDFD_CONFIG_KEY_ACTIONS, list, -1, EINVAL),
        (ACTIONS, PIDFD_CONFIG_KEY_ACTIONS, list, 0, EINVAL),
        (ACTIONS, PIDFD_CONFIG_KEY_ACTIONS, list, 23, EINVAL),
        (ACTIONS, PIDFD_CONFIG_KEY_ACTIONS, list, 4097, E2BIG),
        (ACTIONS, PIDFD_CONFIG_KEY_ACTIONS, list, i32::MAX, E2BIG),
        (ACTIONS, PIDFD_CONFIG_KEY_ACTIONS, 0, 24, EFAULT),
        (FLAGS, PIDFD_CONFIG_KEY_NAMESPACES, 0, -1, EINVAL),
        (FLAGS, PIDFD_CONFIG_KEY_NAMESPACES, 0, libc::CLONE_NEWNS | libc::CLONE_VM, EINVAL),
    ] {
        assert_eq!(builder.config(cmd, key, value, aux), Err(errno), "{cmd} {key} {value:#x} {aux}");
    }
    assert_eq!(builder.strings(PIDFD_CONFIG_KEY_ARGV, &[]), Err(EINVAL));
    assert_eq!(builder.code(&[]), Ok(5));
}

#[test]
fn lists_of_actions_are_checked() {
    let builder = Builder::shell(c"exit 5");
    let actions = [umask(), with_fd(SPAWN_ACTION_UMASK, -1)];
    let good = list_of(&actions[..1]);
    // Errors of the list do not change `failed`.
    for (list, errno) in [
        (SpawnActionList { reserved: 1, ..good }, EINVAL),
        (SpawnActionList { action_size: 0, ..good }, EINVAL),
        (SpawnActionList { action_size: 24, ..good }, EINVAL),
        (SpawnActionList { action_size: 36, ..good }, EINVAL),
        (SpawnActionList { action_size: 4104, ..good }, E2BIG),
        (SpawnActionList { nr_actions: 0, ..good }, EINVAL),
        (SpawnActionList { nr_actions: 0, actions: 0, ..good }, EINVAL),
        (SpawnActionList { nr_actions: 257, ..good }, E2BIG),
    ] {
        let mut given = SpawnActionList { failed: 7, ..list };
        assert_eq!((builder.list(&mut given), given.failed), (Err(errno), 7), "{list:?}");
    }
    let set = |list: SpawnActionList| {
        let mut list = SpawnActionList { failed: 7, ..list };
        (builder.list(&mut list), list.failed)
    };
    assert_eq!(set(good), (Ok(()), SPAWN_FAILED_SETUP));
    assert_eq!(set(list_of(&actions)), (Err(EINVAL), 1), "the index of the refused action");
    assert_eq!(set(SpawnActionList { actions: 0, ..good }), (Err(EFAULT), 0));
    assert_eq!(set(SpawnActionList::default()), (Ok(()), SPAWN_FAILED_SETUP));
    assert_eq!(builder.code(&[]), Ok(5));
}

#[test]
fn structs_of_later_versions_may_have_zeros_after_the_known_members() {
    let builder = Builder::shell(c"umask; cat /proc/$$/fd/900");
    builder.envp(&[PATH]);
    let path = address(c"/proc/sys/kernel/ostype");
    // An open of 48 bytes, two actions of 40 bytes and a list of 32 bytes. The outcomes of the configuration and of a
    // run have the errno and `failed`.
    let outcomes = |how_size: u64, after_open: u64, after_action: u64, after_list: u64| {
        let open = [path, how_size, 0, 0, 0, after_open];
        // 900: the test process may have the pipe for the output at any low number.
        let (umask, number) = (u64::from(SPAWN_ACTION_UMASK), 900 << 32 | u64::from(AT_FDCWD as u32));
        let actions = [[umask, 0o27, 0, 0, 0], [u64::from(SPAWN_ACTION_OPEN), number, address(&open), 0, after_action]];
        let mut list = [address(&actions), 40 << 32 | 2, 7, after_list];
        let value = (&raw mut list).expose_provenance() as u64;
        let configured = builder.config(PIDFD_CONFIG_SET_ACTIONS, PIDFD_CONFIG_KEY_ACTIONS, value, 32);
        let configured = configured.map(|()| (list[2] as i32, builder.output(&[]).unwrap()));
        let configured = configured.map_err(|errno| (errno, list[2] as i32));
        builder.reset(PIDFD_CONFIG_KEY_ACTIONS).unwrap();
        let args = SpawnArgs { actions: address(&actions), nr_actions: 2, action_size: 40, ..SpawnArgs::default() };
        (configured, builder.code_with(args))
    };
    assert_eq!(outcomes(32, 0, 0, 0), (Ok((SPAWN_FAILED_SETUP, "0027\nLinux\n".into())), Ok(0)));
    assert_eq!(outcomes(32, 0, 1, 0), (Err((E2BIG, 1)), Err((E2BIG, 1))));
    assert_eq!(outcomes(32, 1 << 63, 0, 0), (Err((E2BIG, 1)), Err((E2BIG, 1))));
    for (size, errno) in [(0, EINVAL), (23, EINVAL), (4097, E2BIG), (u64::MAX, E2BIG)] {
        assert_eq!(outcomes(size, 0, 0, 0), (Err((errno, 1)), Err((errno, 1))), "{size}");
    }
    assert_eq!(outcomes(32, 0, 0, 1), (Err((E2BIG, 7)), Ok(0)));
}

#[test]
fn config_limits_lengths() {
    let builder = Builder::open();
    let many = |byte: u8, length: usize| CString::new(vec![byte; length]).unwrap();
    for key in [PIDFD_CONFIG_KEY_PATH, PIDFD_CONFIG_KEY_NAME] {
        assert_eq!(builder.string(key, &many(b'/', 4095)), Ok(()));
        assert_eq!(builder.string(key, &many(b'/', 4096)), Err(ENAMETOOLONG));
    }
    assert_eq!(builder.string(PIDFD_CONFIG_KEY_SEARCH_PATH, c""), Ok(()));
    assert_eq!(builder.string(PIDFD_CONFIG_KEY_SEARCH_PATH, &many(b':', (128 << 10) - 1)), Ok(()));
    assert_eq!(builder.string(PIDFD_CONFIG_KEY_SEARCH_PATH, &many(b':', 128 << 10)), Err(E2BIG));
    assert_eq!(builder.strings(PIDFD_CONFIG_KEY_ENVP, &[]), Ok(()));
    assert_eq!(builder.strings(PIDFD_CONFIG_KEY_ARGV, &[c"x", &many(b'a', 128 << 10)]), Err(E2BIG));
    let long = many(b'a', 100 << 10);
    assert_eq!(builder.strings(PIDFD_CONFIG_KEY_ARGV, &vec![&*long; 100]), Err(E2BIG));
    // CLONE_NEWTIME, NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET.
    for bit in 0..32 {
        let is_allowed = matches!(bit, 7 | 17 | 25..=30);
        assert_eq!(builder.namespaces(1 << bit), if is_allowed { Ok(()) } else { Err(EINVAL) }, "{bit}");
    }
}

#[test]
fn a_reset_removes_the_value_of_its_key() {
    let builder = Builder::shell(c"exit 4");
    for key in 0..=PIDFD_CONFIG_KEY_NAMESPACES {
        assert_eq!(Builder::open().reset(key), Ok(()), "{key}");
    }
    // A reset of another kind of program has no effect.
    assert_eq!(builder.reset(PIDFD_CONFIG_KEY_NAME), Ok(()));
    assert_eq!(builder.reset(PIDFD_CONFIG_KEY_EXEC_FD), Ok(()));
    assert_eq!(builder.code(&[]), Ok(4));
    assert_eq!(builder.actions(&[action(SPAWN_ACTION_SETSID), action(SPAWN_ACTION_SETSID)]), Ok(()));
    assert_eq!(builder.code(&[]), Err((EPERM, 1)));
    assert_eq!(builder.reset(PIDFD_CONFIG_KEY_ACTIONS), Ok(()));
    assert_eq!(builder.code(&[]), Ok(4));
    for key in [PIDFD_CONFIG_KEY_ARGV, PIDFD_CONFIG_KEY_PATH, PIDFD_CONFIG_KEY_ALL] {
        let builder = Builder::shell(c"exit 4");
        assert_eq!(builder.reset(key), Ok(()));
        assert_eq!(builder.code(&[]), Err((EINVAL, SPAWN_FAILED_SETUP)), "{key}");
    }
}

#[test]
fn closing_a_builder_leaks_nothing() {
    isolated!(|| {
        let cycle = || {
            let null = file("/dev/null");
            let builder = Builder::shell(c"exit 0");
            let root = path_only("/");
            builder.fd(PIDFD_CONFIG_KEY_CWD, root.as_raw_fd()).unwrap();
            builder.actions(&[dup2(null.as_raw_fd(), 9)]).unwrap();
            assert_eq!(builder.code(&[]), Ok(0));
            assert_eq!(builder.code(&[chdir(c"/nonexistent")]), Err((ENOENT, 1)));
            builder.fd(PIDFD_CONFIG_KEY_EXEC_FD, null.as_raw_fd()).unwrap();
            assert_eq!(builder.code(&[]), Err((EACCES, SPAWN_FAILED_EXEC)));
            builder.string(PIDFD_CONFIG_KEY_NAME, c"sh").unwrap();
            builder.string(PIDFD_CONFIG_KEY_SEARCH_PATH, c":/bin").unwrap();
            assert_eq!(builder.code(&[chdir(c"/")]), Ok(0));
        };
        // The first runs open what the library keeps for later runs.
        cycle();
        let before = Snapshot::take();
        (0..5).for_each(|_| cycle());
        leaks::assert_unchanged(&before);
    });
}
