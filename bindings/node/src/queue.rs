// SPDX-License-Identifier: MIT OR Apache-2.0
//! Delivers outcomes from the library's thread to a JavaScript thread, in batches.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::channel::oneshot;
use futures::future::{BoxFuture, FutureExt};
use napi::bindgen_prelude::*;
use napi::threadsafe_function::{ThreadsafeFunction, ThreadsafeFunctionCallMode};
use napi_derive::napi;
use spawnfd::internal::drive;

use crate::errors::Failure;

/// A function that wakes the JavaScript thread. It does not keep the thread's event loop alive.
type Notify = ThreadsafeFunction<(), (), (), Status, false, true>;

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends once a call has to end.
pub type Stop = BoxFuture<'static, ()>;

/// A function that the JavaScript thread calls for a value.
type ToJavaScript = dyn for<'env> FnOnce(&'env Env) -> Result<Unknown<'env>> + Send;

/// The outcome of a call, or the news that a state may have changed.
pub struct Outcome(Box<ToJavaScript>);

impl Outcome {
    pub fn of(value: impl ToNapiValue + Send + 'static) -> Outcome {
        Outcome(Box::new(|env| value.into_unknown(env)))
    }

    /// A state that the caller waits for may have changed.
    pub fn woken() -> Outcome {
        Outcome::of(Null)
    }
}

/// The outcomes for one JavaScript thread, and its active calls.
#[napi]
pub struct Queue(Arc<Shared>);

pub struct Shared {
    state: Mutex<State>,
    notify: Notify,
}

#[derive(Default)]
struct State {
    outcomes: Vec<(u32, Outcome)>,
    /// The active calls by key. The drop of a sender tells the call that it has to end. The drop can poll the call, so
    /// this state is not locked meanwhile.
    stops: HashMap<u32, oneshot::Sender<()>>,
    /// The environment is being torn down: nothing starts any more.
    is_closed: bool,
}

#[napi]
impl Queue {
    /// Creates a queue, which calls `notify` in the JavaScript thread once it has outcomes. At the end of the thread, the
    /// queue ends all programs.
    #[napi(constructor)]
    pub fn new(env: &Env, notify: Function<'_, (), ()>) -> Result<Queue> {
        spawnfd::reserve_descriptors();
        let notify = notify.build_threadsafe_function().weak::<true>().build()?;
        let shared = Arc::new(Shared { state: Mutex::default(), notify });
        let own = shared.clone();
        env.add_env_cleanup_hook(own, |shared| shared.close())?;
        Ok(Queue(shared))
    }

    /// Takes the outcomes: pairs of a call's key and its outcome.
    #[napi]
    pub fn take<'env>(&self, env: &'env Env) -> Result<Vec<(u32, Unknown<'env>)>> {
        let outcomes = std::mem::take(&mut lock(&self.0.state).outcomes);
        outcomes.into_iter().map(|(key, Outcome(value))| Ok((key, value(env)?))).collect()
    }

    /// Ends the program of an active call, as a timeout would.
    #[napi]
    pub fn stop(&self, key: u32) {
        let stop = lock(&self.0.state).stops.remove(&key);
        drop(stop);
    }

    pub fn shared(&self) -> Arc<Shared> {
        self.0.clone()
    }

    /// Begins a call in the library's thread. The queue gets its outcome under `key`. Returns why the call cannot begin.
    pub fn begin<T, E, F>(&self, key: u32, call: impl FnOnce(Stop) -> F) -> Option<Failure>
    where
        T: ToNapiValue + Send + 'static,
        E: Into<Failure>,
        F: Future<Output = std::result::Result<T, E>> + Send + 'static,
    {
        let driven = self.0.drive(key, |stop| {
            let outcome = call(stop);
            async move { outcome.await.map_or_else(|error| Outcome::of(error.into()), Outcome::of) }
        });
        driven.err().map(Failure::from)
    }
}

impl Shared {
    /// Adds an outcome. Wakes the JavaScript thread if the queue was empty.
    pub fn push(&self, key: u32, outcome: Outcome) {
        let mut state = lock(&self.state);
        if state.is_closed {
            return;
        }
        let stop = state.stops.remove(&key);
        state.outcomes.push((key, outcome));
        let is_first = state.outcomes.len() == 1;
        drop(state);
        drop(stop);
        if is_first {
            self.notify.call((), ThreadsafeFunctionCallMode::NonBlocking);
        }
    }

    fn close(&self) {
        let mut state = lock(&self.state);
        state.is_closed = true;
        let (stops, outcomes) = (std::mem::take(&mut state.stops), std::mem::take(&mut state.outcomes));
        drop(state);
        drop((stops, outcomes));
    }

    /// Drives `begin`'s future in the library's thread. Its outcome goes into the queue.
    pub fn drive<F>(self: &Arc<Shared>, key: u32, begin: impl FnOnce(Stop) -> F) -> spawnfd::Result<()>
    where
        F: Future<Output = Outcome> + Send + 'static,
    {
        let (sender, receiver) = oneshot::channel();
        let mut state = lock(&self.state);
        if state.is_closed {
            return Ok(());
        }
        state.stops.insert(key, sender);
        drop(state);
        let mut answer = Answer { queue: self.clone(), key, outcome: None };
        let future = begin(receiver.map(drop).boxed());
        drive(async move {
            // An end without an outcome drops the answer, too.
            let answer = &mut answer;
            answer.outcome = Some(future.await);
        })
    }
}

/// Delivers the outcome of a call when it is dropped.
struct Answer {
    queue: Arc<Shared>,
    key: u32,
    outcome: Option<Outcome>,
}

impl Drop for Answer {
    fn drop(&mut self) {
        let outcome = self.outcome.take().unwrap_or_else(|| Outcome::of(Failure::lost()));
        self.queue.push(self.key, outcome);
    }
}
