// SPDX-License-Identifier: MIT OR Apache-2.0
//! `spawnfd serve`, and the files that its connections transfer.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::time::Duration;

use spawnfd::error::Errno;
use spawnfd::{Command, Run};
use spawnfd_remote::Remote;
use spawnfd_remote::near::{RemoteOptions, ServerProgram, Transfer, TransportKind};
use spawnfd_tests::{isolated, scratch};

fn connect() -> Remote {
    Remote::connect(Command::new(env!("CARGO_BIN_EXE_spawnfd")).arg("serve")).expect("a server")
}

#[test]
fn programs_run_on_the_other_side() {
    isolated!(|| {
        let remote = connect();
        let output = remote.run(Command::new("echo").arg("hello"), &Run::new()).expect("a result");
        assert_eq!(output.stdout, b"hello\n");
        let hello = remote.hello().expect("an answer");
        assert_eq!(
            (hello.program.as_str(), hello.machine.as_str()),
            (env!("CARGO_PKG_VERSION"), std::env::consts::ARCH)
        );
        assert_ne!(hello.pid, std::process::id());
    });
}

#[test]
fn files_and_directories_go_both_ways() {
    isolated!(|| {
        let (remote, directory) = (connect(), scratch());
        let path = |name: &str| directory.path().join(name);
        fs::create_dir_all(path("from/sub")).expect("own directory");
        fs::write(path("from/sub/large"), vec![3; 5_000_000]).expect("own directory");
        fs::write(path("from/script"), "#!/bin/sh\necho ran\n").expect("own directory");
        fs::set_permissions(path("from/script"), fs::Permissions::from_mode(0o755)).expect("own file");
        symlink("sub/large", path("from/link")).expect("own directory");
        remote.put(path("from"), path("there"), &Transfer::default()).expect("sent");
        remote.get(path("there"), path("back"), &Transfer::default()).expect("received");
        assert_eq!(fs::read(path("back/link")).expect("a file"), vec![3; 5_000_000]);
        let output = remote.run(&Command::new(path("there/script")), &Run::new()).expect("a result");
        assert_eq!(output.stdout, b"ran\n");
        remote.put(path("from/script"), path("file"), &Transfer::default()).expect("sent");
        remote.get(path("file"), path("file2"), &Transfer::default()).expect("received");
        assert_eq!(fs::read_to_string(path("file2")).expect("a file"), "#!/bin/sh\necho ran\n");
    });
}

#[test]
fn a_failed_transfer_names_the_file_and_leaves_nothing() {
    isolated!(|| {
        let (remote, directory) = (connect(), scratch());
        let (missing, target) = (Path::new("/nonexistent/file"), directory.path().join("target"));
        let source = directory.path().join("source");
        fs::write(&source, vec![3; 1_000_000]).expect("own directory");
        let mut small = Transfer::default();
        small.max_bytes = Some(10_000);
        let cases = [
            (remote.get(missing, &target, &Transfer::default()), "/nonexistent/file: ", Errno::EIO),
            (remote.put(missing, &target, &Transfer::default()), "/nonexistent/file: ", Errno::ENOENT),
            (remote.put(&source, missing, &Transfer::default()), "/nonexistent/file: ", Errno::EIO),
            (remote.put(&source, &target, &small), "larger than its limit", Errno::EFBIG),
            (remote.get(&source, &target, &small), "larger than its limit", Errno::EFBIG),
        ];
        for (outcome, expected, errno) in cases {
            let error = outcome.expect_err("no transfer");
            assert!(error.message().contains(expected), "{error}");
            assert_eq!(error.errno(), errno, "{error}");
        }
        assert_eq!(fs::read_dir(directory.path()).expect("readable").count(), 1);
        assert!(remote.run(&Command::new("true"), &Run::new()).expect("a result").ok());
    });
}

#[test]
fn the_command_brings_itself_to_the_other_side() {
    isolated!(limit: Duration::from_secs(120), || {
        let there = scratch();
        let machine = std::env::consts::ARCH.to_owned();
        let program = ServerProgram { machine, path: env!("CARGO_BIN_EXE_spawnfd").into() };
        let mut transport = Command::new("env");
        transport.env("SPAWNFD_SERVER_DIR", there.path());
        let options = RemoteOptions::default();
        let remote = Remote::begin_with_program(transport, TransportKind::Arguments, &[program], &options).expect("begun");
        assert!(remote.run(&Command::new("true"), &Run::new()).expect("a result").ok());
        let files = &remote.hello().expect("an answer").files;
        assert!(files[0].starts_with(there.path().as_os_str().as_encoded_bytes()), "{files:?}");
    });
}
