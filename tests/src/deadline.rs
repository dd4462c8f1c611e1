// SPDX-License-Identifier: MIT OR Apache-2.0
//! A time limit for a test: a test that hangs is aborted with a message.

use std::io::Write;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

/// Runs `body` in this thread; aborts the process with a message if `body` takes longer than `limit`.
///
/// A second thread, with all signals blocked, measures the time. It ends before this function returns. Tests in
/// [`crate::isolated!`] do not need this: their supervisor enforces a time limit.
///
/// # Panics
/// If `body` panics.
pub fn deadline<T>(limit: Duration, body: impl FnOnce() -> T) -> T {
    let test = crate::isolated::test_name();
    let (done, wait) = channel::<()>();
    let clock = without_signals(|| {
        thread::Builder::new().name("deadline".into()).spawn(move || {
            if wait.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                let message = format!("\n{test}: still running after {limit:?}, its deadline; aborting\n");
                // libtest captures the output of eprint!, so the message is written to stderr itself.
                std::io::stderr().write_all(message.as_bytes()).ok();
                std::process::abort();
            }
        })
    })
    .expect("a thread for the deadline");
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
    drop(done);
    clock.join().ok();
    result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Calls `start` with every signal blocked. A thread that `start` creates inherits the mask, so it never receives a
/// signal meant for the test.
fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    let mut all = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
    let mut before = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: sigfillset fills the set that pthread_sigmask then reads; the old mask is stored in `before`.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    let result = start();
    // SAFETY: `before` was stored by the call above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    result
}
