// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parsers for the values of flags.
//!
//! Each error message states the expected form. A message that begins with `must` is printed after the flag's name.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use spawnfd::command::OpenHow;
use spawnfd::options::{Kind, Value};

use super::names;

/// Flags of open(2). Their values are the same on all architectures that the library supports.
const O_RDONLY: u64 = libc::O_RDONLY as u64;
const O_WRONLY: u64 = libc::O_WRONLY as u64;
const O_APPEND: u64 = libc::O_APPEND as u64;
const O_RDWR: u64 = libc::O_RDWR as u64;
const O_CREAT: u64 = libc::O_CREAT as u64;
const O_EXCL: u64 = libc::O_EXCL as u64;
const O_TRUNC: u64 = libc::O_TRUNC as u64;
const O_TMPFILE: u64 = libc::O_TMPFILE as u64;

/// The words that may follow the mode of --open: name, open(2) flags to clear, open(2) flags to set.
const FLAGS: [(&str, u64, u64); 15] = [
    ("existing", O_CREAT | O_EXCL | O_TRUNC, 0),
    ("create", 0, O_CREAT),
    ("excl", 0, O_EXCL),
    ("trunc", 0, O_TRUNC),
    ("append", 0, libc::O_APPEND as u64),
    ("tmpfile", O_CREAT | O_TRUNC, O_TMPFILE),
    ("directory", 0, libc::O_DIRECTORY as u64),
    ("path", 0, libc::O_PATH as u64),
    ("nofollow", 0, libc::O_NOFOLLOW as u64),
    ("nonblock", 0, libc::O_NONBLOCK as u64),
    ("noctty", 0, libc::O_NOCTTY as u64),
    ("noatime", 0, libc::O_NOATIME as u64),
    ("sync", 0, libc::O_SYNC as u64),
    ("dsync", 0, libc::O_DSYNC as u64),
    ("direct", 0, libc::O_DIRECT as u64),
];

/// The words that restrict path resolution: name, RESOLVE_* flag of openat2(2).
const RESOLVE: [(&str, u64); 6] = [
    ("no-xdev", libc::RESOLVE_NO_XDEV),
    ("no-magiclinks", libc::RESOLVE_NO_MAGICLINKS),
    ("no-symlinks", libc::RESOLVE_NO_SYMLINKS),
    ("beneath", libc::RESOLVE_BENEATH),
    ("in-root", libc::RESOLVE_IN_ROOT),
    ("cached", libc::RESOLVE_CACHED),
];

pub fn text(value: &OsStr) -> Result<&str, String> {
    value.to_str().ok_or_else(|| "must be valid UTF-8".to_owned())
}

/// Parses a path, which need not be UTF-8.
pub fn path(value: &OsStr) -> Result<PathBuf, String> {
    if value.is_empty() { Err("the path is empty".to_owned()) } else { Ok(PathBuf::from(value)) }
}

/// Parses a descriptor number.
pub fn fd(text: &str) -> Result<i32, String> {
    let number = text.parse::<i32>().ok().filter(|&number| number >= 0);
    number.ok_or_else(|| format!("'{text}' is not a descriptor number"))
}

pub fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("'{text}' is not a whole number in the accepted range"))
}

/// Parses a whole number from `least` to `most`.
pub fn number_between(text: &str, least: i32, most: i32) -> Result<i32, String> {
    let number = text.parse::<i32>().ok().filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| format!("must be a whole number from {least} to {most}"))
}

/// Splits `FROM:TO` into its two parts.
pub fn pair(text: &str) -> Result<(&str, &str), String> {
    text.split_once(':').ok_or_else(|| "must be two values separated by a colon".to_owned())
}

/// Parses a range: `FIRST-LAST`, `FIRST-`, or one number.
pub fn range(text: &str) -> Result<(u32, u32), String> {
    let (first, last) = match text.split_once('-') {
        Some((first, "")) => (number(first)?, u32::MAX),
        Some((first, last)) => (number(first)?, number(last)?),
        None => (number(text)?, number(text)?),
    };
    if first > last { Err(format!("the first number, {first}, is above the last, {last}")) } else { Ok((first, last)) }
}

