// SPDX-License-Identifier: MIT OR Apache-2.0
//! One parked process: its state, and its end.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, WaitId, WaitIdOptions, pidfd_open, waitid};
use spawnfd_sys::{ArgBlock, fork_generation};

use super::caller::CallerState;
use super::channel::Channel;
use super::referent::Referent;
use super::start::NotParked;
use super::watch::Moment;
use super::wire::{self, Reply};
use crate::child::{Child, Started};
use crate::host::authority::{Added, Reported};
use crate::tree::Tree;

/// SIGPIPE and SIGXFSZ: made default in what is started, ignored or not.
pub(super) const MADE_DEFAULT: u64 = 1 << (13 - 1) | 1 << (25 - 1);

/// A process that waits to become a program.
#[derive(Debug)]
pub(super) struct Parked {
    pub(super) generation: u64,
    /// Gone when it has become the program.
    pub(super) child: Option<Child>,
    /// While the program in front is at work: nobody there looks at the line yet.
    pub(super) front: Option<Tree>,
    pub(super) channel: Channel,
    pub(super) serial: u32,
    pub(super) origin: Arc<Origin>,
    /// Its own memory as it was parked, in bytes.
    pub(super) private: u64,
    /// The same of a child that was forked from it, once there was one.
    pub(super) child_private: Option<u64>,
    /// How many were forked from it.
    pub(super) forked: u64,
    /// Why no more will be.
    pub(super) fork_error: Option<&'static str>,
}

/// What it has from its start; those that are forked from it have it, too.
#[derive(Debug)]
pub(super) struct Origin {
    /// How a program that has come of it was started.
    pub(super) started: Started,
    /// It becomes a program by exec.
    pub(super) executes: bool,
    /// The process is that of a program in front, and it sits behind.
    pub(super) has_front: bool,
    /// What it was born with.
    pub(super) caller: CallerState,
    pub(super) env: Arc<ArgBlock>,
    /// What the program in front was given.
    pub(super) given: Vec<Referent>,
    pub(super) variables: Vec<Vec<u8>>,
    pub(super) files: Vec<Vec<u8>>,
    /// What the recipe adds to the authority of the keeper thread; `None`: a program in front decides on it, or it is a probe.
    pub(super) added: Option<Added>,
    /// Just before it was executed.
    pub(super) begun: Moment,
    /// Whether pidfds of different processes differ: before Linux 6.9 all have one inode.
    pub(super) are_told_apart: bool,
}

impl Origin {
    /// Why a parked process is not used: its exec has changed its authority, so that the keeper's says nothing about it.
    ///
    /// A program in front changes it in any case, in the same way as the one that a cold start executes: `begin` has shown that the keeper
    /// had the same authority before and after that one's start.
    fn changed_by_exec(&self, reported: &Reported<'_>) -> Option<NotParked> {
        let changed = self.caller.authority.changed_by_exec(reported, self.added?)?;
        Some(NotParked::Ever(format!("exec changes {changed}")))
    }
}

/// A reason not to be parked: the line has ended.
pub(super) const NOT_PARKED: &str = "not parked";

impl Parked {
    pub(super) fn new(generation: u64, child: Child, channel: Channel, origin: Arc<Origin>) -> Parked {
        Parked {
            generation,
            child: Some(child),
            front: None,
            channel,
            serial: 0,
            origin,
            private: 0,
            child_private: None,
            forked: 0,
            fork_error: None,
        }
    }

    /// Whether it is parked by now; `None`: it has said nothing yet.
    pub(super) fn is_parked(&mut self) -> Option<Result<(), NotParked>> {
        if !self.channel.poll(Duration::ZERO) {
            return None;
        }
        let mut message = vec![0; wire::MAX_MESSAGE];
        Some(match self.channel.receive(Duration::ZERO, &mut message).and_then(|(message, _)| wire::decode(message)) {
            Some(Reply::Parked { private, variables, files, authority, .. }) => {
                if let Some(changed) = self.origin.changed_by_exec(&authority) {
                    return Some(Err(changed));
                }
                let owned = |list: Vec<&[u8]>| list.into_iter().map(<[u8]>::to_vec).collect();
                self.private = private;
                // What is parked ends with this process by itself, and the one in front with that.
                self.front.take().into_iter().for_each(Tree::detach);
                if let Some(birth) = Arc::get_mut(&mut self.origin) {
                    (birth.variables, birth.files) = (owned(variables), owned(files));
                }
                Ok(())
            }
            Some(Reply::Cannot { why }) => Err(NotParked::Ever(String::from_utf8_lossy(why).into_owned())),
            _ => Err(NotParked::Ever(NOT_PARKED.to_owned())),
        })
    }

