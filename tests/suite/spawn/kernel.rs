// SPDX-License-Identifier: MIT OR Apache-2.0
//! The spawn call (pidfd_spawn_run) of a kernel with the project's patches: the commands that use
//! it, those that do not, and its failures. On such a kernel the other suites use the call too, and
//! test its programs.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};

use crate::common::{executable, pipe};
use spawnfd::child::Started;
use spawnfd::command::{CapabilitySets, FilterInstruction, Namespaces, OpenHow};
use spawnfd::error::{Errno, Stage};
use spawnfd::support::support;
use spawnfd::tree::TreeControl;
use spawnfd::{Command, Run, Stdio, Template};
use spawnfd_tests::leaks::{Snapshot, assert_unchanged};
use spawnfd_tests::{has_builders, isolated, require_root, scratch, skip};

fn with_kernel(body: impl FnOnce()) {
    if !has_builders() {
        return skip("this kernel has no pidfd_spawn_run");
    }
    assert!(support().kernel, "the kernel has the call, and the library has not found it");
    body();
}

macro_rules! with_kernel {
    ($body:expr) => {
        isolated!(|| with_kernel($body))
    };
}

fn true_of(configure: impl FnOnce(&mut Command<'static>)) -> Started {
    let mut command = Command::new("/bin/true");
    configure(&mut command);
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{error}"));
    assert!(child.wait().expect("own child").success());
    child.started()
}

#[test]
fn simple_commands_start_by_the_kernel() {
    with_kernel!(|| {
        assert_eq!(true_of(|_| ()), Started::Kernel);
        assert_eq!(true_of(|command| _ = command.stdout(Stdio::Null).stdin(Stdio::Piped).setsid()), Started::Kernel);
        assert_eq!(
            true_of(|command| _ = command.umask(0o27).current_dir("/").open("/", OpenHow::READ, 7)),
            Started::Kernel
        );
        // SAFETY: getuid takes no arguments and changes nothing.
        let user = unsafe { libc::getuid() };
        assert_eq!(true_of(|command| _ = command.user_ids(user, user, user).no_new_privs()), Started::Kernel);
        let run = Run::new().tree(TreeControl::Group);
        let output = Command::new("echo").arg("1").run_with(&run).expect("runs");
        assert_eq!((output.started, output.stdout_text()), (Started::Kernel, "1\n".into()));
        let output = Command::new("sh").args(["-c", "exit 3"]).run_with(&run).expect("runs");
        assert_eq!((output.started, output.code()), (Started::Kernel, Some(3)));
        let template = Template::open("/bin/true").and_then(|template| template.by_descriptor()).expect("no script");
        assert_eq!(template.command().spawn().expect("starts").started(), Started::Kernel);
    });
}

/// These commands confine a program, or set its root directory and namespaces.
#[test]
fn confined_commands_start_by_the_kernel() {
    with_kernel!(|| {
        assert_eq!(true_of(|command| _ = command.nice(1).scheduler(3, 0).oom_score_adj(1000)), Started::Kernel);
        assert_eq!(true_of(|command| _ = command.inherit_descriptors(true)), Started::Kernel);
        let all = FilterInstruction { code: 0x06, jt: 0, jf: 0, k: 0x7fff_0000 };
        assert_eq!(true_of(move |command| _ = command.no_new_privs().seccomp([all])), Started::Kernel);
        assert_eq!(true_of(|command| _ = command.user_namespace(7, 7)), Started::Kernel);
        if !require_root() {
            return;
        }
        assert_eq!(
            true_of(|command| _ = command.user_ids(7, 7, 7).capabilities(CapabilitySets::new())),
            Started::Kernel
        );
        assert_eq!(true_of(|command| _ = command.namespaces(Namespaces::PID | Namespaces::MOUNT)), Started::Kernel);
        let uts = File::open("/proc/self/ns/uts").expect("own file");
        assert_eq!(true_of(move |command| _ = command.join_namespace(uts, 0x0400_0000)), Started::Kernel);
        let template = Template::open("/bin/true").and_then(|template| template.by_descriptor()).expect("no script");
        let mut command = template.command();
        let mut child = command.chroot("/").spawn().expect("starts");
        assert_eq!((child.started(), child.wait().expect("own child").success()), (Started::Kernel, true));
    });
}

#[test]
fn unsupported_commands_start_by_clone() {
    with_kernel!(|| {
        // This run has a tree with a guard (a helper process that ends the tree if the owner dies).
        let job = Command::new("true").run_with(&Run::new().tree(TreeControl::Guard)).expect("runs");
        assert_eq!(job.started, Started::Clone);
        if !require_root() {
            return;
        }
        // After chroot, the template's path may name another file.
        assert_eq!(true_of(|command| _ = command.chroot("/")), Started::Clone);
        let mounts = File::open("/proc/self/ns/mnt").expect("own file");
        assert_eq!(true_of(move |command| _ = command.join_namespace(mounts, 0)), Started::Clone);
    });
}

/// Under a filter that asks a tracer about execve, the library uses clone, because the child must
/// call execve itself.
#[test]
fn a_filter_with_a_tracer_starts_by_clone() {
    with_kernel!(|| {
        let trace = [
            FilterInstruction { code: 0x20, jt: 0, jf: 0, k: 0 },
            FilterInstruction { code: 0x15, jt: 0, jf: 1, k: libc::SYS_execve as u32 },
            FilterInstruction { code: 0x06, jt: 0, jf: 0, k: 0x7ff0_0000 },
            FilterInstruction { code: 0x06, jt: 0, jf: 0, k: 0x7fff_0000 },
        ];
        let error = Command::new("/bin/true").no_new_privs().seccomp(trace).spawn().expect_err("there is no tracer");
        // A child of the clone launcher fails with the same error.
        assert_eq!((error.stage(), error.errno()), (Stage::Exec, Errno::ENOSYS));
        let refuse =
            trace.map(|one| if one.k == 0x7ff0_0000 { FilterInstruction { k: 0x0005_0000 | 25, ..one } } else { one });
        let error = Command::new("/bin/true").no_new_privs().seccomp(refuse).spawn().expect_err("refused");
        assert_eq!((error.stage(), error.errno()), (Stage::Exec, Errno::from_raw(25)));
        assert_eq!(true_of(|_| ()), Started::Kernel);
    });
}

/// Placing the first source must not overwrite the second one, and closing a range must not close placed sources.
#[test]
fn descriptors_can_swap_numbers() {
    with_kernel!(|| {
        for first_closed in [3, 20, 5000] {
            let (mut one, first) = pipe();
            let (mut two, second) = pipe();
            let numbers = [first.as_raw_fd(), second.as_raw_fd()];
            let line = format!("echo one >&{}; echo two >&{}; ls /proc/self/fd | wc -l >&2", numbers[1], numbers[0]);
            let mut command = Command::new("sh");
            command.args(["-c", &line]).stderr(Stdio::Piped).close_range(first_closed, u32::MAX);
            command.descriptor(first.as_fd(), numbers[1]).descriptor(second.as_fd(), numbers[0]);
            let mut child = command.spawn().expect("starts");
            assert_eq!(child.started(), Started::Kernel);
            let left = std::io::read_to_string(child.stderr.take().expect("piped")).expect("own pipe");
            assert!(child.wait().expect("own child").success());
            // The program has 0, 1, 2 and its two sources open, and ls opens the directory.
            assert_eq!(left.trim(), "6", "closed from {first_closed}");
            drop(command);
            drop((first, second));
            let read = |pipe: &mut std::io::PipeReader| std::io::read_to_string(pipe).expect("own pipe");
            assert_eq!((read(&mut one).as_str(), read(&mut two).as_str()), ("one\n", "two\n"));
        }
    });
}

/// A failed start reports the same error, stage and errno as the clone launcher, and leaves nothing
/// behind.
#[test]
fn failures_equal_those_of_clone() {
    with_kernel!(|| {
        let directory = scratch();
        let no_program = directory.path().join("none");
        executable(&no_program, b"\x7fELF, but not really");
        let fails = |program: &str, configure: fn(&mut Command<'static>), stage, errno| {
            let mut command = Command::new(program);
            configure(&mut command);
            let error = command.spawn().expect_err("the start fails");
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
        // After the first round, the process-wide cache has the templates.
        all();
        let before = Snapshot::take();
        all();
        assert_unchanged(&before);
    });
}
