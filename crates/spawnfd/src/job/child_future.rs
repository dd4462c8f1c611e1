// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waits for a child as a future, for any executor. The engine's thread watches the pidfd and wakes the task.

use std::future::Future;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::process::ExitStatus;
use std::task::{Context, Poll};

use super::engine::PidfdWatch;
use crate::callback::Callback;
use crate::child::Child;
use crate::error::Result;

impl Child {
    /// Returns a lazy future that waits for the program to end, and reaps it, when it is polled.
    ///
    /// The wait does not block the thread. The future works on any executor. One thread of the library watches all
    /// children for which tasks wait.
    ///
    /// The first poll closes standard input if it is piped and the handle still has it. The task that polls the
    /// future reaps the program. Dropping the future has no effect on the program, and the caller can wait again.
    ///
    /// # Errors
    /// - The errors of [`wait`](Child::wait).
    /// - EMFILE, ENFILE, ENOMEM, EAGAIN: the library cannot watch the child. The caller can still use `wait`.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use spawnfd::{Command, signal};
    /// use std::os::unix::process::ExitStatusExt;
    /// let mut child = Command::new("sleep").arg("1000").spawn()?;
    /// child.signal(signal::TERM)?;
    /// assert_eq!(child.wait_async().await?.signal(), Some(signal::TERM));
    /// # Ok::<(), spawnfd::Error>(())
    /// # }).unwrap();
    /// ```
    pub fn wait_async(&mut self) -> impl Future<Output = Result<ExitStatus>> + Send + '_ {
        ChildFuture { child: self, watch: None }
    }
}

/// A task that waits for a child.
struct ChildFuture<'a> {
    child: &'a mut Child,
    watch: Option<PidfdWatch>,
}

impl ChildFuture<'_> {
    fn end_watch(&mut self) {
        if let Some(watch) = self.watch.take() {
            watch.end(self.child.own_pidfd().map(AsFd::as_fd));
        }
    }
}

impl Future for ChildFuture<'_> {
    type Output = Result<ExitStatus>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        drop(self.child.stdin.take());
        if let Some(outcome) = self.child.reap_own(false).transpose() {
            self.end_watch();
            return Poll::Ready(outcome);
        }
        let callback = Callback::waking(context);
        if self.watch.as_ref().is_some_and(|watch| watch.replace(&callback)) {
            return Poll::Pending;
        }
        self.end_watch();
        // If the child has ended since `reap_own`, the engine wakes the task at once.
        match PidfdWatch::start(self.child.as_fd(), callback) {
            Ok(watch) => self.watch = Some(watch),
            Err(error) => return Poll::Ready(Err(self.child.failed(error.errno()))),
        }
        Poll::Pending
    }
}

impl Drop for ChildFuture<'_> {
    fn drop(&mut self) {
        self.end_watch();
    }
}
