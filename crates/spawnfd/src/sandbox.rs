// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands that confine what they start: `bwrap … PROGRAM ARGUMENTS`, with what they are given to read.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{CWD, FileType, Mode, OFlags, SeekFrom, openat, seek};
use spawnfd_sys::{Errno, abi, call};

use crate::error::from_io;
use crate::error::{Error, Result, Stage, errno};
use crate::host::numbers::{Known, above_standard};
use crate::template::Template;

/// How many descriptors a sandbox is given at most.
const MOST: usize = 64;

/// A command through which programs are started, and the descriptors it is given: `bwrap --seccomp 10 … -- PROGRAM ARGUMENTS`.
///
/// What it confines, and how, is its own affair: it is started with its own arguments, then the program's name and arguments. A value: it
/// can serve any number of commands ([`Command::sandbox`](crate::Command::sandbox)), at once too, and programs that
/// are kept warm inside it ([`Park::sandbox`](crate::Park::sandbox)).
///
/// # Examples
/// ```
/// use spawnfd::{Command, Sandbox};
/// let sandbox = Sandbox::new(["env", "-i", "WHERE=inside"])?;
/// let output = Command::new("/bin/sh").args(["-c", "echo $WHERE"]).sandbox(&sandbox).run()?;
/// assert_eq!(output.stdout, b"inside\n");
/// # Ok::<(), spawnfd::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Sandbox {
    /// What its program was called.
    pub(crate) name: OsString,
    /// Where that was found.
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<OsString>,
    pub(crate) given: Vec<Given>,
}

impl Sandbox {
    /// The program, an absolute path or a name that is searched in this process's PATH, now, and its own arguments. (Not in the PATH of
    /// a command, which is for what is confined.)
    ///
    /// # Errors
    /// EINVAL: it is empty. As [`Template::search`].
    pub fn new<S: AsRef<OsStr>>(command: impl IntoIterator<Item = S>) -> Result<Sandbox> {
        let mut words = command.into_iter().map(|word| word.as_ref().to_owned());
        let Some(name) = words.next() else {
            return Err(Error::invalid("sandbox: it names no program".to_owned()));
        };
        let template = Template::search(&name, std::env::var_os("PATH").unwrap_or_default())?;
        let program = template.path().map(Path::to_owned).unwrap_or_default();
        Ok(Sandbox { name, program, args: words.collect(), given: Vec::new() })
    }

    /// Gives it a duplicate of a descriptor, as that number. A regular file that can be read is there for reading only, and each start reads
    /// for itself, from where this one stands now: what one has read is not missing in the next. Anything else is shared by
    /// all starts; so give what is to be written a descriptor that is for writing only.
    ///
    /// # Errors
    /// EINVAL: a standard stream's number, or one that is given already. E2BIG: more than 64. EMFILE.
    pub fn descriptor(mut self, fd: impl AsFd, number: i32) -> Result<Sandbox> {
        if number < 3 {
            return Err(Error::invalid(format!("sandbox: descriptor {number}: standard streams are the program's")));
        }
        if self.given.iter().any(|given| given.number == number) {
            return Err(Error::invalid(format!("sandbox: descriptor {number} twice")));
        }
        if self.given.len() >= MOST {
            return Err(failed(number, Errno::E2BIG));
        }
        self.given.push(Given::new(number, fd).map_err(|errno| failed(number, errno))?);
        Ok(self)
    }
}

/// A descriptor it is given, and the number as which.
#[derive(Clone, Debug)]
pub(crate) struct Given {
    pub(crate) number: RawFd,
    fd: Arc<Known>,
    /// In a regular file that can be read: where that begins.
    position: Option<u64>,
}

impl Given {
    fn new(number: RawFd, fd: impl AsFd) -> std::result::Result<Given, Errno> {
        let copy = fd.as_fd().try_clone_to_owned().map_err(|error| from_io(&error))?;
        let fd = copy.as_raw_fd();
        let position = position(fd, call::status_flags(fd)?, call::stat(fd, c"")?.st_mode as u16);
        Ok(Given { number, fd: Arc::new(Known::new(copy)), position })
    }

    /// One for the next start. What that reads it reads from where it began, so each has a description of its own.
    ///
    /// # Errors
    /// EBADF: the application has closed ours. EACCES: the file may not be opened any more. EMFILE, ENFILE.
    pub(crate) fn another(&self) -> Result<OwnedFd> {
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
    pub(crate) fn beyond(&self) -> Error {
        failed(self.number, Errno::EBADF)
    }
}

fn failed(number: RawFd, errno: Errno) -> Error {
    Error::new(Stage::Descriptors, errno, format!("sandbox: descriptor {number}"))
}

/// Where a regular file that can be read stands; by its status flags and mode.
pub(crate) fn position(fd: RawFd, flags: i32, mode: u16) -> Option<u64> {
    let flags = flags as u32;
    let is_read = flags & abi::O_ACCMODE != abi::O_WRONLY && flags & abi::O_PATH == 0;
    let is_regular = FileType::from_raw_mode(mode.into()) == FileType::RegularFile;
    if is_read && is_regular { call::position(fd).ok() } else { None }
}
