// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lost connections: no program survives, and no result says that a program has exited.

use std::path::Path;
use std::time::{Duration, Instant};

use spawnfd::error::Errno;
use spawnfd::job::{Event, EventOptions, Events, Stop};
use spawnfd::{Command, Job, Run, signal};
use spawnfd_remote::Remote;
use spawnfd_tests::isolated;

use crate::{connect, server, sh};

/// Starts programs that would run for long, and returns them with the pid of a grandchild of each.
fn start_many(remote: &Remote, count: usize) -> Vec<(Job, Events, String)> {
    let start = |_| {
        let command = sh("sleep 1000 & echo $!; wait");
        let options = EventOptions::new().lines(100);
        let (job, mut events) = remote.start_events(&command, &Run::new(), options).expect("started");
        let Some(Event::Line { bytes, .. }) = events.next_timeout(Duration::from_secs(60)) else { panic!("no pid") };
        (job, events, String::from_utf8(bytes).expect("text"))
    };
    (0..count).map(start).collect()
}

fn assert_gone(jobs: &[(Job, Events, String)]) {
    let begun = Instant::now();
    while let Some((_, _, pid)) = jobs.iter().find(|(_, _, pid)| Path::new("/proc").join(pid).exists()) {
        assert!(begun.elapsed() < Duration::from_secs(20), "{pid} still runs");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn assert_lost(jobs: &mut [(Job, Events, String)]) {
    for (job, events, _) in jobs {
        let output = job.wait().expect("a result");
        assert_eq!((output.stop, output.status, output.status_lost), (Stop::Lost, None, true));
        assert_eq!(events.next_timeout(Duration::from_secs(20)), Some(Event::End));
    }
}

#[test]
fn a_killed_server_loses_its_programs() {
    isolated!(limit: Duration::from_secs(120), || {
        let remote = connect();
        let mut jobs = start_many(&remote, 20);
        let server = remote.hello().expect("an answer").pid;
        let status = std::process::Command::new("kill").args(["-9", &server.to_string()]).status().expect("kill");
        assert!(status.success());
        assert_lost(&mut jobs);
        assert_gone(&jobs);
        let error = remote.run(&Command::new("true"), &Run::new()).expect_err("no connection");
        assert_eq!(error.errno(), Errno::ENOTCONN);
        assert!(error.message().contains("the connection is lost"), "{error}");
    });
}

#[test]
fn a_closed_connection_ends_its_programs() {
    isolated!(limit: Duration::from_secs(120), || {
        for way in [Remote::close, |_: &Remote| {}] {
            let remote = connect();
            let mut jobs = start_many(&remote, 5);
            way(&remote);
            drop(remote);
            assert_gone(&jobs);
            assert_lost(&mut jobs);
        }
    });
}

#[test]
fn a_silent_side_is_a_lost_connection() {
    isolated!(limit: Duration::from_secs(120), || {
        let mut options = spawnfd_remote::near::RemoteOptions::default();
        options.lease = Some(Duration::from_secs(2));
        // A stopped server answers no ping.
        let remote = Remote::connect_with(&server(), &options).expect("a server");
        let mut jobs = start_many(&remote, 3);
        std::thread::sleep(Duration::from_millis(2500));
        assert!(jobs[0].0.try_wait().expect("no error").is_none(), "a connection in use is kept");
        let server = remote.hello().expect("an answer").pid.to_string();
        assert!(std::process::Command::new("kill").args(["-STOP", &server]).status().expect("kill").success());
        assert_lost(&mut jobs);
        assert_gone(&jobs);
    });
}

#[test]
fn a_transport_that_fails_says_why() {
    isolated!(|| {
        for (script, errno, expected) in [
            ("echo 'no such host' >&2; exit 255", Errno::ENOTCONN, "no such host"),
            ("exit 0", Errno::ENOTCONN, "no spawnfd server has answered"),
            ("yes", Errno::EPROTO, "no spawnfd server"),
            ("printf '\\0spawnfd-serve1\\n'; cat /dev/zero", Errno::EPROTO, "a frame of 0 bytes"),
        ] {
            let error = Remote::connect(&sh(script)).expect_err("no server");
            assert_eq!(error.errno(), errno, "{error}");
            assert!(error.message().contains(expected), "{script}: {error}");
        }
        assert_eq!(Remote::connect(&Command::new("no-such-transport")).expect_err("none").errno(), Errno::ENOENT);
        let mut options = spawnfd_remote::near::RemoteOptions::default();
        options.connect_timeout = Some(Duration::from_millis(200));
        let error = Remote::connect_with(&sh("sleep 1000"), &options).expect_err("no answer");
        assert_eq!(error.errno(), Errno::ETIMEDOUT);
    });
}

#[test]
fn text_before_the_server_is_passed_over() {
    isolated!(|| {
        let mut command = sh("echo 'Welcome!'; printf '\\0spawnfd'; exec \"$@\"");
        command.arg("sh").arg(server().get_program()).args(server().get_args());
        let remote = Remote::connect(&command).expect("a server");
        assert!(remote.run(&Command::new("true"), &Run::new()).expect("a result").ok());
        assert!(remote.ping().expect("an answer") < Duration::from_secs(20));
    });
}

#[test]
fn a_program_cannot_reach_the_pipe() {
    isolated!(|| {
        let remote = connect();
        let output = remote.run(&sh("echo noise >&0; ls -l /proc/self/fd | grep -c pipe: ; cat"), &Run::new());
        let output = output.expect("a result");
        assert_eq!(output.code(), Some(0), "{output:?}");
        assert_eq!(signal::KILL, 9);
        assert!(remote.run(&Command::new("true"), &Run::new()).expect("a result").ok());
    });
}
