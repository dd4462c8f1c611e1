// SPDX-License-Identifier: MIT OR Apache-2.0
//! Converts the arguments of a call to a command of the core.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyInt, PyTuple};
use spawnfd::internal::CallOptions;
use spawnfd::options::Call;
use spawnfd::signal::SignalSet;
use spawnfd::{Command, Stdio};

use crate::actions;
use crate::arguments::{descriptor, os_string_or, os_strings, wrong_type, wrong_value};
use crate::env::environment;
use crate::errors::{ErrorContext, Origin};
use crate::options::Options;
use crate::reported::ReportedArguments;
use crate::template::{Template, TemplateCache};
use crate::warm::Warm;

/// A command, and those arguments of the call that its results and errors report.
#[derive(Debug)]
pub struct Request {
    pub command: Command<'static>,
    pub options: CallOptions,
    pub reported: ReportedArguments,
    pub context: ErrorContext,
    pub event: AuditEvent,
}

impl Request {
    /// Builds the request. `program` is a Template; or None, a TemplateCache or a Warm (argv[0] names the program).
    pub fn new(program: Option<&Bound<'_, PyAny>>, args: &Bound<'_, PyAny>, options: Options<'_>) -> PyResult<Request> {
        let has_terminal = options.has_terminal();
        let Options { call, is_remote, core: mut options, cwd, env, actions, sandbox, warm, .. } = options;
        let sandbox = sandbox.as_ref().map(crate::sandbox::sandbox).transpose()?.map(Bound::get);
        let py = args.py();
        let directory = cwd.as_ref().map(Directory::of).transpose()?;
        let template = program.and_then(|program| program.cast::<Template>().ok());
        let (mut command, mut argv, mut program) = match template {
            Some(_) if sandbox.is_some() => {
                let instead = if call == Call::Session { "shell" } else { "program instead" };
                let reason = format!("cannot be combined with a Template; pass the path of the {instead}");
                return Err(wrong_value(&"sandbox", reason));
            }
            Some(template) => {
                let core = &template.get().0;
                let mut argv = vec![core.name().to_owned()];
                argv.append(&mut os_strings(args, "args")?);
                let file = core.path().map_or_else(|| core.name().to_owned(), |path| path.as_os_str().to_owned());
                (template.get().command(), argv, file)
            }
            None => {
                let argv = os_strings(args, "argv")?;
                let Some(name) = argv.first() else {
                    return Err(wrong_value(&"argv", "must not be empty; its first item names the program"));
                };
                if name.is_empty() {
                    return Err(wrong_value(&"argv[0]", "must not be empty; it names the program"));
                }
                if sandbox.is_some() && name.as_bytes().starts_with(b"-") {
                    let reason = format!("the sandbox's command would read {name:?} as an option");
                    return Err(wrong_value(&"argv[0]", reason));
                }
                let path = match &directory {
                    Some(Directory::Open(fd)) if sandbox.is_none() => path_from(fd, name),
                    _ => Cow::Borrowed(name.as_os_str()),
                };
                let mut command = match program {
                    None => Command::new(&path),
                    Some(program) => named(program, &path)?,
                };
                if let Cow::Owned(_) = path {
                    command.arg0(name);
                }
                let name = name.clone();
                (command, argv, name)
            }
        };
        // Set the mask and the handlers before the actions are added, because an action may override them.
        // The signals of this process have no effect on another machine.
        if !is_remote {
            command.signal_mask(SignalSet::EMPTY);
            // A session chooses the signals of its shell.
            if call != Call::Session {
                command.default_signals(ignored_by_python());
            }
        }
        command.args(&argv[1..]);
        if let Some(sandbox) = sandbox {
            match call {
                Call::Session => options.session = options.session.sandbox(&sandbox.core),
                _ => _ = command.sandbox(&sandbox.core),
            }
            program.clone_from(&sandbox.argv[0]);
            argv.splice(0..0, sandbox.argv.iter().cloned());
        }
        if let Some(arg0) = &options.arg0 {
            argv[0].clone_from(arg0);
        }
        command.environment(&environment(env.as_ref())?);
        let stderr_merged = has_terminal || matches!(options.streams[2], Some(Stdio::SameAsStdout));
        options.apply(&mut command);
        if let Some(warm) = warm {
            command.warm(&crate::warm::warm(&warm)?);
        }

        let mut origins = Vec::new();
        let directory = match directory {
            Some(Directory::Open(_)) if is_remote => {
                return Err(wrong_value(&"cwd", "a descriptor of this process cannot be passed to another machine"));
            }
            Some(Directory::Open(fd)) => {
                command.fchdir(fd).uncounted();
                // Without /proc, the search skips the relative parts of PATH.
                command.search_from(std::fs::read_link(link(&fd)).unwrap_or_default());
                origins.push(Origin::CurrentDir);
                None
            }
            Some(Directory::Path(path)) => {
                command.current_dir(&path);
                Some(path)
            }
            None => None,
        };
        if let Some(list) = actions {
            actions::add(&mut command, &list, &mut origins)?;
        }
        let executable = match template {
            Some(template) if program.is_empty() => {
                format!("/dev/fd/{}", template.get().0.descriptor().as_raw_fd()).into()
            }
            _ => program.clone(),
        };
        let event = AuditEvent::new(py, &executable, &argv, cwd, env)?;
        let reported = ReportedArguments { argv, stderr_merged, place: None };
        let context = ErrorContext { program, cwd: directory, origins };
        command.check_descriptors().map_err(|error| context.exception(py, &error))?;
        Ok(Request { command, options, reported, context, event })
    }

