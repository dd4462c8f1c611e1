// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program of a run, its arguments and its environment.

use super::*;

#[test]
fn the_program_gets_exactly_the_given_strings() {
    let builder = Builder::shell(c"tr '\\0' , < /proc/$$/cmdline; echo; tr '\\0' , < /proc/$$/environ");
    assert_eq!(builder.output(&[]).unwrap().lines().nth(1), None, "the environment is empty");
    builder.argv(&[c"", c"-c", c"tr '\\0' , < /proc/$$/cmdline; tr '\\0' , < /proc/$$/environ", c"", c"b"]);
    builder.envp(&[c"B=1", c"A=2", c"B=3", PATH]);
    let output = builder.output(&[]).unwrap();
    assert!(output.starts_with(",-c,tr") && output.ends_with(",,b,B=1,A=2,B=3,PATH=/usr/bin:/bin,"), "{output}");
    // The arguments of a run replace the configuration for that run.
    let (argv, envp) = (pointers(&[c"sh", c"-c", c"exit $N"]), pointers(&[c"N=9"]));
    assert_eq!(builder.code_with(SpawnArgs { argv: address(&*argv), envp: address(&*envp), ..args_of(&[]) }), Ok(9));
    assert_eq!(builder.output(&[]).unwrap(), output);
}

#[test]
fn a_path_of_the_run_replaces_the_configured_program() {
    let builder = Builder::shell(c"exit 4");
    builder.path(c"/nonexistent");
    assert_eq!(builder.code(&[]), Err((ENOENT, SPAWN_FAILED_EXEC)));
    assert_eq!(builder.code_with(SpawnArgs { path: address(SHELL), ..args_of(&[]) }), Ok(4));
    assert_eq!(builder.code(&[]), Err((ENOENT, SPAWN_FAILED_EXEC)));
}

#[test]
fn a_name_is_searched_in_the_search_path() {
    let scratch = Scratch::new();
    let first = scratch.c_path("first");
    for name in ["first", "second", "first/other"] {
        std::fs::create_dir(scratch.path(name)).unwrap();
    }
    scratch.write("first/tool", "#!/bin/sh\nexit 1\n", 0o644);
    scratch.write("second/tool", "#!/bin/sh\nexit 22\n", 0o755);
    scratch.write("second/other", "#!/bin/sh\nexit 23\n", 0o755);
    let builder = Builder::open();
    builder.argv(&[c"tool"]);
    assert_eq!(builder.string(PIDFD_CONFIG_KEY_NAME, c"tool"), Ok(()));
    assert_eq!(builder.code(&[]), Err((EINVAL, SPAWN_FAILED_SETUP)), "no search path");
    let search = |path: &str| {
        let path = CString::new(path.replace('@', scratch.path("").to_str().unwrap())).unwrap();
        builder.string(PIDFD_CONFIG_KEY_SEARCH_PATH, &path).unwrap();
    };
    search("/nonexistent:@/first:@/second");
    assert_eq!(builder.code(&[]), Ok(22));
    search("@/first:/nonexistent");
    assert_eq!(builder.code(&[]), Err((EACCES, SPAWN_FAILED_EXEC)));
    search("/nonexistent:/dev/null");
    assert_eq!(builder.code(&[]), Err((ENOENT, SPAWN_FAILED_EXEC)));
    // The child performs the actions first.
    assert_eq!(builder.code(&[umask(), chdir(c"/nonexistent")]), Err((ENOENT, 1)));
    // Relative entries start at the child's directory.
    let root = path_only(scratch.path("").to_str().unwrap());
    search("second");
    assert_eq!(builder.code(&[with_fd(SPAWN_ACTION_FCHDIR, root.as_raw_fd())]), Ok(22));
    assert_eq!(builder.code(&[]), Err((ENOENT, SPAWN_FAILED_EXEC)));
    search("");
    assert_eq!(builder.code(&[chdir(&scratch.c_path("first")), chdir(c"../second")]), Ok(22));
    assert_eq!(builder.fd(PIDFD_CONFIG_KEY_CWD, root.as_raw_fd()), Ok(()));
    assert_eq!(builder.code(&[chdir(c"second")]), Ok(22));
    assert_eq!(builder.reset(PIDFD_CONFIG_KEY_CWD), Ok(()));
    // A directory of that name does not count.
    search("@/first:@/second");
    assert_eq!(builder.string(PIDFD_CONFIG_KEY_NAME, c"other"), Ok(()));
    assert_eq!(builder.code(&[]), Ok(23));
    // A name with a slash is a path.
    assert_eq!(builder.string(PIDFD_CONFIG_KEY_NAME, c"../second/other"), Ok(()));
    assert_eq!(builder.code(&[chdir(&first)]), Ok(23));
    // The caller cannot search below another root.
    assert_eq!(builder.string(PIDFD_CONFIG_KEY_NAME, c"other"), Ok(()));
    assert_eq!(builder.code(&[with_text(SPAWN_ACTION_CHROOT, c"/")]), Err((EOPNOTSUPP, SPAWN_FAILED_SETUP)));
}

