// SPDX-License-Identifier: MIT OR Apache-2.0
//! Starts the guard's helper program, which is embedded in this library, from a memfd. If the system does not allow
//! that, uses an unnamed file in the first directory that allows execution.

use std::iter;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::fs::{CWD, Mode, OFlags, openat};
use spawnfd_guard::IMAGE;
use spawnfd_sys::Errno;

use super::failed;
use crate::child::Child;
use crate::command::{Command, Stdio};
use crate::env::Env;
use crate::error::{Result, errno, from_io};
use crate::host::memfd;
use crate::host::per_process::PerProcess;
use crate::launch;
use crate::signals::SignalSet;
use crate::template::Template;

/// The helper's program.
///
/// # Errors
/// EOPNOTSUPP: this library contains no helper.
pub(super) fn program() -> Result<&'static [u8]> {
    IMAGE.ok_or_else(|| {
        let message = "all tiers but group, and sessions in a sandbox, need the feature `tree`, which this build lacks";
        failed(Errno::EOPNOTSUPP, "guard").saying(message)
    })
}

/// The helper's template, for the subreapers of trees.
static TEMPLATE: PerProcess<Option<Template>> = PerProcess::new(None);

/// The index in [`files`] of the file from which the helper has last started.
static WORKING: AtomicUsize = AtomicUsize::new(0);

/// Returns a template of the helper, which many starts use. Call this function after a start of the guard.
pub(super) fn template() -> Result<Template> {
    let mut cached = TEMPLATE.lock();
    // The application may have closed the template's descriptor.
    if let Some(template) = cached.as_ref().filter(|template| template.revalidate().is_ok()) {
        return Ok(template.clone());
    }
    let file = files(program()?).nth(WORKING.load(Ordering::Relaxed));
    let template = Template::from_descriptor(file.unwrap_or_else(|| Err(failed(Errno::EACCES, "memfd_create()")))?)?;
    Ok(cached.insert(template).clone())
}

/// Returns the helper's file, for a sandbox command that executes the file by descriptor.
pub(crate) fn file_for_sandbox() -> Result<OwnedFd> {
    if TEMPLATE.lock().is_none() {
        // No helper may have started yet. The sandbox could not report that the system refuses to execute the file.
        start_from_each_file(|template| {
            let mut command = template.command();
            configure(&mut command);
            command.arg("hold").stdin(Stdio::Null).stdout(Stdio::Null).stderr(Stdio::Null);
            launch::spawn_helper(&command)?.wait()
        })?;
    }
    let template = template()?;
    template.descriptor().try_clone_to_owned().map_err(|e| failed(from_io(&e), "fcntl(F_DUPFD_CLOEXEC)"))
}

/// Closes the descriptor of the helper's template.
pub(crate) fn drop_template() {
    TEMPLATE.lock().take();
}

/// Configures a start of the helper, which blocks all signals, so only SIGKILL can end it.
pub(super) fn configure(command: &mut Command<'_>) {
    command.arg0("spawnfd-guard").environment(&Env::empty()).current_dir("/").setsid().signal_mask(SignalSet::ALL);
}

/// Starts the helper with the three descriptors that it needs: the owner's pidfd, the table (for a namespace's first
/// process, an eventfd), and the pipe on which the helper reports that it is ready. `settings` adds settings to the
/// command.
pub(super) fn spawn([owner, table, ready]: [&OwnedFd; 3], settings: impl Fn(&mut Command<'_>)) -> Result<Child> {
    start_from_each_file(|template| {
        let mut command = template.command();
        configure(&mut command);
        settings(&mut command);
        command.stdin(owner).stdout(table).stderr(ready);
        launch::spawn_helper(&command)
    })
}

/// Starts the helper from the first file that the system allows to execute.
fn start_from_each_file<T>(attempt: impl Fn(&Template) -> Result<T>) -> Result<T> {
    let attempt = |file: OwnedFd| attempt(&Template::from_descriptor(file)?);
    let mut outcome = Err(failed(Errno::EACCES, "memfd_create()"));
    for (index, file) in files(program()?).enumerate() {
        // A directory may not exist or may not be writable. Then the first error explains more.
        if index > 0 && file.is_err() {
            continue;
        }
        outcome = file.and_then(attempt);
        // EACCES comes from vm.memfd_noexec, or from a file system mounted noexec. EPERM comes from
        // a security module. For any other error, another file would not help.
        if !outcome.as_ref().is_err_and(|error| matches!(error.errno(), Errno::EACCES | Errno::EPERM)) {
            WORKING.store(index, Ordering::Relaxed);
            break;
        }
    }
    outcome
}

/// Creates files with the program, in the order in which the library tries them: in memory, and then in directories.
fn files(program: &'static [u8]) -> impl Iterator<Item = Result<OwnedFd>> {
    let in_memory = move || memfd::with_contents("spawnfd-guard", program).map_err(|e| failed(e, "memfd_create()"));
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty());
    let dirs = runtime.into_iter().chain(["/tmp".into(), "/var/tmp".into(), "/dev/shm".into()]);
    let in_directories = dirs.map(move |dir| in_directory(&dir, program).map_err(|e| failed(e, "open(O_TMPFILE)")));
    iter::once_with(in_memory).chain(in_directories)
}

/// Creates the program as an unnamed file in a directory.
fn in_directory(dir: &std::ffi::OsStr, program: &[u8]) -> std::result::Result<OwnedFd, Errno> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = openat(CWD, dir, flags, Mode::from(0o555)).map_err(errno)?;
    memfd::write_all(&file, program)?;
    // Reopen the file read-only, because executing a file that is open for writing fails with
    // ETXTBSY.
    let path = format!("/proc/thread-self/fd/{}", file.as_raw_fd());
    openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(errno)
}
