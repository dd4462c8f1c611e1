// SPDX-License-Identifier: MIT OR Apache-2.0
//! The options of one call, by their names, for a front that passes names on.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use crate::command::{Command, Stdio};
use crate::error::{Error, Result};
use crate::job::{EventOptions, Run, WhenFull};
use crate::limiter::Limiter;
use crate::option::{Call, Kind, OptionValue, Value, check_set, word};
use crate::options::{self, find};
use crate::session::{CommandText, SessionOptions};

/// The size in bytes of the queue for input, with `stdin` set to `stream`.
const WRITABLE: usize = 64 << 10;

/// The number of bytes that may be pending as events, whatever the window.
const MIN_PENDING: usize = 64 << 10;

/// The options of one call, set by their names, for a front that passes names on.
#[derive(Debug)]
pub struct CallOptions {
    call: Call,
    /// The options of a run, a job, or a command of a session.
    pub run: Run,
    /// The options of a session.
    pub session: SessionOptions,
    cwd: Option<PathBuf>,
    /// The program's `argv[0]`.
    pub arg0: Option<OsString>,
    /// The standard streams. `None`: the call's default.
    pub streams: [Option<Stdio<'static>>; 3],
    /// Whether the program blocks until the caller reads events.
    pub hold: bool,
}

impl CallOptions {
    /// The default options of a call.
    pub fn new(call: Call) -> CallOptions {
        let streams = Default::default();
        let (run, session) = (Run::new(), SessionOptions::new());
        let mut options = CallOptions { call, run, session, cwd: None, arg0: None, streams, hold: false };
        if let Some(window) = find(call, "window") {
            options.run = options.run.window((window.default)().as_integer().unwrap_or_default() as usize);
        }
        options
    }

    /// Sets the option of this name. Text is parsed as [`Kind::parse`] does. `None` is no value.
    ///
    /// # Errors
    /// EINVAL: the call has no such option, or the option does not accept the value.
    pub fn set_text(&mut self, name: &str, text: Option<&OsStr>) -> Result<()> {
        let Some(text) = text else { return self.set(name, Value::None) };
        let Some(option) = find(self.call, name) else { return Err(self.unknown(name)) };
        match option.kind.parse(text) {
            Ok(value) => self.set(name, value),
            Err(reason) => {
                Err(Error::invalid(format!("{name}({text:?})")).saying(format!("{name} {reason}, got {text:?}")))
            }
        }
    }

    /// Sets the option of this name.
    ///
    /// # Errors
    /// EINVAL: the call has no such option, or the option does not accept the value.
    pub fn set(&mut self, name: &str, value: Value) -> Result<()> {
        match self.try_set(name, &value) {
            Ok(false) => Err(self.unknown(name)),
            known => check_set(name, &value, known),
        }
    }

    fn unknown(&self, name: &str) -> Error {
        let message = match options::all().any(|option| option.name == name) {
            true => format!("the call {} has no option {name:?}", self.call),
            false => format!("there is no option {name:?}"),
        };
        Error::invalid(name).saying(message)
    }

    fn try_set(&mut self, name: &str, value: &Value) -> std::result::Result<bool, String> {
        let Some(option) = find(self.call, name) else { return Ok(false) };
        match (name, option.kind) {
            (_, Kind::Object) => return Err("must be an object".to_owned()),
            ("cwd", _) => self.cwd = OptionValue::from_value(value)?,
            ("arg0", _) => self.arg0 = Option::<PathBuf>::from_value(value)?.map(PathBuf::into_os_string),
            ("hold", _) => self.hold = OptionValue::from_value(value)?,
            ("window", _) => return self.run.try_set(name, value),
            (_, Kind::Stream(words)) if self.call != Call::Session => {
                let number = stream_number(name).unwrap_or_default();
                let is_default = value.to_string() == (option.default)().to_string();
                let chosen = match value {
                    Value::None => "",
                    _ => word(value, words.iter().map(|&(word, _)| (word, word)))?,
                };
                // A conflict with the input is found at the start.
                if number == 0 {
                    self.run = std::mem::take(&mut self.run).writable((chosen == "stream").then_some(WRITABLE));
                }
                self.streams[number] = match chosen {
                    _ if is_default => None,
                    "null" => Some(Stdio::Null),
                    "inherit" => Some(Stdio::Inherit),
                    "pipe" => Some(Stdio::Piped),
                    "merge" => Some(Stdio::SameAsStdout),
                    // The run provides the stream.
                    _ => None,
                };
            }
            (_, _) if self.call == Call::Session => return self.session.try_set(name, value),
            (_, _) => return self.run.try_set(name, value),
        }
        Ok(true)
    }

