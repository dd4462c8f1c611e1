// SPDX-License-Identifier: MIT OR Apache-2.0
//! The sentences of error messages, in the user's terms.

use std::borrow::Cow;
use std::ffi::{CStr, OsStr};
use std::io;
use std::os::unix::ffi::OsStrExt;

use spawnfd_sys::{ArgBlock, Errno};

use super::Stage;

/// The default sentence for an error of this stage.
pub(super) fn of_stage(stage: Stage, errno: Errno, call: &str) -> String {
    let failed = match stage {
        Stage::Validate => return format!("invalid argument: {call}"),
        Stage::Killed if errno == Errno::ESRCH => {
            return "a parked process was killed before it began to start the program".to_owned();
        }
        Stage::Exit => return "the program failed".to_owned(),
        Stage::Killed => return "the program was killed before it started".to_owned(),
        Stage::Clone if errno == Errno::EAGAIN => {
            return "cannot create a process: the limit on processes is reached (RLIMIT_NPROC or pids.max)".to_owned();
        }
        Stage::Action(_) => return format!("{call} failed: {}", reason(errno)),
        Stage::Template => "cannot read the program",
        Stage::Revalidate => "cannot compare the program with its template",
        Stage::Credentials => "cannot use the template",
        Stage::Clone => "cannot create a process",
        Stage::Descriptors => "cannot prepare the child's descriptors",
        Stage::Stdio(0) => "cannot connect standard input",
        Stage::Stdio(1) => "cannot connect standard output",
        Stage::Stdio(_) => "cannot connect standard error",
        Stage::CurrentDir => "cannot change to the working directory",
        Stage::Signals => "cannot set the child's signals",
        Stage::Filter => "cannot install the seccomp filter",
        Stage::Exec => "cannot execute the program",
        Stage::Wait => "cannot wait for the program",
        Stage::Capture => "cannot transfer the program's input or output",
        Stage::Snapshot => "cannot copy the program into a snapshot",
        Stage::Tree => "cannot control the process tree",
        Stage::Limit => "cannot apply the limit",
        Stage::Warm => "cannot keep a parked process",
    };
    format!("{failed}: {}", reason(errno))
}

/// Returns the text of an error, without the suffix " (os error N)" that std appends.
pub fn os_text(error: &io::Error) -> String {
    error.to_string().split(" (os error").next().unwrap_or_default().to_owned()
}

/// The errno in words.
pub(crate) fn reason(errno: Errno) -> Cow<'static, str> {
    match errno {
        Errno::EMFILE => "no file descriptor is free (RLIMIT_NOFILE)".into(),
        Errno::ENFILE => "the system has too many open files (fs.file-max)".into(),
        Errno::ENOMEM => "out of memory".into(),
        Errno::ECANCELED => "a signal killed the child".into(),
        _ => {
            let text = os_text(&io::Error::from_raw_os_error(errno.raw()));
            let mut letters = text.chars();
            let first = letters.next().map(|letter| letter.to_ascii_lowercase());
            first.into_iter().chain(letters).collect::<String>().into()
        }
    }
}

/// A name or path for a message: without control characters, which could begin another line.
pub(crate) fn shown(name: impl AsRef<OsStr>) -> String {
    let name = name.as_ref().to_string_lossy();
    if name.is_empty() || name.chars().any(char::is_control) { format!("{name:?}") } else { name.into_owned() }
}

/// Like `shown`, for a C string.
pub(crate) fn shown_c(name: &CStr) -> String {
    shown(OsStr::from_bytes(name.to_bytes()))
}

/// The sentence of a failure to find or use `path`, which should be a `kind`; `None` if the errno does not concern
/// the path.
pub(crate) fn of_path(kind: &str, path: &CStr, errno: Errno) -> Option<String> {
    let path = shown_c(path);
    Some(match errno {
        Errno::ENOENT => format!("no such {kind}: {path}"),
        Errno::ENOTDIR if kind.ends_with("directory") => format!("not a directory: {path}"),
        Errno::ENOTDIR => format!("no such {kind}: {path} (a parent is not a directory)"),
        Errno::EACCES | Errno::EPERM => format!("permission denied: {path}"),
        Errno::EXDEV => format!("path leads out of its directory or mount: {path}"),
        Errno::ELOOP => format!("too many symbolic links: {path}"),
        Errno::ENAMETOOLONG => format!("path too long: {path}"),
        Errno::EISDIR => format!("is a directory: {path}"),
        Errno::EEXIST => format!("already exists: {path}"),
        _ => return None,
    })
}

/// The sentence of an exec that failed with E2BIG.
pub(crate) fn of_too_large(program: &str, argv: &ArgBlock, envp: &ArgBlock) -> String {
    // The kernel's limit for one string with its NUL: MAX_ARG_STRLEN in include/uapi/linux/binfmts.h.
    let longest = 32 * rustix::param::page_size();
    let is_long = |string: &&CStr| string.count_bytes() >= longest;
    if let Some((index, long)) = argv.iter().enumerate().find(|(_, string)| is_long(string)) {
        return format!(
            "argument list too long: argument {index} of {program} has {} bytes, {} at most",
            long.count_bytes(),
            longest - 1
        );
    }
    if let Some(long) = envp.iter().find(is_long) {
        let name = long.to_bytes().split(|&byte| byte == b'=').next().unwrap_or_default();
        return format!(
            "argument list too long: environment variable {} has {} bytes with its name, {} at most",
            shown(OsStr::from_bytes(name)),
            long.count_bytes(),
            longest - 1
        );
    }
    // The kernel also counts a pointer for each string.
    let size =
        |block: &ArgBlock| block.iter().map(|string| string.count_bytes() + 1 + size_of::<usize>()).sum::<usize>();
    format!(
        "argument list too long: arguments and environment of {program} take {} bytes (limit: a quarter of RLIMIT_STACK)",
        size(argv) + size(envp)
    )
}
