// SPDX-License-Identifier: MIT OR Apache-2.0
//! The flags that are actions of the child, performed in the order of the command line.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use clap::{ArgMatches, Args, Command, Error, FromArgMatches};
use rustix::fs::{OFlags, fstatfs};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use spawnfd::{CapabilitySets, OpenHow};

use super::confine::{self, Ruleset};
use super::values::Holder;
use super::{names, values};
use crate::failure::{Failure, reason};
use crate::ordered::{Flag, Given, Value, add, collect};
use crate::os;

const CGROUP2_SUPER_MAGIC: i64 = 0x6367_7270;

const HEADING: &str = "Actions, performed by the child in the order they are given";

/// What the child is to do.
#[derive(Clone, Debug)]
pub enum Step {
    Fd {
        source: i32,
        to: i32,
    },
    Dup2 {
        from: i32,
        to: i32,
    },
    Close(i32),
    CloseRange(u32, u32),
    Open {
        path: PathBuf,
        how: OpenHow,
        to: i32,
    },
    OpenAt {
        dir: i32,
        path: PathBuf,
        how: OpenHow,
        to: i32,
    },
    Chdir(PathBuf),
    Fchdir(i32),
    Chroot(PathBuf),
    Umask(u32),
    Setsid,
    ProcessGroup(i32),
    Foreground(i32),
    ControllingTerminal(i32),
    Limit {
        resource: u32,
        soft: Option<u64>,
        hard: Option<u64>,
    },
    Nice(i32),
    Scheduler {
        policy: u32,
        priority: i32,
    },
    Cpus(Vec<usize>),
    Uid([u32; 3]),
    Gid([u32; 3]),
    Groups(Vec<u32>),
    /// Effective, permitted, inheritable, bounding and ambient ones.
    Capabilities([Option<u64>; 5]),
    NoNewPrivs,
    Cgroup(PathBuf),
    JoinNamespace(Holder, u32),
    OomScoreAdj(i32),
    LandlockRead(PathBuf),
    LandlockWrite(PathBuf),
    LandlockFd(i32),
}

/// A flag whose value is text.
macro_rules! flag {
    ($name:literal, $value:literal, $help:expr, |$text:ident| $parse:expr) => {
        Flag {
            name: $name,
            value: Value::Parsed($value, |value| {
                let $text = values::text(value)?;
                $parse
            }),
            help: $help,
        }
    };
}

/// A flag whose value is a path.
macro_rules! path_flag {
    ($name:literal, $value:literal, $help:expr, $step:expr) => {
        Flag { name: $name, value: Value::Parsed($value, |value| values::path(value).map($step)), help: $help }
    };
}

/// A flag without a value.
macro_rules! plain {
    ($name:literal, $help:expr, $step:expr) => {
        Flag { name: $name, value: Value::Plain($step), help: $help }
    };
}

