// SPDX-License-Identifier: MIT OR Apache-2.0
//! The mappings a launch stands on: a child's stack, the words it reports through, and the mark that tells a
//! process it is the copy of another.

use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use linux_raw_sys::general as abi;

use crate::arch;
use crate::errno::Errno;

const PAGE: usize = 4096;

fn map(size: usize, protection: u32, flags: u32) -> Result<*mut u8, Errno> {
    let args = [0, size, protection as usize, (flags | abi::MAP_ANONYMOUS) as usize, usize::MAX, 0];
    // SAFETY: a new anonymous mapping, at a place of the kernel's choice, disturbs nothing.
    Errno::check(unsafe { arch::syscall(abi::__NR_mmap, args) }).map(|address| address as *mut u8)
}

/// Unmaps what [`map`] gave.
///
/// # Safety
/// Nothing may use the mapping any more.
unsafe fn unmap(address: *mut u8, size: usize) {
    // SAFETY: the caller gives the mapping up.
    unsafe { arch::syscall(abi::__NR_munmap, [address as usize, size, 0, 0, 0, 0]) };
}

/// A stack for one child at a time, with a guard page below it.
#[derive(Debug)]
pub struct Stack {
    guard: *mut u8,
}

// SAFETY: the mapping belongs to this value; it is plain memory.
unsafe impl Send for Stack {}

impl Stack {
    /// Usable bytes. The deepest user is the fallback that lists /proc/self/fd: a buffer of 2 KiB and a few frames.
    pub const SIZE: usize = 64 << 10;

    /// Maps a stack.
    ///
    /// # Errors
    /// ENOMEM: no memory or too many mappings.
    pub fn new() -> Result<Stack, Errno> {
        let flags = abi::MAP_PRIVATE | abi::MAP_STACK | abi::MAP_NORESERVE;
        let guard = map(PAGE + Self::SIZE, abi::PROT_READ | abi::PROT_WRITE, flags)?;
        let stack = Stack { guard };
        let args = [guard as usize, PAGE, abi::PROT_NONE as usize, 0, 0, 0];
        // SAFETY: the page belongs to the mapping just made and nothing uses it yet.
        Errno::check(unsafe { arch::syscall(abi::__NR_mprotect, args) })?;
        Ok(stack)
    }

    pub(crate) fn bottom(&self) -> *mut u8 {
        self.guard.wrapping_add(PAGE)
    }

    pub(crate) fn size(&self) -> usize {
        Self::SIZE
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: no child runs on a stack whose owner can drop it: the launch that lent it has returned.
        unsafe { unmap(self.guard, PAGE + Self::SIZE) };
    }
}

/// A page of words that two processes can read and write, whether or not they share memory otherwise; `N` of them are used.
#[derive(Debug)]
pub struct SharedWords<const N: usize = 4> {
    words: *mut [AtomicU64; N],
}

// SAFETY: all access goes through an atomic.
unsafe impl<const N: usize> Send for SharedWords<N> {}
// SAFETY: as above.
unsafe impl<const N: usize> Sync for SharedWords<N> {}

impl<const N: usize> SharedWords<N> {
    const FITS: () = assert!(N * size_of::<AtomicU64>() <= PAGE);

    /// Maps a page for the words, which begin as 0.
    ///
    /// # Errors
    /// ENOMEM: no memory or too many mappings.
    pub fn new() -> Result<SharedWords<N>, Errno> {
        const { Self::FITS };
        let page = map(PAGE, abi::PROT_READ | abi::PROT_WRITE, abi::MAP_SHARED)?;
        Ok(SharedWords { words: page.cast() })
    }

    /// The same at the beginning of a file that others map, too. The page is there at once: its first use is no page fault.
    ///
    /// # Errors
    /// EINVAL: the file is not as long as the words. ENOMEM, EACCES, EBADF: mmap(2)'s.
    pub fn of(file: crate::RawFd) -> Result<SharedWords<N>, Errno> {
        const { Self::FITS };
        if crate::call::size(file)? < size_of::<[AtomicU64; N]>() as u64 {
            return Err(Errno::EINVAL);
        }
        let flags = abi::MAP_SHARED | abi::MAP_POPULATE;
        let args = [0, PAGE, (abi::PROT_READ | abi::PROT_WRITE) as usize, flags as usize, file as usize, 0];
        // SAFETY: a new mapping, at a place of the kernel's choice, disturbs nothing.
        let page = Errno::check(unsafe { arch::syscall(abi::__NR_mmap, args) })?;
        Ok(SharedWords { words: page as *mut _ })
    }