    /// Where it is heard.
    pub(super) fn socket(&self) -> Option<&OwnedFd> {
        self.channel.socket()
    }

    /// Its process id.
    pub(super) fn pid(&self) -> i32 {
        self.child.as_ref().map_or(0, |child| child.id() as i32)
    }

    /// Whether a program with that environment would have found before main what this one has.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn agrees(&self, envp: &ArgBlock) -> Result<(), &'static str> {
        if self.origin.executes || std::ptr::eq(envp, &raw const *self.origin.env) {
            return Ok(());
        }
        for name in &self.origin.variables {
            if value(&self.origin.env, name) != value(envp, name) {
                return Err("variable");
            }
        }
        // ld.so and malloc look at these, and no getenv tells.
        let early = |string: &&[u8]| {
            [&b"LD_"[..], b"GLIBC_TUNABLES=", b"MALLOC_", b"OMP_", b"GOMP_"]
                .iter()
                .any(|prefix| string.starts_with(prefix))
        };
        let of = |block: &ArgBlock| {
            let mut all: Vec<Vec<u8>> =
                block.iter().map(std::ffi::CStr::to_bytes).filter(early).map(<[u8]>::to_vec).collect();
            all.sort_unstable();
            all
        };
        if of(&self.origin.env) == of(envp) { Ok(()) } else { Err("variable") }
    }

    /// Whether it has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.look(WaitIdOptions::EXITED)
    }

    /// Whether it runs: it has neither ended nor been stopped.
    pub(super) fn is_able(&self) -> bool {
        !self.look(WaitIdOptions::EXITED | WaitIdOptions::STOPPED)
    }

    fn look(&self, what: WaitIdOptions) -> bool {
        let Some(child) = &self.child else { return true };
        let how = what | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        !matches!(waitid(WaitId::PidFd(child.as_fd()), how), Ok(None))
    }

    /// The process, to be ended and waited for; `None`: not by this process, or not for sure.
    pub(super) fn take_child(&mut self) -> Option<Child> {
        let child = self.child.take()?;
        if fork_generation() != Ok(self.generation) {
            // A copy's: the process is not its own.
            std::mem::forget(child);
            return None;
        }
        let are_told_apart = self.origin.are_told_apart;
        if child.is_own() && (are_told_apart || may_refer_to(&child)) {
            return Some(child);
        }
        let (pid, identity) = (child.id() as i32, child.identity());
        // The number is the application's.
        std::mem::forget(child);
        self.channel.shut_down();
        let pidfd = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
        let again = Child::new(pid, pidfd, self.origin.started, None);
        if are_told_apart && again.identity() == identity {
            return Some(again);
        }
        // The host may have waited for it, and this be another process.
        drop(again.into_pidfd());
        None
    }

    /// Ends it.
    pub(super) fn end(&mut self) {
        // As long as its number is its own.
        drop(self.front.take());
        let Some(mut child) = self.take_child() else { return };
        if child.kill().is_ok() {
            let _ = child.wait();
        } else {
            // The host has given up the ids by which it may. It ends without us then, and is reaped when it has.
            self.channel.shut_down();
        }
    }
}

impl Drop for Parked {
    /// Ends it, but for one that has become the program.
    fn drop(&mut self) {
        self.end();
    }
}

/// Whether a pidfd, by what /proc tells, refers to that process, or to one that has been waited for.
fn may_refer_to(child: &Child) -> bool {
    let described = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", child.as_fd().as_raw_fd()));
    let pids = [child.id().to_string(), "-1".to_owned()];
    described.is_ok_and(|lines| {
        let mut found = lines.lines().filter_map(|line| line.strip_prefix("Pid:"));
        found.any(|pid| pids.iter().any(|own| own == pid.trim()))
    })
}

fn value<'a>(block: &'a ArgBlock, name: &[u8]) -> Option<&'a [u8]> {
    block.iter().find_map(|string| string.to_bytes().strip_prefix(name)?.strip_prefix(b"="))
}
