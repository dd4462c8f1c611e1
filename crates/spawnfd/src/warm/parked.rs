// SPDX-License-Identifier: MIT OR Apache-2.0
//! One parked process: its state, the children that it forks, and its end.

use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, WaitId, WaitIdOptions, pidfd_open, waitid};
use spawnfd_sys::{ArgBlock, Errno, fork_generation, send};

use super::caller::CallerState;
use super::channel::Channel;
use super::entry_point::ModuleNames;
use super::sandbox_command::Referent;
use super::watch::ExecTime;
use super::wire::{self, Reply};
use crate::child::{Child, Started};
use crate::cold_reason::ColdReason;
use crate::host::authority::{AddedConfinement, Reported};
use crate::tree::Tree;

/// SIGPIPE and SIGXFSZ. A started program has their default action, even if the caller ignores them.
pub(super) const MADE_DEFAULT: u64 = 1 << (13 - 1) | 1 << (25 - 1);

/// The time within which a parked process must accept a request. Once the process has accepted, the
/// wait has no limit, as for exec.
pub(super) const ACCEPT_TIMEOUT: Duration = Duration::from_millis(500);

/// A shared handle of a parked process. Several threads may use a parent at once.
#[derive(Clone, Debug)]
pub(super) struct ParkedHandle {
    pub(super) version: u64,
    /// The time at which the process was parked.
    pub(super) parked_at: Instant,
    /// True if the keeper will replace the process. Until then, starts still use the process.
    pub(super) outdated: bool,
    pub(super) memory: u64,
    /// The start-up time that a start from this process saves.
    pub(super) start_up: Duration,
    pub(super) process: Arc<Mutex<ParkedProcess>>,
}

impl ParkedHandle {
    pub(super) fn new(version: u64, parked: ParkedProcess) -> ParkedHandle {
        let (parked_at, memory, start_up) = (Instant::now(), parked.private, parked.start_up);
        ParkedHandle { version, parked_at, outdated: false, memory, start_up, process: Arc::new(Mutex::new(parked)) }
    }
}

/// Why the keeper has not parked a program.
#[derive(Debug)]
pub(super) enum NotParked {
    /// A resource is missing now; try again.
    Temporary(ColdReason),
    /// The program cannot be parked as it is.
    Permanent(ColdReason),
}

/// A parked process. It waits for a request to become a program.
#[derive(Debug)]
pub(super) struct ParkedProcess {
    pub(super) generation: u64,
    /// `None` once the process has become the program.
    pub(super) child: Option<Child>,
    /// The tree of the sandbox command, until the process is parked. The sandbox command does not read the channel,
    /// so the owner ends it by this tree.
    pub(super) sandbox_tree: Option<Tree>,
    pub(super) channel: Channel,
    pub(super) serial: u32,
    pub(super) origin: Arc<ParkedOrigin>,
    /// Private memory at the time of parking, in bytes.
    pub(super) private: u64,
    /// Private memory of a forked child, in bytes, once a child has reported it.
    pub(super) child_private: Option<u64>,
    /// The CPU time of the start-up. A forked child has its parent's.
    pub(super) start_up: Duration,
    /// The number of children forked so far.
    pub(super) forked: u64,
    /// Why the process forks no more children.
    pub(super) fork_error: Option<ColdReason>,
}

/// The data that the owner recorded when it started a parked process. Its forked children share it.
#[derive(Debug)]
pub(super) struct ParkedOrigin {
    /// How the library reports programs started from this process.
    pub(super) started: Started,
    /// True if the process becomes a program by exec.
    pub(super) executes: bool,
    /// True if the owner's child is a sandbox command, which has started the parked process.
    pub(super) has_sandbox_command: bool,
    /// The caller state when the process was started.
    pub(super) caller: CallerState,
    pub(super) env: Arc<ArgBlock<'static>>,
    /// The files behind the descriptors that the sandbox command got.
    pub(super) given: Vec<Referent>,
    pub(super) variables: Vec<Vec<u8>>,
    pub(super) files: Vec<Vec<u8>>,
    /// The modules that the process has looked up for its entry point.
    pub(super) modules: ModuleNames,
    /// The directory that the program searches first for modules, if it is known.
    pub(super) first_path: Option<PathBuf>,
    /// The confinement that the recipe adds to the confinement of the keeper thread. `None` if a sandbox command
    /// confines the process.
    pub(super) added: Option<AddedConfinement>,
    /// The time just before exec.
    pub(super) before_exec: ExecTime,
    /// Whether pidfds of different processes have different inodes: from Linux 6.9 on.
    pub(super) pidfds_differ: bool,
}

/// The outcome of a request for children.
pub(super) struct ForkedChildren {
    pub(super) children: Vec<ParkedProcess>,
    /// Why there are fewer children than requested.
    pub(super) shortfall: Option<ColdReason>,
}

