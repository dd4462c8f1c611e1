// SPDX-License-Identifier: MIT OR Apache-2.0
//! Starts programs on Linux, and supervises them: without hangs, leaked descriptors, lost children or surviving process
//! trees, at a cost that does not grow with the host process.
//!
//! ```
//! use spawnfd::{Command, Run};
//! use std::time::Duration;
//!
//! let run = Run::new().timeout(Duration::from_secs(30));
//! let output = Command::new("git").args(["--version"]).run_with(&run)?;
//! assert!(output.check()?.stdout_text().starts_with("git version"));
//! # Ok::<(), spawnfd::Error>(())
//! ```
//!
//! A [`Command`] is a builder, as in [`std::process`]. There are three ways to use it:
//!
//! | call | returns | for |
//! |---|---|---|
//! | [`spawn`](Command::spawn), [`status`](Command::status) | a [`Child`], an exit status | programs that use your streams, or that outlive you |
//! | [`run`](Command::run), [`run_with`](Command::run_with), [`run_async`](Command::run_async) | an [`Output`] | captured output, a timeout, a bounded amount of output |
//! | [`start`](Command::start), [`start_events`](Command::start_events) | a [`Job`] | output while the program runs, input over time, a terminal |
//!
//! A [`Run`] has the options of the second and third way: time limits, the amount of output to keep, resource
//! [`limits`], and control of the process [`tree`]. A [`Template`] pins an executable, and each start then checks that
//! the executable is unchanged. A [`Warm`] keeps processes started in advance. A [`sandbox`] starts programs through a
//! command such as `bwrap`.
//!
//! # Platforms
//!
//! Linux 5.10 or later on x86_64 or aarch64, as root or not, also under Docker's default seccomp profile. [`support`]
//! reports which kernel features the library uses. If a feature is missing or refused, the library uses a slower one.
//!
//! # Features
//!
//! | feature | default | adds | needs at build time |
//! |---|---|---|---|
//! | `tree` | yes | the tiers cgroup, pidns, subreaper and guard of a process [`tree`]; limits by cgroups | rustc, called once more |
//! | `warm` | yes | [`Warm`] and [`Command::warm`] | a C compiler |
//! | `serde` | no | `Serialize` for [`Output`] | the crate serde |
//! | `tokio` | no | tokio's read and write traits for `JobOutput` and `JobInput` | the crate tokio |
//!
//! Without `tree`, the crate embeds no helper program. A run then controls its process tree in the tier
//! [`Group`](tree::Tier::Group), and rlimits enforce its [`limits`]. [`Tree::prepare`](tree::Tree::prepare) with
//! another tier fails with EOPNOTSUPP.
//!
//! # Differences from `std::process`
//!
//! | | `std::process` | this crate |
//! |---|---|---|
//! | descriptors of the program | all that are not close-on-exec | 0, 1, 2 and those that the command names |
//! | blocked signals | none | those of the calling thread, unless the command sets a mask |
//! | standard input of `output` and `run` | `/dev/null` | `/dev/null` |
//! | session of the program | the caller's | `spawn`, `status`: the caller's; runs and jobs: one of its own |
//! | a grandchild keeps the output pipe open | `output` waits for it | the run ends 100 ms after the program |
//! | dropping the handle of a running program | it runs on, and becomes a zombie | [`Child`]: it runs on and is reaped; [`Job`]: it ends |
//! | an action fails before exec (uid, directory) | an error without a cause | an error with stage, action and errno |
//! | order of uid, gid and groups | fixed | the order of the calls; a wrong order is an error |
//! | a signal to the child | by pid | by pidfd, never to another process |
//!
//! # Cancellation, Ctrl-C and process exit
//!
//! By default no run and no job outlives the process that started it:
//!
//! - **Ctrl-C, a signal, `exit`, the return of `main`, a panic, abort, SIGKILL**: a helper process, the guard, sends
//!   SIGKILL to the program and its process tree as soon as this process has ended. The program runs in a session of its
//!   own, so Ctrl-C in a terminal does not reach the program itself.
//! - **Dropping the future of [`run_async`](Command::run_async), or a [`Job`]**: the library's thread sends SIGTERM to
//!   the process tree, and SIGKILL after the run's [`grace`](Run::grace). The drop does not wait. If this process ends
//!   meanwhile, the guard sends SIGKILL.
//! - **A timeout**: the same signals. The run returns what the program has written.
//! - **[`detach`](Job::detach)** and [`leftovers`](Run::leftovers) leave processes running on purpose.
//! - **[`spawn`](Command::spawn) and [`status`](Command::status)** start a program that may outlive this process, as
//!   `std::process` does.
//!
//! [`TreeControl`](tree::TreeControl) selects how far this reaches. With `TreeControl::Group` there is no guard.
//!
//! # Threads and futures
//!
//! - A blocking run uses the calling thread. All other runs share one thread of the library, which starts with the
//!   first run and ends when it has been idle for half a second.
//! - The guard is a child process. It ends up to a second after the last run, and a thread reaps it.
//! - The library installs no signal handler and no fork handler, and is not a subreaper.
//! - All types are `Send`. All futures are lazy: they do nothing until they are first polled. They work on any executor.
//!   With the feature `tokio`, [`JobOutput`](job) and [`JobInput`](job) implement tokio's read and write traits, and
//!   [`drive_runs`](job) lets a runtime do the work of the library's thread. With the feature `serde`, [`Output`]
//!   implements `Serialize`.
//! - A child is confined as the thread that starts it: Landlock, seccomp filters, capabilities, namespaces.
//!
//! # Errors
//!
//! An [`Error`] says what happened in the user's terms, then stage, action, system call and errno. A program that
//! fails is not an error: [`Output`] and [`Child::wait`] return its status. [`Output::check`] returns an
//! [`ExitError`](job::ExitError) for a failed program, which converts to an [`Error`].
#![forbid(unsafe_code)]
#![warn(missing_docs)]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[macro_use]
mod macros;

