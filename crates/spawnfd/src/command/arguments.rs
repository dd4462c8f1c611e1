// SPDX-License-Identifier: MIT OR Apache-2.0
//! The arguments of an action: their types, their text forms, and their conversion for the builder's methods.
//!
//! Each reason for a wrong value states the expected form. A reason that begins with `must` continues the argument's
//! name: `--nice must be a whole number from -20 to 19`.

use std::ffi::{OsStr, OsString};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::slice;

use rustix::fs::{Mode, OFlags, fstatfs, open as open_file};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use spawnfd_sys::abi;
use spawnfd_sys::call::FilterInstruction;

use super::attributes::{Namespaces, OpenHow};
use super::descriptor::Descriptor;
use super::names;
use crate::error::os_text;
use crate::option::{scaled, unscaled};
use crate::signals::SignalSet;

/// The type of an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A descriptor of the caller. Its text is the number.
    Source,
    /// A directory of cgroup v2, as a descriptor of the caller. Its text is a path.
    Cgroup,
    /// A namespace or a pidfd, as a descriptor of the caller. Its text is a path.
    Namespace,
    /// A descriptor number of the child.
    Number,
    /// A path, which the child resolves.
    Path,
    /// A whole number in this range.
    Int(i64, i64),
    /// The bits of file permissions, up to this number, in octal.
    Octal(u32),
    /// The number of a resource, or its name.
    Resource,
    /// A resource limit; `None` and -1 are unlimited.
    Amount,
    /// The number of a scheduling policy, or its name.
    Policy,
    /// A user or group id.
    Id,
    /// A user or group id; `None` or `keep` leaves the id unchanged.
    IdOrKeep,
    /// User or group ids.
    Ids,
    /// Processors.
    Cpus,
    /// A set of capabilities.
    Capabilities,
    /// Kinds of namespaces.
    Namespaces,
    /// A signal.
    Signal,
    /// A set of signals.
    Signals,
    /// A seccomp filter. Its text is the path of a file.
    Filter,
}

/// The value of an argument.
#[derive(Clone, Debug)]
pub enum Value<'fd> {
    /// No value: the argument's default.
    None,
    /// A number.
    Int(i128),
    /// Several numbers.
    Ints(Vec<i128>),
    /// A path.
    Path(OsString),
    /// Bytes.
    Bytes(Vec<u8>),
    /// A descriptor of the caller.
    Descriptor(BorrowedFd<'fd>),
    /// A process, given by its pid.
    Process(i32),
}

pub(super) type Parsed = Result<Vec<Value<'static>>, String>;

fn int(number: impl Into<i128>) -> Value<'static> {
    Value::Int(number.into())
}

fn ints(numbers: impl IntoIterator<Item: Into<i128>>) -> Value<'static> {
    Value::Ints(numbers.into_iter().map(Into::into).collect())
}

impl Kind {
    /// Parses the text form of a value.
    ///
    /// # Errors
    /// The reason why the text has no value of this type.
    pub fn parse(self, value: &OsStr) -> Result<Value<'static>, String> {
        match self {
            Kind::Path | Kind::Cgroup | Kind::Namespace | Kind::Filter => match value.is_empty() {
                true => Err("the path is empty".to_owned()),
                false => Ok(Value::Path(value.to_owned())),
            },
            _ => self.parse_text(text(value)?),
        }
    }

    fn parse_text(self, text: &str) -> Result<Value<'static>, String> {
        Ok(match self {
            Kind::Source | Kind::Number => int(fd(text)?),
            Kind::Int(least, most) => {
                let number = text.parse::<i64>().ok().filter(|number| (least..=most).contains(number));
                int(number.ok_or_else(|| format!("must be a whole number from {least} to {most}"))?)
            }
            Kind::Octal(most) => {
                let bits = u32::from_str_radix(text, 8).ok().filter(|&bits| bits <= most);
                int(bits.ok_or_else(|| format!("must be an octal number up to {most:o}"))?)
            }
            Kind::Resource => int(names::resource(text)?),
            Kind::Amount if text == "unlimited" => Value::None,
            Kind::Amount => int(amount(text)?),
            Kind::Policy => int(names::policy(text)?),
            Kind::IdOrKeep if text == "keep" => Value::None,
            Kind::Id | Kind::IdOrKeep => {
                let id = text.parse::<u32>().ok().filter(|&id| id != KEEP);
                int(id.ok_or_else(|| format!("'{text}' is not a numeric id"))?)
            }
            Kind::Ids if text == "none" => Value::Ints(Vec::new()),
            Kind::Ids => ints(text.split(',').map(number::<u32>).collect::<Result<Vec<_>, _>>()?),
            Kind::Cpus => cpus(text)?,
            Kind::Capabilities => int(names::capabilities(text)?),
            Kind::Namespaces => int(names::namespace_kinds(text)?),
            Kind::Signal => int(names::signal(text)?),
            Kind::Signals => ints(names::signals(text)?),
            Kind::Path | Kind::Cgroup | Kind::Namespace | Kind::Filter => Value::Path(text.into()),
        })
    }
}

