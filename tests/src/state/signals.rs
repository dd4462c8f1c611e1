// SPDX-License-Identifier: MIT OR Apache-2.0
//! Signal mask, pending signals, dispositions, alternate stack.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::answer::Answer;
use super::proc::Status;
use crate::raw;

/// The action of a signal, recorded if it is not SIG_DFL without flags and mask.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Action {
    /// "default", "ignore" or the handler's address.
    pub handler: String,
    /// SA_ flags except SA_RESTORER, in hexadecimal.
    pub flags: String,
    /// Signals blocked while the handler runs.
    pub mask: Vec<String>,
}

const NAMES: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM", "TERM",
    "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO",
    "PWR", "SYS",
];

/// The name of a signal, such as SIGPIPE or SIG34. The numbers are those of every architecture except mips, alpha,
/// sparc and parisc.
fn name(signal: i32) -> String {
    let index = usize::try_from(signal - 1).expect("signals start at 1");
    NAMES.get(index).map_or_else(|| format!("SIG{signal}"), |name| format!("SIG{name}"))
}

fn names(set: u64) -> Vec<String> {
    (1..=64).filter(|signal| set >> (signal - 1) & 1 == 1).map(name).collect()
}

/// Blocked signals of the calling thread.
pub(super) fn mask() -> Answer<Vec<String>> {
    raw::signal_mask().map(names).into()
}

/// Signals pending for the calling thread or its process.
pub(super) fn pending() -> Answer<Vec<String>> {
    raw::pending_signals().map(names).into()
}

/// Signals pending for the calling thread alone.
pub(super) fn pending_to_thread(status: &Status) -> Answer<Vec<String>> {
    status.get("SigPnd").map(|set| set.and_then(|set| u64::from_str_radix(&set, 16).ok()).map_or_else(Vec::new, names))
}

/// The disposition of each of the 64 signals: default, ignore or handler.
pub(super) fn dispositions() -> BTreeMap<String, Answer<String>> {
    let word = |handler| match handler {
        libc::SIG_DFL => "default",
        libc::SIG_IGN => "ignore",
        _ => "handler",
    };
    (1..=64)
        .map(|signal| (name(signal), raw::sigaction_of(signal).map(|a| word(a.handler).to_owned()).into()))
        .collect()
}

/// Handler, flags and mask of each signal with a non-default action.
pub(super) fn actions() -> BTreeMap<String, Action> {
    /// The flag that libc sets when it passes a restorer, the code that returns from a handler.
    const SA_RESTORER: libc::c_ulong = 0x0400_0000;
    let describe = |action: raw::KernelSigaction| Action {
        handler: match action.handler {
            libc::SIG_DFL => "default".to_owned(),
            libc::SIG_IGN => "ignore".to_owned(),
            address => format!("{address:#x}"),
        },
        flags: format!("{:#x}", action.flags & !SA_RESTORER),
        mask: names(action.mask),
    };
    let set = |action: &raw::KernelSigaction| {
        action.handler != libc::SIG_DFL || action.flags & !SA_RESTORER != 0 || action.mask != 0
    };
    let all = (1..=64).filter_map(|signal| Some((signal, raw::sigaction_of(signal).ok()?)));
    all.filter(|(_, action)| set(action)).map(|(signal, action)| (name(signal), describe(action))).collect()
}

/// Size of the calling thread's alternate signal stack; `None` if it has none.
pub(super) fn altstack_bytes() -> Option<u64> {
    let mut stack = libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: 0, ss_size: 0 };
    // SAFETY: the call sets no stack. It stores the present one in a `stack_t`.
    let result = unsafe { libc::sigaltstack(std::ptr::null(), &raw mut stack) };
    (result == 0 && stack.ss_flags & libc::SS_DISABLE == 0).then_some(stack.ss_size as u64)
}
