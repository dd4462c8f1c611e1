// SPDX-License-Identifier: MIT OR Apache-2.0
//! `spawn_template_create`.

use std::os::unix::fs::symlink;

use spawnfd_tests::skip;

use super::*;

/// A buffer of the maximum size that begins with the arguments.
#[repr(C)]
struct Longer<T> {
    args: T,
    tail: [u8; 4097],
}

#[test]
fn create_checks_the_size_before_the_address() {
    for (size, expected) in [(0, EINVAL), (71, EINVAL), (4097, E2BIG), (usize::MAX, E2BIG), (72, EFAULT)] {
        assert_eq!(create_with_size(ptr::null(), size).unwrap_err(), expected, "{size}");
    }
    assert_eq!(create_with_size(ptr::null(), 4096).unwrap_err(), EFAULT);
}

#[test]
fn create_checks_the_tail_before_the_fields() {
    let path = c"/bin/sh";
    let mut longer = Longer { args: path_args(path), tail: [0; 4097] };
    for size in [72, 73, 80, 4096] {
        assert!(create_with_size(&longer.args, size).is_ok(), "{size}");
    }
    longer.tail[4096 - 72 - 1] = 1;
    assert!(create_with_size(&longer.args, 4095).is_ok());
    assert_eq!(create_with_size(&longer.args, 4096).unwrap_err(), E2BIG);
    longer.args.flags = u64::MAX;
    assert_eq!(create_with_size(&longer.args, 4096).unwrap_err(), E2BIG);
    assert_eq!(create_with_size(&longer.args, 4095).unwrap_err(), EINVAL);
}

/// The path does not exist and the descriptor is not open, so the fields are checked before the executable.
#[test]
fn create_checks_the_fields_before_the_executable() {
    let path = c"/nonexistent";
    let by_path = path_args(path);
    let by_descriptor = spawn_template_create_args { filename: 0, execfd: i32::MAX, ..by_path };
    assert_eq!(create(&by_path).unwrap_err(), ENOENT);
    assert_eq!(create(&by_descriptor).unwrap_err(), EBADF);
    for valid in [by_path, by_descriptor] {
        for bit in 1..64 {
            assert_eq!(create(&spawn_template_create_args { flags: 1 << bit, ..valid }).unwrap_err(), EINVAL);
        }
        for bit in 0..32 {
            assert_eq!(create(&spawn_template_create_args { exec_flags: 1 << bit, ..valid }).unwrap_err(), EINVAL);
        }
        for index in 0..4 {
            let mut args = valid;
            args.reserved[index] = 1;
            assert_eq!(create(&args).unwrap_err(), EINVAL, "reserved[{index}]");
        }
        assert_eq!(create(&spawn_template_create_args { actions: 1, ..valid }).unwrap_err(), EINVAL);
        assert_eq!(create(&spawn_template_create_args { actions_len: 1, ..valid }).unwrap_err(), EINVAL);
    }
    let both = spawn_template_create_args { execfd: 0, ..by_path };
    let neither = spawn_template_create_args { filename: 0, ..by_path };
    assert_eq!([create(&both), create(&neither)].map(Result::unwrap_err), [EINVAL; 2]);
}

#[test]
fn a_path_must_be_absolute_and_short() {
    let too_long = format!("/{}", "x/".repeat(2048));
    for path in ["", "sh", "./sh", "bin/sh", &too_long] {
        assert_eq!(of_path(path).unwrap_err(), EINVAL, "{path}");
    }
    let longest = format!("{}/bin/sh", "/".repeat(4095 - 7));
    assert!(of_path(longest).is_ok());
}

#[test]
fn a_path_must_lead_to_an_executable_file() {
    let scratch = Scratch::new();
    symlink("loop", scratch.path("loop")).unwrap();
    symlink("/bin/sh", scratch.path("link")).unwrap();
    scratch.run("mkfifo -m 777 \"$1\"", "fifo");
    scratch.run("cp /bin/sh \"$1\" && chmod 644 \"$1\"", "not-executable");
    assert!(of_path(scratch.path("link")).is_ok());
    for (path, expected) in [
        (scratch.path("missing"), ENOENT),
        ("/bin/sh/x".into(), ENOTDIR),
        (scratch.path("loop"), ELOOP),
        (scratch.path(&"x".repeat(256)), ENAMETOOLONG),
        (scratch.path(""), EACCES),
        (scratch.path("fifo"), EACCES),
        ("/dev/null".into(), EACCES),
        (scratch.path("not-executable"), EACCES),
    ] {
        assert_eq!(of_path(&path).unwrap_err(), expected, "{path:?}");
    }
}