/// The value for an id that stays unchanged.
const KEEP: u32 = u32::MAX;

/// The values of an action's arguments, which the builder's method takes in order.
pub(super) struct Values<'v, 'fd> {
    left: slice::Iter<'v, Value<'fd>>,
    taken: usize,
}

impl<'v, 'fd> Values<'v, 'fd> {
    pub(super) fn new(values: &'v [Value<'fd>]) -> Values<'v, 'fd> {
        Values { left: values.iter(), taken: 0 }
    }

    /// The number of values that have been taken.
    pub(super) fn count(&self) -> usize {
        self.taken
    }

    fn next(&mut self) -> &'v Value<'fd> {
        self.taken += 1;
        self.left.next().unwrap_or(&Value::None)
    }

    pub(super) fn int<T: TryFrom<i128> + TryFrom<i8>>(&mut self) -> Result<T, String> {
        self.optional()?.ok_or_else(|| "a number is missing".to_owned())
    }

    pub(super) fn optional<T: TryFrom<i128> + TryFrom<i8>>(&mut self) -> Result<Option<T>, String> {
        match self.next() {
            Value::None => Ok(None),
            Value::Int(number) => in_range(*number).map(Some),
            _ => Err("expected a number".to_owned()),
        }
    }

    /// A resource limit.
    pub(super) fn amount(&mut self) -> Result<Option<u64>, String> {
        match self.next() {
            Value::Int(number) if *number != -1 => in_range(*number).map(Some),
            _ => Ok(None),
        }
    }

    /// An id; [`KEEP`] if there is none.
    pub(super) fn id(&mut self) -> Result<u32, String> {
        match self.optional()? {
            Some(KEEP) => Err(format!("{KEEP} is out of range")),
            id => Ok(id.unwrap_or(KEEP)),
        }
    }

    pub(super) fn ints<T: TryFrom<i128> + TryFrom<i8>>(&mut self) -> Result<Vec<T>, String> {
        let Value::Ints(numbers) = self.next() else { return Err("expected numbers".to_owned()) };
        numbers.iter().map(|number| in_range(*number)).collect()
    }

    pub(super) fn path(&mut self) -> Result<&'v Path, String> {
        let Value::Path(path) = self.next() else { return Err("expected a path".to_owned()) };
        Ok(Path::new(path))
    }

    pub(super) fn signal(&mut self) -> Result<i32, String> {
        let signal = self.int()?;
        signal_set(signal).map(|_| signal)
    }

    pub(super) fn signals(&mut self) -> Result<SignalSet, String> {
        self.ints()?.into_iter().try_fold(SignalSet::EMPTY, |set, signal| Ok(set | signal_set(signal)?))
    }

    pub(super) fn namespaces(&mut self) -> Result<Namespaces, String> {
        let flags = self.int()?;
        let kinds = "mount, uts, ipc, pid, net and cgroup (for a user namespace use user_namespace)";
        Namespaces::from_flags(flags).ok_or_else(|| format!("must be kinds among {kinds}, got {flags:#x}"))
    }

    pub(super) fn filter(&mut self) -> Result<Vec<FilterInstruction>, String> {
        match self.next() {
            Value::Bytes(bytes) => filter(bytes),
            Value::Path(path) => filter(&std::fs::read(path).map_err(|error| os_text(&error))?),
            _ => Err("expected bytes".to_owned()),
        }
    }

    /// How to open a file: flags, mode, and resolution.
    pub(super) fn how(&mut self) -> Result<OpenHow, String> {
        let (flags, mode) = (self.int()?, self.int()?);
        // openat2 refuses a nonzero mode unless the flags create a file.
        Ok(OpenHow::new(flags).mode(if creates(flags) { mode } else { 0 }))
    }

    /// A descriptor of the caller. Opens the descriptor if the value is a path or a process.
    pub(super) fn descriptor(&mut self) -> Result<Descriptor<'fd>, String> {
        self.opened(OFlags::empty())
    }

    fn opened(&mut self, how: OFlags) -> Result<Descriptor<'fd>, String> {
        match self.next() {
            Value::Descriptor(fd) => Ok(Descriptor::Borrowed(*fd)),
            Value::Path(path) => {
                // O_NONBLOCK keeps a FIFO from blocking the open.
                let how = how | OFlags::NONBLOCK | OFlags::CLOEXEC;
                let opened = open_file(path, how, Mode::empty());
                Ok(Descriptor::Owned(
                    opened.map_err(|error| format!("{}: {}", path.display(), os_text(&error.into())))?,
                ))
            }
            Value::Process(pid) => {
                let process = Pid::from_raw(*pid).ok_or("not a process id")?;
                let process = pidfd_open(process, PidfdFlags::empty());
                Ok(Descriptor::Owned(process.map_err(|error| format!("process {pid}: {}", os_text(&error.into())))?))
            }
            _ => Err("expected a descriptor".to_owned()),
        }
    }

    pub(super) fn optional_descriptor(&mut self) -> Result<Option<Descriptor<'fd>>, String> {
        match self.left.as_slice() {
            [Value::None, ..] => Ok(self.optional::<i32>()?.and(None)),
            _ => self.descriptor().map(Some),
        }
    }

    /// The directory of a cgroup v2.
    pub(super) fn cgroup(&mut self) -> Result<Descriptor<'fd>, String> {
        const CGROUP2_SUPER_MAGIC: i64 = 0x6367_7270;
        let directory = self.opened(OFlags::DIRECTORY)?;
        if let Descriptor::Owned(opened) = &directory
            && !fstatfs(opened).is_ok_and(|found| found.f_type == CGROUP2_SUPER_MAGIC)
        {
            return Err("not a cgroup v2 directory".to_owned());
        }
        Ok(directory)
    }

    /// A descriptor of the caller, and its number in the child, which is the same unless there is another.
    pub(super) fn placed(&mut self) -> Result<(Descriptor<'fd>, i32), String> {
        let source = self.descriptor()?;
        let to = self.optional()?.unwrap_or_else(|| source.number());
        Ok((source, to))
    }
}

