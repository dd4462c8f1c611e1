// SPDX-License-Identifier: MIT OR Apache-2.0
//! Limits the number of concurrent runs, and queues further runs.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use spawnfd_sys::fork_generation;

use crate::callback::{Callback, catch_panic};
use crate::error::{Errno, Error, Result, Stage, errno};
use crate::host::descriptors::above_standard;
use crate::host::per_process::PerProcess;
use crate::host::thread::{self, SleepLengths};

/// Limits the number of concurrent runs. All clones of a limiter share its permits.
///
/// A run has a permit from before its program starts until its result is available. Waiting runs get permits in
/// order of arrival. A forked process starts with the same limit and all permits free, because its parent's runs
/// are not its own.
///
/// # Examples
/// ```
/// use spawnfd::limits::Limiter;
/// use spawnfd::{Command, Run};
/// let limiter = Limiter::new(2);
/// let run = Run::new().limiter(&limiter);
/// let jobs = [(); 2].map(|()| Command::new("cat").start(&run.clone().writable(10)).unwrap());
/// assert_eq!((limiter.running(), limiter.try_acquire().is_none()), (2, true));
/// jobs.each_ref().map(|job| job.close_stdin());
/// assert!(Command::new("true").run_with(&run)?.ok(), "as soon as one of them has ended");
/// # Ok::<(), spawnfd::Error>(())
/// ```
#[derive(Clone)]
pub struct Limiter(Arc<LimiterShared>);

struct LimiterShared {
    limit: AtomicUsize,
    state: PerProcess<LimiterState>,
}

#[derive(Default)]
struct LimiterState {
    running: usize,
    waiting: VecDeque<Waiter>,
    next: u64,
    /// A thread is granting permits. That thread also handles changes that other threads make meanwhile.
    granting: bool,
}

type Grant = Box<dyn FnOnce(Permit) + Send>;

struct Waiter {
    number: u64,
    grant: Grant,
    _counted: Counted,
}

/// The number of waiters in all limiters of this process.
static BACKLOG: PerProcess<usize> = PerProcess::new(0);

/// Whether starts of this process wait for a permit.
#[cfg(feature = "warm")]
pub(crate) fn has_backlog() -> bool {
    *BACKLOG.lock() > 0
}

/// Counts one waiter while the value exists.
struct Counted;

impl Counted {
    fn new() -> Counted {
        *BACKLOG.lock() += 1;
        Counted
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut backlog = BACKLOG.lock();
        // A forked process counts from 0, and may drop its copies of its parent's waiters.
        *backlog = backlog.saturating_sub(1);
    }
}

impl Limiter {
    /// Creates a limiter with `limit` permits. With 0, no run starts until `set_limit` raises the limit.
    pub fn new(limit: usize) -> Limiter {
        Limiter(Arc::new(LimiterShared { limit: limit.into(), state: PerProcess::default() }))
    }

    /// The limit.
    pub fn limit(&self) -> usize {
        self.0.limit.load(Ordering::Relaxed)
    }

    /// Changes the limit. Running runs continue even if they exceed the new limit; the next run starts when enough
    /// have ended.
    pub fn set_limit(&self, limit: usize) {
        self.0.limit.store(limit, Ordering::Relaxed);
        self.return_permits(0);
    }

    /// The number of permits in use.
    pub fn running(&self) -> usize {
        self.0.state.lock().running
    }

    /// The number of waiters.
    pub fn waiting(&self) -> usize {
        self.0.state.lock().waiting.len()
    }

    /// Takes a permit if one is free and there are no waiters.
    pub fn try_acquire(&self) -> Option<Permit> {
        let mut state = self.0.state.lock();
        let free = state.running < self.limit() && state.waiting.is_empty();
        state.running += usize::from(free);
        drop(state);
        free.then(|| self.permit())
    }

    /// Waits for a permit, blocking this thread.
    ///
    /// # Errors
    /// EMFILE, ENFILE: no descriptor is free to wait with. EAGAIN: no permit is free, and the caller is a callback of
    /// a run. The library calls callbacks in its engine thread. If a callback blocked this thread, no run could end and
    /// return its permit.
    pub fn acquire(&self) -> Result<Permit> {
        self.acquire_unless(&mut || false)
    }

    /// Returns a lazy future of a permit: the future enters the queue when it is first polled.
    ///
    /// [`take`](Acquiring::take) and [`when_ready`](Acquiring::when_ready) also enter the queue.
    pub fn acquire_async(&self) -> Acquiring {
        Acquiring { limiter: self.clone(), slot: Arc::default(), queued: None }
    }