/// The mount exists only in the mount namespace of this thread.
#[test]
fn a_file_on_a_noexec_mount_is_refused() {
    isolated!(|| {
        if !require_root() {
            return;
        }
        let scratch = Scratch::new();
        let directory = scratch.c_path("");
        // SAFETY: the call accesses no memory.
        let unshared = unsafe { libc::unshare(libc::CLONE_NEWNS) } == 0;
        let mount = |target: &CStr, flags| {
            // SAFETY: all addresses are strings or NULL.
            unsafe { libc::mount(c"tmpfs".as_ptr(), target.as_ptr(), c"tmpfs".as_ptr(), flags, ptr::null()) == 0 }
        };
        if !unshared || !mount(c"/", libc::MS_REC | libc::MS_PRIVATE) || !mount(&directory, 0) {
            return skip("cannot mount a file system");
        }
        let path = scratch.program("program");
        let template = of_path(&path).unwrap();
        assert_eq!(Request::script("exit 3").status(&template), Ok(3));
        assert!(mount(&directory, libc::MS_REMOUNT | libc::MS_NOEXEC));
        assert_eq!(of_path(&path).unwrap_err(), EACCES);
        assert_eq!(create(&descriptor_args(&File::open(&path).unwrap())).unwrap_err(), EACCES);
        assert_eq!(Request::script("exit 3").status(&template), Err(ESTALE));
        // SAFETY: the address is a string.
        assert_eq!(unsafe { libc::umount2(directory.as_ptr(), libc::MNT_DETACH) }, 0);
    });
}

#[test]
fn an_executable_without_read_permission_is_accepted() {
    let scratch = Scratch::new();
    let path = scratch.run("cp /bin/sh \"$1\" && chmod 111 \"$1\"", "sh");
    let template = of_path(path).unwrap();
    assert_eq!(Request::script("exit 5").status(&template), Ok(5));
}

#[test]
fn a_descriptor_names_the_executable() {
    let file = File::open("/bin/sh").unwrap();
    let template = create(&descriptor_args(&file)).unwrap();
    drop(file);
    assert_eq!(Request::script("echo from a descriptor").output(&template), "from a descriptor\n");
}

#[test]
fn a_descriptor_must_refer_to_an_executable_file() {
    let scratch = Scratch::new();
    let plain = scratch.run("cp /bin/sh \"$1\" && chmod 644 \"$1\"", "plain");
    let by_path = reopen_as_path(&File::open("/bin/sh").unwrap());
    let (reader, _writer) = std::io::pipe().unwrap();
    assert_eq!(create(&descriptor_args(&by_path)).unwrap_err(), EBADF);
    assert_eq!(create(&descriptor_args(&File::open(plain).unwrap())).unwrap_err(), EACCES);
    assert_eq!(create(&descriptor_args(&File::open("/").unwrap())).unwrap_err(), EACCES);
    assert_eq!(create(&descriptor_args(&dev_null())).unwrap_err(), EACCES);
    assert_eq!(create(&descriptor_args(&reader)).unwrap_err(), EACCES);
}

#[test]
fn a_descriptor_of_a_file_without_a_path_is_unsupported() {
    let scratch = Scratch::new();
    let path = scratch.program("program");
    let file = File::open(&path).unwrap();
    assert!(create(&descriptor_args(&file)).is_ok());
    std::fs::rename(&path, scratch.path("renamed")).unwrap();
    assert!(create(&descriptor_args(&file)).is_ok());
    std::fs::remove_file(scratch.path("renamed")).unwrap();
    assert_eq!(create(&descriptor_args(&file)).unwrap_err(), EOPNOTSUPP);
    // The link of a deleted file ends with this suffix.
    scratch.program("renamed (deleted)");
    assert_eq!(create(&descriptor_args(&file)).unwrap_err(), EOPNOTSUPP);

    let memfd = memfd(c"program", b"");
    // SAFETY: the call accesses no memory.
    let set_mode = |mode| assert_eq!(unsafe { libc::fchmod(memfd.as_raw_fd(), mode) }, 0);
    set_mode(0o755);
    assert_eq!(create(&descriptor_args(&memfd)).unwrap_err(), EOPNOTSUPP);
    // The kernel's checks come first.
    set_mode(0o644);
    assert_eq!(create(&descriptor_args(&memfd)).unwrap_err(), EACCES);
}

#[test]
fn the_flag_sets_close_on_exec() {
    let path = c"/bin/sh";
    for (flags, expected) in [(0, 0), (SPAWN_TEMPLATE_CREATE_CLOEXEC, libc::FD_CLOEXEC)] {
        let template = create(&spawn_template_create_args { flags, ..path_args(path) }).unwrap();
        assert_eq!(descriptor_flags(template.as_raw_fd()), expected);
        let number = template.as_raw_fd();
        let program = if flags == 0 { "open\n" } else { "closed\n" };
        assert_eq!(Request::probe(&[number]).inherit().output(&template), program);
    }
}

#[test]
fn a_file_size_limit_does_not_kill_the_caller() {
    let errno = in_forked_child(|| {
        set_limit(libc::RLIMIT_FSIZE, 8);
        of_path("/bin/sh").unwrap_err()
    });
    assert_eq!(errno, EFBIG);
}
