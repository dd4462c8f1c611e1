// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs that the library cannot end by SIGKILL. The run ends while the program still runs, and its output names
//! the program. The library reaps the program when it ends.

use std::fs::{Permissions, set_permissions};
use std::io::PipeWriter;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::Duration;

use spawnfd::job::{Drain, Fate, Leftovers, Stop};
use spawnfd::limits::Limiter;
use spawnfd::tree::TreeControl;
use spawnfd::{Command, Output, Run};
use spawnfd_tests::confine::{self, Confinement};
use spawnfd_tests::copy::{fork, wait_for};
use spawnfd_tests::{copy_of_program, isolated, require_root, scratch, skip};

use crate::common::job::{read_until, sh, started};
use crate::common::{self, eventually};

/// The user of an unprivileged caller.
const UNPRIVILEGED: u32 = 65_534;

const GRACES: [Duration; 2] = [Duration::ZERO, Duration::from_millis(50)];

type Runner = fn(&mut Command<'static>, &Run) -> Output;

/// The ways to run a command, each with its grace time (between SIGTERM and SIGKILL).
const RUNNERS: [(Runner, Duration); 2] = [(here, GRACES[0]), (in_the_engine, GRACES[1])];

/// Runs `body` in a forked child that belongs to an unprivileged user. `body` gets the path of `spawnfd-setuid`, a
/// set-uid root program that this user may not kill. At the end all children must be reaped.
fn as_user(body: impl FnOnce(&Path)) {
    if !require_root() {
        return;
    }
    let directory = scratch();
    let program = copy_of_program("spawnfd-setuid", directory.path());
    set_permissions(&program, Permissions::from_mode(0o4755)).expect("own file");
    wait_for(fork(|| {
        Confinement::default().user(UNPRIVILEGED, UNPRIVILEGED).apply().expect("confined");
        // After the change of ids the process is not dumpable, so /proc/self belongs to root. This call undoes that.
        // SAFETY: prctl takes integers and sets a flag of this process.
        assert_eq!(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 1) }, 0);
        if Command::new(&program).run().expect("runs").code() == Some(77) {
            return skip("no set-uid program becomes root here (nosuid, no_new_privs)");
        }
        body(&program);
        eventually("all children are reaped", || common::children().is_empty());
    }));
}

/// Makes SIGKILL and all other signals succeed without effect, for this thread and the threads that it starts.
fn accept_signals_without_effect() {
    confine::deny(&[("pidfd_send_signal", 0)]).expect("confined");
}

/// Gives a command a pipe as stdin. The program, `spawnfd-setuid`, ends when the returned writer is dropped.
fn with_stdin_pipe(mut command: Command<'static>) -> (Command<'static>, PipeWriter) {
    let (theirs, ours) = common::pipe();
    command.stdin(OwnedFd::from(theirs));
    (command, ours)
}

fn here(command: &mut Command<'static>, run: &Run) -> Output {
    command.run_with(run).expect("runs")
}

fn in_the_engine(command: &mut Command<'static>, run: &Run) -> Output {
    let (sender, receiver) = channel();
    command.run_then(run, move |output| sender.send(output).expect("the receiver is alive")).expect("starts");
    receiver.recv().expect("a message").expect("runs")
}

/// Runs a command with a timeout that is long enough for the program to print its pid.
fn timed_out(runner: Runner, command: impl Fn() -> Command<'static>, run: &Run) -> (Output, PipeWriter) {
    let mut time = Duration::from_millis(300);
    loop {
        let (mut command, writer) = with_stdin_pipe(command());
        let output = runner(&mut command, &run.clone().timeout(time));
        if !output.stdout.is_empty() {
            return (output, writer);
        }
        time *= 2;
        assert!(time < Duration::from_secs(60), "{output:?}");
    }
}

fn pid_in(output: &Output) -> u32 {
    output.stdout_text().trim().parse().unwrap_or_else(|_| panic!("no pid: {output:?}"))
}

