// SPDX-License-Identifier: MIT OR Apache-2.0
//! Limits of concurrent runs: every kind of run waits for a permit, and releases it with its result.

use crate::common;
use std::pin::Pin;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use crate::common::eventually;
use crate::common::job::{future, sh, started};
use spawnfd::error::{Errno, ErrorKind, Stage};
use spawnfd::job::{Leftovers, Stop};
use spawnfd::limits::Limiter;
use spawnfd::session::SessionOptions;
use spawnfd::tree::TreeControl;
use spawnfd::{Command, Output, Run, Session, Stdio};
use spawnfd_tests::{enough_time, isolated, scratch};

fn count(limiter: &Limiter) -> (usize, usize) {
    (limiter.running(), limiter.waiting())
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    runtime.block_on(future)
}

#[test]
fn every_kind_of_run_waits_for_a_permit() {
    isolated!(|| {
        let limiter = Limiter::new(1);
        let run = Run::new().limiter(&limiter);
        type Runner = fn(&Run) -> Output;
        let runners: [Runner; 4] = [
            |run| sh("echo 1").run_with(run).expect("runs"),
            |run| sh("echo 1").start(run).expect("starts").wait().expect("a job result").as_ref().clone(),
            |run| {
                let (sender, receiver) = channel();
                sh("echo 1")
                    .run_then(run, move |output| sender.send(output).expect("the receiver is alive"))
                    .expect("starts");
                receiver.recv().expect("a message").expect("runs")
            },
            |run| block_on(sh("echo 1").run_async(run)).expect("runs"),
        ];
        for runner in runners {
            let held = sh("read x").start(&run.clone().writable(10)).expect("starts");
            assert_eq!(count(&limiter), (1, 0));
            std::thread::scope(|scope| {
                let waiting = scope.spawn(|| runner(&run));
                eventually("the run waits for a permit", || count(&limiter) == (1, 1));
                held.close_stdin();
                assert_eq!(waiting.join().expect("no panic").stdout_text(), "1\n");
            });
            eventually("all permits are released", || count(&limiter) == (0, 0));
        }
    });
}

#[test]
fn a_permit_is_released_with_the_result() {
    isolated!(|| {
        let limiter = Limiter::new(1);
        let run = Run::new().limiter(&limiter);
        // The library releases the permit although the adopted process lives on.
        let job = sh("sleep 1000 & exit").start(&run.clone().leftovers(Leftovers::Adopt)).expect("starts");
        assert_eq!(job.wait().expect("a job result").leftovers.len(), 1);
        assert_eq!(count(&limiter), (0, 0));
        // The library releases the permit if the program does not exist, and if the child fails
        // before exec.
        Command::new("/nonexistent/program").run_with(&run).expect_err("no such program");
        Command::new("/nonexistent/program").run_then(&run, |_| ()).expect_err("no such program");
        sh("")
            .current_dir("/nonexistent")
            .start(&run)
            .map(|job| job.wait())
            .and_then(|ended| ended)
            .expect_err("no such directory");
        eventually("all permits are released", || count(&limiter) == (0, 0));
        drop(sh("exec sleep 1000").start(&run).expect("starts"));
        eventually("a dropped job releases its permit", || count(&limiter) == (0, 0));
        let permit = limiter.try_acquire().expect("a free permit");
        assert!(sh("exit").run_with(&Run::new().permit(permit)).expect("runs").ok() && count(&limiter) == (0, 0));
        // A start that fails early returns the permit, although the options live on.
        let run =
            Run::new().limiter(&limiter).input(&b"text"[..]).permit(limiter.try_acquire().expect("a free permit"));
        sh("").stdin(Stdio::Null).start(&run).expect_err("two sources of input");
        assert_eq!(count(&limiter), (0, 0));
        // A command of a session uses the permit, too.
        let session = Session::open(Command::new("bash"), SessionOptions::new()).expect("a session");
        let run = Run::new().limiter(&limiter).permit(limiter.try_acquire().expect("a free permit"));
        assert!(session.run("true", &run).expect("runs").ok() && count(&limiter) == (0, 0));
    });
}

