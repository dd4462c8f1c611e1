// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies data from the caller's memory. An address has 64 bits, as in the kernel's structs. A NULL address is EFAULT.

use std::ffi::{CString, c_char};

use spawnfd_sys::{Errno, abi, call};

/// The maximum size of one argument with its NUL, as in execve(2).
pub(crate) const MAX_STRING: usize = 128 << 10;
/// The maximum size of a path with its NUL.
pub(crate) const MAX_PATH: usize = 4096;

/// The pointer to an address.
fn pointer<T>(address: u64) -> Result<*const T, Errno> {
    let pointer = address as usize as *const T;
    if pointer.is_null() { Err(Errno::EFAULT) } else { Ok(pointer) }
}

/// Copies a value.
///
/// # Errors
/// EFAULT: the address is NULL.
///
/// # Safety
/// The address is NULL or the address of a `T`, of any alignment.
pub unsafe fn value<T: Copy>(address: u64) -> Result<T, Errno> {
    let pointer = pointer::<T>(address)?;
    // SAFETY: the caller guarantees the value.
    Ok(unsafe { pointer.read_unaligned() })
}

/// Copies a struct that later versions of its interface can extend. `size` is its size for the caller.
///
/// # Errors
/// EINVAL: the size is less than that of `T`. E2BIG: the size is more than that of a page, or a byte after `T` is not
/// 0. EFAULT: the address is NULL.
///
/// # Safety
/// The address is NULL or the address of `size` bytes, which start with a `T`.
pub unsafe fn extensible<T: Copy>(address: u64, size: usize) -> Result<T, Errno> {
    check_size::<T>(size, page_size())?;
    // SAFETY: the caller guarantees `size` bytes, which are at least those of the struct.
    let (known, all) = unsafe { (value(address)?, bytes(address, size)?) };
    if all.iter().skip(size_of::<T>()).any(|&byte| byte != 0) { Err(Errno::E2BIG) } else { Ok(known) }
}

/// Checks the size that a caller gives for a struct.
///
/// # Errors
/// EINVAL: the size is less than that of `T`. E2BIG: the size is more than `most`.
pub fn check_size<T>(size: usize, most: usize) -> Result<(), Errno> {
    match size {
        _ if size < size_of::<T>() => Err(Errno::EINVAL),
        _ if size > most => Err(Errno::E2BIG),
        _ => Ok(()),
    }
}

/// The size of a memory page, the largest size of an extensible struct.
pub fn page_size() -> usize {
    // SAFETY: sysconf has no requirements.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// Copies bytes.
///
/// # Errors
/// EFAULT: the address is NULL.
///
/// # Safety
/// The address is NULL or the address of `length` bytes.
pub unsafe fn bytes(address: u64, length: usize) -> Result<Vec<u8>, Errno> {
    let pointer = pointer::<u8>(address)?;
    // SAFETY: the caller guarantees the bytes.
    Ok(unsafe { std::slice::from_raw_parts(pointer, length) }.to_vec())
}

/// Copies a string of at most `max` bytes, its NUL included.
///
/// # Errors
/// EFAULT: the address is NULL. `too_long`: the string is longer.
///
/// # Safety
/// The address is NULL or the address of a C string.
pub unsafe fn string(address: u64, max: usize, too_long: Errno) -> Result<CString, Errno> {
    let pointer = pointer::<c_char>(address)?;
    // SAFETY: the caller guarantees the string. strnlen reads nothing behind its NUL.
    let length = unsafe { libc::strnlen(pointer, max) };
    if length == max {
        return Err(too_long);
    }
    // SAFETY: the string has at least `length` bytes.
    let copy = unsafe { bytes(address, length) }?;
    // Another thread may have changed the string, so that it now has a NUL in the middle.
    CString::new(copy).map_err(|_| Errno::EFAULT)
}

/// Copies strings up to a NULL pointer, as many as execve(2) accepts with the caller's limits.
///
/// # Errors
/// EFAULT: the address is NULL. E2BIG: the strings are too long.
///
/// # Safety
/// The address is NULL, or the address of pointers to C strings. The last pointer is NULL.
pub unsafe fn strings(address: u64) -> Result<Vec<CString>, Errno> {
    const POINTER: usize = size_of::<*const c_char>();
    let stack = call::limit(abi::RLIMIT_STACK).map_or(u64::MAX, |limit| limit.rlim_cur);
    let limit = (stack / 4).clamp(128 << 10, 6 << 20) as usize;
    let mut strings: Vec<CString> = Vec::new();
    let mut size = 0;
    if address == 0 {
        return Err(Errno::EFAULT);
    }
    loop {
        // SAFETY: no pointer before this one was NULL, so this one belongs to the caller's list.
        let pointer: u64 = unsafe { value::<usize>(address + (strings.len() * POINTER) as u64) }? as u64;
        if pointer == 0 {
            return Ok(strings);
        }
        // SAFETY: the caller guarantees the string.
        let copy = unsafe { string(pointer, MAX_STRING, Errno::E2BIG) }?;
        size += copy.as_bytes_with_nul().len() + POINTER;
        if size > limit {
            return Err(Errno::E2BIG);
        }
        strings.push(copy);
    }
}
