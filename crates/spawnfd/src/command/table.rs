// SPDX-License-Identifier: MIT OR Apache-2.0
//! The table of the actions and attributes: their names, arguments and descriptions on every front.
//!
//! The Python package's classes and their translation, the flags of `spawnfd run`, and the reference of actions come
//! from this table. The name of a row is that of the builder's method; the class and the flag have the same name.

use std::ffi::OsStr;
use std::fmt;

use spawnfd_child::CapabilitySets;

use super::Command;
use super::arguments::{self, Kind, Parsed, Value, Values};

/// An action or an attribute.
#[derive(Debug)]
pub struct Action {
    /// The builder's method.
    pub name: &'static str,
    /// The arguments, in the order of the Python class.
    pub arguments: &'static [Argument],
    add: Add,
    /// The form of the text in which a command line gives the arguments; empty if there are none.
    pub syntax: &'static str,
    /// Parses that text, if the arguments are more than a list with colons.
    parse: Option<fn(&OsStr) -> Parsed>,
    /// The effect, in the imperative.
    pub effect: &'static str,
    /// The text of a command line's help after the effect.
    pub note: &'static str,
    /// The documentation, in paragraphs; empty if another row's class has this action.
    pub doc: &'static str,
}

/// An argument of an action.
#[derive(Debug)]
pub struct Argument {
    /// The field of the Python class.
    pub name: &'static str,
    /// The type.
    pub kind: Kind,
    /// The default, in Python.
    pub default: Option<&'static str>,
}

/// A wrong value of an argument.
#[derive(Debug)]
pub struct WrongValue {
    /// The argument.
    pub argument: &'static str,
    /// The reason, which continues the argument's name if it begins with `must`.
    pub reason: String,
}

impl WrongValue {
    /// The text for a caller that gives the action this name.
    pub fn text(&self, action: impl fmt::Display) -> String {
        let WrongValue { argument, reason } = self;
        let colon = if reason.starts_with("must ") { "" } else { ":" };
        format!("{action}.{argument}{colon} {reason}")
    }
}

impl Argument {
    /// Whether the Python class accepts None.
    pub fn accepts_none(&self) -> bool {
        self.kind == Kind::Amount || self.default == Some("None")
    }
}

type Add = for<'c, 'fd> fn(&'c mut Command<'fd>, &mut Values<'_, 'fd>) -> Result<&'c mut Command<'fd>, String>;

impl Action {
    /// The actions and the attributes.
    pub fn all() -> impl Iterator<Item = &'static Action> {
        ACTIONS.iter().chain(ATTRIBUTES)
    }

    /// The action with this name.
    pub fn find(name: &str) -> Option<&'static Action> {
        Action::all().find(|action| action.name == name)
    }

    /// The action with this flag.
    pub fn of_flag(flag: &str) -> Option<&'static Action> {
        Action::all().find(|action| action.flag() == flag)
    }

    /// The action with this Python class.
    pub fn of_class(class: &str) -> Option<&'static Action> {
        let mut name = String::with_capacity(2 * class.len());
        for letter in class.chars() {
            if letter.is_ascii_uppercase() {
                name.push('_');
            }
            name.push(letter.to_ascii_lowercase());
        }
        Action::find(name.strip_prefix('_')?).filter(|action| !action.doc.is_empty())
    }

    /// The Python class.
    pub fn class(&self) -> String {
        let words = self.name.split('_').map(|word| word[..1].to_ascii_uppercase() + &word[1..]);
        words.collect()
    }

    /// The flag of a command line, without hyphens before it.
    pub fn flag(&self) -> String {
        if self.name == "descriptor" { "fd".to_owned() } else { self.name.replace('_', "-") }
    }

    /// Parses the text in which a command line gives the arguments.
    ///
    /// # Errors
    /// The reason why the text is wrong. It continues the action's name if it begins with `must`.
    pub fn parse(&self, value: &OsStr) -> Parsed {
        match (self.parse, self.arguments) {
            (Some(parse), _) => parse(value),
            (None, []) => Ok(Vec::new()),
            (None, [argument]) => Ok(vec![argument.kind.parse(value)?]),
            (None, arguments) => {
                let mut parts = arguments::text(value)?.split(':');
                let part = |argument: &Argument| {
                    let given = parts.next().or(argument.default.filter(|_| self.syntax.contains('[')));
                    argument.kind.parse(given.ok_or_else(|| format!("must be {}", self.syntax))?.as_ref())
                };
                let values = arguments.iter().map(part).collect();
                if parts.next().is_some() { Err(format!("must be {}", self.syntax)) } else { values }
            }
        }
    }

    /// Adds the action to a command.
    ///
    /// # Errors
    /// A value is not one of its argument's type. The library makes further checks when it starts the command.
    pub fn add<'fd>(&self, command: &mut Command<'fd>, values: &[Value<'fd>]) -> Result<(), WrongValue> {
        let mut taken = Values::new(values);
        #[cfg(feature = "remote")]
        let before = command.actions.len();
        let added = (self.add)(command, &mut taken).map(drop);
        #[cfg(feature = "remote")]
        if added.is_ok() {
            let count = command.actions.len() - before;
            command.named.add(self, values, count);
        }
        added.map_err(|reason| {
            let argument = self.arguments.get(taken.count().saturating_sub(1)).map_or("", |argument| argument.name);
            WrongValue { argument, reason }
        })
    }
}