    /// Sets the limiter of the run, or of the session's shells.
    pub fn limiter(&mut self, limiter: &Limiter) {
        match self.call {
            Call::Session => self.session = std::mem::take(&mut self.session).limiter(limiter),
            _ => self.run = std::mem::take(&mut self.run).limiter(limiter),
        }
    }

    /// The options of the events of a job.
    pub fn events(&self) -> EventOptions {
        let when_full = if self.hold { WhenFull::Wait } else { WhenFull::DropOldest };
        EventOptions::new().max_bytes(self.run.window.max(MIN_PENDING)).when_full(when_full)
    }

    /// Gives a command the options that concern its program.
    pub fn apply(&mut self, command: &mut Command<'_>) {
        if let Some(cwd) = &self.cwd {
            command.current_dir(cwd);
        }
        if let Some(arg0) = &self.arg0 {
            command.arg0(arg0);
        }
        for (number, stdio) in self.streams.iter_mut().enumerate() {
            if let Some(stdio) = stdio.take() {
                command.stdio[number] = Some(stdio);
            }
        }
    }

    /// Gives the text of a session's command the options that concern it.
    pub fn apply_to_text(&self, text: CommandText) -> CommandText {
        match &self.cwd {
            Some(cwd) => text.cwd(cwd),
            None => text,
        }
    }
}

/// Connects the standard stream of this name to a descriptor.
///
/// # Errors
/// EINVAL: there is no such stream.
pub fn set_stream<'fd>(command: &mut Command<'fd>, name: &str, stdio: Stdio<'fd>) -> Result<()> {
    let number = stream_number(name)
        .ok_or_else(|| Error::invalid(name).saying(format!("the option {name:?} has no descriptor")))?;
    command.stdio[number] = Some(stdio);
    Ok(())
}

/// Returns the number of the standard stream of this name.
pub fn stream_number(name: &str) -> Option<usize> {
    ["stdin", "stdout", "stderr"].iter().position(|stream| *stream == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::of;

    #[test]
    fn each_option_of_a_call_accepts_its_default_and_its_words() {
        for &call in Call::ALL {
            for option in of(call).filter(|option| option.kind != Kind::Object) {
                let mut options = CallOptions::new(call);
                let default = options.set(option.name, (option.default)());
                default.unwrap_or_else(|error| panic!("{call}: {}: {error}", option.name));
                if let Kind::Word(words) | Kind::Stream(words) = option.kind {
                    for (word, _) in words {
                        let set = options.set_text(option.name, Some(word.as_ref()));
                        set.unwrap_or_else(|error| panic!("{call}: {}: {word}: {error}", option.name));
                    }
                }
                if option.optional {
                    options.set_text(option.name, None).expect("no value");
                }
            }
        }
    }

    #[test]
    fn an_option_of_another_call_is_refused() {
        let error = |call, name| CallOptions::new(call).set_text(name, Some("1".as_ref())).unwrap_err();
        assert_eq!(error(Call::Run, "window").message(), "the call run has no option \"window\"");
        for (call, name, word) in
            [(Call::Run, "stdin", "stream"), (Call::Command, "stdin", "inherit"), (Call::Session, "stderr", "null")]
        {
            let refused =
                CallOptions::new(call).set_text(name, Some(word.as_ref())).expect_err("not a word of the call");
            assert!(refused.message().starts_with(&format!("{name} must be one of ")), "{refused}");
        }
        assert_eq!(error(Call::Run, "windows").message(), "there is no option \"windows\"");
        assert_eq!(error(Call::Run, "sandbox").message(), "sandbox must be an object, got \"1\"");
        let message = "timeout must be a number of seconds, or a number with ms, s, m or h, got \"x\"";
        assert_eq!(CallOptions::new(Call::Run).set_text("timeout", Some("x".as_ref())).unwrap_err().message(), message);
    }

    #[test]
    fn words_for_streams_take_effect() {
        let mut options = CallOptions::new(Call::Run);
        for (name, word) in [("cwd", "/usr"), ("arg0", "name"), ("stderr", "merge")] {
            options.set_text(name, Some(word.as_ref())).expect("an option");
        }
        let mut command = Command::new("sh");
        options.apply(command.args(["-c", "echo $0 $PWD; echo e >&2"]));
        assert_eq!(command.run_with(&options.run).expect("a result").stdout, b"name /usr\ne\n");
        options.set_text("stdout", Some("null".as_ref())).expect("an option");
        options.apply(&mut command);
        assert_eq!(command.run_with(&options.run).expect("a result").stdout, b"");
        // The default of a stream is no value, so it does not exclude an input.
        for (name, text) in [("stdin", "null"), ("stdout", "capture"), ("input", "in")] {
            options.set_text(name, Some(text.as_ref())).expect("an option");
        }
        let mut command = Command::new("cat");
        options.apply(&mut command);
        assert_eq!(command.run_with(&options.run).expect("a result").stdout, b"in");
    }
}
