// SPDX-License-Identifier: MIT OR Apache-2.0
//! The C baselines of baseline/baseline.c.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;

use rustix::process::{Pid, WaitOptions, waitpid};

use super::{Method, Output, Target, killed};

unsafe extern "C" {
    fn spawnfd_baseline_vfork(program: *const libc::c_char, out: libc::c_int, search: bool) -> libc::pid_t;
    fn spawnfd_baseline_fork(program: *const libc::c_char, out: libc::c_int, search: bool) -> libc::pid_t;
    fn spawnfd_baseline_posix_spawn(program: *const libc::c_char, out: libc::c_int, search: bool) -> libc::pid_t;
}

/// The system calls or the libc function of a baseline.
#[derive(Debug, Clone, Copy)]
pub enum Call {
    Vfork,
    Fork,
    PosixSpawn,
}

/// A C baseline bound to a program.
#[derive(Debug)]
pub struct Raw {
    call: Call,
    program: CString,
    search: bool,
    /// /dev/null, opened in advance as in seed 003. The samples of the C baselines do not include
    /// this open.
    null: File,
    pid: Option<Pid>,
}

impl Raw {
    pub(super) fn open(call: Call, target: &Target) -> io::Result<Box<dyn Method>> {
        let (program, search) = match target {
            Target::Path(path) => (CString::new(path.as_os_str().as_bytes())?, false),
            Target::Name(name) => (CString::new(name.as_str())?, true),
        };
        Ok(Box::new(Self::with(call, program, search)?))
    }

    fn with(call: Call, program: CString, search: bool) -> io::Result<Self> {
        let null = File::options().write(true).open("/dev/null")?;
        Ok(Self { call, program, search, null, pid: None })
    }
}

fn spawn(call: Call, program: &CStr, out: i32, search: bool) -> libc::pid_t {
    // SAFETY: `program` is a valid string, and the C functions keep no pointer to it. The vfork child writes only to
    // the C function's own stack frame, which stays valid until the child has called exec or _exit.
    unsafe {
        match call {
            Call::Vfork => spawnfd_baseline_vfork(program.as_ptr(), out, search),
            Call::Fork => spawnfd_baseline_fork(program.as_ptr(), out, search),
            Call::PosixSpawn => spawnfd_baseline_posix_spawn(program.as_ptr(), out, search),
        }
    }
}

impl Method for Raw {
    fn start(&mut self, stdout: Output<'_>) -> io::Result<()> {
        let out = match &stdout {
            Output::Owned(fd) => fd.as_raw_fd(),
            Output::Borrowed(fd) => fd.as_raw_fd(),
            Output::Null => self.null.as_raw_fd(),
        };
        let pid = spawn(self.call, &self.program, out, self.search);
        self.pid = Pid::from_raw(pid.max(0));
        if self.pid.is_some() { Ok(()) } else { Err(io::Error::from_raw_os_error(-pid)) }
    }

    fn finish(&mut self) -> io::Result<i32> {
        let pid = self.pid.take().ok_or_else(|| io::Error::other("nothing was started"))?;
        let Some((_, status)) = waitpid(Some(pid), WaitOptions::empty())? else {
            return Err(killed());
        };
        status.exit_status().ok_or_else(killed)
    }

    fn for_thread(&self) -> io::Result<Box<dyn Method>> {
        Ok(Box::new(Self::with(self.call, self.program.clone(), self.search)?))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        if self.pid.is_some() {
            let _ = self.finish();
        }
    }
}
