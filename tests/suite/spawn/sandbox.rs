// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs behind a sandbox command with descriptors. The command gets these descriptors and no
//! others. At each start the file offset is the one at the creation of the sandbox.

use std::fs::{File, write};
use std::io::{Seek, SeekFrom};

use crate::common::{Launcher, Refused, assert_leaves_nothing, every_launcher, output, state};
use spawnfd::error::{Errno, ErrorKind, Stage};
use spawnfd::sandbox::Sandbox;
use spawnfd::{Command, Stdio, Template};
use spawnfd_tests::{isolated, program, scratch};

/// Returns a command that runs a program through env(1).
fn through_env<'fd>(launcher: Launcher, path: &str, sandbox: &Sandbox) -> Command<'fd> {
    let mut command = launcher.command("/usr/bin/env");
    command.stdin(Stdio::Null).program(path).sandbox(sandbox);
    command
}

fn the_program_gets_the_sandboxs_descriptors(launcher: Launcher) {
    let directory = scratch();
    let path = directory.path().join("word");
    write(&path, "skipped word").expect("own directory");
    let mut file = File::open(&path).expect("own file");
    file.seek(SeekFrom::Start(8)).expect("a file");
    let sandbox = |file: &File| {
        Sandbox::new(["/usr/bin/env"]).and_then(|sandbox| sandbox.descriptor(file, 5)).expect("a sandbox")
    };
    let held = sandbox(&file);
    file.seek(SeekFrom::End(0)).expect("a file");
    // After this start, the process-wide cache has the template of env.
    output(&mut through_env(launcher, "/bin/true", &held));
    assert_leaves_nothing(launcher, || {
        for _ in 0..3 {
            let mut command = through_env(launcher, "/bin/sh", &held);
            assert_eq!(output(command.args(["-c", "cat <&5"])), "word");
        }
        assert_eq!(file.stream_position().expect("a file"), 12);
        let oracle = program("spawnfd-oracle");
        let mut command = through_env(launcher, oracle.to_str().expect("UTF-8"), &held);
        assert_eq!(state(&mut command).fds.keys().copied().collect::<Vec<_>>(), [0, 1, 2, 5]);
        // Actions run after the sandbox's descriptors are in place.
        let mut command = through_env(launcher, "/bin/sh", &held);
        assert_eq!(output(command.dup2(5, 6).close(5).args(["-c", "cat <&6"])), "word");
        // Dropping a sandbox closes its descriptor.
        drop(sandbox(&file));
        launcher.assert_used();
    });
}

every_launcher! {
    the_program_gets_the_sandboxs_descriptors [authority under No]: the_program_gets_the_sandboxs_descriptors;
}

#[test]
fn two_sandboxes_can_be_nested() {
    isolated!(|| {
        let [inner, outer] = ["A=inner", "A=outer"].map(|word| Sandbox::new(["env", word]).expect("a sandbox"));
        let mut command = Command::new("/bin/sh");
        let text = output(command.args(["-c", "echo $A"]).sandbox(&inner).sandbox(&outer));
        assert_eq!(text, "inner\n");
        let null = File::open("/dev/null").expect("it exists");
        let given = |sandbox: Sandbox| sandbox.descriptor(&null, 7).expect("a descriptor");
        let error = Command::new("true").sandbox(&given(inner)).sandbox(&given(outer)).refused("both use 7");
        assert_eq!((error.stage(), error.errno()), (Stage::Validate, Errno::EINVAL), "{error}");
        assert!(error.to_string().contains("descriptor 7 twice"), "{error}");
    });
}

#[test]
fn invalid_sandboxes_are_refused() {
    isolated!(|| {
        for command in [&[][..], &[""], &["bin/env"]] {
            let error = Sandbox::new(command).expect_err("no program");
            assert_eq!(error.errno(), Errno::EINVAL, "{error}");
        }
        assert_eq!(Sandbox::new(["/nonexistent/env"]).expect_err("no such file").kind(), ErrorKind::NotFound);
        let null = File::open("/dev/null").expect("it exists");
        let sandbox = Sandbox::new(["env"]).expect("a sandbox");
        for number in [-1, 0, 2] {
            let error = sandbox.clone().descriptor(&null, number).expect_err("not above 2");
            assert_eq!(error.errno(), Errno::EINVAL, "{error}");
        }
        let twice = sandbox.clone().descriptor(&null, 3).and_then(|sandbox| sandbox.descriptor(&null, 3));
        assert_eq!(twice.expect_err("3 is used twice").errno(), Errno::EINVAL);
        let beyond = sandbox.clone().descriptor(&null, i32::MAX).expect("a sandbox");
        let error = Command::new("true").sandbox(&beyond).refused("beyond the limit");
        assert_eq!((error.stage(), error.errno()), (Stage::Descriptors, Errno::EBADF), "{error}");
        let error = Template::open("/bin/true").expect("it exists").command().sandbox(&sandbox).refused("a template");
        assert_eq!((error.stage(), error.errno()), (Stage::Validate, Errno::EINVAL), "{error}");
        // `program` would replace the sandbox command, and `-i` would be an option of env.
        let error = Command::new("true").sandbox(&sandbox).program("false").refused("it would replace the sandbox");
        assert_eq!((error.stage(), error.errno()), (Stage::Validate, Errno::EINVAL), "{error}");
        let error = Command::new("-i").sandbox(&sandbox).refused("it would be an option");
        assert_eq!((error.stage(), error.errno()), (Stage::Validate, Errno::EINVAL), "{error}");
        let many = (3..67).try_fold(sandbox, |sandbox, number| sandbox.descriptor(&null, number)).expect("64");
        assert_eq!(many.clone().descriptor(&null, 67).expect_err("65").errno(), Errno::E2BIG);
        assert_eq!(output(Command::new("echo").arg("all of them").sandbox(&many)), "all of them\n");
    });
}