    /// Like [`acquire`](Limiter::acquire), but fails with EINTR when `interrupted` returns true. Calls `interrupted`
    /// before the first wait, and again after each signal.
    pub(crate) fn acquire_unless(&self, interrupted: &mut dyn FnMut() -> bool) -> Result<Permit> {
        let failed = |errno| Error::new(Stage::Limit, errno, "limiter: acquire()");
        let mut acquiring = self.acquire_async();
        if let Some(permit) = acquiring.take() {
            return Ok(permit);
        }
        if thread::is_engine() {
            let message = "the limiter has no free permit, and a run's callback cannot wait";
            return Err(failed(Errno::EAGAIN).saying(message));
        }
        // Wait by poll(2), because it returns after a signal.
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|e| failed(errno(e)))?;
        let wake = Arc::new(above_standard(wake));
        let event = wake.clone();
        acquiring.when_ready(move || _ = rustix::io::write(&event, &1u64.to_ne_bytes()));
        let mut sleeps = SleepLengths::default();
        loop {
            if interrupted() {
                return Err(failed(Errno::EINTR).saying("interrupted while waiting for a permit of the limiter"));
            }
            if let Some(permit) = acquiring.take() {
                return Ok(permit);
            }
            let length = Timespec::try_from(sleeps.next_length()).ok();
            match poll(&mut [PollFd::new(&wake, PollFlags::IN)], length.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(failed(errno(e))),
            }
        }
    }

    fn permit(&self) -> Permit {
        Permit { limiter: self.clone(), generation: generation() }
    }

    /// Calls `grant` with a permit. If none is free now, calls it as soon as one is free. Returns
    /// the number in the queue.
    fn enqueue(&self, grant: Grant) -> u64 {
        let mut state = self.0.state.lock();
        state.next += 1;
        let number = state.next;
        if state.running < self.limit() && state.waiting.is_empty() {
            state.running += 1;
            drop(state);
            grant(self.permit());
        } else {
            state.waiting.push_back(Waiter { number, grant, _counted: Counted::new() });
        }
        number
    }

    fn leave_queue(&self, number: u64) {
        let mut state = self.0.state.lock();
        let index = state.waiting.iter().position(|waiter| waiter.number == number);
        let waiter = index.and_then(|index| state.waiting.remove(index));
        drop(state);
        drop(waiter);
    }

    /// Takes back `freed` permits, and grants the free ones.
    fn return_permits(&self, freed: usize) {
        let mut state = self.0.state.lock();
        state.running -= freed;
        // Only one thread grants permits, in a loop. With recursion, a grant that returns its
        // permit at once would make the stack grow with each waiter.
        if std::mem::replace(&mut state.granting, true) {
            return;
        }
        while state.running < self.limit()
            && let Some(Waiter { grant, .. }) = state.waiting.pop_front()
        {
            state.running += 1;
            drop(state);
            let permit = self.permit();
            // This thread holds no lock here. A panic in a callback must not stop the other grants.
            catch_panic(move || grant(permit));
            state = self.0.state.lock();
        }
        state.granting = false;
    }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (limit, running, waiting) = (self.limit(), self.running(), self.waiting());
        write!(f, "Limiter {{ limit: {limit}, running: {running}, waiting: {waiting} }}")
    }
}

fn generation() -> u64 {
    fork_generation().unwrap_or(1)
}

/// A permit of a [`Limiter`], returned when it is dropped; see [`Run::permit`](crate::Run::permit).
///
/// # Examples
/// ```
/// use spawnfd::limits::Limiter;
/// use spawnfd::{Command, Run};
/// let limiter = Limiter::new(1);
/// let permit = limiter.acquire()?;
/// assert!(limiter.try_acquire().is_none());
/// Command::new("true").run_with(&Run::new().permit(permit))?.check()?; // the run returns the permit
/// assert_eq!(limiter.running(), 0);
/// # Ok::<(), spawnfd::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "dropping it returns the permit"]
pub struct Permit {
    limiter: Limiter,
    /// The fork generation of the process that owns the permit: a number that differs in each forked process. A copy
    /// of the permit in a forked process has no effect.
    generation: u64,
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.generation == generation() {
            self.limiter.return_permits(1);
        }
    }
}

