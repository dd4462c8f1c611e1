// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands: a program, its arguments and options.

use core::ffi::{c_char, c_int, c_void};
use core::ptr;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use spawnfd::internal::{Action, CallOptions, Kind as ArgumentKind, Value, set_stream};
use spawnfd::job::SharedBytes;
use spawnfd::options::{self, Call, Kind};
use spawnfd::sandbox::Sandbox;
use spawnfd::session::CommandText;
use spawnfd::{Command, Env, Stdio, Warm};

use super::error::{Answer, Failed, answer, bytes, name, object, optional, string, strings};
use super::job::spawnfd_job;
use super::result::spawnfd_result;
use super::spawnfd_error;
use super::warm::spawnfd_warm;

/// A program, its arguments and its options; or only options, for a command of a session.
#[derive(Debug, Default)]
pub struct spawnfd_command {
    /// `argv`; empty if the caller gave only options.
    words: Vec<OsString>,
    settings: Vec<(String, Setting)>,
    env: Vec<Change>,
    actions: Vec<(&'static Action, Vec<Value<'static>>)>,
    /// The descriptors in `actions`.
    descriptors: Vec<Arc<OwnedFd>>,
    sandbox: Option<Sandbox>,
    warm: Option<Warm>,
}

#[derive(Debug)]
enum Setting {
    Text(Option<OsString>),
    Bytes(SharedBytes),
    Descriptor(OwnedFd),
}

/// A change of the environment.
#[derive(Debug)]
enum Change {
    Set(OsString, OsString),
    Unset(OsString),
    Keep(Vec<OsString>),
}

/// The calls that a command can be used for.
const CALLS: [Call; 4] = [Call::Run, Call::Start, Call::Session, Call::Command];

impl spawnfd_command {
    /// Replaces the setting of this name.
    fn replace(&mut self, name: &str, setting: Setting) {
        self.settings.retain(|(other, _)| other != name);
        self.settings.push((name.to_owned(), setting));
    }

    /// The options of a call.
    pub(super) fn options(&self, call: Call) -> Answer<CallOptions> {
        let mut options = CallOptions::new(call);
        for (name, setting) in &self.settings {
            match setting {
                Setting::Text(text) => options.set_text(name, text.as_deref())?,
                Setting::Bytes(bytes) => options.set(name, options::Value::Bytes(bytes.clone()))?,
                // Only a command of the crate `spawnfd` has descriptors.
                Setting::Descriptor(_) => {}
            }
        }
        if let (Call::Session, Some(sandbox)) = (call, &self.sandbox) {
            options.session = options.session.sandbox(sandbox);
        }
        Ok(options)
    }