fn in_range<T: TryFrom<i128> + TryFrom<i8>>(number: i128) -> Result<T, String> {
    T::try_from(number).map_err(|_| match number < 0 && T::try_from(-1_i8).is_err() {
        true => format!("must be >= 0, got {number}"),
        false => format!("{number} is out of range"),
    })
}

fn signal_set(signal: i32) -> Result<SignalSet, String> {
    SignalSet::of(signal).ok_or_else(|| format!("{signal} is not a signal number"))
}

/// Decodes an array of `struct sock_filter`, in this machine's byte order.
///
/// # Errors
/// The length is wrong.
pub fn filter(bytes: &[u8]) -> Result<Vec<FilterInstruction>, String> {
    match bytes.as_chunks::<8>() {
        (instructions, []) if (1..=4096).contains(&instructions.len()) => {
            Ok(instructions.iter().map(FilterInstruction::from_bytes).collect())
        }
        _ => Err(format!("expected 1 to 4096 instructions of 8 bytes each, got {} bytes", bytes.len())),
    }
}

/// Whether flags of open(2) create a file.
fn creates(flags: u64) -> bool {
    flags & u64::from(abi::O_CREAT | abi::O_TMPFILE & !abi::O_DIRECTORY) != 0
}

/// The words that may follow the mode of an open: name, open(2) flags to clear, open(2) flags to set.
const FLAGS: [(&str, u32, u32); 15] = [
    ("existing", abi::O_CREAT | abi::O_EXCL | abi::O_TRUNC, 0),
    ("create", 0, abi::O_CREAT),
    ("excl", 0, abi::O_EXCL),
    ("trunc", 0, abi::O_TRUNC),
    ("append", 0, abi::O_APPEND),
    ("tmpfile", abi::O_CREAT | abi::O_TRUNC, abi::O_TMPFILE),
    ("directory", 0, abi::O_DIRECTORY),
    ("path", 0, abi::O_PATH),
    ("nofollow", 0, abi::O_NOFOLLOW),
    ("nonblock", 0, abi::O_NONBLOCK),
    ("noctty", 0, abi::O_NOCTTY),
    ("noatime", 0, abi::O_NOATIME),
    ("sync", 0, abi::O_SYNC),
    ("dsync", 0, abi::O_DSYNC),
    ("direct", 0, abi::O_DIRECT),
];