/// A lazy future of a permit: it enters the limiter's queue when it is first polled.
///
/// Dropping the future removes it from the queue. If the future had received a permit, the permit goes to the next
/// waiter.
///
/// # Examples
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use spawnfd::limits::Limiter;
/// let limiter = Limiter::new(1);
/// let permit = limiter.acquire_async().await;
/// assert!(limiter.try_acquire().is_none());
/// drop(permit); // returns the place
/// assert!(limiter.try_acquire().is_some());
/// # });
/// ```
#[derive(Debug)]
#[must_use = "the future enters the queue when it is polled"]
pub struct Acquiring {
    limiter: Limiter,
    slot: Arc<PerProcess<PermitSlot>>,
    /// The fork generation of the process that entered the queue (a number that differs in each forked process), and
    /// the future's number in that process's queue.
    queued: Option<(u64, u64)>,
}

#[derive(Debug, Default)]
struct PermitSlot {
    permit: Option<Permit>,
    callback: Option<Callback>,
}

impl Acquiring {
    /// Enters the queue, unless the future is already in the queue. A forked process enters its own queue.
    fn enqueue(&mut self) {
        let now = generation();
        if self.queued.is_some_and(|(generation, _)| generation == now) {
            return;
        }
        let slot = self.slot.clone();
        let number = self.limiter.enqueue(Box::new(move |permit| {
            let callback = {
                let mut slot = slot.lock();
                slot.permit = Some(permit);
                slot.callback.take()
            };
            if let Some(callback) = callback {
                callback.call();
            }
        }));
        self.queued = Some((now, number));
    }

    /// Takes the permit if it is available, and otherwise stays in the queue. Returns the permit only once.
    pub fn take(&mut self) -> Option<Permit> {
        self.enqueue();
        self.slot.lock().permit.take()
    }

    /// Whether [`take`](Acquiring::take) would return the permit.
    #[doc(hidden)]
    pub fn is_ready(&mut self) -> bool {
        self.enqueue();
        self.slot.lock().permit.is_some()
    }

    /// Calls `ready` once, when the permit is available. If it is available already, calls `ready` immediately.
    ///
    /// A thread of the library, or the thread that returns a place, calls `ready`, so `ready` must not block.
    pub fn when_ready(&mut self, ready: impl Fn() + Send + Sync + 'static) {
        self.set_callback(Callback::new(ready));
    }

    fn set_callback(&mut self, callback: Callback) {
        self.enqueue();
        let mut slot = self.slot.lock();
        if slot.permit.is_none() {
            // Drop the old callback outside the lock: its drop may take locks or return a permit.
            let old_callback = slot.callback.replace(callback);
            drop(slot);
            drop(old_callback);
        } else {
            drop(slot);
            callback.call();
        }
    }
}

impl Future for Acquiring {
    type Output = Permit;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Permit> {
        if let Some(permit) = self.take() {
            return Poll::Ready(permit);
        }
        // Wakes the task at once if the permit has arrived meanwhile.
        self.set_callback(Callback::waking(context));
        Poll::Pending
    }
}