    /// The command of the crate `spawnfd`, and the options of the call that starts it. The command must not outlive
    /// `self.descriptors`.
    pub(super) fn prepare<'a>(&'a self, call: Call) -> Answer<(Command<'a>, CallOptions)> {
        let mut options = self.options(call)?;
        let mut command = self.program()?;
        options.apply(&mut command);
        for (name, setting) in &self.settings {
            if let Setting::Descriptor(fd) = setting {
                set_stream(&mut command, name, Stdio::from(fd.as_fd()))?;
            }
        }
        if let (false, Some(sandbox)) = (call == Call::Session, &self.sandbox) {
            command.sandbox(sandbox);
        }
        Ok((command, options))
    }

    /// The command of the crate `spawnfd` without options, for a session. The caller keeps the descriptors that the
    /// second value has.
    pub(super) fn prepare_shell(&self) -> Answer<(Command<'static>, CallOptions, Vec<Arc<OwnedFd>>)> {
        let mut options = self.options(Call::Session)?;
        if let Some((name, _)) = self.settings.iter().find(|(_, setting)| matches!(setting, Setting::Descriptor(_))) {
            return Err(Failed::invalid(format!("{name}: a session provides the streams of its shell")));
        }
        let mut command = self.program()?;
        options.apply(&mut command);
        Ok((command, options, self.descriptors.clone()))
    }

    /// The command of a transport. It has no options of a run, because the library watches it by its own.
    pub(super) fn prepare_transport(&self) -> Answer<Command<'_>> {
        let is_other = |name: &str| !matches!(name, "cwd" | "arg0");
        if let Some((name, _)) = self.settings.iter().find(|(name, _)| is_other(name)) {
            return Err(Failed::invalid(format!("{name}: a transport does not have this option")));
        }
        Ok(self.prepare(Call::Start)?.0)
    }

    fn program<'fd>(&self) -> Answer<Command<'fd>> {
        let Some((program, args)) = self.words.split_first() else {
            return Err(Failed::invalid("the command has no program"));
        };
        let mut command = Command::new(program);
        command.args(args);
        if !self.env.is_empty() {
            command.environment(&self.env.iter().fold(Env::inherit(), |env, change| match change {
                Change::Set(name, value) => env.set(name, value),
                Change::Unset(name) => env.unset(name),
                Change::Keep(patterns) => env.keep_only(patterns),
            }));
        }
        for (action, values) in &self.actions {
            add(&mut command, action, values)?;
        }
        if let Some(warm) = &self.warm {
            command.warm(warm);
        }
        Ok(command)
    }

    /// The text of a session's command, with the directory and the variables of these options.
    pub(super) fn text(&self, text: &OsStr, options: &CallOptions) -> Answer<CommandText> {
        let unused = [
            ("a program", !self.words.is_empty()),
            ("actions", !self.actions.is_empty()),
            ("a sandbox", self.sandbox.is_some()),
            ("parked processes", self.warm.is_some()),
            ("descriptors", self.settings.iter().any(|(_, setting)| matches!(setting, Setting::Descriptor(_)))),
        ];
        if let Some((what, _)) = unused.into_iter().find(|(_, is_set)| *is_set) {
            return Err(Failed::invalid(format!("the options of a session's command cannot have {what}")));
        }
        self.env.iter().try_fold(options.apply_to_text(CommandText::new(text)), |text, change| match change {
            Change::Set(name, value) => Ok(text.env(name.to_string_lossy(), value)),
            _ => Err(Failed::invalid("the options of a session's command can only set variables")),
        })
    }
}

fn add<'fd>(command: &mut Command<'fd>, action: &Action, values: &[Value<'fd>]) -> Answer<()> {
    action.add(command, values).map_err(|wrong| Failed::invalid(wrong.text(action.name)))
}

/// Creates a command that starts the program `argv[0]`, a path or a name to search in PATH.
///
/// `argv` ends with NULL. The function copies the strings. If `argv` is NULL, the command has only options, for
/// `spawnfd_session_run` and `spawnfd_session_start`.
///
/// # Errors
/// Returns NULL and sets errno. EINVAL: `argv` is an empty list.
///
/// # Safety
/// `argv` is NULL or a list of strings that ends with NULL. `error` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spawnfd_command_new(
    argv: *const *const c_char,
    error: *mut spawnfd_error,
) -> *mut spawnfd_command {
    let body = || {
        let mut command = spawnfd_command::default();
        if !argv.is_null() {
            // SAFETY: the caller guarantees the list.
            command.words = unsafe { strings(argv, "argv") }?.into_iter().map(OsStr::to_owned).collect();
            if command.words.is_empty() {
                return Err(Failed::invalid("argv must not be empty"));
            }
        }
        Ok(Box::into_raw(Box::new(command)))
    };
    // SAFETY: the caller guarantees the pointer.
    unsafe { answer(error, ptr::null_mut(), body) }
}

/// Frees a command. Runs, jobs and sessions of the command go on. NULL has no effect.
///
/// # Safety
/// `command` is NULL or a command that no thread uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spawnfd_command_free(command: *mut spawnfd_command) {
    if !command.is_null() {
        // SAFETY: the caller guarantees the pointer, which is from `spawnfd_command_new`.
        drop(unsafe { Box::from_raw(command) });
    }
}

/// Runs the body of a function that changes a command, and returns what the C function returns.
///
/// # Safety
/// `command` is NULL or a command that no other thread uses. `error` is NULL or valid.
unsafe fn change(
    command: *mut spawnfd_command,
    error: *mut spawnfd_error,
    body: impl FnOnce(&mut spawnfd_command) -> Answer<()>,
) -> c_int {
    // SAFETY: the caller guarantees the pointers.
    unsafe {
        answer(error, -1, || {
            let command = command.as_mut().ok_or_else(|| Failed::invalid("command must not be NULL"))?;
            body(command).map(|()| 0)
        })
    }
}

