// SPDX-License-Identifier: MIT OR Apache-2.0
//! Helpers of the tests of builders and templates: files, records, children, and descriptors in messages.

pub use std::ffi::{CStr, CString};
pub use std::fs::File;
pub use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
pub use std::os::unix::fs::OpenOptionsExt;
pub use std::path::{Path, PathBuf};

use std::fs::Permissions;
use std::io::{Error, Result as IoResult};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::panic::{AssertUnwindSafe, catch_unwind};

pub use libc::{
    AT_FDCWD, E2BIG, EACCES, EAGAIN, EBADF, EEXIST, EFAULT, EFBIG, EINVAL, ELOOP, EMFILE, ENAMETOOLONG, ENOENT,
    ENOEXEC, ENOTDIR, EOPNOTSUPP, EPERM, ESTALE, O_CLOEXEC, O_DIRECTORY, O_NONBLOCK, O_PATH, O_RDONLY, O_WRONLY,
};
pub use spawnfd_sys::{abi, call};
pub use spawnfd_tests::leaks::{self, Snapshot};
pub use spawnfd_tests::{is_root, isolated, require_root};

/// The result of a C function: a number, or the calling thread's errno.
pub fn result(returned: i32) -> Result<i32, i32> {
    if returned < 0 { Err(Error::last_os_error().raw_os_error().unwrap()) } else { Ok(returned) }
}

/// Returns the address of a value in the form of the ABI.
pub fn address<T: ?Sized>(of: &T) -> u64 {
    (&raw const *of).cast::<u8>().expose_provenance() as u64
}

/// Pointers to strings, and a NULL pointer at the end.
pub fn pointers<S: AsRef<CStr>>(strings: &[S]) -> Vec<u64> {
    strings.iter().map(|string| address(string.as_ref())).chain([0]).collect()
}

pub fn owned(fd: RawFd) -> OwnedFd {
    // SAFETY: the callers pass a new descriptor.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

pub fn c_path(path: impl AsRef<Path>) -> CString {
    CString::new(path.as_ref().as_os_str().as_encoded_bytes()).unwrap()
}

/// The flags of a descriptor: FD_CLOEXEC or 0.
pub fn descriptor_flags(fd: RawFd) -> i32 {
    // SAFETY: F_GETFD has no requirements.
    unsafe { libc::fcntl(fd, libc::F_GETFD) }
}

/// Waits for a child by its pidfd. Returns the exit code, or 128 plus the signal.
pub fn reap(pidfd: &impl AsRawFd) -> i32 {
    let status = spawnfd_sys::wait_pidfd(pidfd.as_raw_fd(), true).unwrap().unwrap().status;
    if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { 128 + libc::WTERMSIG(status) }
}

/// Starts a program whose standard output is this descriptor, and returns the output. The program must exit with 0.
pub fn output_of<E>(start: impl FnOnce(RawFd) -> Result<OwnedFd, E>) -> Result<String, E> {
    let (reader, writer) = std::io::pipe().unwrap();
    let pidfd = start(writer.as_raw_fd())?;
    drop(writer);
    let output = std::io::read_to_string(reader).unwrap();
    assert_eq!(reap(&pidfd), 0, "{output}");
    Ok(output)
}

/// A directory of one test, which its drop removes.
pub struct Scratch(tempfile::TempDir);

impl Scratch {
    pub fn new() -> Scratch {
        Scratch(spawnfd_tests::scratch())
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn c_path(&self, name: &str) -> CString {
        c_path(self.path(name))
    }

    /// Creates an executable copy of /bin/sh.
    pub fn program(&self, name: &str) -> PathBuf {
        self.run("cp /bin/sh \"$1\"", name)
    }

    /// Creates an executable file with these contents.
    pub fn file(&self, name: &str, contents: &str) -> PathBuf {
        self.write(name, contents, 0o755)
    }

    pub fn write(&self, name: &str, contents: &str, mode: u32) -> PathBuf {
        let path = self.run(&format!("printf '%s' '{contents}' > \"$1\""), name);
        std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        path
    }

    /// Runs a shell script on a path of the directory.
    ///
    /// Only that shell opens the file for writing. If a test opened it, the child of another test could hold the
    /// descriptor for a moment, and exec would fail with ETXTBSY.
    pub fn run(&self, script: &str, name: &str) -> PathBuf {
        let path = self.path(name);
        let status = std::process::Command::new("/bin/sh").args(["-c", script, "sh"]).arg(&path).status().unwrap();
        assert!(status.success(), "{script}");
        path
    }
}

fn path_of(fd: &impl AsRawFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// The contents of the file behind a descriptor.
pub fn read_record(fd: &impl AsRawFd) -> Vec<u8> {
    std::fs::read(path_of(fd)).unwrap()
}

/// Replaces the contents of the file behind a descriptor.
pub fn write_record(fd: &impl AsRawFd, contents: &[u8]) -> IoResult<()> {
    std::fs::write(path_of(fd), contents)
}

/// Opens the file behind a descriptor as a path (O_PATH).
pub fn reopen_as_path(fd: &impl AsRawFd) -> File {
    File::options().read(true).custom_flags(O_PATH).open(path_of(fd)).unwrap()
}

/// Creates a memfd with a name and contents.
pub fn memfd(name: &CStr, contents: &[u8]) -> OwnedFd {
    // SAFETY: the name is a string.
    let file = owned(unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) });
    write_record(&file, contents).unwrap();
    file
}

/// Copies a descriptor to a number of 500 or more that programs inherit.
pub fn inheritable(fd: &impl AsRawFd) -> OwnedFd {
    // SAFETY: F_DUPFD has no requirements.
    owned(result(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD, 500) }).unwrap())
}

pub fn dev_null() -> File {
    File::options().read(true).write(true).open("/dev/null").unwrap()
}

/// Sets a soft limit of this process.
pub fn set_limit(resource: u32, soft: u64) {
    let limit = call::limit(resource).unwrap();
    call::set_limit(resource, &abi::rlimit64 { rlim_cur: soft, ..limit }).unwrap();
}

/// Forks, and returns the exit status of the child that runs `body`: 101 after a panic.
///
/// The body may allocate, because glibc's malloc works in a forked child.
pub fn in_forked_child(body: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child runs only `body`, and then exits without destructors.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        let status = catch_unwind(AssertUnwindSafe(body)).unwrap_or(101);
        // SAFETY: the call has no requirements.
        unsafe { libc::_exit(status) };
    }
    let status = spawnfd_sys::wait_pid(pid, true).unwrap().unwrap().status;
    assert!(libc::WIFEXITED(status), "status {status:#x}");
    libc::WEXITSTATUS(status)
}

pub fn send(socket: &UnixDatagram, fd: &impl AsRawFd) {
    spawnfd_sys::send(socket.as_raw_fd(), &mut [0], &[fd.as_raw_fd()]).unwrap();
}

pub fn receive(socket: &UnixDatagram) -> OwnedFd {
    spawnfd_sys::receive(socket.as_raw_fd(), &mut [0]).unwrap().1.unwrap()
}
