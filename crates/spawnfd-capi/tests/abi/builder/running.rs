// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs: the checks of their arguments, their results, and repeated runs.

use super::*;

#[test]
fn run_checks_the_size_of_its_arguments() {
    let builder = Builder::shell(c"exit 3");
    let run = |args: *mut SpawnArgs, size| {
        // SAFETY: the arguments are NULL, or have 4096 bytes.
        result(unsafe { spawnfd_builder_run(builder.0.as_raw_fd(), args, size) })
    };
    let mut given = vec![0u64; 512];
    let start = given.as_mut_ptr().cast::<SpawnArgs>();
    for size in [0, 1, 32, 63] {
        assert_eq!(run(start, size), Err(EINVAL), "{size}");
    }
    for size in [4097, 1 << 20, usize::MAX] {
        assert_eq!(run(start, size), Err(E2BIG), "{size}");
    }
    assert_eq!(run(std::ptr::null_mut(), 64), Err(EFAULT));
    for size in [64, 65, 72, 4096] {
        given.fill(0);
        assert_eq!(reap(&owned(run(given.as_mut_ptr().cast(), size).unwrap())), 3);
        if size > 64 {
            given.fill(0);
            // SAFETY: `size` is at most the size of `given`.
            unsafe { given.as_mut_ptr().cast::<u8>().add(size - 1).write(1) };
            assert_eq!(run(given.as_mut_ptr().cast(), size), Err(E2BIG), "{size}");
        }
    }
}

#[test]
fn run_refuses_invalid_members() {
    let builder = Builder::shell(c"exit 3");
    let actions = [umask()];
    let run = |mut args: SpawnArgs| builder.run(&mut args);
    for bit in 3..32 {
        assert_eq!(run(SpawnArgs { flags: 1 << bit, ..args_of(&[]) }), Err(EINVAL));
    }
    assert_eq!(run(SpawnArgs { flags: SPAWN_FDS_NONE | SPAWN_FDS_INHERIT, ..args_of(&[]) }), Err(EINVAL));
    assert_eq!(run(SpawnArgs { reserved0: 1, ..args_of(&[]) }), Err(EINVAL));
    assert_eq!(run(SpawnArgs { reserved1: 1 << 63, ..args_of(&[]) }), Err(EINVAL));
    assert_eq!(run(SpawnArgs { action_size: 32, ..args_of(&[]) }), Err(EINVAL));
    assert_eq!(run(SpawnArgs { actions: address(&actions), ..args_of(&[]) }), Err(EINVAL));
    for action_size in [0, 1, 24, 31, 33, 36, u32::MAX] {
        assert_eq!(run(SpawnArgs { action_size, ..args_of(&actions) }), Err(EINVAL), "{action_size}");
    }
    for action_size in [4104, u32::MAX - 7] {
        assert_eq!(run(SpawnArgs { action_size, ..args_of(&actions) }), Err(E2BIG), "{action_size}");
    }
    for nr_actions in [257, 1 << 16, u32::MAX] {
        assert_eq!(run(SpawnArgs { nr_actions, ..args_of(&actions) }), Err(E2BIG), "{nr_actions}");
    }
}

