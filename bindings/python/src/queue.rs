// SPDX-License-Identifier: MIT OR Apache-2.0
//! From the engine's thread, which never takes the GIL, to a thread of Python, which is woken once for a batch.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pyo3::exceptions::PyOSError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use spawnfd::{Errno, Known, Output, PerProcess, Waker};

use crate::arguments::seconds;
use crate::errors::Subjects;
use crate::result::RunResult;

/// How long it can go unseen that the application has closed what a thread sleeps in.
pub const UNSEEN: Duration = Duration::from_secs(5);

/// What has happened to those one event loop, or one blocking call, waits for, and the descriptor that says that
/// something has.
#[pyclass(frozen, module = "spawnfd._spawnfd")]
#[derive(Debug)]
pub struct Queue(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    news: PerProcess<Vec<News>>,
    wake: Known,
}

/// What has happened, under the key of who waits for it.
#[derive(Debug)]
enum News {
    /// A run has ended.
    Finished(u64, Box<Finished>),
    /// A wakeup has come.
    Woken(u64),
}

#[derive(Debug)]
struct Finished {
    outcome: spawnfd::Result<Output>,
    args: Vec<OsString>,
    subjects: Arc<Subjects>,
}

impl Shared {
    fn push(&self, news: News) {
        let mut queue = self.news.lock();
        let first = queue.is_empty();
        queue.push(news);
        drop(queue);
        if first {
            self.notify();
        }
    }

    /// Puts news in front again that were taken out.
    fn put_back(&self, news: VecDeque<News>) {
        self.news.lock().splice(..0, news);
        self.notify();
    }

    fn notify(&self) {
        if let Some(wake) = self.wake.get() {
            let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
        }
    }
}

impl Queue {
    /// What the engine is to do with a run that has ended.
    pub fn sender(
        &self,
        key: u64,
        args: Vec<OsString>,
        subjects: Arc<Subjects>,
    ) -> impl FnOnce(spawnfd::Result<Output>) + Send + 'static {
        let shared = self.0.clone();
        move |outcome| shared.push(News::Finished(key, Box::new(Finished { outcome, args, subjects })))
    }
}

#[pymethods]
impl Queue {
    #[new]
    fn new() -> PyResult<Queue> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| PyOSError::new_err((errno.raw_os_error(), "eventfd")))?;
        Ok(Queue(Arc::new(Shared { news: PerProcess::default(), wake: Known::new(wake) })))
    }

    /// The eventfd to wait for.
    fn fileno(&self) -> i32 {
        self.0.wake.as_fd().as_raw_fd()
    }

    /// Takes all there is, and gives each future of `pending` that waits for something its result or exception.
    fn drain(&self, py: Python<'_>, pending: &Bound<'_, PyDict>) -> PyResult<()> {
        // Read before the queue is emptied: what is pushed in between wakes once more than needed.
        if let Some(wake) = self.0.wake.get() {
            let _ = rustix::io::read(wake, &mut [0; 8]);
        }
        let mut all = VecDeque::from(std::mem::take(&mut *self.0.news.lock()));
        while !all.is_empty() {
            if let Err(raised) = hand_on(py, pending, &mut all) {
                // A signal handler's. The others are for the next time.
                self.0.put_back(all);
                return Err(raised);
            }
        }
        Ok(())
    }

    /// Whether the eventfd is still at its number: the application may have closed it, or put something else there.
    fn is_whole(&self) -> bool {
        self.0.wake.get().is_some()
    }

    /// Blocks until there is something, at most so many seconds. Python's signal handlers run meanwhile, and may raise.
    fn block(&self, py: Python<'_>, timeout: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let deadline = seconds(timeout, "timeout")?.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let look = Instant::now() + UNSEEN;
            let until = deadline.map_or(look, |deadline| deadline.min(look));
            let is_there = wait_readable(py, &self.0.wake, Some(until))?;
            if !self.is_whole() && self.0.news.lock().is_empty() {
                return Err(PyOSError::new_err((Errno::EBADF.raw(), "poll")));
            }
            if is_there || deadline == Some(until) || !self.0.news.lock().is_empty() {
                return Ok(());
            }
        }
    }
}

