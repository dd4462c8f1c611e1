// SPDX-License-Identifier: MIT OR Apache-2.0
//! Translates a run into a command of the core.
//!
//! Each action becomes no, one or several actions of the core. If an action is certain to fail in the child, the child
//! performs [`Translation::fail`] in its place. The child still performs the actions before it, as in the kernel
//! series.

use std::ffi::{CStr, CString, OsStr};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;

use spawnfd::command::{CapabilitySets, FilterInstruction, Namespaces, OpenHow};
use spawnfd::signal::SignalSet;
use spawnfd::{Command, Env, Template};
use spawnfd_sys::spawn_abi::*;
use spawnfd_sys::{Errno, abi, call};

use super::action::{ALL_CAPABILITIES, Action, CLOSE_RANGE_CLOEXEC, halves, words};
use super::failure::{Failure, Translation};
use super::search::Directory;
use super::table::{ChildTable, Entry, File};

/// The program of a run.
#[derive(Clone, Debug)]
pub(super) enum Target {
    Path(CString),
    Search { name: CString, search_path: CString },
    Descriptor(i32),
}

/// The parameters of a run: those of the configuration and those of the call. All descriptors of the configuration
/// are open.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) target: Target,
    pub(super) argv: Vec<CString>,
    pub(super) envp: Vec<CString>,
    pub(super) actions: Vec<Action>,
    pub(super) cwd: Option<i32>,
    pub(super) cgroup: Option<i32>,
    pub(super) namespaces: u32,
    /// `SPAWN_FDS_*`.
    pub(super) descriptors: u32,
}

/// The reason why an action has no translation.
enum Stop {
    /// The child fails to perform the action, with this errno.
    Fails(Errno),
    /// The core has no such action.
    Unsupported,
}

/// The state during a translation.
struct Translator<'a> {
    run: &'a Run,
    to: Translation,
    table: ChildTable,
    /// The child's soft limit RLIMIT_NOFILE.
    descriptor_limit: u64,
    /// The child's directory, if the search for the program depends on it.
    directory: Option<Directory>,
    /// The child changes its root directory or its mount namespace, so the caller cannot search for the program.
    is_elsewhere: bool,
    default_signals: u64,
    ignored_signals: u64,
    parent_death_signal: i32,
    /// The scheduling policy, if an action has set it.
    policy: Option<i32>,
}

/// A descriptor that the core uses during a run.
fn borrow(number: i32) -> BorrowedFd<'static> {
    // SAFETY: the descriptor was open when the translation looked it up, so it is not -1. The caller keeps it open
    // until the run returns, and the command does not outlive the run.
    unsafe { BorrowedFd::borrow_raw(number) }
}

fn os(string: &CStr) -> &OsStr {
    OsStr::from_bytes(string.to_bytes())
}

/// Translates a run. If there is a value of `certain`, the child fails at this action with this errno.
///
/// # Errors
/// EOPNOTSUPP: the core cannot express the run. EMFILE, ENFILE, ENOMEM.
pub(super) fn translate(run: &Run, certain: Option<(usize, Errno)>) -> Result<Translation, Errno> {
    let program = if let Target::Descriptor(number) = run.target { Some(number) } else { None };
    let named = run.actions.iter().filter_map(Action::descriptor).chain(program);
    let table = ChildTable::new(run.descriptors & SPAWN_FDS_INHERIT != 0, run.descriptors & SPAWN_FDS_NONE == 0, named);
    let template = program.map(|number| Template::from_descriptor(borrow(number)).map_err(|error| error.errno()));
    let (command, program_failure) = match template {
        Some(Err(errno @ (Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM))) => return Err(errno),
        Some(Ok(template)) => (template.command(), None),
        // Without a template, the program is found at the end of the translation.
        other => {
            let mut command = Command::new("/");
            command.unpinned("/");
            (command, other.and_then(Result::err))
        }
    };
    let mut translator = Translator {
        run,
        to: Translation::new(command),
        table,
        descriptor_limit: call::limit(abi::RLIMIT_NOFILE).map_or(u64::MAX, |limit| limit.rlim_cur),
        directory: None,
        is_elsewhere: false,
        default_signals: 0,
        ignored_signals: 0,
        parent_death_signal: 0,
        policy: None,
    };
    let skipped = translator.begin()?;
    for (index, action) in run.actions.iter().enumerate().skip(skipped) {
        let outcome = match certain {
            Some((failing, errno)) if failing == index => Err(Stop::Fails(errno)),
            _ => translator.action(index, action),
        };
        match outcome {
            Ok(()) => {}
            Err(Stop::Fails(errno)) => {
                translator.to.fail(Failure { failed: index as i32, errno });
                return Ok(translator.to);
            }
            Err(Stop::Unsupported) => return Err(Errno::EOPNOTSUPP),
        }
    }
    translator.finish(program_failure)
}

