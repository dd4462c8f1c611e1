// SPDX-License-Identifier: MIT OR Apache-2.0
//! Translates a command into the plan that the child carries out.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::getpgrp;
use spawnfd_child::{Data, Op, Plan, Step};
use spawnfd_sys::{Errno, abi, call};

use super::{Command, Start, Stdio, ids};
use crate::error::{Error, Result, Stage, errno, of_path};
use crate::host::descriptors::descriptor_limit;
use crate::host::features::Features;
use crate::host::thread;
use crate::template::Template;

/// The maximum number of actions of one spawn.
pub const MAX_ACTIONS: usize = 256;

/// The plan of a validated command. This value owns the pipe ends that were made for the plan.
#[derive(Debug)]
pub(crate) struct Lowered {
    pub(crate) plan: Plan<'static>,
    pub(crate) separate_mm: bool,
    /// True if the child must not run at the same time as its parent.
    pub(crate) must_wait: bool,
    /// The cgroup in which the kernel creates the child, with the index of the action.
    pub(crate) cgroup: Option<(u16, RawFd)>,
    /// The child's ends of pipes, and files opened for the child. They stay open until the child has them.
    pub(crate) child_ends: Vec<OwnedFd>,
    /// The caller's ends of the pipes for the streams 0, 1 and 2.
    pub(crate) pipes: [Option<OwnedFd>; 3],
}

/// The constants below are indexes of steps that are not the caller's actions.
const LIMITS: u16 = u16::MAX - 32;
/// Three consecutive indexes, one for each file: setgroups, uid_map and gid_map.
const USER_MAP: u16 = u16::MAX - 13;
const TERMINAL: u16 = u16::MAX - 10;
pub(crate) const GIVEN: u16 = u16::MAX - 9;
const STDIO: u16 = u16::MAX - 8;
const REGISTRATION: u16 = u16::MAX - 5;
const CURRENT_DIR: u16 = u16::MAX - 4;
const SESSION: u16 = u16::MAX - 2;
const TREE: u16 = u16::MAX - 1;

/// An upper bound for the caller's descriptors that a child still has after it has left the caller's table.
const LOW: RawFd = 260;

