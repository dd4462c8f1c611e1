// SPDX-License-Identifier: MIT OR Apache-2.0
//! Actions that change descriptors and directories.

use super::*;

#[test]
fn the_program_has_only_the_descriptors_of_its_actions() {
    let builder = Builder::shell(LIST);
    let null = file("/dev/null");
    let number = null.as_raw_fd();
    let at_exec = |fd, newfd| SpawnAction { flags: O_CLOEXEC as u32, ..dup2(fd, newfd) };
    let range = |fd, newfd, flags| SpawnAction { newfd, flags, ..with_fd(SPAWN_ACTION_CLOSE_RANGE, fd) };
    let open = open_of(c"/dev/null", 0, 0);
    let open_at_exec = open_of(c"/dev/null", O_CLOEXEC, 0);
    let list = |actions: &[SpawnAction]| builder.output(actions).unwrap();
    assert_eq!(list(&[]), "0 1 2 ");
    assert_eq!(list(&[dup2(number, 20), dup2(20, 21)]), "0 1 2 20 21 ");
    assert_eq!(list(&[dup2(number, 20), with_fd(SPAWN_ACTION_CLOSE, 20)]), "0 1 2 ");
    assert_eq!(list(&[at_exec(number, 20), dup2(20, 21)]), "0 1 2 21 ");
    assert_eq!(list(&[at_exec(number, 20), dup2(20, 20)]), "0 1 2 20 ");
    assert_eq!(list(&[dup2(number, 20), at_exec(0, 20)]), "0 1 2 ");
    assert_eq!(list(&[with_fd(SPAWN_ACTION_CLOSE, number)]), "0 1 2 ");
    assert_eq!(list(&[with_fd(SPAWN_ACTION_CLOSE, 0)]), "1 2 ");
    assert_eq!(list(&[open_action(AT_FDCWD, &open, 20)]), "0 1 2 20 ");
    assert_eq!(list(&[open_action(AT_FDCWD, &open_at_exec, 20)]), "0 1 2 ");
    assert_eq!(list(&[open_action(AT_FDCWD, &open_at_exec, 20), dup2(20, 22)]), "0 1 2 22 ");
    assert_eq!(list(&[dup2(0, 20), dup2(0, 21), dup2(0, 22), range(21, 21, 0)]), "0 1 2 20 22 ");
    assert_eq!(list(&[dup2(0, 20), range(3, -1, 0), dup2(0, 21)]), "0 1 2 21 ");
    assert_eq!(list(&[dup2(0, 20), range(3, -1, 4), dup2(20, 21)]), "0 1 2 21 ");
    assert_eq!(list(&[dup2(0, 20), range(2, i32::MAX, 4)]), "0 1 ");
    assert_eq!(list(&[range(1 << 19, -1, 0)]), "0 1 2 ");
    // The caller's descriptor under its own number.
    let script = CString::new(format!("[ -e /proc/$$/fd/{number} ] && echo yes")).unwrap();
    builder.script(&script);
    assert_eq!(
        list(&[dup2(number, number)]),
        "yes
"
    );
    // Both ends of an exchange.
    builder.script(c"readlink /proc/$$/fd/20 /proc/$$/fd/21");
    builder.envp(&[PATH]);
    let zero = file("/dev/zero");
    let swap = [dup2(number, 20), dup2(zero.as_raw_fd(), 21), dup2(20, 22), dup2(21, 20), dup2(22, 21)];
    assert_eq!(list(&swap), "/dev/zero\n/dev/null\n");
}

#[test]
fn the_table_starts_empty_or_with_inherited_descriptors() {
    let builder = Builder::shell(LIST);
    let (null, inherited) = (file("/dev/null"), file("/dev/null"));
    let number = null.as_raw_fd();
    // The redirection of standard output is the only descriptor.
    assert_eq!(builder.output_with(&[], SPAWN_FDS_NONE), Ok("1 ".into()));
    assert_eq!(builder.output_with(&[dup2(0, 0), dup2(number, 5)], SPAWN_FDS_NONE), Ok("0 1 5 ".into()));
    let first = dup2(number, 0);
    assert_eq!(builder.output_with(&[first, dup2(0, 2)], SPAWN_FDS_NONE), Ok("0 1 2 ".into()));
    // The program inherits descriptors that no action names, except those that are close-on-exec.
    // SAFETY: F_DUPFD has no requirements.
    let kept = owned(unsafe { libc::fcntl(inherited.as_raw_fd(), libc::F_DUPFD, 700) });
    let kept = kept.as_raw_fd();
    let script = CString::new(format!(
        "[ -e /proc/$$/fd/{kept} ] && echo kept; [ -e /proc/$$/fd/{number} ] && echo {number}; :"
    ))
    .unwrap();
    builder.script(&script);
    let inherit = |actions: &[SpawnAction]| builder.output_with(actions, SPAWN_FDS_INHERIT);
    assert_eq!(inherit(&[]), Ok("kept\n".into()));
    assert_eq!(builder.output(&[]), Ok("".into()));
    assert_eq!(inherit(&[dup2(number, number)]), Ok(format!("kept\n{number}\n")));
    assert_eq!(inherit(&[with_fd(SPAWN_ACTION_CLOSE, kept)]), Ok("".into()));
    for flags in [0, 4] {
        let range = SpawnAction { newfd: -1, flags, ..with_fd(SPAWN_ACTION_CLOSE_RANGE, 3) };
        assert_eq!(inherit(&[range]), Ok("".into()), "{flags}");
        let (last, next) = ([range, dup2(0, kept)], dup2(kept, kept));
        assert_eq!(inherit(&last), Ok("kept\n".into()));
        let outcome = inherit(&[range, next]);
        assert_eq!(outcome, if flags == 0 { Err((EBADF, 1)) } else { Ok("kept\n".into()) });
    }
    assert_eq!(inherit(&[with_fd(SPAWN_ACTION_FCHDIR, path_only("/").as_raw_fd())]), Ok("kept\n".into()));
}

