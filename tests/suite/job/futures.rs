// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs as futures. They work on any executor and need no thread for each run. Output and input implement tokio's
//! traits.

use crate::common;
use std::fs;
use std::future::Future;
use std::io::{ErrorKind, PipeReader, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use crate::common::job::{block_on, future, sh, started};
use crate::common::{eventually, rounds};
use spawnfd::error::Errno;
use spawnfd::internal::drive;
use spawnfd::job::{Event, EventOptions, Fate, JobOutput, Leftovers, Stop, Stream, WhenFull};
use spawnfd::limits::Limiter;
use spawnfd::tree::TreeControl;
use spawnfd::{Command, Run};
use spawnfd_tests::leaks::Snapshot;
use spawnfd_tests::{confine, isolated, skip};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

/// Longer than any step of these tests.
const LONG: Duration = Duration::from_secs(100);

/// Runs a future on a tokio runtime that has only one thread and a clock: no reactor, signals or processes.
pub(super) fn tokio_block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    runtime.block_on(async { timeout(LONG, future).await.expect("in time") })
}

/// A waker that counts how often it is woken.
#[derive(Default)]
pub(super) struct Count(pub(super) AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A copy of the caller's descriptor table would cost 1 ms for 10,000 descriptors.
#[test]
fn a_start_does_not_copy_the_descriptors_of_a_caller_without_low_numbers() {
    isolated!(|| {
        if fs::read_to_string("/proc/self/status").is_ok_and(|status| !status.contains("Seccomp:\t0")) {
            return skip("Docker's profile refuses pidfd_getfd, so the kernel copies the table");
        }
        let open = || fs::File::open("/dev/null").expect("it exists");
        let low: Vec<fs::File> = std::iter::repeat_with(open).take(300).collect();
        confine::deny(&[("clone3", libc::ENOSYS)]).expect("confined");
        // Without CLONE_FILES, the kernel copies the table.
        let copies = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD;
        confine::kill_with("clone", 0, copies as u32).expect("confined");
        for _ in 0..3 {
            let output = block_on(sh("echo out; exit 3").run_async(&Run::new())).expect("runs");
            assert_eq!((output.stop, output.code(), &output.stdout[..]), (Stop::Exited, Some(3), &b"out\n"[..]));
        }
        drop(low);
    });
}

#[test]
fn the_descriptors_of_earlier_runs_keep_low_numbers_while_nothing_runs() {
    isolated!(|| starts_without_a_copy_when_no_number_is_low(&|run| run()));
}

/// A start that copies its descriptors by pidfd_getfd leaves a stack without a socket.
#[test]
fn descriptors_can_be_reserved_after_a_start() {
    isolated!(|| {
        assert!(Command::new("true").status().expect("starts").success());
        spawnfd::reserve_descriptors();
        let sockets = Snapshot::take().fds.into_values().filter(|fd| fd.target.starts_with("socket:"));
        assert_eq!(sockets.count(), 8);
    });
}

#[test]
fn reserved_descriptors_have_low_numbers() {
    isolated!(|| {
        starts_without_a_copy_when_no_number_is_low(&|_| {
            (0..3).for_each(|_| spawnfd::reserve_descriptors());
            let sockets = Snapshot::take().fds.into_values().filter(|fd| fd.target.starts_with("socket:"));
            assert_eq!(sockets.count(), 8);
        });
    });
}

/// If pidfd_getfd is refused, only a socket with a low number avoids a copy of the descriptor table.
fn starts_without_a_copy_when_no_number_is_low(prepare: &dyn Fn(&dyn Fn())) {
    confine::deny(&[("clone3", libc::ENOSYS), ("pidfd_getfd", libc::EPERM)]).expect("confined");
    let threads = || Snapshot::take().threads.len();
    let before = threads();
    let run = || {
        let output = block_on(sh("echo out; exit 3").run_async(&Run::new())).expect("runs");
        assert_eq!((output.stop, output.code(), &output.stdout[..]), (Stop::Exited, Some(3), &b"out\n"[..]));
    };
    prepare(&run);
    eventually("an idle engine closes its sockets and ends", || threads() == before);
    let open = || fs::File::open("/dev/null").expect("it exists");
    let low: Vec<fs::File> = std::iter::repeat_with(open).take(300).collect();
    // Without CLONE_FILES, the kernel copies the table.
    let copies = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD;
    confine::kill_with("clone", 0, copies as u32).expect("confined");
    (0..3).for_each(|_| run());
    drop(low);
}

#[test]
fn runs_work_on_any_executor() {
    isolated!(|| {
        for _ in 0..rounds(200) {
            let output = block_on(sh("echo out; exit 3").run_async(&Run::new())).expect("runs");
            assert_eq!((output.stop, output.code(), &output.stdout[..]), (Stop::Exited, Some(3), &b"out\n"[..]));
        }
        let error = block_on(Command::new("/nowhere").run_async(&Run::new())).expect_err("no program");
        assert_eq!(error.errno(), Errno::ENOENT);
        let slow = Run::new().timeout(Duration::from_millis(50));
        assert_eq!(block_on(sh("exec sleep 1000").run_async(&slow)).expect("runs").stop, Stop::Timeout);
        let without_input = block_on(Command::new("cat").run_async(&Run::new().writable(10))).expect("runs");
        assert!(without_input.ok());
    });
}

#[test]
fn the_program_starts_at_the_first_poll() {
    isolated!(|| {
        let directory = spawnfd_tests::scratch();
        let mark = directory.path().join("mark");
        let mut command = sh(": >\"$0\"");
        command.arg(&mark);
        let limiter = Limiter::new(1);
        let run = Run::new().limiter(&limiter);
        let threads = || Snapshot::take().threads.len();
        let before = threads();
        let is_idle = || !mark.exists() && common::children().is_empty() && threads() == before;
        {
            let never_polled = command.run_async(&run);
            assert!(is_idle());
            assert_eq!((limiter.running(), limiter.waiting()), (0, 0));
            drop(never_polled);
        }
        assert!(is_idle());
        assert!(block_on(command.run_async(&run)).expect("runs").ok());
        assert!(mark.exists());
    });
}

/// The poll starts the program in the polling thread, so the program inherits that thread's attributes.
#[test]
fn the_program_inherits_from_the_polling_thread() {
    isolated!(|| {
        let run = future(sh("ulimit -c; nice"), &Run::new());
        let polling = std::thread::spawn(|| {
            // SAFETY: the call takes integers, and changes only the calling thread.
            unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 7) };
            block_on(run).expect("runs").stdout_text().into_owned()
        });
        let text = polling.join().expect("no panic");
        assert!(text.ends_with("\n7\n"), "{text}");
    });
}

