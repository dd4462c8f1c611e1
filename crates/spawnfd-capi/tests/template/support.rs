// SPDX-License-Identifier: MIT OR Apache-2.0
//! Calls the two functions, reads what a program prints, and creates files.

use std::any::Any;
use std::ffi::{CStr, CString, c_char};
use std::io::{Error, Read};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;

use spawnfd_capi::template::*;
use spawnfd_sys::abi::open_how;

pub use crate::common::*;

/// Calls `spawn_template_create`.
pub fn create(args: &spawn_template_create_args) -> Result<OwnedFd, i32> {
    create_with_size(args, size_of_val(args))
}

/// Calls `spawn_template_create` with an address and a size.
pub fn create_with_size(args: *const spawn_template_create_args, size: usize) -> Result<OwnedFd, i32> {
    // SAFETY: the tests pass NULL or a buffer of at least `size` bytes, unless the function refuses the size.
    let fd = unsafe { spawn_template_create(args, size) };
    if fd < 0 { Err(errno()) } else { Ok(owned(fd)) }
}

/// The arguments of a create call for a path.
pub fn path_args(path: &CStr) -> spawn_template_create_args {
    spawn_template_create_args {
        flags: SPAWN_TEMPLATE_CREATE_CLOEXEC,
        execfd: -1,
        filename: path.as_ptr() as u64,
        ..Default::default()
    }
}

/// The arguments of a create call for a descriptor.
pub fn descriptor_args(fd: &impl AsRawFd) -> spawn_template_create_args {
    spawn_template_create_args { flags: SPAWN_TEMPLATE_CREATE_CLOEXEC, execfd: fd.as_raw_fd(), ..Default::default() }
}

/// Creates a template for a path.
pub fn of_path(path: impl AsRef<Path>) -> Result<OwnedFd, i32> {
    create(&path_args(&c_path(path)))
}

/// A template for the shell.
pub fn shell() -> OwnedFd {
    of_path("/bin/sh").unwrap()
}

/// Calls `spawn_template_spawn` with an address and a size.
pub fn spawn_with_size(fd: RawFd, args: *const spawn_template_spawn_args, size: usize) -> Result<i32, i32> {
    // SAFETY: the tests pass NULL or a buffer of at least `size` bytes, unless the function refuses the call earlier.
    let pid = unsafe { spawn_template_spawn(fd, args, size) };
    if pid < 0 { Err(errno()) } else { Ok(pid) }
}

/// One spawn: its arguments, and the memory that they refer to.
#[derive(Default)]
pub struct Request {
    argv: Vec<CString>,
    environment: Vec<CString>,
    pub actions: Vec<spawn_template_action>,
    pub flags: u64,
    kept: Vec<Box<dyn Any>>,
}

/// A child that has been created.
pub struct Spawned {
    pub pid: i32,
    pub pidfd: OwnedFd,
}

impl Request {
    /// A spawn with these arguments and an empty environment.
    pub fn new(argv: &[&str]) -> Request {
        let argv = argv.iter().map(|arg| CString::new(*arg).unwrap()).collect();
        Request { argv, ..Default::default() }
    }

    /// A shell that runs a script.
    pub fn script(script: &str) -> Request {
        Request::new(&["sh", "-c", script])
    }

    /// A shell that prints whether each of these descriptors is open.
    pub fn probe(numbers: &[RawFd]) -> Request {
        let numbers: Vec<_> = numbers.iter().map(RawFd::to_string).collect();
        Request::script(&format!(
            "for fd in {}; do if [ -e /proc/$$/fd/$fd ]; then echo open; else echo closed; fi; done",
            numbers.join(" ")
        ))
    }

    pub fn inherit(mut self) -> Request {
        self.flags |= SPAWN_TEMPLATE_SPAWN_INHERIT_FDS;
        self
    }

    pub fn environment(mut self, variable: &str) -> Request {
        self.environment.push(CString::new(variable).unwrap());
        self
    }