#[test]
fn a_closed_descriptor_can_be_closed() {
    let builder = Builder::shell(LIST);
    let close = |fd| with_fd(SPAWN_ACTION_CLOSE, fd);
    assert_eq!(builder.output(&[close(29), close(29), close(0), close(0)]), Ok("1 2 ".into()));
    assert_eq!(builder.output_with(&[close(0)], SPAWN_FDS_NONE), Ok("1 ".into()));
    builder.argv(&[c"sh", c"-c", c"[ -e /proc/$$/fd/0 ] || echo closed"]);
    assert_eq!(builder.output_with(&[close(29), close(0), close(0)], SPAWN_FDS_INHERIT), Ok("closed\n".into()));
    // As in glibc, the number must be below the child's soft limit.
    let limit = [64u64, 64];
    let limit = with_data(SPAWN_ACTION_RLIMIT, libc::RLIMIT_NOFILE as i32, &limit);
    assert_eq!(builder.code(&[close(64), limit, close(63)]), Ok(0));
    assert_eq!(builder.code(&[close(64), limit, close(64)]), Err((EBADF, 2)));
    assert_eq!(builder.code(&[close(i32::MAX)]), Err((EBADF, 0)));
}

#[test]
fn directories_change_in_order() {
    let builder = Builder::shell(c"pwd -P");
    let (root, null) = (path_only("/"), file("/dev/null"));
    let fchdir = |file: &File| with_fd(SPAWN_ACTION_FCHDIR, file.as_raw_fd());
    assert_eq!(builder.output(&[chdir(c"/proc")]), Ok("/proc\n".into()));
    assert_eq!(builder.output(&[chdir(c"/proc"), fchdir(&root)]), Ok("/\n".into()));
    assert_eq!(builder.output(&[fchdir(&root), chdir(c"dev")]), Ok("/dev\n".into()));
    // A copy of the caller's directory, and the directory at a number that the caller has too.
    let moved = [dup2(root.as_raw_fd(), 20), with_fd(SPAWN_ACTION_FCHDIR, 20)];
    assert_eq!(builder.output(&moved), Ok("/\n".into()));
    let swapped = [dup2(root.as_raw_fd(), null.as_raw_fd()), fchdir(&null)];
    assert_eq!(builder.output(&swapped), Ok("/\n".into()));
    assert_eq!(builder.code(&[umask(), chdir(c"/nonexistent")]), Err((ENOENT, 1)));
    assert_eq!(builder.code(&[chdir(c"/dev/null")]), Err((ENOTDIR, 0)));
    assert_eq!(builder.code(&[chdir(c"")]), Err((ENOENT, 0)));
    assert_eq!(builder.code(&[fchdir(&null)]), Err((ENOTDIR, 0)));
    // The configured directory comes first. A relative program starts at the last directory.
    let dev = path_only("/dev");
    assert_eq!(builder.fd(PIDFD_CONFIG_KEY_CWD, dev.as_raw_fd()), Ok(()));
    assert_eq!(builder.output(&[]), Ok("/dev\n".into()));
    assert_eq!(builder.output(&[chdir(c"..")]), Ok("/\n".into()));
    builder.path(c"../bin/sh");
    assert_eq!(builder.output(&[]), Ok("/dev\n".into()));
    assert_eq!(builder.code(&[chdir(c"/proc/self")]), Err((ENOENT, SPAWN_FAILED_EXEC)));
    assert_eq!(builder.fd(PIDFD_CONFIG_KEY_CWD, null.as_raw_fd()), Ok(()));
    assert_eq!(builder.code(&[umask()]), Err((ENOTDIR, SPAWN_FAILED_CWD)));
}

#[test]
fn files_open_in_the_child() {
    let scratch = Scratch::new();
    let builder = Builder::shell(c"cat <&9; stat -c %a new");
    builder.envp(&[PATH]);
    let below = path_only("/proc");
    let here = path_only(scratch.path("").to_str().unwrap());
    let create = open_of(c"new", libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY, 0o666);
    let read = open_of(c"sys/kernel/ostype", 0, 0);
    let actions = [
        with_fd(SPAWN_ACTION_UMASK, 0o27),
        with_fd(SPAWN_ACTION_FCHDIR, here.as_raw_fd()),
        open_action(AT_FDCWD, &create, 8),
        open_action(below.as_raw_fd(), &read, 9),
    ];
    assert_eq!(builder.output(&actions), Ok("Linux\n640\n".into()));
    assert_eq!(builder.code(&actions), Err((EEXIST, 2)));
    // An absolute path ignores the directory.
    let absolute = open_of(c"/proc/sys/kernel/ostype", 0, 0);
    assert_eq!(builder.code(&[actions[1], open_action(1 << 20, &absolute, 9)]), Ok(0));
    let beneath = SpawnOpen { how: OpenHow { resolve: 8, ..OpenHow::default() }, ..open_of(c"../dev/null", 0, 0) };
    assert_eq!(builder.code(&[open_action(below.as_raw_fd(), &beneath, 9)]), Err((libc::EXDEV, 0)));
    let empty = open_of(c"", 0, 0);
    assert_eq!(builder.code(&[open_action(AT_FDCWD, &empty, 9)]), Err((ENOENT, 0)));
}