/// The words that restrict path resolution: name, RESOLVE_* flag of openat2(2).
const RESOLVE: [(&str, u32); 6] = [
    ("no-xdev", abi::RESOLVE_NO_XDEV),
    ("no-magiclinks", abi::RESOLVE_NO_MAGICLINKS),
    ("no-symlinks", abi::RESOLVE_NO_SYMLINKS),
    ("beneath", abi::RESOLVE_BENEATH),
    ("in-root", abi::RESOLVE_IN_ROOT),
    ("cached", abi::RESOLVE_CACHED),
];

/// Parses how to open a file: `MODE[,WORD...]`. Returns flags, mode and resolution.
fn how(text: &str) -> Result<[Value<'static>; 3], String> {
    let mut words = text.split(',');
    let mut flags = match words.next() {
        Some("r") => 0,
        Some("w") => abi::O_WRONLY | abi::O_CREAT | abi::O_TRUNC,
        Some("a") => abi::O_WRONLY | abi::O_CREAT | abi::O_APPEND,
        Some("rw") => abi::O_RDWR | abi::O_CREAT,
        Some("wx") => abi::O_WRONLY | abi::O_CREAT | abi::O_EXCL,
        _ => return Err("the mode must be r, w, a, rw or wx".to_owned()),
    };
    let (mut permissions, mut resolve) = (None, 0);
    for word in words {
        if let Some((_, without, with)) = FLAGS.iter().find(|(known, ..)| *known == word) {
            flags = flags & !without | with;
        } else if let Some((_, with)) = RESOLVE.iter().find(|(known, _)| *known == word) {
            resolve |= with;
        } else if let Ok(bits) = Kind::Octal(0o7777).parse_text(word) {
            permissions = Some(bits);
        } else {
            let known = FLAGS.iter().map(|(known, ..)| *known).chain(RESOLVE.iter().map(|(known, _)| *known));
            let known = known.collect::<Vec<_>>().join(", ");
            return Err(format!("'{word}' must be octal permissions up to 7777, or one of {known}"));
        }
    }
    if permissions.is_some() && !creates(flags.into()) {
        return Err("permissions require a mode that creates a file".to_owned());
    }
    Ok([int(flags), permissions.unwrap_or(int(0o666)), int(resolve)])
}

/// Parses `MODE[,WORD...]:PATH:FD`. The path may contain colons.
pub(super) fn open(value: &OsStr) -> Parsed {
    let bytes = value.as_bytes();
    let malformed = || "must be MODE:PATH:FD, as in r:/etc/passwd:7".to_owned();
    let first = bytes.iter().position(|&byte| byte == b':').ok_or_else(malformed)?;
    let last = bytes.iter().rposition(|&byte| byte == b':').filter(|&last| last > first).ok_or_else(malformed)?;
    let [flags, mode, resolve] = how(text(OsStr::from_bytes(&bytes[..first]))?)?;
    let to = fd(text(OsStr::from_bytes(&bytes[last + 1..]))?)?;
    let path = Kind::Path.parse(OsStr::from_bytes(&bytes[first + 1..last]))?;
    Ok(vec![path, int(to), flags, mode, Value::None, resolve])
}

/// Parses `DIRFD:MODE[,WORD...]:PATH:FD`.
pub(super) fn open_at(value: &OsStr) -> Parsed {
    let malformed = "must be DIRFD:MODE:PATH:FD, as in 5:r:passwd:7";
    let (dir, rest) = text(value)?.split_once(':').ok_or(malformed)?;
    let mut values = open(rest.as_ref())?;
    values[4] = int(fd(dir)?);
    Ok(values)
}

