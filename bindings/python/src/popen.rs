// SPDX-License-Identifier: MIT OR Apache-2.0
//! Starts the child of `subprocess.Popen`, in the order and with the errors of CPython's `_posixsubprocess`.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::{PyInt, PyList, PyTuple};
use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags, ResolveFlags, openat2};
use spawnfd::child::Started;
use spawnfd::error::{Errno, ErrorKind, Stage};
use spawnfd::internal::Call as SystemCall;
use spawnfd::{Child, Command, Env};

use crate::arguments::{borrow, is_plain, os_string, plain_path};
use crate::placeholders::{Placeholders, is_open};
use crate::request::ignored_by_python;
use crate::warm::Warm;

/// The arguments of `Popen._execute_child` by name, and the values that the Python part computes from them: `argv`,
/// `candidates` (the paths to try in turn) and `variables` (pairs; None: this process's environment).
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct PopenCall<'py> {
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

/// The reason why the core does not start a program with these arguments.
enum ArgumentError {
    /// An argument is invalid or unsupported. CPython's own code starts the program or reports the error.
    Unsupported,
    /// The exception that the caller's code raised: a method of an argument, or a signal handler during that method.
    Raised(PyErr),
}

impl From<PyErr> for ArgumentError {
    fn from(error: PyErr) -> ArgumentError {
        ArgumentError::Raised(error)
    }
}

type ArgumentResult<T> = Result<T, ArgumentError>;

/// The outcome of a start.
enum StartOutcome {
    Started(PopenChild, Started),
    /// The errno, and the subject of the error: "program", "cwd", or "" for anything else.
    Failed(Errno, &'static str),
    /// The attempt had no visible effect. CPython's own code starts the program, for this reason.
    Fallback(&'static str),
}

/// A child that CPython's code waits for. Dropping this object does not affect the child.
#[pyclass(frozen, module = "spawnfd._spawnfd")]
#[derive(Debug)]
pub struct PopenChild {
    #[pyo3(get)]
    pid: u32,
    /// The returncode if a signal ended the child before exec, and the core has reaped it.
    #[pyo3(get)]
    returncode: Option<i32>,
    /// `Some` until this object is dropped. Only one thread at a time waits for a Popen, so the lock is free, except in
    /// a forked copy of that thread's process.
    child: Mutex<Option<Child>>,
}

#[pymethods]
impl PopenChild {
    /// Returns the wait status if other code has reaped the child, or the kernel has because SIGCHLD is ignored. None:
    /// the status is lost. The kernel keeps it from Linux 6.15 on.
    fn status_of_reaped(&self, py: Python<'_>) -> Option<i32> {
        py.detach(|| Some(self.child.try_lock().ok()?.as_mut()?.try_wait().ok()??.into_raw()))
    }

    /// Kills the child, and waits for its end.
    fn end(&self, py: Python<'_>) {
        py.detach(|| {
            if let Ok(mut child) = self.child.try_lock()
                && let Some(child) = child.as_mut()
            {
                let _ = child.kill();
                let _ = child.wait();
            }
        });
    }
}

impl Drop for PopenChild {
    fn drop(&mut self) {
        // The drop of a Child would reap the program.
        let child = self.child.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        drop(child.map(Child::into_checked_pidfd));
    }
}

/// Calls `audit`, then starts the first candidate that can be executed.
///
/// Appends the child to `started`, so that a signal handler cannot raise between the start and the caller's first
/// reference to the child. Returns `(0, kind of start)`. After a failure returns `(errno, subject of the error)`. If
/// CPython's code has to start the program, returns `(0, reason)`.
///
/// # Errors
/// The exceptions of `audit` and of the arguments' methods. For an invalid argument this returns a reason and raises
/// nothing: the caller could not distinguish such an exception from one that a signal handler raises after the start,
/// and would start the program a second time.
#[pyfunction]
pub fn popen(
    py: Python<'_>,
    call: &Bound<'_, PyAny>,
    audit: &Bound<'_, PyAny>,
    warm: Option<&Bound<'_, Warm>>,
    started: &Bound<'_, PyList>,
) -> PyResult<(i32, Cow<'static, str>)> {
    let mut spawn = match PopenSpawn::new(&call.extract()?) {
        Ok(spawn) => spawn,
        Err(ArgumentError::Unsupported) => return Ok((0, "arguments".into())),
        Err(ArgumentError::Raised(error)) => return Err(error),
    };
    if let Some(warm) = warm {
        spawn.command.warm(warm.get().core());
    }
    audit.call0()?;
    Ok(match py.detach(|| spawn.run()) {
        StartOutcome::Started(child, how) => {
            started.append(child)?;
            (0, how.name())
        }
        StartOutcome::Failed(errno, subject) => (errno.raw(), subject.into()),
        StartOutcome::Fallback(reason) => (0, reason.into()),
    })
}

/// Converts a flag; CPython accepts any int.
fn flag(value: &Bound<'_, PyAny>) -> ArgumentResult<bool> {
    if value.is_instance_of::<PyInt>() { Ok(value.is_truthy()?) } else { Err(ArgumentError::Unsupported) }
}

/// Converts an int. The conversion runs no Python code of the caller.
fn number<'py, T>(value: &Bound<'py, PyAny>) -> ArgumentResult<T>
where
    T: for<'a> FromPyObject<'a, 'py>,
{
    if !value.is_instance_of::<PyInt>() {
        return Err(ArgumentError::Unsupported);
    }
    value.extract().map_err(|_| ArgumentError::Unsupported)
}

fn numbers<'py, T>(values: &[Bound<'py, PyAny>]) -> ArgumentResult<Vec<T>>
where
    T: for<'a> FromPyObject<'a, 'py>,
{
    values.iter().map(number).collect()
}

