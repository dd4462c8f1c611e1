// SPDX-License-Identifier: MIT OR Apache-2.0
//! Starts the guard's helper program, which is embedded in this library, from a memfd. If the system does not allow
//! that, uses an unnamed file in the first directory that allows execution.

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags, openat};
use spawnfd_guard::IMAGE;
use spawnfd_sys::Errno;

use super::failed;
use crate::child::Child;
use crate::command::Command;
use crate::env::Env;
use crate::error::{Result, errno};
use crate::host::memfd;
use crate::signals::SignalSet;
use crate::template::Template;

/// Starts the helper with the three descriptors that it needs: the owner's pidfd, the table (for a namespace's first
/// process, an eventfd), and the pipe on which the helper reports that it is ready. `configure` adds settings to the
/// command.
pub(super) fn spawn([owner, table, ready]: [&OwnedFd; 3], configure: impl Fn(&mut Command<'_>)) -> Result<Child> {
    let attempt = |file: OwnedFd| {
        let template = Template::from_descriptor(file)?;
        let mut command = template.command();
        // The helper blocks all signals, so only SIGKILL can end it.
        command.arg0("spawnfd-guard").environment(&Env::empty()).current_dir("/").setsid().signal_mask(SignalSet::ALL);
        configure(&mut command);
        command.stdin(owner).stdout(table).stderr(ready).spawn()
    };
    let mut outcome =
        memfd::with_contents("spawnfd-guard", IMAGE).map_err(|errno| failed(errno, "memfd_create()")).and_then(attempt);
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty());
    for dir in runtime.into_iter().chain(["/tmp".into(), "/var/tmp".into(), "/dev/shm".into()]) {
        // EACCES comes from vm.memfd_noexec, or from a file system mounted noexec. EPERM comes from
        // a security module. For any other error, another file would not help.
        if !outcome.as_ref().is_err_and(|error| matches!(error.errno(), Errno::EACCES | Errno::EPERM)) {
            break;
        }
        if let Ok(file) = in_directory(&dir) {
            outcome = attempt(file);
        }
    }
    outcome
}

/// Creates the program as an unnamed file in a directory.
fn in_directory(dir: &std::ffi::OsStr) -> std::result::Result<OwnedFd, Errno> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = openat(CWD, dir, flags, Mode::from(0o500)).map_err(errno)?;
    memfd::write_all(&file, IMAGE)?;
    // Reopen the file read-only, because executing a file that is open for writing fails with
    // ETXTBSY.
    let path = format!("/proc/thread-self/fd/{}", file.as_raw_fd());
    openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(errno)
}