#[test]
fn a_descriptor_is_executed() {
    let builder = Builder::shell(c"exit 6");
    let shell = file("/bin/sh");
    assert_eq!(builder.fd(PIDFD_CONFIG_KEY_EXEC_FD, shell.as_raw_fd()), Ok(()));
    assert_eq!(builder.code(&[]), Ok(6));
    assert_eq!(builder.code(&[with_fd(SPAWN_ACTION_CLOSE, i32::MAX)]), Err((EBADF, 0)));
    builder.script(LIST);
    assert_eq!(builder.output(&[]), Ok("0 1 2 ".into()), "the program does not have the descriptor");
    assert_eq!(builder.fd(PIDFD_CONFIG_KEY_EXEC_FD, 1 << 19), Ok(()));
    assert_eq!(builder.code(&[]), Err((EBADF, SPAWN_FAILED_SETUP)));
    for path in ["/dev/null", "/"] {
        let file = path_only(path);
        assert_eq!(builder.fd(PIDFD_CONFIG_KEY_EXEC_FD, file.as_raw_fd()), Ok(()));
        assert_eq!(builder.code(&[]), Err((EACCES, SPAWN_FAILED_EXEC)), "{path}");
        assert_eq!(builder.code(&[chdir(c"/nonexistent")]), Err((ENOENT, 0)), "actions come first");
    }
}

#[test]
fn a_script_by_descriptor_needs_the_descriptor() {
    let scratch = Scratch::new();
    scratch.write("script", "#!/bin/sh\nexit 8\n", 0o755);
    let script = file(scratch.path("script").to_str().unwrap());
    let number = script.as_raw_fd();
    let builder = Builder::open();
    builder.argv(&[c"script"]);
    assert_eq!(builder.fd(PIDFD_CONFIG_KEY_EXEC_FD, number), Ok(()));
    assert_eq!(builder.code(&[]), Err((ENOENT, SPAWN_FAILED_EXEC)));
    assert_eq!(builder.code(&[dup2(number, number)]), Ok(8));
    let other = dup2(0, number);
    assert_eq!(builder.code(&[dup2(number, number), other]), Err((ENOENT, SPAWN_FAILED_EXEC)));
    let at_exec = SpawnAction { newfd: -1, flags: 4, ..with_fd(SPAWN_ACTION_CLOSE_RANGE, 3) };
    assert_eq!(builder.code(&[dup2(number, number), at_exec]), Err((ENOENT, SPAWN_FAILED_EXEC)));
}

#[test]
fn exec_failures_have_their_errno() {
    let scratch = Scratch::new();
    let builder = Builder::shell(c"");
    for (path, errno) in [
        (scratch.path("missing"), ENOENT),
        (scratch.path("plain/below"), ENOTDIR),
        (scratch.write("plain", "text", 0o644), EACCES),
        (scratch.write("text", "no program\n", 0o755), ENOEXEC),
        (scratch.write("loader", "#!/nonexistent/interpreter\n", 0o755), ENOENT),
        (scratch.path(""), EACCES),
    ] {
        builder.path(&c_path(&path));
        let mut args = SpawnArgs { pid: 5, ..args_of(&[]) };
        assert_eq!(builder.run(&mut args), Err(errno), "{path:?}");
        assert_eq!((args.failed, args.pid), (SPAWN_FAILED_EXEC, 0));
    }
}
