// SPDX-License-Identifier: MIT OR Apache-2.0
//! `Child::wait_async`: a future that waits for a child on any executor.

use std::fs::{self, File};
use std::future::Future;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::ExitStatusExt;
use std::pin::Pin;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::futures::{Count, tokio_block_on};
use crate::common::job::block_on;
use crate::common::{self, Launcher, eventually, fifo, reap_any, rounds, while_repeating};
use spawnfd::command::OpenHow;
use spawnfd::error::{Errno, Stage};
use spawnfd::{Child, Command, Run, Stdio, signal};
use spawnfd_tests::copy::{fork, wait_for};
use spawnfd_tests::leaks::Snapshot;
use spawnfd_tests::{isolated, scratch};

/// Starts a program that ends when its standard input is closed.
fn cat() -> Child {
    Command::new("cat").stdin(Stdio::Piped).spawn().expect("starts")
}

/// Starts a program that runs until a signal ends it.
fn sleep() -> Child {
    Command::new("sleep").arg("1000").spawn().expect("starts")
}

fn poll<T>(future: &mut Pin<Box<impl Future<Output = T>>>, waker: &Waker) -> Poll<T> {
    future.as_mut().poll(&mut Context::from_waker(waker))
}

#[test]
fn a_child_is_awaited_on_any_executor() {
    isolated!(|| {
        for _ in 0..rounds(400) {
            let mut child = Command::new("sh").args(["-c", "exit 3"]).spawn().expect("starts");
            assert_eq!(block_on(child.wait_async()).expect("own child").code(), Some(3));
            assert!(child.usage().is_some(), "the future reaps the child");
            let again = [block_on(child.wait_async()), child.wait(), tokio_block_on(child.wait_async())];
            assert!(again.iter().all(|status| status.as_ref().expect("the same").code() == Some(3)));
        }
        // The first poll closes standard input.
        assert!(block_on(cat().wait_async()).expect("own child").success());
        let mut child = sleep();
        child.signal(signal::TERM).expect("own child");
        assert_eq!(block_on(child.wait_async()).expect("own child").signal(), Some(signal::TERM));
        assert!(common::children().is_empty());
    });
}

#[test]
fn an_ended_child_needs_no_thread() {
    isolated!(|| {
        let threads = Snapshot::take().threads;
        let mut child = Command::new("true").spawn().expect("starts");
        let mut fd = [libc::pollfd { fd: child.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 }];
        // SAFETY: poll writes to the array, whose length is 1.
        assert_eq!(unsafe { libc::poll(fd.as_mut_ptr(), 1, -1) }, 1);
        assert!(
            matches!(poll(&mut Box::pin(child.wait_async()), Waker::noop()), Poll::Ready(Ok(status)) if status.success())
        );
        assert_eq!(Snapshot::take().threads, threads);
    });
}

#[test]
fn a_failed_start_is_the_result_of_the_future() {
    isolated!(|| {
        Launcher::Asynchronous.enter();
        let directory = scratch();
        let gate = fifo(directory.path(), "gate");
        let mut command = Launcher::Asynchronous.command("/bin/true");
        // The child blocks until the test opens the FIFO.
        let mut child = command.open(&gate, OpenHow::READ, 9).chdir("/nowhere").spawn().expect("the child exists");
        let wakes = Arc::<Count>::default();
        let mut future = Box::pin(child.wait_async());
        assert!(poll(&mut future, &Waker::from(wakes.clone())).is_pending());
        let _open = fs::OpenOptions::new().write(true).open(&gate).expect("the child reads");
        eventually("woken", || wakes.0.load(Ordering::SeqCst) == 1);
        let error = block_on(future).expect_err("no such directory");
        assert_eq!((error.stage(), error.errno()), (Stage::Action(1), Errno::ENOENT), "{error}");
    });
}

#[test]
fn many_children_share_one_thread() {
    isolated!(|| {
        let threads = Snapshot::take().threads.len();
        let mut children: Vec<Child> = (0..100).map(|_| sleep()).collect();
        let wakes = Arc::<Count>::default();
        let waker = Waker::from(wakes.clone());
        let mut futures: Vec<_> = children.iter_mut().map(|child| Box::pin(child.wait_async())).collect();
        assert!(futures.iter_mut().all(|future| poll(future, &waker).is_pending()));
        assert_eq!(Snapshot::take().threads.len(), threads + 1);
        for pid in common::children() {
            // SAFETY: kill takes integers. The pid belongs to a child that nothing has reaped.
            assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
        }
        tokio_block_on(async {
            for future in futures {
                assert_eq!(future.await.expect("own child").signal(), Some(signal::KILL));
            }
        });
        assert!(wakes.0.load(Ordering::SeqCst) <= 100);
        drop(children);
        spawnfd::internal::end_idle_threads();
        assert_eq!(Snapshot::take().threads.len(), threads);
    });
}

