// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of templates: calls of the two functions.

mod actions;
mod create;
mod filters;
mod spawn;

use std::any::Any;
use std::ptr;

use spawnfd_capi::template::*;
use spawnfd_sys::abi::open_how;

use crate::support::*;

/// Calls `spawn_template_create`.
fn create(args: &spawn_template_create_args) -> Result<OwnedFd, i32> {
    create_with_size(args, size_of_val(args))
}

/// Calls `spawn_template_create` with an address and a size.
fn create_with_size(args: *const spawn_template_create_args, size: usize) -> Result<OwnedFd, i32> {
    // SAFETY: the tests pass NULL or a buffer of at least `size` bytes, unless the function refuses the size.
    result(unsafe { spawn_template_create(args, size) }).map(owned)
}

/// The arguments of a create call for a path.
fn path_args(path: &CStr) -> spawn_template_create_args {
    let flags = SPAWN_TEMPLATE_CREATE_CLOEXEC;
    spawn_template_create_args { flags, execfd: -1, filename: address(path), ..Default::default() }
}

/// The arguments of a create call for a descriptor.
fn descriptor_args(fd: &impl AsRawFd) -> spawn_template_create_args {
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
fn spawn_with_size(fd: RawFd, args: *const spawn_template_spawn_args, size: usize) -> Result<i32, i32> {
    // SAFETY: the tests pass NULL or a buffer of at least `size` bytes, unless the function refuses the call earlier.
    result(unsafe { spawn_template_spawn(fd, args, size) })
}

/// One spawn: its arguments, and the memory that they refer to.
#[derive(Default)]
pub struct Request {
    argv: Vec<CString>,
    environment: Vec<CString>,
    actions: Vec<spawn_template_action>,
    flags: u64,
    kept: Vec<Box<dyn Any>>,
}

impl Request {
    /// A spawn with these arguments and an empty environment.
    fn new(argv: &[&str]) -> Request {
        let argv = argv.iter().map(|arg| CString::new(*arg).unwrap()).collect();
        Request { argv, ..Default::default() }
    }

    /// A shell that runs a script.
    pub fn script(script: &str) -> Request {
        Request::new(&["sh", "-c", script])
    }

    /// A shell that prints whether each of these descriptors is open.
    fn probe(numbers: &[RawFd]) -> Request {
        let numbers: Vec<_> = numbers.iter().map(RawFd::to_string).collect();
        Request::script(&format!(
            "for fd in {}; do if [ -e /proc/$$/fd/$fd ]; then echo open; else echo closed; fi; done",
            numbers.join(" ")
        ))
    }

    fn inherit(mut self) -> Request {
        self.flags |= SPAWN_TEMPLATE_SPAWN_INHERIT_FDS;
        self
    }

    fn environment(mut self, variable: &str) -> Request {
        self.environment.push(CString::new(variable).unwrap());
        self
    }

    fn action(mut self, r#type: u32, fd: RawFd, newfd: RawFd, flags: u32) -> Request {
        self.actions.push(spawn_template_action { r#type, flags, fd, newfd, arg: 0 });
        self
    }

    fn close(self, fd: RawFd) -> Request {
        self.action(SPAWN_TEMPLATE_ACTION_CLOSE, fd, 0, 0)
    }

    fn dup2(self, from: RawFd, to: RawFd, flags: i32) -> Request {
        self.action(SPAWN_TEMPLATE_ACTION_DUP2, from, to, flags as u32)
    }

    fn fchdir(self, fd: RawFd) -> Request {
        self.action(SPAWN_TEMPLATE_ACTION_FCHDIR, fd, 0, 0)
    }

    fn close_range(self, first: RawFd, last: RawFd, flags: u32) -> Request {
        self.action(SPAWN_TEMPLATE_ACTION_CLOSE_RANGE, first, last, flags)
    }

    fn open(self, dir: RawFd, path: &str, fd: RawFd, flags: i32) -> Request {
        self.open_how(dir, path, fd, open_how { flags: flags as u64, mode: 0, resolve: 0 })
    }

    fn open_how(mut self, dir: RawFd, path: &str, fd: RawFd, how: open_how) -> Request {
        let path = CString::new(path).unwrap();
        let open = spawn_template_open { path: address(&*path), how };
        self.kept.push(Box::new(path));
        self.with_data(SPAWN_TEMPLATE_ACTION_OPEN, dir, fd, open)
    }

    /// An action with a signal set.
    fn signals(mut self, r#type: u32, signals: &[i32]) -> Request {
        let set = Box::new(signals.iter().fold(0u64, |set, signal| set | 1 << (signal - 1)));
        let sigset = spawn_template_sigset { sigset: address(&*set), sigsetsize: 8 };
        self.kept.push(set);
        self.with_data(r#type, 0, 0, sigset)
    }

    /// An action with data at its address.
    fn with_data(mut self, r#type: u32, fd: RawFd, newfd: RawFd, data: impl Any) -> Request {
        let data = Box::new(data);
        self.actions.push(spawn_template_action { r#type, fd, newfd, arg: address(&*data), flags: 0 });
        self.kept.push(data);
        self
    }

    /// Spawns the program, and returns the child's pid and pidfd.
    fn start(&self, template: &impl AsRawFd) -> Result<(i32, OwnedFd), i32> {
        let (argv, envp) = (pointers(&self.argv), pointers(&self.environment));
        let mut pidfd: RawFd = -1;
        let args = spawn_template_spawn_args {
            flags: self.flags,
            pidfd: (&raw mut pidfd) as u64,
            argv: address(&*argv),
            envp: address(&*envp),
            actions: address(&*self.actions),
            actions_len: self.actions.len() as u64,
            reserved: [0; 4],
        };
        let pid = spawn_with_size(template.as_raw_fd(), &args, size_of_val(&args))?;
        Ok((pid, owned(pidfd)))
    }

    /// Spawns the program, and returns the errno or the exit status. A child must not end by a signal.
    pub fn status(&self, template: &impl AsRawFd) -> Result<i32, i32> {
        let status = reap(&self.start(template)?.1);
        assert!(status < 128, "status {status}");
        Ok(status)
    }

    /// Spawns the program with its output in a pipe. Returns the output of a program that exits with 0.
    ///
    /// The child connects the pipe after the other actions.
    fn output(self, template: &impl AsRawFd) -> String {
        output_of(|writer| Ok::<_, i32>(self.dup2(writer, 1, 0).start(template)?.1)).unwrap()
    }
}
