// SPDX-License-Identifier: MIT OR Apache-2.0
//! Notifications from the library to Python threads.
//!
//! The thread that handles a run's events never takes the GIL. A thread of the library wakes a Python thread once for a
//! batch of notifications. The thread of an event loop handles the events of its own runs in [`Queue::drain`].

use std::cell::Cell;
use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyOSError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use spawnfd::error::Errno;
use spawnfd::internal::{CheckedFd, EventLoop, PerProcess, SleepLengths};

use crate::arguments::seconds;

/// The interval at which a thread that polls a descriptor checks whether the application has closed it.
pub const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// The notifications for one event loop or one blocking call, and the eventfd that signals them.
#[pyclass(frozen, module = "spawnfd._spawnfd")]
#[derive(Debug)]
pub struct Queue {
    state: Arc<QueueState>,
    /// The event loop that drains the queue and drives its own runs; `None` for a blocking call.
    event_loop: Option<EventLoop>,
}

#[derive(Debug)]
struct QueueState {
    /// The notifications: the keys of futures.
    keys: PerProcess<Vec<u64>>,
    wake: CheckedFd,
    /// Whether a notification has written to the eventfd since the last drain.
    is_signalled: AtomicBool,
}

thread_local! {
    /// The queue that the calling thread is about to drain. A notification of this queue needs no signal.
    static DRAINED: Cell<*const QueueState> = const { Cell::new(std::ptr::null()) };
}

impl QueueState {
    fn push(&self, key: u64) {
        let mut keys = self.keys.lock();
        let was_empty = keys.is_empty();
        keys.push(key);
        drop(keys);
        if was_empty && !std::ptr::eq(DRAINED.get(), self) {
            self.notify();
        }
    }

    /// Returns notifications to the front of the queue.
    fn put_back(&self, keys: VecDeque<u64>) {
        self.keys.lock().splice(..0, keys);
        self.notify();
    }

    fn notify(&self) {
        if let Some(wake) = self.wake.get() {
            let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
        }
        // Set this last. If it were set before the write, a drain in between would read nothing and clear it, and the
        // eventfd would stay readable.
        self.is_signalled.store(true, Ordering::Release);
    }
}

impl Queue {
    /// Calls `call`. The runs that it starts belong to the queue's event loop, if there is one.
    pub fn enter<T>(queue: Option<&Queue>, call: impl FnOnce() -> T) -> T {
        match queue.and_then(|queue| queue.event_loop.as_ref()) {
            Some(event_loop) => event_loop.enter(call),
            None => call(),
        }
    }

    /// Lets the event loop handle the events of its runs. The caller drains the queue next.
    fn serve(&self, event_loop: &EventLoop) {
        struct Restore(*const QueueState);
        impl Drop for Restore {
            fn drop(&mut self) {
                DRAINED.set(self.0);
            }
        }
        let _restore = Restore(DRAINED.replace(Arc::as_ptr(&self.state)));
        event_loop.serve();
    }
}

#[pymethods]
impl Queue {
    /// `drives_runs`: an event loop drains the queue, and drives the runs that are started with the queue.
    #[new]
    fn new(drives_runs: bool) -> PyResult<Queue> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| PyOSError::new_err((errno.raw_os_error(), "eventfd")))?;
        let wake = CheckedFd::new(wake);
        let connect = || {
            let event_loop = EventLoop::new()?;
            event_loop.watch(wake.as_fd())?;
            Ok(event_loop)
        };
        let failed = |error: spawnfd::Error| PyOSError::new_err((error.errno().raw(), error.to_string()));
        let event_loop = if drives_runs { Some(connect().map_err(failed)?) } else { None };
        let state = QueueState { keys: PerProcess::default(), wake, is_signalled: false.into() };
        Ok(Queue { state: Arc::new(state), event_loop })
    }

    /// The descriptor that is readable while there are notifications, or events of the loop's runs.
    fn fileno(&self) -> i32 {
        self.event_loop.as_ref().map_or(self.state.wake.as_fd(), AsFd::as_fd).as_raw_fd()
    }

    /// Handles the events of the loop's runs. Then takes all notifications, and sets the future of each in `pending`.
    fn drain(&self, py: Python<'_>, pending: &Bound<'_, PyDict>) -> PyResult<()> {
        if let Some(event_loop) = &self.event_loop {
            py.detach(|| self.serve(event_loop));
        }
        // Read the eventfd before emptying the queue. Then a push in between causes a spurious wakeup, not a lost
        // wakeup.
        if self.state.is_signalled.swap(false, Ordering::Acquire)
            && let Some(wake) = self.state.wake.get()
        {
            let _ = rustix::io::read(wake, &mut [0; 8]);
        }
        let mut keys = VecDeque::from(std::mem::take(&mut *self.state.keys.lock()));
        while !keys.is_empty() {
            if let Err(raised) = deliver(py, pending, &mut keys) {
                // A signal handler raised an exception. Keep the other notifications for the next call.
                self.state.put_back(keys);
                return Err(raised);
            }
        }
        Ok(())
    }

    /// Whether the descriptor is still the queue's. The application may have closed it, or replaced it by another file.
    fn is_open(&self) -> bool {
        self.event_loop.as_ref().map_or(self.state.wake.get().is_some(), |event_loop| event_loop.own_fd().is_some())
    }

    /// Blocks until there is a notification, at most `timeout` seconds. Python's signal handlers run during the wait,
    /// and may raise.
    fn block(&self, py: Python<'_>, timeout: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let deadline = seconds(timeout, "timeout")?.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let next_check = Instant::now() + CHECK_INTERVAL;
            let until = deadline.map_or(next_check, |deadline| deadline.min(next_check));
            let readable = wait_readable(py, &self.state.wake, until)?;
            if !self.is_open() && self.state.keys.lock().is_empty() {
                return Err(PyOSError::new_err((Errno::EBADF.raw(), "poll")));
            }
            if readable || deadline == Some(until) || !self.state.keys.lock().is_empty() {
                return Ok(());
            }
        }
    }
}

