// SPDX-License-Identifier: MIT OR Apache-2.0
//! The struct for errors, and the conversions at the boundary between C and Rust.

use core::ffi::{CStr, c_char};
use core::mem::size_of;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use spawnfd::internal::PerProcess;

use crate::errno;

/// The size of the first version of `struct spawnfd_error`.
pub const SPAWNFD_ERROR_SIZE_VER0: u32 = 512;

/// The cause of a failure. Initialize it with `SPAWNFD_ERROR_INIT`. A call that succeeds does not change it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct spawnfd_error {
    /// `sizeof(struct spawnfd_error)`, which the caller sets.
    pub size: u32,
    /// The errno.
    pub error: i32,
    /// The index of the action that failed, counted from 0; -1 if no action failed.
    pub action: i32,
    /// The stage that failed, such as `exec`; a string.
    pub stage: [c_char; 20],
    /// The failure in the user's terms, then stage, system call and errno; a string of one line in UTF-8.
    pub message: [c_char; 480],
}

const _: () = assert!(size_of::<spawnfd_error>() == SPAWNFD_ERROR_SIZE_VER0 as usize);

/// Why a call fails.
#[derive(Debug)]
pub(super) struct Failed {
    errno: i32,
    action: i32,
    stage: &'static str,
    message: String,
}

/// The result of a function's body.
pub(super) type Answer<T> = Result<T, Failed>;

impl Failed {
    pub(super) fn new(errno: i32, message: impl Into<String>) -> Failed {
        Failed { errno, action: -1, stage: "", message: message.into() }
    }

    pub(super) fn invalid(message: impl Into<String>) -> Failed {
        Failed { stage: "validate", ..Failed::new(libc::EINVAL, message) }
    }

    pub(super) fn system(call: &str, error: &std::io::Error) -> Failed {
        Failed::new(error.raw_os_error().unwrap_or(libc::EIO), format!("{call}: {error}"))
    }
}

impl From<spawnfd::Error> for Failed {
    fn from(error: spawnfd::Error) -> Failed {
        let action = error.action().and_then(|index| i32::try_from(index).ok()).unwrap_or(-1);
        let errno = error.errno().raw();
        // A library error without an errno must not look like success.
        let errno = if errno > 0 { errno } else { libc::EIO };
        Failed { errno, action, stage: error.stage().name(), message: error.to_string() }
    }
}

/// Copies text as a string, cut between characters to fit.
fn copy(text: &str, to: &mut [c_char]) {
    let longest = text.len().min(to.len() - 1);
    let end = (0..=longest).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
    to.fill(0);
    for (to, byte) in to.iter_mut().zip(&text.as_bytes()[..end]) {
        *to = *byte as c_char;
    }
}

/// Runs the body of a function. After a failure, fills `error`, sets errno and returns `failure`.
///
/// # Safety
/// `error` is NULL, or points to a struct whose member `size` has its size in bytes.
pub(super) unsafe fn answer<T>(error: *mut spawnfd_error, failure: T, body: impl FnOnce() -> Answer<T>) -> T {
    // SAFETY: the caller guarantees the pointer.
    let size = if error.is_null() { SPAWNFD_ERROR_SIZE_VER0 } else { unsafe { (*error).size } };
    if size < SPAWNFD_ERROR_SIZE_VER0 {
        errno::set(libc::EINVAL);
        return failure;
    }
    // An unwinding panic must not cross the boundary to C. The panic's message is on standard error already.
    let failed = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => return value,
        Ok(Err(failed)) => failed,
        Err(payload) => {
            let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_default();
            std::mem::forget(payload);
            Failed::new(libc::ENOTRECOVERABLE, format!("a defect of spawnfd: {text}"))
        }
    };
    if !error.is_null() {
        let mut filled =
            spawnfd_error { size, error: failed.errno, action: failed.action, stage: [0; 20], message: [0; 480] };
        copy(failed.stage, &mut filled.stage);
        copy(&failed.message, &mut filled.message);
        // SAFETY: the struct of the caller has at least the members of this version. Members of later versions become 0.
        unsafe {
            error.write(filled);
            error
                .cast::<u8>()
                .add(size_of::<spawnfd_error>())
                .write_bytes(0, size as usize - size_of::<spawnfd_error>());
        }
    }
    let errno = failed.errno;
    drop(failed);
    errno::set(errno);
    failure
}

/// The object behind a pointer.
///
/// # Safety
/// `pointer` is NULL or valid for `'a`, and no thread changes the object meanwhile.
pub(super) unsafe fn object<'a, T>(pointer: *const T, name: &str) -> Answer<&'a T> {
    // SAFETY: the caller guarantees the pointer.
    unsafe { pointer.as_ref() }.ok_or_else(|| Failed::invalid(format!("{name} must not be NULL")))
}

/// The string behind a pointer, which may be any bytes.
///
/// # Safety
/// `pointer` is NULL, or a string that is valid for `'a`.
pub(super) unsafe fn string<'a>(pointer: *const c_char, name: &str) -> Answer<&'a OsStr> {
    // SAFETY: the caller guarantees the pointer.
    unsafe { optional(pointer) }.ok_or_else(|| Failed::invalid(format!("{name} must not be NULL")))
}

