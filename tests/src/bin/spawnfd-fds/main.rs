// SPDX-License-Identifier: MIT OR Apache-2.0
//! Prints its open descriptors: a line of number, device and inode for each. Tests that start thousands of programs
//! use it in place of the slower spawnfd-oracle, which prints the whole state of its process.
//!
//! It has no std runtime, because that runtime opens /dev/null on closed standard descriptors.

#![no_main]

use std::fmt::Write;
use std::mem::MaybeUninit;

#[unsafe(no_mangle)]
pub extern "C" fn main(_argc: libc::c_int, _argv: *const *const libc::c_char) -> libc::c_int {
    let mut numbers = Vec::new();
    // SAFETY: only this function uses the directory stream, and it reads each entry before the next readdir.
    let listing = unsafe {
        let directory = libc::opendir(c"/proc/self/fd".as_ptr());
        if directory.is_null() {
            return 1;
        }
        while let Some(entry) = libc::readdir(directory).as_ref() {
            let name = std::ffi::CStr::from_ptr(entry.d_name.as_ptr());
            numbers.extend(name.to_str().ok().and_then(|name| name.parse::<libc::c_int>().ok()));
        }
        let own = libc::dirfd(directory);
        libc::closedir(directory);
        own
    };
    numbers.retain(|number| *number != listing);
    let mut text = String::new();
    for number in numbers {
        let mut stat = MaybeUninit::<libc::stat>::zeroed();
        // SAFETY: fstat stores one `stat`. If fstat fails, the zeroed struct is a valid `stat`.
        let stat = unsafe {
            libc::fstat(number, stat.as_mut_ptr());
            stat.assume_init()
        };
        writeln!(text, "{number} {} {}", stat.st_dev, stat.st_ino).ok();
    }
    // SAFETY: the buffer is valid for its length. The text fits a pipe's buffer.
    let written = unsafe { libc::write(1, text.as_ptr().cast(), text.len()) };
    if written == text.len() as isize { 0 } else { 1 }
}
