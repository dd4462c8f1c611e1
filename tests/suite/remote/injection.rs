// SPDX-License-Identifier: MIT OR Apache-2.0
//! The server's program comes through the transport.

use std::fs::{self, Permissions, set_permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::time::Duration;

use spawnfd::error::Errno;
use spawnfd::{Command, Env, Error, Run};
use spawnfd_remote::Remote;
use spawnfd_remote::near::{RemoteOptions, ServerProgram, TransportKind};
use spawnfd_tests::{isolated, scratch};

use crate::server;

/// A program that starts the server of this test for any argument. As `--version` it prints one.
fn program(directory: &Path, size: usize) -> ServerProgram {
    let path = directory.join("program");
    let command = server();
    let words: Vec<String> = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| format!("'{}'", word.to_str().expect("text")))
        .collect();
    let filling = "x".repeat(size);
    let script = format!("#!/bin/sh\n[ \"$1\" = serve ] || exit 0\nexec {}\n#{filling}\n", words.join(" "));
    fs::write(&path, script).expect("own directory");
    let machine = std::env::consts::ARCH.to_owned();
    ServerProgram { machine, path }
}

/// Starts the server through a shell with `env` as its transport.
fn connect(program: &ServerProgram, kind: TransportKind, variables: &[(&str, &Path)]) -> Result<Remote, Error> {
    let mut transport = match kind {
        TransportKind::Arguments => Command::new("env"),
        // As a login shell of ssh does.
        TransportKind::Line => {
            let mut shell = Command::new("sh");
            shell.arg("-c");
            shell
        }
    };
    let env = variables.iter().fold(Env::inherit(), |env, (name, value)| env.set(*name, value));
    transport.environment(&env);
    let remote = Remote::begin_with_program(transport, kind, std::slice::from_ref(program), &RemoteOptions::default())?;
    remote.answered().wait_timeout(Duration::from_secs(60))?.expect("an answer");
    Ok(remote)
}

#[test]
fn the_program_is_sent_once() {
    isolated!(|| {
        let (directory, there) = (scratch(), scratch());
        let program = program(directory.path(), 3_000_000);
        let variables = [("SPAWNFD_SERVER_DIR", there.path())];
        for kind in [TransportKind::Arguments, TransportKind::Line, TransportKind::Arguments] {
            let remote = connect(&program, kind, &variables).expect("a server");
            assert!(remote.run(&Command::new("true"), &Run::new()).expect("a result").ok());
        }
        let [first] = &fs::read_dir(there.path()).expect("readable").flatten().collect::<Vec<_>>()[..] else {
            panic!("not one directory")
        };
        let files: Vec<_> =
            fs::read_dir(first.path()).expect("readable").flatten().map(|file| file.file_name()).collect();
        assert_eq!(files, ["spawnfd"]);
        assert_eq!(first.metadata().expect("it exists").permissions().mode() & 0o777, 0o700);
        // Another version has another directory.
        let other = connect(&self::program(directory.path(), 10), TransportKind::Line, &variables).expect("a server");
        assert!(other.run(&Command::new("true"), &Run::new()).expect("a result").ok());
        assert_eq!(fs::read_dir(there.path()).expect("readable").count(), 2);
    });
}

#[test]
fn many_connections_at_once_share_the_program() {
    isolated!(limit: Duration::from_secs(120), || {
        let (directory, there) = (scratch(), scratch());
        let program = program(directory.path(), 500_000);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let remote = connect(&program, TransportKind::Arguments, &[("SPAWNFD_SERVER_DIR", there.path())]);
                    assert!(remote.expect("a server").run(&Command::new("true"), &Run::new()).expect("a result").ok());
                });
            }
        });
    });
}

#[test]
fn a_directory_of_another_user_is_not_used() {
    isolated!(|| {
        let (directory, there, home) = (scratch(), scratch(), scratch());
        let program = program(directory.path(), 10);
        let variables = [("SPAWNFD_SERVER_DIR", there.path()), ("HOME", home.path())];
        drop(connect(&program, TransportKind::Arguments, &variables).expect("a server"));
        let first = fs::read_dir(there.path()).expect("readable").flatten().next().expect("a directory").path();
        let trap = directory.path().join("trap");
        fs::create_dir(&trap).expect("own directory");
        fs::write(trap.join("spawnfd"), "#!/bin/sh\ntouch \"$0.started\"\n").expect("own directory");
        set_permissions(trap.join("spawnfd"), Permissions::from_mode(0o755)).expect("own file");
        fs::remove_dir_all(&first).expect("own directory");
        symlink(&trap, &first).expect("a link");
        drop(connect(&program, TransportKind::Arguments, &variables).expect("a server"));
        assert!(!trap.join("spawnfd.started").exists());
    });
}

#[test]
fn a_side_without_what_it_needs_says_so() {
    isolated!(|| {
        let (directory, bin) = (scratch(), scratch());
        let mut program = program(directory.path(), 10);
        let path = bin.path();
        for name in ["sh", "env"] {
            let found = ["/bin", "/usr/bin"].map(|folder| Path::new(folder).join(name));
            symlink(found.iter().find(|file| file.exists()).expect("it exists"), path.join(name)).expect("a link");
        }
        let variables = [("PATH", path), ("SPAWNFD_SERVER_DIR", directory.path())];
        let error = connect(&program, TransportKind::Arguments, &variables).expect_err("no uname");
        assert_eq!(error.errno(), Errno::ENOEXEC);
        assert!(error.message().contains("there is no uname(1)"), "{error}");
        program.machine = "vax".to_owned();
        let error = connect(&program, TransportKind::Arguments, &[]).expect_err("another processor");
        assert!(error.message().contains("no server program for the processor"), "{error}");
        program.path = "/nonexistent".into();
        let error = connect(&program, TransportKind::Arguments, &[]).expect_err("no file");
        assert!(error.message().contains("cannot read the server program /nonexistent"), "{error}");
    });
}
