// SPDX-License-Identifier: MIT OR Apache-2.0
//! One option: its description, and the values that it accepts. The module [`options`](crate::options) lists all of them.

mod value;

use crate::error::{Error, Result};

pub use value::{Kind, Value, Word};
pub(crate) use value::{OptionValue, is_optional, scaled, unscaled, word};

words! {
    /// A call that accepts options.
    ///
    /// # Examples
    /// ```
    /// use spawnfd::options::{self, Call};
    /// assert!(options::of(Call::Run).any(|option| option.name == "timeout"));
    /// assert!(options::find(Call::Run, "window").is_none() && options::find(Call::Start, "window").is_some());
    /// ```
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
    #[non_exhaustive]
    pub enum Call {
        /// Starts a program, and returns a [`Child`](crate::Child).
        Spawn = "spawn",
        /// Runs a program to its end.
        Run = "run",
        /// Starts a program as a [`Job`](crate::Job).
        Start = "start",
        /// Opens a [`Session`](crate::Session).
        Session = "session",
        /// Runs a command in a session, or starts one.
        Command = "command",
    }
}

words! {
    /// The subject of an option.
    ///
    /// # Examples
    /// ```
    /// use spawnfd::options::{self, Call, Group};
    /// let limits = options::of(Call::Run).filter(|option| option.group == Group::Limits);
    /// assert!(limits.map(|option| option.name).any(|name| name == "limits.memory"));
    /// ```
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
    #[non_exhaustive]
    pub enum Group {
        /// The program, its environment and its standard streams.
        Program = "program",
        /// Time limits, and control of the process tree.
        Tree = "tree",
        /// Limits of the process tree's resources.
        Limits = "limits",
        /// Captured output, and input.
        Output = "output",
        /// Sessions.
        Session = "session",
    }
}

/// One option.
///
/// # Examples
/// ```
/// use spawnfd::options::{self, Call};
/// let grace = options::find(Call::Run, "grace").unwrap();
/// assert_eq!((grace.default)().to_string(), "2s");
/// assert_eq!(grace.parse("-1".as_ref()).unwrap_err(), "must be >= 0");
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct OptionSpec {
    /// The name. The name of an option of [`Limits`](crate::limits::Limits) begins with `limits.`, and that of an option
    /// of [`Spill`](crate::job::Spill) with `spill.`.
    pub name: &'static str,
    /// The type of the value.
    pub kind: Kind,
    /// The subject.
    pub group: Group,
    /// The calls that accept the option.
    pub calls: &'static [Call],
    /// Whether the option accepts [`Value::None`].
    pub optional: bool,
    /// Returns the value of a call that does not set the option.
    pub default: fn() -> Value,
    /// The documentation, in Markdown with links of rustdoc.
    pub doc: &'static str,
}

/// Completes the setting of an option: `set` says whether there is such an option, or why the value is wrong. The reason
/// continues the option's name: `must be >= 0`.
pub(crate) fn check_set(name: &str, value: &Value, set: std::result::Result<bool, String>) -> Result<()> {
    match set {
        Ok(true) => Ok(()),
        Ok(false) => Err(Error::invalid(name).saying(format!("there is no option {name:?}"))),
        Err(reason) => Err(Error::invalid(format!("{name}({value})")).saying(format!("{name} {reason}, got {value}"))),
    }
}
