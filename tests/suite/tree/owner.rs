// SPDX-License-Identifier: MIT OR Apache-2.0
//! By default no program outlives its owner, whichever call started the program and however the owner ends.
//!
//! A forked process is the owner. The owner and all processes of its tree have the write end of one pipe as standard
//! error. So the test reads end of file once all of them have ended.

use std::io::{PipeReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::process::{ExitStatus, abort, exit};
use std::sync::mpsc::channel;
use std::task::{Context, Waker};
use std::thread;
use std::time::Duration;

use spawnfd::tree::{Tree, TreeControl};
use spawnfd::{Command, Run, Stdio};
use spawnfd_tests::{isolated, skip};

use crate::common::tree::{PATIENCE, become_subreaper, kill};
use crate::common::{pipe, rounds, set_soft_limit};

/// A program that ignores signals, with a child in its session and a child in another session.
const STUBBORN: &str = "trap '' HUP INT TERM; setsid sleep 1000 & sleep 1000 & echo started >&2; wait";

/// A program that SIGTERM ends, with a child in another session. Once the program has ended, no search finds the child.
const ENDS_AT_SIGTERM: &str = "setsid sleep 1000 & echo started >&2; while :; do sleep 1; done";

/// A program with a descendant that has left the session and lost its parent, as a daemon does.
const DAEMONISES: &str = "(setsid sleep 1000 >/dev/null &); trap '' HUP INT TERM; echo started >&2; sleep 1000";

/// The time between SIGTERM, which the programs ignore, and SIGKILL.
const GRACE: Duration = Duration::from_millis(1);

/// The ways in which an owner ends.
#[derive(Clone, Copy, Debug)]
enum End {
    Signal(i32),
    /// `main` returns.
    Exit,
    Panic,
    Abort,
}

const ENDS: [End; 6] = [
    End::Signal(libc::SIGINT),
    End::Signal(libc::SIGTERM),
    End::Signal(libc::SIGKILL),
    End::Exit,
    End::Panic,
    End::Abort,
];

impl End {
    /// Ends the calling process.
    fn take_place(self) {
        match self {
            End::Signal(signal) => {
                kill(std::process::id() as i32, signal);
                thread::park_timeout(PATIENCE);
            }
            End::Exit => exit(0),
            End::Panic => panic!("the owner panics"),
            End::Abort => abort(),
        }
    }

    /// Whether a process that ended in this way has this status.
    fn explains(self, status: ExitStatus) -> bool {
        match self {
            End::Signal(signal) => status.signal() == Some(signal),
            End::Exit => status.code() == Some(0),
            // A panic of another thread than the first is replaced by an exit.
            End::Panic => matches!(status.code(), Some(0 | 101)),
            End::Abort => status.signal() == Some(libc::SIGABRT),
        }
    }
}

/// An owner's part of a test: it starts `command`, waits until the program has started, and ends.
struct Owner {
    command: Command<'static>,
    run: Run,
    end: EndOfOwner,
}

/// The end of an owner, once its program has started.
struct EndOfOwner {
    end: End,
    has_started: PipeReader,
}

impl EndOfOwner {
    fn wait_for_start(&mut self) {
        self.has_started.read_exact(&mut [0]).expect("own pipe");
    }

    fn take_place(mut self) {
        self.wait_for_start();
        self.end.take_place();
    }

    /// Cancels the run and ends the owner while the library ends the tree: over the rounds, the owner's end falls on
    /// different moments of the cancellation, which takes about 2 ms.
    fn take_place_during(mut self, cancel: impl FnOnce()) {
        self.wait_for_start();
        cancel();
        thread::sleep(Duration::from_micros(u64::from(std::process::id()) * 37 % 3000));
        self.end.take_place();
    }
}

fn run(Owner { command, run, end }: Owner) {
    thread::spawn(move || _ = command.run_with(&run));
    end.take_place();
}

/// The process's first thread is in the call when the process ends.
fn run_in_the_first_thread(Owner { command, run, mut end }: Owner) {
    // A panic ends the process only in its first thread.
    if matches!(end.end, End::Panic) {
        end.end = End::Exit;
    }
    thread::spawn(|| end.take_place());
    let _ = command.run_with(&run);
}

fn run_then(Owner { command, run, end }: Owner) {
    command.run_then(&run, |_| ()).expect("starts");
    end.take_place();
}

fn run_then_and_cancel(Owner { command, run, end }: Owner) {
    let handle = command.run_then(&run, |_| ()).expect("starts");
    end.take_place_during(|| handle.cancel());
}

fn start(Owner { command, run, end }: Owner) {
    let _job = command.start(&run).expect("starts");
    end.take_place();
}

fn start_and_drop(Owner { command, run, end }: Owner) {
    let job = command.start(&run).expect("starts");
    end.take_place_during(|| drop(job));
}

fn start_and_stop(Owner { command, run, end }: Owner) {
    let job = command.start(&run).expect("starts");
    end.take_place_during(|| job.stop(GRACE));
}

/// A server with four jobs, which ends while SIGTERM ends the jobs.
fn start_four_and_stop(Owner { command, run, end }: Owner) {
    let run = run.grace(PATIENCE);
    let jobs: Vec<_> = (0..4).map(|_| command.start(&run).expect("starts")).collect();
    end.take_place_during(|| jobs.iter().for_each(|job| job.stop(PATIENCE)));
}

fn run_async(Owner { command, run, end }: Owner) {
    let mut future = pin!(command.run_async(&run));
    assert!(future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    end.take_place();
}

fn run_async_and_drop(Owner { command, run, end }: Owner) {
    let mut future = Box::pin(command.run_async(&run));
    assert!(future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    end.take_place_during(|| drop(future));
}

fn run_async_and_abort(Owner { command, run, end }: Owner) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let task = runtime.spawn(async move { command.run_async(&run).await });
    // The runtime polls the task, which starts the program.
    runtime.block_on(tokio::task::yield_now());
    end.take_place_during(|| {
        task.abort();
        assert!(runtime.block_on(task).expect_err("aborted").is_cancelled());
    });
}

fn run_async_and_time_out(Owner { command, run, end }: Owner) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    runtime.block_on(async {
        let future = command.run_async(&run);
        assert!(tokio::time::timeout(Duration::from_millis(20), future).await.is_err());
    });
    // On a busy machine, the program may have ended before it printed this.
    eprintln!("started");
    end.take_place();
}

/// Forks an owner of a program. If there is a `delay`, this process sends the owner its signal after that time.
/// Otherwise the owner ends itself once the program has started. Asserts that no process is left.
fn assert_nothing_is_left(start: fn(Owner), script: &str, run: &Run, end: End, delay: Option<Duration>) {
    let (mut output, stderr) = pipe();
    let (has_started, mut report_start) = pipe();
    // SAFETY: the child makes the same calls as a program with one thread, and ends by exit or by a signal.
    let owner = unsafe { libc::fork() };
    if owner == 0 {
        drop((output, report_start));
        // SAFETY: the call takes integers, and no Rust value owns number 2.
        assert_eq!(unsafe { libc::dup2(stderr.as_raw_fd(), 2) }, 2);
        drop(stderr);
        set_soft_limit(libc::RLIMIT_CORE, 0);
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]).stderr(Stdio::Inherit);
        let owner = Owner { command, run: run.clone(), end: EndOfOwner { end, has_started } };
        let outcome = catch_unwind(AssertUnwindSafe(|| start(owner)));
        exit(if outcome.is_err() { 101 } else { 0 });
    }
    drop((stderr, has_started));
    match (delay, end) {
        (Some(delay), End::Signal(signal)) => {
            thread::sleep(delay);
            kill(owner, signal);
        }
        _ => {
            output.read_exact(&mut [0; 8]).expect("own pipe");
            report_start.write_all(b"x").expect("own pipe");
        }
    }
    let mut status = 0;
    // SAFETY: the call stores an int, and the owner is a child of this process.
    assert_eq!(unsafe { libc::waitpid(owner, &raw mut status, 0) }, owner);
    let status = ExitStatus::from_raw(status);
    // A process that is left keeps the pipe open.
    let (sender, receiver) = channel();
    let reader = thread::spawn(move || {
        let mut text = Vec::new();
        output.read_to_end(&mut text).expect("own pipe");
        sender.send(text).expect("the receiver waits");
    });
    let text = receiver.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("a process is left after {end:?}"));
    reader.join().expect("it has sent the text");
    assert!(end.explains(status), "{status} after {end:?}: {}", String::from_utf8_lossy(&text));
    reap_orphans();
}