/// Parses how to open a file: `MODE[,WORD...]`.
fn how(text: &str) -> Result<OpenHow, String> {
    let (mode, words) = text.split_once(',').map_or((text, None), |(mode, words)| (mode, Some(words)));
    let mut flags = match mode {
        "r" => O_RDONLY,
        "w" => O_WRONLY | O_CREAT | O_TRUNC,
        "a" => O_WRONLY | O_CREAT | O_APPEND,
        "rw" => O_RDWR | O_CREAT,
        "wx" => O_WRONLY | O_CREAT | O_EXCL,
        _ => return Err("the mode must be r, w, a, rw or wx".to_owned()),
    };
    let (mut permissions, mut resolve) = (None, 0);
    for word in words.into_iter().flat_map(|words| words.split(',')) {
        if let Some((_, without, with)) = FLAGS.iter().find(|(known, ..)| *known == word) {
            flags = flags & !without | with;
        } else if let Some((_, with)) = RESOLVE.iter().find(|(known, _)| *known == word) {
            resolve |= with;
        } else if let Some(bits) = u64::from_str_radix(word, 8).ok().filter(|&bits| bits <= 0o7777) {
            permissions = Some(bits);
        } else {
            let known = FLAGS.iter().map(|(known, ..)| *known).chain(RESOLVE.iter().map(|(known, _)| *known));
            let known = known.collect::<Vec<_>>().join(", ");
            return Err(format!("'{word}' must be octal permissions up to 7777, or one of {known}"));
        }
    }
    let creates = flags & (O_CREAT | O_TMPFILE & !(libc::O_DIRECTORY as u64)) != 0;
    if permissions.is_some() && !creates {
        return Err("permissions require a mode that creates a file".to_owned());
    }
    let mode = if creates { permissions.unwrap_or(0o666) } else { 0 };
    Ok(OpenHow::new(flags).mode(mode).resolve(resolve))
}

/// Parses the value of --open: `MODE[,WORD...]:PATH:FD`. The path may contain colons.
pub fn open(value: &OsStr) -> Result<(PathBuf, OpenHow, i32), String> {
    let bytes = value.as_bytes();
    let malformed = || "must be MODE:PATH:FD, as in r:/etc/passwd:7".to_owned();
    let first = bytes.iter().position(|&byte| byte == b':').ok_or_else(malformed)?;
    let last = bytes.iter().rposition(|&byte| byte == b':').filter(|&last| last > first).ok_or_else(malformed)?;
    let how = how(text(OsStr::from_bytes(&bytes[..first]))?)?;
    let to = fd(text(OsStr::from_bytes(&bytes[last + 1..]))?)?;
    Ok((path(OsStr::from_bytes(&bytes[first + 1..last]))?, how, to))
}

/// The file or process whose namespaces the program enters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NamespaceSource {
    /// The namespace that a file refers to.
    File(PathBuf),
    /// The namespaces of the process with this pid.
    Process(i32),
    /// The namespace or process that an inherited descriptor refers to.
    Descriptor(i32),
}

/// Parses a source of namespaces, and kinds as CLONE_NEW* flags: `PATH`, `pid=PID:KINDS` or
/// `fd=FD[:KINDS]`. Without kinds, a namespace of any kind is accepted.
pub fn namespace(value: &OsStr) -> Result<(NamespaceSource, u32), String> {
    let text = value.to_str().unwrap_or_default();
    if let Some(text) = text.strip_prefix("pid=") {
        let (pid, kinds) = text.split_once(':').ok_or("must be pid=PID:KINDS, as in pid=123:net,uts")?;
        let pid = number(pid).ok().filter(|&pid| pid > 0).ok_or_else(|| format!("'{pid}' is not a process id"))?;
        return Ok((NamespaceSource::Process(pid), names::namespace_kinds(kinds)?));
    }
    if let Some(text) = text.strip_prefix("fd=") {
        let (number, kinds) = text.split_once(':').map_or((text, None), |(number, kinds)| (number, Some(kinds)));
        return Ok((NamespaceSource::Descriptor(fd(number)?), kinds.map_or(Ok(0), names::namespace_kinds)?));
    }
    Ok((NamespaceSource::File(path(value)?), 0))
}

/// Parses a umask in octal.
pub fn umask(text: &str) -> Result<u32, String> {
    let mask = u32::from_str_radix(text, 8).ok().filter(|&mask| mask <= 0o777);
    mask.ok_or_else(|| "must be an octal number up to 777".to_owned())
}

/// Parses the two values of a resource limit: `SOFT[:HARD]`. HARD defaults to SOFT.
pub fn limits(text: &str) -> Result<(Option<u64>, Option<u64>), String> {
    let (soft, hard) = text.split_once(':').unwrap_or((text, text));
    let (soft, hard) = (amount(soft)?, amount(hard)?);
    if soft.unwrap_or(u64::MAX) > hard.unwrap_or(u64::MAX) {
        return Err("the soft limit is above the hard limit".to_owned());
    }
    Ok((soft, hard))
}

/// Parses a number with K, M, G or T (powers of 1024), or `unlimited`.
fn amount(text: &str) -> Result<Option<u64>, String> {
    if text == "unlimited" {
        return Ok(None);
    }
    match Kind::Bytes.parse(text.as_ref())? {
        Value::Integer(bytes) => Ok(Some(bytes)),
        _ => Ok(None),
    }
}

/// Parses a list of processors, such as `0,2-3`.
pub fn cpus(text: &str) -> Result<Vec<usize>, String> {
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (first, last) = match part.split_once('-') {
            Some((first, last)) => (number::<usize>(first)?, number::<usize>(last)?),
            None => (number(part)?, number(part)?),
        };
        if first > last || last >= 1 << 16 {
            return Err(format!("'{part}' is not a range of processors, as in 2-3"));
        }
        cpus.extend(first..=last);
    }
    Ok(cpus)
}