impl Lowered {
    /// Validates the whole command in this order: number of actions, arguments that the builder rejected, each
    /// action, arguments, environment.
    ///
    /// If `renew` is true, the child may run a file that a new search finds, not only the recorded file. If there is a
    /// value of `streams`, a parked process carries out the plan. The plan gives that process the caller's open
    /// streams among 0, 1 and 2, and the calling thread's signal mask.
    pub(crate) fn new(
        start: &Start<'_>,
        template: &Template,
        features: &Features,
        renew: bool,
        streams: Option<[bool; 3]>,
    ) -> Result<Lowered> {
        let command = start.command;
        let count = command.actions.len();
        let callers = count - command.drop_in.uncounted;
        if callers > MAX_ACTIONS {
            let call = format!("spawn: {callers} actions, {MAX_ACTIONS} at most");
            return Err(Error::new(Stage::Validate, Errno::E2BIG, call));
        }
        if let Some(refused) = &command.refused {
            return Err(refused.clone());
        }
        for (index, action) in command.actions.iter().enumerate() {
            match action {
                Ok(action) => action.validate().map_err(|errno| refused(command, index, action, errno))?,
                Err(call) => return Err(Error::refused(Stage::Action(index), Errno::EINVAL, call.clone())),
            }
        }
        check_targets(command)?;
        ids::check_order(start)?;
        let namespaces = command.namespace_flags();
        let beside = match start.namespace() {
            // The new namespaces would be created with the capabilities of the intermediate process (which enters the
            // tree's namespaces), and the program must not have these capabilities.
            Some((_, true)) if namespaces != 0 => Some("namespaces beside a tree's user namespace"),
            // The kernel refuses a new pid namespace to a process that has entered another pid namespace only for its
            // children.
            Some((_, false)) if namespaces & abi::CLONE_NEWPID != 0 => {
                Some("a pid namespace beside a tree's pid namespace")
            }
            _ => None,
        };
        if let Some(beside) = beside {
            return Err(Error::refused(Stage::Tree, Errno::EINVAL, format!("spawn: {beside}")));
        }
        if start.subreaper().is_some() && command.signals.parent_death.is_some() {
            let message =
                "a parent-death signal cannot be combined with a subreaper: the program is not a child of this process";
            return Err(Error::refused(Stage::Tree, Errno::EINVAL, "spawn: parent-death signal").saying(message));
        }
        // A cgroup action of the caller would move the program out of the tree's cgroup, and out of that cgroup's
        // limits.
        let named = |action: &Op<'_>| matches!(action, Op::Cgroup { .. });
        if start.tree_cgroup().is_some()
            && let Some((index, action)) = command.all_actions().enumerate().find(|(_, action)| named(action))
        {
            let call = format!("{} beside the cgroup of a tree or of limits", command.print(action));
            return Err(Error::refused(Stage::Action(index), Errno::EINVAL, call));
        }
        let mut table = ChildTable { inherits: command.inherit_descriptors, ..ChildTable::default() };
        let mut lowered = Lowering { steps: Vec::with_capacity(4 + count), ..Lowering::default() };
        lowered.tree(start, features);
        lowered.user_map(command);
        lowered.stdio(start, streams)?;
        lowered.given(start, &mut table)?;
        let has = |wanted: fn(&Op<'_>) -> bool| start.actions().any(wanted);
        // If the run provides a controlling terminal, the program must lead a session. Otherwise it is enough that
        // the program is in a process group that an action sets.
        let has_terminal = start.actions.iter().any(|own| matches!(own, Op::ControllingTerminal { .. }));
        let has_group = !has_terminal && has(|action| matches!(action, Op::Setpgid { .. }));
        if start.new_session && !has_group && !has(|action| matches!(action, Op::Setsid)) {
            lowered.step(SESSION, Op::Setsid);
        }
        if let Some(path) = &command.current_dir {
            lowered.step(CURRENT_DIR, Op::Chdir { path: Data::Shared(path.clone()) });
        }
        // A process in a new pid namespace cannot name the group of this process, but is in it until an action changes that.
        let has_own_pids = start.namespace().is_some() || command.namespace_flags() & abi::CLONE_NEWPID != 0;
        let mut group = (has_own_pids && !has_terminal).then(|| getpgrp().as_raw_pid());
        for (index, action) in start.actions().enumerate() {
            table.note(command, index, action)?;
            match action {
                Op::Setpgid { group: wanted } if Some(*wanted) == group => continue,
                Op::Setpgid { .. } | Op::Setsid => group = None,
                _ => {}
            }
            let number = match action {
                _ if index < count => index as u16,
                Op::ControllingTerminal { .. } => TERMINAL,
                _ => LIMITS + (index - count) as u16,
            };
            lowered.action(index, number, action, start, features);
        }
        let source = template.executed_by_descriptor().then(|| lowered.source(template.descriptor().as_raw_fd()));
        let (above, below) = table.free_range(lowered.sources.len());
        let highest = table.highest();
        Ok(Lowered {
            separate_mm: command.namespaces.user_map.is_some()
                || start.namespace().is_some()
                || has(|action| action.needs_separate_mm()),
            // The child must inherit the streams that the caller has during this call. A parent-death signal refers
            // to the calling thread, which may end after the call. Without CLONE_VFORK, oom_score_adj would apply to
            // all processes that share the memory (fs/proc/base.c, __set_oom_adj).
            //
            // In the cgroup of a tree or of limits, exec alone may reach the memory limit. The OOM killer kills all
            // processes that share the victim's memory, and never chooses a vfork child (mm/oom_kill.c, oom_badness).
            must_wait: command.signals.parent_death.is_some()
                || start.streams().any(|stdio| matches!(stdio, Stdio::Inherit))
                || start.tree_cgroup().is_some()
                || has(|action| matches!(action, Op::OomScoreAdj { .. })),
            cgroup: lowered.cgroup,
            child_ends: lowered.child_ends,
            pipes: lowered.pipes,
            plan: Plan {
                killed_calls: features.killed_calls,
                sources: lowered.sources.into(),
                above,
                below,
                highest,
                steps: lowered.steps.into(),
                keep: (!table.inherits).then(|| table.kept().into()),
                default_signals: command.signals.default.unwrap_or(super::SIGPIPE).bits(),
                signal_mask: command
                    .signals
                    .mask
                    .map(crate::signals::SignalSet::bits)
                    .or_else(thread::mask_in_engine)
                    .or_else(|| streams.map(|_| call::signal_mask())),
                parent_death: command
                    .signals
                    .parent_death
                    .and_then(|signal| Some((signal as u32, call::getpid().ok()?))),
                program: template.program(source, renew),
                owners_mapped: start.changes_user_namespace(),
                filter: command.filter.clone().map(Data::Shared),
                argv: command.encode_args()?,
                shell: command.encode_shell_args(template)?,
                envp: Data::Shared(command.encode_env()?),
            },
        })
    }
}

/// The program's descriptor numbers, tracked from action to action.
#[derive(Default)]
struct ChildTable {
    inherits: bool,
    keep: Vec<RawFd>,
    /// All numbers that actions name.
    mentioned: Vec<RawFd>,
}

impl ChildTable {
    fn note(&mut self, command: &Command<'_>, index: usize, action: &Op<'_>) -> Result<()> {
        if let Some(fd) = action.reads() {
            self.mention(fd);
            // An earlier step must have provided the number, unless the program inherits the
            // caller's descriptors. Other descriptors at that number, the caller's or the
            // library's, differ between launchers.
            if fd > 2 && !self.inherits && !self.keep.contains(&fd) {
                return Err(refused(command, index, action, Errno::EBADF));
            }
        }
        if let Some(fd) = action.makes() {
            self.provide(fd);
        }
        match *action {
            Op::Close { fd } => {
                self.mention(fd);
                self.keep.retain(|&kept| kept != fd);
            }
            Op::CloseRange { first, last } => self.keep.retain(|&kept| !(first..=last).contains(&(kept as u32))),
            _ => {}
        }
        Ok(())
    }

