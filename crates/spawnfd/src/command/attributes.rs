// SPDX-License-Identifier: MIT OR Apache-2.0
//! The builder's actions and attributes.

use std::ffi::{CStr, CString};
use std::ops::BitOr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use spawnfd_child::{CapabilitySets, Data, Op};
use spawnfd_sys::abi;
use spawnfd_sys::call::FilterInstruction;

use super::descriptor::{ChildFd, Descriptor};
use super::{Command, UserMap};
use crate::signals::SignalSet;

/// The arguments of [`Command::open`]: flags, mode and resolution as in openat2(2).
///
/// # Examples
/// ```
/// use spawnfd::Command;
/// use spawnfd::command::OpenHow;
/// let mut command = Command::new("cat");
/// command.open("/etc/hostname", OpenHow::READ, 0); // the program reads the file as standard input
/// ```
#[must_use = "it has no effect until an open action uses it"]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[doc(alias = "open_how")]
pub struct OpenHow {
    flags: u64,
    mode: u64,
    resolve: u64,
}

impl OpenHow {
    /// Opens the file with these `O_*` flags. O_CLOEXEC has no effect: the program gets the descriptor.
    pub const fn new(flags: u64) -> OpenHow {
        OpenHow { flags, mode: 0, resolve: 0 }
    }

    /// Sets the permissions of a new file, before the umask applies.
    pub const fn mode(mut self, mode: u64) -> OpenHow {
        self.mode = mode;
        self
    }

    /// Sets `RESOLVE_*` flags. They need Linux 5.6.
    pub const fn resolve(mut self, flags: u64) -> OpenHow {
        self.resolve = flags;
        self
    }

    /// Opens the file for reading.
    pub const READ: OpenHow = OpenHow { flags: abi::O_RDONLY as u64, mode: 0, resolve: 0 };
    /// Opens the file for writing. Creates it with mode 0666 less the umask, or truncates it.
    pub const CREATE: OpenHow =
        OpenHow { flags: (abi::O_WRONLY | abi::O_CREAT | abi::O_TRUNC) as u64, mode: 0o666, resolve: 0 };
    /// Opens the file for writing at the end. Creates it with mode 0666 less the umask.
    pub const APPEND: OpenHow =
        OpenHow { flags: (abi::O_WRONLY | abi::O_CREAT | abi::O_APPEND) as u64, mode: 0o666, resolve: 0 };
}

/// A set of kinds of namespaces.
///
/// # Examples
/// ```
/// use spawnfd::Command;
/// use spawnfd::command::Namespaces;
/// let mut command = Command::new("ip");
/// // The program sees only a loopback interface.
/// command.arg("link").user_namespace(0, 0).namespaces(Namespaces::NET | Namespaces::MOUNT);
/// ```
#[must_use = "a set has no effect until a command uses it"]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Namespaces(pub(crate) u32);

#[allow(missing_docs)]
impl Namespaces {
    pub const NONE: Namespaces = Namespaces(0);
    pub const MOUNT: Namespaces = Namespaces(abi::CLONE_NEWNS);
    pub const UTS: Namespaces = Namespaces(abi::CLONE_NEWUTS);
    pub const IPC: Namespaces = Namespaces(abi::CLONE_NEWIPC);
    pub const PID: Namespaces = Namespaces(abi::CLONE_NEWPID);
    pub const NET: Namespaces = Namespaces(abi::CLONE_NEWNET);
    pub const CGROUP: Namespaces = Namespaces(abi::CLONE_NEWCGROUP);
    pub(crate) const USER: Namespaces = Namespaces(abi::CLONE_NEWUSER);

    /// Converts `CLONE_NEW*` flags. Returns `None` for other flags, for CLONE_NEWUSER, which
    /// [`Command::user_namespace`] sets up, and for CLONE_NEWTIME, which exec does not enter.
    pub fn from_flags(flags: u32) -> Option<Namespaces> {
        let all = Self::MOUNT.0 | Self::UTS.0 | Self::IPC.0 | Self::PID.0 | Self::NET.0 | Self::CGROUP.0;
        (flags & !all == 0).then_some(Namespaces(flags))
    }
}

impl BitOr for Namespaces {
    type Output = Namespaces;