impl ParkedOrigin {
    /// Whether another process has loaded the same files, and watches the same directories.
    pub(super) fn has_files_of(&self, other: &ParkedOrigin) -> bool {
        self.files == other.files && self.first_path == other.first_path && self.modules == other.modules
    }

    /// Returns a reason to refuse the process if exec has changed its authority (its credentials). The owner knows
    /// only the keeper's authority, so the owner could not compare a changed authority with the caller's.
    ///
    /// A sandbox command may change the authority, as it does in a cold start. In this case [`ParkedProcess::start`]
    /// has checked that the keeper had the same authority before and after the start.
    fn changed_by_exec(&self, reported: &Reported<'_>) -> Option<NotParked> {
        let changed = self.caller.authority.changed_by_exec(reported, self.added?)?;
        let text = format!("exec changes {}", changed.word());
        Some(NotParked::Permanent(ColdReason::with_text(ColdReason::ExecChanges, &text)))
    }
}

impl ParkedProcess {
    pub(super) fn new(generation: u64, child: Child, channel: Channel, origin: Arc<ParkedOrigin>) -> ParkedProcess {
        ParkedProcess {
            generation,
            child: Some(child),
            sandbox_tree: None,
            channel,
            serial: 0,
            origin,
            private: 0,
            child_private: None,
            start_up: Duration::ZERO,
            forked: 0,
            fork_error: None,
        }
    }

    /// The outcome of parking. `None` if the process has not reported yet.
    pub(super) fn poll_report(&mut self) -> Option<Result<(), NotParked>> {
        if !self.channel.poll(Duration::ZERO) {
            return None;
        }
        let mut message = vec![0; wire::MAX_MESSAGE];
        Some(match self.channel.receive(Duration::ZERO, &mut message).and_then(|(message, _)| wire::decode(message)) {
            Some(Reply::Parked { private, variables, files, modules, authority, .. }) => {
                if let Some(changed) = self.origin.changed_by_exec(&authority) {
                    return Some(Err(changed));
                }
                let owned = |list: Vec<&[u8]>| list.into_iter().map(<[u8]>::to_vec).collect();
                self.private = private;
                // From now on, the parked process exits when this process ends, and so does the sandbox command.
                self.sandbox_tree.take().into_iter().for_each(Tree::detach);
                if let Some(origin) = Arc::get_mut(&mut self.origin) {
                    (origin.variables, origin.files) = (owned(variables), owned(files));
                    origin.modules = ModuleNames::new(owned(modules), &origin.files);
                }
                Ok(())
            }
            Some(Reply::Cannot { why }) => Err(NotParked::Permanent(ColdReason::decode(why))),
            _ => Err(NotParked::Permanent(ColdReason::NotParked)),
        })
    }

    /// The process id of the parked process, or 0 once it has become the program.
    pub(super) fn pid(&self) -> i32 {
        self.child.as_ref().map_or(0, |child| child.id() as i32)
    }