#[test]
fn a_task_of_another_thread_can_run_a_program() {
    isolated!(|| {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().expect("a runtime");
        let run = Run::new().limiter(&Limiter::new(1));
        let task = runtime.spawn(async move {
            let mut command = Command::new("/bin/echo");
            command.arg("x").run_async(&run).await
        });
        assert_eq!(runtime.block_on(task).expect("no panic").expect("runs").stdout, b"x\n");
    });
}

/// The engine thread executes the callback. A poll there starts the program, and another thread awaits the end.
#[test]
fn a_callback_can_poll_a_future() {
    isolated!(|| {
        let limiter = Limiter::new(1);
        let limited = Run::new().limiter(&limiter);
        let permit = limiter.try_acquire().expect("a free permit");
        let (sender, receiver) = std::sync::mpsc::channel();
        let done = move |_| {
            let running = started(sh("read x; echo 1"), &Run::new());
            let waiting = started(sh("echo 2"), &limited);
            assert_eq!(limiter.waiting(), 1);
            sender.send((running, waiting)).expect("the receiver is alive");
        };
        Command::new("true").run_then(&Run::new(), done).expect("starts");
        let (running, waiting) = receiver.recv_timeout(LONG).expect("the callback does not block");
        assert_eq!(block_on(running).expect("runs").stdout_text(), "1\n");
        drop(permit);
        assert_eq!(block_on(waiting).expect("runs").stdout_text(), "2\n");
    });
}