/// Sets an option of a run, a job, a session, or a session's command by its name, such as `timeout` to `10s`.
///
/// docs/options.md lists the names and their values. Durations are seconds, or numbers with `ms`, `s`, `m` or `h`. Numbers
/// of bytes can have `K`, `M`, `G` or `T`. A `value` of NULL means no value, such as no timeout; for a stream, it means
/// the default. A second call replaces the value.
///
/// # Errors
/// Returns -1, sets errno, and leaves the command unchanged. EINVAL: there is no option of this name, or no call accepts
/// this value for it. A call that lacks the option fails with EINVAL, such as `spawnfd_run` with `window`.
///
/// # Safety
/// `command` is NULL or a command that no other thread uses. The strings are NULL or valid. `error` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spawnfd_command_set(
    command: *mut spawnfd_command,
    name: *const c_char,
    value: *const c_char,
    error: *mut spawnfd_error,
) -> c_int {
    // SAFETY: the caller guarantees the pointers.
    unsafe {
        change(command, error, |command| {
            let (name, value) = (self::name(name, "name")?, optional(value));
            let mut accepts = CALLS.map(|call| CallOptions::new(call).set_text(name, value));
            if !accepts.iter().any(Result::is_ok) {
                // The reason of a call that has the option says more than that of one that lacks it.
                let known = CALLS.iter().position(|&call| options::find(call, name).is_some()).unwrap_or_default();
                std::mem::replace(&mut accepts[known], Ok(()))?;
            }
            command.replace(name, Setting::Text(value.map(OsStr::to_owned)));
            Ok(())
        })
    }
}

/// Sets an option whose value is data, such as `input`, to a copy of `length` bytes.
///
/// # Errors
/// Returns -1 and sets errno. EINVAL: no option of this name has data as its value.
///
/// # Safety
/// `command` is NULL or a command that no other thread uses. `data` is valid for reads of `length` bytes. `name` is NULL
/// or a string, and `error` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spawnfd_command_set_bytes(
    command: *mut spawnfd_command,
    name: *const c_char,
    data: *const c_void,
    length: usize,
    error: *mut spawnfd_error,
) -> c_int {
    // SAFETY: the caller guarantees the pointers.
    unsafe {
        change(command, error, |command| {
            let name = self::name(name, "name")?;
            if !options::all().any(|option| option.name == name && option.kind == Kind::Data) {
                return Err(Failed::invalid(format!("there is no option {name:?} with data")));
            }
            command.replace(name, Setting::Bytes(bytes(data, length)?.to_vec().into()));
            Ok(())
        })
    }
}

/// Connects the standard stream `name` (`stdin`, `stdout` or `stderr`) to a duplicate of the descriptor `fd`.
///
/// Runs and jobs then neither write nor capture this stream.
///
/// # Errors
/// Returns -1 and sets errno. EBADF: `fd` is not open. EINVAL: there is no such stream. EMFILE.
///
/// # Safety
/// `command` is NULL or a command that no other thread uses. `name` is NULL or a string, and `error` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spawnfd_command_set_fd(
    command: *mut spawnfd_command,
    name: *const c_char,
    fd: c_int,
    error: *mut spawnfd_error,
) -> c_int {
    // SAFETY: the caller guarantees the pointers.
    unsafe {
        change(command, error, |command| {
            let name = self::name(name, "name")?;
            set_stream(&mut Command::new(""), name, Stdio::Null)?;
            command.replace(name, Setting::Descriptor(duplicate(fd)?));
            Ok(())
        })
    }
}

/// A close-on-exec duplicate of a descriptor.
fn duplicate(fd: c_int) -> Answer<OwnedFd> {
    if fd < 0 {
        return Err(Failed::new(libc::EBADF, format!("descriptor {fd} is not open")));
    }
    // SAFETY: the duplication fails if the descriptor is not open.
    let copy = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned();
    copy.map_err(|error| Failed::system(&format!("fcntl({fd}, F_DUPFD_CLOEXEC)"), &error))
}

