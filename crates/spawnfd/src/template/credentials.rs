// SPDX-License-Identifier: MIT OR Apache-2.0
//! The credentials of a template's creator. Only a thread with the same credentials may use the template.

use spawnfd_sys::call;

use crate::host::authority;

/// The calling thread's ids, groups and capabilities.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Credentials {
    ids: [u32; 6],
    capabilities: Option<[u64; 3]>,
    groups: Vec<u32>,
}

/// The number of groups that the library compares without an allocation. More groups take a slower path.
const FEW: usize = 64;

impl Credentials {
    /// The calling thread's credentials.
    pub(crate) fn current() -> Credentials {
        let mut groups = vec![0; 1 << 16];
        let count = call::groups(&mut groups).unwrap_or(0);
        groups.truncate(count);
        groups.shrink_to_fit();
        Credentials { ids: call::ids(), capabilities: call::capabilities().ok(), groups }
    }

    /// Whether ids and groups cannot change without a change of capabilities.
    ///
    /// The kernel refuses changes of ids and groups (setresuid(2), setgroups(2)) to a thread without permitted
    /// capabilities, if its real, effective and saved user ids are equal and its three group ids too. Such a thread
    /// could change them only in a new user namespace, which also changes its capabilities.
    fn are_fixed(&self) -> bool {
        let [uid, euid, suid, gid, egid, sgid] = self.ids;
        let permitted = self.capabilities.map(|[_, permitted, _]| permitted);
        permitted == Some(0) && uid == euid && euid == suid && gid == egid && egid == sgid
    }

    /// Whether the calling thread still has these credentials. The check takes one system call for
    /// an ordinary user, and four system calls for a privileged user. If the start has read the thread's authority
    /// before, it takes none, or one.
    pub(crate) fn are_current(&self) -> bool {
        if authority::capabilities().ok() != self.capabilities {
            return false;
        }
        if self.are_fixed() {
            return true;
        }
        let mut few = [0; FEW];
        let same_groups = match call::groups(&mut few) {
            Ok(count) => few.get(..count) == Some(&self.groups),
            Err(_) => Credentials::current().groups == self.groups,
        };
        same_groups && authority::ids() == self.ids
    }
}