#[test]
fn run_checks_in_the_order_of_the_kernel_series() {
    let builder = Builder::open();
    let bad_type = [action(99)];
    let not_open = [with_fd(SPAWN_ACTION_CLOSE, i32::MAX)];
    // Members of the arguments, then the descriptor, then the configuration.
    assert_eq!(call_run(-1, &mut SpawnArgs { flags: u32::MAX, nr_actions: 257, ..args_of(&bad_type) }), Err(EINVAL));
    assert_eq!(call_run(-1, &mut SpawnArgs { nr_actions: 257, ..args_of(&bad_type) }), Err(E2BIG));
    let mut args = SpawnArgs { failed: 7, pid: 7, ..args_of(&bad_type) };
    assert_eq!(call_run(-1, &mut args), Err(EBADF));
    assert_eq!((args.failed, args.pid), (7, 7), "unchanged");
    let run = |mut args: SpawnArgs| (builder.run(&mut args), args.failed, args.pid);
    let setup = |errno| (Err(errno), SPAWN_FAILED_SETUP, 0);
    assert_eq!(run(SpawnArgs { pid: 7, ..args_of(&bad_type) }), setup(EINVAL), "no program");
    let nowhere = address(c"/nonexistent");
    assert_eq!(run(SpawnArgs { path: address(c""), ..args_of(&bad_type) }), setup(ENOENT));
    assert_eq!(run(SpawnArgs { path: nowhere, ..args_of(&bad_type) }), setup(EINVAL), "no arguments");
    let argv = pointers::<&CStr>(&[]);
    let args = SpawnArgs { path: nowhere, argv: address(&*argv), ..args_of(&bad_type) };
    // Actions, then descriptors, then arguments, then the child.
    assert_eq!(builder.fd(PIDFD_CONFIG_KEY_CWD, 1 << 19), Ok(()));
    assert_eq!(run(args), (Err(EINVAL), 0, 0));
    let args = SpawnArgs { actions: address(&not_open), ..args };
    assert_eq!(run(args), setup(EBADF));
    assert_eq!(builder.reset(PIDFD_CONFIG_KEY_CWD), Ok(()));
    assert_eq!(run(args), setup(EINVAL), "empty arguments");
    let argv = pointers(&[c"x"]);
    let args = SpawnArgs { argv: address(&*argv), ..args };
    assert_eq!(run(args), (Err(EBADF), 0, 0), "actions come before the program");
    let args = SpawnArgs { nr_actions: 0, actions: 0, action_size: 0, ..args };
    assert_eq!(run(args), (Err(ENOENT), SPAWN_FAILED_EXEC, 0));
    // NULL in place of an action with configured actions before it.
    assert_eq!(builder.actions(&[umask(), umask()]), Ok(()));
    let args = SpawnArgs { nr_actions: 1, actions: 0, action_size: 32, ..args };
    assert_eq!(run(args), (Err(EFAULT), 2, 0));
}

#[test]
fn a_run_has_at_most_256_actions() {
    let builder = Builder::shell(c"exit 3");
    let mut actions = vec![umask(); 256];
    assert_eq!(builder.code(&actions), Ok(3));
    assert_eq!(builder.actions(&actions[..200]), Ok(()));
    assert_eq!(builder.code(&actions[..56]), Ok(3));
    assert_eq!(builder.code(&actions[..57]), Err((E2BIG, SPAWN_FAILED_SETUP)));
    actions[55] = with_fd(SPAWN_ACTION_CLOSE, i32::MAX);
    assert_eq!(builder.code(&actions[..56]), Err((EBADF, 255)));
    assert_eq!(builder.actions(&[]), Ok(()));
    assert_eq!(builder.code(&actions[..56]), Err((EBADF, 55)));
}

/// Checks that a descriptor is the pidfd of this process, and close-on-exec.
fn assert_is_pidfd(fd: RawFd, pid: i32) {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap();
    assert!(info.contains(&format!("Pid:\t{pid}\n")), "{info}");
    assert_eq!(descriptor_flags(fd), libc::FD_CLOEXEC);
}

#[test]
fn a_run_reports_pid_and_pidfd() {
    let builder = Builder::shell(c"exit 3");
    let mut args = SpawnArgs { failed: 7, pid: -1, ..args_of(&[]) };
    let pidfd = owned(builder.run(&mut args).unwrap());
    assert_is_pidfd(pidfd.as_raw_fd(), args.pid);
    assert_eq!(call::status_flags(pidfd.as_raw_fd()).unwrap() & O_NONBLOCK, 0);
    assert_eq!(reap(&pidfd), 3);
}