/// A callback runs in the library's engine thread. If the callback waited there for a run, the engine thread could
/// not end that run, so the library returns an error.
#[test]
fn blocking_in_a_callback_is_an_error() {
    isolated!(|| {
        let limiter = Limiter::new(1);
        let run = Run::new().limiter(&limiter);
        let holds = sh("cat").start(&run.clone().writable(10)).expect("starts");
        let (sender, receiver) = std::sync::mpsc::channel();
        let done = move |_| {
            let next = sh("true").run_then(&run, |_| ()).map(drop).expect_err("no permit is free");
            let taken = limiter.acquire().expect_err("no permit is free");
            let unfinished = holds.wait().expect_err("the job runs");
            let soon = holds.wait_timeout(Duration::from_secs(1000)).expect_err("the job runs");
            let errors = [next, taken, unfinished, soon].map(|error| (error.stage(), error.errno()));
            let now = holds.wait_timeout(Duration::ZERO).expect("a job result").is_none();
            assert_eq!(limiter.waiting(), 0);
            sender.send((errors, now, holds, run)).expect("the receiver is alive");
        };
        Command::new("true").run_then(&Run::new(), done).expect("starts");
        let (errors, now, holds, run) = receiver.recv_timeout(Duration::from_secs(60)).expect("at once");
        let [limit, wait] = [(Stage::Limit, Errno::EAGAIN), (Stage::Wait, Errno::EDEADLK)];
        assert_eq!((errors, now), ([limit, limit, wait, wait], true));
        holds.close_stdin();
        assert!(holds.wait().expect("other threads can wait").ok());
        assert!(sh("true").run_with(&run).expect("a permit is free").ok());
    });
}

#[test]
fn the_timeout_starts_with_the_program() {
    isolated!(|| {
        let output = enough_time(Duration::from_secs(2), |time, mark| {
            let limiter = Limiter::new(1);
            let held = limiter.try_acquire().expect("a free permit");
            let run = Run::new().limiter(&limiter).timeout(time);
            std::thread::scope(|scope| {
                let waiting = scope.spawn(|| sh(": >\"$0\"; exit 5").arg(mark).run_with(&run).expect("runs"));
                eventually("it waits", || limiter.waiting() == 1);
                std::thread::sleep(time + Duration::from_millis(100));
                drop(held);
                waiting.join().expect("no panic")
            })
        });
        assert_eq!((output.stop, output.code()), (Stop::Exited, Some(5)));
    });
}

#[test]
fn tasks_wait_for_a_permit_without_a_thread() {
    isolated!(|| {
        let limiter = Limiter::new(3);
        let run = Run::new().limiter(&limiter).tree(TreeControl::Group);
        let threads = || std::fs::read_dir("/proc/self/task").expect("/proc").count();
        let before = threads();
        block_on(async {
            let mut commands: Vec<Command<'_>> = (0..60).map(|_| sh("exit 2")).collect();
            let futures: Vec<_> = commands.iter_mut().map(|command| Box::pin(command.run_async(&run))).collect();
            let mut most = 0;
            for output in join_all(futures, || most = most.max(threads())).await {
                assert_eq!(output.expect("runs").code(), Some(2));
            }
            assert!(most <= before + 1, "{most} threads, the engine's included");
            // Dropping a future removes it from the limiter's queue.
            let held = [(); 3].map(|()| limiter.try_acquire().expect("a free permit"));
            let command = sh("exit");
            let waited = tokio::time::timeout(Duration::from_millis(20), command.run_async(&run)).await;
            assert!(waited.is_err() && count(&limiter) == (3, 0));
            drop(held);
            assert!(command.run_async(&run).await.expect("runs").ok());
        });
        eventually("all permits are released", || count(&limiter) == (0, 0));
    });
}