/// Parses a range of descriptors: `FIRST-LAST`, `FIRST-`, or one number.
pub(super) fn range(value: &OsStr) -> Parsed {
    let text = text(value)?;
    let (first, last) = match text.split_once('-') {
        Some((first, "")) => (number::<u32>(first)?, u32::MAX),
        Some((first, last)) => (number(first)?, number(last)?),
        None => (number(text)?, number(text)?),
    };
    if first > last {
        return Err(format!("the first number, {first}, is above the last, {last}"));
    }
    Ok(vec![int(first), int(last)])
}

/// Parses `NAME=SOFT[:HARD]`. HARD defaults to SOFT.
pub(super) fn limit(value: &OsStr) -> Parsed {
    let (name, amounts) = text(value)?.split_once('=').ok_or("must be NAME=SOFT[:HARD], as in nofile=64:128")?;
    let (soft, hard) = amounts.split_once(':').unwrap_or((amounts, amounts));
    let [soft, hard] = [soft, hard].map(|amount| Kind::Amount.parse(amount.as_ref()));
    let (soft, hard) = (soft?, hard?);
    let bound = |amount: &Value<'_>| if let Value::Int(amount) = amount { *amount } else { i128::MAX };
    if bound(&soft) > bound(&hard) {
        return Err("the soft limit is above the hard limit".to_owned());
    }
    Ok(vec![Kind::Resource.parse(name.as_ref())?, soft, hard])
}

/// Parses capability sets. The value of a set that the text does not name is [`Value::None`].
pub(super) fn capabilities(value: &OsStr) -> Parsed {
    let sets = names::capability_sets(text(value)?)?;
    Ok(sets.into_iter().map(|set| set.map_or(Value::None, int)).collect())
}

/// Parses a source of namespaces and their kinds: `PATH`, `pid=PID:KINDS` or `fd=FD[:KINDS]`. Without kinds, a namespace
/// of any kind is accepted.
pub(super) fn namespace(value: &OsStr) -> Parsed {
    let text = value.to_str().unwrap_or_default();
    if let Some(text) = text.strip_prefix("pid=") {
        let (pid, kinds) = text.split_once(':').ok_or("must be pid=PID:KINDS, as in pid=123:net,uts")?;
        let pid =
            number::<i32>(pid).ok().filter(|&pid| pid > 0).ok_or_else(|| format!("'{pid}' is not a process id"))?;
        return Ok(vec![Value::Process(pid), int(names::namespace_kinds(kinds)?)]);
    }
    if let Some(text) = text.strip_prefix("fd=") {
        let (number, kinds) = text.split_once(':').map_or((text, None), |(number, kinds)| (number, Some(kinds)));
        return Ok(vec![int(fd(number)?), int(kinds.map_or(Ok(0), names::namespace_kinds)?)]);
    }
    Ok(vec![Kind::Path.parse(value)?, int(0)])
}

/// Parses a list of processors, such as `0,2-3`.
fn cpus(text: &str) -> Result<Value<'static>, String> {
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (number::<u32>(first)?, number::<u32>(last)?);
        if first > last || last >= 1 << 16 {
            return Err(format!("'{part}' is not a range of processors, as in 2-3"));
        }
        cpus.extend(first..=last);
    }
    Ok(ints(cpus))
}

/// Returns a text that must be UTF-8.
///
/// # Errors
/// The text is not UTF-8.
pub fn text(value: &OsStr) -> Result<&str, String> {
    value.to_str().ok_or_else(|| "must be valid UTF-8".to_owned())
}

/// Parses a descriptor number.
fn fd(text: &str) -> Result<i32, String> {
    let number = text.parse::<i32>().ok().filter(|&number| number >= 0);
    number.ok_or_else(|| format!("'{text}' is not a descriptor number"))
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("'{text}' is not a whole number in the accepted range"))
}

/// Parses a number with or without K, M, G or T (powers of 1024).
fn amount(text: &str) -> Result<u64, String> {
    let (digits, shift) = unscaled(text);
    scaled(number(digits)?, shift).ok_or_else(|| format!("'{text}' is too large"))
}