static FLAGS: &[Flag<Step>] = &[
    flag!("fd", "SRC:TO", "Give the program descriptor SRC of this command as its TO", |text| {
        let (source, to) = values::pair(text)?;
        Ok(Step::Fd { source: values::fd(source)?, to: values::fd(to)? })
    }),
    flag!("dup2", "FROM:TO", "Copy the program's descriptor FROM to its TO", |text| {
        let (from, to) = values::pair(text)?;
        Ok(Step::Dup2 { from: values::fd(from)?, to: values::fd(to)? })
    }),
    flag!("close", "FD", "Close a descriptor; it need not be open", |text| values::fd(text).map(Step::Close)),
    flag!("close-range", "FIRST-LAST", "Close the descriptors from FIRST to LAST (FIRST-: to the end)", |text| {
        values::range(text).map(|(first, last)| Step::CloseRange(first, last))
    }),
    Flag {
        name: "open",
        value: Value::Parsed("MODE:PATH:FD", |value| {
            values::open(value).map(|(path, how, to)| Step::Open { path, how, to })
        }),
        help: "Open a file as FD; MODE is r, w (create or truncate), a (append), rw (create) or wx (must be new), and after a comma \
               what more is wanted, as in w,600,beneath: see below",
    },
    flag!("open-at", "DIRFD:MODE:PATH:FD", "The same below descriptor DIRFD of this command", |text| {
        let (dir, rest) = values::pair(text)?;
        let (path, how, to) = values::open(rest.as_ref())?;
        Ok(Step::OpenAt { dir: values::fd(dir)?, path, how, to })
    }),
    path_flag!("chdir", "DIR", "Change the working directory, for the actions that follow too", Step::Chdir),
    flag!("fchdir", "FD", "Change it to the one open as descriptor FD of this command", |text| {
        values::fd(text).map(Step::Fchdir)
    }),
    path_flag!(
        "chroot",
        "DIR",
        "Change the root directory; the program's path must name the same file there",
        Step::Chroot
    ),
    flag!("umask", "MODE", "Set the file creation mask, in octal", |text| values::umask(text).map(Step::Umask)),
    plain!("setsid", "Make the program the leader of a new session", Step::Setsid),
    flag!("process-group", "PGID", "Put the program into a process group; 0: one of its own", |text| {
        values::number(text).map(Step::ProcessGroup)
    }),
    flag!("foreground", "FD", "Make its group the foreground one of the terminal on FD", |text| {
        values::fd(text).map(Step::Foreground)
    }),
    flag!("controlling-terminal", "FD", "Make the terminal on FD the controlling one; asks for --setsid", |text| {
        values::fd(text).map(Step::ControllingTerminal)
    }),
    flag!(
        "limit",
        "NAME=SOFT[:HARD]",
        "Set a resource limit: nofile, nproc, as, cpu, core, data, fsize, stack, …; K, M, G, T \
           and 'unlimited' are understood",
        |text| {
            let (name, amounts) = text.split_once('=').ok_or("NAME=SOFT[:HARD] is wanted")?;
            let (soft, hard) = values::limits(amounts)?;
            Ok(Step::Limit { resource: names::limit(name)?, soft, hard })
        }
    ),
    flag!("nice", "N", "Set the nice value, -20 to 19", |text| values::number(text).map(Step::Nice)),
    flag!(
        "scheduler",
        "POLICY[:PRIO]",
        "Set the scheduling policy: other, batch, idle, fifo:PRIO or rr:PRIO",
        |text| {
            let (policy, priority) = text.split_once(':').unwrap_or((text, "0"));
            Ok(Step::Scheduler { policy: names::scheduler(policy)?, priority: values::number(priority)? })
        }
    ),
    flag!("cpus", "LIST", "Restrict the program to these processors, as in 0,2-3", |text| values::cpus(text)
        .map(Step::Cpus)),
    flag!(
        "gid",
        "GID",
        "Set the group ids (or REAL:EFFECTIVE:SAVED, 'keep' leaves one); give it before --uid",
        |text| values::ids(text).map(Step::Gid)
    ),
    flag!("groups", "LIST", "Set the supplementary groups, as in 4,27, or 'none'; give it before --uid", |text| {
        values::groups(text).map(Step::Groups)
    }),
    flag!(
        "uid",
        "UID",
        "Set the user ids (or REAL:EFFECTIVE:SAVED); root's groups are cleared unless --groups is there",
        |text| values::ids(text).map(Step::Uid)
    ),
    flag!(
        "capabilities",
        "LIST|SET=LIST[:...]",
        "Limit all capability sets to these, as in net_bind_service,chown, or 'none'; or each set that is named (effective, permitted, \
         inheritable, bounding, ambient) to its own, as in bounding=chown:ambient=none",
        |text| names::capability_sets(text).map(Step::Capabilities)
    ),
    plain!("no-new-privs", "Keep setuid and file capabilities from having any effect", Step::NoNewPrivs),
    path_flag!("cgroup", "DIR", "Start the program in this cgroup v2 directory", Step::Cgroup),
    Flag {
        name: "join-namespace",
        value: Value::Parsed("WHICH", |value| {
            values::namespace(value).map(|(holder, kinds)| Step::JoinNamespace(holder, kinds))
        }),
        help: "Enter the namespace a file stands for, as in /proc/PID/ns/net; several of a process, as in pid=PID:net,uts; or what \
               descriptor FD of this command stands for, a pidfd too, as in fd=FD or fd=FD:net,uts. Kinds: mount, uts, ipc, pid (of the \
               program's children), net, cgroup, user, time",
    },
    flag!("oom-score-adj", "N", "Set what the out-of-memory killer thinks of it, -1000 to 1000", |text| {
        values::number(text).map(Step::OomScoreAdj)
    }),
    path_flag!(
        "landlock-ro",
        "PATH",
        "Let the program only read and execute below PATH; repeat for more. All --landlock-ro and \
               --landlock-rw make one ruleset, applied at the last of them; asks for --no-new-privs before it unless privileged",
        Step::LandlockRead
    ),
    path_flag!("landlock-rw", "PATH", "The same, and let it write there", Step::LandlockWrite),
    flag!("landlock-fd", "FD", "Apply the ruleset open as descriptor FD of this command", |text| {
        values::fd(text).map(Step::LandlockFd)
    }),
];

/// The actions of one command line.
#[derive(Clone, Debug)]
pub struct Actions {
    steps: Vec<Given<Step>>,
}