/// Takes out the first of the news, for the future that waits for it.
fn hand_on(py: Python<'_>, pending: &Bound<'_, PyDict>, all: &mut VecDeque<News>) -> PyResult<()> {
    // Here, where nothing is half done, rather than within the future's own code.
    py.check_signals()?;
    let Some(News::Finished(key, _) | News::Woken(key)) = all.front() else { return Ok(()) };
    let key = *key;
    let future = pending.get_item(key)?;
    let waits = match &future {
        Some(future) => !future.call_method0(intern!(py, "done"))?.is_truthy()?,
        None => false,
    };
    let (Some(news), Some(future)) = (all.pop_front(), future) else { return Ok(()) };
    pending.del_item(key)?;
    if !waits {
        // Whoever was cancelled and has not seen that yet finds the result in another one.
        if let News::Finished(_, finished) = news
            && let Finished { outcome: Ok(output), args, .. } = *finished
            && future.call_method0(intern!(py, "cancelled"))?.is_truthy()?
        {
            let other = future.call_method0(intern!(py, "get_loop"))?.call_method0(intern!(py, "create_future"))?;
            other.call_method1(intern!(py, "set_result"), (RunResult::new(output.into(), args),))?;
            pending.set_item(key, other)?;
        }
        return Ok(());
    }
    let (method, outcome) = match news {
        News::Woken(_) => (intern!(py, "set_result"), py.None().into_bound(py)),
        News::Finished(_, finished) => match finished.outcome {
            Ok(output) => {
                let result = RunResult::new(output.into(), finished.args);
                (intern!(py, "set_result"), Bound::new(py, result)?.into_any())
            }
            Err(error) => {
                let exception = finished.subjects.exception(py, &error);
                (intern!(py, "set_exception"), exception.into_value(py).into_bound(py).into_any())
            }
        },
    };
    let tell = || future.call_method1(method, (&outcome,));
    tell().map(drop).or_else(|raised| {
        // It may have been raised before the future had it.
        if !future.call_method0(intern!(py, "done"))?.is_truthy()? {
            tell()?;
        }
        Err(raised)
    })
}

/// Blocks until a descriptor is readable; `false` when the time is over. Python's signal handlers run meanwhile, and may raise.
pub fn wait_readable(py: Python<'_>, fd: &impl AsFd, deadline: Option<Instant>) -> PyResult<bool> {
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let timeout =
            left.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) });
        let fd = fd.as_fd();
        match py.detach(|| poll(&mut [PollFd::new(&fd, PollFlags::IN)], timeout.as_ref())) {
            Ok(ready) if ready > 0 => return Ok(true),
            Ok(_) if left == Some(Duration::ZERO) => return Ok(false),
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => py.check_signals()?,
            Err(errno) => return Err(PyOSError::new_err((errno.raw_os_error(), "poll"))),
        }
    }
}

/// Comes once for each listener when something has changed: the listener checks what has, and listens again.
#[pyclass(frozen, module = "spawnfd._spawnfd")]
#[derive(Clone, Debug, Default)]
pub struct Wakeup(Arc<PerProcess<Listeners>>);

/// Queues, and the key that each is to have.
type Listeners = Vec<(Arc<Shared>, u64)>;

impl Wakeup {
    /// What makes it come.
    pub fn waker(&self) -> Waker {
        let wakeup = self.clone();
        Waker::new(move || {
            for (queue, key) in std::mem::take(&mut *wakeup.0.lock()) {
                queue.push(News::Woken(key));
            }
        })
    }
}

#[pymethods]
impl Wakeup {
    /// Puts `key` into `queue` when it comes next.
    fn listen(&self, queue: &Bound<'_, Queue>, key: u64) {
        self.0.lock().push((queue.get().0.clone(), key));
    }

    fn unlisten(&self, queue: &Bound<'_, Queue>, key: u64) {
        self.0.lock().retain(|(other, number)| !(Arc::ptr_eq(other, &queue.get().0) && *number == key));
    }
}