/// Reaps the ended processes that this process, a subreaper, has adopted. They would use up the pids of all rounds.
fn reap_orphans() {
    // SAFETY: the call takes integers and a null pointer, and no other code waits for children of this process.
    while unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) } > 0 {}
}

macro_rules! nothing_outlives_the_owner_of {
    ($($call:ident),* $(,)?) => {
        mod nothing_outlives_the_owner_of {
            use super::*;
            $(
                #[test]
                fn $call() {
                    isolated!(limit: Duration::from_secs(if rounds(200) == 200 { 3600 } else { 600 }), || {
                        become_subreaper();
                        for end in ENDS {
                            for round in 0..rounds(200) {
                                let script = [STUBBORN, ENDS_AT_SIGTERM][round % 2];
                                assert_nothing_is_left(super::$call, script, &Run::new().grace(GRACE), end, None);
                            }
                        }
                    });
                }
            )*
        }
    };
}

nothing_outlives_the_owner_of! {
    run, run_in_the_first_thread, run_then, run_then_and_cancel, start, start_and_drop, start_and_stop,
    start_four_and_stop, run_async,
    run_async_and_drop, run_async_and_abort, run_async_and_time_out,
}

#[test]
fn nothing_outlives_an_owner_that_is_killed_during_a_start() {
    isolated!(limit: Duration::from_secs(600), || {
        become_subreaper();
        let killed = End::Signal(libc::SIGKILL);
        for call in [run, run_in_the_first_thread, start, run_async] {
            for round in 0..rounds(400) {
                let delay = Duration::from_micros(round as u64 * 37 % 4000);
                assert_nothing_is_left(call, STUBBORN, &Run::new(), killed, Some(delay));
            }
        }
    });
}