/// Defines rows. Each has the documentation, the name, the arguments with their defaults, the text's form and its parser,
/// the effect and the note, and the call of the builder's method.
macro_rules! rows {
    ($(
        $(#[doc = $doc:literal])*
        $name:ident($($argument:ident: $kind:ident $(($($range:tt)*))? $(= $default:literal)?),*)
        $syntax:literal $([$parse:ident])?, $effect:literal, $note:literal, |$command:ident, $values:ident| $call:expr;
    )*) => {
        &[$(Action {
            name: stringify!($name),
            arguments: &[$(Argument {
                name: stringify!($argument),
                kind: Kind::$kind $(($($range)*))?,
                default: rows!(@option $($default)?),
            }),*],
            add: |$command, $values| Ok($call),
            syntax: $syntax,
            parse: rows!(@option $(arguments::$parse)?),
            effect: $effect,
            note: $note,
            doc: concat!($($doc, "\n"),*),
        }),*]
    };
    (@option) => { None };
    (@option $some:expr) => { Some($some) };
}

/// The actions, which the child performs in the caller's order.
pub static ACTIONS: &[Action] = rows! {
    /// Passes the caller's descriptor `source` to the program as `to`; None: the same number.
    descriptor(source: Source, to: Number = "None")
        "SRC:TO", "Give the program a descriptor of the caller",
        ": this command's descriptor SRC becomes the program's descriptor TO",
        |c, v| {
            let (source, to) = v.placed()?;
            c.descriptor(source, to)
        };
    /// Duplicates the child's descriptor `number` to `to`; `number` must be open at that point.
    dup2(number: Number, to: Number)
        "FROM:TO", "Copy a descriptor of the program", ": FROM to TO, as dup2(2) does",
        |c, v| c.dup2(v.int::<i32>()?, v.int::<i32>()?);
    /// Closes a descriptor of the program; it need not be open.
    close(number: Number)
        "FD", "Close a descriptor of the program", "; it need not be open", |c, v| c.close(v.int::<i32>()?);
    /// Closes the program's descriptors from `first` to `last`.
    close_range(first: Number, last: Number = "0xFFFFFFFF")
        "FIRST-LAST" [range], "Close a range of descriptors of the program",
        ", from FIRST to LAST; FIRST- closes all from FIRST on", |c, v| c.close_range(v.int()?, v.int()?);
    /// Opens a file in the child as the program's descriptor `to`.
    ///
    /// `flags` and `mode` are those of os.open(), `resolve` has the RESOLVE_* flags of openat2(2). A relative path starts
    /// at the caller's open directory `dir`, else at the child's working directory.
    open(
        path: Path, to: Number, flags: Int(0, i64::MAX) = "0", mode: Octal(0o7777) = "0o666", dir: Source = "None",
        resolve: Int(0, i64::MAX) = "0"
    )
        "MODE:PATH:FD" [open], "Open a file",
        " as the program's descriptor FD. MODE is r, w (create or truncate), a (create or append), rw (create) or wx \
         (create, fail if the file exists). Options follow after commas, as in w,600,beneath; see 'Open modes' below",
        |c, v| opened(c, v)?;
    open_at(
        path: Path, to: Number, flags: Int(0, i64::MAX), mode: Octal(0o7777), dir: Source, resolve: Int(0, i64::MAX)
    )
        "DIRFD:MODE:PATH:FD" [open_at], "Open a file below an open directory",
        ": like --open, but a relative PATH starts at the directory that this command has open as DIRFD",
        |c, v| opened(c, v)?;
    /// Changes the working directory.
    chdir(path: Path)
        "DIR", "Change the working directory", ", for the later actions and the program", |c, v| c.chdir(v.path()?);
    /// Changes the working directory to a directory that the caller has open.
    fchdir(dir: Source)
        "FD", "Change the working directory to an open one", ": this command's descriptor FD",
        |c, v| c.fchdir(v.descriptor()?);
    /// Changes the root directory; the program's path must name the same file there.
    chroot(path: Path)
        "DIR", "Change the root directory", ". The program's path must name the same file under the new root",
        |c, v| c.chroot(v.path()?);
    /// Sets the file mode creation mask, up to 0o777.
    umask(mask: Octal(0o777))
        "MODE", "Set the file mode creation mask", ", in octal", |c, v| c.umask(v.int()?);
    /// Makes the program the leader of a new session.
    setsid()
        "", "Make the program the leader of a new session", "", |c, _v| c.setsid();
    /// Moves the program to process group `group` of this session; 0 creates a new group.
    ///
    /// A supervised run stays in this process's session with this action. Without it, the run gets a session of its own.
    process_group(group: Int(0, i32::MAX as i64) = "0")
        "PGID", "Put the program into a process group", "; 0 creates a new group", |c, v| c.process_group(v.int()?);
    /// Makes the child's process group the foreground group of the terminal on `number`.
    foreground(number: Number)
        "FD", "Make the program's process group the foreground group of a terminal",
        ": the one on the program's descriptor FD", |c, v| c.foreground(v.int::<i32>()?);
    /// Makes the terminal on `number` the controlling one; the child must be a session leader.
    controlling_terminal(number: Number)
        "FD", "Make a terminal the controlling terminal",
        ": the one on the program's descriptor FD; requires --setsid before it",
        |c, v| c.controlling_terminal(v.int::<i32>()?);
    /// Sets a resource limit (`resource.RLIMIT_*`); None and RLIM_INFINITY mean unlimited.
    limit(resource: Resource, soft: Amount, hard: Amount)
        "NAME=SOFT[:HARD]" [limit], "Set a resource limit",
        ": nofile, nproc, as, cpu, core, data, fsize, stack, …. Values may have a suffix K, M, G or T, or be 'unlimited'",
        |c, v| c.limit(v.int()?, v.amount()?, v.amount()?);
    /// Sets the nice value, -20 to 19.
    nice(value: Int(-20, 19))
        "N", "Set the nice value", ", from -20 to 19", |c, v| c.nice(v.int()?);
    /// Sets the scheduling policy (`os.SCHED_*`) and priority (FIFO and RR: 1 to 99, others: 0).
    scheduler(policy: Policy, priority: Int(0, 99) = "0")
        "POLICY[:PRIO]", "Set the scheduling policy and priority", ": other, batch, idle, fifo:PRIO or rr:PRIO",
        |c, v| c.scheduler(v.int()?, v.int()?);
    /// Restricts the program to the processors `cpus`.
    affinity(cpus: Cpus)
        "LIST", "Restrict the program to these processors", ", such as 0,2-3", |c, v| c.affinity(v.ints::<usize>()?);
    /// Sets the real, effective and saved user id.
    ///
    /// If the list has no Groups action, root's supplementary groups are cleared first. Put Gid and Groups before Uid:
    /// after a change from root to another user, the child may not change its groups.
    uid(uid: Id)
        "UID", "Set the real, effective and saved user id",
        ". Clears root's supplementary groups unless --groups is given", |c, v| c.uid(v.int()?);
    /// Sets the real, effective and saved group id. Put it before Uid.
    gid(gid: Id)
        "GID", "Set the real, effective and saved group id", "; must precede --uid", |c, v| c.gid(v.int()?);
    /// Sets the user ids individually; None leaves an id unchanged. See Uid.
    user_ids(real: IdOrKeep = "None", effective: IdOrKeep = "None", saved: IdOrKeep = "None")
        "REAL:EFFECTIVE:SAVED", "Set each user id separately",
        "; 'keep' leaves an id unchanged. Clears groups like --uid", |c, v| c.user_ids(v.id()?, v.id()?, v.id()?);
    /// Sets the group ids individually; None leaves an id unchanged.
    group_ids(real: IdOrKeep = "None", effective: IdOrKeep = "None", saved: IdOrKeep = "None")
        "REAL:EFFECTIVE:SAVED", "Set each group id separately",
        "; 'keep' leaves an id unchanged; must precede --uid", |c, v| c.group_ids(v.id()?, v.id()?, v.id()?);
    /// Sets the supplementary groups. Put it before Uid.
    groups(groups: Ids)
        "LIST", "Set the supplementary groups", ", such as 4,27, or 'none'; must precede --uid",
        |c, v| c.groups(v.ints::<u32>()?);
    /// Sets the capability sets, as masks in which bit n is capability number n.
    capabilities(
        effective: Capabilities = "0", permitted: Capabilities = "0", inheritable: Capabilities = "0",
        bounding: Capabilities = "0", ambient: Capabilities = "0"
    )
        "LIST|SET=LIST[:...]" [capabilities], "Set the capability sets",
        ": all to LIST, such as net_bind_service,chown or 'none'; or each named set (effective, permitted, inheritable, \
         bounding, ambient) to its own list, as in bounding=chown:ambient=none",
        |c, v| {
            let mut sets = CapabilitySets::new();
            (sets.effective, sets.permitted, sets.inheritable) = (v.int()?, v.int()?, v.int()?);
            (sets.bounding, sets.ambient) = (v.int()?, v.int()?);
            c.capabilities(sets)
        };
    /// Prevents exec from adding privileges: set-uid and file capabilities have no effect.
    no_new_privs()
        "", "Prevent exec from adding privileges", ": set-user-ID bits and file capabilities have no effect",
        |c, _v| c.no_new_privs();
    /// Starts the program in the cgroup v2 whose directory is open as `dir`.
    ///
    /// The child does not share memory with the caller before exec. Otherwise the kernel's out-of-memory killer, if it
    /// selected the child in that cgroup, would kill the caller, too.
    cgroup(dir: Cgroup)
        "DIR", "Start the program in a cgroup", ": a cgroup v2 directory", |c, v| c.cgroup(v.cgroup()?);
    /// Enters an existing namespace, or several namespaces of a process given by its pidfd.
    ///
    /// `kinds` has the CLONE_NEW* flags of the namespaces; 0 accepts a namespace of any kind.
    join_namespace(namespace: Namespace, kinds: Namespaces = "0")
        "SOURCE" [namespace], "Enter existing namespaces",
        ". SOURCE is a namespace file, such as /proc/PID/ns/net; a process and kinds, as in pid=PID:net,uts; or this \
         command's descriptor FD of a namespace file or pidfd, as in fd=FD or fd=FD:net,uts. Kinds: mount, uts, ipc, pid \
         (applies to the program's children), net, cgroup, user, time",
        |c, v| c.join_namespace(v.descriptor()?, v.int()?);
    /// Sets oom_score_adj, the out-of-memory killer's preference, -1000 to 1000.
    oom_score_adj(value: Int(-1000, 1000))
        "N", "Set the out-of-memory killer's score adjustment", ", from -1000 (never kill) to 1000 (kill first)",
        |c, v| c.oom_score_adj(v.int()?);
    /// Confines the program by a Landlock ruleset; requires NoNewPrivs or CAP_SYS_ADMIN.
    landlock(ruleset: Source)
        "FD", "Confine the program by a Landlock ruleset", ": this command's descriptor FD",
        |c, v| c.landlock(v.descriptor()?);
};

/// The attributes, which take effect regardless of their place among the actions.
pub static ATTRIBUTES: &[Action] = rows! {
    /// Passes all inheritable descriptors of the caller to the program.
    inherit_descriptors()
        "", "Pass the caller's inheritable descriptors", " to the program", |c, _v| c.inherit_descriptors(true);
    /// Keeps the calling thread's signal mask and ignored signals, as posix_spawn does.
    ///
    /// It overrides SignalMask and DefaultSignals before it in the list, not those after it.
    inherit_signals()
        "", "Inherit blocked and ignored signals", ", except as --signal-mask and --default-signals say",
        |c, _v| c.inherit_signals();
    /// Sets the signals that are blocked when the program starts; none by default.
    signal_mask(blocked: Signals)
        "LIST", "Block these signals in the program", ": a list such as TERM,INT, 'all' or 'none' [default: none]",
        |c, v| c.signal_mask(v.signals()?);
    /// Sets which ignored signals are reset to default; without this, SIGPIPE and SIGXFSZ.
    default_signals(signals: Signals)
        "LIST", "Reset these signals to their default action", " if they are ignored [default: PIPE,XFSZ]",
        |c, v| c.default_signals(v.signals()?);
    /// Sends the program a signal when the *thread* that started it ends (PR_SET_PDEATHSIG).
    parent_death_signal(signal: Signal)
        "SIGNAL", "Send a signal when the starting thread ends", ": this command's thread",
        |c, v| c.parent_death_signal(v.signal()?);
    /// Makes the program the first process of new namespaces (CLONE_NEW* flags).
    namespaces(kinds: Namespaces)
        "LIST", "Start the program in new namespaces", ", as their first process: mount, uts, ipc, pid, net, cgroup",
        |c, v| c.namespaces(v.namespaces()?);
    /// Starts the program in a new user namespace that maps the caller to `uid` and `gid`.
    user_namespace(uid: Id, gid: Id)
        "UID:GID", "Start the program in a new user namespace", ", where it has these ids",
        |c, v| c.user_namespace(v.int()?, v.int()?);
    /// Installs a seccomp filter as the child's last step before exec.
    ///
    /// `filter` has the bytes of an array of struct sock_filter, 8 bytes each. It must allow execve and exit_group.
    /// Requires NoNewPrivs or CAP_SYS_ADMIN.
    seccomp(filter: Filter)
        "FILE", "Install a seccomp filter", ": a file of raw BPF instructions. Requires --no-new-privs unless privileged",
        |c, v| c.seccomp(v.filter()?);
};

/// Performs `open` and `open_at`.
fn opened<'c, 'fd>(command: &'c mut Command<'fd>, v: &mut Values<'_, 'fd>) -> Result<&'c mut Command<'fd>, String> {
    let (path, to, how) = (v.path()?, v.int::<i32>()?, v.how()?);
    let (dir, how) = (v.optional_descriptor()?, how.resolve(v.int()?));
    Ok(match dir {
        Some(dir) => command.open_at(dir, path, how, to),
        None => command.open(path, how, to),
    })
}

/// The actions and the attributes of a command, each as strace would print its system call, for the tests of the fronts.
pub fn printed(command: &Command<'_>) -> Vec<String> {
    let mut lines: Vec<String> = command
        .actions
        .iter()
        .map(|action| action.as_ref().map_or_else(String::clone, |op| command.print(op)))
        .collect();
    let mut attribute = |text: Option<String>| lines.extend(text);
    attribute(command.inherit_descriptors.then(|| "inherit_descriptors".to_owned()));
    attribute(command.signals.mask.map(|set| format!("sigprocmask({:#x})", set.bits())));
    attribute(command.signals.default.map(|set| format!("default_signals({:#x})", set.bits())));
    attribute(command.signals.parent_death.map(|signal| format!("prctl(PR_SET_PDEATHSIG, {signal})")));
    attribute((command.namespaces.kinds.0 != 0).then(|| format!("clone({:#x})", command.namespaces.kinds.0)));
    if let Some(map) = &command.namespaces.user_map {
        attribute(Some(format!("uid_map {:?}, gid_map {:?}", map.users, map.groups)));
    }
    attribute(command.filter.as_ref().map(|filter| format!("seccomp({} instructions)", filter.len())));
    lines.extend(command.refused.as_ref().map(|error| error.call().to_owned()));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_method_of_the_builder_has_a_row() {
        let source = include_str!("attributes.rs");
        // `impl Command<'_>`, which has the attributes, comes after the block with the actions.
        let (_, methods) = source.split_once("impl<'fd> Command<'fd> {").expect("the block of the actions");
        let names = methods.split("    pub fn ").skip(1).map(|rest| rest.split(['(', '<']).next().expect("a name"));
        let others = ["action_count", "uncounted", "wait_for_exec"];
        let names: Vec<&str> = names.filter(|name| !others.contains(name)).collect();
        let rows: Vec<&str> = Action::all().map(|action| action.name).collect();
        assert_eq!(names.len(), rows.len());
        assert!(names.iter().all(|name| rows.contains(name)), "{names:?}");
    }

    #[test]
    fn classes_are_found_by_their_names() {
        for action in Action::all().filter(|action| action.name != "open_at") {
            assert_eq!(Action::of_class(&action.class()).map(|found| found.name), Some(action.name));
        }
        for other in ["", "Dup", "Dup22", "dup2", "OpenAt", "Action", "Closerange"] {
            assert!(Action::of_class(other).is_none(), "{other}");
        }
    }

    #[test]
    fn wrong_texts_are_refused() {
        for (name, texts) in [
            ("open", &["r:7", "q:/x:7", "r::7", "r:/x:seven", "r:/x:-1", "r,:/x:7", "r,600:/x:7", ":/x:7"][..]),
            ("open", &["w,8:/x:7", "w,10000:/x:7", "w,beneth:/x:7", "w,existing,600:/x:7", "0600:/x:7"]),
            (
                "join_namespace",
                &["", "pid=7", "pid=0:net", "pid=:net", "pid=7:", "pid=7:nett", "fd=", "fd=-1", "fd=7:"],
            ),
            ("close_range", &["4-3", "-3", ""]),
            ("limit", &["nofile", "nofile=2:1", "nofile=unlimited:1", "nofile=99999999999T", "files=1"]),
            ("affinity", &["3-2", "", "0-99999999"]),
            ("uid", &["root", "4294967295", "-1"]),
            ("user_ids", &["1:2", "1:2:root", "1:2:3:4", "1:2:4294967295"]),
            ("umask", &["8", "1000"]),
            ("dup2", &["5", "5:6:7", "-1:5"]),
            ("scheduler", &["fast", "fifo:100", "fifo:1:2"]),
        ] {
            let action = Action::find(name).expect("a row");
            for text in texts {
                assert!(action.parse(text.as_ref()).is_err(), "{name} {text}");
            }
        }
    }

    #[test]
    fn wrong_values_name_their_argument() {
        for (name, values, expected) in [
            ("dup2", [Value::Int(1), Value::Int(1 << 40)], "x.to: 1099511627776 is out of range"),
            ("close_range", [Value::Int(-1), Value::None], "x.first must be >= 0, got -1"),
            ("groups", [Value::Ints(vec![1, -2]), Value::None], "x.groups must be >= 0, got -2"),
            ("signal_mask", [Value::Ints(vec![65]), Value::None], "x.blocked: 65 is not a signal number"),
            ("chdir", [Value::Int(1), Value::None], "x.path: expected a path"),
        ] {
            let action = Action::find(name).expect("a row");
            let wrong = action.add(&mut Command::new("true"), &values).expect_err("refused");
            assert_eq!(wrong.text("x"), expected);
        }
    }
}
