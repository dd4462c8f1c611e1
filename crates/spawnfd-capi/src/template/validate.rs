// SPDX-License-Identifier: MIT OR Apache-2.0
//! The checks of the arguments, in the order of the RFC's kernel code.

use core::ffi::{CStr, c_char};
use core::ptr;

use spawnfd_child::TemplateAction;
use spawnfd_sys::call::{CLOSE_RANGE_UNSHARE, SignalSet};
use spawnfd_sys::{Errno, RawFd, abi};

use super::abi::*;
use crate::copy;

/// The close-on-exec flag of close_range(2).
const CLOSE_RANGE_CLOEXEC: u32 = 4;

/// Returns EINVAL unless the condition holds.
fn require(condition: bool) -> Result<(), Errno> {
    if condition { Ok(()) } else { Err(Errno::EINVAL) }
}

/// Checks the arguments of `spawn_template_create`.
pub fn create(args: &spawn_template_create_args) -> Result<(), Errno> {
    require(args.flags & !SPAWN_TEMPLATE_CREATE_CLOEXEC == 0)?;
    require(args.exec_flags == 0 && args.reserved == [0; 4])?;
    require(args.actions == 0 && args.actions_len == 0)?;
    // Exactly one of the two names the executable.
    require((args.execfd < 0) != (args.filename == 0))
}

/// Checks the arguments of `spawn_template_spawn`, except its actions.
pub fn spawn(args: &spawn_template_spawn_args) -> Result<(), Errno> {
    require(args.flags & !SPAWN_TEMPLATE_SPAWN_INHERIT_FDS == 0)?;
    require(args.pidfd != 0 && args.reserved == [0; 4])
}

/// Copies and checks the actions of a spawn.
///
/// # Errors
/// E2BIG: there are too many actions. EINVAL: an action is invalid, or the address of the actions is NULL.
///
/// # Safety
/// The addresses in the arguments are NULL or valid. They stay valid for `'a`.
pub unsafe fn actions<'a>(args: &spawn_template_spawn_args) -> Result<Vec<TemplateAction<'a>>, Errno> {
    if args.actions_len > MAX_ACTIONS {
        return Err(Errno::E2BIG);
    }
    let first = ptr::with_exposed_provenance::<spawn_template_action>(args.actions as usize);
    require(args.actions_len == 0 || !first.is_null())?;
    (0..args.actions_len as usize)
        // SAFETY: the caller guarantees the addresses. They need not be aligned.
        .map(|index| unsafe { decode(&first.add(index).read_unaligned()) })
        .collect()
}

/// Checks one action.
///
/// # Safety
/// The addresses in the action are NULL or valid. They stay valid for `'a`.
unsafe fn decode<'a>(action: &spawn_template_action) -> Result<TemplateAction<'a>, Errno> {
    let spawn_template_action { r#type, flags, fd, newfd, arg } = *action;
    match r#type {
        SPAWN_TEMPLATE_ACTION_CLOSE | SPAWN_TEMPLATE_ACTION_FCHDIR => {
            require(fd >= 0 && flags == 0 && newfd == 0 && arg == 0)?;
            Ok(match r#type {
                SPAWN_TEMPLATE_ACTION_CLOSE => TemplateAction::Close { fd },
                _ => TemplateAction::Fchdir { fd },
            })
        }
        SPAWN_TEMPLATE_ACTION_DUP2 => {
            require(fd >= 0 && newfd >= 0 && flags & !abi::O_CLOEXEC == 0 && arg == 0)?;
            Ok(TemplateAction::Dup2 { from: fd, to: newfd, flags })
        }
        SPAWN_TEMPLATE_ACTION_OPEN => {
            require(fd >= abi::AT_FDCWD && newfd >= 0 && flags == 0 && arg != 0)?;
            // SAFETY: the address is not NULL, and the caller guarantees it.
            let open = unsafe { copy::value::<spawn_template_open>(arg) };
            // SAFETY: the caller guarantees the path.
            let file = open.and_then(|open| Ok((unsafe { text(open.path) }?, open.how)));
            Ok(TemplateAction::Open { dir: fd, fd: newfd, file })
        }
        SPAWN_TEMPLATE_ACTION_CLOSE_RANGE => {
            const HIGHEST: RawFd = -1;
            require(fd >= 0 && (newfd == HIGHEST || fd <= newfd))?;
            require(flags & !(CLOSE_RANGE_UNSHARE | CLOSE_RANGE_CLOEXEC) == 0 && arg == 0)?;
            Ok(TemplateAction::CloseRange { first: fd as u32, last: newfd as u32, flags })
        }
        SPAWN_TEMPLATE_ACTION_SIGMASK | SPAWN_TEMPLATE_ACTION_SIGDEFAULT => {
            require(fd == 0 && newfd == 0 && flags == 0 && arg != 0)?;
            // SAFETY: the caller guarantees the addresses.
            let set = unsafe { signals(arg) };
            Ok(match r#type {
                SPAWN_TEMPLATE_ACTION_SIGMASK => TemplateAction::SignalMask(set),
                _ => TemplateAction::DefaultSignals(set),
            })
        }
        _ => Err(Errno::EINVAL),
    }
}

/// Reads a signal set.
///
/// # Errors
/// The child fails with the errno: EINVAL for another size than the kernel's, EFAULT for NULL.
///
/// # Safety
/// The addresses are NULL or valid.
unsafe fn signals(arg: u64) -> Result<SignalSet, Errno> {
    // SAFETY: the caller guarantees the address.
    let set = unsafe { copy::value::<spawn_template_sigset>(arg) }?;
    require(set.sigsetsize == size_of::<SignalSet>() as u64)?;
    // SAFETY: the caller guarantees the address.
    unsafe { copy::value::<SignalSet>(set.sigset) }
}

/// Borrows the string at an address.
///
/// # Safety
/// The address is 0 or that of a string that stays valid for `'a`.
pub unsafe fn text<'a>(address: u64) -> Result<&'a CStr, Errno> {
    let text = ptr::with_exposed_provenance::<c_char>(address as usize);
    // SAFETY: the caller guarantees the string.
    if text.is_null() { Err(Errno::EFAULT) } else { Ok(unsafe { CStr::from_ptr(text) }) }
}