#[test]
fn dropping_the_future_has_no_effect_on_the_child() {
    isolated!(|| {
        let threads = Snapshot::take().threads.len();
        let mut child = sleep();
        let wakes: [Arc<Count>; 3] = std::array::from_fn(|_| Arc::default());
        let [dropped, replaced, last] = wakes.each_ref().map(|count| Waker::from(count.clone()));
        assert!(poll(&mut Box::pin(child.wait_async()), &dropped).is_pending());
        // Without a watch, the engine is idle.
        spawnfd::internal::end_idle_threads();
        assert_eq!(Snapshot::take().threads.len(), threads);
        assert_eq!(child.try_wait().expect("own child"), None);
        let mut future = Box::pin(child.wait_async());
        assert!(poll(&mut future, &replaced).is_pending());
        assert!(poll(&mut future, &last).is_pending());
        spawnfd::internal::end_idle_threads();
        assert_eq!(Snapshot::take().threads.len(), threads + 1, "the engine has a watch");
        drop(future);
        // A leaked future stays registered, and does not disturb the next one.
        let mut leaked = Box::pin(child.wait_async());
        assert!(poll(&mut leaked, &dropped).is_pending());
        std::mem::forget(leaked);
        child.kill().expect("own child");
        let mut future = Box::pin(child.wait_async());
        if poll(&mut future, &last).is_pending() {
            eventually("woken", || wakes[2].0.load(Ordering::SeqCst) == 1);
        }
        assert_eq!(block_on(future).expect("own child").signal(), Some(signal::KILL));
        assert_eq!(wakes[1].0.load(Ordering::SeqCst), 0, "only the last waker counts");
    });
}

#[test]
fn futures_and_runs_share_an_engine() {
    isolated!(|| {
        for _ in 0..rounds(200) {
            let (mut one, mut two) = (cat(), cat());
            let output = block_on(Command::new("echo").arg("x").run_async(&Run::new()));
            let task = std::thread::spawn(move || block_on(two.wait_async()));
            assert!(block_on(one.wait_async()).expect("own child").success());
            assert!(task.join().expect("no panic").expect("own child").success());
            assert_eq!(output.expect("runs").stdout, b"x\n");
            spawnfd::internal::end_idle_threads();
        }
    });
}

/// Waits for children while other code may take every exit status.
fn await_children_with_lost_statuses() {
    let check = |status: spawnfd::Result<ExitStatus>| match status {
        Ok(status) => assert!(status.success()),
        Err(error) => {
            assert_eq!((error.stage(), error.errno()), (Stage::Wait, Errno::ECHILD), "{error}");
            assert!(!common::kernel_keeps_exit_status(), "this kernel keeps the status: {error}");
        }
    };
    for _ in 0..rounds(200) {
        check(block_on(Command::new("true").spawn().expect("starts").wait_async()));
        check(block_on(cat().wait_async()));
    }
}

#[test]
fn a_future_ends_while_another_thread_reaps() {
    isolated!(|| {
        while_repeating(|| _ = reap_any(), await_children_with_lost_statuses);
    });
}

#[test]
fn a_future_ends_with_sigchld_ignored() {
    isolated!(|| {
        // SAFETY: SIG_IGN installs no handler; the kernel then reaps children by itself.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
        await_children_with_lost_statuses();
    });
}

#[test]
fn a_closed_pidfd_ends_the_future_with_ebadf() {
    isolated!(|| {
        let mut child = sleep();
        let (pid, pidfd) = (child.id() as i32, child.as_fd().as_raw_fd());
        let wakes = Arc::<Count>::default();
        let mut future = Box::pin(child.wait_async());
        assert!(poll(&mut future, &Waker::from(wakes.clone())).is_pending());
        // SAFETY: the test checks that the library survives this close.
        assert_eq!(unsafe { libc::close(pidfd) }, 0);
        // The engine wakes the task within its check interval.
        eventually("woken", || wakes.0.load(Ordering::SeqCst) > 0);
        let error = block_on(future).expect_err("no pidfd");
        assert_eq!((error.stage(), error.errno()), (Stage::Wait, Errno::EBADF), "{error}");
        // SAFETY: kill and waitpid take integers, and waitpid stores nothing. The pid belongs to a child that nothing
        // has reaped.
        unsafe {
            assert_eq!(libc::kill(pid, libc::SIGKILL), 0);
            assert_eq!(libc::waitpid(pid, std::ptr::null_mut(), 0), pid);
        }
    });
}

