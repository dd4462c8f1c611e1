// SPDX-License-Identifier: MIT OR Apache-2.0
//! The mappings of a launch: a child's stack, the words in which the child reports, and a page that detects a fork.

use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use linux_raw_sys::general as abi;

use crate::errno::Errno;
use crate::{RawFd, arch};

/// The size of a page. On aarch64, the largest of the three sizes that a kernel may have.
const PAGE: usize = if cfg!(target_arch = "aarch64") { 65536 } else { 4096 };

/// The descriptor number that mmap(2) gets for an anonymous mapping.
const ANONYMOUS: RawFd = -1;

/// Maps memory for reading and writing.
fn map(size: usize, flags: u32, file: RawFd) -> Result<*mut u8, Errno> {
    let flags = if file == ANONYMOUS { flags | abi::MAP_ANONYMOUS } else { flags };
    let args = [0, size, (abi::PROT_READ | abi::PROT_WRITE) as usize, flags as usize, file as usize, 0];
    // SAFETY: the kernel chooses the address, so a new mapping overlaps no other memory.
    Errno::check(unsafe { arch::syscall(abi::__NR_mmap, args) }).map(|address| address as *mut u8)
}

/// Unmaps a mapping of [`map`].
///
/// # Safety
/// No code may use the mapping any more.
unsafe fn unmap(address: *mut u8, size: usize) {
    // SAFETY: the caller guarantees that no code uses the mapping.
    unsafe { arch::syscall(abi::__NR_munmap, [address as usize, size, 0, 0, 0, 0]) };
}

/// A stack for one child at a time, with a guard page below it.
#[derive(Debug)]
pub struct Stack {
    guard: *mut u8,
}

// SAFETY: this value owns the mapping, which is plain memory.
unsafe impl Send for Stack {}

impl Stack {
    /// The number of usable bytes. The fallback that lists /proc/self/fd uses most: a buffer of 2
    /// KiB and a few frames.
    pub const SIZE: usize = 64 << 10;

    /// Maps a stack.
    ///
    /// # Errors
    /// ENOMEM: no memory or too many mappings.
    pub fn new() -> Result<Stack, Errno> {
        let flags = abi::MAP_PRIVATE | abi::MAP_STACK | abi::MAP_NORESERVE;
        let guard = map(PAGE + Self::SIZE, flags, ANONYMOUS)?;
        let stack = Stack { guard };
        let args = [guard as usize, PAGE, abi::PROT_NONE as usize, 0, 0, 0];
        // SAFETY: the page belongs to the new mapping, which no code uses yet.
        Errno::check(unsafe { arch::syscall(abi::__NR_mprotect, args) })?;
        Ok(stack)
    }

    /// Returns the stack's address, as [`from_address`](Stack::from_address) expects it. Does not unmap the stack.
    pub fn into_address(self) -> usize {
        core::mem::ManuallyDrop::new(self).guard as usize
    }

    /// Takes over a stack.
    ///
    /// # Safety
    /// The address comes from [`into_address`](Stack::into_address), and no other code uses it.
    pub unsafe fn from_address(address: usize) -> Stack {
        Stack { guard: address as *mut u8 }
    }

    pub(crate) fn bottom(&self) -> *mut u8 {
        self.guard.wrapping_add(PAGE)
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: no child runs on a stack that its owner can drop: the launch that used the stack has returned.
        unsafe { unmap(self.guard, PAGE + Self::SIZE) };
    }
}

/// A shared page with `N` words, which processes without other shared memory can read and write.
#[derive(Debug)]
pub struct SharedWords<const N: usize = 4> {
    words: *mut [AtomicU64; N],
}

// SAFETY: all access goes through an atomic.
unsafe impl<const N: usize> Send for SharedWords<N> {}
// SAFETY: threads share only atomics.
unsafe impl<const N: usize> Sync for SharedWords<N> {}

impl<const N: usize> SharedWords<N> {
    const FITS: () = assert!(N * size_of::<AtomicU64>() <= PAGE);

    /// Maps a page for the words, which begin as 0.
    ///
    /// # Errors
    /// ENOMEM: no memory or too many mappings.
    pub fn new() -> Result<SharedWords<N>, Errno> {
        const { Self::FITS };
        let page = map(PAGE, abi::MAP_SHARED, ANONYMOUS)?;
        Ok(SharedWords { words: page.cast() })
    }

    /// Maps the words at the beginning of a file that other processes map too.
    ///
    /// The kernel maps the page in advance (MAP_POPULATE), so the first access causes no page fault.
    ///
    /// # Errors
    /// EINVAL: the file is shorter than the words. ENOMEM, EACCES, EBADF: as mmap(2).
    pub fn of(file: RawFd) -> Result<SharedWords<N>, Errno> {
        const { Self::FITS };
        if crate::call::size(file)? < size_of::<[AtomicU64; N]>() as u64 {
            return Err(Errno::EINVAL);
        }
        let page = map(PAGE, abi::MAP_SHARED | abi::MAP_POPULATE, file)?;
        Ok(SharedWords { words: page.cast() })
    }

