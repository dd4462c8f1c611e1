// SPDX-License-Identifier: MIT OR Apache-2.0
//! `spawn_template_spawn`: its errors and their order, the child's exit status, and what the program inherits.

use std::sync::Barrier;

use super::*;

/// Valid arguments without actions. The pidfd is not closed, so only calls that fail may use them.
fn arguments(pidfd: &RawFd) -> spawn_template_spawn_args {
    spawn_template_spawn_args { pidfd: address(pidfd), ..Default::default() }
}

#[test]
fn returns_pid_and_pidfd() {
    let mut returned = 0;
    let output = output_of(|writer| {
        let (pid, pidfd) = Request::script("echo $$").dup2(writer, 1, 0).start(&shell())?;
        assert_eq!(descriptor_flags(pidfd.as_raw_fd()), libc::FD_CLOEXEC);
        returned = pid;
        Ok::<_, i32>(pidfd)
    });
    assert_eq!(output, Ok(format!("{returned}\n")));
}

/// Each call violates its rule and all later ones.
#[test]
fn errors_have_the_order_of_the_rfc() {
    let scratch = Scratch::new();
    let path = scratch.program("program");
    let template = of_path(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    let foreign = memfd(c"spawn_template", &[0; 256]);
    let null = dev_null();
    let fd = template.as_raw_fd();
    let pidfd = -1;
    let invalid = spawn_template_action { r#type: 99, ..Default::default() };
    let mut args = spawn_template_spawn_args {
        flags: u64::MAX,
        actions_len: 257,
        actions: 0,
        reserved: [1; 4],
        ..Default::default()
    };
    let mut longer = [args; 2];

    assert_eq!(spawn_with_size(-1, ptr::null(), 79), Err(EINVAL));
    assert_eq!(spawn_with_size(-1, ptr::null(), 4097), Err(E2BIG));
    assert_eq!(spawn_with_size(-1, ptr::null(), 80), Err(EBADF));
    assert_eq!(spawn_with_size(null.as_raw_fd(), ptr::null(), 80), Err(EINVAL));
    assert_eq!(spawn_with_size(foreign.as_raw_fd(), ptr::null(), 80), Err(EACCES));
    assert_eq!(spawn_with_size(foreign.as_raw_fd(), &longer[0], 160), Err(EACCES));
    assert_eq!(spawn_with_size(fd, ptr::null(), 80), Err(EFAULT));
    assert_eq!(spawn_with_size(fd, ptr::null(), 160), Err(EFAULT));
    assert_eq!(spawn_with_size(fd, &longer[0], 160), Err(E2BIG));
    assert_eq!(spawn_with_size(fd, &args, 80), Err(EINVAL), "flags");
    args.flags = 0;
    assert_eq!(spawn_with_size(fd, &args, 80), Err(EINVAL), "pidfd");
    args.pidfd = address(&pidfd);
    assert_eq!(spawn_with_size(fd, &args, 80), Err(EINVAL), "reserved");
    args.reserved = [0; 4];
    assert_eq!(spawn_with_size(fd, &args, 80), Err(E2BIG), "too many actions");
    args.actions_len = 1;
    assert_eq!(spawn_with_size(fd, &args, 80), Err(EINVAL), "no address of the actions");
    args.actions = address(&invalid);
    assert_eq!(spawn_with_size(fd, &args, 80), Err(EINVAL), "an invalid action");
    args.actions_len = 0;
    assert_eq!(spawn_with_size(fd, &args, 80), Err(ESTALE));
    longer = [args, spawn_template_spawn_args::default()];
    assert_eq!(spawn_with_size(fd, &longer[0], 160), Err(ESTALE), "a tail of zeroes");
    assert_eq!(pidfd, -1);
}

#[test]
fn unknown_flags_and_reserved_fields_are_refused() {
    let template = shell();
    let (fd, pidfd) = (template.as_raw_fd(), -1);
    for bit in 1..64 {
        let args = spawn_template_spawn_args { flags: 1 << bit, ..arguments(&pidfd) };
        assert_eq!(spawn_with_size(fd, &args, 80), Err(EINVAL), "flag {bit}");
    }
    for index in 0..4 {
        let mut args = arguments(&pidfd);
        args.reserved[index] = 1 << 63;
        assert_eq!(spawn_with_size(fd, &args, 80), Err(EINVAL), "reserved[{index}]");
    }
    let args = spawn_template_spawn_args { pidfd: 0, ..arguments(&pidfd) };
    assert_eq!(spawn_with_size(fd, &args, 80), Err(EINVAL));
}

#[test]
fn a_spawn_has_at_most_256_actions() {
    let template = shell();
    let null = dev_null();
    let first = || Request::script("exit 9").dup2(null.as_raw_fd(), 0, 0);
    let spawn = |count| (1..count).fold(first(), |request, _| request.dup2(0, 0, 0)).status(&template);
    assert_eq!([spawn(256), spawn(257)], [Ok(9), Err(E2BIG)]);
}

#[test]
fn a_changed_executable_is_stale() {
    let changes: [(&str, &str); 7] = [
        ("replaced", "cp /bin/sh \"$1.new\" && mv \"$1.new\" \"$1\""),
        ("removed", "rm \"$1\""),
        ("mode", "chmod 711 \"$1\""),
        ("not executable", "chmod 644 \"$1\""),
        ("touched", "touch -d @1000000000 \"$1\""),
        ("written", "echo >> \"$1\""),
        ("directory", "rm \"$1\" && mkdir \"$1\""),
    ];
    let scratch = Scratch::new();
    for (name, script) in changes {
        let path = scratch.program(name);
        let by_path = of_path(&path).unwrap();
        let by_descriptor = create(&descriptor_args(&File::open(&path).unwrap())).unwrap();
        for template in [&by_path, &by_descriptor] {
            assert_eq!(Request::script("exit 1").status(template), Ok(1));
        }
        scratch.run(script, name);
        for template in [by_path, by_descriptor] {
            assert_eq!(Request::script("exit 1").status(&template), Err(ESTALE), "{name}");
        }
    }
    assert_eq!(Request::script("exit 4").status(&of_path(scratch.path("replaced")).unwrap()), Ok(4));
}

#[test]
fn a_renamed_executable_is_stale() {
    let scratch = Scratch::new();
    let path = scratch.program("program");
    let template = create(&descriptor_args(&File::open(&path).unwrap())).unwrap();
    std::fs::rename(&path, scratch.path("renamed")).unwrap();
    assert_eq!(Request::script("exit 0").status(&template), Err(ESTALE));
}

#[test]
fn a_failed_action_or_exec_is_an_exit_status() {
    let scratch = Scratch::new();
    let template = shell();
    let program = |contents: &str, name: &str| of_path(scratch.file(name, contents)).unwrap();
    let run = |template| Request::new(&["program"]).status(&template);
    let missing = Request::script("").open(AT_FDCWD, "/nonexistent", 0, O_RDONLY);
    assert_eq!(missing.status(&template), Ok(127), "an action fails with ENOENT");
    assert_eq!(run(program("#!/nonexistent\n", "missing")), Ok(127), "exec fails with ENOENT");
    assert_eq!(run(program("#!/etc/passwd\n", "denied")), Ok(126), "exec fails with EACCES");
    assert_eq!(run(program("no format", "format")), Ok(126), "exec fails with ENOEXEC");
    assert_eq!(Request::script("").close(99_999).status(&template), Ok(1), "an action fails with EBADF");
}

#[test]
fn actions_stop_at_the_first_failure() {
    let scratch = Scratch::new();
    let (path, template) = (scratch.path("file"), shell());
    let create = |request: Request| request.open(AT_FDCWD, path.to_str().unwrap(), 0, libc::O_CREAT | libc::O_WRONLY);
    assert_eq!(create(Request::script("").close(99_999)).status(&template), Ok(1));
    assert!(!path.exists());
    assert_eq!(create(Request::script("")).close(99_999).status(&template), Ok(1));
    assert!(path.exists());
}

#[test]
fn scripts_run_with_their_path_and_arguments() {
    let scratch = Scratch::new();
    let path = scratch.file("script", "#!/bin/sh -e\necho \"$0 $1\"\n");
    let expected = format!("{} argument\n", path.display());
    let by_descriptor = create(&descriptor_args(&File::open(&path).unwrap())).unwrap();
    for template in [of_path(&path).unwrap(), by_descriptor] {
        let root = File::open("/").unwrap();
        let request = Request::new(&["ignored", "argument"]).fchdir(root.as_raw_fd());
        assert_eq!(request.output(&template), expected);
    }
}

#[test]
fn arguments_and_environment_reach_the_program() {
    let request = Request::new(&["name", "-c", "echo $0 $1 $VARIABLE", "zero", "one"]).environment("VARIABLE=value");
    assert_eq!(request.output(&shell()), "zero one value\n");
}

#[test]
fn argv_and_envp_may_be_null_or_empty() {
    let template = of_path("/usr/bin/env").unwrap();
    let empty = [ptr::null::<u8>()];
    for list in [0, address(&empty)] {
        let output = output_of(|writer| {
            let (request, mut pidfd) = (Request::default().dup2(writer, 1, 0), -1);
            let pidfd_at = (&raw mut pidfd).expose_provenance() as u64;
            let (argv, envp, actions) = (list, list, address(&*request.actions));
            let args = spawn_template_spawn_args {
                pidfd: pidfd_at,
                argv,
                envp,
                actions,
                actions_len: 1,
                ..Default::default()
            };
            spawn_with_size(template.as_raw_fd(), &args, 80).map(|_| owned(pidfd))
        });
        assert_eq!(output, Ok(String::new()));
    }
}

#[test]
fn the_program_gets_descriptors_above_2_only_on_request() {
    let template = shell();
    let extra = inheritable(&dev_null());
    let closed_at_exec = dev_null();
    let numbers = [0, 1, 2, extra.as_raw_fd(), closed_at_exec.as_raw_fd(), 490];
    let request = || Request::probe(&numbers).dup2(extra.as_raw_fd(), 490, 0);
    assert_eq!(request().output(&template), "open\nopen\nopen\nclosed\nclosed\nclosed\n");
    assert_eq!(request().inherit().output(&template), "open\nopen\nopen\nopen\nclosed\nopen\n");
}

#[test]
fn the_program_does_not_see_the_descriptor_of_its_executable() {
    let template = of_path("/bin/ls").unwrap();
    let executable = std::fs::canonicalize("/bin/ls").unwrap();
    for request in
        [Request::new(&["ls", "-l", "/proc/self/fd"]), Request::new(&["ls", "-l", "/proc/self/fd"]).inherit()]
    {
        let output = request.output(&template);
        assert!(output.contains("-> pipe:") && !output.contains(executable.to_str().unwrap()), "{output}");
    }
}

#[test]
fn actions_may_name_every_low_number() {
    let (template, null) = (shell(), dev_null());
    let request = Request::script("[ -e /proc/$$/fd/3 ] && [ -e /proc/$$/fd/257 ]").inherit();
    let request = (3..258).fold(request.dup2(null.as_raw_fd(), 0, 0), |request, number| request.dup2(0, number, 0));
    assert_eq!(request.actions.len(), 256);
    assert_eq!(request.status(&template), Ok(0));
}

#[test]
fn the_program_inherits_the_callers_signal_mask() {
    let template = of_path("/bin/cat").unwrap();
    let usr1 = 1 << (libc::SIGUSR1 - 1);
    let old = call::set_signal_mask(usr1).unwrap();
    let output = Request::new(&["cat", "/proc/self/status"]).output(&template);
    assert_eq!(call::set_signal_mask(old), Ok(usr1), "the call restores the caller's mask");
    assert!(output.contains("SigBlk:\t0000000000000200\n"), "{output}");
}

#[test]
fn threads_spawn_at_the_same_time() {
    const THREADS: usize = 8;
    let (template, barrier) = (shell(), Barrier::new(THREADS));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (template, barrier) = (&template, &barrier);
            scope.spawn(move || {
                barrier.wait();
                for round in 0..5 {
                    let text = format!("{thread} {round}");
                    assert_eq!(Request::script(&format!("echo {text}")).output(template), format!("{text}\n"));
                }
            });
        }
    });
}

