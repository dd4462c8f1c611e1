// SPDX-License-Identifier: MIT OR Apache-2.0
//! The options of runs, jobs and sessions, in one table.
//!
//! The setters of [`Run`], [`Limits`](crate::limits::Limits), [`Spill`](crate::job::Spill) and [`SessionOptions`] come
//! from this table. The other fronts read it: the Python package its keywords, the command its flags, and
//! `spawnfd shell` its keys.
//!
//! # Examples
//! ```
//! use spawnfd::options::{Call, Kind};
//! use spawnfd::{Command, Run};
//! let mut run = Run::new();
//! for (name, text) in [("timeout", "10s"), ("keep", "1000:1000")] {
//!     let option = spawnfd::options::find(Call::Run, name).expect("an option of runs");
//!     run.set(name, option.parse(text.as_ref()).unwrap())?;
//! }
//! assert!(Command::new("true").run_with(&run)?.ok());
//! let error = run.set("leftovers", "stop".into()).unwrap_err();
//! assert_eq!(error.message(), r#"leftovers must be one of "kill", "adopt", "detach", got "stop""#);
//! # Ok::<(), spawnfd::Error>(())
//! ```

mod command;

use std::ffi::OsStr;

use crate::job::Run;
use crate::session::SessionOptions;

pub use crate::option::{Call, Group, Kind, OptionSpec, Value, Word};

impl OptionSpec {
    /// Parses text as [`Kind::parse`] does, and checks the value.
    ///
    /// # Errors
    /// The reason, which continues the option's name: `must be > 0`.
    pub fn parse(&self, text: &OsStr) -> std::result::Result<Value, String> {
        let value = self.kind.parse(text)?;
        let checked = match self.calls {
            _ if self.group == Group::Program || self.kind == Kind::Object => Ok(true),
            [Call::Session] => SessionOptions::new().try_set(self.name, &value),
            _ => Run::new().try_set(self.name, &value),
        };
        checked.map(|_| value)
    }
}

/// Returns the options that a call accepts.
pub fn of(call: Call) -> impl Iterator<Item = &'static OptionSpec> {
    all().filter(move |option| option.calls.contains(&call))
}

/// Returns the option of a call that has this name.
pub fn find(call: Call, name: &str) -> Option<&'static OptionSpec> {
    of(call).find(|option| option.name == name)
}

/// Returns all options. Two options have the same name if they have different meanings in different calls.
pub fn all() -> impl Iterator<Item = &'static OptionSpec> {
    let tables = [
        command::OPTIONS,
        crate::job::options::OPTIONS,
        crate::job::limits::OPTIONS,
        crate::job::spill::OPTIONS,
        crate::session::options::OPTIONS,
    ];
    tables.into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_has_one_option_of_each_name() {
        for &call in Call::ALL {
            let mut names: Vec<&str> = of(call).map(|option| option.name).collect();
            names.sort_unstable();
            let count = names.len();
            names.dedup();
            assert_eq!(names.len(), count, "{call}: {names:?}");
        }
    }

    #[test]
    fn a_default_can_be_set() {
        // To set an option of a spill asks for a spill.
        let is_plain = |option: &&OptionSpec| option.kind != Kind::Object && !option.name.starts_with("spill.");
        for option in of(Call::Run).filter(|option| option.group != Group::Program).filter(is_plain) {
            let mut run = crate::Run::new();
            run.set(option.name, (option.default)()).unwrap_or_else(|error| panic!("{}: {error}", option.name));
            assert_eq!(format!("{run:?}"), format!("{:?}", crate::Run::new()), "{}", option.name);
        }
    }

    #[test]
    fn documentation_is_whole_sentences() {
        for option in all() {
            let doc = option.doc.trim();
            assert!(doc.starts_with(char::is_uppercase) && doc.ends_with('.'), "{}: {doc}", option.name);
        }
    }
}