#[test]
fn a_nonblocking_builder_returns_nonblocking_pidfds() {
    let builder = Builder(owned(result(spawnfd_builder_open(O_NONBLOCK as u32)).unwrap()));
    builder.path(SHELL);
    builder.script(c"read line");
    let (reader, writer) = std::io::pipe().unwrap();
    let pidfd = owned(builder.run(&mut args_of(&[dup2(reader.as_raw_fd(), 0)])).unwrap());
    assert_eq!(spawnfd_sys::wait_pidfd(pidfd.as_raw_fd(), true).unwrap_err().raw(), EAGAIN);
    drop((reader, writer));
    let mut poll = libc::pollfd { fd: pidfd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: `poll` is one valid pollfd.
    assert_eq!(unsafe { libc::poll(&mut poll, 1, -1) }, 1);
    assert_eq!(reap(&pidfd), 1);
}

#[test]
fn the_builder_becomes_the_pidfd() {
    let builder = Builder::shell(c"exit 3");
    let number = builder.0.as_raw_fd();
    let duplicate = Builder(builder.0.try_clone().unwrap());
    let nowhere = address(c"/nonexistent");
    let mut args = SpawnArgs { flags: SPAWN_BECOME_PIDFD, path: nowhere, ..args_of(&[]) };
    assert_eq!(builder.run(&mut args), Err(ENOENT));
    args.path = 0;
    assert_eq!(builder.run(&mut args), Ok(number), "a failed run leaves the builder");
    assert_is_pidfd(number, args.pid);
    assert_eq!(builder.reset(PIDFD_CONFIG_KEY_ALL), Err(EBADF));
    assert_eq!(builder.run(&mut args), Err(EBADF));
    assert_eq!(reap(&builder.0), 3);
    assert_eq!(duplicate.code(&[]), Ok(3), "a duplicate is still the builder");
}

#[test]
fn threads_share_a_builder() {
    let builder = Builder::shell(c"exit 9");
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for code in 0..20 {
                    let number = CString::new(code.to_string()).unwrap();
                    let argv = pointers(&[c"sh", c"-c", c"exit $0", &number]);
                    assert_eq!(builder.code_with(SpawnArgs { argv: address(&*argv), ..args_of(&[]) }), Ok(code));
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..300 {
                builder.envp(&[c"A=1", c"B=2"]);
                builder.path(SHELL);
                builder.reset(PIDFD_CONFIG_KEY_ENVP).unwrap();
            }
        });
    });
}

static ENDED: AtomicU32 = AtomicU32::new(0);

extern "C" fn count_ended(_: i32) {
    ENDED.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn a_failed_run_leaves_no_child_and_no_signal() {
    isolated!(|| {
        // SAFETY: the handler only adds to a number.
        unsafe { libc::signal(libc::SIGCHLD, count_ended as extern "C" fn(i32) as usize) };
        let builder = Builder::shell(c"exit 0");
        assert_eq!(builder.code(&[chdir(c"/nonexistent")]), Err((ENOENT, 0)));
        builder.path(c"/nonexistent");
        assert_eq!(builder.code(&[]), Err((ENOENT, SPAWN_FAILED_EXEC)));
        // SAFETY: waitpid with a NULL status has no requirements.
        let waited = unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG | libc::__WALL) };
        assert_eq!((result(waited), ENDED.load(Ordering::Relaxed)), (Err(libc::ECHILD), 0));
        builder.path(SHELL);
        assert_eq!(builder.code(&[]), Ok(0));
        // The end of a program sends SIGCHLD. Another thread may handle it.
        while ENDED.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
    });
}

#[test]
fn the_descriptor_limit_is_reported_before_there_is_a_child() {
    isolated!(|| {
        let builder = Builder::shell(c"exit 0");
        set_limit(libc::RLIMIT_NOFILE, builder.0.as_raw_fd() as u64);
        let mut args = SpawnArgs { flags: SPAWN_BECOME_PIDFD, ..args_of(&[]) };
        assert_eq!((builder.run(&mut args), args.failed), (Err(EBADF), SPAWN_FAILED_SETUP));
        // No number is free below the limit.
        let fillers: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
        assert_eq!(builder.code(&[]), Err((EMFILE, SPAWN_FAILED_SETUP)));
        set_limit(libc::RLIMIT_NOFILE, 1024);
        drop(fillers);
        assert_eq!(builder.code(&[]), Ok(0));
    });
}