#[test]
fn no_call_leaves_a_descriptor_or_a_child() {
    isolated!(|| {
        let scratch = Scratch::new();
        let path = scratch.program("program");
        let script = scratch.file("script", "#!/bin/sh\nexit 6\n");
        // Some descriptors, such as /proc/thread-self/status under a seccomp filter, stay open for later calls.
        assert_eq!(Request::script("exit 6").status(&shell()), Ok(6));
        let before = Snapshot::take();
        {
            let (template, script) = (of_path(&path).unwrap(), of_path(script).unwrap());
            assert_eq!(Request::script("exit 6").status(&template), Ok(6));
            assert_eq!(Request::new(&["script"]).status(&script), Ok(6));
            assert_eq!(Request::script("").close(4095).status(&template), Ok(1));
            assert_eq!(Request::script("").action(99, 0, 0, 0).status(&template), Err(EINVAL));
            std::fs::remove_file(path).unwrap();
            assert_eq!(Request::script("").status(&template), Err(ESTALE));
            assert!(of_path("/nonexistent").is_err() && of_path("/dev/null").is_err());
            assert!(create(&descriptor_args(&dev_null())).is_err());

            // The file of the executable needs one number, and the pidfd another one.
            let template = shell();
            let free = lowest_free() as u64;
            for more in [0, 1] {
                set_limit(libc::RLIMIT_NOFILE, free + more);
                assert_eq!(Request::script("").status(&template), Err(EMFILE), "{more} free numbers");
            }
            set_limit(libc::RLIMIT_NOFILE, free);
            assert_eq!(of_path("/bin/sh").unwrap_err(), EMFILE);
            set_limit(libc::RLIMIT_NOFILE, 512);
        }
        leaks::assert_unchanged(&before);
    });
}