#[test]
fn many_runs_share_one_engine_thread() {
    isolated!(|| {
        let threads = Snapshot::take().threads.len();
        let run = Run::new().tree(TreeControl::Group);
        let output = tokio_block_on(async {
            let runs: Vec<_> = (0..100).map(|n| started(sh(&format!("read x; echo {n}")), &run)).collect();
            let held = started(sh("exec sleep 1000"), &run);
            assert!(Snapshot::take().threads.len() <= threads + 1, "one thread for all runs");
            let mut sum = 0;
            for run in runs {
                sum += run.await.expect("runs").stdout_text().trim().parse::<usize>().expect("a number");
            }
            drop(held);
            sum
        });
        assert_eq!(output, 99 * 100 / 2);
        eventually("all are reaped", || common::children().is_empty());
    });
}

#[test]
fn end_idle_threads_waits_until_they_are_gone() {
    isolated!(|| {
        let threads = || Snapshot::take().threads.len();
        let before = threads();
        for _ in 0..rounds(200) {
            let _ = block_on(Command::new("true").run_async(&Run::new())).expect("runs");
            spawnfd::internal::end_idle_threads();
            assert_eq!(threads(), before);
            // The guard, the process that kills trees whose owner has died, runs on for a while after the last job.
            // So does the thread that reaps the guard.
            Command::new("true").start(&Run::new()).and_then(|job| job.wait()).expect("runs");
            spawnfd::internal::end_idle_threads();
            let snapshot = Snapshot::take();
            assert_eq!((snapshot.threads.len(), snapshot.children.len()), (before, 0));
            spawnfd::internal::end_idle_threads();
        }
        let held = Command::new("cat").start(&Run::new().writable(10)).expect("starts");
        let _ = block_on(Command::new("true").run_async(&Run::new())).expect("runs");
        spawnfd::internal::end_idle_threads();
        assert_eq!(threads(), before + 1);
        held.close_stdin();
        assert!(held.wait().expect("runs").ok());
    });
}

#[test]
fn end_idle_threads_is_safe_while_runs_start() {
    isolated!(|| {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..rounds(200) {
                        let run = started(sh("echo x"), &Run::new());
                        spawnfd::internal::end_idle_threads();
                        assert_eq!(block_on(run).expect("runs").stdout, b"x\n");
                    }
                });
            }
        });
        // The callback calls `end_idle_threads` in the engine thread, which cannot wait for its own end.
        let (sender, receiver) = std::sync::mpsc::channel();
        let done = move |output| {
            spawnfd::internal::end_idle_threads();
            sender.send(output).expect("the receiver is alive");
        };
        Command::new("true").run_then(&Run::new(), done).expect("starts");
        assert!(receiver.recv().expect("a message").expect("runs").ok());
    });
}

#[test]
fn dropping_a_future_kills_the_tree() {
    isolated!(|| {
        let directory = spawnfd_tests::scratch();
        let path = directory.path().join("pids");
        let deaf = format!("trap '' TERM; sleep 1000 & echo $$ $! > {}; wait; sleep 1000", path.display());
        for polled_again in [false, true] {
            let mut run = Box::pin(started(sh(&deaf), &Run::new().grace(Duration::from_millis(100))));
            if polled_again {
                tokio_block_on(async { assert!(timeout(Duration::from_millis(1), &mut run).await.is_err()) });
            }
            let pids = || std::fs::read_to_string(&path).unwrap_or_default();
            eventually("it runs", || pids().ends_with('\n'));
            let pids = pids();
            drop(run);
            eventually("killed and reaped", || common::children().is_empty());
            for pid in pids.split_whitespace() {
                eventually("gone", || {
                    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
                    stat.is_empty() || stat.contains(") Z ")
                });
            }
            std::fs::remove_file(&path).expect("own file");
        }
    });
}