/// Converts a str, bytes or os.PathLike. The method of an os.PathLike is the caller's code.
fn string(value: &Bound<'_, PyAny>) -> ArgumentResult<OsString> {
    let path = plain_path(value)?.filter(is_plain).ok_or(ArgumentError::Unsupported)?;
    os_string(&path, &"").map_err(|_| ArgumentError::Unsupported)
}

fn strings(values: &[Bound<'_, PyAny>]) -> ArgumentResult<Vec<OsString>> {
    values.iter().map(string).collect()
}

/// Whether a seccomp filter of the calling thread kills the process for pidfd_open or pidfd_send_signal.
#[pyfunction]
pub fn pidfd_calls_are_killed() -> bool {
    let killed_calls = spawnfd::internal::killed_calls();
    killed_calls.contains(SystemCall::PidfdOpen) || killed_calls.contains(SystemCall::PidfdSendSignal)
}

struct PopenSpawn {
    command: Command<'static>,
    /// The paths to try, in order.
    programs: Vec<PathBuf>,
    cwd: Option<OsString>,
    /// The caller's descriptors that the child gets.
    sources: Vec<i32>,
    /// True if the number of a source was closed when Popen was called, and one of Popen's new pipes then got this
    /// number.
    reused_number: bool,
    /// The index of the action that changes the directory.
    chdir: Option<usize>,
    /// The index of the action that keeps root's supplementary groups.
    keep_groups: Option<usize>,
    /// True if there are actions on the session, process group or ids, which can fail only in a child.
    has_id_or_session_actions: bool,
}

impl PopenSpawn {
    fn new(call: &PopenCall<'_>) -> ArgumentResult<PopenSpawn> {
        let (argv, candidates) = (strings(&call.argv)?, strings(&call.candidates)?);
        // `start` sets the program, once for each candidate.
        let mut command = Command::new("");
        command.take_killed();
        // With an empty argv CPython's behaviour differs between fork_exec, which starts the program, and
        // posix_spawn.
        let Some((first, rest)) = argv.split_first() else { return Err(ArgumentError::Unsupported) };
        command.arg0(first).args(rest);
        command.environment(&environment(call)?);

        let mut sources = Vec::new();
        // The caller's ends of Popen's new pipes, which CPython's child closes. A stream argument with one of these
        // numbers was not open before the call.
        let mut caller_ends = Vec::new();
        for end in [&call.p2cwrite, &call.c2pread, &call.errread] {
            caller_ends.push(number(end)?);
        }
        caller_ends.retain(|&end: &i32| end != -1);
        for fd in numbers(&call.pass_fds)? {
            if !caller_ends.contains(&fd) {
                sources.push((fd, fd));
            }
        }
        let mut reused_number = false;
        for (stream, to) in [&call.p2cread, &call.c2pwrite, &call.errwrite].into_iter().zip(0..) {
            let fd = number(stream)?;
            reused_number |= caller_ends.contains(&fd);
            if fd != -1 {
                sources.push((fd, to));
            }
        }
        for &(fd, to) in &sources {
            if fd < 0 {
                return Err(ArgumentError::Unsupported);
            }
            command.descriptor(borrow(fd), to);
        }
        command.inherit_descriptors(!call.close_fds.is_truthy()?);

        let cwd = call.cwd.as_ref().map(string).transpose()?;
        // A cwd such as /proc/self/fd/5 could lead to another directory in the child, because the child does not have
        // all of the caller's descriptors.
        if cwd.as_ref().is_some_and(|cwd| is_process_specific(Path::new(cwd))) {
            return Err(ArgumentError::Unsupported);
        }
        let chdir = cwd.as_ref().map(|cwd| {
            command.chdir(cwd);
            command.action_count() - 1
        });
        let umask: i32 = number(&call.umask)?;
        if umask >= 0 {
            // The kernel ignores all other bits of a umask.
            command.umask(umask as u32 & 0o777);
        }
        if flag(&call.restore_signals)? {
            command.default_signals(ignored_by_python());
        } else {
            command.inherit_signals();
        }

        let safe_actions = command.action_count();
        if flag(&call.start_new_session)? {
            command.setsid();
        }
        let process_group: i32 = number(&call.process_group)?;
        if process_group >= 0 {
            command.process_group(process_group);
        }
        let keep_groups = add_ids(&mut command, call)?;
        let has_id_or_session_actions = command.action_count() > safe_actions;
        let sources = sources.iter().map(|(fd, _)| *fd).collect();
        let programs = candidates.into_iter().map(PathBuf::from).collect();
        Ok(PopenSpawn { command, programs, cwd, sources, reused_number, chdir, keep_groups, has_id_or_session_actions })
    }

    /// Starts one candidate.
    ///
    /// The meaning of a relative path, also of a script's interpreter, depends on the child's directory at exec. The
    /// meaning of a path such as /proc/self depends on the process. So the child resolves these paths, and the core
    /// makes no template.
    fn start(&mut self, program: &Path) -> spawnfd::Result<Child> {
        if program.is_relative() || is_process_specific(program) {
            return self.command.unpinned(program).spawn();
        }
        match self.command.program(program).spawn() {
            Err(error) if error.stage() == Stage::Template && error.errno() == Errno::EINVAL => {
                self.command.unpinned(program).spawn()
            }
            outcome => outcome,
        }
    }

    fn run(&mut self) -> StartOutcome {
        // Check the sources before the core opens a descriptor that could get one of their numbers.
        if self.reused_number || !self.sources.iter().all(|&fd| is_open(fd)) {
            return StartOutcome::Failed(Errno::EBADF, "");
        }
        let Some(_placeholders) = Placeholders::open() else { return StartOutcome::Fallback("closed_stdio") };
        if self.cwd.as_ref().is_some_and(|cwd| may_resolve_differently(Path::new(cwd))) {
            return StartOutcome::Fallback("arguments");
        }
        // Report the first errno other than ENOENT and ENOTDIR, else the last one, as _posixsubprocess does.
        let (mut first, mut last) = (None, Errno::ENOENT);
        let mut tried = false;
        let programs = std::mem::take(&mut self.programs);
        for program in &programs {
            let error = match self.start(program) {
                Ok(mut child) => {
                    let (pid, how) = (child.id(), child.started());
                    // A child that a signal ended before exec is reaped already, so CPython's waits would not find
                    // it.
                    let returncode = child.ended_in_exec().and_then(|status| status.signal()).map(|signal| -signal);
                    let child = PopenChild { pid, returncode, child: Mutex::new(Some(child)) };
                    return StartOutcome::Started(child, how);
                }
                Err(error) => error,
            };
            let errno = error.errno();
            match error.stage() {
                _ if error.kind() == ErrorKind::Stale => return StartOutcome::Fallback("stale"),
                Stage::Template if !is_exec_errno(errno) => return StartOutcome::Fallback("template"),
                Stage::Template => {}
                Stage::Revalidate | Stage::Exec => tried = true,
                Stage::Action(index) if Some(index) == self.chdir => return StartOutcome::Failed(errno, "cwd"),
                Stage::Action(index) if Some(index) == self.keep_groups => return StartOutcome::Fallback("groups"),
                // The descriptor is open, but its number is beyond a hard RLIMIT_NOFILE that was lowered after the
                // descriptor was opened. The child cannot duplicate anything to that number.
                Stage::Action(index) if index < self.sources.len() && errno == Errno::EBADF => {
                    return StartOutcome::Fallback("refused");
                }
                Stage::Validate | Stage::Credentials => return StartOutcome::Fallback("refused"),
                // Let CPython's code fail again: the file that its exception names depends on the failing call, which
                // depends on the Python version and the arguments.
                Stage::Clone => return StartOutcome::Fallback("no_process"),
                _ => return StartOutcome::Failed(errno, ""),
            }
            last = errno;
            if !is_not_found(errno) {
                first.get_or_insert(errno);
            }
        }
        let failed = StartOutcome::Failed(first.unwrap_or(last), "program");
        if tried {
            return failed;
        }
        // ELOOP: the path leads through a magic link such as /proc/self/fd/N, so a child could find another file.
        if programs.iter().any(|program| matches!(open_directly(program), Err(rustix::io::Errno::LOOP))) {
            return StartOutcome::Fallback("arguments");
        }
        self.earlier_failure().unwrap_or(failed)
    }

    /// Returns the failure that a child would have met before it tried the candidates. No child was started, because
    /// no candidate exists.
    fn earlier_failure(&self) -> Option<StartOutcome> {
        if self.has_id_or_session_actions {
            return Some(StartOutcome::Fallback("not_found"));
        }
        let cwd = self.cwd.as_ref()?;
        let effective = match spawnfd::internal::killed_calls().contains(SystemCall::Faccessat2) {
            true => AtFlags::empty(),
            false => AtFlags::EACCESS,
        };
        let entered = rustix::fs::open(cwd, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .and_then(|_| rustix::fs::accessat(CWD, cwd, Access::EXEC_OK, effective));
        match entered {
            Err(errno) if errno != rustix::io::Errno::NOSYS => {
                Some(StartOutcome::Failed(Errno::from_raw(errno.raw_os_error()), "cwd"))
            }
            _ => None,
        }
    }
}

/// Adds the actions that change ids.
///
/// CPython keeps root's supplementary groups in a child with other ids; the core clears the groups. Returns the index
/// of the action that keeps the groups, if the command has one.
fn add_ids(command: &mut Command<'_>, call: &PopenCall<'_>) -> ArgumentResult<Option<usize>> {
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
        // (uid_t)-1 means no change, as in CPython.
        command.user_ids(uid, uid, uid);
    }
    Ok(kept)
}

/// Returns the environment. The caller holds the GIL: see [`environment`](crate::env::environment).
fn environment(call: &PopenCall<'_>) -> ArgumentResult<Env> {
    let strings = match &call.variables {
        Some(variables) => variables.iter().map(variable).collect::<ArgumentResult<Vec<_>>>()?,
        None => std::env::vars_os().map(|(name, value)| [name, value].join(OsStr::new("="))).collect(),
    };
    // Some CPython versions use posix_spawn if there is no cwd, and refuse a variable with an empty name there.
    if call.cwd.is_none()
        && call.variables.is_some()
        && strings.iter().any(|string| string.as_bytes().starts_with(b"="))
    {
        return Err(ArgumentError::Unsupported);
    }
    Env::verbatim(strings.iter().map(|string| string.as_bytes())).map_err(|_| ArgumentError::Unsupported)
}

fn variable(pair: &Bound<'_, PyAny>) -> ArgumentResult<OsString> {
    let pair = pair.cast::<PyTuple>().map_err(|_| ArgumentError::Unsupported)?;
    let (name, value) =
        pair.extract::<(Bound<'_, PyAny>, Bound<'_, PyAny>)>().map_err(|_| ArgumentError::Unsupported)?;
    let (name, value) = (string(&name)?, string(&value)?);
    if name.as_bytes().contains(&b'=') {
        return Err(ArgumentError::Unsupported);
    }
    Ok([name, value].join(OsStr::new("=")))
}

/// Whether a path begins with a directory whose contents depend on the process, such as /proc/self.
fn is_process_specific(path: &Path) -> bool {
    const OWN: [&str; 6] = ["/proc/self", "/proc/thread-self", "/dev/fd", "/dev/stdin", "/dev/stdout", "/dev/stderr"];
    OWN.iter().any(|own| path.starts_with(own))
}

/// Opens a directory without following magic links such as /proc/self/fd/N, which give ELOOP.
fn open_directly(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    if spawnfd::internal::killed_calls().contains(SystemCall::Openat2) {
        return Err(rustix::io::Errno::PERM);
    }
    openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS)
}

/// Whether a directory's path may lead to another directory in a child.
fn may_resolve_differently(path: &Path) -> bool {
    // If the kernel or a filter refuses openat2, return true for any symbolic link.
    open_directly(path).is_err() && path.ancestors().any(|part| part.read_link().is_ok())
}

/// Whether an error in creating a template has the errno that execve would return for the same file.
fn is_exec_errno(errno: Errno) -> bool {
    is_not_found(errno) || matches!(errno, Errno::EACCES | Errno::ELOOP | Errno::ENOEXEC | Errno::ENAMETOOLONG)
}

fn is_not_found(errno: Errno) -> bool {
    matches!(errno, Errno::ENOENT | Errno::ENOTDIR)
}
