// SPDX-License-Identifier: MIT OR Apache-2.0
//! The handle of a run in an engine, and the watch of a task that waits for a child.

#[cfg(feature = "remote")]
use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Weak};
use std::time::Duration;

use rustix::event::epoll;

use super::{Engine, Inbox, ONLY_HANGUP, epoll_data, expect_run};
use crate::callback::Callback;
use crate::error::Result;
use crate::job::TerminalSize;
use crate::job::run_state::RunFd;

/// The handle of a run that the engine drives.
///
/// # Examples
/// ```
/// use spawnfd::{Command, Run};
/// let (sender, receiver) = std::sync::mpsc::channel();
/// let handle = Command::new("sleep").arg("1000").run_then(&Run::new(), move |output| sender.send(output).unwrap())?;
/// handle.cancel();
/// assert_eq!(receiver.recv().unwrap()?.signal(), Some(spawnfd::signal::TERM));
/// # Ok::<(), spawnfd::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct RunHandle {
    driver: Driver,
    id: u64,
}

/// The driver of a run. The reference is weak, because a job's handle must not keep the engine's descriptors open after
/// the engine's thread has ended.
#[derive(Debug, Clone)]
enum Driver {
    Engine(Weak<Engine>),
    /// Another process, usually on another machine.
    #[cfg(feature = "remote")]
    Remote(Weak<dyn RemoteRuns>),
}

impl RunHandle {
    pub(super) fn new(engine: &Arc<Engine>, id: u64) -> RunHandle {
        RunHandle { driver: Driver::Engine(Arc::downgrade(engine)), id }
    }

    /// The handle of a run that another process drives.
    #[cfg(feature = "remote")]
    pub(in crate::job) fn remote(runs: Weak<dyn RemoteRuns>, id: u64) -> RunHandle {
        RunHandle { driver: Driver::Remote(runs), id }
    }

    /// Ends the program and its process tree, if the program still runs, as a timeout would. The library still calls
    /// the callback, with the output so far.
    pub fn cancel(&self) {
        self.order(EngineOrder::End { grace: None });
    }

    #[doc(hidden)]
    pub fn order(&self, order: EngineOrder) {
        match &self.driver {
            Driver::Engine(_) => _ = self.send(|inbox| inbox.orders.push((self.id, order))),
            #[cfg(feature = "remote")]
            Driver::Remote(runs) => {
                if let Some(runs) = runs.upgrade() {
                    runs.order(self.id, order);
                }
            }
        }
    }

    /// Makes the engine's thread call `callback`. Returns `false` if the thread is ending.
    pub(in crate::job) fn call_soon(&self, callback: Callback) -> bool {
        self.send(|inbox| inbox.calls.push_back(callback))
    }

    /// Puts something into the engine's inbox, and wakes the engine. Returns `false` if the engine's thread is ending.
    fn send(&self, put: impl FnOnce(&mut Inbox)) -> bool {
        let Some(engine) = self.upgraded() else { return false };
        let mut inbox = engine.inbox.lock();
        // In a forked copy of the host, `over` is set: the copy has no engine thread, and the program is not its
        // child.
        if inbox.over {
            return false;
        }
        put(&mut inbox);
        drop(inbox);
        engine.wake();
        true
    }

    /// The engine of this process, unless it is gone.
    fn upgraded(&self) -> Option<Arc<Engine>> {
        match &self.driver {
            Driver::Engine(engine) => engine.upgrade(),
            #[cfg(feature = "remote")]
            Driver::Remote(_) => None,
        }
    }

    /// The engine of this process, unless its thread is ending. In a forked copy of the host, `over` is set.
    pub(super) fn engine(&self) -> Option<Arc<Engine>> {
        self.upgraded().filter(|engine| !engine.inbox.lock().over)
    }

    /// Whether an engine of this process drives the run.
    pub(in crate::job) fn is_driven(&self) -> bool {
        self.engine().is_some()
    }

    /// Whether the calling thread may use this descriptor of the run: the engine still watches the run, and the
    /// application has not closed or replaced the descriptor.
    pub(in crate::job) fn may_use(&self, fd: BorrowedFd<'_>) -> bool {
        self.engine().is_some_and(|engine| engine.watches(fd))
    }