/// The lowest number that is not open: the number that the next open call returns.
fn lowest_free() -> RawFd {
    dev_null().as_raw_fd()
}

#[test]
fn actions_may_name_the_number_of_the_executable() {
    isolated!(|| {
        let scratch = Scratch::new();
        let script = of_path(scratch.file("script", "#!/bin/sh\nexit 8\n")).unwrap();
        let template = shell();
        let null = dev_null();
        let free = lowest_free();
        let request = || Request::script("exit 8");
        for next in [free, free + 1] {
            assert_eq!(request().close(next).status(&template), Ok(1), "{next} is not open in the caller");
            assert_eq!(request().dup2(next, next, 0).status(&template), Ok(1));
            assert_eq!(request().dup2(next, 0, 0).status(&template), Ok(1));
            assert_eq!(request().fchdir(next).status(&template), Ok(1));
            assert_eq!(request().open(next, "x", 0, O_RDONLY).status(&template), Ok(1));
        }
        for template in [&template, &script] {
            assert_eq!(request().close_range(3, -1, 0).status(template), Ok(8));
            assert_eq!(request().close_range(0, -1, 4).inherit().status(template), Ok(8));
            assert_eq!(request().close_range(free, free, 0).status(template), Ok(8));
            assert_eq!(request().close(0).close(1).close(2).status(template), Ok(8));
            assert_eq!(request().dup2(null.as_raw_fd(), free, 0).inherit().status(template), Ok(8));
            assert_eq!(request().open(AT_FDCWD, "/dev/null", free, O_CLOEXEC).status(template), Ok(8));
        }
        let request = Request::probe(&[free, free + 1]).dup2(null.as_raw_fd(), free, 0).inherit();
        // `output` opens a pipe, so the number of the executable is a higher one.
        assert_eq!(request.output(&template), "open\nclosed\n");

        // The caller may have closed its standard descriptors.
        for number in 0..3 {
            let saved = inheritable(&number);
            // SAFETY: no other code uses the number meanwhile.
            unsafe { libc::close(number) };
            let status = Request::script("exit 8").status(&template);
            let is_closed = Request::script(&format!("[ ! -e /proc/$$/fd/{number} ]")).status(&template);
            // SAFETY: the number is free again.
            unsafe { libc::dup2(saved.as_raw_fd(), number) };
            assert_eq!((status, is_closed), (Ok(8), Ok(0)), "without {number}");
        }
    });
}
