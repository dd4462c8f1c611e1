// SPDX-License-Identifier: MIT OR Apache-2.0
//! From what the caller asked for to what the child does.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::pipe::{PipeFlags, pipe_with};
use spawnfd_child::{Op, Step};
use spawnfd_sys::abi::open_how;
use spawnfd_sys::{Errno, call};

use super::action::{Action, MAX_ACTIONS};
use super::{Command, Stdio};
use crate::error::{Error, Result, Stage, errno};
use crate::launch::features;
use crate::template::Template;

/// A validated command, in the child's terms. Holds the pipe ends made for it.
#[derive(Debug)]
pub(crate) struct Lowered<'a> {
    pub(crate) sources: Vec<RawFd>,
    pub(crate) steps: Vec<Step<'a>>,
    pub(crate) keep: Vec<RawFd>,
    /// Where the sources wait meanwhile: from the first of these numbers up to the second.
    pub(crate) waiting: (RawFd, RawFd),
    /// The numbers that actions name.
    mentioned: Vec<RawFd>,
    inherits: bool,
    /// The place of the template's descriptor among the sources, where it is executed by that.
    pub(crate) executable: Option<usize>,
    pub(crate) own_memory: bool,
    /// The cgroup to be born in, with the index of the action.
    pub(crate) cgroup: Option<(u16, RawFd)>,
    /// The program, to be run to its end, leads a process group, which has its pid as number.
    pub(crate) leads_group: bool,
    /// The child's ends of pipes, open until it has them.
    child_ends: Vec<OwnedFd>,
    /// The caller's ends, for 0, 1 and 2.
    pub(crate) pipes: [Option<OwnedFd>; 3],
}

/// Step indexes of what is no action of the caller's.
const STDIO: u16 = u16::MAX - 8;
const CURRENT_DIR: u16 = u16::MAX - 4;
const USER_MAP: u16 = u16::MAX - 3;
const SESSION: u16 = u16::MAX - 2;

static NULL_READ: open_how = open_how { flags: spawnfd_sys::abi::O_RDONLY as u64, mode: 0, resolve: 0 };
static NULL_WRITE: open_how = open_how { flags: spawnfd_sys::abi::O_WRONLY as u64, mode: 0, resolve: 0 };

/// More numbers than a child has of its caller's where it leaves the caller's table.
const LOW: RawFd = 260;

const PR_SET_KEEPCAPS: u32 = 8;
const PR_SET_NO_NEW_PRIVS: u32 = 38;