/// Returns whether a process with this pid exists. A zombie counts.
fn is_there(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

#[track_caller]
fn assert_left(output: &Output, stop: Stop, fate: Fate, name: &str) {
    assert_eq!((output.stop, output.status, output.status_lost, output.ok()), (stop, None, false, false), "{output:?}");
    let left: Vec<_> = output.leftovers.iter().map(|left| (left.pid, &left.name[..], left.fate)).collect();
    assert_eq!(left, [(pid_in(output), name, fate)], "{output:?}");
    assert!(is_there(pid_in(output)), "the program still runs");
}

#[test]
fn a_timeout_ends_the_run_of_a_program_that_may_not_be_killed() {
    isolated!(|| as_user(|program| {
        for (runner, grace) in RUNNERS {
            let (output, writer) = timed_out(runner, || Command::new(program), &Run::new().grace(grace));
            assert_left(&output, Stop::Timeout, Fate::NotPermitted, "spawnfd-setuid");
            assert_eq!(output.drain, Drain::Cut(Vec::new()), "this user may not see the program's descriptors");
            let pid = pid_in(&output);
            let error = output.check().expect_err("not ok").to_string();
            let reason = output.reason().expect("a timeout");
            let still = format!("{reason}, could not be killed (not permitted) and still runs as process {pid}");
            let expected = format!("{} {still}", program.display());
            assert_eq!(error, expected);
            drop(writer);
            eventually("the program is reaped", || !is_there(pid));
        }
    }));
}

#[test]
fn cancelling_and_limits_end_the_run_of_a_program_that_may_not_be_killed() {
    isolated!(|| as_user(|program| {
        for grace in GRACES {
            let (command, _writer) = with_stdin_pipe(Command::new(program));
            let job = command.start(&Run::new().window(100)).expect("starts");
            read_until(&job, 0, "\n");
            job.stop(grace);
            assert_left(&job.wait().expect("a job result"), Stop::Cancelled, Fate::NotPermitted, "spawnfd-setuid");
        }
        for (runner, grace) in RUNNERS {
            let (mut command, _writer) = with_stdin_pipe(Command::new(program));
            let output = runner(&mut command, &Run::new().output_limit(1).grace(grace));
            assert_left(&output, Stop::OutputLimit, Fate::NotPermitted, "spawnfd-setuid");
        }
    }));
}

/// The library does not report the result of a dropped run. The run's permit, which the limiter gets back, shows that
/// the run has ended.
#[test]
fn dropping_ends_the_run_of_a_program_that_may_not_be_killed() {
    isolated!(|| as_user(|program| {
        let limiter = Limiter::new(2);
        let run = Run::new().window(100).grace(Duration::ZERO).limiter(&limiter);
        let (command, job_writer) = with_stdin_pipe(Command::new(program));
        let job = command.start(&run).expect("starts");
        read_until(&job, 0, "\n");
        let pid = job.id();
        let (command, future_writer) = with_stdin_pipe(Command::new(program));
        drop(started(command, &run));
        drop(job);
        eventually("both runs have ended", || limiter.running() == 0);
        assert!(is_there(pid), "the program still runs");
        drop((job_writer, future_writer));
        eventually("the program is reaped", || !is_there(pid));
    }));
}

#[test]
fn a_status_that_arrives_after_the_refused_kill_is_reported() {
    isolated!(|| as_user(|program| {
        for grace in GRACES {
            // The program has one second to end; a busy machine may need more.
            eventually("it ends in time", || {
                let (command, writer) = with_stdin_pipe(Command::new(program));
                let job = command.start(&Run::new().window(100)).expect("starts");
                read_until(&job, 0, "\n");
                job.stop(grace);
                // Within these 200 ms the kernel refuses the library's kill.
                let _ = job.wait_timeout(Duration::from_millis(200));
                drop(writer);
                let output = job.wait().expect("a job result");
                assert_eq!(output.stop, Stop::Cancelled);
                let has_status = output.code() == Some(5);
                assert_eq!(has_status, output.leftovers.is_empty(), "{output:?}");
                has_status
            });
        }
    }));
}

#[test]
fn an_adopted_program_that_may_not_be_killed_is_still_read() {
    isolated!(|| as_user(|program| {
        let (command, writer) = with_stdin_pipe(Command::new(program));
        let job = command.start(&Run::new().window(100).leftovers(Leftovers::Adopt)).expect("starts");
        let (_, since) = read_until(&job, 0, "\n");
        job.stop(Duration::ZERO);
        assert_left(&job.wait().expect("a job result"), Stop::Cancelled, Fate::NotPermitted, "spawnfd-setuid");
        drop(writer);
        read_until(&job, since, "bye\n");
        eventually("the program is reaped", || !is_there(job.id()));
    }));
}

#[test]
fn a_descendant_that_may_not_be_killed_is_a_leftover() {
    isolated!(|| as_user(|program| {
        for want in [TreeControl::Group, TreeControl::Guard] {
            for is_stopped in [false, true] {
                let (theirs, writer) = common::pipe();
                let mut command = sh("\"$0\" <&3 & read x");
                command.arg(program).descriptor(OwnedFd::from(theirs), 3);
                let job = command.start(&Run::new().window(100).writable(10).tree(want)).expect("starts");
                read_until(&job, 0, "\n");
                if is_stopped {
                    job.stop(Duration::ZERO);
                } else {
                    job.close_stdin();
                }
                let output = job.wait().expect("a job result");
                assert_eq!((output.status.is_some(), output.signal() == Some(9)), (true, is_stopped), "{output:?}");
                let left: Vec<_> = output.leftovers.iter().map(|left| (left.pid, left.fate)).collect();
                assert_eq!(left, [(pid_in(&output), Fate::NotPermitted)]);
                drop(writer);
                eventually("the descendant has ended", || !is_there(pid_in(&output)));
            }
        }
    }));
}

#[test]
fn a_timeout_ends_the_run_of_a_program_that_a_kill_does_not_end() {
    isolated!(|| {
        accept_signals_without_effect();
        for (runner, grace) in RUNNERS {
            let (output, writer) = timed_out(runner, || sh("echo $$; exec cat"), &Run::new().grace(grace));
            assert_left(&output, Stop::Timeout, Fate::Uninterruptible, "cat");
            let pid = pid_in(&output);
            assert_eq!(output.drain, Drain::Cut(vec![pid]));
            let error = output.check().expect_err("not ok").to_string();
            let reason = output.reason().expect("a timeout");
            let still =
                format!("{reason}, could not be killed (SIGKILL had no effect) and still runs as process {pid}");
            let expected = format!("/bin/sh {still}");
            assert_eq!(error, expected);
            drop(writer);
            eventually("the program is reaped", || !is_there(pid));
        }
        eventually("all children are reaped", || common::children().is_empty());
    });
}

#[test]
fn a_tree_that_a_kill_does_not_end_is_listed() {
    isolated!(|| {
        accept_signals_without_effect();
        for want in [TreeControl::Group, TreeControl::Guard] {
            let (theirs, writer) = common::pipe();
            let mut command = sh("cat <&3 & echo $!; read x");
            command.descriptor(OwnedFd::from(theirs), 3);
            let (command, shell_writer) = with_stdin_pipe(command);
            let job = command.start(&Run::new().window(100).tree(want)).expect("starts");
            let (child, _) = read_until(&job, 0, "\n");
            job.stop(Duration::ZERO);
            let output = job.wait().expect("a job result");
            let left: Vec<_> = output.leftovers.iter().map(|left| (left.pid, left.fate)).collect();
            let child = child.trim().parse().expect("a pid");
            assert_eq!(left, [job.id(), child].map(|pid| (pid, Fate::Uninterruptible)), "{output:?}");
            assert_eq!((output.stop, output.status), (Stop::Cancelled, None));
            drop((writer, shell_writer));
            eventually("both have ended", || !is_there(job.id()) && !is_there(child));
        }
    });
}
