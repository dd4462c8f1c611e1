// SPDX-License-Identifier: MIT OR Apache-2.0
//! Converts the arguments of a call to a command of the core.

use std::os::unix::ffi::OsStrExt;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyInt};
use spawnfd::{Command, SignalSet, Stdio};

use crate::actions;
use crate::arguments::{check_program, descriptor, os_string, os_strings, wrong_type, wrong_value};
use crate::env::environment;
use crate::errors::{ErrorContext, Origin};
use crate::options::Options;
use crate::reported::ReportedArguments;
use crate::stdio::{self, CallKind};
use crate::template::{Template, TemplateCache};

/// A command, and those arguments of the call that its results and errors report.
pub struct Request {
    pub command: Command<'static>,
    pub reported: ReportedArguments,
    pub context: ErrorContext,
}

impl Request {
    /// Builds the request. `program` is None (argv[0] names the program), a Template or a TemplateCache.
    pub fn new(
        program: Option<&Bound<'_, PyAny>>,
        args: &Bound<'_, PyAny>,
        options: Options<'_>,
        kind: CallKind,
    ) -> PyResult<Request> {
        let Options { cwd, env, stdin, stdout, stderr, actions, arg0, sandbox, warm, .. } = options;
        let sandbox = sandbox.as_ref().map(crate::sandbox::sandbox).transpose()?.map(Bound::get);
        let py = args.py();
        let template = program.and_then(|program| program.cast::<Template>().ok());
        let (mut command, mut argv, mut program) = match template {
            Some(_) if sandbox.is_some() => {
                return Err(wrong_value(
                    &"sandbox",
                    "cannot be combined with a Template; use run([path, ...], sandbox=...)",
                ));
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
                let name = match sandbox {
                    Some(_) if name.as_bytes().starts_with(b"-") => {
                        let reason = format_args!("the sandbox's command would read {name:?} as an option");
                        return Err(wrong_value(&"argv[0]", reason));
                    }
                    // The sandbox's command resolves the program's name, so a relative path is valid.
                    Some(_) if !name.is_empty() => name.to_owned(),
                    _ => check_program(py, name, "argv[0]")?.to_owned(),
                };
                let command = match program {
                    None => Command::new(&name),
                    Some(cache) => match cache.cast::<TemplateCache>() {
                        Ok(cache) => cache.get().command(&name),
                        Err(_) => return Err(wrong_type(&"program", "a Template or TemplateCache", cache)),
                    },
                };
                (command, argv, name)
            }
        };
        // Set the mask and the handlers before the actions are added, because an action may override them.
        command.signal_mask(SignalSet::EMPTY).default_signals(ignored_by_python());
        command.args(&argv[1..]);
        if let Some(sandbox) = sandbox {
            command.sandbox(&sandbox.core);
            program.clone_from(&sandbox.argv[0]);
            argv.splice(0..0, sandbox.argv.iter().cloned());
        }
        if let Some(arg0) = arg0 {
            argv[0] = os_string(&arg0, &"arg0")?;
            command.arg0(&argv[0]);
        }
        command.environment(&environment(env.as_ref())?);
        command.stdin(stdio::stream(0, kind, stdin.as_ref())?);
        command.stdout(stdio::stream(1, kind, stdout.as_ref())?);
        let stderr = stdio::stream(2, kind, stderr.as_ref())?;
        let stderr_merged = matches!(stderr, Stdio::SameAsStdout);
        command.stderr(stderr);

        if let Some(warm) = warm {
            command.warm(&crate::warm::warm(&warm)?);
        }

        let mut origins = Vec::new();
        let cwd = match cwd {
            Some(cwd) if cwd.is_instance_of::<PyInt>() && !cwd.is_instance_of::<PyBool>() => {
                command.fchdir(descriptor(&cwd, &"cwd")?).uncounted();
                origins.push(Origin::CurrentDir);
                None
            }
            Some(cwd) => {
                let expected = "a path (str, bytes or os.PathLike) or a descriptor (int)";
                let is_type = |error: &PyErr| error.is_instance_of::<PyTypeError>(py);
                let cwd = os_string(&cwd, &"cwd")
                    .map_err(|error| if is_type(&error) { wrong_type(&"cwd", expected, &cwd) } else { error })?;
                command.current_dir(&cwd);
                Some(cwd)
            }
            None => None,
        };
        if let Some(list) = actions {
            actions::add(&mut command, &list, &mut origins)?;
        }
        let reported = ReportedArguments { argv, timeout: None, idle_timeout: None, output_limit: None, stderr_merged };
        let request = Request { command, reported, context: ErrorContext { program, cwd, origins } };
        request.command.check_descriptors().map_err(|error| request.context.exception(py, &error))?;
        Ok(request)
    }
}

/// The signals that Python ignores, or may ignore: SIGPIPE and SIGXFSZ.
pub fn ignored_by_python() -> SignalSet {
    [13, 25].into_iter().filter_map(SignalSet::of).fold(SignalSet::EMPTY, |all, signal| all | signal)
}
