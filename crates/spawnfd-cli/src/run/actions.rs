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
use super::values::NamespaceSource;
use super::{names, values};
use crate::failure::{Failure, reason};
use crate::ordered::{Flag, Given, Value, add, collect};
use crate::os;

const CGROUP2_SUPER_MAGIC: i64 = 0x6367_7270;

const HEADING: &str = "Actions, performed by the child in command-line order";

/// The effect of one flag on a command.
#[derive(Clone)]
pub enum Step {
    Plain(fn(&mut spawnfd::Command<'_>)),
    Add(Arc<Add>),
    Foreground(i32),
    /// Sets the real, effective and saved user id, which can clear capability sets.
    UserIds([u32; 3]),
    /// Sets the effective, permitted, inheritable, bounding and ambient capabilities. `None` for a
    /// set that the user has not named.
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

/// Creates an action that uses an inherited descriptor of this command.
fn with_inherited<F>(number: i32, add: F) -> Result<Step, String>
where
    F: for<'a, 'fd> Fn(&'a mut spawnfd::Command<'fd>, BorrowedFd<'static>) -> &'a mut spawnfd::Command<'fd>
        + Send
        + Sync
        + 'static,
{
    fallible(move |command| {
        add(command, inherited(number)?);
        Ok(())
    })
}

fn inherited(number: i32) -> Result<BorrowedFd<'static>, String> {
    os::inherited(number).map_err(|_| format!("descriptor {number} is not open"))
}

/// Opens a file. O_NONBLOCK keeps a FIFO from blocking the open.
fn open(path: &Path, how: OFlags) -> Result<File, String> {
    let how = how | OFlags::NONBLOCK;
    let opened = File::options().read(true).custom_flags(how.bits() as i32).open(path);
    opened.map_err(|e| format!("{}: {}", path.display(), reason(&e)))
}

fn cgroup(command: &mut spawnfd::Command<'_>, path: &Path) -> Result<(), String> {
    let directory = open(path, OFlags::DIRECTORY)?;
    if !fstatfs(&directory).is_ok_and(|found| found.f_type == CGROUP2_SUPER_MAGIC) {
        return Err("not a cgroup v2 directory".to_owned());
    }
    command.cgroup(directory);
    Ok(())
}

fn join_namespace(command: &mut spawnfd::Command<'_>, source: &NamespaceSource, kinds: u32) -> Result<(), String> {
    match source {
        NamespaceSource::File(path) => command.join_namespace(open(path, OFlags::empty())?, kinds),
        NamespaceSource::Process(pid) => {
            let process = Pid::from_raw(*pid).ok_or("not a process id")?;
            let process = pidfd_open(process, PidfdFlags::empty());
            command.join_namespace(process.map_err(|e| format!("process {pid}: {}", reason(&e.into())))?, kinds)
        }
        NamespaceSource::Descriptor(fd) => command.join_namespace(inherited(*fd)?, kinds),
    };
    Ok(())
}

/// Defines a flag whose value is text.
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

/// Defines a flag whose value need not be UTF-8.
macro_rules! path_flag {
    ($name:literal, $value:literal, $help:expr, |$path:ident| $parse:expr) => {
        Flag { name: $name, value: Value::Parsed($value, |$path| $parse), help: $help }
    };
}

/// Defines a flag without a value.
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
    flag!("fd", "SRC:TO", "Pass this command's descriptor SRC to the program as descriptor TO", |text| {
        let (source, to) = values::pair(text)?;
        let (source, to) = (values::fd(source)?, values::fd(to)?);
        with_inherited(source, move |command, fd| command.descriptor(fd, to))
    }),
    flag!("dup2", "FROM:TO", "Copy the program's descriptor FROM to TO, as dup2(2) does", |text| {
        let (from, to) = values::pair(text)?;
        action(Ok((values::fd(from)?, values::fd(to)?)), |command, &(from, to)| command.dup2(from, to))
    }),
    flag!("close", "FD", "Close a descriptor of the program; it need not be open", |text| {
        action(values::fd(text), |command, &fd| command.close(fd))
    }),
    flag!(
        "close-range",
        "FIRST-LAST",
        "Close the descriptors from FIRST to LAST; FIRST- closes all from FIRST on",
        |text| action(values::range(text), |command, &(first, last)| command.close_range(first, last))
    ),
    path_flag!(
        "open",
        "MODE:PATH:FD",
        "Open a file as descriptor FD. MODE is r, w (create or truncate), a (create or append), rw (create) or wx (create, fail \
         if the file exists). Options follow after commas, as in w,600,beneath; see 'Open modes' below",
        |value| { action(values::open(value), |command, (path, how, to)| command.open(path, *how, *to)) }
    ),
    flag!(
        "open-at",
        "DIRFD:MODE:PATH:FD",
        "Open a file like --open; a relative PATH starts at the directory open as this command's descriptor DIRFD",
        |text| {
            let (dir, rest) = values::pair(text)?;
            let (path, how, to) = values::open(rest.as_ref())?;
            with_inherited(values::fd(dir)?, move |command, dir| command.open_at(dir, &path, how, to))
        }
    ),
    path_flag!("chdir", "DIR", "Change the working directory, for the later actions and the program", |value| {
        action(values::path(value), |command, path| command.chdir(path))
    }),
    flag!("fchdir", "FD", "Change the working directory to the one open as this command's descriptor FD", |text| {
        with_inherited(values::fd(text)?, |command, dir| command.fchdir(dir))
    }),
    path_flag!(
        "chroot",
        "DIR",
        "Change the root directory. The program's path must name the same file under the new root",
        |value| { action(values::path(value), |command, path| command.chroot(path)) }
    ),
    flag!("umask", "MODE", "Set the file mode creation mask, in octal", |text| {
        action(values::umask(text), |command, &mask| command.umask(mask))
    }),
    plain!("setsid", "Make the program the leader of a new session", setsid),
    flag!("process-group", "PGID", "Put the program into process group PGID; 0 creates a new group", |text| {
        action(values::number(text), |command, &group| command.process_group(group))
    }),
    flag!(
        "foreground",
        "FD",
        "Make the program's group the foreground process group of the terminal open as its descriptor FD",
        |text| values::fd(text).map(Step::Foreground)
    ),
    flag!(
        "controlling-terminal",
        "FD",
        "Make the terminal open as the program's descriptor FD the controlling terminal; requires --setsid before it",
        |text| action(values::fd(text), |command, &fd| command.controlling_terminal(fd))
    ),
    flag!(
        "limit",
        "NAME=SOFT[:HARD]",
        "Set a resource limit: nofile, nproc, as, cpu, core, data, fsize, stack, …. Values may have a suffix K, M, G or T, or be \
           'unlimited'",
        |text| {
            let (name, amounts) = text.split_once('=').ok_or("must be NAME=SOFT[:HARD], as in nofile=64:128")?;
            let (soft, hard) = values::limits(amounts)?;
            action(names::limit(name), move |command, &resource| command.limit(resource, soft, hard))
        }
    ),
    flag!("nice", "N", "Set the nice value, from -20 to 19", |text| {
        action(values::number_between(text, -20, 19), |command, &nice| command.nice(nice))
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
    flag!("affinity", "LIST", "Restrict the program to these processors, such as 0,2-3", |text| {
        action(values::cpus(text), |command, cpus| command.affinity(cpus.iter().copied()))
    }),
    flag!("gid", "GID", "Set the real, effective and saved group id; must precede --uid", |text| {
        action(values::id(text), |command, &gid| command.gid(gid))
    }),
    flag!(
        "group-ids",
        "REAL:EFFECTIVE:SAVED",
        "Set each group id separately; 'keep' leaves an id unchanged; must precede --uid",
        |text| {
            action(values::ids(text), |command, &[real, effective, saved]| command.group_ids(real, effective, saved))
        }
    ),
    flag!("groups", "LIST", "Set the supplementary groups, such as 4,27, or 'none'; must precede --uid", |text| {
        action(values::groups(text), |command, groups| command.groups(groups.clone()))
    }),
    flag!(
        "uid",
        "UID",
        "Set the real, effective and saved user id. Clears root's supplementary groups unless --groups is given",
        |text| values::id(text).map(|uid| Step::UserIds([uid; 3]))
    ),
    flag!(
        "user-ids",
        "REAL:EFFECTIVE:SAVED",
        "Set each user id separately; 'keep' leaves an id unchanged. Clears groups like --uid",
        |text| values::ids(text).map(Step::UserIds)
    ),
    flag!(
        "capabilities",
        "LIST|SET=LIST[:...]",
        "Set all capability sets to LIST, such as net_bind_service,chown or 'none'; or set each named set (effective, permitted, \
         inheritable, bounding, ambient) to its own list, as in bounding=chown:ambient=none",
        |text| names::capability_sets(text).map(Step::Capabilities)
    ),
    plain!("no-new-privs", "Set no_new_privs: set-user-ID bits and file capabilities have no effect", no_new_privs),
    path_flag!("cgroup", "DIR", "Start the program in this cgroup v2 directory", |value| {
        let path = values::path(value)?;
        fallible(move |command| cgroup(command, &path))
    }),
    path_flag!(
        "join-namespace",
        "SOURCE",
        "Enter existing namespaces. SOURCE is a namespace file, such as /proc/PID/ns/net; a process and kinds, as in \
               pid=PID:net,uts; or this command's descriptor FD of a namespace file or pidfd, as in fd=FD or fd=FD:net,uts. Kinds: mount, \
               uts, ipc, pid (applies to the program's children), net, cgroup, user, time",
        |value| {
            let (source, kinds) = values::namespace(value)?;
            fallible(move |command| join_namespace(command, &source, kinds))
        }
    ),
    flag!(
        "oom-score-adj",
        "N",
        "Set the out-of-memory killer's score adjustment, from -1000 (never kill) to 1000 (kill first)",
        |text| action(values::number_between(text, -1000, 1000), |command, &value| command.oom_score_adj(value))
    ),
    path_flag!(
        "landlock-ro",
        "PATH",
        "Confine the program with Landlock, and allow reading and executing below PATH; may be repeated. All --landlock-ro and \
               --landlock-rw form one ruleset, applied at the last of them. Requires --no-new-privs before it unless privileged",
        |value| values::path(value).map(Step::LandlockRead)
    ),
    path_flag!("landlock-rw", "PATH", "Like --landlock-ro, and also allow writing below PATH", |value| {
        values::path(value).map(Step::LandlockWrite)
    }),
    flag!("landlock", "FD", "Apply the Landlock ruleset open as this command's descriptor FD", |text| {
        with_inherited(values::fd(text)?, |command, ruleset| command.landlock(ruleset))
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
    /// Whether an action makes the program's group the terminal's foreground group.
    pub fn give_terminal(&self) -> bool {
        self.steps.iter().any(|given| matches!(given.meaning, Step::Foreground(_)))
    }

    /// Whether an action sets the program's process group or session.
    pub fn set_group_or_session(&self) -> bool {
        let sets =
            |given: &Given<Step>| given.text.starts_with("--setsid") || given.text.starts_with("--process-group");
        self.steps.iter().any(sets)
    }

    /// Adds the actions to a command. Returns the text of the flag for each action, in the same
    /// order.
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
                    // The change of ids makes the kernel clear these sets. Only an explicit flag
                    // restores them.
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
