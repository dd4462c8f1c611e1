// SPDX-License-Identifier: MIT OR Apache-2.0
//! posix_spawn(3), posix_spawnp(3), and glibc's pidfd_spawn and pidfd_spawnp.

use core::ffi::{CStr, c_char, c_int};
use core::ptr;
use core::sync::atomic::{AtomicU32, Ordering};

use libc::{pid_t, sigset_t};
use spawnfd_child::{PosixProgram, PosixScheduling, PosixSpawn, spawn_posix};
use spawnfd_sys::Errno;
use spawnfd_sys::call::SignalSet;

use super::{Attributes, FileActions, next, stacks, status};
use super::{RESETIDS, SETCGROUP, SETPGROUP, SETSCHEDPARAM, SETSCHEDULER, SETSID, SETSIGDEF, SETSIGMASK};

/// The directories that posix_spawnp searches if the environment has no PATH.
const DEFAULT_PATH: &CStr = c"/bin:/usr/bin";

/// The arguments of the four functions.
struct Request {
    file: *const c_char,
    actions: *const FileActions,
    attributes: *const Attributes,
    argv: *const *const c_char,
    envp: *const *const c_char,
    /// Whether the child searches `file` in PATH.
    search: bool,
    /// Whether a shell runs a file without a known format.
    shell: bool,
}

/// glibc's internal signals 32 and 33, which a signal mask cannot block.
const INTERNAL: SignalSet = 0b11 << 31;

/// The kernel's form of a signal set.
fn signals(set: &sigset_t) -> SignalSet {
    // SAFETY: a sigset_t begins with the kernel's 64 bits.
    unsafe { ptr::from_ref(set).cast::<SignalSet>().read() }
}

/// Memory for the arguments of the shell: those of the program and two more, with the final NULL.
///
/// # Safety
/// `argv` ends with NULL.
unsafe fn shell_arguments(argv: *const *const c_char) -> Result<ShellArguments, Errno> {
    let mut count = 0;
    // SAFETY: the caller guarantees the array.
    while unsafe { !argv.add(count).read().is_null() } {
        count += 1;
    }
    let size = (count + 3) * size_of::<*const c_char>();
    let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: the kernel chooses the address.
    let address = unsafe { libc::mmap(ptr::null_mut(), size, access, flags, -1, 0) };
    if address == libc::MAP_FAILED {
        return Err(Errno::ENOMEM);
    }
    Ok(ShellArguments { address: address.cast(), size })
}

struct ShellArguments {
    address: *mut *const c_char,
    size: usize,
}

impl Drop for ShellArguments {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping.
        unsafe { libc::munmap(self.address.cast(), self.size) };
    }
}

/// Spawns a program and returns its pid.
///
/// # Safety
/// The requirements of posix_spawn(3). The list of actions is not foreign.
unsafe fn spawn(request: &Request, pidfd: Option<&AtomicU32>) -> Result<pid_t, Errno> {
    // SAFETY: the caller guarantees the pointers, and that they are valid during this call.
    let (file, actions, attributes) =
        unsafe { (CStr::from_ptr(request.file), request.actions.as_ref(), request.attributes.as_ref()) };
    let flags = attributes.map_or(0, |attributes| attributes.flags);
    let with = |flag| attributes.filter(|_| flags & flag != 0);
    let path = if request.search {
        // SAFETY: the caller does not change the environment during this call.
        let path = unsafe { libc::getenv(c"PATH".as_ptr()) };
        // SAFETY: getenv returns a C string or NULL.
        Some(if path.is_null() { DEFAULT_PATH } else { unsafe { CStr::from_ptr(path) } })
    } else {
        None
    };
    let shell = if request.shell {
        // SAFETY: the caller guarantees the arguments.
        Some(unsafe { shell_arguments(request.argv) }?)
    } else {
        None
    };
    let spawn = PosixSpawn {
        default_signals: with(SETSIGDEF).map_or(0, |attributes| signals(&attributes.default_signals)),
        signal_mask: with(SETSIGMASK).map(|attributes| signals(&attributes.signal_mask) & !INTERNAL),
        scheduling: with(SETSCHEDPARAM | SETSCHEDULER).map(|attributes| PosixScheduling {
            policy: with(SETSCHEDULER).map(|attributes| attributes.policy),
            priority: attributes.scheduling.sched_priority,
        }),
        setsid: flags & SETSID != 0,
        group: with(SETPGROUP).map(|attributes| attributes.group),
        reset_ids: flags & RESETIDS != 0,
        cgroup: with(SETCGROUP).map(|attributes| attributes.cgroup),
        actions: actions.map_or(&[], FileActions::actions),
        program: PosixProgram {
            file,
            search: path,
            shell: shell.as_ref().map(|arguments| arguments.address),
            argv: request.argv,
            envp: request.envp,
        },
    };
    let mut stack = stacks::take()?;
    // SAFETY: the caller guarantees the strings and the arguments.
    let outcome = unsafe { spawn_posix(&mut stack, &spawn, pidfd) };
    stacks::put(stack);
    outcome
}

