// SPDX-License-Identifier: MIT OR Apache-2.0
//! Threads that share a command and start it at the same time.

use std::io::read_to_string;
use std::thread;

use crate::common::rounds;
use spawnfd::{Command, Stdio};
use spawnfd_tests::isolated;

#[test]
fn threads_start_one_command_at_once() {
    fn assert_shared_by_threads<T: Send + Sync>(_: &T) {}
    isolated!(|| {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "echo $$"]).stdout(Stdio::Piped);
        assert_shared_by_threads(&command);
        let spawn = || {
            for _ in 0..rounds(200) {
                let mut child = command.spawn().expect("starts");
                let output = read_to_string(child.stdout.take().expect("piped")).expect("readable");
                assert_eq!(output, format!("{}\n", child.id()), "the pipe belongs to this thread's child");
                assert!(child.wait().expect("own child").success());
            }
        };
        let run = || {
            for _ in 0..rounds(200) {
                let output = command.run().expect("runs");
                assert!(output.ok() && output.stdout.ends_with(b"\n"), "{output:?}");
            }
        };
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(spawn);
                scope.spawn(run);
            }
        });
    });
}