/// The value for an id that stays unchanged.
pub const KEEP: u32 = u32::MAX;

/// Parses a numeric id. Refuses `KEEP`, because for the kernel this value means "unchanged".
pub fn id(text: &str) -> Result<u32, String> {
    let id = text.parse::<u32>().ok().filter(|&id| id != KEEP);
    id.ok_or_else(|| format!("'{text}' is not a numeric id"))
}

/// Parses three ids: `REAL:EFFECTIVE:SAVED`. The word `keep` leaves an id unchanged.
pub fn ids(text: &str) -> Result<[u32; 3], String> {
    let part = |text: &str| if text == "keep" { Ok(KEEP) } else { id(text) };
    match text.split(':').collect::<Vec<_>>()[..] {
        [real, effective, saved] => Ok([part(real)?, part(effective)?, part(saved)?]),
        _ => Err("must be REAL:EFFECTIVE:SAVED, as in keep:1000:keep".to_owned()),
    }
}

/// Parses ids separated by commas, or `none`.
pub fn groups(text: &str) -> Result<Vec<u32>, String> {
    if text == "none" { Ok(Vec::new()) } else { text.split(',').map(number).collect() }
}

/// Parses a user id and a group id: `UID:GID`.
pub fn user(text: &str) -> Result<(u32, u32), String> {
    let (uid, gid) = pair(text)?;
    Ok((number(uid)?, number(gid)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_values_are_parsed() {
        assert_eq!(open("r:/a:b:7".as_ref()), Ok((PathBuf::from("/a:b"), OpenHow::READ, 7)));
        let created = |flags, mode, resolve| Ok(OpenHow::new(flags).mode(mode).resolve(resolve));
        assert_eq!(how("w"), Ok(OpenHow::CREATE));
        assert_eq!(how("a,existing"), created(O_WRONLY | libc::O_APPEND as u64, 0, 0));
        assert_eq!(how("rw,0600,trunc,beneath"), created(O_RDWR | O_CREAT | O_TRUNC, 0o600, libc::RESOLVE_BENEATH));
        assert_eq!(how("rw,tmpfile,excl"), created(O_RDWR | O_TMPFILE | O_EXCL, 0o666, 0));
        assert_eq!(how("r,directory,no-symlinks,no-xdev"), created(libc::O_DIRECTORY as u64, 0, 5));
        assert_eq!(namespace("/proc/1/ns/net".as_ref()), Ok((NamespaceSource::File("/proc/1/ns/net".into()), 0)));
        let kinds = (libc::CLONE_NEWNET | libc::CLONE_NEWUTS) as u32;
        assert_eq!(namespace("pid=7:net,uts".as_ref()), Ok((NamespaceSource::Process(7), kinds)));
        assert_eq!(namespace("fd=7:net,uts".as_ref()), Ok((NamespaceSource::Descriptor(7), kinds)));
        assert_eq!(namespace("fd=7".as_ref()), Ok((NamespaceSource::Descriptor(7), 0)));
        assert_eq!((range("5-"), range("3"), range("3-4")), (Ok((5, u32::MAX)), Ok((3, 3)), Ok((3, 4))));
        assert_eq!(limits("64"), Ok((Some(64), Some(64))));
        assert_eq!(limits("1K:unlimited"), Ok((Some(1024), None)));
        assert_eq!(cpus("0,2-3"), Ok(vec![0, 2, 3]));
        assert_eq!(id("5"), Ok(5));
        assert_eq!(ids("keep:5:keep"), Ok([u32::MAX, 5, u32::MAX]));
        assert_eq!(groups("none"), Ok(vec![]));
    }

    #[test]
    fn invalid_values_are_rejected() {
        for bad in ["r:7", "q:/x:7", "r::7", "r:/x:seven", "r:/x:-1"] {
            assert!(open(bad.as_ref()).is_err(), "{bad}");
        }
        for bad in ["", "r,", "r,600", "w,8", "w,10000", "w,beneth", "w,existing,600", "0600"] {
            assert!(how(bad).is_err(), "{bad}");
        }
        for bad in ["", "pid=7", "pid=0:net", "pid=:net", "pid=7:", "pid=7:nett", "fd=", "fd=-1", "fd=7:"] {
            assert!(namespace(bad.as_ref()).is_err(), "{bad}");
        }
        assert!(range("4-3").is_err() && range("-3").is_err());
        assert!(limits("2:1").is_err() && limits("unlimited:1").is_err() && limits("99999999999T").is_err());
        assert!(cpus("3-2").is_err() && cpus("").is_err() && cpus("0-99999999").is_err());
        assert!(id("root").is_err() && id("4294967295").is_err() && ids("1:2").is_err() && ids("1:2:root").is_err());
        assert!(umask("8").is_err() && umask("1000").is_err());
    }
}
