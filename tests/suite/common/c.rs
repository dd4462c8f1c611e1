// SPDX-License-Identifier: MIT OR Apache-2.0
//! Starts of programs by the C interfaces. A suite with this module is linked with our posix_spawn, also in std.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::{io, ptr};

use libc::pid_t;
use spawnfd_capi::{builder, posix, template};

/// An interface of the C library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interface {
    PosixSpawn,
    Template,
    Builder,
}

unsafe extern "C" {
    static environ: *const *const c_char;
}

fn result(returned: c_int) -> Result<c_int, c_int> {
    if returned < 0 { Err(io::Error::last_os_error().raw_os_error().expect("an errno")) } else { Ok(returned) }
}

fn owned(descriptor: c_int) -> OwnedFd {
    // SAFETY: the callers pass a new descriptor.
    unsafe { OwnedFd::from_raw_fd(descriptor) }
}

fn address<T>(of: *const T) -> u64 {
    of.expose_provenance() as u64
}

impl Interface {
    pub const ALL: [Interface; 3] = [Interface::PosixSpawn, Interface::Template, Interface::Builder];

    /// Starts the program in a file, with the caller's environment and with its descriptors that are not close-on-exec.
    /// Returns the pid, or the errno of the first call that failed.
    pub fn start(self, file: &CStr, args: &[CString]) -> Result<pid_t, c_int> {
        let argv: Vec<*const c_char> = args.iter().map(|arg| arg.as_ptr()).chain([ptr::null()]).collect();
        match self {
            Interface::PosixSpawn => posix_spawn(file, &argv),
            Interface::Template => template(file, &argv),
            Interface::Builder => builder(file, &argv),
        }
    }
}

fn posix_spawn(file: &CStr, argv: &[*const c_char]) -> Result<pid_t, c_int> {
    let mut pid = 0;
    // SAFETY: the arrays end with NULL, and tests do not change the environment meanwhile.
    let errno =
        unsafe { posix::posix_spawn(&raw mut pid, file.as_ptr(), ptr::null(), ptr::null(), argv.as_ptr(), environ) };
    if errno == 0 { Ok(pid) } else { Err(errno) }
}

fn template(file: &CStr, argv: &[*const c_char]) -> Result<pid_t, c_int> {
    let create = template::spawn_template_create_args {
        flags: template::SPAWN_TEMPLATE_CREATE_CLOEXEC,
        execfd: -1,
        filename: address(file.as_ptr()),
        ..Default::default()
    };
    let mut pidfd = -1;
    // SAFETY: the pointers are valid, and tests do not change the environment meanwhile.
    unsafe {
        let template = owned(result(template::spawn_template_create(&raw const create, size_of_val(&create)))?);
        let spawn = template::spawn_template_spawn_args {
            flags: template::SPAWN_TEMPLATE_SPAWN_INHERIT_FDS,
            pidfd: address(&raw mut pidfd),
            argv: address(argv.as_ptr()),
            envp: address(environ),
            ..Default::default()
        };
        let spawned = template::spawn_template_spawn(template.as_raw_fd(), &raw const spawn, size_of_val(&spawn));
        let pid = result(spawned)?;
        drop(owned(pidfd));
        Ok(pid)
    }
}

fn builder(file: &CStr, argv: &[*const c_char]) -> Result<pid_t, c_int> {
    let builder = owned(result(builder::spawnfd_builder_open(0))?);
    let config = |command, key, value: *const c_void| {
        // SAFETY: the value has the command's type.
        result(unsafe { builder::spawnfd_builder_config(builder.as_raw_fd(), command, key, value, 0) })
    };
    config(builder::PIDFD_CONFIG_SET_STRING, builder::PIDFD_CONFIG_KEY_PATH, file.as_ptr().cast())?;
    config(builder::PIDFD_CONFIG_SET_STRINGS, builder::PIDFD_CONFIG_KEY_ARGV, argv.as_ptr().cast())?;
    // SAFETY: the arguments have their size, and tests do not change the environment meanwhile.
    unsafe {
        let mut args =
            builder::SpawnArgs { flags: builder::SPAWN_FDS_INHERIT, envp: address(environ), ..Default::default() };
        let size = size_of_val(&args);
        drop(owned(result(builder::spawnfd_builder_run(builder.as_raw_fd(), &raw mut args, size))?));
        Ok(args.pid)
    }
}