    /// Checks that the variables that this process has read before main have the same values in `envp`.
    ///
    /// # Errors
    /// The reason for a cold start.
    pub(super) fn check_environment(&self, envp: &ArgBlock<'_>) -> Result<(), ColdReason> {
        if self.origin.executes || std::ptr::eq(envp, &raw const *self.origin.env) {
            return Ok(());
        }
        for name in &self.origin.variables {
            if value(&self.origin.env, name) != value(envp, name) {
                return Err(ColdReason::Variable);
            }
        }
        // ld.so and malloc read these variables without getenv, so the preloaded object does not
        // record them.
        let early = |string: &&[u8]| {
            [&b"LD_"[..], b"GLIBC_TUNABLES=", b"MALLOC_", b"OMP_", b"GOMP_"]
                .iter()
                .any(|prefix| string.starts_with(prefix))
        };
        let of = |block: &ArgBlock<'_>| {
            let mut all: Vec<Vec<u8>> =
                block.iter().map(std::ffi::CStr::to_bytes).filter(early).map(<[u8]>::to_vec).collect();
            all.sort_unstable();
            all
        };
        if of(&self.origin.env) == of(envp) { Ok(()) } else { Err(ColdReason::Variable) }
    }

    /// Whether the process has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.has_state(WaitIdOptions::EXITED)
    }

    /// Whether the process runs: it has neither ended nor been stopped.
    pub(super) fn is_runnable(&self) -> bool {
        !self.has_state(WaitIdOptions::EXITED | WaitIdOptions::STOPPED)
    }

    fn has_state(&self, what: WaitIdOptions) -> bool {
        let Some(child) = &self.child else { return true };
        let how = what | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        !matches!(waitid(WaitId::PidFd(child.as_fd()), how), Ok(None))
    }

    /// Takes the child out of this value, so that the caller can kill and reap it. Returns `None` if
    /// the process is not a child of this process, or if the library cannot prove that it is one.
    pub(super) fn take_child(&mut self) -> Option<Child> {
        let child = self.child.take()?;
        if fork_generation() != Ok(self.generation) {
            // This is a forked copy of the host, and the process is not its child.
            std::mem::forget(child);
            return None;
        }
        let pidfds_differ = self.origin.pidfds_differ;
        if child.is_own() && (pidfds_differ || may_refer_to(&child)) {
            return Some(child);
        }
        let (pid, identity) = (child.id() as i32, child.identity());
        // The application has put another file at the pidfd's number. Do not close that file.
        std::mem::forget(child);
        self.channel.shut_down();
        let pidfd = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
        let reopened = Child::new(pid, pidfd, self.origin.started, None);
        if pidfds_differ && reopened.identity() == identity {
            return Some(reopened);
        }
        // The new pidfd may refer to another process: the host may have reaped the child, so its pid may be reused.
        drop(reopened.into_pidfd());
        None
    }

    /// Forks children from the parked process. The children are parked processes too. If there are fewer children
    /// than requested, the parent is no longer usable.
    ///
    /// # Errors
    /// The reason why this process has requested no child.
    pub(super) fn fork(&mut self, count: usize) -> Result<ForkedChildren, ColdReason> {
        let (mut channels, mut shortfall) = (Vec::new(), self.fork_error);
        while shortfall.is_none() && channels.len() < count {
            match self.request_child(channels.is_empty()) {
                // Send all requests before waiting for the first answer.
                Ok(channel) => channels.push(channel),
                Err(why @ (ColdReason::Descriptors | ColdReason::DescriptorTable)) if channels.is_empty() => {
                    return Err(why);
                }
                Err(why) => shortfall = Some(why),
            }
        }
        let mut children = Vec::with_capacity(channels.len());
        for channel in channels {
            match self.receive_child(channel) {
                Ok(child) => children.push(child),
                Err(why) => shortfall = shortfall.or(Some(why)),
            }
        }
        self.forked += children.len() as u64;
        self.fork_error = shortfall;
        Ok(ForkedChildren { children, shortfall })
    }

    fn request_child(&self, is_first: bool) -> Result<Channel, ColdReason> {
        let (channel, child_ends) = Channel::new().map_err(|_| ColdReason::Descriptors)?;
        let socket = self.channel.socket.get().ok_or(ColdReason::DescriptorTable)?;
        let mut request = wire::encode_fork(self.child_private.is_none() && is_first);
        let sent = send(socket.as_raw_fd(), &mut request, &child_ends.each_ref().map(AsRawFd::as_raw_fd));
        sent.map(|()| channel).map_err(why_unsent)
    }

    fn receive_child(&mut self, mut channel: Channel) -> Result<ParkedProcess, ColdReason> {
        let mut message = [0; 64];
        // poll() also reports an event if the parent has ended.
        let has_event = channel.poll(ACCEPT_TIMEOUT);
        let received = channel
            .receive(Duration::ZERO, &mut message)
            .and_then(|(message, pidfd)| Some((wire::decode(message)?, pidfd?)));
        let child = received.and_then(|(reply, pidfd)| match reply {
            Reply::Parked { pid, private, .. } => Some((Child::new(pid, pidfd, self.origin.started, None), private)),
            Reply::Cannot { .. } => None,
        });
        let Some((child, private)) = child else {
            // End the parent first, so that it forks no other child.
            self.end();
            channel.kill_unreported_child();
            return Err(if has_event { ColdReason::Died } else { ColdReason::Slow });
        };
        let renumbered = channel.renumber();
        let mut parked = ParkedProcess::new(self.generation, child, channel, self.origin.clone());
        parked.start_up = self.start_up;
        parked.private = *self.child_private.get_or_insert(private);
        if renumbered.is_err() {
            // Dropping `parked` kills the child by its pidfd.
            self.end();
            return Err(ColdReason::Descriptors);
        }
        Ok(parked)
    }

    /// Kills and reaps the process.
    pub(super) fn end(&mut self) {
        // Drop the tree first: until the child is reaped, no other process has its pid.
        drop(self.sandbox_tree.take());
        let Some(mut child) = self.take_child() else { return };
        if child.kill().is_ok() {
            let _ = child.wait();
        } else {
            // The host has changed its user ids and may not kill the process. The process exits at EOF, and the
            // reaper reaps it.
            self.channel.shut_down();
        }
    }
}

impl Drop for ParkedProcess {
    /// Kills and reaps the process, unless it has become the program.
    fn drop(&mut self) {
        self.end();
    }
}

/// Whether the child's pidfd refers to a process with the child's pid, or to a reaped process. The
/// file fdinfo of /proc shows the pid of a pidfd.
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

/// The reason why a message was not sent.
pub(super) fn why_unsent(errno: Errno) -> ColdReason {
    let are_too_few = matches!(errno, Errno::EBADF | Errno::ETOOMANYREFS);
    let is_gone = matches!(errno, Errno::EPIPE | Errno::ECONNRESET);
    if are_too_few {
        ColdReason::Descriptors
    } else if is_gone {
        ColdReason::Died
    } else {
        ColdReason::Socket
    }
}