impl Args for Actions {
    fn augment_args(command: Command) -> Command {
        add(command, HEADING, FLAGS)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Actions {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Actions, Error> {
        Ok(Actions { steps: collect(matches, FLAGS) })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Actions {
    /// Whether the program is to have the terminal.
    pub fn give_terminal(&self) -> bool {
        self.steps.iter().any(|given| matches!(given.meaning, Step::Foreground(_)))
    }

    /// Adds the actions to a command. Gives for each of its actions the flag that asked for it.
    pub fn apply(&self, command: &mut spawnfd::Command<'_>) -> Result<Vec<String>, Failure> {
        let mut ruleset = Ruleset::default();
        let is_path = |given: &Given<Step>| matches!(given.meaning, Step::LandlockRead(_) | Step::LandlockWrite(_));
        let last_path = self.steps.iter().rposition(is_path);
        let limited = self.steps.iter().find(|given| matches!(given.meaning, Step::Capabilities(_)));
        let own = |given: &Given<Step>| confine::own_capabilities().map_err(|e| Failure::flag(&given.text, reason(&e)));
        let mut capabilities = limited.map(own).transpose()?;
        let mut flags = Vec::new();
        for (place, given) in self.steps.iter().enumerate() {
            match &given.meaning {
                Step::LandlockRead(path) => ruleset.read(path, &given.text),
                Step::LandlockWrite(path) => ruleset.write(path, &given.text),
                step => {
                    step.apply(command, capabilities.as_mut()).map_err(|why| Failure::flag(&given.text, why))?;
                }
            }
            if last_path == Some(place) {
                command.landlock(std::mem::take(&mut ruleset).build()?);
            }
            flags.resize(command.action_count(), given.text.clone());
        }
        Ok(flags)
    }
}

impl Step {
    /// `capabilities`: the sets as they are by then, where some step is about them.
    fn apply(
        &self,
        command: &mut spawnfd::Command<'_>,
        capabilities: Option<&mut CapabilitySets>,
    ) -> Result<(), String> {
        let own = |number: i32| os::inherited(number).map_err(|_| format!("descriptor {number} is not open"));
        // A FIFO is not waited for.
        let file = |path: &PathBuf, how: OFlags| {
            let how = how | OFlags::NONBLOCK;
            let opened = File::options().read(true).custom_flags(how.bits() as i32).open(path);
            opened.map_err(|e| format!("{}: {}", path.display(), reason(&e)))
        };
        match self {
            Step::Fd { source, to } => command.descriptor(own(*source)?, *to),
            Step::Dup2 { from, to } => command.dup2(*from, *to),
            Step::Close(fd) => command.close(*fd),
            Step::CloseRange(first, last) => command.close_range(*first, *last),
            Step::Open { path, how, to } => command.open(path, *how, *to),
            Step::OpenAt { dir, path, how, to } => command.open_at(own(*dir)?, path, *how, *to),
            Step::Chdir(path) => command.chdir(path),
            Step::Fchdir(fd) => command.fchdir(own(*fd)?),
            Step::Chroot(path) => command.chroot(path),
            Step::Umask(mask) => command.umask(*mask),
            Step::Setsid => command.setsid(),
            Step::ProcessGroup(group) => command.process_group(*group),
            Step::Foreground(fd) => command.foreground(*fd),
            Step::ControllingTerminal(fd) => command.controlling_terminal(*fd),
            Step::Limit { resource, soft, hard } => command.limit(*resource, *soft, *hard),
            Step::Nice(nice) => command.nice(*nice),
            Step::Scheduler { policy, priority } => command.scheduler(*policy, *priority),
            Step::Cpus(cpus) => command.affinity(cpus.iter().copied()),
            Step::Uid([real, effective, saved]) => {
                // The kernel empties these, and nothing is to come back that was not asked for.
                if let Some(sets) = capabilities {
                    sets.ambient = 0;
                    if !matches!(*effective, 0 | values::KEEP) {
                        sets.effective = 0;
                    }
                }
                command.user_ids(*real, *effective, *saved)
            }
            Step::Gid([real, effective, saved]) => command.group_ids(*real, *effective, *saved),
            Step::Groups(groups) => command.groups(groups.clone()),
            Step::Capabilities(given) => match capabilities {
                Some(sets) => {
                    *sets = confine::capability_sets(*sets, *given);
                    command.capabilities(*sets)
                }
                None => command,
            },
            Step::NoNewPrivs => command.no_new_privs(),
            Step::Cgroup(path) => {
                let directory = file(path, OFlags::DIRECTORY)?;
                if !fstatfs(&directory).is_ok_and(|found| found.f_type == CGROUP2_SUPER_MAGIC) {
                    return Err("no cgroup v2 directory".to_owned());
                }
                command.cgroup(directory)
            }
            Step::JoinNamespace(Holder::File(path), kinds) => {
                command.join_namespace(file(path, OFlags::empty())?, *kinds)
            }
            Step::JoinNamespace(Holder::Process(pid), kinds) => {
                let process = Pid::from_raw(*pid).ok_or("no process id")?;
                let process = pidfd_open(process, PidfdFlags::empty());
                command.join_namespace(process.map_err(|e| format!("process {pid}: {}", reason(&e.into())))?, *kinds)
            }
            Step::JoinNamespace(Holder::Own(fd), kinds) => command.join_namespace(own(*fd)?, *kinds),
            Step::OomScoreAdj(value) => command.oom_score_adj(*value),
            Step::LandlockFd(fd) => command.landlock(own(*fd)?),
            // Collected into one ruleset by the caller.
            Step::LandlockRead(_) | Step::LandlockWrite(_) => command,
        };
        Ok(())
    }
}
