// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shortages and refusals. Each is an error at the right stage and leaves nothing behind. No status
//! or signal of the failed child can be mistaken for the program's.

use crate::common;
use std::fs::{self, File, Permissions, set_permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::{
    LOADER, Launcher, Refused, assert_leaves_nothing, code, executable, exits_with, reap_any, rounds, set_soft_limit,
    while_repeating,
};
use spawnfd::child::Started;
use spawnfd::command::OpenHow;
use spawnfd::error::{Errno, ErrorKind, Stage};
use spawnfd::template::TemplateCache;
use spawnfd::{Command, Run, Stdio, Template};
use spawnfd_tests::confine::{self, Confinement};
use spawnfd_tests::leaks::Snapshot;
use spawnfd_tests::{has_builders, isolated, require_root, scratch, skip};

static CHILD_SIGNALS: AtomicUsize = AtomicUsize::new(0);

extern "C" fn count(_: libc::c_int) {
    CHILD_SIGNALS.fetch_add(1, Ordering::Relaxed);
}

/// Runs `body`, in which every start fails, and asserts that no failed child sends SIGCHLD.
fn assert_no_child_signal(body: impl FnOnce()) {
    // SAFETY: the handler only counts its calls.
    unsafe { libc::signal(libc::SIGCHLD, count as *const () as libc::sighandler_t) };
    let before = CHILD_SIGNALS.load(Ordering::Relaxed);
    body();
    assert_eq!(CHILD_SIGNALS.load(Ordering::Relaxed), before, "a child without a program sent SIGCHLD");
    // SAFETY: SIG_DFL installs no handler.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

/// Starts a file that looks like a program to the template. The exec in the child fails.
fn exec_failure(launcher: Launcher, path: &Path, expected: Errno) {
    assert_leaves_nothing(launcher, || {
        assert_no_child_signal(|| {
            for _ in 0..20 {
                let mut command = Template::open(path).expect("looks like a program").command();
                launcher.prepare(&mut command);
                let error = command.stdin(Stdio::Piped).stdout(Stdio::Piped).refused("no program");
                assert_eq!((error.stage(), error.errno()), (Stage::Exec, expected), "{error}");
                let detail = format!("exec: execve({path:?}) = -1 {}", expected.name());
                assert_eq!(error.detail(), detail, "{error}");
                assert!(error.message().starts_with(&format!("cannot execute {}: ", path.display())), "{error}");
            }
        });
    });
}

#[test]
fn a_file_that_is_no_program_fails_at_exec() {
    isolated!(|| {
        let directory = scratch();
        let path = directory.path().join("text");
        executable(&path, "no program");
        let empty = directory.path().join("empty");
        executable(&empty, "");
        let elf = directory.path().join("elf");
        executable(&elf, &exits_with(0)[..100]);
        for launcher in [Launcher::Clone3, Launcher::ScmRights, Launcher::SeparateMm] {
            for path in [&path, &empty, &elf] {
                exec_failure(launcher, path, if path == &elf { code_of(path) } else { Errno::ENOEXEC });
            }
        }
        assert_eq!(Command::new(&path).refused("no program").kind(), ErrorKind::NotExecutable);
    });
}

fn code_of(path: &Path) -> Errno {
    let error = std::process::Command::new(path).spawn().expect_err("no program");
    Errno::from_raw(error.raw_os_error().expect("the kernel's"))
}

#[test]
fn a_missing_interpreter_is_reported() {
    isolated!(|| {
        let directory = scratch();
        // The file is a copy of a dynamic program that names a missing loader. Only exec looks up
        // the loader of an ELF file.
        let mut program = fs::read("/bin/true").expect("it exists");
        let Some(at) = program.windows(LOADER.len()).position(|part| part == LOADER.as_bytes()) else {
            return spawnfd_tests::skip("no dynamic glibc program");
        };
        program[at + 1] = b'x';
        let path = directory.path().join("program");
        executable(&path, program);
        exec_failure(Launcher::Clone3, &path, Errno::ENOENT);
        // The template looks up the interpreter of a script.
        let script = directory.path().join("script");
        executable(&script, "#!/nowhere/sh\n");
        let error = Template::open(&script).expect_err("no interpreter");
        assert_eq!((error.stage(), error.errno(), error.kind()), (Stage::Template, Errno::ENOENT, ErrorKind::NotFound));
        assert_eq!(error.call(), format!(r#"open("/nowhere/sh"), interpreter of {script:?}"#));
        executable(&script, "#!/dev/null\n");
        let error = Template::open(&script).expect_err("no program");
        assert_eq!(error.call(), format!(r#"execve("/dev/null"), interpreter of {script:?}"#));
        executable(&script, "#!sh\n");
        assert_eq!(Template::open(&script).expect_err("relative").errno(), Errno::EINVAL);
        executable(&script, "#!\n");
        assert_eq!(Template::open(&script).expect_err("none").errno(), Errno::ENOEXEC);
    });
}

#[test]
fn too_long_arguments_fail_at_exec() {
    isolated!(|| {
        for launcher in [Launcher::Clone3, Launcher::Clone, Launcher::SeparateMm] {
            assert_leaves_nothing(launcher, || {
                assert_no_child_signal(|| {
                    let mut one = launcher.command("/bin/true");
                    let error = one.arg("x".repeat(200_000)).refused("one argument is too long");
                    assert_eq!((error.stage(), error.errno()), (Stage::Exec, Errno::E2BIG), "{error}");
                    let mut many = launcher.command("/bin/true");
                    many.args((0..100).map(|_| "x".repeat(100_000)));
                    let error = many.refused("all arguments together are too long");
                    assert_eq!((error.stage(), error.errno()), (Stage::Exec, Errno::E2BIG), "{error}");
                });
            });
        }
    });
}

#[test]
fn symlink_loops_and_nested_scripts_fail_as_in_the_kernel() {
    isolated!(|| {
        let directory = scratch();
        let path = |name: &str| directory.path().join(name);
        symlink("b", path("a")).expect("own directory");
        symlink("a", path("b")).expect("own directory");
        let error = Template::open(path("a")).expect_err("a loop");
        assert_eq!((error.stage(), error.errno()), (Stage::Template, Errno::ELOOP));
        // A script may be the interpreter of a script. The kernel limits the depth; the library
        // must have the same limit.
        executable(&path("0"), exits_with(7));
        for depth in 1..=8 {
            executable(&path(&depth.to_string()), format!("#!{}\n", path(&(depth - 1).to_string()).display()));
            let kernel = std::process::Command::new(path(&depth.to_string())).status();
            let ours = Template::open(path(&depth.to_string())).and_then(|template| code(template.command().spawn()));
            match (kernel, ours) {
                (Ok(status), Ok(code)) => assert_eq!((status.code(), code), (Some(7), 7), "{depth}"),
                (Err(theirs), Err(ours)) => {
                    assert_eq!(theirs.raw_os_error(), Some(ours.errno().raw()), "{depth}: {ours}");
                }
                (theirs, ours) => panic!("{depth}: the kernel has {theirs:?}, the library {ours:?}"),
            }
        }
        // This script is its own interpreter.
        executable(&path("self"), format!("#!{}\n", path("self").display()));
        assert_eq!(Template::open(path("self")).expect_err("a loop").errno(), Errno::ELOOP);
    });
}

#[test]
fn files_without_execute_permission_are_refused() {
    isolated!(|| {
        let directory = scratch();
        let path = |name: &str| directory.path().join(name);
        executable(&path("program"), exits_with(0));
        set_permissions(path("program"), Permissions::from_mode(0o644)).expect("own file");
        fs::create_dir(path("directory")).expect("own directory");
        let fifo = common::fifo(directory.path(), "fifo");
        set_permissions(&fifo, Permissions::from_mode(0o755)).expect("own file");
        for bad in [&path("program"), &path("directory"), &fifo, Path::new("/dev/null")] {
            let error = Template::open(bad).expect_err("no permission");
            let found = (error.stage(), error.errno(), error.kind());
            assert_eq!(found, (Stage::Template, Errno::EACCES, ErrorKind::Access), "{bad:?}");
            assert_eq!(Command::new(bad).refused("no permission"), error);
        }
        for name in ["program", "directory", "fifo"] {
            let error = Template::search(name, directory.path()).expect_err("no permission");
            let expected = if name == "program" { Errno::EACCES } else { error.errno() };
            assert_eq!((error.stage(), error.errno()), (Stage::Template, expected), "{name}");
        }
        for missing in [path("nothing"), path("program").join("below"), path("nothing").join("below")] {
            let error = Template::open(&missing).expect_err("missing");
            assert!(matches!(error.errno(), Errno::ENOENT | Errno::ENOTDIR), "{error}");
        }
        let error = Template::open(Path::new("/").join("x".repeat(5000))).expect_err("too long");
        assert_eq!(error.errno(), Errno::ENAMETOOLONG);
    });
}

#[test]
fn programs_on_a_noexec_file_system_are_refused() {
    isolated!(|| {
        let directory = scratch();
        if !require_root() || !common::mount_noexec(directory.path()) {
            return;
        }
        let path = directory.path().join("program");
        executable(&path, exits_with(0));
        let error = Template::open(&path).and_then(|template| code(template.command().spawn())).expect_err("noexec");
        assert_eq!((error.errno(), error.kind()), (Errno::EACCES, ErrorKind::Access), "{error}");
    });
}

#[test]
fn running_out_of_descriptors_is_an_error() {
    isolated!(|| {
        for launcher in [Launcher::Clone3, Launcher::ScmRights, Launcher::CopyTable] {
            std::thread::spawn(move || {
                let template = launcher.template("/bin/true");
                for warm in [false, true] {
                    if warm {
                        launcher.enter();
                        common::warm_up(launcher);
                    }
                    assert_nothing_left_at_each_limit(&template, warm);
                }
            })
            .join()
            .expect("the thread's assertions hold");
        }
    });
}

/// Spawns while no descriptor is free, then while one is, and so on up to 11. Each spawn starts a
/// child or returns an error, and leaves no descriptor open.
fn assert_nothing_left_at_each_limit(template: &Template, warm: bool) {
    let null = File::open("/dev/null").expect("it exists");
    let highest =
        common::library_descriptors().last().copied().unwrap_or(0).max(std::os::fd::AsRawFd::as_raw_fd(&null));
    let mut started = 0;
    for room in 0..12 {
        let before = Snapshot::take();
        let old = set_soft_limit(libc::RLIMIT_NOFILE, highest as u64 + 1 + room);
        let outcome = template.command().stdin(Stdio::Piped).stdout(Stdio::Piped).descriptor(&null, 5).spawn();
        set_soft_limit(libc::RLIMIT_NOFILE, old);
        match outcome {
            Ok(child) => {
                started += 1;
                common::wait_success(child);
            }
            Err(error) => {
                assert_eq!((error.errno(), error.kind()), (Errno::EMFILE, ErrorKind::Exhausted), "{room}: {error}");
            }
        }
        if warm {
            // When descriptors are short, the library may close the sockets that it keeps, and open
            // them again.
            let kept = |snapshot: &Snapshot| {
                let fds = snapshot.fds.iter().filter(|(_, fd)| !fd.target.starts_with("socket:"));
                fds.map(|(number, fd)| (*number, fd.inode)).collect::<Vec<_>>()
            };
            assert_eq!(kept(&before), kept(&Snapshot::take()));
        }
        assert_eq!(common::children(), Vec::<i32>::new());
    }
    assert!(started > 0);
    assert_eq!(code(template.command().spawn()), Ok(0), "spawns work again");
}

/// In case 1 the process starts with a low limit of open files. In case 2 it lowers the limit when
/// the cache is full.
#[test]
fn cached_templates_leave_descriptors_free() {
    isolated!(|| {
        let directory = scratch();
        let programs: Vec<_> = (0..64).map(|number| directory.path().join(number.to_string())).collect();
        programs.iter().for_each(|path| executable(path, exits_with(0)));
        for (least, begin, then) in [(4, 64, 64), (64, 1024, 48)] {
            let tools = TemplateCache::new(64);
            let start = |path: &Path| {
                let child = tools.command(path).stdin(Stdio::Piped).stdout(Stdio::Piped).stderr(Stdio::Piped).spawn();
                common::wait_success(child.unwrap_or_else(|error| panic!("{begin}, {then}: {error}")));
            };
            let old = set_soft_limit(libc::RLIMIT_NOFILE, begin);
            programs.iter().for_each(|path| start(path));
            let held = tools.stats().entries;
            set_soft_limit(libc::RLIMIT_NOFILE, then);
            programs.iter().rev().for_each(|path| start(path));
            let left = tools.stats().entries;
            set_soft_limit(libc::RLIMIT_NOFILE, old);
            assert!(least <= held && (4..=8).contains(&left), "{begin}, {then}: {held}, {left}");
        }
    });
}

#[test]
fn a_script_with_no_descriptor_left_is_not_taken_for_a_binary() {
    isolated!(|| {
        let directory = scratch();
        let path = |name: &str| directory.path().join(name);
        executable(&path("interpreter"), exits_with(0));
        executable(&path("script"), format!("#!{}\n", path("interpreter").display()));
        let mut found = 0;
        for room in 0..5 {
            // The limit leaves `room` free numbers, from the lowest free number on.
            let next = File::open("/dev/null").map(|file| std::os::fd::AsRawFd::as_raw_fd(&file)).expect("it exists");
            let old = set_soft_limit(libc::RLIMIT_NOFILE, next as u64 + room);
            let outcome = Template::open(path("script"));
            set_soft_limit(libc::RLIMIT_NOFILE, old);
            match outcome {
                Ok(template) => {
                    assert!(template.is_script(), "{room}");
                    found += 1;
                }
                Err(error) => assert_eq!((error.stage(), error.errno()), (Stage::Template, Errno::EMFILE), "{error}"),
            }
        }
        assert!((1..5).contains(&found), "{found}");
    });
}

#[test]
fn a_script_without_proc_is_not_taken_for_a_binary() {
    isolated!(|| {
        let directory = scratch();
        let path = |name: &str| directory.path().join(name);
        executable(&path("interpreter"), exits_with(0));
        executable(&path("script"), format!("#!{}\n", path("interpreter").display()));
        if !require_root() || !common::mount_noexec(Path::new("/proc")) {
            return;
        }
        assert!(!Path::new("/proc/self").exists());
        let template = Template::open(path("script")).expect("a template");
        assert_eq!(template.interpreters().collect::<Vec<_>>(), [path("interpreter")]);
        assert_eq!(template.by_descriptor().expect_err("a script").errno(), Errno::EINVAL);
        let file = File::open(path("interpreter")).expect("own file");
        assert!(!Template::from_descriptor(file).expect("a template").is_script());
    });
}

#[test]
fn running_out_of_processes_is_an_error() {
    isolated!(root: || {
        common::warm_up(Launcher::Clone3);
        let outcome = std::thread::spawn(|| {
            // The limit counts all processes of a user, so the test uses a user id that has no
            // other processes.
            Confinement::default().user(54_321, 54_321).apply().expect("confined");
            let template = Template::open("/bin/true").expect("a template");
            assert_eq!(code(template.command().spawn()), Ok(0));
            let before = Snapshot::take();
            let old = set_soft_limit(libc::RLIMIT_NPROC, 1);
            for _ in 0..20 {
                let error = template.command().stdin(Stdio::Piped).refused("the limit is reached");
                let found = (error.stage(), error.errno(), error.kind());
                assert_eq!(found, (Stage::Clone, Errno::EAGAIN, ErrorKind::Exhausted), "{error}");
            }
            set_soft_limit(libc::RLIMIT_NPROC, old);
            common::assert_unchanged_except_sockets(&before);
            assert_eq!(code(template.command().spawn()), Ok(0));
        });
        outcome.join().expect("the thread's assertions hold");
    });
}

#[test]
fn running_out_of_memory_is_an_error() {
    isolated!(|| {
        if has_builders() {
            return skip("the kernel's spawn call uses no memory of the caller");
        }
        let template = Template::open("/bin/true").expect("a template");
        let old = set_soft_limit(libc::RLIMIT_AS, 1 << 20);
        let outcome = template.command().spawn().map(drop);
        set_soft_limit(libc::RLIMIT_AS, old);
        let error = outcome.expect_err("no memory");
        let found = (error.stage(), error.errno(), error.kind());
        assert_eq!(found, (Stage::Clone, Errno::ENOMEM, ErrorKind::Exhausted), "{error}");
        assert_eq!(code(template.command().spawn()), Ok(0));
    });
}

/// ENFILE depends on the whole machine, so the test produces it by a filter. The filter refuses
/// each call that opens a file in the caller or its child.
#[test]
fn enfile_is_an_error_at_its_stage() {
    isolated!(|| {
        let (create, opening) = (&["clone3", "clone", "pidfd_spawn_run"][..], &["openat", "openat2"][..]);
        let cases: [(&[&str], Option<Stage>); 6] = [
            (&["pipe2"], Some(Stage::Stdio(0))),
            (create, Some(Stage::Clone)),
            (opening, Some(Stage::Action(1))),
            // For these calls the library may have a fallback.
            (&["clone3"], None),
            (&["socketpair", "pidfd_getfd"], None),
            (&["pidfd_open"], None),
        ];
        for launcher in
            [Launcher::Clone3, Launcher::ScmRights, Launcher::Clone, Launcher::CopyTable, Launcher::SeparateMm]
        {
            // The first round refuses no call, so that the library opens the descriptors that it
            // keeps.
            for (calls, stage) in std::iter::once((&[][..], None)).chain(cases) {
                let before = Snapshot::take();
                std::thread::spawn(move || assert_enfile_of(launcher, calls, stage))
                    .join()
                    .expect("the thread's assertions hold");
                if calls.is_empty() {
                    // The thread must not be in the next round's snapshot.
                    common::eventually("the thread ends", || Snapshot::take().threads == before.threads);
                } else {
                    common::assert_unchanged_except_sockets(&before);
                    assert_eq!(common::children(), Vec::<i32>::new());
                }
            }
        }
    });
}

fn assert_enfile_of(launcher: Launcher, calls: &[&str], stage: Option<Stage>) {
    launcher.enter();
    let template = launcher.template("/bin/true");
    let spawn = || {
        let mut command = template.command();
        command.stdin(Stdio::Piped).stdout(Stdio::Piped).umask(0o77).open("/dev/zero", OpenHow::READ, 20);
        launcher.prepare(&mut command);
        command.spawn()
    };
    let first = spawn().expect("starts");
    let by_kernel = first.started() == Started::Kernel;
    common::wait_success(first);
    if by_kernel && calls.contains(&"openat") {
        // The patched kernel's spawn call opens the file itself, without a system call that a
        // filter sees.
        return;
    }
    let refusals: Vec<_> = calls.iter().map(|call| (*call, libc::ENFILE)).collect();
    confine::deny(&refusals).expect("confined");
    let all = || {
        for _ in 0..5 {
            match spawn() {
                Ok(child) => {
                    assert_eq!(stage, None, "{launcher:?} starts without {calls:?}");
                    common::wait_success(child);
                }
                Err(error) => {
                    let found = (error.stage(), error.errno(), error.kind());
                    let expected = (stage.unwrap_or(error.stage()), Errno::ENFILE, ErrorKind::Exhausted);
                    assert_eq!(found, expected, "{launcher:?}, {calls:?}: {error}");
                }
            }
        }
    };
    if stage.is_some() { assert_no_child_signal(all) } else { all() }
}

#[test]
fn errors_are_right_with_sigchld_ignored() {
    isolated!(|| {
        // SAFETY: SIG_IGN installs no handler; the kernel then reaps children by itself.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
        for launcher in [Launcher::Clone3, Launcher::SeparateMm] {
            assert_errors_with_lost_statuses(launcher);
        }
    });
}

/// Spawns while another waiter may take every exit status. The library reports errors, does not
/// hang, and leaves no child.
fn assert_errors_with_lost_statuses(launcher: Launcher) {
    for _ in 0..rounds(100) {
        let mut child = launcher.command("/bin/true").spawn().expect("starts");
        match child.wait() {
            Ok(status) => assert!(status.success()),
            Err(error) => {
                assert_eq!((error.stage(), error.errno()), (Stage::Wait, Errno::ECHILD), "{error}");
                assert!(!common::kernel_keeps_exit_status(), "this kernel keeps the status: {error}");
            }
        }
        child.kill().expect("an ended child needs no kill");
        drop(launcher.command("/bin/true").spawn().expect("starts"));
        let error = launcher.command("/bin/true").chdir("/nowhere").refused("no such place");
        assert_eq!(error.errno(), Errno::ENOENT, "the child's own failure, whether its status is lost or not");
        let output = Command::new("/bin/true").run_with(&Run::new()).expect("a result, with or without a status");
        assert!(output.ok() || output.status.is_none() && !common::kernel_keeps_exit_status());
    }
    while !common::children().is_empty() {
        std::thread::yield_now();
    }
}

#[test]
fn errors_are_right_while_another_thread_reaps() {
    isolated!(|| {
        let strange = AtomicUsize::new(0);
        let reap = || {
            // A child that fails before exec exits with 127. The program here exits with 0.
            strange.fetch_add(usize::from(reap_any().is_some_and(|status| status != 0)), Ordering::Relaxed);
        };
        while_repeating(reap, || assert_errors_with_lost_statuses(Launcher::Clone3));
        assert_eq!(strange.into_inner(), 0, "another waiter got the status of a child without a program");
    });
}

#[test]
fn failures_in_every_stage_leave_nothing() {
    isolated!(|| {
        for launcher in [Launcher::Clone3, Launcher::ScmRights, Launcher::Clone, Launcher::SeparateMm] {
            std::thread::spawn(move || {
                launcher.enter();
                assert_leaves_nothing(launcher, || {
                    assert_no_child_signal(|| {
                        for _ in 0..rounds(50) {
                            let mut command = launcher.command("/bin/true");
                            command.stdin(Stdio::Piped).stdout(Stdio::Piped).stderr(Stdio::Piped);
                            command.open("/dev/zero", OpenHow::READ, 20).umask(0).open("/nowhere", OpenHow::READ, 21);
                            let index = command.action_count() - 1;
                            let error = command.refused("no such file");
                            assert_eq!((error.action(), error.errno()), (Some(index), Errno::ENOENT));
                            assert_eq!(error.call(), r#"open("/nowhere", 0o0, 0o0) as 21"#);
                            let error = command.current_dir("/nowhere").refused("no such directory");
                            assert_eq!((error.stage(), error.errno()), (Stage::CurrentDir, Errno::ENOENT));
                        }
                    });
                });
            })
            .join()
            .expect("the thread's assertions hold");
        }
    });
}