#[test]
fn a_future_survives_the_close_of_the_engines_descriptors() {
    isolated!(|| {
        let mut child = sleep();
        let wakes = Arc::<Count>::default();
        let mut future = Box::pin(child.wait_async());
        assert!(poll(&mut future, &Waker::from(wakes.clone())).is_pending());
        let is_engines = |fd: &i32| {
            let target = std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap_or_default();
            target.as_os_str() == "anon_inode:[eventpoll]"
        };
        let closed: Vec<i32> = (3..100).filter(is_engines).collect();
        assert_eq!(closed.len(), 1);
        // SAFETY: the test checks that the library survives this close.
        assert_eq!(unsafe { libc::close(closed[0]) }, 0);
        // The engine ends, and wakes the task. The next poll uses another engine.
        eventually("woken", || wakes.0.load(Ordering::SeqCst) > 0);
        assert!(poll(&mut future, &Waker::from(wakes.clone())).is_pending());
        let before = wakes.0.load(Ordering::SeqCst);
        for pid in common::children() {
            // SAFETY: kill takes integers. The pid belongs to a child that nothing has reaped.
            assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
        }
        eventually("woken", || wakes.0.load(Ordering::SeqCst) > before);
        assert_eq!(block_on(future).expect("own child").signal(), Some(signal::KILL));
    });
}

#[test]
fn without_descriptors_the_caller_can_still_block() {
    isolated!(|| {
        let mut child = sleep();
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: getrlimit fills in the struct.
        assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) }, 0);
        let before = limit;
        limit.rlim_cur = child.as_fd().as_raw_fd() as u64 + 1;
        // SAFETY: setrlimit reads the struct.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
        // Numbers below the child's descriptor may be free.
        let fillers: Vec<_> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
        let error = block_on(child.wait_async()).expect_err("no descriptor is free");
        drop(fillers);
        // SAFETY: setrlimit reads the struct.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const before) }, 0);
        assert_eq!((error.stage(), error.errno()), (Stage::Wait, Errno::EMFILE), "{error}");
        child.signal(signal::TERM).expect("own child");
        assert_eq!(child.wait().expect("own child").signal(), Some(signal::TERM));
    });
}

#[test]
fn a_forked_copy_does_not_disturb_the_future() {
    isolated!(|| {
        let mut child = sleep();
        let pid = child.id() as i32;
        let wakes = Arc::<Count>::default();
        let mut future = Box::pin(child.wait_async());
        assert!(poll(&mut future, &Waker::from(wakes.clone())).is_pending());
        let mut future = Some(future);
        wait_for(fork(|| {
            let mut copy = future.take().expect("the copy has its own");
            match poll(&mut copy, Waker::noop()) {
                Poll::Ready(Err(error)) => assert_eq!(error.errno(), Errno::ECHILD, "{error}"),
                other => panic!("{other:?}"),
            }
            drop(copy);
        }));
        // SAFETY: kill takes integers. The pid belongs to a child that nothing has reaped.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
        eventually("woken", || wakes.0.load(Ordering::SeqCst) == 1);
        let future = future.expect("only the copy has taken its own");
        assert_eq!(block_on(future).expect("own child").signal(), Some(signal::KILL));
    });
}

#[test]
fn dropping_a_waker_may_use_the_library() {
    struct CallsOnDrop;
    impl std::task::Wake for CallsOnDrop {
        fn wake(self: Arc<Self>) {}
    }
    impl Drop for CallsOnDrop {
        fn drop(&mut self) {
            let mut other = sleep();
            assert!(poll(&mut Box::pin(other.wait_async()), Waker::noop()).is_pending());
            other.kill().expect("own child");
        }
    }
    isolated!(limit: Duration::from_secs(600), || {
        let mut child = cat();
        let _input = child.stdin.take();
        let mut future = Box::pin(child.wait_async());
        for _ in 0..3 {
            assert!(poll(&mut future, &Waker::from(Arc::new(CallsOnDrop))).is_pending());
        }
        drop(future);
        child.kill().expect("own child");
        let mut future = Box::pin(child.wait_async());
        let _ = poll(&mut future, &Waker::from(Arc::new(CallsOnDrop)));
        assert_eq!(block_on(future).expect("own child").signal(), Some(signal::KILL));
        eventually("reaped", || common::children().is_empty());
    });
}