/// Sets a variable of the program's environment, or removes it if `value` is NULL.
///
/// The environment begins as a copy of this process's environment at the time of the start.
///
/// # Errors
/// Returns -1 and sets errno. EINVAL: `name` is empty or has a `=`.
///
/// # Safety
/// `command` is NULL or a command that no other thread uses. The strings are NULL or valid. `error` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spawnfd_command_set_env(
    command: *mut spawnfd_command,
    name: *const c_char,
    value: *const c_char,
    error: *mut spawnfd_error,
) -> c_int {
    // SAFETY: the caller guarantees the pointers.
    unsafe {
        change(command, error, |command| {
            let name = string(name, "name")?;
            if name.is_empty() || name.as_encoded_bytes().contains(&b'=') {
                return Err(Failed::invalid(format!("{name:?} is not a name of a variable")));
            }
            command.env.push(match optional(value) {
                Some(value) => Change::Set(name.to_owned(), value.to_owned()),
                None => Change::Unset(name.to_owned()),
            });
            Ok(())
        })
    }
}

/// Removes all variables whose names match none of `patterns`, in which `*` stands for any characters and `?` for one.
///
/// An empty list removes all variables. The call applies to inherited variables, and to those that earlier calls have set.
///
/// # Errors
/// Returns -1 and sets errno. EINVAL: an argument is NULL.
///
/// # Safety
/// `command` is NULL or a command that no other thread uses. `patterns` is NULL or a list of strings that ends with NULL.
/// `error` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spawnfd_command_keep_env(
    command: *mut spawnfd_command,
    patterns: *const *const c_char,
    error: *mut spawnfd_error,
) -> c_int {
    // SAFETY: the caller guarantees the pointers.
    unsafe {
        change(command, error, |command| {
            let patterns = strings(patterns, "patterns")?;
            command.env.push(Change::Keep(patterns.into_iter().map(OsStr::to_owned).collect()));
            Ok(())
        })
    }
}

/// Adds an action of the child before exec by its name, such as `umask` with the arguments `022`.
///
/// docs/actions.md lists the names and the arguments. `arguments` is NULL or empty for an action without arguments. The
/// function duplicates the descriptors of this process that the arguments name.
///
/// # Errors
/// Returns -1, sets errno, and leaves the command unchanged. EINVAL: there is no such action, or its arguments are wrong.
/// EBADF: a descriptor is not open.
///
/// # Safety
/// `command` is NULL or a command that no other thread uses. The strings are NULL or valid. `error` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spawnfd_command_add_action(
    command: *mut spawnfd_command,
    name: *const c_char,
    arguments: *const c_char,
    error: *mut spawnfd_error,
) -> c_int {
    // SAFETY: the caller guarantees the pointers.
    unsafe {
        change(command, error, |command| {
            let (name, text) = (self::name(name, "name")?, optional(arguments).unwrap_or_default());
            let unknown = || Failed::invalid(format!("there is no action {name:?}"));
            let action = Action::find(name).ok_or_else(unknown)?;
            if action.arguments.is_empty() && !text.is_empty() {
                return Err(Failed::invalid(format!("{name} has no arguments, got {text:?}")));
            }
            let mut values = action.parse(text).map_err(|reason| {
                let colon = if reason.starts_with("must ") { "" } else { ":" };
                Failed::invalid(format!("{name}{colon} {reason}, got {text:?}"))
            })?;
            let mut duplicates = Vec::new();
            for (argument, value) in action.arguments.iter().zip(&mut values) {
                if let (ArgumentKind::Source | ArgumentKind::Namespace, &mut Value::Int(number)) =
                    (argument.kind, &mut *value)
                {
                    let copy = Arc::new(duplicate(c_int::try_from(number).unwrap_or(-1))?);
                    // SAFETY: `command.descriptors` keeps the duplicate open.
                    *value = Value::Descriptor(BorrowedFd::borrow_raw(std::os::fd::AsRawFd::as_raw_fd(&*copy)));
                    duplicates.push(copy);
                }
            }
            add(&mut Command::new(""), action, &values)?;
            command.descriptors.append(&mut duplicates);
            command.actions.push((action, values));
            Ok(())
        })
    }
}