    /// Makes the engine watch a stream of the output for new bytes, or stop that. The engine notices the end of the
    /// stream in both cases. Returns `false` if the engine does not have the descriptor any more.
    pub(in crate::job) fn watch_output(&self, fd: BorrowedFd<'_>, fd_kind: RunFd, watch: bool) -> bool {
        let Some(engine) = self.engine() else { return false };
        let (input, only) = if watch { (epoll::EventFlags::IN, 0) } else { (epoll::EventFlags::empty(), ONLY_HANGUP) };
        let data = epoll::EventData::new_u64(epoll_data(self.id, fd_kind) | only);
        epoll::modify(&engine.poll, fd, data, input | epoll::EventFlags::ET).is_ok()
    }

    /// Returns a callback that sends this order to the engine.
    pub(in crate::job) fn callback(&self, order: EngineOrder) -> Callback {
        let handle = self.clone();
        Callback::new(move || handle.order(order))
    }
}

/// A connection to a process that drives runs.
#[cfg(feature = "remote")]
pub trait RemoteRuns: Send + Sync {
    /// Passes an order on to the run with this id. `Feed`: the run has input, or its input has ended. `Read`: the
    /// caller has made room for output.
    fn order(&self, id: u64, order: EngineOrder);
}

#[cfg(feature = "remote")]
impl fmt::Debug for dyn RemoteRuns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RemoteRuns")
    }
}

/// An order from a handle to its run.
#[derive(Clone, Copy, Debug)]
pub enum EngineOrder {
    /// End the program.
    End {
        /// The time between SIGTERM and SIGKILL. `None`: the run's own grace time.
        grace: Option<Duration>,
    },
    /// Check for input to write.
    Feed,
    /// Check for output to read.
    Read,
    /// Send a signal.
    Signal {
        /// The number.
        signal: i32,
        /// To the whole tree, or to the program alone.
        tree: bool,
    },
    /// Resize the terminal.
    Resize(TerminalSize),
}

/// A task that waits until a pidfd is readable.
#[derive(Debug)]
pub(in crate::job) struct PidfdWatch {
    engine: Weak<Engine>,
    id: u64,
}

impl PidfdWatch {
    /// Makes an engine call the callback once, when the pidfd becomes readable. The engine may also call the callback
    /// earlier, so the task then checks the child and starts another watch.
    pub(in crate::job) fn start(pidfd: BorrowedFd<'_>, callback: Callback) -> Result<PidfdWatch> {
        let mut expected = expect_run()?;
        expected.engine.watch(expected.id, pidfd, callback)?;
        expected.was_added = true;
        Ok(PidfdWatch { engine: Arc::downgrade(&expected.engine), id: expected.id })
    }

    /// Replaces the callback. Returns `false` if the engine has already called the callback.
    pub(in crate::job) fn replace(&self, callback: &Callback) -> bool {
        let Some(engine) = self.engine.upgrade() else { return false };
        let replace = |own: &mut Callback| std::mem::replace(own, callback.clone());
        let replaced = engine.inbox.lock().watches.get_mut(&self.id).map(replace);
        // The old callback is dropped here, without the lock, because the drop may run code of the application.
        replaced.is_some()
    }

    /// Ends the watch. `pidfd` is `None` if the application has closed or replaced the pidfd.
    pub(in crate::job) fn end(self, pidfd: Option<BorrowedFd<'_>>) {
        let Some(engine) = self.engine.upgrade() else { return };
        let mut inbox = engine.inbox.lock();
        // A forked copy of the host must not change the epoll set, because the copy shares the set with the host.
        if inbox.over {
            return;
        }
        let callback = inbox.watches.remove(&self.id);
        if let Some(pidfd) = pidfd {
            let _ = epoll::delete(&engine.poll, pidfd);
        }
        drop(inbox);
        if callback.is_some() {
            // An engine with a watch does not count as idle. Wake the engine, so that it begins to measure its idle
            // time.
            engine.wake();
        }
    }
}