mod bytes;
mod call;
mod callback;
pub mod child;
mod cold_reason;
pub mod command;
mod constants;
mod env;
pub mod error;
mod host;
mod idle;
pub mod job;
mod launch;
mod limiter;
mod option;
pub mod options;
mod reaper;
#[cfg(feature = "remote")]
mod remote_call;
pub mod sandbox;
pub mod session;
mod signals;
pub mod snapshot;
pub mod support;
pub mod template;
pub mod tree;
#[cfg(feature = "warm")]
pub mod warm;

pub use child::Child;
pub use command::{Command, Stdio};
pub use constants::{rlimit, scheduler, signal};
pub use env::Env;
pub use error::{Error, Result};
pub use job::{Job, Output, Run};
pub use launch::reserve_descriptors;
pub use session::Session;
pub use template::Template;
#[cfg(feature = "warm")]
pub use warm::Warm;

/// Limits of a run's resources, and of the number of runs at once.
pub mod limits {
    pub use crate::job::limits::{Enforce, Enforcer, Limit, Limits, Resource};
    pub use crate::limiter::{Acquiring, Limiter, Permit};
}

/// Items for the bindings and the command of this project. They may change in any release.
#[doc(hidden)]
pub mod internal {
    pub use crate::call::{CallOptions, set_stream, stream_number};
    pub use crate::child::signaller::Signaller;
    pub use crate::command::arguments::{Kind, Value, filter, text};
    #[cfg(feature = "remote")]
    pub use crate::command::described::{EnvChange, RemoteValue};
    pub use crate::command::names::{signal, signal_name};
    pub use crate::command::table::{ACTIONS, ATTRIBUTES, Action, Argument, WrongValue, printed};
    pub use crate::env::NONINTERACTIVE;
    pub use crate::error::message::os_text;
    pub use crate::host::descriptors::CheckedFd;
    pub use crate::host::features::killed_calls;
    pub use crate::host::memfd::{create as create_memfd, seal as seal_memfd};
    pub use crate::host::per_process::PerProcess;
    pub use crate::host::thread::SleepLengths;
    pub use crate::idle::end_idle_threads;
    pub use crate::job::EventLoop;
    pub use crate::job::driven::drive;
    pub use crate::job::futures::stopped_before_start;
    #[cfg(feature = "serde")]
    pub use crate::job::serialize::Details;
    #[cfg(feature = "serde")]
    pub use crate::job::stored::Stored;
    #[cfg(feature = "remote")]
    pub use crate::job::{
        EngineOrder, RemoteRuns,
        remote::{RemoteRun, UnstartedJob, acquire, acquire_async, remote_job},
    };
    #[cfg(feature = "remote")]
    pub use crate::remote_call::RemoteCall;
    pub use crate::session::side::{SavedState, SideState};
    pub use spawnfd_sys::{Call, CallSet, call, kept_status};

    /// Lets `/bin/sh` run the program's file if the kernel does not know its format (ENOEXEC), as execvp(3) does.
    pub fn fall_back_to_shell(command: &mut crate::Command<'_>) {
        command.drop_in.falls_back_to_shell = true;
    }

    /// An error.
    pub fn error(stage: crate::error::Stage, errno: crate::error::Errno, call: &str, message: &str) -> crate::Error {
        crate::Error::new(stage, errno, call).saying(message)
    }

    /// The error of an argument that is not valid.
    pub fn invalid(argument: &str, message: &str) -> crate::Error {
        crate::Error::invalid(argument).saying(message)
    }

    /// The directory of this process's own cgroup (v2), if it has one.
    pub fn own_cgroup() -> Option<std::path::PathBuf> {
        crate::tree::own_directory()
    }
}

/// Compiles and runs the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