    /// The shared words.
    pub fn get(&self) -> &[AtomicU64; N] {
        // SAFETY: the page is mapped, aligned and zeroed, and lives as long as `self`.
        unsafe { &*self.words }
    }

    /// The two halves of word `I`, which no code may use as a whole.
    pub fn halves<const I: usize>(&self) -> &[AtomicU32; 2] {
        const { assert!(I < N) };
        // SAFETY: the page is mapped, aligned and zeroed, and lives as long as `self`. Word `I` is in the page.
        unsafe { &*self.words.cast::<[AtomicU32; 2]>().add(I) }
    }

    /// Wakes all threads, in any process, that wait for the first word to change.
    #[doc(alias = "futex")]
    pub fn wake(&self) {
        let args = [self.words as usize, abi::FUTEX_WAKE as usize, i32::MAX as usize, 0, 0, 0];
        // SAFETY: FUTEX_WAKE only looks up the address; it writes to no memory.
        unsafe { arch::syscall(abi::__NR_futex, args) };
    }

    /// Waits at most `timeout` until another thread calls `wake`. Returns at once if the first word
    /// differs from `value`.
    #[doc(alias = "futex")]
    pub fn wait(&self, value: u64, timeout: core::time::Duration) {
        let timeout = abi::__kernel_timespec {
            tv_sec: timeout.as_secs().min(i64::MAX as u64) as i64,
            tv_nsec: timeout.subsec_nanos().into(),
        };
        // A futex has 32 bits. On a little-endian machine, the half at the word's address is the
        // low half. Small counters change this half.
        let value = value as u32 as usize;
        let args = [self.words as usize, abi::FUTEX_WAIT as usize, value, core::ptr::from_ref(&timeout) as usize, 0, 0];
        // SAFETY: the kernel reads the word and the timeout.
        unsafe { arch::syscall(abi::__NR_futex, args) };
    }
}

impl<const N: usize> Drop for SharedWords<N> {
    fn drop(&mut self) {
        // SAFETY: `get` borrows from `self`, so no reader is left. A child that could write has exec'd or exited.
        unsafe { unmap(self.words.cast(), PAGE) };
    }
}

/// Words of this process that the kernel sets to 0 in a forked child (MADV_WIPEONFORK).
///
/// # References
/// madvise(2), MADV_WIPEONFORK, Linux 4.14.
fn wiped_on_fork() -> Result<&'static [AtomicU64; 3], Errno> {
    static WORDS: AtomicPtr<[AtomicU64; 3]> = AtomicPtr::new(core::ptr::null_mut());

    let mut words = WORDS.load(Ordering::Acquire);
    if words.is_null() {
        let page = map(PAGE, abi::MAP_PRIVATE, ANONYMOUS)?;
        // SAFETY: the advice affects only the contents of our own page in a forked child.
        let advised =
            unsafe { arch::syscall(abi::__NR_madvise, [page as usize, PAGE, abi::MADV_WIPEONFORK as usize, 0, 0, 0]) };
        if let Err(errno) = Errno::check(advised) {
            // SAFETY: the page is not published, so no other code uses it.
            unsafe { unmap(page, PAGE) };
            return Err(errno);
        }
        match WORDS.compare_exchange(core::ptr::null_mut(), page.cast(), Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => words = page.cast(),
            Err(theirs) => {
                // SAFETY: another thread has published its page first, so no other code uses this one.
                unsafe { unmap(page, PAGE) };
                words = theirs;
            }
        }
    }
    // SAFETY: a published page stays mapped, and all code uses it only as these atomics.
    Ok(unsafe { &*words })
}

/// Returns the word, after it has set the word to the value if the word was 0.
fn initialised(word: &AtomicU64, value: impl FnOnce() -> Result<u64, Errno>) -> Result<u64, Errno> {
    match word.load(Ordering::Acquire) {
        0 => {
            let value = value()?;
            Ok(word.compare_exchange(0, value, Ordering::AcqRel, Ordering::Acquire).err().unwrap_or(value))
        }
        found => Ok(found),
    }
}

/// A number that differs between a process and the processes forked from it, without a fork handler.
///
/// The number is in memory that the kernel zeroes in a forked child. The child then chooses a new number. After the first
/// call, a call of the function takes two loads.
///
/// # Errors
/// ENOMEM: the page could not be mapped.
pub fn fork_generation() -> Result<u64, Errno> {
    static NEXT: AtomicU64 = AtomicU64::new(1);

    let [generation, ..] = wiped_on_fork()?;
    initialised(generation, || Ok(NEXT.fetch_add(1, Ordering::Relaxed)))
}

/// A random number of 128 bits that only this process knows. A forked child does not inherit it.
///
/// # Errors
/// ENOMEM: the page could not be mapped. ENOSYS, EPERM: a filter refused getrandom(2).
pub fn process_secret() -> Result<[u64; 2], Errno> {
    let [_, low, high] = wiped_on_fork()?;
    Ok([initialised(low, crate::call::random)?, initialised(high, crate::call::random)?])
}
