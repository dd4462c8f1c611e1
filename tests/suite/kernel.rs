// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's own way to start a program, where it has our patches: what goes that way, what does not, and how it fails. That all comes to
//! the same for the program is for the other suites, which take this way by themselves.

mod common;

use std::os::fd::{AsFd, AsRawFd};

use common::{executable, pipe};
use spawnfd::{Command, Errno, OpenHow, Run, Stage, Started, Stdio, Template, support::support};
use spawnfd_tests::leaks::{Snapshot, assert_unchanged};
use spawnfd_tests::{has_builders, isolated, scratch, skip};

fn with_kernel(name: &str, body: impl FnOnce()) {
    isolated(name, || {
        if !has_builders() {
            return skip("this kernel has no pidfd_spawn_run");
        }
        assert!(support().kernel, "a kernel that has it, and a library that does not know");
        body();
    });
}

fn true_of(configure: impl FnOnce(&mut Command<'static>)) -> Started {
    let mut command = Command::new("/bin/true");
    configure(&mut command);
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{error}"));
    assert!(child.wait().expect("own child").success());
    child.started()
}

#[test]
fn goes_by_the_kernel() {
    with_kernel("goes_by_the_kernel", || {
        assert_eq!(true_of(|_| ()), Started::Kernel);
        assert_eq!(true_of(|command| _ = command.stdout(Stdio::Null).stdin(Stdio::Piped).setsid()), Started::Kernel);
        assert_eq!(
            true_of(|command| _ = command.umask(0o27).current_dir("/").open("/", OpenHow::READ, 7)),
            Started::Kernel
        );
        // SAFETY: no arguments.
        let user = unsafe { libc::getuid() };
        assert_eq!(true_of(|command| _ = command.user_ids(user, user, user).no_new_privs()), Started::Kernel);
        let output = Command::new("echo").arg("1").run().expect("runs");
        assert_eq!((output.started, output.text()), (Started::Kernel, "1\n".into()));
        let output = Command::new("sh").args(["-c", "exit 3"]).run_with(&Run::new()).expect("runs");
        assert_eq!((output.started, output.code()), (Started::Kernel, Some(3)));
        let template = Template::open("/bin/true").and_then(|template| template.by_descriptor()).expect("no script");
        assert_eq!(template.command().spawn().expect("starts").started(), Started::Kernel);
    });
}

#[test]
fn what_it_cannot_do_is_cloned() {
    with_kernel("what_it_cannot_do_is_cloned", || {
        assert_eq!(true_of(|command| _ = command.nice(1)), Started::Clone);
        assert_eq!(true_of(|command| _ = command.oom_score_adj(1000)), Started::Clone);
        assert_eq!(true_of(|command| _ = command.inherit_descriptors(true)), Started::Clone);
    });
}

/// What is placed first must not take the place of what is placed next.
#[test]
fn descriptors_that_change_places() {
    with_kernel("descriptors_that_change_places", || {
        let (mut one, first) = pipe();
        let (mut two, second) = pipe();
        let numbers = [first.as_raw_fd(), second.as_raw_fd()];
        let line = format!("echo one >&{}; echo two >&{}", numbers[1], numbers[0]);
        let mut command = Command::new("sh");
        command.args(["-c", &line]).descriptor(first.as_fd(), numbers[1]).descriptor(second.as_fd(), numbers[0]);
        let mut child = command.spawn().expect("starts");
        assert_eq!(child.started(), Started::Clone);
        assert!(child.wait().expect("own child").success());
        drop(command);
        drop((first, second));
        let read = |pipe: &mut std::io::PipeReader| std::io::read_to_string(pipe).expect("own pipe");
        assert_eq!((read(&mut one).as_str(), read(&mut two).as_str()), ("one\n", "two\n"));
    });
}

/// Error, stage and errno are those of the clone launcher; nothing is left.
#[test]
fn fails_as_ever() {
    with_kernel("fails_as_ever", || {
        let directory = scratch();
        let no_program = directory.path().join("none");
        executable(&no_program, b"\x7fELF, but not really");
        let fails = |program: &str, configure: fn(&mut Command<'static>), stage, errno| {
            let mut command = Command::new(program);
            configure(&mut command);
            let error = command.spawn().expect_err("cannot start");
            assert_eq!((error.stage(), error.errno()), (stage, errno), "{error}");
            assert_eq!(true_of(|_| ()), Started::Kernel);
        };
        let all = || {
            fails(no_program.to_str().expect("UTF-8"), |_| (), Stage::Exec, Errno::ENOEXEC);
            fails("/bin/true", |command| _ = command.chdir("/nowhere"), Stage::Action(0), Errno::ENOENT);
            fails(
                "/bin/true",
                |command| _ = command.umask(0).open("/nowhere", OpenHow::READ, 5),
                Stage::Action(1),
                Errno::ENOENT,
            );
            fails("/bin/true", |command| _ = command.current_dir("/nowhere"), Stage::CurrentDir, Errno::ENOENT);
        };
        // The cache keeps templates of theirs.
        all();
        let before = Snapshot::take();
        all();
        assert_unchanged(&before);
    });
}
