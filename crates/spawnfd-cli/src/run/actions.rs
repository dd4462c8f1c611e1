// SPDX-License-Identifier: MIT OR Apache-2.0
//! The flags for actions, which the child performs in the order of the command line.

use std::fmt;
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{ArgMatches, Args, Command, Error, FromArgMatches};
use rustix::fs::{OFlags, fstatfs};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::confine::{self, Ruleset};
use super::values::Holder;
use super::{names, values};
use crate::failure::{Failure, reason};
use crate::ordered::{Flag, Given, Value, add, collect};
use crate::os;

const CGROUP2_SUPER_MAGIC: i64 = 0x6367_7270;

const HEADING: &str = "Actions, performed by the child in the order they are given";

/// The step that one flag adds to a command.
#[derive(Clone)]
pub enum Step {
    Plain(fn(&mut spawnfd::Command<'_>)),
    Add(Arc<Add>),
    Foreground(i32),
    /// The real, effective and saved id. This change can clear capability sets.
    UserIds([u32; 3]),
    /// The effective, permitted, inheritable, bounding and ambient set.
    Capabilities([Option<u64>; 5]),
    LandlockRead(PathBuf),
    LandlockWrite(PathBuf),
}

type Add = dyn Fn(&mut spawnfd::Command<'_>) -> Result<(), String> + Send + Sync;

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Step")
    }
}

fn fallible<F>(add: F) -> Result<Step, String>
where
    F: Fn(&mut spawnfd::Command<'_>) -> Result<(), String> + Send + Sync + 'static,
{
    Ok(Step::Add(Arc::new(add)))
}

/// Creates an action from a parsed value.
fn action<T, F>(value: Result<T, String>, add: F) -> Result<Step, String>
where
    T: Send + Sync + 'static,
    F: for<'a, 'fd> Fn(&'a mut spawnfd::Command<'fd>, &T) -> &'a mut spawnfd::Command<'fd> + Send + Sync + 'static,
{
    let value = value?;
    fallible(move |command| {
        add(command, &value);
        Ok(())
    })
}

/// Creates an action with a descriptor that this command was started with.
fn with_own<F>(number: i32, add: F) -> Result<Step, String>
where
    F: for<'a, 'fd> Fn(&'a mut spawnfd::Command<'fd>, BorrowedFd<'static>) -> &'a mut spawnfd::Command<'fd>
        + Send
        + Sync
        + 'static,
{
    fallible(move |command| {
        add(command, own(number)?);
        Ok(())
    })
}

fn own(number: i32) -> Result<BorrowedFd<'static>, String> {
    os::inherited(number).map_err(|_| format!("descriptor {number} is not open"))
}

/// Opens a file. Does not block on a FIFO.
fn open(path: &Path, how: OFlags) -> Result<File, String> {
    let how = how | OFlags::NONBLOCK;
    let opened = File::options().read(true).custom_flags(how.bits() as i32).open(path);
    opened.map_err(|e| format!("{}: {}", path.display(), reason(&e)))
}

fn cgroup(command: &mut spawnfd::Command<'_>, path: &Path) -> Result<(), String> {
    let directory = open(path, OFlags::DIRECTORY)?;
    if !fstatfs(&directory).is_ok_and(|found| found.f_type == CGROUP2_SUPER_MAGIC) {
        return Err("no cgroup v2 directory".to_owned());
    }
    command.cgroup(directory);
    Ok(())
}

fn join_namespace(command: &mut spawnfd::Command<'_>, holder: &Holder, kinds: u32) -> Result<(), String> {
    match holder {
        Holder::File(path) => command.join_namespace(open(path, OFlags::empty())?, kinds),
        Holder::Process(pid) => {
            let process = Pid::from_raw(*pid).ok_or("no process id")?;
            let process = pidfd_open(process, PidfdFlags::empty());
            command.join_namespace(process.map_err(|e| format!("process {pid}: {}", reason(&e.into())))?, kinds)
        }
        Holder::Own(fd) => command.join_namespace(own(*fd)?, kinds),
    };
    Ok(())
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

/// A flag whose value need not be UTF-8.
macro_rules! path_flag {
    ($name:literal, $value:literal, $help:expr, |$path:ident| $parse:expr) => {
        Flag { name: $name, value: Value::Parsed($value, |$path| $parse), help: $help }
    };
}

/// A flag without a value.
macro_rules! plain {
    ($name:literal, $help:expr, $method:ident) => {
        Flag {
            name: $name,
            value: Value::Plain(Step::Plain(|command| {
                command.$method();
            })),
            help: $help,
        }
    };
}

static FLAGS: &[Flag<Step>] = &[
    flag!("fd", "SRC:TO", "Give the program descriptor SRC of this command as its TO", |text| {
        let (source, to) = values::pair(text)?;
        let (source, to) = (values::fd(source)?, values::fd(to)?);
        with_own(source, move |command, fd| command.descriptor(fd, to))
    }),
    flag!("dup2", "FROM:TO", "Copy the program's descriptor FROM to its TO", |text| {
        let (from, to) = values::pair(text)?;
        action(Ok((values::fd(from)?, values::fd(to)?)), |command, &(from, to)| command.dup2(from, to))
    }),
    flag!("close", "FD", "Close a descriptor; it need not be open", |text| {
        action(values::fd(text), |command, &fd| command.close(fd))
    }),
    flag!("close-range", "FIRST-LAST", "Close the descriptors from FIRST to LAST (FIRST-: to the end)", |text| {
        action(values::range(text), |command, &(first, last)| command.close_range(first, last))
    }),
    path_flag!(
        "open",
        "MODE:PATH:FD",
        "Open a file as FD; MODE is r, w (create or truncate), a (append), rw (create) or wx (must be new), and after a comma \
         what more is wanted, as in w,600,beneath: see below",
        |value| { action(values::open(value), |command, (path, how, to)| command.open(path, *how, *to)) }
    ),
    flag!("open-at", "DIRFD:MODE:PATH:FD", "The same below descriptor DIRFD of this command", |text| {
        let (dir, rest) = values::pair(text)?;
        let (path, how, to) = values::open(rest.as_ref())?;
        with_own(values::fd(dir)?, move |command, dir| command.open_at(dir, &path, how, to))
    }),
    path_flag!("chdir", "DIR", "Change the working directory, for the actions that follow too", |value| {
        action(values::path(value), |command, path| command.chdir(path))
    }),
    flag!("fchdir", "FD", "Change it to the one open as descriptor FD of this command", |text| {
        with_own(values::fd(text)?, |command, dir| command.fchdir(dir))
    }),
    path_flag!(
        "chroot",
        "DIR",
        "Change the root directory; the program's path must name the same file there",
        |value| { action(values::path(value), |command, path| command.chroot(path)) }
    ),
    flag!("umask", "MODE", "Set the file creation mask, in octal", |text| {
        action(values::umask(text), |command, &mask| command.umask(mask))
    }),
    plain!("setsid", "Make the program the leader of a new session", setsid),
    flag!("process-group", "PGID", "Put the program into a process group; 0: one of its own", |text| {
        action(values::number(text), |command, &group| command.process_group(group))
    }),
    flag!("foreground", "FD", "Make its group the foreground one of the terminal on FD", |text| {
        values::fd(text).map(Step::Foreground)
    }),
    flag!("controlling-terminal", "FD", "Make the terminal on FD the controlling one; asks for --setsid", |text| {
        action(values::fd(text), |command, &fd| command.controlling_terminal(fd))
    }),
    flag!(
        "limit",
        "NAME=SOFT[:HARD]",
        "Set a resource limit: nofile, nproc, as, cpu, core, data, fsize, stack, …; K, M, G, T \
           and 'unlimited' are understood",
        |text| {
            let (name, amounts) = text.split_once('=').ok_or("NAME=SOFT[:HARD] is wanted")?;
            let (soft, hard) = values::limits(amounts)?;
            action(names::limit(name), move |command, &resource| command.limit(resource, soft, hard))
        }
    ),
    flag!("nice", "N", "Set the nice value, -20 to 19", |text| {
        action(values::number(text), |command, &nice| command.nice(nice))
    }),
    flag!(
        "scheduler",
        "POLICY[:PRIO]",
        "Set the scheduling policy: other, batch, idle, fifo:PRIO or rr:PRIO",
        |text| {
            let (policy, priority) = text.split_once(':').unwrap_or((text, "0"));
            let value = (names::scheduler(policy)?, values::number(priority)?);
            action(Ok(value), |command, &(policy, priority)| command.scheduler(policy, priority))
        }
    ),
    flag!("affinity", "LIST", "Restrict the program to these processors, as in 0,2-3", |text| {
        action(values::cpus(text), |command, cpus| command.affinity(cpus.iter().copied()))
    }),
    flag!("gid", "GID", "Set the real, effective and saved group id; give it before --uid", |text| {
        action(values::id(text), |command, &gid| command.gid(gid))
    }),
    flag!(
        "group-ids",
        "REAL:EFFECTIVE:SAVED",
        "Set group ids one by one; 'keep' leaves one as it is; give it before --uid",
        |text| {
            action(values::ids(text), |command, &[real, effective, saved]| command.group_ids(real, effective, saved))
        }
    ),
    flag!("groups", "LIST", "Set the supplementary groups, as in 4,27, or 'none'; give it before --uid", |text| {
        action(values::groups(text), |command, groups| command.groups(groups.clone()))
    }),
    flag!(
        "uid",
        "UID",
        "Set the real, effective and saved user id; root's groups are cleared unless --groups is there",
        |text| values::id(text).map(|uid| Step::UserIds([uid; 3]))
    ),
    flag!(
        "user-ids",
        "REAL:EFFECTIVE:SAVED",
        "Set user ids one by one; 'keep' leaves one as it is; groups as with --uid",
        |text| values::ids(text).map(Step::UserIds)
    ),
    flag!(
        "capabilities",
        "LIST|SET=LIST[:...]",
        "Limit all capability sets to these, as in net_bind_service,chown, or 'none'; or each set that is named (effective, permitted, \
         inheritable, bounding, ambient) to its own, as in bounding=chown:ambient=none",
        |text| names::capability_sets(text).map(Step::Capabilities)
    ),
    plain!("no-new-privs", "Keep setuid and file capabilities from having any effect", no_new_privs),
    path_flag!("cgroup", "DIR", "Start the program in this cgroup v2 directory", |value| {
        let path = values::path(value)?;
        fallible(move |command| cgroup(command, &path))
    }),
    path_flag!(
        "join-namespace",
        "WHICH",
        "Enter the namespace a file stands for, as in /proc/PID/ns/net; several of a process, as in pid=PID:net,uts; or what \
               descriptor FD of this command stands for, a pidfd too, as in fd=FD or fd=FD:net,uts. Kinds: mount, uts, ipc, pid (of the \
               program's children), net, cgroup, user, time",
        |value| {
            let (holder, kinds) = values::namespace(value)?;
            fallible(move |command| join_namespace(command, &holder, kinds))
        }
    ),
    flag!("oom-score-adj", "N", "Set what the out-of-memory killer thinks of it, -1000 to 1000", |text| {
        action(values::number(text), |command, &value| command.oom_score_adj(value))
    }),
    path_flag!(
        "landlock-ro",
        "PATH",
        "Let the program only read and execute below PATH; repeat for more. All --landlock-ro and \
               --landlock-rw make one ruleset, applied at the last of them; asks for --no-new-privs before it unless privileged",
        |value| values::path(value).map(Step::LandlockRead)
    ),
    path_flag!("landlock-rw", "PATH", "The same, and let it write there", |value| {
        values::path(value).map(Step::LandlockWrite)
    }),
    flag!("landlock", "FD", "Apply the ruleset open as descriptor FD of this command", |text| {
        with_own(values::fd(text)?, |command, ruleset| command.landlock(ruleset))
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
    /// Whether the program gets the terminal.
    pub fn give_terminal(&self) -> bool {
        self.steps.iter().any(|given| matches!(given.meaning, Step::Foreground(_)))
    }

    /// Adds the actions to a command. Returns the flag of each of its actions.
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
                Step::Plain(add) => add(command),
                Step::Add(add) => add(command).map_err(|why| Failure::flag(&given.text, why))?,
                Step::Foreground(fd) => {
                    command.foreground(*fd);
                }
                Step::UserIds([real, effective, saved]) => {
                    // The kernel clears these sets. Do not restore capabilities that no flag requests.
                    if let Some(sets) = &mut capabilities {
                        sets.ambient = 0;
                        if !matches!(*effective, 0 | values::KEEP) {
                            sets.effective = 0;
                        }
                    }
                    command.user_ids(*real, *effective, *saved);
                }
                Step::Capabilities(given) => {
                    if let Some(sets) = &mut capabilities {
                        *sets = confine::capability_sets(*sets, *given);
                        command.capabilities(*sets);
                    }
                }
                Step::LandlockRead(path) => ruleset.read(path, &given.text),
                Step::LandlockWrite(path) => ruleset.write(path, &given.text),
            }
            if last_path == Some(place) {
                command.landlock(std::mem::take(&mut ruleset).build()?);
            }
            flags.resize(command.action_count(), given.text.clone());
        }
        Ok(flags)
    }
}