    /// The words.
    pub fn get(&self) -> &[AtomicU64; N] {
        // SAFETY: the page is mapped, aligned and zeroed, and lives as long as `self`.
        unsafe { &*self.words }
    }

    /// Wakes all that wait for the first word to change, in whichever process.
    #[doc(alias = "futex")]
    pub fn wake(&self) {
        let args = [self.words as usize, abi::FUTEX_WAKE as usize, i32::MAX as usize, 0, 0, 0];
        // SAFETY: the kernel looks the address up and wakes; it touches no memory.
        unsafe { arch::syscall(abi::__NR_futex, args) };
    }

    /// Waits until the first word is woken, or for so long; not at all if the word is another than `value`.
    #[doc(alias = "futex")]
    pub fn wait(&self, value: u64, timeout: core::time::Duration) {
        let timeout = abi::__kernel_timespec {
            tv_sec: timeout.as_secs().min(i64::MAX as u64) as i64,
            tv_nsec: timeout.subsec_nanos().into(),
        };
        // The half that comes first on this machine: it holds all of a small change.
        let value = value as u32 as usize;
        let args = [self.words as usize, abi::FUTEX_WAIT as usize, value, core::ptr::from_ref(&timeout) as usize, 0, 0];
        // SAFETY: the kernel reads the word and the timeout.
        unsafe { arch::syscall(abi::__NR_futex, args) };
    }
}

impl<const N: usize> Drop for SharedWords<N> {
    fn drop(&mut self) {
        // SAFETY: `get` borrows from self, so nobody reads any more; a child that could write has exec'd or exited.
        unsafe { unmap(self.words.cast(), PAGE) };
    }
}

/// A number that differs between a process and the processes forked from it, without a fork handler.
///
/// It stands in a page that the kernel empties in a fork's child (MADV_WIPEONFORK), and is chosen anew there.
/// Costs two loads once set up.
///
/// # Errors
/// ENOMEM: the page could not be mapped.
///
/// # References
/// madvise(2), MADV_WIPEONFORK, Linux 4.14.
pub fn fork_generation() -> Result<u64, Errno> {
    static MARK: AtomicPtr<AtomicU64> = AtomicPtr::new(core::ptr::null_mut());
    static NEXT: AtomicU64 = AtomicU64::new(1);

    let mut mark = MARK.load(Ordering::Acquire);
    if mark.is_null() {
        let page = map(PAGE, abi::PROT_READ | abi::PROT_WRITE, abi::MAP_PRIVATE)?;
        // SAFETY: the advice changes what a fork's child sees of this page of ours, nothing else.
        let advised =
            unsafe { arch::syscall(abi::__NR_madvise, [page as usize, PAGE, abi::MADV_WIPEONFORK as usize, 0, 0, 0]) };
        if let Err(errno) = Errno::check(advised) {
            // SAFETY: nobody has seen the page.
            unsafe { unmap(page, PAGE) };
            return Err(errno);
        }
        match MARK.compare_exchange(core::ptr::null_mut(), page.cast(), Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => mark = page.cast(),
            Err(theirs) => {
                // SAFETY: another thread was first; nobody has seen this page.
                unsafe { unmap(page, PAGE) };
                mark = theirs;
            }
        }
    }
    // SAFETY: once published the page stays mapped and is only used as this atomic.
    let mark = unsafe { &*mark };
    let generation = mark.load(Ordering::Acquire);
    if generation != 0 {
        return Ok(generation);
    }
    let fresh = NEXT.fetch_add(1, Ordering::Relaxed);
    match mark.compare_exchange(0, fresh, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Ok(fresh),
        Err(theirs) => Ok(theirs),
    }
}
