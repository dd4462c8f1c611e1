// SPDX-License-Identifier: MIT OR Apache-2.0
//! Raw system calls. The libc wrappers do not show the kernel's view: some act on every thread, some hide signals,
//! and some return a cached result.

use std::ffi::CStr;

use syscalls::{Errno, Sysno, syscall};

/// A query of prctl(2) that returns its answer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Query {
    Dumpable = libc::PR_GET_DUMPABLE as isize,
    Securebits = libc::PR_GET_SECUREBITS as isize,
    NoNewPrivs = libc::PR_GET_NO_NEW_PRIVS as isize,
    Seccomp = libc::PR_GET_SECCOMP as isize,
    TimerSlack = libc::PR_GET_TIMERSLACK as isize,
    ThpDisable = libc::PR_GET_THP_DISABLE as isize,
    MceKill = libc::PR_MCE_KILL_GET as isize,
    Mdwe = 66,        // PR_GET_MDWE, Linux 6.3
    MemoryMerge = 68, // PR_GET_MEMORY_MERGE, Linux 6.4
    BoundingHas = libc::PR_CAPBSET_READ as isize,
    Speculation = 52, // PR_GET_SPECULATION_CTRL, which the crate libc has only for some processors
}

/// A query of prctl(2) that stores an int.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StoredQuery {
    ParentDeathSignal = libc::PR_GET_PDEATHSIG as isize,
    ChildSubreaper = libc::PR_GET_CHILD_SUBREAPER as isize,
    Tsc = libc::PR_GET_TSC as isize,
}

pub(crate) fn prctl_get(query: Query, arg: usize) -> Result<usize, Errno> {
    // SAFETY: every `Query` takes integers only and changes nothing.
    unsafe { syscall!(Sysno::prctl, query as usize, arg, 0, 0, 0) }
}

pub(crate) fn prctl_stored(query: StoredQuery) -> Result<i32, Errno> {
    let mut answer: libc::c_int = 0;
    // SAFETY: every `StoredQuery` stores one int at the address in its first argument, here that of `answer`.
    unsafe { syscall!(Sysno::prctl, query as usize, &raw mut answer, 0, 0, 0) }?;
    Ok(answer)
}

/// Returns whether a capability is in the calling thread's ambient set.
pub(crate) fn ambient_has(capability: usize) -> Result<bool, Errno> {
    let (option, is_set) = (libc::PR_CAP_AMBIENT as usize, libc::PR_CAP_AMBIENT_IS_SET as usize);
    // SAFETY: PR_CAP_AMBIENT_IS_SET takes integers only, and changes nothing.
    unsafe { syscall!(Sysno::prctl, option, is_set, capability, 0, 0) }.map(|set| set == 1)
}

/// The calling thread's name.
pub(crate) fn thread_name() -> Result<Vec<u8>, Errno> {
    let mut name = [0_u8; 16];
    // SAFETY: PR_GET_NAME stores at most 16 bytes, the last of them NUL.
    unsafe { syscall!(Sysno::prctl, libc::PR_GET_NAME as usize, name.as_mut_ptr(), 0, 0, 0) }?;
    Ok(CStr::from_bytes_until_nul(&name).map_or_else(|_| name.to_vec(), |name| name.to_bytes().to_vec()))
}

/// The kernel's `struct sigaction`. libc's has another layout and hides signals 32 and 33.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KernelSigaction {
    pub handler: usize,
    pub flags: libc::c_ulong,
    #[cfg(not(target_arch = "riscv64"))]
    pub restorer: usize,
    pub mask: u64,
}

pub(crate) fn sigaction_of(signal: i32) -> Result<KernelSigaction, Errno> {
    let mut action = KernelSigaction::default();
    // SAFETY: the call sets no action. It stores the present one in a struct of the kernel's layout, which has an
    // 8-byte mask.
    unsafe { syscall!(Sysno::rt_sigaction, signal, 0, &raw mut action, size_of::<u64>()) }?;
    Ok(action)
}

pub(crate) fn signal_mask() -> Result<u64, Errno> {
    let mut mask = 0_u64;
    // SAFETY: the call sets no mask. It stores the present one, which has 8 bytes.
    unsafe { syscall!(Sysno::rt_sigprocmask, libc::SIG_BLOCK, 0, &raw mut mask, size_of::<u64>()) }?;
    Ok(mask)
}

