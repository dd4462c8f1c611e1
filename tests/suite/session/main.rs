// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sessions: a shell that keeps its state from command to command.
//!
//! A name such as gptme#3805 is a public report of users of coding agents. The test shows that a session does not have
//! the reported problem.

#[path = "../common/mod.rs"]
mod common;

mod ending;
mod many;
mod output;
mod sandbox;
mod soak;
mod start;
mod state;
mod terminal;

use std::time::Duration;

use spawnfd::session::{Session, SessionOptions};
use spawnfd::{Command, Output, Run};

/// Much longer than any command takes, and shorter than the timeout of a test.
const LONG: Duration = Duration::from_secs(60);

/// The shells that sessions support.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Shell {
    Bash,
    /// The bash that the variable SPAWNFD_BASH_5_3 names. `make test-all` builds it.
    NewBash,
    Dash,
}

impl Shell {
    fn name(self) -> String {
        match self {
            Shell::Bash => "bash".to_owned(),
            Shell::NewBash => std::env::var("SPAWNFD_BASH_5_3").expect("the caller checks it"),
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
    assert!(!run(session, text).status_lost, "{text:?}");
}

/// The standard output of a command that succeeds.
fn stdout(session: &Session, text: &str) -> String {
    let output = run(session, text);
    assert!(output.ok() && output.stderr.is_empty(), "{text:?}: {output:?}");
    output.stdout_text().into_owned()
}

/// Runs a test with bash 5.3; skips it without one.
fn with_new_bash(test: impl FnOnce(Shell)) {
    if std::env::var_os("SPAWNFD_BASH_5_3").is_none() {
        return spawnfd_tests::skip("no bash 5.3 (make test-all builds one)");
    }
    test(Shell::NewBash);
}

/// Expands a test over the shells.
macro_rules! each_shell {
    ($($name:ident)+) => {
        mod bash { $(#[test] fn $name() { spawnfd_tests::isolated!(|| super::$name(crate::Shell::Bash)) })+ }
        mod new_bash { $(#[test] #[ignore = "make test-all builds bash 5.3"] fn $name() { spawnfd_tests::isolated!(|| crate::with_new_bash(super::$name)) })+ }
        mod dash { $(#[test] fn $name() { spawnfd_tests::isolated!(|| super::$name(crate::Shell::Dash)) })+ }
    };
}
use each_shell;