/// Each program counts the programs that run now. The count includes itself.
#[test]
fn concurrent_tasks_never_exceed_the_limit() {
    isolated!(|| {
        const LIMIT: usize = 4;
        let directory = scratch();
        let count_programs = r#"mkdir "$0/$$"; ls "$0" | wc -l; rmdir "$0/$$""#;
        let limiter = Limiter::new(LIMIT);
        let run = Run::new().limiter(&limiter);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).build().expect("a runtime");
        let tasks: Vec<_> = (0..50)
            .map(|_| {
                let mut command = sh(count_programs);
                command.arg(directory.path());
                runtime.spawn(future(command, &run))
            })
            .collect();
        for task in tasks {
            let output = runtime.block_on(task).expect("no panic").expect("no EAGAIN");
            let running: usize = output.stdout_text().trim().parse().expect("a number");
            assert!(output.ok() && (1..=LIMIT).contains(&running), "{output:?}");
        }
        assert_eq!(count(&limiter), (0, 0));
    });
}

#[test]
fn futures_start_in_the_order_of_their_first_polls() {
    isolated!(|| {
        let directory = scratch();
        let log = directory.path().join("log");
        let limiter = Limiter::new(1);
        let run = Run::new().limiter(&limiter);
        let held = limiter.try_acquire();
        let mut waiting: Vec<_> = (0..8)
            .map(|number| {
                let mut command = sh(&format!("echo {number} >>\"$0\""));
                command.arg(&log);
                Box::pin(started(command, &run))
            })
            .collect();
        // The order of later polls has no effect.
        waiting.reverse();
        assert_eq!(count(&limiter), (1, 8));
        drop(held);
        let outputs = block_on(join_all(waiting, || ()));
        assert!(outputs.iter().all(|output| output.as_ref().is_ok_and(Output::ok)));
        let order = std::fs::read_to_string(&log).expect("own file");
        assert_eq!(order.split_whitespace().collect::<String>(), "01234567");
    });
}

#[test]
fn set_limit_starts_waiting_futures() {
    isolated!(|| {
        let limiter = Limiter::new(0);
        let run = Run::new().limiter(&limiter);
        let waiting: Vec<_> = (0..3).map(|_| Box::pin(started(sh("exit 4"), &run))).collect();
        assert_eq!((count(&limiter), common::children()), ((0, 3), [].into()));
        limiter.set_limit(2);
        assert_eq!(count(&limiter), (2, 1));
        for output in block_on(join_all(waiting, || ())) {
            assert_eq!(output.expect("runs").code(), Some(4));
        }
        assert_eq!(count(&limiter), (0, 0));
    });
}

#[test]
fn invalid_futures_fail_before_they_wait() {
    isolated!(|| {
        let limiter = Limiter::new(0);
        let run = Run::new().limiter(&limiter).input("x").writable(10);
        let error = block_on(sh("exit").run_async(&run)).expect_err("two sources of input");
        assert_eq!((error.kind(), count(&limiter)), (ErrorKind::Invalid, (0, 0)));
    });
}

/// Tasks end at random times: while they wait for a place, after they have got one, and while their program runs.
#[test]
fn dropped_futures_return_their_places() {
    isolated!(|| {
        let limiter = Limiter::new(3);
        let run = Run::new().limiter(&limiter).grace(Duration::ZERO);
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_time().build().expect("a runtime");
        let mut random = 1_u64;
        for _ in 0..common::rounds(10) {
            let tasks: Vec<_> = (0..60)
                .map(|_| {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let [wait, which] = [(random >> 33) % 30_000, (random >> 60) % 3];
                    let command = sh(["exit 0", "sleep 0.005", "exec sleep 1000"][which as usize]);
                    let run = future(command, &run);
                    runtime.spawn(async move { tokio::time::timeout(Duration::from_micros(wait), run).await })
                })
                .collect();
            for task in tasks {
                let _: Option<Output> = runtime.block_on(task).expect("no panic").ok().map(|run| run.expect("runs"));
            }
            eventually("all places are free", || count(&limiter) == (0, 0));
        }
        let all_at_once: Vec<_> = (0..3).map(|_| Box::pin(started(sh("read x"), &run))).collect();
        assert_eq!(limiter.waiting(), 0);
        drop(all_at_once);
        eventually("all are reaped", || common::children().is_empty());
    });
}

type RunFuture = Pin<Box<dyn Future<Output = spawnfd::Result<Output>> + Send>>;