    /// Records that the program has, had or uses this number.
    fn mention(&mut self, fd: RawFd) {
        if fd > 2 {
            self.mentioned.push(fd);
        }
    }

    /// Records that the program has this number from now on.
    fn provide(&mut self, fd: RawFd) {
        self.mention(fd);
        if fd > 2 {
            self.keep.push(fd);
        }
    }

    fn kept(mut self) -> Vec<RawFd> {
        self.keep.sort_unstable();
        self.keep.dedup();
        self.keep
    }

    /// The highest number that an action names.
    fn highest(&self) -> RawFd {
        self.mentioned.iter().fold(2, |highest, &fd| highest.max(fd))
    }

    /// Finds free numbers for `sources` descriptors: above all numbers that actions name, or between two of them if
    /// the limit leaves no others. Numbers at or beyond the limit are ignored, because no descriptor can have them.
    fn free_range(&mut self, sources: usize) -> (RawFd, RawFd) {
        if self.mentioned.is_empty() {
            return (3, RawFd::MAX);
        }
        let limit = descriptor_limit().unwrap_or(RawFd::MAX);
        self.mentioned.retain(|&fd| fd < limit);
        self.mentioned.sort_unstable();
        let highest = self.mentioned.last().map_or(3, |&fd| fd + 1);
        // The caller's descriptors that the child still has may also have numbers in this range.
        let needed = sources as RawFd + LOW;
        if highest <= limit - needed.min(limit) {
            return (highest, limit);
        }
        let ends = self.mentioned.iter().copied().chain([limit]);
        let starts = [3].into_iter().chain(self.mentioned.iter().map(|&fd| fd + 1));
        starts.zip(ends).max_by_key(|(start, end)| end - start).unwrap_or((3, limit))
    }
}

/// The steps, and the caller's descriptors that they use.
#[derive(Default)]
struct Lowering {
    sources: Vec<RawFd>,
    steps: Vec<Step<'static>>,
    cgroup: Option<(u16, RawFd)>,
    child_ends: Vec<OwnedFd>,
    pipes: [Option<OwnedFd>; 3],
}

impl Lowering {
    fn step(&mut self, index: u16, op: Op<'static>) {
        self.steps.push(Step { index, op });
    }

    fn source(&mut self, fd: RawFd) -> usize {
        if let Some(place) = self.sources.iter().position(|&source| source == fd) {
            return place;
        }
        self.sources.push(fd);
        self.sources.len() - 1
    }

    /// Adds the steps by which the program enters its tree's cgroup and registers with the guard. They come before
    /// any change of ids.
    fn tree(&mut self, start: &Start<'_>, features: &Features) {
        if let Some(dir) = start.tree_cgroup() {
            if features.has_clone3() {
                self.cgroup = Some((TREE, dir.as_raw_fd()));
            } else {
                let dir = self.source(dir.as_raw_fd());
                self.step(TREE, Op::Cgroup { dir });
            }
        }
        if let Some(to) = start.registration() {
            self.step(REGISTRATION, Op::Register { to: to.clone() });
        }
    }