impl<'a> Lowered<'a> {
    /// Validates the whole command, in the order: number of actions, what the builder refused, each action.
    pub(crate) fn new(command: &'a Command<'_>, template: &'a Template) -> Result<Lowered<'a>> {
        let actions = &command.actions;
        if actions.len() > MAX_ACTIONS {
            let call = format!("spawn: {} actions, {MAX_ACTIONS} at most", actions.len());
            return Err(Error::new(Stage::Validate, Errno::E2BIG, call));
        }
        if let Some(refused) = &command.refused {
            return Err(refused.clone());
        }
        for (index, action) in actions.iter().enumerate() {
            action.validate().map_err(|errno| Error::new(Stage::Action(index), errno, action.print()))?;
        }
        let mut lowered = Lowered {
            sources: Vec::with_capacity(4),
            steps: Vec::with_capacity(4 + actions.len()),
            keep: Vec::new(),
            waiting: (3, RawFd::MAX),
            mentioned: Vec::new(),
            inherits: command.inherits_descriptors(),
            executable: None,
            own_memory: command.user_map.is_some() || actions.iter().any(Action::needs_own_memory),
            cgroup: None,
            leads_group: false,
            child_ends: Vec::new(),
            pipes: Default::default(),
        };
        lowered.user_map(command);
        lowered.stdio(command)?;
        if command.new_session
            && !actions.iter().any(|action| matches!(action, Action::Setsid | Action::Setpgid { .. }))
        {
            lowered.step(SESSION, Op::Setsid);
        }
        lowered.leads_group = command.new_session
            && !actions.iter().any(|action| matches!(action, Action::Setpgid { group } if *group != 0));
        if let Some(path) = &command.current_dir {
            lowered.step(CURRENT_DIR, Op::Chdir { path });
        }
        for (index, action) in actions.iter().enumerate() {
            lowered.action(index, action, actions, command.user_map.is_some())?;
        }
        if template.executed_by_descriptor() {
            lowered.executable = Some(lowered.source(template.descriptor()));
        }
        lowered.find_room();
        lowered.keep.sort_unstable();
        lowered.keep.dedup();
        Ok(lowered)
    }

    fn step(&mut self, index: u16, op: Op<'a>) {
        self.steps.push(Step { index, op });
    }

    fn source(&mut self, fd: BorrowedFd<'_>) -> usize {
        let fd = fd.as_raw_fd();
        if let Some(place) = self.sources.iter().position(|&source| source == fd) {
            return place;
        }
        self.sources.push(fd);
        self.sources.len() - 1
    }

    /// Notes that the program has (or had, or uses) a number.
    fn mention(&mut self, fd: RawFd) {
        if fd > 2 {
            self.mentioned.push(fd);
        }
    }

    /// Notes that the program has a number from here on.
    fn provide(&mut self, fd: RawFd) {
        self.mention(fd);
        if fd > 2 {
            self.keep.push(fd);
        }
    }

    /// Checks a number that an action copies or uses. Unless the caller's descriptors are inherited it must be one that the program has
    /// by then: what else lies there, the caller's or the library's own, differs from one launch to the next.
    fn used(&mut self, index: usize, fd: RawFd, action: &Action<'_>) -> Result<()> {
        self.mention(fd);
        if fd > 2 && !self.inherits && !self.keep.contains(&fd) {
            return Err(Error::new(Stage::Action(index), Errno::EBADF, action.print()));
        }
        Ok(())
    }

    /// Finds numbers for the sources to wait at: above all that are mentioned, or between two of them if the limit leaves no others.
    /// Numbers beyond the limit do not count, as nothing can come to stand there.
    fn find_room(&mut self) {
        if self.mentioned.is_empty() {
            return;
        }
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let limit = limit.map_or(RawFd::MAX, |limit| RawFd::try_from(limit).unwrap_or(RawFd::MAX));
        self.mentioned.retain(|&fd| fd < limit);
        self.mentioned.sort_unstable();
        let highest = self.mentioned.last().map_or(3, |&fd| fd + 1);
        // What a child has of the caller's may lie there, too.
        let needed = self.sources.len() as RawFd + LOW;
        if highest <= limit - needed.min(limit) {
            self.waiting = (highest, limit);
            return;
        }
        let ends = self.mentioned.iter().copied().chain([limit]);
        let starts = [3].into_iter().chain(self.mentioned.iter().map(|&fd| fd + 1));
        self.waiting = starts.zip(ends).max_by_key(|(start, end)| end - start).unwrap_or((3, limit));
    }

    fn user_map(&mut self, command: &'a Command<'_>) {
        if let Some(map) = &command.user_map {
            // An unprivileged process may map groups only once it has given up setgroups: user_namespaces(7).
            self.step(USER_MAP, Op::WriteFile { path: c"/proc/self/setgroups", bytes: b"deny" });
            self.step(USER_MAP, Op::WriteFile { path: c"/proc/self/uid_map", bytes: &map.users });
            self.step(USER_MAP, Op::WriteFile { path: c"/proc/self/gid_map", bytes: &map.groups });
        }
    }

    fn stdio(&mut self, command: &'a Command<'_>) -> Result<()> {
        for (to, stdio) in (0..).zip(&command.stdio) {
            let index = STDIO + to as u16;
            match stdio {
                Stdio::Inherit => {}
                Stdio::SameAsStdout if to == 2 => self.step(index, Op::Dup2 { from: 1, to }),
                Stdio::SameAsStdout => {
                    let call = format!("stdio({to}): only standard error can be the same as standard output");
                    return Err(Error::new(Stage::Stdio(to as u8), Errno::EINVAL, call));
                }
                Stdio::Null => {
                    let how = if to == 0 { &NULL_READ } else { &NULL_WRITE };
                    self.step(index, Op::Open { dir: None, path: c"/dev/null", how, to });
                }
                Stdio::Descriptor(descriptor) => {
                    let source = self.source(descriptor.as_fd());
                    self.step(index, Op::Place { source, to });
                }
                Stdio::Piped => {
                    let (read, write) = pipe_with(PipeFlags::CLOEXEC)
                        .map_err(|e| Error::new(Stage::Stdio(to as u8), errno(e), "pipe2(O_CLOEXEC)"))?;
                    let (theirs, ours) = if to == 0 { (read, write) } else { (write, read) };
                    let source = self.source(theirs.as_fd());
                    self.step(index, Op::Place { source, to });
                    self.child_ends.push(theirs);
                    self.pipes[to as usize] = Some(ours);
                }
            }
        }
        Ok(())
    }

    fn action(&mut self, index: usize, action: &'a Action<'_>, all: &[Action<'_>], has_user_map: bool) -> Result<()> {
        let op = match action {
            Action::Place { source, to } => {
                self.provide(to.0);
                Op::Place { source: self.source(source.as_fd()), to: to.0 }
            }
            Action::Dup2 { from, to } => {
                self.used(index, from.0, action)?;
                self.provide(to.0);
                Op::Dup2 { from: from.0, to: to.0 }
            }
            Action::Close { fd } => {
                self.mention(fd.0);
                self.keep.retain(|&kept| kept != fd.0);
                Op::Close { fd: fd.0 }
            }
            Action::CloseRange { first, last } => {
                self.keep.retain(|&kept| !(*first..=*last).contains(&(kept as u32)));
                Op::CloseRange { first: *first, last: *last }
            }
            Action::Open { dir, path, how, to } => {
                self.provide(to.0);
                Op::Open { dir: dir.as_ref().map(|dir| self.source(dir.as_fd())), path, how, to: to.0 }
            }
            Action::Chdir { path } => Op::Chdir { path },
            Action::Fchdir { dir } => Op::Fchdir { source: self.source(dir.as_fd()) },
            Action::Chroot { path } => Op::Chroot { path },
            Action::Umask { mask } => Op::Umask { mask: *mask },
            Action::Setsid => Op::Setsid,
            Action::Setpgid { group } => Op::Setpgid { group: *group },
            Action::Tcsetpgrp { fd } => {
                self.used(index, fd.0, action)?;
                Op::Tcsetpgrp { fd: fd.0 }
            }
            Action::ControllingTerminal { fd } => {
                self.used(index, fd.0, action)?;
                Op::SetControllingTerminal { fd: fd.0 }
            }
            Action::Limit { resource, limit } => Op::Limit { resource: *resource, limit },
            Action::Nice { nice } => Op::Nice { nice: *nice },
            Action::Scheduler { policy, priority } => Op::Scheduler { policy: *policy, priority: *priority },
            Action::Affinity { mask } => Op::Affinity { mask },
            Action::UserIds { real, effective, saved } => {
                self.before_user_ids(index, all, has_user_map);
                Op::UserIds { real: *real, effective: *effective, saved: *saved }
            }
            Action::GroupIds { real, effective, saved } => {
                Op::GroupIds { real: *real, effective: *effective, saved: *saved }
            }
            Action::Groups { groups } => Op::Groups { groups },
            Action::Capabilities { sets } => Op::Capabilities { sets },
            Action::NoNewPrivs => Op::Prctl { option: PR_SET_NO_NEW_PRIVS, value: 1 },
            Action::Cgroup { dir } if features::clone3() && self.cgroup.is_none() => {
                self.cgroup = Some((index as u16, dir.number()));
                return Ok(());
            }
            Action::Cgroup { dir } => Op::JoinCgroup { source: self.source(dir.as_fd()) },
            Action::JoinNamespace { namespace, kinds } => {
                Op::JoinNamespace { source: self.source(namespace.as_fd()), kinds: *kinds }
            }
            Action::OomScoreAdj { text, .. } => Op::WriteFile { path: c"/proc/self/oom_score_adj", bytes: text },
            Action::Landlock { ruleset } => Op::Landlock { source: self.source(ruleset.as_fd()) },
            // Refused by validation.
            Action::Unusable { .. } => return Ok(()),
        };
        self.step(index as u16, op);
        Ok(())
    }

    /// A change of user ids takes root's supplementary groups along, and its capabilities away: neither is meant.
    fn before_user_ids(&mut self, index: usize, all: &[Action<'_>], has_user_map: bool) {
        let root = call::ids()[1] == 0;
        let groups_set = all.iter().any(|action| matches!(action, Action::Groups { .. }));
        let first = !all[..index].iter().any(|action| matches!(action, Action::UserIds { .. }));
        // A new user namespace of one user has given setgroups up.
        if root && first && !groups_set && !has_user_map {
            self.step(index as u16, Op::Groups { groups: &[] });
        }
        if all[index..].iter().any(|action| matches!(action, Action::Capabilities { .. })) {
            self.step(index as u16, Op::Prctl { option: PR_SET_KEEPCAPS, value: 1 });
        }
    }
}

/// The error for a step that failed in the child.
pub(crate) fn step_failed(command: &Command<'_>, index: u16, errno: Errno) -> Error {
    let (stage, call) = match index {
        USER_MAP => (Stage::Clone, "user_namespace()".to_owned()),
        SESSION => (Stage::Clone, "setsid()".to_owned()),
        CURRENT_DIR => (Stage::CurrentDir, format!("chdir({:?})", command.current_dir.as_deref().unwrap_or_default())),
        STDIO.. => {
            let number = (index - STDIO) as u8;
            let call = match &command.stdio[usize::from(number).min(2)] {
                Stdio::Null => r#"open("/dev/null")"#.to_owned(),
                Stdio::Descriptor(descriptor) => format!("dup2({}, {number})", descriptor.number()),
                _ => format!("dup2(pipe, {number})"),
            };
            (Stage::Stdio(number), call)
        }
        _ => {
            let index = usize::from(index);
            (Stage::Action(index), command.actions.get(index).map(Action::print).unwrap_or_default())
        }
    };
    Error::new(stage, errno, call)
}
