// SPDX-License-Identifier: MIT OR Apache-2.0
//! Futures that the library's thread polls, for callers without an executor.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use super::RunHandle;
use super::engine::{ExpectedRun, expect_run};
use crate::callback::{Callback, catch_panic};
use crate::error::Result;

type BoxedFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Polls a future to its end in the library's thread that serves callers with the calling thread's credentials and
/// confinement. The call does not wait. The future must not block.
///
/// The thread does not end before the future, and polls four futures between its other work. If the future panics, or if
/// the application closes the thread's descriptors, the future is dropped.
///
/// # Errors
/// The thread cannot be created.
pub fn drive(future: impl Future<Output = ()> + Send + 'static) -> Result<()> {
    let expected = expect_run()?;
    let handle = expected.handle();
    Arc::new(Driven { handle, task: Mutex::new(Some((Box::pin(future), expected))) }).wake();
    Ok(())
}

struct Driven {
    handle: RunHandle,
    /// The future, and what keeps the thread from ending. `None` after the end.
    task: Mutex<Option<(BoxedFuture, ExpectedRun)>>,
}

impl Driven {
    /// Polls the future, unless the thread is ending: it would not poll the future again.
    fn poll(self: &Arc<Driven>) {
        let mut slot = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((future, _)) = &mut *slot else { return };
        let waker = Waker::from(self.clone());
        let poll = || future.as_mut().poll(&mut Context::from_waker(&waker));
        if self.handle.is_driven() && catch_panic(poll) == Some(Poll::Pending) {
            return;
        }
        let task = slot.take();
        // Release the lock first, because the drop may wake this task.
        drop(slot);
        catch_panic(|| drop(task));
    }
}

impl Wake for Driven {
    fn wake(self: Arc<Driven>) {
        let task = self.clone();
        if !self.handle.call_soon(Callback::new(move || task.poll())) {
            self.poll();
        }
    }
}