pub(crate) fn pending_signals() -> Result<u64, Errno> {
    let mut set = 0_u64;
    // SAFETY: rt_sigpending stores 8 bytes.
    unsafe { syscall!(Sysno::rt_sigpending, &raw mut set, size_of::<u64>()) }?;
    Ok(set)
}

/// The fields of `struct stat` that identify a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileId {
    pub device: u64,
    pub inode: u64,
    pub mode: u32,
}

pub(crate) fn fstat(fd: i32) -> Result<FileId, Errno> {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: libc's fstat writes one `struct stat`. If `fd` is not open, fstat fails with EBADF.
    if unsafe { libc::fstat(fd, stat.as_mut_ptr()) } != 0 {
        let error = std::io::Error::last_os_error();
        return Err(Errno::new(error.raw_os_error().unwrap_or(libc::EIO)));
    }
    // SAFETY: the struct holds integers only, and fstat has filled it.
    let stat = unsafe { stat.assume_init() };
    // The types of these fields differ between architectures.
    #[allow(clippy::unnecessary_cast)]
    Ok(FileId { device: stat.st_dev as u64, inode: stat.st_ino as u64, mode: stat.st_mode as u32 })
}

/// The result of fcntl(2) with the command F_GETFL or F_GETFD.
pub(crate) fn fcntl_get(fd: i32, command: i32) -> Result<i32, Errno> {
    assert!(command == libc::F_GETFL || command == libc::F_GETFD);
    // SAFETY: both commands are queries without a pointer.
    let answer = unsafe { syscall!(Sysno::fcntl, fd, command, 0) }?;
    Ok(i32::try_from(answer).unwrap_or(i32::MAX))
}

/// The file offset, if the file has one.
pub(crate) fn offset_of(fd: i32) -> Result<u64, Errno> {
    // SAFETY: lseek takes integers only. SEEK_CUR by 0 does not move the offset.
    unsafe { syscall!(Sysno::lseek, fd, 0, libc::SEEK_CUR) }.map(|offset| offset as u64)
}

/// Defines a function for each system call in the list. Each takes integers, returns an integer and changes nothing.
macro_rules! integer_queries {
    ($($name:ident($($arg:ident),*);)*) => {$(
        pub(crate) fn $name($($arg: usize),*) -> Result<usize, Errno> {
            // SAFETY: the call takes integers only, and changes nothing with the arguments that this crate passes.
            unsafe { syscall!(Sysno::$name $(, $arg)*) }
        }
    )*};
}

integer_queries! {
    getpid();
    gettid();
    getppid();
    getpgid(pid);
    getsid(pid);
    geteuid();
    getpriority(which, who);
    ioprio_get(which, who);
    personality(persona);
    setfsuid(uid);
    setfsgid(gid);
    keyctl(operation, key, create);
}

/// Real, effective and saved id, by getresuid or getresgid.
pub(crate) fn three_ids(call: Sysno) -> Result<[u32; 3], Errno> {
    assert!(call == Sysno::getresuid || call == Sysno::getresgid);
    let mut ids = [0_u32; 3];
    let first = ids.as_mut_ptr();
    // SAFETY: both calls store three 32-bit ids; the pointers stay within the array.
    unsafe { syscall!(call, first, first.add(1), first.add(2)) }?;
    Ok(ids)
}

pub(crate) fn groups() -> Result<Vec<u32>, Errno> {
    // SAFETY: with a size of 0, getgroups stores nothing and returns the number of groups.
    let count = unsafe { syscall!(Sysno::getgroups, 0, 0) }?;
    let mut groups = vec![0_u32; count];
    // SAFETY: the array holds `count` ids, and the kernel stores at most `count`.
    let stored = unsafe { syscall!(Sysno::getgroups, count, groups.as_mut_ptr()) }?;
    groups.truncate(stored);
    Ok(groups)
}

/// Returns whether clone3 is available. The probe is a call with size 0, which otherwise fails with
/// ENOSYS.
pub fn has_clone3() -> bool {
    // SAFETY: the kernel refuses a size of 0 before it reads anything.
    let answer = unsafe { libc::syscall(libc::SYS_clone3, 0usize, 0usize) };
    answer >= 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::ENOSYS)
}

/// Returns whether this kernel has the patches of `kernel/patches`.
pub fn has_builders() -> bool {
    const PIDFD_EMPTY: libc::c_int = 1 << 27;
    // SAFETY: the call takes two integers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, 0, PIDFD_EMPTY) };
    // SAFETY: the descriptor was opened above.
    fd >= 0 && unsafe { libc::close(fd as libc::c_int) } == 0
}