    fn bitor(self, other: Namespaces) -> Namespaces {
        Namespaces(self.0 | other.0)
    }
}

/// Actions. The child performs them in the order in which they were added. A command has at most
/// [`MAX_ACTIONS`](crate::command::MAX_ACTIONS).
impl<'fd> Command<'fd> {
    fn action(&mut self, action: Op<'static>) -> &mut Self {
        self.actions.push(Ok(action));
        self
    }

    /// Adds an action with a path. If the path has a NUL, adds the error text instead.
    fn action_path(
        &mut self,
        name: &str,
        path: &Path,
        action: impl FnOnce(Data<'static, CStr>) -> Op<'static>,
    ) -> &mut Self {
        let action = match CString::new(path.as_os_str().as_bytes()) {
            Ok(path) => Ok(action(Data::Shared(path.into()))),
            Err(_) => Err(format!("{name}({path:?}): NUL byte")),
        };
        self.actions.push(action);
        self
    }

    /// Stores a descriptor for an action, and returns its index.
    fn source(&mut self, descriptor: impl Into<Descriptor<'fd>>) -> usize {
        self.descriptors.push(descriptor.into());
        self.descriptors.len() - 1
    }

    /// The number of actions so far, which is the index of the next action in errors.
    pub fn action_count(&self) -> usize {
        self.actions.len()
    }

    /// Excludes the last action from [`MAX_ACTIONS`](crate::command::MAX_ACTIONS). A language binding uses
    /// this for an action that implements another option.
    #[doc(hidden)]
    pub fn uncounted(&mut self) -> &mut Self {
        self.drop_in.uncounted += 1;
        self
    }

    /// Gives the caller's descriptor `source` to the program as its descriptor `to`.
    #[doc(alias = "dup2")]
    pub fn descriptor(&mut self, source: impl Into<Descriptor<'fd>>, to: impl Into<ChildFd>) -> &mut Self {
        let source = self.source(source);
        self.action(Op::Place { source, to: to.into().0 })
    }

    /// Makes the program's descriptor `to` a copy of its descriptor `from`. An earlier action or the standard
    /// streams provide `from`.
    pub fn dup2(&mut self, from: impl Into<ChildFd>, to: impl Into<ChildFd>) -> &mut Self {
        self.action(Op::Dup2 { from: from.into().0, to: to.into().0 })
    }

    /// Closes a descriptor of the program. The descriptor need not be open.
    pub fn close(&mut self, fd: impl Into<ChildFd>) -> &mut Self {
        self.action(Op::Close { fd: fd.into().0 })
    }

    /// Closes the program's descriptors from `first` to `last`.
    pub fn close_range(&mut self, first: u32, last: u32) -> &mut Self {
        self.action(Op::CloseRange { first, last })
    }

    /// Opens a file as the program's descriptor `to`, in the child.
    pub fn open(&mut self, path: impl AsRef<Path>, how: OpenHow, to: impl Into<ChildFd>) -> &mut Self {
        let to = to.into().0;
        self.action_path("open", path.as_ref(), |path| Op::Open { dir: None, path, how: how.for_kernel(), to })
    }

    /// Opens a file below an open directory.
    pub fn open_at(
        &mut self,
        dir: impl Into<Descriptor<'fd>>,
        path: impl AsRef<Path>,
        how: OpenHow,
        to: impl Into<ChildFd>,
    ) -> &mut Self {
        let (dir, to) = (Some(self.source(dir)), to.into().0);
        self.action_path("openat", path.as_ref(), |path| Op::Open { dir, path, how: how.for_kernel(), to })
    }

    /// Changes the working directory.
    pub fn chdir(&mut self, path: impl AsRef<Path>) -> &mut Self {
        self.action_path("chdir", path.as_ref(), |path| Op::Chdir { path })
    }

    /// Changes the working directory to an open directory.
    pub fn fchdir(&mut self, dir: impl Into<Descriptor<'fd>>) -> &mut Self {
        let dir = self.source(dir);
        self.action(Op::Fchdir { dir })
    }

    /// Changes the root directory. The template's path must name the same file below the new root. Requires
    /// CAP_SYS_CHROOT.
    pub fn chroot(&mut self, path: impl AsRef<Path>) -> &mut Self {
        self.action_path("chroot", path.as_ref(), |path| Op::Chroot { path })
    }

    /// Sets the file mode creation mask, up to 0o777.
    pub fn umask(&mut self, mask: u32) -> &mut Self {
        self.action(Op::Umask { mask })
    }

    /// Makes the program the leader of a new session.
    pub fn setsid(&mut self) -> &mut Self {
        self.action(Op::Setsid)
    }

    /// Puts the program into a process group of this session; 0 creates a new group. In a new pid namespace, the program
    /// can name no other group than that of this process.
    #[doc(alias = "setpgid")]
    pub fn process_group(&mut self, group: i32) -> &mut Self {
        self.action(Op::Setpgid { group })
    }

    /// Makes the program's process group the foreground group of the terminal on its descriptor `fd`.
    #[doc(alias = "tcsetpgrp")]
    pub fn foreground(&mut self, fd: impl Into<ChildFd>) -> &mut Self {
        self.action(Op::Tcsetpgrp { fd: fd.into().0 })
    }

    /// Makes the terminal on the program's descriptor `fd` the controlling terminal. The program must lead a
    /// session.
    #[doc(alias = "TIOCSCTTY")]
    pub fn controlling_terminal(&mut self, fd: impl Into<ChildFd>) -> &mut Self {
        self.action(Op::ControllingTerminal { fd: fd.into().0 })
    }

    /// Sets a resource limit; `None` is unlimited. [`rlimit`](crate::rlimit) has the numbers of the resources.
    #[doc(alias = "setrlimit")]
    pub fn limit(&mut self, resource: u32, soft: Option<u64>, hard: Option<u64>) -> &mut Self {
        self.action(Op::Limit { resource, limit: [soft, hard].map(|limit| limit.unwrap_or(u64::MAX)) })
    }

    /// Sets the nice value, -20 to 19.
    #[doc(alias = "setpriority")]
    pub fn nice(&mut self, nice: i32) -> &mut Self {
        self.action(Op::Nice { nice })
    }

    /// Sets the scheduling policy and the static priority (1 to 99 for FIFO and RR, otherwise 0).
    /// [`scheduler`](crate::scheduler) has the numbers of the policies.
    #[doc(alias = "sched_setscheduler")]
    pub fn scheduler(&mut self, policy: u32, priority: i32) -> &mut Self {
        self.action(Op::Scheduler { policy, priority: priority as u32 })
    }

    /// Restricts the program to these processors.
    #[doc(alias = "sched_setaffinity")]
    pub fn affinity(&mut self, cpus: impl IntoIterator<Item = usize>) -> &mut Self {
        let mut mask = Vec::new();
        for cpu in cpus {
            // No kernel supports a CPU number of 2^16 or more. Such a number makes the whole mask invalid.
            if cpu >= 1 << 16 {
                self.actions.push(Err(format!("sched_setaffinity: no CPU {cpu}")));
                return self;
            }
            mask.resize(mask.len().max(cpu / 64 + 1), 0);
            mask[cpu / 64] |= 1 << (cpu % 64);
        }
        self.action(Op::Affinity { mask: Data::Shared(mask.into()) })
    }

    /// Sets the real, effective and saved user ids to `uid`. If the caller is root and the command has no
    /// [`groups`](Command::groups) action, the child first clears the supplementary groups, because they belong to
    /// root.
    ///
    /// Actions run in order, unlike those of [`std::os::unix::process::CommandExt`]. Put [`gid`](Command::gid) and
    /// `groups` before `uid`: after a change from root to another user, the child may not change its groups. The
    /// library rejects such an order (EINVAL).
    ///
    /// # Examples
    /// ```no_run
    /// use spawnfd::Command;
    /// Command::new("id").groups([1000]).gid(1000).uid(1000).run()?;
    /// # Ok::<(), spawnfd::Error>(())
    /// ```
    pub fn uid(&mut self, uid: u32) -> &mut Self {
        // `u32::MAX` would leave the ids unchanged.
        if uid == u32::MAX {
            self.actions.push(Err(format!("setresuid: no user {uid}")));
            return self;
        }
        self.user_ids(uid, uid, uid)
    }

    /// Sets the real, effective and saved group ids to `gid`. Put this action before [`uid`](Command::uid).
    pub fn gid(&mut self, gid: u32) -> &mut Self {
        if gid == u32::MAX {
            self.actions.push(Err(format!("setresgid: no group {gid}")));
            return self;
        }
        self.group_ids(gid, gid, gid)
    }

    /// Sets each user id; `u32::MAX` leaves an id unchanged. See [`uid`](Command::uid).
    #[doc(alias = "setresuid")]
    pub fn user_ids(&mut self, real: u32, effective: u32, saved: u32) -> &mut Self {
        self.action(Op::UserIds { real, effective, saved })
    }

    /// Sets each group id; `u32::MAX` leaves an id unchanged.
    #[doc(alias = "setresgid")]
    pub fn group_ids(&mut self, real: u32, effective: u32, saved: u32) -> &mut Self {
        self.action(Op::GroupIds { real, effective, saved })
    }

    /// Sets the supplementary groups. Put this action before [`uid`](Command::uid).
    #[doc(alias = "setgroups")]
    pub fn groups(&mut self, groups: impl Into<Vec<u32>>) -> &mut Self {
        self.action(Op::Groups { groups: Data::Shared(groups.into().into()) })
    }

    /// Sets the capability sets, including the bounding and ambient sets. After a change of user ids in the same
    /// command, the sets may still name capabilities that the caller had.
    #[doc(alias = "capset")]
    pub fn capabilities(&mut self, sets: CapabilitySets) -> &mut Self {
        self.action(Op::Capabilities { sets })
    }

    /// Prevents exec from granting privileges: setuid and file capabilities have no effect.
    #[doc(alias = "PR_SET_NO_NEW_PRIVS")]
    pub fn no_new_privs(&mut self) -> &mut Self {
        self.action(Op::NoNewPrivs)
    }

    /// Starts the program in the cgroup v2 whose directory is open. With clone3, the child is created in the cgroup
    /// before other actions run. If the program starts in a tree's pid namespace, it joins the cgroup as one of its
    /// actions. A tree or limits with a cgroup of their own exclude this action (EINVAL).
    ///
    /// The child has its own memory until exec. Other processes may use up that cgroup's memory, and the kernel's
    /// OOM killer also kills all processes that share the victim's memory.
    #[doc(alias = "CLONE_INTO_CGROUP")]
    pub fn cgroup(&mut self, dir: impl Into<Descriptor<'fd>>) -> &mut Self {
        let dir = self.source(dir);
        self.action(Op::Cgroup { dir })
    }

    /// Enters an existing namespace, or several by a pidfd (Linux 5.8). `kinds` are `CLONE_NEW*` flags; 0 accepts
    /// any kind.
    #[doc(alias = "setns")]
    pub fn join_namespace(&mut self, namespace: impl Into<Descriptor<'fd>>, kinds: u32) -> &mut Self {
        let namespace = self.source(namespace);
        self.action(Op::JoinNamespace { namespace, kinds })
    }

    /// Sets the OOM killer's score adjustment, -1000 to 1000.
    pub fn oom_score_adj(&mut self, value: i32) -> &mut Self {
        self.action(Op::OomScoreAdj { value, text: Data::Shared(value.to_string().into_bytes().into()) })
    }

    /// Confines the program by a Landlock ruleset. Requires no_new_privs or CAP_SYS_ADMIN. Linux 5.13.
    #[doc(alias = "landlock_restrict_self")]
    pub fn landlock(&mut self, ruleset: impl Into<Descriptor<'fd>>) -> &mut Self {
        let ruleset = self.source(ruleset);
        self.action(Op::Landlock { ruleset })
    }
}

/// Attributes. The child applies them in a fixed order, which does not depend on the order of the calls.
impl Command<'_> {
    /// Also gives the program all of the caller's descriptors that are not close-on-exec. The time
    /// of a spawn then grows with the caller's table.
    pub fn inherit_descriptors(&mut self, inherit: bool) -> &mut Self {
        self.inherit_descriptors = inherit;
        self
    }

