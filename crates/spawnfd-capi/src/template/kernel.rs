// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds the system calls of kernels with spawn templates.
//!
//! No released kernel has these calls, so their numbers may mean other calls. A probe accepts a pair of numbers only if
//! the calls behave as those of the RFC.

use std::ffi::OsString;
use std::sync::atomic::{AtomicU32, Ordering};

use spawnfd_sys::{Errno, RawFd, call};

use super::abi::*;

/// The link of a template of the RFC's kernel.
const TEMPLATE: &str = "anon_inode:spawn_template";
/// The link of a template of kernel/patches. That kernel's calls return the errors of the child, which the RFC turns into
/// exit statuses. So the library does not use these calls.
const TEMPLATE_OF_SERIES: &str = "anon_inode:[spawn_template]";

/// The two system calls of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallNumbers {
    /// spawn_template_create.
    pub create: u32,
    /// spawn_template_spawn.
    pub spawn: u32,
}

/// The numbers of the RFC's generic table, and then those of its table for x86_64.
const CANDIDATES: [CallNumbers; 2] = [CallNumbers { create: 472, spawn: 473 }, CallNumbers { create: 474, spawn: 475 }];

/// The calls of the running kernel. The first call probes them.
pub fn calls() -> Option<CallNumbers> {
    const UNKNOWN: u32 = 0;
    const ABSENT: u32 = u32::MAX;
    /// UNKNOWN, ABSENT or the number of spawn_template_create. Two threads that probe at once find the same answer.
    static CREATE: AtomicU32 = AtomicU32::new(UNKNOWN);

    let create = match CREATE.load(Ordering::Relaxed) {
        UNKNOWN => {
            // A filter may kill the process for an unknown call.
            let found = if call::seccomp_mode() == 0 { find(enter, link) } else { None };
            let create = found.map_or(ABSENT, |numbers| numbers.create);
            CREATE.store(create, Ordering::Relaxed);
            create
        }
        known => known,
    };
    CANDIDATES.into_iter().find(|numbers| numbers.create == create)
}

/// Makes a system call with three arguments.
fn enter(number: u32, args: [usize; 3]) -> Result<usize, Errno> {
    // SAFETY: `find` passes NULL, or the address of the arguments of a create call, which the kernel reads.
    unsafe { call::make(number, args) }
}

/// The target of a descriptor's link in /proc.
fn link(fd: RawFd) -> OsString {
    std::fs::read_link(format!("/proc/thread-self/fd/{fd}")).unwrap_or_default().into_os_string()
}

/// Finds the pair of numbers whose calls behave as those of the RFC.
fn find(
    enter: impl Fn(u32, [usize; 3]) -> Result<usize, Errno>,
    link: impl Fn(RawFd) -> OsString,
) -> Option<CallNumbers> {
    const NO_DESCRIPTOR: usize = -1isize as usize;
    let checks_sizes = |numbers: &CallNumbers| {
        let spawn = |size| enter(numbers.spawn, [NO_DESCRIPTOR, 0, size]);
        spawn(SPAWN_TEMPLATE_SPAWN_ARGS_SIZE_VER0 - 1) == Err(Errno::EINVAL)
            && spawn(4097) == Err(Errno::E2BIG)
            && spawn(SPAWN_TEMPLATE_SPAWN_ARGS_SIZE_VER0) == Err(Errno::EBADF)
    };
    let candidates = CANDIDATES.into_iter().filter(checks_sizes);
    let path = std::ffi::CString::new(std::os::unix::ffi::OsStringExt::into_vec(
        std::fs::read_link("/proc/self/exe").ok()?.into_os_string(),
    ));
    let path = path.ok()?;
    let args = spawn_template_create_args {
        flags: SPAWN_TEMPLATE_CREATE_CLOEXEC,
        execfd: -1,
        filename: path.as_ptr().expose_provenance() as u64,
        ..Default::default()
    };
    let creates = |numbers: &CallNumbers| {
        let args = (&raw const args).expose_provenance();
        let created = enter(numbers.create, [args, SPAWN_TEMPLATE_CREATE_ARGS_SIZE_VER0, 0]);
        let Some(fd) = created.ok().and_then(|fd| RawFd::try_from(fd).ok()) else { return false };
        // If the call is another one, its result need not be a descriptor. So close only a template.
        let link = link(fd);
        if link == TEMPLATE || link == TEMPLATE_OF_SERIES {
            let _ = call::close(fd);
        }
        link == TEMPLATE
    };
    candidates.into_iter().find(creates)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::{AsRawFd, IntoRawFd};

    use super::*;

    /// A kernel whose calls at `numbers` answer as the RFC's. `create` returns a new descriptor.
    fn kernel(numbers: CallNumbers, create: impl Fn() -> usize) -> impl Fn(u32, [usize; 3]) -> Result<usize, Errno> {
        move |number, [_, second, third]| match number {
            _ if number == numbers.create && second == 72 => Ok(create()),
            _ if number == numbers.spawn => Err(match third {
                ..80 => Errno::EINVAL,
                4097.. => Errno::E2BIG,
                _ => Errno::EBADF,
            }),
            _ => Err(Errno::ENOSYS),
        }
    }

    #[test]
    fn finds_each_pair_of_numbers() {
        for numbers in CANDIDATES {
            let create = || File::open("/dev/null").unwrap().into_raw_fd() as usize;
            assert_eq!(find(kernel(numbers, create), |_| TEMPLATE.into()), Some(numbers));
        }
    }

    #[test]
    fn accepts_no_other_call() {
        let refuse_create = |_: u32, _: [usize; 3]| -> Result<usize, Errno> { panic!("the probe called create") };
        for answer in [Errno::ENOSYS, Errno::EINVAL, Errno::EBADF, Errno::EFAULT, Errno::EPERM] {
            let enter = |number, args: [usize; 3]| match number {
                473 | 475 => Err(answer),
                _ => refuse_create(number, args),
            };
            assert_eq!(find(enter, |_| TEMPLATE.into()), None, "{answer:?}");
        }
        assert_eq!(find(|_, _| Ok(0), |_| TEMPLATE.into()), None);
    }

    #[test]
    fn accepts_only_templates_of_the_rfc() {
        for (link, accepted) in [(TEMPLATE, Some(CANDIDATES[0])), (TEMPLATE_OF_SERIES, None)] {
            let created = std::cell::Cell::new(-1);
            let create = || {
                // No other test, in another thread, opens a descriptor with such a number.
                created.set(call::dup_above(File::open("/dev/null").unwrap().as_raw_fd(), 900).unwrap());
                created.get() as usize
            };
            assert_eq!(find(kernel(CANDIDATES[0], create), |_| link.into()), accepted, "{link}");
            assert_eq!(call::close(created.get()), Err(Errno::EBADF), "the probe closed its template");
        }
    }

    /// A result that is no template stays open: it may be a descriptor of the application.
    #[test]
    fn does_not_close_the_result_of_another_call() {
        let file = File::open("/dev/null").unwrap().into_raw_fd();
        assert_eq!(find(kernel(CANDIDATES[0], || file as usize), link), None);
        assert!(call::close(file).is_ok());
    }
}
