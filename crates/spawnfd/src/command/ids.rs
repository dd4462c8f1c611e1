// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rejects a change of groups that comes after the child has given up root's capabilities.

use spawnfd_child::Op;
use spawnfd_sys::{Errno, abi, call, prctl};

use super::Start;
use crate::error::{Error, Result, Stage};

/// The bit of SECBIT_NO_SETUID_FIXUP, which linux-raw-sys lacks: capabilities(7).
const NO_SETUID_FIXUP: usize = 1 << 2;

/// Rejects an action that changes groups and would certainly fail with EPERM because of an earlier action: a change
/// of the effective user id from root to another user clears the effective capabilities, and with them CAP_SETGID.
///
/// Other callers are not checked. A caller with capabilities but without root's id keeps them. A user namespace gives
/// the child other capabilities.
pub(super) fn check_order(start: &Start<'_>) -> Result<()> {
    let command = start.command;
    let changes_user = |action: &Op<'_>| matches!(action, Op::UserIds { .. });
    let changes_groups = |action: &Op<'_>| matches!(action, Op::GroupIds { .. } | Op::Groups { .. });
    // Most commands change no ids, and need no system call here.
    if !command.all_actions().skip_while(|action| !changes_user(action)).any(changes_groups) {
        return Ok(());
    }
    let [_, user, _, mut groups @ ..] = call::ids();
    let keeps_capabilities =
        || call::prctl(prctl::PR_GET_SECUREBITS, 0, 0).map_or(true, |bits| bits & NO_SETUID_FIXUP != 0);
    if user != 0 || start.changes_user_namespace() || keeps_capabilities() {
        return Ok(());
    }
    // The action by which the child has given up CAP_SETGID.
    let mut given_up = None;
    for (index, action) in command.all_actions().enumerate() {
        let needs_capability = match action {
            Op::UserIds { effective: u32::MAX, .. } => false,
            Op::UserIds { effective, .. } => {
                given_up = (*effective != 0).then_some(action);
                false
            }
            Op::Capabilities { sets } if sets.effective >> abi::CAP_SETGID & 1 == 1 => {
                given_up = None;
                false
            }
            Op::GroupIds { real, effective, saved } => {
                let new = [*real, *effective, *saved];
                // Without CAP_SETGID, a process may still choose among its own ids: setresgid(2).
                let needs_capability = !new.iter().all(|id| *id == u32::MAX || groups.contains(id));
                for (own, new) in groups.iter_mut().zip(new).filter(|(_, new)| *new != u32::MAX) {
                    *own = new;
                }
                needs_capability
            }
            Op::Groups { .. } => true,
            _ => false,
        };
        if let Some(change) = given_up.filter(|_| needs_capability) {
            let change = command.print(change);
            let message = format!("the child may not change its groups after {change}: put gid and groups before uid");
            let call = format!("{} after {change}", command.print(action));
            return Err(Error::refused(Stage::Action(index), Errno::EINVAL, call).saying(message));
        }
    }
    Ok(())
}