    fn user_map(&mut self, command: &Command<'_>) {
        if let Some(map) = &command.namespaces.user_map {
            // An unprivileged process may map groups only after it has disabled setgroups: user_namespaces(7).
            self.step(USER_MAP, Op::DenySetgroups);
            self.step(USER_MAP + 1, Op::UserMap { map: Data::Shared(map.users.clone()) });
            self.step(USER_MAP + 2, Op::GroupMap { map: Data::Shared(map.groups.clone()) });
        }
    }

    fn stdio(&mut self, start: &Start<'_>, streams: Option<[bool; 3]>) -> Result<()> {
        // Check this before creating pipes, because a pipe may get a closed stream's number.
        let closed: [bool; 3] = match streams {
            Some(open) => open.map(|open| !open),
            // The child may put a copy of a source, or its own pidfd, at a closed stream's number. An action that
            // uses the number must not find that descriptor.
            None => [0, 1, 2].map(|fd| uses_stream(start, fd) && call::descriptor_flags(fd).is_err()),
        };
        for (to, stdio) in (0..).zip(start.streams()) {
            let index = STDIO + to as u16;
            match stdio {
                Stdio::Inherit if closed[to as usize] => self.step(index, Op::Close { fd: to }),
                Stdio::Inherit if streams.is_some() => {
                    let source = self.source(to);
                    self.step(index, Op::Place { source, to });
                }
                Stdio::Inherit => {}
                Stdio::SameAsStdout if to == 2 => self.step(index, Op::Dup2 { from: 1, to }),
                Stdio::SameAsStdout => {
                    let call = format!("stdio({to}): only standard error can be the same as standard output");
                    return Err(Error::refused(Stage::Stdio(to as u8), Errno::EINVAL, call));
                }
                Stdio::Null => self.step(index, Op::OpenNull { to }),
                Stdio::Descriptor(descriptor) => {
                    let source = self.source(descriptor.number());
                    self.step(index, Op::Place { source, to });
                }
                Stdio::Piped => {
                    let (read, write) = pipe_with(PipeFlags::CLOEXEC)
                        .map_err(|e| Error::new(Stage::Stdio(to as u8), errno(e), "pipe2(O_CLOEXEC)"))?;
                    let (theirs, ours) = if to == 0 { (read, write) } else { (write, read) };
                    let source = self.source(theirs.as_raw_fd());
                    self.step(index, Op::Place { source, to });
                    self.child_ends.push(theirs);
                    self.pipes[to as usize] = Some(ours);
                }
            }
        }
        Ok(())
    }

    /// Opens the sandbox's descriptors anew for this start.
    fn given(&mut self, start: &Start<'_>, table: &mut ChildTable) -> Result<()> {
        let limit = start.given().next().and_then(|_| descriptor_limit());
        for given in start.given() {
            if limit.is_some_and(|limit| given.number >= limit) {
                return Err(given.out_of_range());
            }
            let fd = given.open_for_start()?;
            let source = self.source(fd.as_raw_fd());
            self.step(GIVEN, Op::Place { source, to: given.number });
            table.provide(given.number);
            self.child_ends.push(fd);
        }
        Ok(())
    }

    fn action(&mut self, index: usize, number: u16, action: &Op<'static>, start: &Start<'_>, features: &Features) {
        let command = start.command;
        match action {
            Op::UserIds { .. } => self.before_user_ids(index, command),
            // clone3 can create the child in this cgroup, except for a tree's pid namespace: there clone3 creates the
            // intermediate process, not the program.
            Op::Cgroup { dir } if features.has_clone3() && self.cgroup.is_none() && start.namespace().is_none() => {
                self.cgroup = Some((number, command.source_number(*dir)));
                return;
            }
            _ => {}
        }
        let op = action.clone().map_source(|source| self.source(command.source_number(source)));
        self.step(number, op);
    }