/// Starts the program through a command that confines it, such as `bwrap --ro-bind / / --unshare-net`.
///
/// `argv` ends with NULL. The function searches `argv[0]` in this process's PATH.
///
/// # Errors
/// Returns -1 and sets errno. EINVAL: `argv` is empty. ENOENT, EACCES: `argv[0]` cannot be found or executed.
///
/// # Safety
/// `command` is NULL or a command that no other thread uses. `argv` is NULL or a list of strings that ends with NULL.
/// `error` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spawnfd_command_set_sandbox(
    command: *mut spawnfd_command,
    argv: *const *const c_char,
    error: *mut spawnfd_error,
) -> c_int {
    // SAFETY: the caller guarantees the pointers.
    unsafe {
        change(command, error, |command| {
            command.sandbox = Some(Sandbox::new(strings(argv, "argv")?)?);
            Ok(())
        })
    }
}

/// Lets the program start from a suitable parked process of `warm`, if there is one. NULL: from none.
///
/// # Errors
/// Returns -1 and sets errno. EINVAL: `command` is NULL.
///
/// # Safety
/// `command` is NULL or a command that no other thread uses. `warm` is NULL or valid; it can be freed after the call.
/// `error` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spawnfd_command_set_warm(
    command: *mut spawnfd_command,
    warm: *const spawnfd_warm,
    error: *mut spawnfd_error,
) -> c_int {
    // SAFETY: the caller guarantees the pointers.
    unsafe {
        change(command, error, |command| {
            command.warm = warm.as_ref().map(spawnfd_warm::share).transpose()?;
            Ok(())
        })
    }
}

/// Reserves low descriptor numbers for the starts of this process.
///
/// Call this early in a process that will have hundreds of descriptors before its first start, which would otherwise take
/// longer: 1 ms for 10,000 descriptors under Docker's seccomp filter. Eight descriptors stay open, close-on-exec. If no
/// low number is free, the call has no effect.
#[unsafe(no_mangle)]
pub extern "C" fn spawnfd_reserve_descriptors() {
    spawnfd::reserve_descriptors();
}

/// Runs the program to its end, and returns its result. The caller frees the result.
///
/// The library captures the output, and ends the program's process tree at a limit and when this process ends.
///
/// # Errors
/// Returns NULL and sets errno:
/// - ENOENT, EACCES, ENOEXEC, ENOTDIR and others: the program or its directory cannot be used. The member `stage` of the
///   error names the step that failed.
/// - EINVAL: the command has no program, an option that a run does not have, or options that exclude each other.
/// - The errno of an action; the member `action` has its index.
/// - EAGAIN, ENOMEM, EMFILE, ENFILE, EPERM: the child could not be created.
///
/// # Safety
/// `command` is NULL or a command that no thread changes. `error` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spawnfd_run(
    command: *const spawnfd_command,
    error: *mut spawnfd_error,
) -> *mut spawnfd_result {
    // SAFETY: the caller guarantees the pointers.
    unsafe {
        answer(error, ptr::null_mut(), || {
            let (command, options) = object(command, "command")?.prepare(Call::Run)?;
            Ok(spawnfd_result::create(command.run_with(&options.run)?.into()))
        })
    }
}

/// Starts the program, and returns its job. The caller frees the job, which ends the program if it still runs.
///
/// # Errors
/// Returns NULL and sets errno. The errors are those of `spawnfd_run`, but errors of the child, such as those of actions
/// and of exec, can be errors of `spawnfd_job_wait` instead.
///
/// # Safety
/// `command` is NULL or a command that no thread changes. `error` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spawnfd_start(command: *const spawnfd_command, error: *mut spawnfd_error) -> *mut spawnfd_job {
    // SAFETY: the caller guarantees the pointers.
    unsafe {
        answer(error, ptr::null_mut(), || {
            let (command, options) = object(command, "command")?.prepare(Call::Start)?;
            spawnfd_job::create(&options, |events| command.start_events(&options.run, events))
        })
    }
}