impl Translator<'_> {
    /// Adds what the child does before the actions. Returns the number of actions that are part of this.
    fn begin(&mut self) -> Result<usize, Errno> {
        let Run { cwd, cgroup, descriptors, .. } = *self.run;
        if let Some(number) = cgroup {
            self.to.add(SPAWN_FAILED_SETUP, |command| _ = command.cgroup(borrow(number)));
        }
        if let Some(number) = cwd {
            self.to.add(SPAWN_FAILED_CWD, |command| _ = command.fchdir(borrow(number)));
        }
        if descriptors & SPAWN_FDS_NONE != 0 {
            self.to.add(SPAWN_FAILED_SETUP, |command| _ = command.close_range(0, 2));
        }
        if let Target::Search { search_path, .. } = &self.run.target
            && search_path.to_bytes().split(|&byte| byte == b':').any(|directory| directory.first() != Some(&b'/'))
        {
            let mut directory = Directory::default();
            cwd.into_iter().for_each(|number| directory.enter_open(borrow(number)));
            self.directory = Some(directory);
        }
        self.to.command.inherit_descriptors(descriptors & SPAWN_FDS_INHERIT != 0);
        self.namespaces()
    }

    /// Sets the new namespaces. A new user namespace needs the maps of users and groups, so the first actions must be
    /// these maps. Returns the number of these actions.
    fn namespaces(&mut self) -> Result<usize, Errno> {
        let flags = self.run.namespaces;
        let others = Namespaces::from_flags(flags & !abi::CLONE_NEWUSER).ok_or(Errno::EOPNOTSUPP)?;
        self.to.command.namespaces(others);
        if flags & abi::CLONE_NEWUSER == 0 {
            return Ok(0);
        }
        let [_, user, _, _, group, _] = call::ids();
        let (mut inner_user, mut inner_group, mut is_denied) = (None, None, false);
        let Some(maps) = self.run.actions.get(..3) else { return Err(Errno::EOPNOTSUPP) };
        for action in maps {
            match action.kind {
                SPAWN_ACTION_DENY_SETGROUPS => is_denied = true,
                SPAWN_ACTION_UID_MAP => inner_user = single_id(&action.data, user),
                // Without this order, an unprivileged caller's map of groups fails.
                SPAWN_ACTION_GID_MAP if is_denied => inner_group = single_id(&action.data, group),
                _ => {}
            }
        }
        match (inner_user, inner_group) {
            (Some(user), Some(group)) => self.to.command.user_namespace(user, group),
            _ => return Err(Errno::EOPNOTSUPP),
        };
        Ok(maps.len())
    }

    /// The descriptor at a number of the child.
    fn open(&self, number: i32) -> Result<Entry, Stop> {
        self.table.get(number).ok_or(Stop::Fails(Errno::EBADF))
    }

    /// The caller's descriptor for the file at a number of the child.
    fn source(&self, number: i32) -> Result<BorrowedFd<'static>, Stop> {
        match self.open(number)?.file {
            File::Caller(callers) => Ok(borrow(callers)),
            File::Opened => Err(Stop::Unsupported),
        }
    }

    /// Makes sure that the core's child has a descriptor at its number.
    fn place(&mut self, index: i32, number: i32) -> Result<(), Stop> {
        let entry = self.open(number)?;
        if let Entry { placed: false, file: File::Caller(callers), .. } = entry {
            self.to.add(index, |command| _ = command.descriptor(borrow(callers), number));
            self.table.set(number, entry.file, true);
        }
        Ok(())
    }

    /// Translates one action.
    fn action(&mut self, index: usize, action: &Action) -> Result<(), Stop> {
        let Action { kind, flags, fd, newfd, arg, .. } = *action;
        let at = index as i32;
        let text = || OsStr::from_bytes(&action.data);
        match kind {
            SPAWN_ACTION_CLOSE => {
                match self.table.get(fd) {
                    Some(entry) if entry.placed => self.to.add(at, |command| _ = command.close(fd)),
                    Some(_) => {}
                    // As in glibc, only a number that no descriptor can have is an error.
                    None if fd as u64 >= self.descriptor_limit => return Err(Stop::Fails(Errno::EBADF)),
                    None => {}
                }
                self.table.close(fd);
            }
            SPAWN_ACTION_DUP2 => self.duplicate(at, action)?,
            SPAWN_ACTION_OPEN => self.open_file(at, action)?,
            SPAWN_ACTION_CLOSE_RANGE => {
                let range = fd..=if newfd < 0 { i32::MAX } else { newfd };
                if flags & CLOSE_RANGE_CLOEXEC != 0 {
                    self.table.close_range_at_exec(range);
                } else {
                    let last = *range.end() as u32;
                    self.to.add(at, |command| _ = command.close_range(fd as u32, last));
                    self.table.close_range(range);
                }
            }
            SPAWN_ACTION_FCHDIR => {
                let directory = self.source(fd)?;
                self.to.add(at, |command| _ = command.fchdir(directory));
                self.directory.iter_mut().for_each(|tracked| tracked.enter_open(directory));
            }
            SPAWN_ACTION_CHDIR => {
                self.to.add(at, |command| _ = command.chdir(text()));
                let path = CString::new(&*action.data).unwrap_or_default();
                self.directory.iter_mut().for_each(|tracked| tracked.enter(&path));
            }
            SPAWN_ACTION_CHROOT => {
                self.to.add(at, |command| _ = command.chroot(text()));
                self.is_elsewhere = true;
            }
            SPAWN_ACTION_SETNS => {
                let namespace = self.source(fd)?;
                self.to.add(at, |command| _ = command.join_namespace(namespace, flags));
                self.is_elsewhere |= flags == 0 || flags & abi::CLONE_NEWNS != 0;
            }
            SPAWN_ACTION_LANDLOCK => {
                let ruleset = self.source(fd)?;
                self.to.add(at, |command| _ = command.landlock(ruleset));
            }
            SPAWN_ACTION_CTTY if flags != 0 => return Err(Stop::Unsupported),
            SPAWN_ACTION_CTTY => {
                self.place(at, fd)?;
                self.to.add(at, |command| _ = command.controlling_terminal(fd));
            }
            SPAWN_ACTION_TCSETPGRP => {
                self.place(at, fd)?;
                self.to.add(at, |command| _ = command.foreground(fd));
            }
            SPAWN_ACTION_SIGMASK => {
                let [signals] = words(&action.data);
                self.to.command.signal_mask(SignalSet::from_bits(signals));
            }
            SPAWN_ACTION_SIGDEFAULT | SPAWN_ACTION_SIGIGNORE => {
                let [signals] = words(&action.data);
                self.default_signals &= !signals;
                self.ignored_signals &= !signals;
                if kind == SPAWN_ACTION_SIGDEFAULT {
                    self.default_signals |= signals;
                } else {
                    self.ignored_signals |= signals;
                }
            }
            SPAWN_ACTION_SETSID => self.to.add(at, |command| _ = command.setsid()),
            SPAWN_ACTION_SETPGID => self.to.add(at, |command| _ = command.process_group(fd)),
            SPAWN_ACTION_UMASK => self.to.add(at, |command| _ = command.umask(fd as u32)),
            SPAWN_ACTION_RLIMIT => {
                let [soft, hard] = words(&action.data);
                if fd == abi::RLIMIT_NOFILE as i32 {
                    self.descriptor_limit = soft;
                }
                self.to.add(at, |command| _ = command.limit(fd as u32, Some(soft), Some(hard)));
            }
            SPAWN_ACTION_SETGROUPS => {
                self.to.add(at, |command| _ = command.groups(halves(&action.data)));
            }
            SPAWN_ACTION_SETRESGID => {
                self.to.add(at, |command| _ = command.group_ids(fd as u32, newfd as u32, arg as u32));
            }
            SPAWN_ACTION_SETRESUID => {
                self.keep_groups(at);
                self.to.add(at, |command| _ = command.user_ids(fd as u32, newfd as u32, arg as u32));
            }
            SPAWN_ACTION_NO_NEW_PRIVS => self.to.add(at, |command| _ = command.no_new_privs()),
            SPAWN_ACTION_PDEATHSIG => self.parent_death_signal = fd,
            SPAWN_ACTION_NICE => self.to.add(at, |command| _ = command.nice(fd.clamp(-20, 19))),
            SPAWN_ACTION_SCHEDULER => self.schedule(at, fd, newfd)?,
            SPAWN_ACTION_SCHED_ATTR => {
                // The members of struct sched_attr.
                let ([_, flags, _, runtime], half) = (words(&action.data), halves(&action.data));
                let (policy, nice, priority) = (half[1] as i32, half[4] as i32, half[5] as i32);
                if flags != 0 || runtime != 0 || policy == libc::SCHED_DEADLINE {
                    return Err(Stop::Unsupported);
                }
                self.schedule(at, policy, priority)?;
                if matches!(policy, libc::SCHED_OTHER | libc::SCHED_BATCH) {
                    // setpriority fails with EACCES where sched_setattr fails with EPERM.
                    let replaced = Some((Errno::EACCES, Errno::EPERM));
                    self.to.add_replacing(at, replaced, |command| _ = command.nice(nice.clamp(-20, 19)));
                }
            }
            SPAWN_ACTION_AFFINITY => {
                let is_set = |cpu: &usize| action.data.get(cpu / 8).is_some_and(|byte| byte >> (cpu % 8) & 1 == 1);
                let cpus: Vec<usize> = (0..action.data.len() * 8).filter(is_set).collect();
                self.to.add(at, |command| _ = command.affinity(cpus));
            }
            SPAWN_ACTION_OOM_SCORE_ADJ => self.to.add(at, |command| _ = command.oom_score_adj(fd)),
            SPAWN_ACTION_CAPABILITIES => {
                let mut sets = CapabilitySets::new();
                [sets.effective, sets.permitted, sets.inheritable, sets.bounding, sets.ambient] =
                    words(&action.data).map(|set: u64| set & ALL_CAPABILITIES);
                self.to.add(at, |command| _ = command.capabilities(sets));
            }
            SPAWN_ACTION_KEEP_CAPS => self.keep_capabilities(index)?,
            SPAWN_ACTION_SECCOMP if flags != 0 || self.to.filter.is_some() => return Err(Stop::Unsupported),
            SPAWN_ACTION_SECCOMP => {
                let filter: Vec<FilterInstruction> =
                    action.data.as_chunks().0.iter().map(FilterInstruction::from_bytes).collect();
                self.to.command.seccomp(filter);
                self.to.filter = Some(index);
            }
            _ => return Err(Stop::Unsupported),
        }
        Ok(())
    }

    fn duplicate(&mut self, at: i32, action: &Action) -> Result<(), Stop> {
        let Action { flags, fd, newfd, .. } = *action;
        match self.open(fd)? {
            Entry { placed: false, file: File::Caller(callers), .. } => {
                self.to.add(at, |command| _ = command.descriptor(borrow(callers), newfd));
            }
            _ => self.to.add(at, |command| _ = command.dup2(fd, newfd)),
        }
        let file = self.open(fd)?.file;
        self.table.set(newfd, file, flags & abi::O_CLOEXEC != 0);
        Ok(())
    }

    fn open_file(&mut self, at: i32, action: &Action) -> Result<(), Stop> {
        const HOW: usize = size_of::<OpenHow>();
        let Action { fd, newfd, .. } = *action;
        let [flags, mode, resolve] = words(&action.data);
        let path = OsStr::from_bytes(action.data.get(HOW..).unwrap_or_default());
        let how = OpenHow::new(flags).mode(mode).resolve(resolve);
        // An absolute path does not use the directory, unless the directory is also the root.
        let is_scoped = resolve & u64::from(abi::RESOLVE_BENEATH | abi::RESOLVE_IN_ROOT) != 0;
        if fd == libc::AT_FDCWD || path.as_bytes().starts_with(b"/") && !is_scoped {
            self.to.add(at, |command| _ = command.open(path, how, newfd));
        } else {
            let directory = self.source(fd)?;
            self.to.add(at, |command| _ = command.open_at(directory, path, how, newfd));
        }
        self.table.set(newfd, File::Opened, flags & u64::from(abi::O_CLOEXEC) != 0);
        Ok(())
    }

    /// Translates a change of the scheduling policy. The policy -1 stands for the child's own.
    fn schedule(&mut self, at: i32, policy: i32, priority: i32) -> Result<(), Stop> {
        const SCHED_EXT: i32 = 7;
        let policy = match (policy, self.policy) {
            // SAFETY: sched_getscheduler has no requirements.
            (-1, None) => unsafe { libc::sched_getscheduler(0) },
            (-1, Some(policy)) => policy,
            _ => policy,
        };
        if policy == SCHED_EXT || policy & libc::SCHED_RESET_ON_FORK != 0 {
            return Err(Stop::Unsupported);
        }
        self.policy = Some(policy);
        self.to.add(at, |command| _ = command.scheduler(policy as u32, priority));
        Ok(())
    }

    /// Keeps the supplementary groups at a change of user ids. Otherwise the core would clear root's groups.
    fn keep_groups(&mut self, at: i32) {
        let sets_groups = |action: &Action| action.kind == SPAWN_ACTION_SETGROUPS;
        let sets_users = |action: &Action| action.kind == SPAWN_ACTION_SETRESUID;
        let is_later = self.run.actions.iter().take(at as usize).any(sets_users);
        let is_root = call::ids()[1] == 0;
        if !is_root
            || self.run.namespaces & abi::CLONE_NEWUSER != 0
            || self.run.actions.iter().any(sets_groups)
            || is_later
        {
            return;
        }
        let mut groups = vec![0; 1 << 16];
        if let Ok(count) = call::groups(&mut groups) {
            groups.truncate(count);
            self.to.add(at, |command| _ = command.groups(groups));
        }
    }

    /// Checks that KEEP_CAPS has the effect that the core gives it: a change of user ids keeps the permitted
    /// capabilities for a later CAPABILITIES.
    fn keep_capabilities(&self, index: usize) -> Result<(), Stop> {
        let later = self.run.actions.get(index + 1..).unwrap_or_default();
        let last = |kind: u32| later.iter().rposition(|action| action.kind == kind);
        match (last(SPAWN_ACTION_SETRESUID), last(SPAWN_ACTION_CAPABILITIES)) {
            (None, _) => Ok(()),
            (Some(user), Some(capabilities)) if user < capabilities => Ok(()),
            _ => Err(Stop::Unsupported),
        }
    }

    /// Adds what the child does after the actions.
    fn finish(mut self, program_failure: Option<Errno>) -> Result<Translation, Errno> {
        let program = match &self.run.target {
            Target::Path(path) => Ok(Some(path.clone())),
            Target::Search { .. } if self.is_elsewhere => return Err(Errno::EOPNOTSUPP),
            Target::Search { name, search_path } => {
                let directory = self.directory.take().unwrap_or_default();
                directory.search(name, search_path).map(Some)
            }
            Target::Descriptor(number) => match program_failure {
                None => Ok(None),
                // The core refuses a script.
                Some(Errno::EINVAL) => self.script(*number)?.map(Some),
                Some(errno) => Err(errno),
            },
        };
        match program {
            Ok(None) => {}
            Ok(Some(path)) => _ = self.to.command.unpinned(os(&path)),
            Err(errno) => {
                self.to.fail(Failure { failed: SPAWN_FAILED_EXEC, errno });
                return Ok(self.to);
            }
        }
        for range in self.table.closed_at_exec() {
            let (first, last) = (*range.start() as u32, *range.end() as u32);
            self.to.add(SPAWN_FAILED_EXEC, |command| _ = command.close_range(first, last));
        }
        if !is_ignored(self.ignored_signals) {
            return Err(Errno::EOPNOTSUPP);
        }
        let command = &mut self.to.command;
        command.default_signals(SignalSet::from_bits(self.default_signals));
        if self.parent_death_signal != 0 {
            command.parent_death_signal(self.parent_death_signal);
        }
        let mut argv = self.run.argv.iter().map(|argument| os(argument));
        command.arg0(argv.next().unwrap_or_default()).args(argv);
        let env = Env::verbatim(self.run.envp.iter().map(|variable| variable.as_bytes()));
        command.environment(&env.map_err(|_| Errno::EINVAL)?);
        Ok(self.to)
    }

    /// The path of a script that the caller has open. The interpreter can open it only if the program has the same file
    /// at the same number.
    ///
    /// # Errors
    /// EOPNOTSUPP: the file at the number is not known. The inner error is that of exec.
    fn script(&self, number: i32) -> Result<Result<CString, Errno>, Errno> {
        let is_same = |other: i32| match (rustix::fs::fstat(borrow(number)), rustix::fs::fstat(borrow(other))) {
            (Ok(one), Ok(other)) => (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino),
            _ => false,
        };
        match self.table.get(number) {
            Some(Entry { file: File::Opened, .. }) => Err(Errno::EOPNOTSUPP),
            Some(Entry { file: File::Caller(other), closes_at_exec: false, .. }) if is_same(other) => {
                Ok(CString::new(format!("/dev/fd/{number}")).map_err(|_| Errno::ENOENT))
            }
            _ => Ok(Err(Errno::ENOENT)),
        }
    }
}

/// The id inside a user namespace, if the map has one line, which maps one id to `outer`.
fn single_id(map: &[u8], outer: u32) -> Option<u32> {
    let mut numbers = std::str::from_utf8(map).ok()?.trim_end_matches('\n').split_ascii_whitespace();
    let mut number = || numbers.next()?.parse::<u32>().ok();
    let (inner, mapped, count) = (number()?, number()?, number()?);
    (mapped == outer && count == 1 && inner != u32::MAX && numbers.next().is_none()).then_some(inner)
}

/// Whether the caller ignores all of these signals. The child then ignores them too.
fn is_ignored(signals: u64) -> bool {
    (1..=64).filter(|signal| signals >> (signal - 1) & 1 == 1).all(call::is_ignored)
}