/// The string behind a pointer; `None` for NULL.
///
/// # Safety
/// `pointer` is NULL, or a string that is valid for `'a`.
pub(super) unsafe fn optional<'a>(pointer: *const c_char) -> Option<&'a OsStr> {
    // SAFETY: the caller guarantees the pointer.
    (!pointer.is_null()).then(|| OsStr::from_bytes(unsafe { CStr::from_ptr(pointer) }.to_bytes()))
}

/// The string behind a pointer, in UTF-8.
///
/// # Safety
/// `pointer` is NULL, or a string that is valid for `'a`.
pub(super) unsafe fn name<'a>(pointer: *const c_char, name: &str) -> Answer<&'a str> {
    // SAFETY: the caller guarantees the pointer.
    let text = unsafe { string(pointer, name) }?;
    text.to_str().ok_or_else(|| Failed::invalid(format!("{name} must be valid UTF-8, got {text:?}")))
}

/// The strings of a list that ends with NULL.
///
/// # Safety
/// `pointer` is NULL, or a list of strings that are valid for `'a`, and NULL at its end.
pub(super) unsafe fn strings<'a>(pointer: *const *const c_char, name: &str) -> Answer<Vec<&'a OsStr>> {
    if pointer.is_null() {
        return Err(Failed::invalid(format!("{name} must not be NULL")));
    }
    let mut all = Vec::new();
    // SAFETY: the caller guarantees the list and its end.
    while let Some(string) = unsafe { optional(*pointer.add(all.len())) } {
        all.push(string);
    }
    Ok(all)
}

/// The bytes at a pointer.
///
/// # Safety
/// `pointer` is valid for reads of `length` bytes for `'a`, or NULL.
pub(super) unsafe fn bytes<'a>(pointer: *const core::ffi::c_void, length: usize) -> Answer<&'a [u8]> {
    match (pointer.is_null(), length) {
        (true, 0) => Ok(&[]),
        (true, _) => Err(Failed::invalid("the data must not be NULL")),
        // SAFETY: the caller guarantees the bytes.
        (false, _) => Ok(unsafe { core::slice::from_raw_parts(pointer.cast(), length) }),
    }
}

/// A time in milliseconds; a negative one has no end.
pub(super) fn milliseconds(time: i32) -> Duration {
    u64::try_from(time).map_or(Duration::MAX, Duration::from_millis)
}

/// The process that has created an object.
#[derive(Debug)]
pub(super) struct Owner(PerProcess<()>);

impl Owner {
    pub(super) fn this_process() -> Owner {
        Owner(PerProcess::for_this_process((), || ()))
    }

    /// # Errors
    /// ECHILD: this process is a forked copy of the owner.
    pub(super) fn check(&self, object: &str) -> Answer<()> {
        if self.0.belongs_to_this_process() { Ok(()) } else { Err(forked(object)) }
    }
}

/// Frees an object. NULL, and the object of another process, have no effect.
///
/// # Safety
/// `object` is NULL, or a pointer of `Box::into_raw` that no thread uses.
pub(super) unsafe fn free<T>(object: *mut T, owner: impl FnOnce(&T) -> &Owner) {
    // SAFETY: the caller guarantees the pointer.
    unsafe {
        if object.as_ref().is_some_and(|object| owner(object).0.belongs_to_this_process()) {
            answer(std::ptr::null_mut(), (), || {
                drop(Box::from_raw(object));
                Ok(())
            });
        }
    }
}

/// The failure of a call in a forked process.
pub(super) fn forked(object: &str) -> Failed {
    Failed::new(libc::ECHILD, format!("a forked process cannot use this {object}: it belongs to the parent"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new_error() -> spawnfd_error {
        spawnfd_error { size: SPAWNFD_ERROR_SIZE_VER0, error: 0, action: -1, stage: [0; 20], message: [0; 480] }
    }

    fn text(field: &[c_char]) -> &str {
        // SAFETY: the library ends each field with a NUL character.
        unsafe { CStr::from_ptr(field.as_ptr()) }.to_str().expect("UTF-8")
    }

    fn failure(error: &mut spawnfd_error, body: impl FnOnce() -> Answer<i32>) -> (i32, Option<i32>) {
        // SAFETY: the struct has its size.
        let returned = unsafe { answer(error, -1, body) };
        (returned, std::io::Error::last_os_error().raw_os_error())
    }

    #[test]
    fn a_long_message_is_cut_between_characters() {
        let mut error = new_error();
        for (message, expected) in
            [("ä".repeat(300), 478), (format!("x{}", "ä".repeat(300)), 479), ("x".repeat(479), 479)]
        {
            let failed = failure(&mut error, || Err(Failed::invalid(&*message)));
            assert_eq!(failed, (-1, Some(libc::EINVAL)));
            assert_eq!((text(&error.message), text(&error.stage)), (&message[..expected], "validate"));
        }
    }

    #[test]
    fn a_panic_is_an_error() {
        let mut error = new_error();
        assert_eq!(failure(&mut error, || panic!("number {}", 7)), (-1, Some(libc::ENOTRECOVERABLE)));
        assert_eq!(text(&error.message), "a defect of spawnfd: number 7");
    }

    #[test]
    fn a_struct_without_its_size_is_refused() {
        let mut error = spawnfd_error { size: SPAWNFD_ERROR_SIZE_VER0 - 1, ..new_error() };
        assert_eq!(failure(&mut error, || unreachable!()), (-1, Some(libc::EINVAL)));
        assert_eq!((error.error, text(&error.message)), (0, ""));
    }
}
