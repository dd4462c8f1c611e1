// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ids, capabilities, seccomp, namespaces, keyring: the attributes that decide what a thread may do.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use syscalls::Sysno;

use super::answer::Answer;
use super::proc::{self, Status};
use crate::caps::{self, Caps};
use crate::raw::{self, Query};

/// The four user ids, or group ids, of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Uids {
    /// Real.
    pub real: u32,
    /// Effective.
    pub effective: u32,
    /// Saved.
    pub saved: u32,
    /// The file system id (setfsuid(2), setfsgid(2)).
    pub fs: u32,
}

pub(super) fn uids() -> Answer<Uids> {
    ids(Sysno::getresuid, raw::setfsuid)
}

pub(super) fn gids() -> Answer<Uids> {
    ids(Sysno::getresgid, raw::setfsgid)
}

/// All four ids. `fs` is setfsuid or setfsgid: with an invalid id they change nothing and return the present id.
fn ids(call: Sysno, fs: fn(usize) -> Result<usize, syscalls::Errno>) -> Answer<Uids> {
    let all = raw::three_ids(call).and_then(|[real, effective, saved]| {
        let fs = fs(u32::MAX as usize)? as u32;
        Ok(Uids { real, effective, saved, fs })
    });
    all.into()
}

/// The five capability sets by name.
pub(super) fn capabilities() -> BTreeMap<String, Answer<Vec<String>>> {
    let sets = Caps::get();
    let of = |pick: fn(Caps) -> u64| Answer::from(sets.map(pick).map(caps::names));
    BTreeMap::from([
        ("inheritable".to_owned(), of(|sets| sets.inheritable)),
        ("permitted".to_owned(), of(|sets| sets.permitted)),
        ("effective".to_owned(), of(|sets| sets.effective)),
        ("bounding".to_owned(), caps::bounding().map(caps::names).into()),
        ("ambient".to_owned(), caps::ambient().map(caps::names).into()),
    ])
}

/// The seccomp mode: "disabled", "strict" or "filter".
///
/// It comes from /proc/PID/status if possible: in strict mode the kernel kills a thread that calls prctl(2).
pub(super) fn seccomp_mode(status: &Status) -> Answer<String> {
    let word = |mode: usize| match mode {
        0 => "disabled".to_owned(),
        1 => "strict".to_owned(),
        2 => "filter".to_owned(),
        other => other.to_string(),
    };
    match status.get("Seccomp") {
        Answer::Known(Some(mode)) => Answer::Known(mode.parse().map_or(mode, word)),
        _ => raw::prctl_get(Query::Seccomp, 0).map(word).into(),
    }
}

/// The namespaces by name, each with the target of its link in /proc, such as `net:[4026531840]`.
pub(super) fn namespaces() -> Answer<BTreeMap<String, Answer<String>>> {
    proc::names("ns").map(|names| {
        let link = |name: String| (name.clone(), proc::link(&format!("ns/{name}")));
        names.into_iter().map(link).collect()
    })
}

/// Serial number of the session keyring. The query does not create a keyring.
pub(super) fn session_keyring() -> Answer<u64> {
    const KEYCTL_GET_KEYRING_ID: usize = 0;
    const KEY_SPEC_SESSION_KEYRING: usize = -3_isize as usize;
    raw::keyctl(KEYCTL_GET_KEYRING_ID, KEY_SPEC_SESSION_KEYRING, 0).map(|id| id as u64).into()
}

/// The thread's mitigations from PR_GET_SPECULATION_CTRL: store bypass, indirect branch, L1D flush.
pub(super) fn speculation() -> Vec<Answer<u64>> {
    (0..3).map(|which| raw::prctl_get(Query::Speculation, which).map(|bits| bits as u64).into()).collect()
}