    pub fn action(mut self, r#type: u32, fd: RawFd, newfd: RawFd, flags: u32) -> Request {
        self.actions.push(spawn_template_action { r#type, flags, fd, newfd, arg: 0 });
        self
    }

    pub fn close(self, fd: RawFd) -> Request {
        self.action(SPAWN_TEMPLATE_ACTION_CLOSE, fd, 0, 0)
    }

    pub fn dup2(self, from: RawFd, to: RawFd, flags: i32) -> Request {
        self.action(SPAWN_TEMPLATE_ACTION_DUP2, from, to, flags as u32)
    }

    pub fn fchdir(self, fd: RawFd) -> Request {
        self.action(SPAWN_TEMPLATE_ACTION_FCHDIR, fd, 0, 0)
    }

    pub fn close_range(self, first: RawFd, last: RawFd, flags: u32) -> Request {
        self.action(SPAWN_TEMPLATE_ACTION_CLOSE_RANGE, first, last, flags)
    }

    pub fn open(self, dir: RawFd, path: &str, fd: RawFd, flags: i32) -> Request {
        self.open_how(dir, path, fd, open_how { flags: flags as u64, mode: 0, resolve: 0 })
    }

    pub fn open_how(mut self, dir: RawFd, path: &str, fd: RawFd, how: open_how) -> Request {
        let path = CString::new(path).unwrap();
        let open = Box::new(spawn_template_open { path: path.as_ptr() as u64, how });
        let arg = address(&*open);
        self.kept.extend([Box::new(path) as Box<dyn Any>, open]);
        self.actions.push(spawn_template_action {
            r#type: SPAWN_TEMPLATE_ACTION_OPEN,
            fd: dir,
            newfd: fd,
            arg,
            ..Default::default()
        });
        self
    }

    /// An action with a signal set.
    pub fn signals(mut self, r#type: u32, signals: &[i32]) -> Request {
        let set = Box::new(signals.iter().fold(0u64, |set, signal| set | 1 << (signal - 1)));
        let sigset = spawn_template_sigset { sigset: address(&*set), sigsetsize: 8 };
        self.kept.push(set);
        self.raw_signals(r#type, sigset)
    }

    /// An action with any [`spawn_template_sigset`].
    pub fn raw_signals(mut self, r#type: u32, sigset: spawn_template_sigset) -> Request {
        let sigset = Box::new(sigset);
        self.actions.push(spawn_template_action { r#type, arg: address(&*sigset), ..Default::default() });
        self.kept.push(sigset);
        self
    }

    /// Spawns the program.
    pub fn start(&self, template: &impl AsRawFd) -> Result<Spawned, i32> {
        let pointers = |strings: &[CString]| -> Vec<*const c_char> {
            strings.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect()
        };
        let (argv, envp) = (pointers(&self.argv), pointers(&self.environment));
        let mut pidfd: RawFd = -1;
        let args = spawn_template_spawn_args {
            flags: self.flags,
            pidfd: (&raw mut pidfd) as u64,
            argv: argv.as_ptr() as u64,
            envp: envp.as_ptr() as u64,
            actions: self.actions.as_ptr() as u64,
            actions_len: self.actions.len() as u64,
            reserved: [0; 4],
        };
        let pid = spawn_with_size(template.as_raw_fd(), &args, size_of_val(&args))?;
        Ok(Spawned { pid, pidfd: owned(pidfd) })
    }

    /// Spawns the program, and returns the errno or the exit status.
    pub fn status(&self, template: &impl AsRawFd) -> Result<i32, i32> {
        self.start(template).map(|spawned| spawned.wait())
    }

    /// Spawns the program with its output in a pipe. Returns the output of a program that exits with 0.
    ///
    /// The child connects the pipe after the other actions.
    pub fn output(mut self, template: &impl AsRawFd) -> String {
        let (mut reader, writer) = std::io::pipe().unwrap();
        self = self.dup2(writer.as_raw_fd(), 1, 0);
        let spawned = self.start(template).unwrap();
        drop(writer);
        let mut output = String::new();
        reader.read_to_string(&mut output).unwrap();
        assert_eq!(spawned.wait(), 0, "{output}");
        output
    }
}

impl Spawned {
    /// Waits for the child, and returns its exit status. A child must not end by a signal.
    pub fn wait(&self) -> i32 {
        let status = reap(&self.pidfd);
        assert!(status < 128, "status {status}");
        status
    }
}

/// Copies a descriptor to a number of 500 or more that programs inherit.
pub fn inheritable(fd: &impl AsRawFd) -> OwnedFd {
    // SAFETY: the call opens a new descriptor.
    let copy = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD, 500) };
    assert!(copy >= 500, "{}", Error::last_os_error());
    owned(copy)
}

pub fn dev_null() -> std::fs::File {
    std::fs::File::options().read(true).write(true).open("/dev/null").unwrap()
}