    /// A change of user ids by root would keep root's supplementary groups and drop its capabilities. The caller
    /// intends neither.
    fn before_user_ids(&mut self, index: usize, command: &Command<'_>) {
        let root = call::ids()[1] == 0;
        let groups_set = command.all_actions().any(|action| matches!(action, Op::Groups { .. }));
        let first = !command.all_actions().take(index).any(|action| matches!(action, Op::UserIds { .. }));
        // A new user namespace with one user has setgroups disabled.
        if root && first && !groups_set && command.namespaces.user_map.is_none() {
            self.step(index as u16, Op::Groups { groups: Data::Borrowed(&[]) });
        }
        if command.all_actions().skip(index).any(|action| matches!(action, Op::Capabilities { .. })) {
            self.step(index as u16, Op::KeepCapabilities);
        }
    }
}

/// Whether an action or standard error uses the child's descriptor of this stream.
fn uses_stream(start: &Start<'_>, stream: RawFd) -> bool {
    stream == 1 && matches!(start.stream(2), Stdio::SameAsStdout)
        || start.actions().any(|action| action.reads() == Some(stream))
}

/// Rejects a target number that no descriptor of the child can have: a number at or above the hard RLIMIT_NOFILE limit.
///
/// The child may place a descriptor above the soft limit (`place_beyond_limit`). An action may raise the hard limit, so
/// a command that sets RLIMIT_NOFILE is not checked. Numbers below 1024 need no system call here: if such a number
/// exceeds the limit, the child reports it.
fn check_targets(command: &Command<'_>) -> Result<()> {
    let sets_limit = |action: &Op<'_>| matches!(action, Op::Limit { resource: abi::RLIMIT_NOFILE, .. });
    let is_small = |action: &Op<'_>| action.makes().is_none_or(|to| to < 1024);
    if command.all_actions().all(is_small) || command.all_actions().any(sets_limit) {
        return Ok(());
    }
    let Ok(limit) = call::limit(abi::RLIMIT_NOFILE) else { return Ok(()) };
    for (index, action) in command.all_actions().enumerate() {
        if let Some(to) = action.makes().filter(|&to| u64::try_from(to).is_ok_and(|to| to >= limit.rlim_max)) {
            let message = format!("target descriptor must be below {} (hard RLIMIT_NOFILE), got {to}", limit.rlim_max);
            return Err(Error::refused(Stage::Action(index), Errno::EBADF, command.print(action)).saying(message));
        }
    }
    Ok(())
}

fn refused(command: &Command<'_>, index: usize, action: &Op<'_>, errno: Errno) -> Error {
    let message = match (errno, action.reads()) {
        (Errno::EBADF, Some(fd)) if fd >= 0 => Some(format!("the child has no descriptor {fd}")),
        _ => None,
    };
    Error::refused(Stage::Action(index), errno, command.print(action)).saying_if(message)
}

/// The stage that a step with this index belongs to.
pub(crate) fn stage_of(index: u16) -> Stage {
    match index {
        USER_MAP..TERMINAL | SESSION => Stage::Clone,
        TREE | REGISTRATION => Stage::Tree,
        GIVEN => Stage::Descriptors,
        CURRENT_DIR => Stage::CurrentDir,
        LIMITS..USER_MAP => Stage::Limit,
        TERMINAL => Stage::Capture,
        STDIO.. => Stage::Stdio((index - STDIO) as u8),
        _ => Stage::Action(usize::from(index)),
    }
}

/// The error for a step that failed in the child.
pub(crate) fn step_failed(plan: &Plan<'_>, index: u16, errno: Errno) -> Error {
    let stage = stage_of(index);
    let number = |source: usize| plan.sources.get(source).copied().unwrap_or(-1);
    // A step that prepares an action has the action's index. The last step with the index is the action itself.
    let step = plan.steps.iter().rfind(|step| step.index == index);
    let message = step.and_then(|step| step_message(&step.op, stage, errno, number));
    Error::new(stage, errno, step.map(|step| step.op.print(number)).unwrap_or_default()).saying_if(message)
}

/// The sentence for a step that failed, if it concerns a path or a descriptor of the caller.
fn step_message(op: &Op, stage: Stage, errno: Errno, number: impl Fn(usize) -> RawFd) -> Option<String> {
    match op {
        _ if errno == Errno::EBADF => Some(format!("descriptor {} is not open", op.source().map(number)?)),
        Op::Chdir { path } if stage == Stage::CurrentDir => of_path("working directory", path, errno),
        Op::Chdir { path } | Op::Chroot { path } => of_path("directory", path, errno),
        Op::Open { path, .. } => of_path("file", path, errno),
        _ => None,
    }
}