macro_rules! a_daemon_ends_with_its_owner_in {
    ($($tier:ident: $tree:expr,)*) => {
        mod a_daemon_ends_with_its_owner_in {
            use super::*;
            $(
                #[test]
                fn $tier() {
                    isolated!(limit: Duration::from_secs(if rounds(200) == 200 { 3600 } else { 600 }), || {
                        assert_daemons_end_with_their_owner($tree);
                    });
                }
            )*
        }
    };
}

// The other tiers do not find a process that has left the session and lost its parent.
a_daemon_ends_with_its_owner_in! {
    cgroup: TreeControl::Cgroup,
    subreaper: TreeControl::Subreaper,
    pidns: TreeControl::Pidns,
}

fn assert_daemons_end_with_their_owner(tree: TreeControl) {
    become_subreaper();
    if let Err(error) = Tree::prepare(tree) {
        return skip(&format!("this tier is not available: {error}"));
    }
    let run_in_tree = Run::new().grace(GRACE).tree(tree);
    // A short run has 5 rounds for each of the 18 combinations.
    let rounds = if rounds(200) == 200 { 200 } else { 5 };
    for call in [run, start, run_async_and_drop] {
        for end in ENDS {
            for _ in 0..rounds {
                assert_nothing_is_left(call, DAEMONISES, &run_in_tree, end, None);
            }
        }
    }
}
