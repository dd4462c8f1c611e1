// SPDX-License-Identifier: MIT OR Apache-2.0
//! Helpers of the tests of templates and builders: files, records, children, and descriptors in messages.
#![allow(dead_code)]

use std::ffi::CString;
use std::fs::{File, Permissions};
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// The calling thread's errno.
pub fn errno() -> i32 {
    Error::last_os_error().raw_os_error().unwrap()
}

/// Returns the address of a value in the form of the ABI.
pub fn address<T: ?Sized>(of: &T) -> u64 {
    (&raw const *of).cast::<u8>().expose_provenance() as u64
}

pub fn owned(fd: RawFd) -> OwnedFd {
    // SAFETY: the callers pass a new descriptor.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

pub fn c_path(path: impl AsRef<Path>) -> CString {
    CString::new(path.as_ref().as_os_str().as_encoded_bytes()).unwrap()
}

/// Waits for a child by its pidfd. Returns the exit code, or 128 plus the signal.
pub fn reap(pidfd: &OwnedFd) -> i32 {
    // SAFETY: `info` is valid for writes, and all-zero is a valid value.
    let (returned, info) = unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        (libc::waitid(libc::P_PIDFD, pidfd.as_raw_fd() as u32, &mut info, libc::WEXITED), info)
    };
    assert_eq!(returned, 0, "waitid: {}", Error::last_os_error());
    // SAFETY: waitid has filled in the status.
    let status = unsafe { info.si_status() };
    if info.si_code == libc::CLD_EXITED { status } else { 128 + status }
}

/// A directory of one test, which its drop removes.
pub struct Scratch(TempDir);

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
        let status = Command::new("/bin/sh").arg("-c").arg(script).arg("sh").arg(&path).status().unwrap();
        assert!(status.success(), "{script}");
        path
    }
}

/// The contents of the file behind a descriptor.
pub fn read_record(fd: &impl AsRawFd) -> Vec<u8> {
    std::fs::read(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap()
}

/// Replaces the contents of the file behind a descriptor.
pub fn write_record(fd: &impl AsRawFd, contents: &[u8]) -> Result<()> {
    // SAFETY: the descriptor is open, and `ManuallyDrop` does not close it.
    let file = std::mem::ManuallyDrop::new(unsafe { File::from_raw_fd(fd.as_raw_fd()) });
    file.write_all_at(contents, 0)?;
    file.set_len(contents.len() as u64)
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
    let mut status = 0;
    // SAFETY: the call writes to `status`.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert!(libc::WIFEXITED(status), "status {status:#x}");
    libc::WEXITSTATUS(status)
}

/// Two connected sockets.
pub fn socket_pair() -> [OwnedFd; 2] {
    let mut sockets = [-1; 2];
    // SAFETY: the call writes two numbers.
    let created =
        unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0, sockets.as_mut_ptr()) };
    assert_eq!(created, 0);
    // SAFETY: the descriptors are new.
    sockets.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A message of one byte with room for one descriptor.
fn message<T>(body: impl FnOnce(&mut libc::msghdr) -> T) -> T {
    let mut byte = 0u8;
    let mut part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let mut control = [0u64; 4];
    // SAFETY: all-zero is a valid value.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    (header.msg_iov, header.msg_iovlen) = (&mut part, 1);
    header.msg_control = control.as_mut_ptr().cast();
    // SAFETY: the function has no requirements.
    header.msg_controllen = unsafe { libc::CMSG_SPACE(size_of::<RawFd>() as u32) } as usize;
    body(&mut header)
}

pub fn send(socket: &OwnedFd, fd: &impl AsRawFd) {
    // SAFETY: the header has room for one control message, and all its buffers are valid.
    let sent = message(|header| unsafe {
        let control = libc::CMSG_FIRSTHDR(header);
        (*control).cmsg_level = libc::SOL_SOCKET;
        (*control).cmsg_type = libc::SCM_RIGHTS;
        (*control).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as usize;
        libc::CMSG_DATA(control).cast::<RawFd>().write_unaligned(fd.as_raw_fd());
        libc::sendmsg(socket.as_raw_fd(), header, 0)
    });
    assert_eq!(sent, 1, "{}", Error::last_os_error());
}

pub fn receive(socket: &OwnedFd) -> OwnedFd {
    // SAFETY: all buffers of the header are valid. The control message has one new descriptor.
    message(|header| unsafe {
        assert_eq!(libc::recvmsg(socket.as_raw_fd(), header, libc::MSG_CMSG_CLOEXEC), 1);
        OwnedFd::from_raw_fd(libc::CMSG_DATA(libc::CMSG_FIRSTHDR(header)).cast::<RawFd>().read_unaligned())
    })
}