/// Spawns a program, and stores its pid.
///
/// # Safety
/// The requirements of posix_spawn(3). The list of actions is not foreign.
unsafe fn spawn_for_pid(pid: *mut pid_t, request: &Request) -> c_int {
    // SAFETY: the caller keeps the requirements.
    status(unsafe { spawn(request, None) }.map(|child| {
        if !pid.is_null() {
            // SAFETY: the caller guarantees the pointer.
            unsafe { pid.write(child) };
        }
    }))
}

/// Spawns a program, and stores its pidfd. Without an address for the pidfd, opens none.
///
/// # Safety
/// The requirements of posix_spawn(3). The list of actions is not foreign.
unsafe fn spawn_for_pidfd(pidfd: *mut c_int, request: &Request) -> c_int {
    let word = AtomicU32::new(u32::MAX);
    let wanted = if pidfd.is_null() { None } else { Some(&word) };
    // SAFETY: the caller keeps the requirements.
    status(unsafe { spawn(request, wanted) }.map(|_| {
        if !pidfd.is_null() {
            // SAFETY: the caller guarantees the pointer.
            unsafe { pidfd.write(word.load(Ordering::Acquire) as c_int) };
        }
    }))
}

/// Defines one of the exported functions.
macro_rules! function {
    ($(#[$doc:meta])* $name:ident($to:ident), $spawn:ident, $next:ident, search: $search:expr, shell: $shell:expr) => {
        $(#[$doc])*
        ///
        /// # Errors
        /// Returns the errno of the first call that failed in the parent or in the child. There is then no child.
        ///
        /// # Safety
        /// The pointers are valid as posix_spawn(3) expects them, and other threads do not change the environment.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            $to: *mut c_int,
            file: *const c_char,
            actions: *const FileActions,
            attributes: *const Attributes,
            argv: *const *const c_char,
            envp: *const *const c_char,
        ) -> c_int {
            // SAFETY: the pointer is NULL or points to an initialised list.
            if unsafe { actions.as_ref() }.is_some_and(FileActions::is_foreign) {
                // SAFETY: the caller keeps the requirements.
                return unsafe { next::$next($to, file, actions, attributes, argv, envp) };
            }
            let request = Request { file, actions, attributes, argv, envp, search: $search, shell: $shell };
            // SAFETY: the caller keeps the requirements.
            unsafe { $spawn($to, &request) }
        }
    };
}

function!(
    /// Spawns the program in a file, and stores its pid if `pid` is not NULL. posix_spawn(3).
    posix_spawn(pid), spawn_for_pid, posix_spawn, search: false, shell: false
);
function!(
    /// Spawns a program that the child searches in PATH, and stores its pid if `pid` is not NULL. posix_spawnp(3).
    posix_spawnp(pid), spawn_for_pid, posix_spawnp, search: true, shell: false
);
function!(
    /// The same as posix_spawn, and stores a pidfd, close-on-exec, instead of the pid. pidfd_spawn of glibc 2.39.
    pidfd_spawn(pidfd), spawn_for_pidfd, pidfd_spawn, search: false, shell: false
);
function!(
    /// The same as posix_spawnp, and stores a pidfd, close-on-exec, instead of the pid. pidfd_spawnp of glibc 2.39.
    pidfd_spawnp(pidfd), spawn_for_pidfd, pidfd_spawnp, search: true, shell: false
);
function!(
    /// `posix_spawn@GLIBC_2.2.5`: /bin/sh runs a file for which execve returns ENOEXEC.
    spawnfd_posix_spawn_with_shell(pid), spawn_for_pid, posix_spawn_with_shell, search: false, shell: true
);
function!(
    /// `posix_spawnp@GLIBC_2.2.5`: /bin/sh runs a file for which execve returns ENOEXEC.
    spawnfd_posix_spawnp_with_shell(pid), spawn_for_pid, posix_spawnp_with_shell, search: true, shell: true
);