impl Drop for Acquiring {
    fn drop(&mut self) {
        if let Some((of, number)) = self.queued
            && of == generation()
        {
            self.limiter.leave_queue(number);
        }
        // A granted permit returns to the limiter when the last reference to `slot` is dropped.
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    fn count(limiter: &Limiter) -> (usize, usize) {
        (limiter.running(), limiter.waiting())
    }

    /// A future that has entered the queue.
    fn queued(limiter: &Limiter) -> Acquiring {
        let mut acquiring = limiter.acquire_async();
        assert!(acquiring.take().is_none(), "no permit is free");
        acquiring
    }

    #[test]
    fn a_future_enters_the_queue_at_the_first_poll() {
        let limiter = Limiter::new(1);
        drop(limiter.acquire_async());
        let mut first = limiter.acquire_async();
        assert_eq!(count(&limiter), (0, 0));
        let mut context = Context::from_waker(std::task::Waker::noop());
        assert!(Pin::new(&mut first).poll(&mut context).is_ready(), "the returned permit is dropped here");
        let permit = limiter.try_acquire();
        let mut second = limiter.acquire_async();
        assert_eq!(count(&limiter), (1, 0));
        assert!(Pin::new(&mut second).poll(&mut context).is_pending());
        assert_eq!(count(&limiter), (1, 1));
        drop(permit);
        assert_eq!(count(&limiter), (1, 0), "the future keeps its permit until the next poll");
        assert!(Pin::new(&mut second).poll(&mut context).is_ready());
        assert_eq!(count(&limiter), (0, 0));
    }

    #[test]
    fn waiters_get_permits_in_order_of_arrival() {
        let limiter = Limiter::new(1);
        let mut permit = limiter.try_acquire();
        let mut queue: Vec<Acquiring> = (0..5).map(|_| queued(&limiter)).collect();
        assert_eq!(count(&limiter), (1, 5));
        for number in 0..5 {
            drop(permit.take());
            assert_eq!(count(&limiter), (1, 4 - number));
            assert!(limiter.try_acquire().is_none(), "the waiters come first");
            let ready: Vec<bool> = queue.iter_mut().map(|one| one.slot.lock().permit.is_some()).collect();
            assert_eq!(ready.iter().position(|ready| *ready), Some(number));
            permit = queue[number].take();
            assert!(permit.is_some() && queue[number].take().is_none());
        }
        drop((permit, queue));
        assert_eq!(count(&limiter), (0, 0));
    }

    #[test]
    fn a_dropped_future_leaves_the_queue() {
        let limiter = Limiter::new(1);
        let permit = limiter.try_acquire();
        let (first, second, mut third) = (queued(&limiter), queued(&limiter), queued(&limiter));
        drop(second);
        assert_eq!(count(&limiter), (1, 2));
        drop(permit);
        // `first` had received the permit but did not take it.
        drop(first);
        assert!(third.take().is_some());
        assert_eq!(count(&limiter), (0, 0));
    }

    #[test]
    fn set_limit_takes_effect_while_futures_wait() {
        let limiter = Limiter::new(0);
        let woken = Arc::new(Mutex::new(Vec::new()));
        let mut queue: Vec<Acquiring> = (0..4).map(|_| queued(&limiter)).collect();
        for (number, one) in queue.iter_mut().enumerate() {
            let woken = woken.clone();
            one.when_ready(move || woken.lock().unwrap().push(number));
        }
        assert_eq!(count(&limiter), (0, 4));
        limiter.set_limit(3);
        assert_eq!((count(&limiter), &*woken.lock().unwrap()), ((3, 1), &vec![0, 1, 2]));
        limiter.set_limit(1);
        let permits: Vec<Permit> = queue.iter_mut().filter_map(Acquiring::take).collect();
        let mut permits = permits.into_iter();
        drop(permits.next());
        drop(permits.next());
        assert_eq!(count(&limiter), (1, 1), "two permits above the new limit");
        drop(permits.next());
        assert_eq!((count(&limiter), limiter.limit()), ((1, 0), 1));
        assert!(queue[3].take().is_some());
    }

    /// Each waiter returns its permit at once, inside the grant, and so causes the next grant. The stack must not
    /// grow with the number of waiters.
    #[test]
    fn grants_that_return_their_permit_at_once_do_not_recurse() {
        let limiter = Limiter::new(1);
        let permit = limiter.try_acquire();
        let passed = Arc::new(AtomicUsize::new(0));
        for _ in 0..100_000 {
            let passed = passed.clone();
            limiter.enqueue(Box::new(move |permit| {
                passed.fetch_add(1, Ordering::Relaxed);
                drop(permit);
            }));
        }
        drop(permit);
        assert_eq!((passed.load(Ordering::Relaxed), count(&limiter)), (100_000, (0, 0)));
    }

    #[test]
    fn a_panicking_callback_does_not_stop_the_other_grants() {
        let limiter = Limiter::new(1);
        let permit = limiter.try_acquire();
        let mut first = limiter.acquire_async();
        first.when_ready(|| panic!("on purpose"));
        let mut second = queued(&limiter);
        drop(permit);
        assert!(first.take().is_some() && second.take().is_some());
        assert_eq!(count(&limiter), (0, 0));
    }

    #[test]
    fn never_grants_more_permits_than_the_limit() {
        let limiter = Limiter::new(3);
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let permit = limiter.acquire().expect("a descriptor");
                        most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        std::thread::yield_now();
                        now.fetch_sub(1, Ordering::SeqCst);
                        drop(permit);
                    }
                });
            }
        });
        assert_eq!((most.load(Ordering::SeqCst) <= 3, count(&limiter)), (true, (0, 0)));
    }

    #[test]
    fn an_interrupted_acquire_leaves_the_queue() {
        let limiter = Limiter::new(0);
        let error = limiter.acquire_unless(&mut || true).expect_err("interrupted");
        assert_eq!((error.errno(), error.stage(), limiter.waiting()), (Errno::EINTR, Stage::Limit, 0));
    }
}
