// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `subprocess.Popen` has its child do and become, in the order and with the errors of CPython's `_posixsubprocess`.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyInt, PyString, PyTuple};
use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags, ResolveFlags, openat2};
use spawnfd::{Call as SystemCall, Child, Command, Env, Errno, ErrorKind, Stage, Started};

use crate::arguments::{borrow, os_string};
use crate::plugs::{Plugs, is_open};
use crate::request::ignored_by_python;
use crate::warm::Warm;

/// The arguments of `Popen._execute_child` by name, and what Python's half has made of some: `argv`, `candidates` (the
/// paths to try in turn) and `variables` (pairs; None: this process's).
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Call<'py> {
    argv: Vec<Bound<'py, PyAny>>,
    candidates: Vec<Bound<'py, PyAny>>,
    variables: Option<Vec<Bound<'py, PyAny>>>,
    cwd: Option<Bound<'py, PyAny>>,
    p2cread: Bound<'py, PyAny>,
    c2pwrite: Bound<'py, PyAny>,
    errwrite: Bound<'py, PyAny>,
    p2cwrite: Bound<'py, PyAny>,
    c2pread: Bound<'py, PyAny>,
    errread: Bound<'py, PyAny>,
    close_fds: Bound<'py, PyAny>,
    pass_fds: Vec<Bound<'py, PyAny>>,
    restore_signals: Bound<'py, PyAny>,
    start_new_session: Bound<'py, PyAny>,
    process_group: Bound<'py, PyAny>,
    gids: Option<Vec<Bound<'py, PyAny>>>,
    gid: Option<Bound<'py, PyAny>>,
    uid: Option<Bound<'py, PyAny>>,
    umask: Bound<'py, PyAny>,
}

/// Why arguments are not taken.
enum Refused {
    /// CPython's own code has the words for what is wrong with them.
    Wrong,
    /// The caller's own code has raised this: an object's method, or a signal handler in it.
    Raised(PyErr),
}

impl From<PyErr> for Refused {
    fn from(error: PyErr) -> Refused {
        Refused::Raised(error)
    }
}

type Taken<T> = Result<T, Refused>;

/// What came of it.
enum Outcome {
    /// The pid. The caller waits for it, unless it is known already which signal has ended it: that number, or 0.
    Started(u32, i32, Started),
    /// Errno, and whether it is about the "program", the "cwd" or "" something else.
    Failed(Errno, &'static str),
    /// Nothing was done that could be seen: this is to be left to CPython's own code, for this reason.
    Left(&'static str),
}

/// Starts the first candidate that can be executed, after `audit` has been called. `(pid, 0 or -signal that has ended it, how it was started)`, or `(0, errno, what
/// it is about)`, or `(0, 0, why this is none for us)`.
///
/// # Errors
/// What `audit` raises, or an argument's own method. Never for what is wrong with an argument: a handler's exception would look like
/// that, and one after the start have the program started again.
#[pyfunction]
#[pyo3(signature = (call, audit, warm = None))]
pub fn popen(
    py: Python<'_>,
    call: &Bound<'_, PyAny>,
    audit: &Bound<'_, PyAny>,
    warm: Option<&Bound<'_, Warm>>,
) -> PyResult<(u32, i32, Cow<'static, str>)> {
    let mut spawn = match Spawn::new(&call.extract()?) {
        Ok(spawn) => spawn,
        Err(Refused::Wrong) => return Ok((0, 0, "arguments".into())),
        Err(Refused::Raised(error)) => return Err(error),
    };
    if let Some(warm) = warm {
        spawn.command.warm(warm.get().core());
    }
    audit.call0()?;
    Ok(match py.detach(|| spawn.run()) {
        Outcome::Started(pid, signal, how) => (pid, -signal, how.name()),
        Outcome::Failed(errno, about) => (0, errno.raw(), about.into()),
        Outcome::Left(reason) => (0, 0, reason.into()),
    })
}

/// CPython takes every int for a flag.
fn flag(value: &Bound<'_, PyAny>) -> Taken<bool> {
    if value.is_instance_of::<PyInt>() { Ok(value.is_truthy()?) } else { Err(Refused::Wrong) }
}

/// Of an int, which has no code of the caller's to ask.
fn number<'py, T>(value: &Bound<'py, PyAny>) -> Taken<T>
where
    T: for<'a> FromPyObject<'a, 'py>,
{
    if !value.is_instance_of::<PyInt>() {
        return Err(Refused::Wrong);
    }
    value.extract().map_err(|_| Refused::Wrong)
}

fn numbers<'py, T>(values: &[Bound<'py, PyAny>]) -> Taken<Vec<T>>
where
    T: for<'a> FromPyObject<'a, 'py>,
{
    values.iter().map(number).collect()
}