#[test]
fn a_future_kills_leftovers_instead_of_adopting_them() {
    isolated!(|| {
        let run = Run::new().leftovers(Leftovers::Adopt);
        let output = block_on(sh("sleep 1000 >/dev/null 2>&1 & echo $!").run_async(&run)).expect("runs");
        let fates: Vec<_> = output.leftovers.iter().map(|left| left.fate).collect();
        assert_eq!(fates, [Fate::Killed]);
        let stat = format!("/proc/{}/stat", output.stdout_text().trim());
        eventually("killed", || !fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")));
    });
}

#[test]
fn every_waiting_task_is_woken_once() {
    isolated!(|| {
        let job = Command::new("cat").start(&Run::new().writable(10)).expect("starts");
        let wakes: [Arc<Count>; 4] = std::array::from_fn(|_| Arc::default());
        let [first, second, moved, gone] = wakes.each_ref().map(|count| Waker::from(count.clone()));
        let (mut one, mut two, mut dropped) =
            (Box::pin(job.wait_async()), Box::pin(job.wait_async()), Box::pin(job.wait_async()));
        for (task, waker) in [(&mut one, &first), (&mut two, &second), (&mut dropped, &gone)] {
            assert!(task.as_mut().poll(&mut Context::from_waker(waker)).is_pending());
        }
        assert!(two.as_mut().poll(&mut Context::from_waker(&moved)).is_pending(), "the last waker counts");
        drop(dropped);
        job.close_stdin();
        let counts = || wakes.each_ref().map(|count| count.0.load(Ordering::SeqCst));
        eventually("woken", || counts() == [1, 0, 1, 0]);
        assert!(block_on(one).expect("runs").ok() && block_on(two).expect("runs").ok());
        assert!(block_on(job.wait_async()).expect("again").ok());
        assert_eq!(counts(), [1, 0, 1, 0], "a dropped future's waker is not called");
    });
}

/// A waker that runs code when its last clone is dropped, as a task may do when its memory is freed.
struct CallsOnDrop<F: Fn() + Send + Sync>(F);

impl<F: Fn() + Send + Sync> Wake for CallsOnDrop<F> {
    fn wake(self: Arc<Self>) {}
}

impl<F: Fn() + Send + Sync> Drop for CallsOnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

fn calls_on_drop(gone: impl Fn() + Send + Sync + 'static) -> Waker {
    Waker::from(Arc::new(CallsOnDrop(gone)))
}

#[test]
fn dropping_a_waker_may_use_the_job_or_limiter() {
    isolated!(|| {
        let job = Arc::new(Command::new("cat").start(&Run::new().writable(10)).expect("starts"));
        let looked = Arc::new(AtomicUsize::new(0));
        let looks = || {
            let (job, looked) = (job.clone(), looked.clone());
            move || {
                assert!(job.try_wait().expect("a job result").is_none());
                looked.fetch_add(1, Ordering::SeqCst);
            }
        };
        let mut waits = Box::pin(job.wait_async());
        for _ in 0..2 {
            let waker = calls_on_drop(looks());
            assert!(waits.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        assert_eq!(looked.load(Ordering::SeqCst), 1, "replaced");
        drop(waits);
        assert_eq!(looked.load(Ordering::SeqCst), 2, "dropped");
        // This waker holds a permit, and releases the permit when it is dropped.
        let limiter = Limiter::new(1);
        let place = std::sync::Mutex::new(limiter.try_acquire());
        let mut acquiring = Box::pin(limiter.acquire_async());
        let gives_back = calls_on_drop(move || drop(place.lock().expect("not poisoned").take()));
        assert!(acquiring.as_mut().poll(&mut Context::from_waker(&gives_back)).is_pending());
        drop(gives_back);
        // The poll replaces the waker, and thereby drops it: the permit is released.
        assert!(acquiring.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert!(acquiring.take().is_some());
    });
}

#[test]
fn events_can_be_awaited() {
    isolated!(|| {
        let options = EventOptions::new().lines(100);
        let run = Run::new().writable(100);
        let (job, mut events) =
            sh("echo 1; read x; echo 2; read x; printf 3").start_events(&run, options).expect("starts");
        tokio_block_on(async {
            let mut lines = Vec::new();
            for _ in 0..2 {
                while timeout(Duration::from_millis(20), events.next()).await.map(|event| lines.push(event)).is_ok() {}
                // The future was dropped many times, and no event is lost.
                assert_eq!(job.write(b"\n").expect("stdin is open"), 1);
            }
            while let Some(event) = events.next().await {
                lines.push(Some(event));
            }
            let lines: Vec<Vec<u8>> = lines
                .into_iter()
                .map(|event| match event {
                    Some(Event::Line { bytes, .. }) => bytes,
                    other => panic!("{other:?}"),
                })
                .collect();
            assert_eq!(lines, [b"1", b"2", b"3"]);
            assert_eq!(events.next().await, None, "the end is reported again");
            assert!(job.wait_async().await.expect("runs").ok());
        });
    });
}

#[test]
fn unread_output_blocks_the_program() {
    isolated!(|| {
        let options = EventOptions::new().max_bytes(10_000);
        let line = "head -c 3000000 /dev/zero; echo err >&2";
        tokio_block_on(async {
            let (job, events) = sh(line).start_events(&Run::new().keep(10, 10), options).expect("starts");
            let mut output = JobOutput::new(events);
            let mut first = [1; 7];
            output.read_exact(&mut first).await.expect("own job");
            assert_eq!(first, [0; 7]);
            assert!(timeout(Duration::from_millis(200), job.wait_async()).await.is_err(), "it waits for its reader");
            let mut rest = Vec::new();
            output.read_to_end(&mut rest).await.expect("own job");
            assert_eq!(rest.len() + first.len(), 3_000_004);
            assert!(job.wait_async().await.expect("runs").ok());

            let (_job, events) = sh(line).start_events(&Run::new(), options.lines(9)).expect("starts");
            let mut errors = String::new();
            JobOutput::of(events, Stream::Stderr).read_to_string(&mut errors).await.expect("own job");
            assert_eq!(errors, "err\n", "unchanged in line mode");
        });
    });
}

#[test]
fn lost_output_is_one_read_error() {
    isolated!(|| {
        let options = EventOptions::new().max_bytes(10_000).when_full(WhenFull::DropOldest);
        let (job, events) =
            sh("head -c 3000000 /dev/zero; printf end").start_events(&Run::new(), options).expect("starts");
        tokio_block_on(async {
            assert!(job.wait_async().await.expect("runs").ok());
            let mut output = JobOutput::new(events);
            let error = output.read_u8().await.expect_err("output was lost unread");
            assert_eq!(error.kind(), ErrorKind::InvalidData);
            let lost: usize = error.to_string().split(' ').next().and_then(|n| n.parse().ok()).expect("how many");
            let mut rest = Vec::new();
            output.read_to_end(&mut rest).await.expect("the rest is there");
            assert!(rest.ends_with(b"end") && lost + rest.len() == 3_000_003);
        });
    });
}

#[test]
fn writing_waits_until_the_program_reads() {
    isolated!(|| {
        let all: Vec<u8> = (0..3_000_000_u32).map(|number| (number % 251) as u8).collect();
        let options = EventOptions::new().max_bytes(10_000);
        let run = Run::new().writable(1000).keep(10, 10);
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().expect("a runtime");
        runtime.block_on(async {
            let (mut job, events) = Command::new("cat").start_events(&run, options).expect("starts");
            let mut input = job.take_input().expect("writable");
            assert!(job.take_input().is_none() && job.write(b"x").is_err(), "the input is taken");
            let sent = all.clone();
            let writer = tokio::spawn(async move {
                input.write_all(&sent).await.expect("stdin is open");
                input.shutdown().await.expect("stdin is open");
            });
            let mut back = Vec::new();
            timeout(LONG, JobOutput::new(events).read_to_end(&mut back)).await.expect("in time").expect("own job");
            assert!(back == all);
            writer.await.expect("no panic");
            assert!(job.wait_async().await.expect("runs").ok());

            let mut job = sh("exec <&-; sleep 1000").start(&run).expect("starts");
            let mut input = job.take_input().expect("writable");
            let error = timeout(LONG, input.write_all(&all)).await.expect("in time").expect_err("stdin is closed");
            assert_eq!(error.kind(), ErrorKind::BrokenPipe);
            drop(job);
            eventually("ended", || common::children().is_empty());
        });
    });
}

#[test]
fn futures_leave_nothing() {
    isolated!(|| {
        let once = || {
            assert!(block_on(sh("echo x").run_async(&Run::new())).expect("runs").ok());
            drop(future(sh("exec sleep 1000"), &Run::new()));
            drop(started(sh("exec sleep 1000"), &Run::new()));
            let (job, events) = sh("echo x").start_events(&Run::new(), EventOptions::default()).expect("starts");
            let mut text = String::new();
            block_on(JobOutput::new(events).read_to_string(&mut text)).expect("own job");
            assert!(text == "x\n" && block_on(job.wait_async()).expect("runs").ok());
        };
        let idle = || common::children().is_empty() && Snapshot::take().threads.len() <= 2;
        once();
        eventually("idle", idle);
        let before = Snapshot::take();
        (0..rounds(200)).for_each(|_| once());
        eventually("idle", idle);
        common::assert_unchanged_except_sockets(&before);
    });
}

/// A program that reports that it has started, and each SIGTERM, and ends after 0.3 s.
const REPORTS_SIGTERM: &str =
    "trap 'echo term >&2' TERM; echo started >&2; n=0; while [ $n -lt 30 ]; do sleep 0.01; n=$((n + 1)); done";

/// Starts that program in this tier, and drops its job once it has started. Returns what it reports afterwards, up to
/// its end. With `exits`, a forked owner does this, and exits right after the drop.
fn reports_after_a_drop(tree: TreeControl, exits: bool) -> String {
    let (mut output, stderr) = common::pipe();
    let start = |output: &mut PipeReader| {
        let job = sh(REPORTS_SIGTERM).stderr(&stderr).start(&Run::new().tree(tree)).expect("starts");
        output.read_exact(&mut [0; 8]).expect("own pipe");
        drop(job);
    };
    // SAFETY: the child makes the same calls as a program with one thread, and ends by _exit.
    unsafe {
        let owner = if exits { libc::fork() } else { -1 };
        if owner <= 0 {
            start(&mut output);
        }
        if owner == 0 {
            libc::_exit(0);
        }
        if owner > 0 {
            assert_eq!(libc::waitpid(owner, std::ptr::null_mut(), 0), owner);
        }
    }
    drop(stderr);
    std::io::read_to_string(output).expect("own pipe")
}

#[test]
fn dropping_a_job_sends_sigterm_before_its_owner_can_exit() {
    isolated!(|| {
        for _ in 0..rounds(100) {
            // No guard kills the program in this tier.
            let text = reports_after_a_drop(TreeControl::Group, true);
            assert_eq!(text.matches("term\n").count(), 1, "{text}");
        }
    });
}

#[test]
fn a_dropped_job_s_program_gets_one_sigterm() {
    isolated!(|| {
        for tree in [TreeControl::Group, TreeControl::Guard, TreeControl::Subreaper] {
            let text = reports_after_a_drop(tree, false);
            assert_eq!(text.matches("term\n").count(), 1, "{tree:?}: {text}");
        }
    });
}

#[test]
fn a_stop_ends_a_run_early_and_the_output_remains() {
    isolated!(|| {
        let run = Run::new();
        let command = sh("echo begun; exec sleep 1000");
        let pause = async { drop(sh("sleep 0.2").run_async(&Run::new()).await) };
        let output = block_on(command.run_until(&run, pause)).expect("runs");
        assert_eq!((output.stop, &output.stdout[..]), (Stop::Cancelled, &b"begun\n"[..]));
        let output = block_on(sh("echo whole").run_until(&run, std::future::pending())).expect("runs");
        assert_eq!((output.stop, &output.stdout[..]), (Stop::Exited, &b"whole\n"[..]));
    });
}

#[test]
fn a_stop_before_the_start_starts_nothing() {
    isolated!(|| {
        let directory = spawnfd_tests::scratch();
        let mark = directory.path().join("mark");
        let mut command = sh(": >\"$0\"");
        command.arg(&mark);
        let error = block_on(command.run_until(&Run::new(), std::future::ready(()))).expect_err("stopped");
        assert_eq!(error.errno(), Errno::ECANCELED);
        // The same while the run waits for a place.
        let limiter = Limiter::new(1);
        let place = limiter.try_acquire();
        let run = Run::new().limiter(&limiter);
        let pause = async { drop(sh("sleep 0.1").run_async(&Run::new()).await) };
        let error = block_on(command.run_until(&run, pause)).expect_err("stopped");
        assert_eq!((error.errno(), limiter.waiting()), (Errno::ECANCELED, 0));
        drop(place);
        assert!(!mark.exists());
        assert!(block_on(command.run_until(&run, std::future::pending())).expect("runs").ok());
        assert!(mark.exists());
    });
}

#[test]
fn the_library_drives_futures_of_callers_without_an_executor() {
    isolated!(|| {
        let (sender, receiver) = std::sync::mpsc::channel();
        for number in 0..100 {
            let sender = sender.clone();
            let future = async move {
                let output = Command::new("echo").arg(number.to_string()).run_async(&Run::new()).await;
                let thread = std::thread::current().name().map(str::to_owned);
                sender.send((output.expect("runs").stdout, thread)).expect("a receiver");
            };
            drive(future).expect("a thread");
        }
        let mut numbers = Vec::new();
        for _ in 0..100 {
            let (text, thread) = receiver.recv_timeout(LONG).expect("in time");
            assert_eq!(thread.as_deref(), Some("spawnfd-engine"));
            numbers.push(String::from_utf8_lossy(&text).trim().parse::<u32>().expect("a number"));
        }
        numbers.sort_unstable();
        assert_eq!(numbers, (0..100).collect::<Vec<_>>());
    });
}

#[test]
fn a_driven_future_that_panics_is_dropped_and_the_others_go_on() {
    isolated!(|| {
        let (sender, receiver) = std::sync::mpsc::channel();
        let panicking = sender.clone();
        drive(async move {
            let _dropped_with_the_future = panicking;
            drop(sh("sleep 0.1").run_async(&Run::new()).await);
            panic!("on purpose");
        })
        .expect("a thread");
        let limiter = Limiter::new(1);
        let place = limiter.try_acquire();
        let waiting = limiter.clone();
        drive(async move {
            drop(waiting.acquire_async().await);
            sender.send("had a place").expect("a receiver");
        })
        .expect("a thread");
        assert!(receiver.recv_timeout(Duration::from_millis(300)).is_err(), "there is no place yet");
        drop(place);
        assert_eq!(receiver.recv_timeout(LONG), Ok("had a place"));
        // Both futures have ended, and with them the senders.
        assert!(
            receiver.recv_timeout(LONG).is_err_and(|error| error == std::sync::mpsc::RecvTimeoutError::Disconnected)
        );
    });
}
