// SPDX-License-Identifier: MIT OR Apache-2.0
//! Jobs that run a shell script, and futures of runs.

use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::task::{Context, Poll, Wake, Waker};

use spawnfd::{Command, Job, Output, Result, Run};

use super::eventually;

/// Runs a command to its end in the caller's thread.
pub fn in_caller(command: Command<'static>, run: &Run) -> Output {
    command.run_with(run).expect("runs")
}

/// Runs a command to its end in the library's engine thread.
pub fn in_engine(command: Command<'static>, run: &Run) -> Output {
    let (sender, receiver) = channel();
    let done = move |output| sender.send(output).expect("the receiver is alive");
    let _handle = command.run_then(run, done).expect("starts");
    receiver.recv().expect("a message").expect("runs")
}

/// Runs a command twice, in the caller's thread and in the engine thread, and checks both outputs.
pub fn both(command: impl Fn() -> Command<'static>, run: &Run, check: impl Fn(Output)) {
    check(in_caller(command(), run));
    check(in_engine(command(), run));
}

/// A command that runs a line of shell.
pub fn sh(line: &str) -> Command<'static> {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", line]);
    command
}

/// Starts a line of shell as a job.
pub fn start(line: &str, run: &Run) -> Job {
    sh(line).start(run).expect("starts")
}

/// Polls a future once, without a wakeup.
pub fn polled<T: Send>(future: impl Future<Output = T> + Send) -> impl Future<Output = T> + Send {
    let mut future = Box::pin(future);
    let first = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    async move {
        match first {
            Poll::Ready(value) => value,
            Poll::Pending => future.await,
        }
    }
}

/// A future of a run that owns the command and the run's options.
pub fn future(command: Command<'static>, run: &Run) -> impl Future<Output = Result<Output>> + Send + use<> {
    let run = run.clone();
    async move { command.run_async(&run).await }
}

/// The future of a run that has been polled once. So its program has started, or the future waits for a place.
pub fn started(command: Command<'static>, run: &Run) -> impl Future<Output = Result<Output>> + Send + use<> {
    polled(future(command, run))
}

/// A minimal executor: the thread parks until it is woken.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        std::thread::park();
    }
}

/// The output of a finished run as text.
pub fn text(output: &Output) -> String {
    output.stdout_text().into_owned()
}

/// Waits until the output after `since` contains `ends`; returns that output and the next cursor.
pub fn read_until(job: &Job, since: u64, ends: &str) -> (String, u64) {
    eventually(&format!("prints {ends:?}"), || job.read(since).text().contains(ends));
    let chunk = job.read(since);
    (chunk.text().into_owned(), chunk.next)
}
