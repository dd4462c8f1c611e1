// SPDX-License-Identifier: MIT OR Apache-2.0
//! By default no program outlives its owner, whichever call started the program and however the owner ends.
//!
//! A forked process is the owner. The owner and all processes of its tree have the write end of one pipe as standard
//! error. So the test reads end of file once all of them have ended.

use std::io::{PipeReader, Read, Write};
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::process::{abort, exit};
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};

use spawnfd::tree::{Tree, TreeControl};
use spawnfd::{Command, Run, Stdio};
use spawnfd_tests::{isolated, skip};

use crate::common::tree::{PATIENCE, become_subreaper};
use crate::common::{pipe, rounds, set_soft_limit};

/// A program that ignores signals, with a child in its session and a child in another session.
const STUBBORN: &str = "trap '' HUP INT TERM; setsid sleep 1000 & sleep 1000 & echo started >&2; wait";

/// A program with a descendant that has left the session and lost its parent, as a daemon does.
const DAEMONISES: &str = "(setsid sleep 1000 >/dev/null &); trap '' HUP INT TERM; echo started >&2; sleep 1000";

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
    /// Ends the calling process. With [`End::Signal`], waits for the signal.
    fn take_place(self) {
        match self {
            End::Signal(_) => thread::park_timeout(PATIENCE),
            End::Exit => exit(0),
            End::Panic => panic!("the owner panics"),
            End::Abort => abort(),
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
}

fn run(Owner { mut command, run, end }: Owner) {
    thread::spawn(move || _ = command.run_with(&run));
    end.take_place();
}

/// The process's first thread is in the call when the process ends.
fn run_in_the_first_thread(Owner { mut command, run, mut end }: Owner) {
    // A panic ends the process only in its first thread.
    if matches!(end.end, End::Panic) {
        end.end = End::Exit;
    }
    thread::spawn(|| end.take_place());
    let _ = command.run_with(&run);
}

fn run_then(Owner { mut command, run, end }: Owner) {
    command.run_then(&run, |_| ()).expect("starts");
    end.take_place();
}

fn start(Owner { mut command, run, end }: Owner) {
    let _job = command.start(&run).expect("starts");
    end.take_place();
}

fn start_and_drop(Owner { mut command, run, mut end }: Owner) {
    let job = command.start(&run).expect("starts");
    end.wait_for_start();
    drop(job);
    end.end.take_place();
}

fn run_async(Owner { mut command, run, end }: Owner) {
    let mut future = pin!(command.run_async(&run));
    assert!(future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    end.take_place();
}

fn run_async_and_drop(Owner { mut command, run, mut end }: Owner) {
    {
        let mut future = pin!(command.run_async(&run));
        assert!(future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        end.wait_for_start();
    }
    end.end.take_place();
}

fn run_async_and_time_out(Owner { mut command, run, end }: Owner) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    runtime.block_on(async {
        let future = command.run_async(&run);
        assert!(tokio::time::timeout(Duration::from_millis(20), future).await.is_err());
    });
    // On a busy machine, the program may have ended before it printed this.
    eprintln!("started");
    end.take_place();
}

/// Forks an owner of a program. If there is a `delay`, the owner gets its signal after that time. Otherwise the owner
/// ends once the program has started. Asserts that no process is left.
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
    match delay {
        Some(delay) => thread::sleep(delay),
        None => {
            output.read_exact(&mut [0; 8]).expect("own pipe");
            report_start.write_all(b"x").expect("own pipe");
        }
    }
    // SAFETY: the calls take integers and a null pointer, and the owner is a child of this process.
    unsafe {
        if let End::Signal(signal) = end {
            assert_eq!(libc::kill(owner, signal), 0);
        }
        assert_eq!(libc::waitpid(owner, std::ptr::null_mut(), 0), owner);
    }
    // A process that is left keeps the pipe open, and the test's time limit ends this read.
    let begun = Instant::now();
    output.read_to_end(&mut Vec::new()).expect("own pipe");
    assert!(begun.elapsed() < PATIENCE, "{:?} after {end:?}", begun.elapsed());
}

macro_rules! nothing_outlives_the_owner_of {
    ($($call:ident),* $(,)?) => {
        mod nothing_outlives_the_owner_of {
            use super::*;
            $(
                #[test]
                fn $call() {
                    isolated!(limit: Duration::from_secs(600), || {
                        become_subreaper();
                        for end in ENDS {
                            for _ in 0..rounds(200) {
                                let run = Run::new().grace(Duration::from_millis(1));
                                assert_nothing_is_left(super::$call, STUBBORN, &run, end, None);
                            }
                        }
                    });
                }
            )*
        }
    };
}

nothing_outlives_the_owner_of! {
    run, run_in_the_first_thread, run_then, start, start_and_drop, run_async, run_async_and_drop,
    run_async_and_time_out,
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

#[test]
fn a_daemon_ends_with_its_owner_in_a_cgroup() {
    isolated!(limit: Duration::from_secs(if rounds(200) == 200 { 3600 } else { 600 }), || {
        become_subreaper();
        if let Err(error) = Tree::prepare(TreeControl::Cgroup) {
            return skip(&format!("no cgroup can be made: {error}"));
        }
        for call in [run, start, run_async_and_drop] {
            for end in ENDS {
                for _ in 0..rounds(200) {
                    let run = Run::new().grace(Duration::from_millis(1)).tree(TreeControl::Cgroup);
                    assert_nothing_is_left(call, DAEMONISES, &run, end, None);
                }
            }
        }
    });
}
