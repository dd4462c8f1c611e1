// SPDX-License-Identifier: MIT OR Apache-2.0
//! Arguments, environment, directories, threads and children of the program.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::fs;
use std::os::unix::fs::MetadataExt;

use serde::{Deserialize, Serialize};
use syscalls::{Sysno, syscall};

use super::answer::{Answer, text};
use super::proc;
use crate::raw;

/// A directory: its path, and its device and inode, which identify it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The kernel's name of the directory.
    pub path: Answer<String>,
    /// st_dev.
    pub device: Answer<u64>,
    /// st_ino.
    pub inode: Answer<u64>,
}

/// A child that has not been reaped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Child {
    /// Its pid.
    pub pid: i32,
    /// Whether it has ended.
    pub zombie: bool,
}

unsafe extern "C" {
    static environ: *const *const libc::c_char;
    static program_invocation_name: *const libc::c_char;
}

/// The entries of libc's `environ`, including repeated names and entries without `=`, which std leaves out.
///
/// No other thread may change the environment during this call. Rust makes such a change `unsafe` for that reason.
pub(super) fn environment() -> Vec<String> {
    // SAFETY: libc keeps `environ` null or a null-terminated array of C strings. No other thread changes it during
    // this call.
    unsafe { c_strings(environ) }
}

/// # Safety
/// `list` is null, or a null-terminated array of C strings.
pub(super) unsafe fn c_strings(list: *const *const libc::c_char) -> Vec<String> {
    if list.is_null() {
        return Vec::new();
    }
    let mut strings = Vec::new();
    // SAFETY: the walk ends at the null pointer that ends the array; each pointer before it is a C string.
    unsafe {
        let mut at = list;
        while !(*at).is_null() {
            strings.push(text(CStr::from_ptr(*at).to_bytes()));
            at = at.add(1);
        }
    }
    strings
}

/// The name that glibc's error(3) and BSD's err(3) print before a message.
pub(super) fn invocation_name() -> String {
    // SAFETY: glibc sets this variable before any constructor runs, and only to C strings.
    let name = unsafe { program_invocation_name };
    if name.is_null() {
        return String::new();
    }
    // SAFETY: the pointer is not null, and glibc sets the variable only to C strings.
    text(unsafe { CStr::from_ptr(name) }.to_bytes())
}

/// The locale that the environment selects: the result of setlocale(3) ("set"), the locale in force after that call
/// ("LC_ALL"), and its codeset ("CODESET").
///
/// The function restores the previous locale.
pub(super) fn locale() -> BTreeMap<String, String> {
    let string = |found: *const libc::c_char| match found.is_null() {
        true => CString::default(),
        // SAFETY: the pointer is not null. It points to libc's string, which is copied before the next libc call.
        false => unsafe { CStr::from_ptr(found) }.to_owned(),
    };
    // SAFETY: with a null pointer, setlocale only returns the current locale.
    let before = string(unsafe { libc::setlocale(libc::LC_ALL, std::ptr::null()) });
    // SAFETY: setlocale reads a C string.
    let set = string(unsafe { libc::setlocale(libc::LC_ALL, c"".as_ptr()) });
    // SAFETY: with a null pointer, setlocale only returns the current locale.
    let now = string(unsafe { libc::setlocale(libc::LC_ALL, std::ptr::null()) });
    // SAFETY: nl_langinfo takes a number.
    let codeset = string(unsafe { libc::nl_langinfo(libc::CODESET) });
    // SAFETY: setlocale reads a C string.
    unsafe { libc::setlocale(libc::LC_ALL, before.as_ptr()) };
    [("set", set), ("LC_ALL", now), ("CODESET", codeset)]
        .map(|(name, found)| (name.to_owned(), text(found.to_bytes())))
        .into()
}

/// AT_EXECFN of the auxiliary vector: the path that exec was called with.
pub(super) fn at_execfn() -> Option<String> {
    // SAFETY: getauxval reads a list fixed at exec.
    let address = unsafe { libc::getauxval(libc::AT_EXECFN) };
    if address == 0 {
        return None;
    }
    // SAFETY: AT_EXECFN is the address of a C string, which the kernel put on the initial stack.
    Some(text(unsafe { CStr::from_ptr(address as *const libc::c_char) }.to_bytes()))
}

/// An entry of the auxiliary vector, as a number; 0 if the entry is absent.
pub(super) fn auxv(entry: libc::c_ulong) -> u64 {
    // SAFETY: getauxval reads a list fixed at exec.
    unsafe { libc::getauxval(entry) }
}

pub(super) fn cwd() -> Place {
    let mut buffer = vec![0_u8; 4096];
    // SAFETY: the kernel stores at most the size of the buffer, the NUL included.
    let path = unsafe { syscall!(Sysno::getcwd, buffer.as_mut_ptr(), buffer.len()) };
    let path = path.map(|stored| text(&buffer[..stored.saturating_sub(1)]));
    place(path.into(), ".")
}