/// A str, bytes or os.PathLike, whose method is the caller's code.
fn string(value: &Bound<'_, PyAny>) -> Taken<OsString> {
    let plain = |value: &Bound<'_, PyAny>| value.is_instance_of::<PyString>() || value.is_instance_of::<PyBytes>();
    let path;
    let value = if plain(value) {
        value
    } else if let Ok(method) = value.get_type().getattr(intern!(value.py(), "__fspath__")) {
        path = method.call1((value,))?;
        &path
    } else {
        return Err(Refused::Wrong);
    };
    if !plain(value) {
        return Err(Refused::Wrong);
    }
    os_string(value, &"").map_err(|_| Refused::Wrong)
}

fn strings(values: &[Bound<'_, PyAny>]) -> Taken<Vec<OsString>> {
    values.iter().map(string).collect()
}

/// Whether a seccomp filter of the calling thread kills the process for a pidfd of a program, or for a signal through it.
#[pyfunction]
pub fn pidfds_are_killed() -> bool {
    let killed = spawnfd::killed_calls();
    killed.contains(SystemCall::PidfdOpen) || killed.contains(SystemCall::PidfdSendSignal)
}

struct Spawn {
    command: Command<'static>,
    /// The paths to try.
    programs: Vec<PathBuf>,
    cwd: Option<OsString>,
    /// The caller's descriptors it uses.
    sources: Vec<i32>,
    /// One of them was not open when Popen was called.
    closed: bool,
    /// The index of the action that changes the directory.
    chdir: Option<usize>,
    /// The index of the action that keeps the groups.
    keep_groups: Option<usize>,
    /// There are actions whose failure only a child can find.
    more: bool,
}

impl Spawn {
    fn new(call: &Call<'_>) -> Taken<Spawn> {
        let (argv, candidates) = (strings(&call.argv)?, strings(&call.candidates)?);
        // Candidates take the place of this.
        let mut command = Command::new("");
        command.take_killed();
        // By fork_exec CPython starts a program without arguments, by posix_spawn it does not.
        let Some((first, rest)) = argv.split_first() else { return Err(Refused::Wrong) };
        command.arg0(first).args(rest);
        command.environment(&environment(call)?);

        let mut sources = Vec::new();
        // The caller's ends of Popen's pipes, which CPython's child closes: one that was named was not open before.
        let mut kept = Vec::new();
        for end in [&call.p2cwrite, &call.c2pread, &call.errread] {
            kept.push(number(end)?);
        }
        kept.retain(|&end: &i32| end != -1);
        for fd in numbers(&call.pass_fds)? {
            if !kept.contains(&fd) {
                sources.push((fd, fd));
            }
        }
        let mut closed = false;
        for (stream, to) in [&call.p2cread, &call.c2pwrite, &call.errwrite].into_iter().zip(0..) {
            let fd = number(stream)?;
            closed |= kept.contains(&fd);
            if fd != -1 {
                sources.push((fd, to));
            }
        }
        for &(fd, to) in &sources {
            if fd < 0 {
                return Err(Refused::Wrong);
            }
            command.descriptor(borrow(fd), to);
        }
        command.inherit_descriptors(!call.close_fds.is_truthy()?);

        let cwd = call.cwd.as_ref().map(string).transpose()?;
        // A child of ours does not have all of its caller's descriptors there.
        if cwd.as_ref().is_some_and(|cwd| is_each_ones_own(Path::new(cwd))) {
            return Err(Refused::Wrong);
        }
        let chdir = cwd.as_ref().map(|cwd| {
            command.chdir(cwd);
            command.action_count() - 1
        });
        let umask: i32 = number(&call.umask)?;
        if umask >= 0 {
            // The kernel takes no notice of other bits.
            command.umask(umask as u32 & 0o777);
        }
        if flag(&call.restore_signals)? {
            command.default_signals(ignored_by_python());
        } else {
            command.inherit_signals();
        }

        let harmless = command.action_count();
        if flag(&call.start_new_session)? {
            command.setsid();
        }
        let process_group: i32 = number(&call.process_group)?;
        if process_group >= 0 {
            command.process_group(process_group);
        }
        let keep_groups = identity(&mut command, call)?;
        let more = command.action_count() > harmless;
        let sources = sources.iter().map(|(fd, _)| *fd).collect();
        let programs = candidates.into_iter().map(PathBuf::from).collect();
        Ok(Spawn { command, programs, cwd, sources, closed, chdir, keep_groups, more })
    }

    /// What a relative path names, a script's interpreter too, only the child can tell, from the directory it is in at exec. So it is with
    /// what each process has of its own.
    fn start(&mut self, program: &Path) -> spawnfd::Result<Child> {
        if program.is_relative() || is_each_ones_own(program) {
            return self.command.unpinned(program).spawn();
        }
        match self.command.program(program).spawn() {
            Err(error) if error.stage() == Stage::Template && error.errno() == Errno::EINVAL => {
                self.command.unpinned(program).spawn()
            }
            outcome => outcome,
        }
    }

    fn run(&mut self) -> Outcome {
        // Before anything is opened that could come to stand there.
        if self.closed || !self.sources.iter().all(|&fd| is_open(fd)) {
            return Outcome::Failed(Errno::EBADF, "");
        }
        let Some(_plugs) = Plugs::fill() else { return Outcome::Left("closed_stdio") };
        if self.cwd.as_ref().is_some_and(|cwd| may_lead_elsewhere(Path::new(cwd))) {
            return Outcome::Left("arguments");
        }
        // The first errno that says more than "not there", else the last: as _posixsubprocess has it.
        let (mut first, mut last) = (None, Errno::ENOENT);
        let mut tried = false;
        let programs = std::mem::take(&mut self.programs);
        for program in &programs {
            let error = match self.start(program) {
                Ok(mut child) => {
                    let (pid, how) = (child.id(), child.started());
                    // CPython's waits would not find it.
                    let signal = child.ended_in_exec().and_then(|status| status.signal()).unwrap_or(0);
                    drop(child.into_pidfd());
                    return Outcome::Started(pid, signal, how);
                }
                Err(error) => error,
            };
            let errno = error.errno();
            match error.stage() {
                _ if error.kind() == ErrorKind::Stale => return Outcome::Left("stale"),
                Stage::Template if !is_execs(errno) => return Outcome::Left("template"),
                Stage::Template => {}
                Stage::Revalidate | Stage::Exec => tried = true,
                Stage::Action(index) if Some(index) == self.chdir => return Outcome::Failed(errno, "cwd"),
                Stage::Action(index) if Some(index) == self.keep_groups => return Outcome::Left("groups"),
                // It is open: it lies beyond a hard limit that has been lowered since, where nothing can be put any more.
                Stage::Action(index) if index < self.sources.len() && errno == Errno::EBADF => {
                    return Outcome::Left("refused");
                }
                Stage::Validate | Stage::Credentials => return Outcome::Left("refused"),
                // Of what file an exception tells then depends on the call that fails, and that on the version and the arguments.
                Stage::Clone => return Outcome::Left("no_process"),
                _ => return Outcome::Failed(errno, ""),
            }
            last = errno;
            if !is_absence(errno) {
                first.get_or_insert(errno);
            }
        }
        let failed = Outcome::Failed(first.unwrap_or(last), "program");
        if tried {
            return failed;
        }
        // A child would find something else there.
        if programs.iter().any(|program| matches!(open_directly(program), Err(rustix::io::Errno::LOOP))) {
            return Outcome::Left("arguments");
        }
        self.earlier_failure().unwrap_or(failed)
    }

    /// No candidate was worth a child: whether one would have failed before it came to them.
    fn earlier_failure(&self) -> Option<Outcome> {
        if self.more {
            return Some(Outcome::Left("not_found"));
        }
        let cwd = self.cwd.as_ref()?;
        let effective = match spawnfd::killed_calls().contains(SystemCall::Faccessat2) {
            true => AtFlags::empty(),
            false => AtFlags::EACCESS,
        };
        let entered = rustix::fs::open(cwd, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .and_then(|_| rustix::fs::accessat(CWD, cwd, Access::EXEC_OK, effective));
        match entered {
            Err(errno) if errno != rustix::io::Errno::NOSYS => {
                Some(Outcome::Failed(Errno::from_raw(errno.raw_os_error()), "cwd"))
            }
            _ => None,
        }
    }
}

/// Adds the changes of ids. CPython leaves root's supplementary groups to a child of other ids, which the core does not: then
/// the index of the action that keeps them.
fn identity(command: &mut Command<'_>, call: &Call<'_>) -> Taken<Option<usize>> {
    let mut kept = None;
    if let Some(groups) = &call.gids {
        command.groups(numbers::<u32>(groups)?);
    } else if call.uid.is_some() && rustix::process::geteuid().is_root() {
        let groups = rustix::process::getgroups().unwrap_or_default();
        kept = Some(command.action_count());
        command.groups(groups.iter().map(|group| group.as_raw()).collect::<Vec<u32>>());
    }
    if let Some(gid) = call.gid.as_ref().map(number).transpose()? {
        command.group_ids(gid, gid, gid);
    }
    if let Some(uid) = call.uid.as_ref().map(number).transpose()? {
        // (uid_t)-1 is no change, as for CPython.
        command.user_ids(uid, uid, uid);
    }
    Ok(kept)
}

/// Read under the GIL: see [`environment`](crate::env::environment).
fn environment(call: &Call<'_>) -> Taken<Env> {
    let strings = match &call.variables {
        Some(variables) => variables.iter().map(variable).collect::<Taken<Vec<_>>>()?,
        None => std::env::vars_os().map(|(name, value)| [name, value].join(OsStr::new("="))).collect(),
    };
    // By posix_spawn, which some versions use where there is no cwd, CPython takes no variable without a name.
    if call.cwd.is_none()
        && call.variables.is_some()
        && strings.iter().any(|string| string.as_bytes().starts_with(b"="))
    {
        return Err(Refused::Wrong);
    }
    Env::verbatim(strings.iter().map(|string| string.as_bytes())).map_err(|_| Refused::Wrong)
}

fn variable(pair: &Bound<'_, PyAny>) -> Taken<OsString> {
    let pair = pair.cast::<PyTuple>().map_err(|_| Refused::Wrong)?;
    let (name, value) = pair.extract::<(Bound<'_, PyAny>, Bound<'_, PyAny>)>().map_err(|_| Refused::Wrong)?;
    let (name, value) = (string(&name)?, string(&value)?);
    if name.as_bytes().contains(&b'=') {
        return Err(Refused::Wrong);
    }
    Ok([name, value].join(OsStr::new("=")))
}

/// Whether a path leads through what each process finds of itself.
fn is_each_ones_own(path: &Path) -> bool {
    const OWN: [&str; 6] = ["/proc/self", "/proc/thread-self", "/dev/fd", "/dev/stdin", "/dev/stdout", "/dev/stderr"];
    OWN.iter().any(|own| path.starts_with(own))
}

/// Opens a directory by nothing that stands for what one process has of its own, a descriptor say: ELOOP.
fn open_directly(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    if spawnfd::killed_calls().contains(SystemCall::Openat2) {
        return Err(rustix::io::Errno::PERM);
    }
    openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS)
}

/// Whether a directory's path may lead elsewhere in a child.
fn may_lead_elsewhere(path: &Path) -> bool {
    // Each link may, where that call is refused.
    open_directly(path).is_err() && path.ancestors().any(|part| part.read_link().is_ok())
}

/// Whether execve says so of a path, and finding a template says it with the same meaning.
fn is_execs(errno: Errno) -> bool {
    is_absence(errno) || matches!(errno, Errno::EACCES | Errno::ELOOP | Errno::ENOEXEC | Errno::ENAMETOOLONG)
}

fn is_absence(errno: Errno) -> bool {
    matches!(errno, Errno::ENOENT | Errno::ENOTDIR)
}
