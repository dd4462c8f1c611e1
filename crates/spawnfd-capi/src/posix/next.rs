// SPDX-License-Identifier: MIT OR Apache-2.0
//! The functions of the next implementation in the search order of the dynamic linker: those of libc.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

use libc::{ENOSYS, RTLD_NEXT, mode_t};

use super::{Attributes, FileActions};

/// The version of posix_spawn and posix_spawnp that runs a file of unknown format by the shell.
const WITH_SHELL: Option<&CStr> = Some(c"GLIBC_2.2.5");

/// A function of libc.
struct Function {
    name: &'static CStr,
    /// `None`: the default version.
    version: Option<&'static CStr>,
    address: AtomicPtr<c_void>,
}

impl Function {
    /// Finds the function. The result is NULL if libc does not have it.
    fn find(&self) -> *mut c_void {
        let known = self.address.load(Ordering::Acquire);
        if !known.is_null() {
            return known;
        }
        // SAFETY: the name and the version are C strings.
        let found = unsafe {
            match self.version {
                None => libc::dlsym(RTLD_NEXT, self.name.as_ptr()),
                Some(version) => libc::dlvsym(RTLD_NEXT, self.name.as_ptr(), version.as_ptr()),
            }
        };
        self.address.store(found, Ordering::Release);
        found
    }
}

/// Defines functions that call the function of libc, or return ENOSYS if libc does not have it.
macro_rules! functions {
    (@version) => { None };
    (@version $version:ident) => { $version };
    ($($name:ident = $libc:literal $(@ $version:ident)? ($($argument:ident: $type:ty),*);)*) => {
        $(
            /// # Safety
            /// The requirements of the function of libc.
            pub(super) unsafe fn $name($($argument: $type),*) -> c_int {
                static FUNCTION: Function = Function {
                    name: $libc,
                    version: functions!(@version $($version)?),
                    address: AtomicPtr::new(core::ptr::null_mut()),
                };
                let address = FUNCTION.find();
                if address.is_null() {
                    return ENOSYS;
                }
                // SAFETY: the function of this name has this type.
                let function: unsafe extern "C" fn($($type),*) -> c_int = unsafe { core::mem::transmute(address) };
                // SAFETY: the caller keeps the function's requirements.
                unsafe { function($($argument),*) }
            }
        )*
    };
}

functions! {
    destroy = c"posix_spawn_file_actions_destroy"(list: *mut FileActions);
    addclose = c"posix_spawn_file_actions_addclose"(list: *mut FileActions, fd: c_int);
    adddup2 = c"posix_spawn_file_actions_adddup2"(list: *mut FileActions, from: c_int, to: c_int);
    addopen = c"posix_spawn_file_actions_addopen"(
        list: *mut FileActions, fd: c_int, path: *const c_char, flags: c_int, mode: mode_t
    );
    addchdir_np = c"posix_spawn_file_actions_addchdir_np"(list: *mut FileActions, path: *const c_char);
    addfchdir_np = c"posix_spawn_file_actions_addfchdir_np"(list: *mut FileActions, fd: c_int);
    addclosefrom_np = c"posix_spawn_file_actions_addclosefrom_np"(list: *mut FileActions, first: c_int);
    addtcsetpgrp_np = c"posix_spawn_file_actions_addtcsetpgrp_np"(list: *mut FileActions, terminal: c_int);
}

/// Defines functions with the arguments of posix_spawn.
macro_rules! spawn_functions {
    ($($name:ident = $libc:literal $(@ $version:ident)?;)*) => {
        functions! {
            $($name = $libc $(@ $version)? (
                to: *mut c_int, file: *const c_char, list: *const FileActions, attributes: *const Attributes,
                argv: *const *const c_char, envp: *const *const c_char
            );)*
        }
    };
}

spawn_functions! {
    posix_spawn = c"posix_spawn";
    posix_spawnp = c"posix_spawnp";
    posix_spawn_with_shell = c"posix_spawn" @ WITH_SHELL;
    posix_spawnp_with_shell = c"posix_spawnp" @ WITH_SHELL;
    pidfd_spawn = c"pidfd_spawn";
    pidfd_spawnp = c"pidfd_spawnp";
}
