// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands that confine the programs they start, such as `bwrap … PROGRAM ARGUMENTS`, and the descriptors they
//! need.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{CWD, FileType, Mode, OFlags, SeekFrom, openat, seek};
use spawnfd_sys::{Errno, abi, call};

use crate::error::{Error, Result, Stage, errno, from_io, reason};
use crate::host::descriptors::{CheckedFd, above_standard};
use crate::template::{Template, search_path};

/// The maximum number of descriptors of a sandbox.
const MAX_DESCRIPTORS: usize = 64;

/// A command through which programs are started, and its descriptors: `bwrap --seccomp 10 … -- PROGRAM ARGUMENTS`.
///
/// The library starts the command with its own arguments, followed by the program's name and arguments. The command
/// itself decides what it confines. A `Sandbox` is a value: it can serve any number of commands
/// ([`Command::sandbox`](crate::Command::sandbox)), also concurrently, and parked processes inside it
/// ([`Park::sandbox`](crate::warm::Park::sandbox)).
///
/// # Examples
/// ```
/// use spawnfd::sandbox::Sandbox;
/// use spawnfd::Command;
/// let sandbox = Sandbox::new(["env", "-i", "WHERE=inside"])?;
/// let output = Command::new("/bin/sh").args(["-c", "echo $WHERE"]).sandbox(&sandbox).run()?;
/// assert_eq!(output.stdout, b"inside\n");
/// # Ok::<(), spawnfd::Error>(())
/// ```
#[must_use = "a sandbox has no effect until a command uses it"]
#[derive(Clone, Debug)]
pub struct Sandbox {
    /// The program's name as the caller gave it.
    pub(crate) name: OsString,
    /// The path where the name was found.
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<OsString>,
    pub(crate) descriptors: Vec<SandboxDescriptor>,
}

impl Sandbox {
    /// Creates a sandbox from a program and its own arguments. The program is an absolute path, or a name that is
    /// searched now in this process's PATH (relative parts start at this process's directory). The PATH of a command is for the confined program and is not searched.
    ///
    /// # Errors
    /// EINVAL: `command` is empty. Otherwise the errors of [`Template::search`].
    pub fn new<S: AsRef<OsStr>>(command: impl IntoIterator<Item = S>) -> Result<Sandbox> {
        let mut words = command.into_iter().map(|word| word.as_ref().to_owned());
        let Some(name) = words.next() else {
            return Err(Error::invalid("sandbox()").saying("a sandbox needs a program, got an empty list"));
        };
        let template = Template::search(&name, search_path())?;
        let program = template.path().map(Path::to_owned).unwrap_or_default();
        Ok(Sandbox { name, program, args: words.collect(), descriptors: Vec::new() })
    }

    /// Gives the sandbox a duplicate of a descriptor, as `number`.
    ///
    /// For a readable regular file, each start gets its own read-only descriptor, at the position that `fd` has now.
    /// So one start does not consume data that the next start has to read. A descriptor of any other kind is shared
    /// by all starts. If the sandbox writes to a file, pass a write-only descriptor.
    ///
    /// # Errors
    /// EINVAL: `number` is a standard stream's, or already used. E2BIG: more than 64 descriptors. EMFILE.
    pub fn descriptor(mut self, fd: impl AsFd, number: i32) -> Result<Sandbox> {
        if number < 3 {
            let message = format!("a sandbox's descriptor must be >= 3, got {number}: 0-2 are the program's streams");
            return Err(Error::invalid(format!("sandbox: descriptor {number}")).saying(message));
        }
        if self.descriptors.iter().any(|descriptor| descriptor.number == number) {
            let message = format!("the sandbox already has a descriptor {number}");
            return Err(Error::invalid(format!("sandbox: descriptor {number} twice")).saying(message));
        }
        if self.descriptors.len() >= MAX_DESCRIPTORS {
            return Err(failed(number, Errno::E2BIG));
        }
        self.descriptors.push(SandboxDescriptor::new(number, fd).map_err(|errno| failed(number, errno))?);
        Ok(self)
    }
}

/// A descriptor of the sandbox, and its number in the sandbox command.
#[derive(Clone, Debug)]
pub(crate) struct SandboxDescriptor {
    pub(crate) number: RawFd,
    fd: Arc<CheckedFd>,
    /// The position from which each start reads; `None` unless the file is a readable regular file.
    position: Option<u64>,
}

impl SandboxDescriptor {
    pub(crate) fn new(number: RawFd, fd: impl AsFd) -> std::result::Result<SandboxDescriptor, Errno> {
        let copy = fd.as_fd().try_clone_to_owned().map_err(|error| from_io(&error))?;
        let fd = copy.as_raw_fd();
        let position = position(fd, call::status_flags(fd)?, call::stat(fd, c"")?.st_mode as u16);
        Ok(SandboxDescriptor { number, fd: Arc::new(CheckedFd::new(copy)), position })
    }

    /// Opens the descriptor for the next start. For a readable regular file, this is a new open file description at
    /// the recorded position.
    ///
    /// # Errors
    /// EBADF: the application has closed the library's descriptor. EACCES: the file may no longer be opened.
    /// EMFILE, ENFILE.
    pub(crate) fn open_for_start(&self) -> Result<OwnedFd> {
        let failed = |errno| failed(self.number, errno);
        let fd = self.fd.get().ok_or_else(|| failed(Errno::EBADF))?;
        let Some(position) = self.position else {
            return fd.try_clone().map_err(|error| failed(from_io(&error)));
        };
        let path = format!("/proc/thread-self/fd/{}", fd.as_raw_fd());
        let fresh = openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        let fresh = fresh.map_err(|error| failed(errno(error)))?;
        seek(&fresh, SeekFrom::Start(position)).map_err(|error| failed(errno(error)))?;
        Ok(above_standard(fresh))
    }

    /// The error for a number that no descriptor can have.
    pub(crate) fn out_of_range(&self) -> Error {
        failed(self.number, Errno::EBADF)
    }
}

fn failed(number: RawFd, errno: Errno) -> Error {
    let message = match errno {
        Errno::E2BIG => format!("a sandbox has at most {MAX_DESCRIPTORS} descriptors"),
        errno => format!("cannot give the sandbox its descriptor {number}: {}", reason(errno)),
    };
    Error::new(Stage::Descriptors, errno, format!("sandbox: descriptor {number}")).saying(message)
}

/// The position of a regular file, if its status flags and mode show that it can be read.
pub(crate) fn position(fd: RawFd, flags: i32, mode: u16) -> Option<u64> {
    let flags = flags as u32;
    let is_read = flags & abi::O_ACCMODE != abi::O_WRONLY && flags & abi::O_PATH == 0;
    let is_regular = FileType::from_raw_mode(mode.into()) == FileType::RegularFile;
    if is_read && is_regular { call::position(fd).ok() } else { None }
}