pub(super) fn root() -> Place {
    place(proc::link("root"), "/")
}

fn place(path: Answer<String>, at: &str) -> Place {
    Place {
        path,
        device: fs::metadata(at).map(|meta| meta.dev()).into(),
        inode: fs::metadata(at).map(|meta| meta.ino()).into(),
    }
}

/// The file mode creation mask in octal, from /proc/self/status. Without /proc, the function sets the mask and
/// restores it, which other threads could observe.
pub(super) fn umask(status: &proc::Status) -> String {
    if let Answer::Known(Some(umask)) = status.get("Umask") {
        return umask;
    }
    // SAFETY: umask(2) cannot fail and takes an integer.
    let mask = unsafe { libc::umask(0o077) };
    // SAFETY: umask(2) cannot fail and takes an integer.
    unsafe { libc::umask(mask) };
    format!("{mask:04o}")
}

/// Ids of the threads of this process.
pub(crate) fn threads() -> Answer<Vec<i32>> {
    let entries = fs::read_dir("/proc/self/task");
    let ids = entries.map(|all| all.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok()).collect());
    Answer::from(ids).map(|mut ids: Vec<i32>| {
        ids.sort_unstable();
        ids
    })
}

/// Children of all threads of this process, zombies included.
pub(crate) fn children() -> Answer<Vec<Child>> {
    let Answer::Known(threads) = threads() else {
        return threads().map(|_| Vec::new());
    };
    let mut children = Vec::new();
    for thread in threads {
        // A thread may end at any time. The kernel then moves its children to another thread.
        let Ok(list) = fs::read_to_string(format!("/proc/self/task/{thread}/children")) else {
            continue;
        };
        children.extend(
            list.split_whitespace().filter_map(|pid| pid.parse().ok()).map(|pid| Child { pid, zombie: is_zombie(pid) }),
        );
    }
    children.sort_unstable();
    children.dedup();
    Answer::Known(children)
}

fn is_zombie(pid: i32) -> bool {
    let stat = fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.iter().rposition(|byte| *byte == b')').and_then(|end| stat.get(end + 2).copied());
    matches!(state, Some(b'Z' | b'X'))
}

/// Whether the thread has a robust futex list. libc sets one for each thread; a thread from a bare clone(2) has none.
pub(super) fn robust_list() -> Answer<bool> {
    let mut head: usize = 0;
    let mut size: usize = 0;
    // SAFETY: get_robust_list stores a pointer and a size, each in its own variable.
    unsafe { syscall!(Sysno::get_robust_list, 0, &raw mut head, &raw mut size) }.map(|_| head != 0).into()
}

/// Whether PR_GET_TID_ADDRESS reports an address that the kernel clears when the thread ends.
pub(super) fn clear_child_tid() -> Answer<bool> {
    let mut address: usize = 0;
    let option = libc::PR_GET_TID_ADDRESS as usize;
    // SAFETY: PR_GET_TID_ADDRESS stores one pointer.
    unsafe { syscall!(Sysno::prctl, option, &raw mut address, 0, 0, 0) }.map(|_| address != 0).into()
}

/// Whether libc's cached thread id is right. To read the cached id, the function locks an error-checking mutex: libc
/// stores the id in it as the owner.
pub(super) fn libc_knows_its_tid() -> bool {
    let mut mutex = std::mem::MaybeUninit::<libc::pthread_mutex_t>::zeroed();
    let mut attributes = std::mem::MaybeUninit::<libc::pthread_mutexattr_t>::zeroed();
    let owner = std::mem::offset_of!(MutexHead, owner);
    // SAFETY: only this thread uses the mutex, and initialises, locks, reads, unlocks and destroys it in this order.
    // The owner is the third int of glibc's struct; its place is part of glibc's ABI.
    unsafe {
        libc::pthread_mutexattr_init(attributes.as_mut_ptr());
        libc::pthread_mutexattr_settype(attributes.as_mut_ptr(), libc::PTHREAD_MUTEX_ERRORCHECK);
        libc::pthread_mutex_init(mutex.as_mut_ptr(), attributes.as_ptr());
        libc::pthread_mutex_lock(mutex.as_mut_ptr());
        let cached = mutex.as_ptr().cast::<u8>().add(owner).cast::<i32>().read();
        libc::pthread_mutex_unlock(mutex.as_mut_ptr());
        libc::pthread_mutex_destroy(mutex.as_mut_ptr());
        libc::pthread_mutexattr_destroy(attributes.as_mut_ptr());
        raw::gettid() == Ok(cached as usize)
    }
}

/// The start of glibc's `struct __pthread_mutex_s`.
#[repr(C)]
struct MutexHead {
    lock: i32,
    count: u32,
    owner: i32,
}
