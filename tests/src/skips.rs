// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reports tests that cannot run on this system.

use std::fs::OpenOptions;
use std::io::Write;

use syscalls::{Errno, Sysno, syscall};

use crate::raw;

/// An environment variable that names the file which collects the lines of [`skip`].
const SKIPS: &str = "SPAWNFD_SKIPS";

/// Reports that the running test is skipped, and why. The test must return after this call.
///
/// Writes a line `SKIP <test> <reason>` to stderr and, if the environment variable SPAWNFD_SKIPS is set, appends it
/// to the file that the variable names.
pub fn skip(reason: &str) {
    let line = format!("SKIP {} {}\n", crate::isolated::test_name(), reason.replace('\n', " "));
    // An isolated test writes the line to its output only. libtest's process, which reads the output, then calls
    // `gather` with the line.
    if crate::isolated::is_isolated() {
        // libtest has printed an incomplete line ("test name ..."), so a newline comes first.
        std::io::stderr().write_all(format!("\n{line}").as_bytes()).ok();
    } else {
        gather(&line);
    }
}

/// Writes a line of [`skip`] to stderr and to the file that `make test` prints.
pub(crate) fn gather(line: &str) {
    // libtest captures the output of eprint!, so the line is written to stderr itself.
    std::io::stderr().write_all(line.as_bytes()).ok();
    if let Some(path) = std::env::var_os(SKIPS).filter(|path| !path.is_empty()) {
        // Each line is one write in append mode, so lines of concurrent tests do not mix.
        let file = OpenOptions::new().append(true).create(true).open(&path);
        let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
        written.unwrap_or_else(|error| panic!("cannot write to {}: {error}", path.display()));
    }
}

/// Returns whether the calling thread is root. If not, skips the test: `if !require_root() { return
/// }`.
#[must_use]
pub fn require_root() -> bool {
    let root = is_root();
    if !root {
        skip("needs root");
    }
    root
}

/// Returns whether the calling thread's effective uid is 0.
#[must_use]
pub fn is_root() -> bool {
    raw::geteuid() == Ok(0)
}

/// Returns whether the calling thread can use a system call. If not, skips the test.
///
/// # Panics
/// If [`has_syscall`] has no harmless call to probe this system call with.
#[must_use]
pub fn require_syscall(name: &str) -> bool {
    let has = has_syscall(name);
    if !has {
        skip(&format!("needs {name}, which is absent or denied here"));
    }
    has
}

/// Returns whether a system call is present and allowed. The probe is a call without effect.
///
/// # Panics
/// If this function's table has no harmless call for the system call.
pub fn has_syscall(name: &str) -> bool {
    const BAD: usize = usize::MAX;
    // Arguments with which the call fails early or has no effect: sizes of 0, bad descriptors.
    let (call, arguments): (Sysno, [usize; 5]) = match name {
        "clone3" => (Sysno::clone3, [0, 0, 0, 0, 0]),
        "close_range" => (Sysno::close_range, [1, 0, 0, 0, 0]),
        "execveat" => (Sysno::execveat, [BAD, 0, 0, 0, BAD]),
        "faccessat2" => (Sysno::faccessat2, [BAD, 0, 0, BAD, 0]),
        "io_uring_setup" => (Sysno::io_uring_setup, [0, 0, 0, 0, 0]),
        "kcmp" => (Sysno::kcmp, [0, 0, BAD, 0, 0]),
        "landlock_create_ruleset" => (Sysno::landlock_create_ruleset, [0, 0, 1, 0, 0]),
        "memfd_create" => (Sysno::memfd_create, [0, BAD, 0, 0, 0]),
        "openat2" => (Sysno::openat2, [BAD, 0, 0, 0, 0]),
        "pidfd_getfd" => (Sysno::pidfd_getfd, [BAD, 0, 0, 0, 0]),
        "pidfd_open" => (Sysno::pidfd_open, [0, BAD, 0, 0, 0]),
        "pidfd_send_signal" => (Sysno::pidfd_send_signal, [BAD, 0, 0, BAD, 0]),
        "seccomp" => (Sysno::seccomp, [BAD, 0, 0, 0, 0]),
        "setns" => (Sysno::setns, [BAD, 0, 0, 0, 0]),
        "unshare" => (Sysno::unshare, [0, 0, 0, 0, 0]),
        _ => panic!("no harmless call of {name} is known; add one to has_syscall"),
    };
    let [a, b, c, d, e] = arguments;
    // SAFETY: no argument is a valid pointer, and each call in the table above fails or has no effect.
    let answer = unsafe { syscall!(call, a, b, c, d, e) };
    // EOPNOTSUPP means that Landlock is built into the kernel but switched off.
    !matches!(answer, Err(Errno::ENOSYS | Errno::EPERM | Errno::EACCES | Errno::EOPNOTSUPP))
}
