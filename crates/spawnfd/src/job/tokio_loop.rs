// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lets a tokio runtime drive the runs of its thread.

use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::pin;
use std::task::{Context, Poll};

use ::tokio::io::{Interest, unix::AsyncFd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::engine::{EventLoop, is_entered};
use crate::error::{Error, Result, Stage, from_io};

/// Runs a future, and lets the tokio runtime of the calling thread drive the runs that this thread starts meanwhile.
///
/// Usually a thread of the library handles the output, the deadlines and the end of a run, and then wakes the task that
/// waits for the run. The runtime of the calling thread does this itself while `future` runs, so the end of a program
/// wakes one thread instead of two. The runs of all tasks that the runtime polls in this thread count, so one call around
/// the main future of a current-thread runtime is enough. Runs that other threads start still use the library's thread.
///
/// If the thread blocks for more than 20 ms, the library's thread takes its place: neither output nor deadlines have to
/// wait. It also drives the runs that are left when `future` has ended.
///
/// # Errors
/// EMFILE, ENFILE, ENOMEM: there is no descriptor for the runtime to watch.
///
/// # Panics
/// Outside of a tokio runtime, and if the runtime has no IO driver (`enable_io`).
///
/// # Examples
/// ```
/// use spawnfd::{Command, Run, job::drive_runs};
/// let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
/// let output = runtime.block_on(drive_runs(async { Command::new("echo").arg("hello").run_async(&Run::new()).await }))??;
/// assert_eq!(output.stdout_text(), "hello\n");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub async fn drive_runs<T>(future: impl Future<Output = T>) -> Result<T> {
    if is_entered() {
        return Ok(future.await);
    }
    let failed = |error| Error::new(Stage::Capture, from_io(&error), "epoll_ctl(EPOLL_CTL_ADD)");
    let event_loop = EventLoop::new()?;
    let watched = event_loop.as_fd().try_clone_to_owned().and_then(watch).map_err(failed)?;
    let _entered = event_loop.entered();
    let mut future = pin!(future);
    let poll_both = |task: &mut Context<'_>| {
        serve(&event_loop, &watched, task);
        future.as_mut().poll(task)
    };
    Ok(poll_fn(poll_both).await)
}

/// Lets the runtime watch a descriptor.
#[allow(deprecated, reason = "the successor is unsafe, because not each type keeps its descriptor open; OwnedFd does")]
fn watch(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(fd, Interest::READABLE)
}

/// Handles what is ready, and registers the task to be woken by the next event.
fn serve(event_loop: &EventLoop, watched: &AsyncFd<OwnedFd>, task: &mut Context<'_>) {
    // An error means that the runtime is ending. The library's thread then drives the runs.
    while let Poll::Ready(Ok(mut ready)) = watched.poll_read_ready(task) {
        event_loop.serve();
        if is_readable(event_loop) {
            // One call handles few runs. The runtime polls other tasks first.
            task.waker().wake_by_ref();
            return;
        }
        ready.clear_ready();
    }
}

/// Whether the loop has more to do. The runtime is told of new events only.
fn is_readable(event_loop: &EventLoop) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(event_loop, PollFlags::IN)], Some(&now)).is_ok_and(|ready| ready > 0)
}
