// SPDX-License-Identifier: MIT OR Apache-2.0
//! `posix_spawn_file_actions_t` and its functions.
//!
//! The list has glibc's layout, with memory of malloc(3). A mark in the padding says that this library's functions made
//! the list. The functions hand a list without the mark to the implementation that initialised it.

use core::ffi::{c_char, c_int};
use core::slice;

use libc::mode_t;
use spawnfd_child::PosixAction;
use spawnfd_sys::{Errno, abi, call};

use super::{next, status};

/// `posix_spawn_file_actions_t`, with glibc's layout.
#[repr(C)]
#[allow(missing_debug_implementations)]
pub struct FileActions {
    capacity: c_int,
    count: c_int,
    actions: *mut PosixAction,
    padding: [c_int; 14],
    mark: [c_int; 2],
}

const _: () = assert!(size_of::<FileActions>() == size_of::<libc::posix_spawn_file_actions_t>());
const _: () = assert!(size_of::<PosixAction>() == 32);

/// "spawnfd1" in ASCII, on a machine with little-endian numbers.
const MARK: [c_int; 2] = [0x7761_7073, 0x3164_666e];

/// The list grows by this number of actions.
const GROWTH: c_int = 8;

impl FileActions {
    const EMPTY: FileActions =
        FileActions { capacity: 0, count: 0, actions: core::ptr::null_mut(), padding: [0; 14], mark: MARK };

    /// Whether another implementation added actions to this list. A list of zeros is empty in every implementation.
    pub(super) fn is_foreign(&self) -> bool {
        self.mark != MARK && !self.actions.is_null()
    }

    /// The actions, in order.
    pub(super) fn actions(&self) -> &[PosixAction] {
        if self.actions.is_null() {
            return &[];
        }
        // SAFETY: the list is ours (see `is_foreign`), and `add` keeps `count` actions there.
        unsafe { slice::from_raw_parts(self.actions, self.count as usize) }
    }

    fn add(&mut self, action: PosixAction) -> Result<(), Errno> {
        if self.count == self.capacity {
            let capacity = self.capacity + GROWTH;
            let size = capacity as usize * size_of::<PosixAction>();
            // SAFETY: the pointer is NULL or comes from realloc.
            let actions = unsafe { libc::realloc(self.actions.cast(), size) };
            if actions.is_null() {
                return Err(Errno::ENOMEM);
            }
            (self.capacity, self.actions, self.mark) = (capacity, actions.cast(), MARK);
        }
        // SAFETY: `count` is smaller than `capacity`, for which there is memory.
        unsafe { self.actions.add(self.count as usize).write(action) };
        self.count += 1;
        Ok(())
    }

    /// Adds an action with a copy of a path.
    ///
    /// # Safety
    /// `path` is a C string.
    unsafe fn add_path(
        &mut self,
        path: *const c_char,
        action: impl FnOnce(*const c_char) -> PosixAction,
    ) -> Result<(), Errno> {
        // SAFETY: the caller guarantees the string.
        let copy = unsafe { libc::strdup(path) };
        if copy.is_null() {
            return Err(Errno::ENOMEM);
        }
        // SAFETY: strdup returned the pointer, and the list has no copy of it after a failure.
        self.add(action(copy)).inspect_err(|_| unsafe { libc::free(copy.cast()) })
    }
}

/// Checks that a process of the caller's limits could have this descriptor number.
///
/// # Errors
/// EBADF: the number is negative, or is not below RLIMIT_NOFILE.
fn check_number(fd: c_int) -> Result<(), Errno> {
    let limit = call::limit(abi::RLIMIT_NOFILE).map_or(u64::MAX, |limit| limit.rlim_cur);
    if fd >= 0 && (fd as u64) < limit { Ok(()) } else { Err(Errno::EBADF) }
}

/// posix_spawn_file_actions_init(3).
///
/// # Safety
/// `actions` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_spawn_file_actions_init(actions: *mut FileActions) -> c_int {
    // SAFETY: the caller guarantees the pointer.
    unsafe { actions.write(FileActions::EMPTY) };
    0
}

/// posix_spawn_file_actions_destroy(3).
///
/// # Safety
/// `actions` points to an initialised list.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_spawn_file_actions_destroy(actions: *mut FileActions) -> c_int {
    // SAFETY: the caller guarantees the pointer.
    let list = unsafe { &mut *actions };
    if list.is_foreign() {
        // SAFETY: the list belongs to that implementation.
        return unsafe { next::destroy(actions) };
    }
    for action in list.actions() {
        if let PosixAction::Open { path, .. } | PosixAction::Chdir { path } = *action {
            // SAFETY: strdup returned the path, and the list is its only owner.
            unsafe { libc::free(path.cast_mut().cast()) };
        }
    }
    // SAFETY: realloc returned the pointer, or it is NULL.
    unsafe { libc::free(list.actions.cast()) };
    *list = FileActions { mark: [0; 2], ..FileActions::EMPTY };
    0
}

/// Defines a function that adds an action.
macro_rules! adder {
    ($name:ident($($argument:ident: $type:ty),*), $next:ident, $add:expr) => {
        #[doc = concat!(stringify!($name), "(3).")]
        ///
        /// # Errors
        /// Returns EBADF for a number that no descriptor of this process can have, and ENOMEM.
        ///
        /// # Safety
        /// `list` points to an initialised list or to zeros. A path is a C string.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(list: *mut FileActions, $($argument: $type),*) -> c_int {
            // SAFETY: the caller guarantees the pointer.
            let actions = unsafe { &mut *list };
            if actions.is_foreign() {
                // SAFETY: the list belongs to that implementation.
                return unsafe { next::$next(list, $($argument),*) };
            }
            let add: fn(&mut FileActions, $($type),*) -> Result<(), Errno> = $add;
            status(add(actions, $($argument),*))
        }
    };
}

adder!(posix_spawn_file_actions_addclose(fd: c_int), addclose, |list, fd| {
    check_number(fd)?;
    list.add(PosixAction::Close { fd })
});
adder!(posix_spawn_file_actions_adddup2(from: c_int, to: c_int), adddup2, |list, from, to| {
    check_number(from)?;
    check_number(to)?;
    list.add(PosixAction::Dup2 { from, to })
});
adder!(
    posix_spawn_file_actions_addopen(fd: c_int, path: *const c_char, flags: c_int, mode: mode_t),
    addopen,
    |list, fd, path, flags, mode| {
        check_number(fd)?;
        // SAFETY: the caller of the exported function guarantees the path.
        unsafe { list.add_path(path, |path| PosixAction::Open { fd, path, flags, mode }) }
    }
);
adder!(posix_spawn_file_actions_addchdir_np(path: *const c_char), addchdir_np, |list, path| {
    // SAFETY: the caller of the exported function guarantees the path.
    unsafe { list.add_path(path, |path| PosixAction::Chdir { path }) }
});
// glibc does not check this number.
adder!(posix_spawn_file_actions_addfchdir_np(fd: c_int), addfchdir_np, |list, fd| {
    list.add(PosixAction::Fchdir { fd })
});
adder!(posix_spawn_file_actions_addclosefrom_np(first: c_int), addclosefrom_np, |list, first| {
    check_number(first)?;
    list.add(PosixAction::Closefrom { first })
});
adder!(posix_spawn_file_actions_addtcsetpgrp_np(terminal: c_int), addtcsetpgrp_np, |list, terminal| {
    check_number(terminal)?;
    list.add(PosixAction::Tcsetpgrp { terminal })
});
