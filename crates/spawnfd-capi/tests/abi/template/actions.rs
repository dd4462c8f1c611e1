// SPDX-License-Identifier: MIT OR Apache-2.0
//! Each action, valid and invalid.

use libc::{SIGIO, SIGKILL, SIGSTOP, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH};

use super::*;

#[test]
fn invalid_actions_create_no_child() {
    let template = shell();
    let file = spawn_template_open { path: 0, how: open_how { flags: 0, mode: 0, resolve: 0 } };
    let (file, set) = (address(&file), address(&spawn_template_sigset::default()));
    let (not_cloexec, nonblock) = (!O_CLOEXEC as u32, O_NONBLOCK as u32);
    // A type, an address, and the members fd, newfd and flags.
    let valid = &[(0, 0, 0)][..];
    let unused = &[(-1, 0, 0), (AT_FDCWD, 0, 0), (0, 1, 0), (0, 0, 1)][..];
    let signals = &[(1, 0, 0), (0, 1, 0), (0, 0, 1)][..];
    for (r#type, arg, invalid) in [
        (7, 0, valid),
        (u32::MAX, 0, valid),
        (SPAWN_TEMPLATE_ACTION_CLOSE, 0, unused),
        (SPAWN_TEMPLATE_ACTION_CLOSE, 1, valid),
        (SPAWN_TEMPLATE_ACTION_FCHDIR, 0, unused),
        (SPAWN_TEMPLATE_ACTION_FCHDIR, 1, valid),
        (SPAWN_TEMPLATE_ACTION_DUP2, 0, &[(-1, 0, 0), (0, -1, 0), (0, 0, not_cloexec), (0, 0, nonblock)]),
        (SPAWN_TEMPLATE_ACTION_DUP2, 1, valid),
        (SPAWN_TEMPLATE_ACTION_OPEN, file, &[(AT_FDCWD - 1, 0, 0), (0, -1, 0), (0, 0, 1)]),
        (SPAWN_TEMPLATE_ACTION_OPEN, 0, valid),
        (SPAWN_TEMPLATE_ACTION_CLOSE_RANGE, 0, &[(-1, 0, 0), (0, -2, 0), (2, 1, 0), (0, 0, 1), (0, 0, 8)]),
        (SPAWN_TEMPLATE_ACTION_CLOSE_RANGE, 1, valid),
        (SPAWN_TEMPLATE_ACTION_SIGMASK, set, signals),
        (SPAWN_TEMPLATE_ACTION_SIGMASK, 0, valid),
        (SPAWN_TEMPLATE_ACTION_SIGDEFAULT, set, signals),
        (SPAWN_TEMPLATE_ACTION_SIGDEFAULT, 0, valid),
    ] {
        for &(fd, newfd, flags) in invalid {
            let mut request = Request::script("");
            request.actions.push(spawn_template_action { r#type, flags, fd, newfd, arg });
            assert_eq!(request.status(&template), Err(EINVAL), "{:?}", request.actions);
            // The kernel checks all actions before it creates the child.
            let mut request = Request::script("").close(99_999);
            request.actions.push(spawn_template_action { r#type, flags, fd, newfd, arg });
            assert_eq!(request.status(&template), Err(EINVAL), "{:?}", request.actions);
        }
    }
}

#[test]
fn close_closes_one_descriptor() {
    let (template, extra) = (shell(), inheritable(&dev_null()));
    let number = extra.as_raw_fd();
    assert_eq!(Request::probe(&[number]).inherit().close(number).output(&template), "closed\n");
    assert_eq!(Request::script("").close(number).close(number).status(&template), Ok(1));
}

#[test]
fn dup2_copies_a_descriptor() {
    let (template, null) = (shell(), dev_null());
    let from = null.as_raw_fd();
    let request = || Request::probe(&[450, 451]).inherit().dup2(from, 450, 0);
    assert_eq!(request().dup2(from, 451, O_CLOEXEC).output(&template), "open\nclosed\n");
    assert_eq!(request().dup2(450, 451, 0).output(&template), "open\nopen\n");
    assert_eq!(Request::script("").dup2(99_999, 0, 0).status(&template), Ok(1));
    assert_eq!(Request::script("").dup2(from, RawFd::MAX, 0).status(&template), Ok(1));
}

#[test]
fn dup2_to_the_same_number_changes_nothing() {
    let (template, null) = (shell(), dev_null());
    let (number, extra) = (null.as_raw_fd(), inheritable(&null));
    let request = Request::probe(&[number, extra.as_raw_fd()]).inherit();
    let request = request.dup2(number, number, 0).dup2(extra.as_raw_fd(), extra.as_raw_fd(), 0);
    assert_eq!(request.output(&template), "closed\nopen\n", "the first number is close-on-exec");
    assert_eq!(Request::script("").dup2(number, number, O_CLOEXEC).status(&template), Ok(1));
    assert_eq!(Request::script("").dup2(99_999, 99_999, 0).status(&template), Ok(1));
    let path_only = reopen_as_path(&null);
    let path_only = path_only.as_raw_fd();
    assert_eq!(Request::script("").dup2(path_only, path_only, 0).status(&template), Ok(1));
    assert_eq!(Request::script("exit 2").dup2(path_only, 450, 0).status(&template), Ok(2));
}

#[test]
fn fchdir_changes_the_working_directory() {
    let (template, scratch) = (shell(), Scratch::new());
    let path = scratch.path("");
    let directory = File::open(&path).unwrap();
    let expected = std::fs::canonicalize(&path).unwrap();
    let output = Request::script("pwd -P").fchdir(directory.as_raw_fd()).output(&template);
    assert_eq!(output.trim_end(), expected.to_str().unwrap());
    let path_only = reopen_as_path(&directory);
    for (fd, name) in [(dev_null().as_raw_fd(), "a file"), (99_999, "no file"), (path_only.as_raw_fd(), "a path")] {
        assert_eq!(Request::script("").fchdir(fd).status(&template), Ok(1), "{name}");
    }
}

#[test]
fn open_opens_a_file_at_a_number() {
    let (template, scratch) = (shell(), Scratch::new());
    std::fs::write(scratch.path("input"), "contents\n").unwrap();
    let directory = File::open(scratch.path("")).unwrap();
    let directory = directory.as_raw_fd();
    let read = || Request::script("read line && echo $line");
    assert_eq!(read().open(directory, "input", 0, O_RDONLY).output(&template), "contents\n");
    assert_eq!(read().fchdir(directory).open(AT_FDCWD, "input", 0, O_RDONLY).output(&template), "contents\n");
    let absolute = scratch.path("input");
    assert_eq!(read().open(-50, absolute.to_str().unwrap(), 0, O_RDONLY).output(&template), "contents\n");
    // The new descriptor may replace the directory.
    let number = inheritable(&File::open(scratch.path("")).unwrap());
    let number = number.as_raw_fd();
    let request = Request::script(&format!("cat /proc/self/fd/{number}")).environment("PATH=/usr/bin:/bin").inherit();
    assert_eq!(request.open(number, "input", number, O_RDONLY).output(&template), "contents\n");

    let request = Request::probe(&[450, 451]).inherit().open(AT_FDCWD, "/dev/null", 450, O_RDONLY);
    assert_eq!(request.open(AT_FDCWD, "/dev/null", 451, O_CLOEXEC).output(&template), "open\nclosed\n");

    let created = open_how { flags: (libc::O_CREAT | O_WRONLY) as u64, mode: 0o640, resolve: 0 };
    let request = Request::script("umask 0; echo output").open_how(directory, "output", 1, created);
    assert_eq!(request.status(&template), Ok(0));
    assert_eq!(std::fs::read_to_string(scratch.path("output")).unwrap(), "output\n");
}

#[test]
fn open_obeys_and_checks_its_open_how() {
    let (template, scratch) = (shell(), Scratch::new());
    let directory = File::open(scratch.path("")).unwrap();
    let directory = directory.as_raw_fd();
    let open = |path: &str, flags: i32, mode, resolve| {
        let how = open_how { flags: flags as u64, mode, resolve };
        Request::script("").open_how(directory, path, 0, how).status(&template)
    };
    const RESOLVE_BENEATH: u64 = 8;
    std::fs::write(scratch.path("file"), "").unwrap();
    assert_eq!(open("file", O_RDONLY, 0, RESOLVE_BENEATH), Ok(0));
    assert_eq!(open("/dev/null", O_RDONLY, 0, RESOLVE_BENEATH), Ok(1), "EXDEV");
    assert_eq!(open("missing", O_RDONLY, 0, 0), Ok(127), "ENOENT");
    assert_eq!(open("", O_RDONLY, 0, 0), Ok(127), "ENOENT");
    assert_eq!(open("file", O_DIRECTORY, 0, 0), Ok(1), "ENOTDIR");
    assert_eq!(open("file", O_RDONLY, 0o600, 0), Ok(1), "EINVAL: a mode without O_CREAT");
    assert_eq!(open("file", O_RDONLY, 0, 1 << 40), Ok(1), "EINVAL: an unknown bit");
    assert_eq!(Request::script("").open(99_999, "file", 0, O_RDONLY).status(&template), Ok(1), "EBADF");
    assert_eq!(Request::script("").open(directory, "file", RawFd::MAX, O_RDONLY).status(&template), Ok(1), "EBADF");
    let no_path = spawn_template_open { path: 0, how: open_how { flags: 0, mode: 0, resolve: 0 } };
    let request = Request::script("").with_data(SPAWN_TEMPLATE_ACTION_OPEN, 0, 0, no_path);
    assert_eq!(request.status(&template), Ok(1), "EFAULT");
}

#[test]
fn close_range_closes_descriptors() {
    const UNSHARE: u32 = 2;
    const CLOEXEC: u32 = 4;
    let (template, null) = (shell(), dev_null());
    let numbers = [440, 441, 442, 443];
    let request = || {
        let request = Request::probe(&numbers).inherit();
        numbers.iter().fold(request, |request, number| request.dup2(null.as_raw_fd(), *number, 0))
    };
    // The range must end below the pipe of `output`, or close only after exec.
    assert_eq!(request().close_range(441, 442, 0).output(&template), "open\nclosed\nclosed\nopen\n");
    assert_eq!(request().close_range(441, 441, UNSHARE).output(&template), "open\nclosed\nopen\nopen\n");
    assert_eq!(request().close_range(442, -1, CLOEXEC).output(&template), "open\nopen\nclosed\nclosed\n");
    assert_eq!(request().close_range(440, -1, UNSHARE | CLOEXEC).output(&template), "closed\n".repeat(4));
    assert_eq!(request().close_range(443, RawFd::MAX, 0).output(&template), "open\nopen\nopen\nclosed\n");
    assert_eq!(request().close_range(90_000, 99_999, 0).output(&template), "open\n".repeat(4));
    let request = Request::script("echo").close_range(0, 2, 0);
    assert_ne!(request.status(&template), Ok(0), "the shell has no output");
}

/// The set of signals in a line of /proc/PID/status.
fn signals(status: &str, line: &str) -> u64 {
    let set = status.lines().find_map(|text| text.strip_prefix(line)).unwrap();
    u64::from_str_radix(set.trim(), 16).unwrap()
}

fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

#[test]
fn sigmask_sets_the_mask_of_the_program() {
    let template = of_path("/bin/cat").unwrap();
    let mask = |sets: &[&[i32]]| {
        let request = Request::new(&["cat", "/proc/self/status"]);
        let request = sets.iter().fold(request, |all, set| all.signals(SPAWN_TEMPLATE_ACTION_SIGMASK, set));
        signals(&request.output(&template), "SigBlk:")
    };
    assert_eq!(mask(&[&[SIGUSR1, SIGKILL, SIGSTOP, 64]]), bit(SIGUSR1) | bit(64));
    assert_eq!(mask(&[&[SIGUSR1], &[SIGTERM, 32]]), bit(SIGTERM) | bit(32), "the last action wins");
    assert_eq!(mask(&[&[]]), 0);
}

#[test]
fn sigdefault_resets_ignored_signals() {
    extern "C" fn handler(_: i32) {}

    let template = of_path("/bin/cat").unwrap();
    // No other test uses these signals.
    // SAFETY: the handler does nothing.
    unsafe {
        libc::signal(SIGUSR2, libc::SIG_IGN);
        libc::signal(SIGWINCH, libc::SIG_IGN);
        libc::signal(SIGIO, handler as extern "C" fn(i32) as usize);
    }
    let status = |set: &[i32]| {
        let request = Request::new(&["cat", "/proc/self/status"]);
        request.signals(SPAWN_TEMPLATE_ACTION_SIGDEFAULT, set).output(&template)
    };
    let ours = bit(SIGUSR2) | bit(SIGWINCH) | bit(SIGIO);
    let all: Vec<i32> = (1..=64).collect();
    assert_eq!(signals(&status(&[]), "SigIgn:") & ours, bit(SIGUSR2) | bit(SIGWINCH));
    assert_eq!(signals(&status(&[SIGUSR2, SIGKILL]), "SigIgn:") & ours, bit(SIGWINCH));
    assert_eq!(signals(&status(&all), "SigIgn:"), 0);
    assert_eq!(signals(&status(&[]), "SigCgt:"), 0);
}

#[test]
fn an_invalid_signal_set_is_an_exit_status() {
    let template = shell();
    let set = 0u64;
    for r#type in [SPAWN_TEMPLATE_ACTION_SIGMASK, SPAWN_TEMPLATE_ACTION_SIGDEFAULT] {
        for (sigset, sigsetsize) in [(address(&set), 0), (address(&set), 7), (address(&set), 128), (0, 8), (0, 4)] {
            let request = Request::script("").with_data(r#type, 0, 0, spawn_template_sigset { sigset, sigsetsize });
            assert_eq!(request.status(&template), Ok(1), "{sigset:#x} {sigsetsize}");
        }
    }
}