    /// Sets whether [`spawn`](Command::spawn) sleeps until the child has become the program. The
    /// default is true.
    ///
    /// With `false`, `spawn` returns as soon as the child exists, which saves the caller about 40
    /// us. If an action, the template's check or exec fails, the [`Child`](crate::Child)'s waits
    /// report it.
    ///
    /// Some starts wait even with `false`. The reasons are a kernel without close_range, inherited
    /// streams or descriptors, changes of ids, oom_score_adj, or a parent-death signal. If such a
    /// child opens files, which may block forever, the child gets its own memory and the call does
    /// not wait.
    pub fn wait_for_exec(&mut self, wait: bool) -> &mut Self {
        self.waits = wait;
        self
    }

    /// Sets the program's signal mask. The default is the calling thread's mask.
    pub fn signal_mask(&mut self, blocked: SignalSet) -> &mut Self {
        self.signals.mask = Some(blocked);
        self
    }

    /// Sets these signals to their default action if they are ignored. Without this call, the set is SIGPIPE. A
    /// signal that has a handler always gets its default action.
    pub fn default_signals(&mut self, signals: SignalSet) -> &mut Self {
        self.signals.default = Some(signals);
        self
    }

    /// Keeps the calling thread's signal mask, and leaves every ignored signal ignored, as posix_spawn does.
    /// Overrides earlier calls of [`signal_mask`](Command::signal_mask) and
    /// [`default_signals`](Command::default_signals).
    pub fn inherit_signals(&mut self) -> &mut Self {
        self.signals.mask = None;
        self.default_signals(SignalSet::EMPTY)
    }

