// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs that an event loop drives. The test's own thread is the loop.

use std::future::Future;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use crate::common::job::sh;
use crate::common::{self, children, eventually, rounds};
use spawnfd::internal::EventLoop;
use spawnfd::job::{Stop, drive_runs};
use spawnfd::tree::TreeControl;
use spawnfd::{Command, Job, Run};
use spawnfd_tests::copy::{fork, wait_for};
use spawnfd_tests::isolated;
use spawnfd_tests::leaks::Snapshot;

/// Iterates like an event loop until `is_done`.
fn iterate(event_loop: &EventLoop, is_done: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_done() {
        assert!(Instant::now() < deadline, "the loop waits in vain");
        let mut fd = libc::pollfd { fd: event_loop.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: `fd` is valid for the one entry that poll writes.
        unsafe { libc::poll(&raw mut fd, 1, 1000) };
        event_loop.serve();
    }
}

/// Confines the calling thread, so that its reach changes.
fn confine_thread() {
    // SAFETY: the arguments are numbers.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
}

fn has_result(job: &Job) -> bool {
    job.try_wait().expect("it has started").is_some()
}

#[test]
fn the_thread_of_the_loop_handles_the_ends_of_its_runs() {
    isolated!(|| {
        let event_loop = EventLoop::new().expect("descriptors");
        let here = Arc::new(AtomicUsize::new(0));
        let own: ThreadId = thread::current().id();
        for _ in 0..rounds(100) {
            let job = event_loop.enter(|| sh("echo out; exit 3").start(&Run::new())).expect("starts");
            let count = here.clone();
            job.when_done(move || _ = count.fetch_add(usize::from(thread::current().id() == own), Ordering::SeqCst));
            iterate(&event_loop, || has_result(&job));
            let output = job.wait().expect("it has ended");
            assert_eq!((output.code(), &output.stdout[..]), (Some(3), &b"out\n"[..]));
        }
        // On a busy machine, the engine's thread may take the loop's place now and then.
        assert!(here.load(Ordering::SeqCst) > 0);
        // A run outside the loop has a thread.
        assert_eq!(sh("exit 4").start(&Run::new()).expect("starts").wait().expect("ends").code(), Some(4));
    });
}

#[test]
fn the_loop_keeps_deadlines() {
    isolated!(|| {
        let event_loop = EventLoop::new().expect("descriptors");
        // The second deadline is earlier than the first one.
        for timeout in [1000, 300, 20, 1, 0] {
            let run = Run::new().timeout(Duration::from_millis(timeout));
            let job = event_loop.enter(|| Command::new("sleep").arg("1000").start(&run)).expect("starts");
            iterate(&event_loop, || has_result(&job));
            assert_eq!(job.wait().expect("it has ended").stop, Stop::Timeout);
        }
        let idle = Run::new().idle_timeout(Duration::from_millis(50));
        let job = event_loop.enter(|| sh("echo out; exec sleep 1000").start(&idle)).expect("starts");
        iterate(&event_loop, || has_result(&job));
        assert_eq!(job.wait().expect("it has ended").stop, Stop::IdleTimeout);
    });
}

#[test]
fn a_blocked_loop_delays_neither_output_nor_deadlines() {
    isolated!(|| {
        let event_loop = EventLoop::new().expect("descriptors");
        // `wait` blocks the loop. The engine's thread takes its place.
        for _ in 0..3 {
            let run = Run::new().timeout(Duration::from_millis(50));
            let slow = event_loop.enter(|| Command::new("sleep").arg("1000").start(&run)).expect("starts");
            let loud = event_loop.enter(|| sh("head -c 1000000 /dev/zero; exit 5").start(&Run::new().keep_all()));
            let loud = loud.expect("starts");
            assert_eq!(slow.wait().expect("it ends").stop, Stop::Timeout);
            let output = loud.wait().expect("it ends");
            assert_eq!((output.code(), output.stdout.len()), (Some(5), 1_000_000));
            // The loop comes back.
            let next = event_loop.enter(|| sh("exit 6").start(&Run::new())).expect("starts");
            iterate(&event_loop, || has_result(&next));
            assert_eq!(next.wait().expect("it has ended").code(), Some(6));
        }
    });
}

#[test]
fn a_loop_that_blocks_at_random_moments_shares_its_runs_with_one_thread_at_a_time() {
    isolated!(|| {
        let event_loop = EventLoop::new().expect("descriptors");
        let (busy, overlaps) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let mut random = 1u32;
        for round in 0..rounds(40) {
            let jobs: Vec<Job> = (0..4)
                .map(|_| {
                    let job = event_loop.enter(|| sh("for i in 1 2 3; do echo $i; done").start(&Run::new()));
                    let job = job.expect("starts");
                    let (busy, overlaps) = (busy.clone(), overlaps.clone());
                    job.on_output(move || {
                        overlaps.fetch_add(usize::from(busy.swap(true, Ordering::SeqCst)), Ordering::SeqCst);
                        thread::yield_now();
                        busy.store(false, Ordering::SeqCst);
                    });
                    job
                })
                .collect();
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // About the time after which the engine's thread takes the loop's place; once, much longer.
            let blocked = if round == 7 { 3000 } else { random >> 26 };
            thread::sleep(Duration::from_millis(u64::from(blocked)));
            iterate(&event_loop, || jobs.iter().all(has_result));
            for job in jobs {
                let output = job.wait().expect("it has ended");
                assert_eq!((output.code(), &output.stdout[..]), (Some(0), &b"1\n2\n3\n"[..]));
            }
        }
        assert_eq!(overlaps.load(Ordering::SeqCst), 0);
    });
}

#[test]
fn runs_outlive_their_loop() {
    isolated!(|| {
        let event_loop = EventLoop::new().expect("descriptors");
        let run = Run::new().writable(1000).timeout(Duration::from_secs(100));
        let jobs = [(); 3].map(|()| event_loop.enter(|| Command::new("cat").start(&run)).expect("starts"));
        drop(event_loop);
        for job in jobs {
            job.write(b"there and back").expect("it reads");
            job.close_stdin();
            assert_eq!(job.wait().expect("it ends").stdout, b"there and back");
        }
        eventually("all programs have ended", || children().is_empty());
    });
}

#[test]
fn a_loop_whose_thread_confines_itself_gets_another_engine() {
    isolated!(|| {
        let event_loop = EventLoop::new().expect("descriptors");
        let before = event_loop.enter(|| sh("read line; echo $line").start(&Run::new().writable(100))).expect("starts");
        confine_thread();
        let after = event_loop.enter(|| sh("exit 7").start(&Run::new())).expect("starts");
        iterate(&event_loop, || has_result(&after));
        before.write(b"still driven\n").expect("it reads");
        assert_eq!(before.wait().expect("it ends").stdout, b"still driven\n");
        assert_eq!(after.wait().expect("it has ended").code(), Some(7));
    });
}

#[test]
fn the_engine_s_thread_signals_for_a_loop_whose_thread_has_confined_itself() {
    isolated!(|| {
        let event_loop = EventLoop::new().expect("descriptors");
        let run = Run::new().timeout(Duration::from_millis(300));
        let jobs =
            [(); 2].map(|()| event_loop.enter(|| Command::new("sleep").arg("1000").start(&run)).expect("starts"));
        let here = Arc::new(AtomicUsize::new(0));
        let own: ThreadId = thread::current().id();
        for job in &jobs {
            let count = here.clone();
            job.when_done(move || _ = count.fetch_add(usize::from(thread::current().id() == own), Ordering::SeqCst));
        }
        confine_thread();
        iterate(&event_loop, || jobs.iter().all(has_result));
        assert!(jobs.iter().all(|job| job.wait().is_ok_and(|output| output.stop == Stop::Timeout)));
        assert_eq!(here.load(Ordering::SeqCst), 0);
    });
}

#[test]
fn a_forked_process_leaves_the_loop_of_its_parent_alone() {
    isolated!(|| {
        let event_loop = EventLoop::new().expect("descriptors");
        let job = event_loop.enter(|| sh("read line").start(&Run::new().writable(100))).expect("starts");
        let copy = fork(|| {
            event_loop.serve();
            assert!(event_loop.enter(|| sh("exit 8").run()).is_ok_and(|output| output.code() == Some(8)));
            let own = event_loop.enter(|| sh("exit 9").start(&Run::new())).expect("starts");
            assert_eq!(own.wait().expect("it ends").code(), Some(9));
        });
        wait_for(copy);
        job.write(b"\n").expect("it reads");
        iterate(&event_loop, || has_result(&job));
        assert!(job.wait().expect("it has ended").ok());
    });
}

#[test]
fn a_loop_leaves_no_descriptor_behind() {
    isolated!(|| {
        // The table of a new guard would be another file.
        let run = Run::new().tree(TreeControl::Group);
        let run_once = || {
            let event_loop = EventLoop::new().expect("descriptors");
            let job = event_loop.enter(|| sh("exit 0").start(&run)).expect("starts");
            iterate(&event_loop, || has_result(&job));
        };
        let at_rest = || children().is_empty() && Snapshot::take().threads.len() <= 2;
        run_once();
        eventually("the engine's thread ends", at_rest);
        let before = Snapshot::take();
        run_once();
        eventually("the engine's thread ends", at_rest);
        common::assert_unchanged_except_sockets(&before);
    });
}

/// Runs a future on a tokio runtime that has one thread and a reactor, and drives the runs.
fn tokio_drives<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        tokio::time::timeout(Duration::from_secs(100), drive_runs(future)).await.expect("in time").expect("descriptors")
    })
}