    /// Reports the start of the program to the audit hooks of Python. A hook that raises prevents the start.
    pub fn audit(&self, py: Python<'_>) -> PyResult<()> {
        self.event.raise(py)
    }
}

/// Python's sys.audit().
static AUDIT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// Looks up sys.audit(), because no module can be imported while the interpreter ends.
pub fn find_audit(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    AUDIT.import(py, "sys", "audit")
}

/// The audit event that subprocess.Popen raises: its name, executable, argv, cwd and env.
#[derive(Debug)]
pub struct AuditEvent(Py<PyTuple>);

impl AuditEvent {
    pub fn new<'py>(
        py: Python<'py>,
        executable: &OsStr,
        argv: &[OsString],
        cwd: impl IntoPyObject<'py>,
        env: impl IntoPyObject<'py>,
    ) -> PyResult<AuditEvent> {
        let event = (intern!(py, "subprocess.Popen"), executable, argv, cwd, env).into_pyobject(py)?;
        Ok(AuditEvent(event.unbind()))
    }

    pub fn raise(&self, py: Python<'_>) -> PyResult<()> {
        find_audit(py)?.call1(self.0.bind(py)).map(drop)
    }
}

/// The argument `cwd`.
enum Directory {
    Path(OsString),
    Open(BorrowedFd<'static>),
}

impl Directory {
    fn of(cwd: &Bound<'_, PyAny>) -> PyResult<Directory> {
        if cwd.is_instance_of::<PyInt>() && !cwd.is_instance_of::<PyBool>() {
            return descriptor(cwd, &"cwd").map(Directory::Open);
        }
        let expected = "a path (str, bytes or os.PathLike) or a descriptor (int)";
        os_string_or(cwd, &"cwd", expected).map(Directory::Path)
    }
}

/// The link in /proc that has the path of an open directory.
fn link(directory: &BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", directory.as_raw_fd())
}

/// Returns the path of a program in an open directory. A name without a slash and an absolute path stay as they are.
fn path_from<'a>(directory: &BorrowedFd<'_>, name: &'a OsStr) -> Cow<'a, OsStr> {
    if !name.as_bytes().contains(&b'/') || Path::new(name).is_absolute() {
        return Cow::Borrowed(name);
    }
    // The path that the link contains, because the child has no such descriptor. If the descriptor is not open, the
    // check of all descriptors reports that.
    let link = link(directory);
    let path = std::fs::read_link(&link).unwrap_or_else(|_| link.into()).join(name);
    Cow::Owned(std::path::absolute(&path).unwrap_or(path).into())
}

/// Returns the command for a program that a TemplateCache or a Warm finds by name.
fn named(program: &Bound<'_, PyAny>, name: &OsStr) -> PyResult<Command<'static>> {
    if let Ok(cache) = program.cast::<TemplateCache>() {
        return Ok(cache.get().command(name));
    }
    let Ok(warm) = program.cast::<Warm>() else {
        return Err(wrong_type(&"program", "a Template, TemplateCache or Warm", program));
    };
    let mut command = Command::new(name);
    command.warm(warm.get().open()?);
    Ok(command)
}

/// The signals that Python ignores, or may ignore: SIGPIPE and SIGXFSZ.
pub fn ignored_by_python() -> SignalSet {
    [13, 25].into_iter().filter_map(SignalSet::of).fold(SignalSet::EMPTY, |all, signal| all | signal)
}