    /// Sets a mask without signals, and these signals to their default action, unless the caller has chosen the signals.
    pub(crate) fn reset_signals(&mut self, signals: SignalSet) {
        if self.signals.default.is_none() {
            self.signals.mask.get_or_insert(SignalSet::EMPTY);
            self.signals.default = Some(signals);
        }
    }

    /// Sends the program this signal when the *thread* that spawns it ends. Use it in threads that live as long as
    /// the process. [`signal`](crate::signal) has the numbers of the signals.
    ///
    /// # References
    /// PR_SET_PDEATHSIG(2const): the thread counts, not the process. Exec of a setuid program clears the setting.
    #[doc(alias = "PR_SET_PDEATHSIG")]
    pub fn parent_death_signal(&mut self, signal: i32) -> &mut Self {
        match SignalSet::of(signal) {
            Some(_) => self.signals.parent_death = Some(signal),
            None => self.refuse(format!("parent_death_signal({signal})")),
        }
        self
    }

    /// Makes the program the first process of new namespaces. Requires CAP_SYS_ADMIN, or
    /// [`user_namespace`](Command::user_namespace).
    ///
    /// In a new PID namespace the program is process 1. When it ends, the kernel kills all other processes of the
    /// namespace.
    pub fn namespaces(&mut self, namespaces: Namespaces) -> &mut Self {
        self.namespaces.kinds = self.namespaces.kinds | namespaces;
        self
    }

