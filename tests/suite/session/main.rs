// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sessions: a shell that keeps its state from command to command.
//!
//! A name such as gptme#3805 is a public report of users of coding agents. The test shows that a session does not have
//! the reported problem.

#[path = "../common/mod.rs"]
mod common;

mod attacks;
mod ending;
mod limits;
mod many;
mod output;
mod queue;
mod sandbox;
mod soak;
mod start;
mod state;
mod terminal;

use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use spawnfd::session::{Session, SessionOptions};
use spawnfd::{Command, Output, Run};

/// Much longer than any command takes, and shorter than the timeout of a test.
const LONG: Duration = Duration::from_secs(60);

/// The shells that sessions support.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Shell {
    Bash,
    /// The bash at this place in the variable SPAWNFD_BASHES. `make test-all` builds several versions.
    OtherBash(usize),
    Dash,
}

impl Shell {
    fn name(self) -> String {
        match self {
            Shell::Bash => "bash".to_owned(),
            Shell::OtherBash(index) => other_bashes().swap_remove(index),
            Shell::Dash => "dash".to_owned(),
        }
    }

    fn is_bash(self) -> bool {
        self != Shell::Dash
    }

    fn open(self, options: SessionOptions) -> Session {
        Session::open(Command::new(self.name()), options).expect("a session")
    }
}

/// Runs a command that ends by itself.
fn run(session: &Session, text: &str) -> Output {
    session.run(text, &Run::new().timeout(LONG)).unwrap_or_else(|error| panic!("{text:?}: {error}"))
}

/// Runs a command for its effect on the shell, or one that ends the shell.
fn change(session: &Session, text: &str) {
    let output = run(session, text);
    assert!(output.status_lost == output.shell_exited, "{text:?}: {output:?}");
}

/// How the shell of a session has ended: its code or its signal.
fn shell_end(output: &Output) -> (bool, Option<i32>, Option<i32>) {
    assert_eq!((output.stop, output.code(), output.ok()), (spawnfd::job::Stop::Lost, None, false), "{output:?}");
    let status = output.shell_status;
    (output.shell_exited, status.and_then(|status| status.code()), status.and_then(|status| status.signal()))
}

/// The standard output of a command that succeeds.
fn stdout(session: &Session, text: &str) -> String {
    let output = run(session, text);
    assert!(output.ok() && output.stderr.is_empty(), "{text:?}: {output:?}");
    output.stdout_text().into_owned()
}

/// The programs of further versions of bash.
fn other_bashes() -> Vec<String> {
    std::env::var("SPAWNFD_BASHES")
        .unwrap_or_default()
        .split(':')
        .filter(|path| !path.is_empty())
        .map(Into::into)
        .collect()
}

/// Runs a test with further versions of bash; skips it without one.
fn with_other_bashes(test: impl Fn(Shell)) {
    let count = other_bashes().len();
    if count == 0 {
        return spawnfd_tests::skip("no further versions of bash (make test-all builds them)");
    }
    (0..count).map(Shell::OtherBash).for_each(test);
}

/// The time limit of a test: all rounds (`make test-all`) take some minutes.
fn limit() -> Duration {
    if std::env::var_os("SPAWNFD_FULL").is_some() { Duration::from_secs(900) } else { Duration::from_secs(120) }
}

/// Expands a test over the shells.
macro_rules! each_shell {
    ($($name:ident)+) => {
        mod bash { $(#[test] fn $name() { spawnfd_tests::isolated!(limit: crate::limit(), || super::$name(crate::Shell::Bash)) })+ }
        mod other_bash { $(#[test] #[ignore = "make test-all builds further versions of bash"] fn $name() { spawnfd_tests::isolated!(limit: 3 * crate::limit(), || crate::with_other_bashes(super::$name)) })+ }
        mod dash { $(#[test] fn $name() { spawnfd_tests::isolated!(limit: crate::limit(), || super::$name(crate::Shell::Dash)) })+ }
    };
}
use each_shell;