/// Delivers the first notification: sets its future, unless the future is done.
fn deliver(py: Python<'_>, pending: &Bound<'_, PyDict>, keys: &mut VecDeque<u64>) -> PyResult<()> {
    // Run signal handlers here, in a consistent state, rather than within the future's code.
    py.check_signals()?;
    let Some(key) = keys.front().copied() else { return Ok(()) };
    let future = pending.get_item(key)?;
    let is_done = |future: &Bound<'_, PyAny>| future.call_method0(intern!(py, "done"))?.is_truthy();
    let was_done = future.as_ref().map(is_done).transpose()?;
    keys.pop_front();
    let Some(future) = future else { return Ok(()) };
    pending.del_item(key)?;
    if was_done == Some(true) {
        return Ok(());
    }
    let set = || future.call_method1(intern!(py, "set_result"), (py.None(),));
    set().map(drop).or_else(|raised| {
        // A signal handler may have raised before the future was set: set it again.
        if !is_done(&future)? {
            set()?;
        }
        Err(raised)
    })
}

/// Blocks until a descriptor is readable; returns `false` at the deadline. Python's signal handlers run during the
/// wait, and may raise.
pub fn wait_readable(py: Python<'_>, fd: &impl AsFd, deadline: Instant) -> PyResult<bool> {
    let mut sleeps = SleepLengths::default();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let length = left.min(sleeps.next_length());
        let timeout = Timespec { tv_sec: length.as_secs() as i64, tv_nsec: i64::from(length.subsec_nanos()) };
        let fd = fd.as_fd();
        match py.detach(|| poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout))) {
            Ok(ready) if ready > 0 => return Ok(true),
            Ok(_) if left.is_zero() => return Ok(false),
            Ok(_) | Err(rustix::io::Errno::INTR) => py.check_signals()?,
            Err(errno) => return Err(PyOSError::new_err((errno.raw_os_error(), "poll"))),
        }
    }
}

/// Tells listeners that a state has changed. Each listener gets one notification, checks the state, and registers
/// again.
#[pyclass(frozen, module = "spawnfd._spawnfd")]
#[derive(Clone, Debug, Default)]
pub struct Wakeup(Arc<Listeners>);

/// The registered queues, each with its notification's key.
#[derive(Debug, Default)]
struct Listeners(PerProcess<Vec<(Arc<QueueState>, u64)>>);

impl Wake for Listeners {
    /// Notifies all listeners.
    fn wake(self: Arc<Self>) {
        for (queue, key) in std::mem::take(&mut *self.0.lock()) {
            queue.push(key);
        }
    }
}

impl Wakeup {
    /// Returns a function that fires this wakeup.
    pub fn firing(&self) -> impl Fn() + Send + Sync + 'static {
        let wakeup = self.clone();
        move || wakeup.fire()
    }

    /// Returns a waker that fires this wakeup.
    pub fn waker(&self) -> Waker {
        self.0.clone().into()
    }

    /// Notifies all listeners.
    pub fn fire(&self) {
        self.0.clone().wake();
    }
}

#[pymethods]
impl Wakeup {
    /// Registers `queue`, which gets a notification with `key` when the wakeup fires next.
    fn listen(&self, queue: &Bound<'_, Queue>, key: u64) {
        self.0.0.lock().push((queue.get().state.clone(), key));
    }

    fn unlisten(&self, queue: &Bound<'_, Queue>, key: u64) {
        self.0.0.lock().retain(|(other, number)| !(Arc::ptr_eq(other, &queue.get().state) && *number == key));
    }
}