    /// Starts the program in a new user namespace, in which the caller's effective user and group appear as `uid`
    /// and `gid`.
    pub fn user_namespace(&mut self, uid: u32, gid: u32) -> &mut Self {
        let [_, outer_uid, _, _, outer_gid, _] = spawnfd_sys::call::ids();
        self.namespaces.kinds = self.namespaces.kinds | Namespaces::USER;
        let map = |inner: u32, outer: u32| CString::new(format!("{inner} {outer} 1")).unwrap_or_default().into();
        self.namespaces.user_map = Some(UserMap { users: map(uid, outer_uid), groups: map(gid, outer_gid) });
        self
    }

    /// Installs a seccomp filter as the last step before exec. The filter has to allow execve and exit_group.
    /// Requires no_new_privs or CAP_SYS_ADMIN.
    pub fn seccomp(&mut self, filter: impl Into<Vec<FilterInstruction>>) -> &mut Self {
        let filter = filter.into();
        match filter.len() {
            1..=4096 => self.filter = Some(filter.into()),
            length => self.refuse(format!("seccomp: {length} instructions")),
        }
        self
    }
}

impl OpenHow {
    fn for_kernel(self) -> abi::open_how {
        abi::open_how { flags: self.flags & !u64::from(abi::O_CLOEXEC), mode: self.mode, resolve: self.resolve }
    }
}