#[test]
fn a_tokio_runtime_drives_the_runs_of_all_its_tasks() {
    isolated!(|| {
        let (own, here) = (thread::current().id(), Arc::new(AtomicUsize::new(0)));
        let count = here.clone();
        let run = move |code: i32| {
            let count = count.clone();
            async move {
                let job = sh(&format!("echo out; exit {code}")).start(&Run::new()).expect("starts");
                job.when_done(move || {
                    _ = count.fetch_add(usize::from(thread::current().id() == own), Ordering::SeqCst)
                });
                let output = job.wait_async().await.expect("runs");
                assert_eq!((output.code(), &output.stdout[..]), (Some(code), &b"out\n"[..]));
            }
        };
        tokio_drives(async {
            for round in 0..rounds(100) {
                run(round as i32 % 100).await;
            }
            let tasks: Vec<_> = (0..16).map(|code| tokio::spawn(run(code))).collect();
            for task in tasks {
                task.await.expect("no panic");
            }
            let slow = Run::new().timeout(Duration::from_millis(50));
            assert_eq!(sh("exec sleep 1000").run_async(&slow).await.expect("runs").stop, Stop::Timeout);
            let output = sh("head -c 10000000 /dev/zero").run_async(&Run::new().keep_all()).await.expect("runs");
            assert_eq!(output.stdout.len(), 10_000_000);
            // A call inside another one has the same loop.
            drive_runs(run(7)).await.expect("needs no descriptors");
            drop(sh("exec sleep 1000").start(&Run::new()).expect("starts"));
        });
        assert!(here.load(Ordering::SeqCst) > 0);
        // Nothing of the dropped job is left, and later runs have the library's thread.
        eventually("the dropped job's program ends", || children().is_empty());
        assert_eq!(sh("exit 4").run().expect("runs").code(), Some(4));
    });
}

#[test]
fn runs_outlive_the_tokio_runtime_that_drove_them() {
    isolated!(|| {
        let jobs: Vec<Job> = tokio_drives(async {
            (0..4).map(|code| sh(&format!("sleep 0.2; exit {code}")).start(&Run::new()).expect("starts")).collect()
        });
        for (code, job) in jobs.iter().enumerate() {
            assert_eq!(job.wait().expect("runs").code(), Some(code as i32));
        }
    });
}

#[test]
fn a_blocked_tokio_runtime_delays_neither_output_nor_deadlines() {
    isolated!(|| {
        tokio_drives(async {
            for _ in 0..3 {
                let run = Run::new().timeout(Duration::from_millis(50));
                let slow = Command::new("sleep").arg("1000").start(&run).expect("starts");
                let loud = sh("head -c 1000000 /dev/zero; exit 5").start(&Run::new().keep_all()).expect("starts");
                // These calls block the runtime.
                assert_eq!(slow.wait().expect("it ends").stop, Stop::Timeout);
                assert_eq!(loud.wait().expect("it ends").stdout.len(), 1_000_000);
                assert_eq!(sh("exit 6").run_async(&Run::new()).await.expect("runs").code(), Some(6));
            }
        });
    });
}