/// A waker that polls its future in the thread that wakes it.
struct PollsInWaker {
    /// The future, or `None` during a poll; and whether a wakeup has arrived during the poll.
    task: Mutex<(Option<RunFuture>, bool)>,
    done: Sender<String>,
}

impl Wake for PollsInWaker {
    fn wake(self: Arc<Self>) {
        let mut task = self.task.lock().expect("not poisoned");
        task.1 = true;
        while let (Some(_), true) = &*task {
            let mut run = task.0.take().expect("just seen");
            task.1 = false;
            drop(task);
            if let Poll::Ready(output) = run.as_mut().poll(&mut Context::from_waker(&Waker::from(self.clone()))) {
                return self
                    .done
                    .send(output.expect("runs").stdout_text().into_owned())
                    .expect("the receiver is alive");
            }
            task = self.task.lock().expect("not poisoned");
            task.0 = Some(run);
        }
    }
}

/// When a run ends, the engine thread grants its place and wakes the next task. A waker that polls at once starts the
/// next program in the engine thread.
#[test]
fn a_waker_may_poll_in_the_engine_thread() {
    isolated!(|| {
        let limiter = Limiter::new(1);
        let run = Run::new().limiter(&limiter);
        let held = sh("cat").start(&run.clone().writable(10)).expect("starts");
        let (done, outputs) = channel();
        for number in 0..20 {
            let run: RunFuture = Box::pin(future(sh(&format!("echo {number}")), &run));
            Arc::new(PollsInWaker { task: Mutex::new((Some(run), false)), done: done.clone() }).wake();
        }
        assert_eq!(count(&limiter), (1, 20));
        held.close_stdin();
        drop(done);
        for number in 0..20 {
            let text = outputs.recv_timeout(Duration::from_secs(60)).expect("no deadlock");
            assert_eq!(text, format!("{number}\n"));
        }
        assert_eq!(count(&limiter), (0, 0));
    });
}

/// Polls all futures in this task, until all are done.
async fn join_all<F: Future + Unpin>(futures: Vec<F>, mut each: impl FnMut()) -> Vec<F::Output> {
    let mut waiting: Vec<Option<F>> = futures.into_iter().map(Some).collect();
    let mut done = Vec::new();
    std::future::poll_fn(|context| {
        for place in &mut waiting {
            let Some(future) = place else { continue };
            if let std::task::Poll::Ready(output) = std::pin::Pin::new(future).poll(context) {
                done.push(output);
                *place = None;
            }
        }
        each();
        if waiting.iter().any(Option::is_some) { std::task::Poll::Pending } else { std::task::Poll::Ready(()) }
    })
    .await;
    done
}

/// Threads acquire and release permits while the process forks. In the forked child all permits are free, and the
/// child can wait for a permit.
#[test]
fn a_forked_child_has_permits_of_its_own() {
    isolated!(|| {
        let limiter = Limiter::new(2);
        let held = limiter.try_acquire().expect("a free permit");
        let mut waiting = {
            let _all = limiter.try_acquire().expect("a free permit");
            let mut waiting = limiter.acquire_async();
            assert!(waiting.take().is_none(), "no permit is free");
            limiter.set_limit(1);
            waiting
        };
        let over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let busy = Limiter::new(1);
            for _ in 0..3 {
                let (busy, over) = (busy.clone(), &over);
                scope.spawn(move || {
                    while !over.load(std::sync::atomic::Ordering::Relaxed) {
                        drop(busy.acquire().expect("a descriptor"));
                    }
                });
            }
            for _ in 0..common::rounds(200) {
                common::in_single_threaded_fork(|| {
                    assert_eq!((count(&busy), count(&limiter)), ((0, 0), (0, 0)));
                    assert!(waiting.take().is_some(), "queued again, and a permit is free");
                    drop(busy.acquire().expect("a descriptor"));
                    assert!(sh("exit").run_with(&Run::new().limiter(&busy)).expect("runs").ok());
                });
            }
            over.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        assert_eq!(count(&limiter), (1, 1), "the forked children have not changed the parent's permits");
        drop(held);
        assert!(waiting.take().is_some());
        assert_eq!(count(&limiter), (0, 0));
    });
}
