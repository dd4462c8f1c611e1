// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of builders: calls of the C functions, and the actions of the tests.

mod attributes;
mod configuration;
mod files;
mod program;
mod refused;
mod running;

use std::sync::atomic::{AtomicU32, Ordering};

use spawnfd_capi::builder::*;

use crate::support::*;

const SHELL: &CStr = c"/bin/sh";
/// The variable PATH, in which the shell finds the programs of a script.
const PATH: &CStr = c"PATH=/usr/bin:/bin";
/// Prints the numbers of the shell's descriptors below 30.
const LIST: &CStr = c"n=0; while [ $n -lt 30 ]; do [ -e /proc/$$/fd/$n ] && printf '%s ' $n; n=$((n + 1)); done";

pub struct Builder(pub OwnedFd);

pub fn call_config(fd: i32, cmd: u32, key: u32, value: u64, aux: i32) -> Result<(), i32> {
    // SAFETY: the tests pass 0, or the address of a value.
    result(unsafe { spawnfd_builder_config(fd, cmd, key, value as usize as *const _, aux) }).map(drop)
}

pub fn call_run(fd: i32, args: &mut SpawnArgs) -> Result<RawFd, i32> {
    // SAFETY: the tests pass valid arguments.
    result(unsafe { spawnfd_builder_run(fd, args, size_of::<SpawnArgs>()) })
}

impl Builder {
    pub fn open() -> Builder {
        Builder(owned(result(spawnfd_builder_open(0)).unwrap()))
    }

    /// A builder of the shell with this script.
    pub fn shell(script: &CStr) -> Builder {
        let builder = Builder::open();
        builder.path(SHELL);
        builder.script(script);
        builder
    }

    fn config(&self, cmd: u32, key: u32, value: u64, aux: i32) -> Result<(), i32> {
        call_config(self.0.as_raw_fd(), cmd, key, value, aux)
    }

    fn string(&self, key: u32, string: &CStr) -> Result<(), i32> {
        self.config(PIDFD_CONFIG_SET_STRING, key, address(string), 0)
    }

    fn strings(&self, key: u32, strings: &[&CStr]) -> Result<(), i32> {
        self.config(PIDFD_CONFIG_SET_STRINGS, key, address(&*pointers(strings)), 0)
    }

    pub fn path(&self, path: &CStr) {
        self.string(PIDFD_CONFIG_KEY_PATH, path).unwrap();
    }

    fn argv(&self, argv: &[&CStr]) {
        self.strings(PIDFD_CONFIG_KEY_ARGV, argv).unwrap();
    }

    pub fn script(&self, script: &CStr) {
        self.argv(&[c"sh", c"-c", script]);
    }

    fn envp(&self, envp: &[&CStr]) {
        self.strings(PIDFD_CONFIG_KEY_ENVP, envp).unwrap();
    }

    fn fd(&self, key: u32, number: i32) -> Result<(), i32> {
        self.config(PIDFD_CONFIG_SET_FD, key, 0, number)
    }

    /// Sets the actions. An error has the errno and the index of the refused action.
    pub fn actions(&self, actions: &[SpawnAction]) -> Result<(), (i32, i32)> {
        let mut list = list_of(actions);
        self.list(&mut list).map_err(|errno| (errno, list.failed))
    }

    fn list(&self, list: &mut SpawnActionList) -> Result<(), i32> {
        let value = (&raw mut *list).expose_provenance() as u64;
        self.config(PIDFD_CONFIG_SET_ACTIONS, PIDFD_CONFIG_KEY_ACTIONS, value, size_of::<SpawnActionList>() as i32)
    }

    fn namespaces(&self, flags: i32) -> Result<(), i32> {
        self.config(PIDFD_CONFIG_SET_FLAGS, PIDFD_CONFIG_KEY_NAMESPACES, 0, flags)
    }

    pub fn reset(&self, key: u32) -> Result<(), i32> {
        self.config(PIDFD_CONFIG_RESET, key, 0, 0)
    }

    fn run(&self, args: &mut SpawnArgs) -> Result<RawFd, i32> {
        call_run(self.0.as_raw_fd(), args)
    }

    /// Runs the builder with these arguments. Returns the exit code, or the errno and the index of the failed action.
    fn code_with(&self, mut args: SpawnArgs) -> Result<i32, (i32, i32)> {
        self.run(&mut args).map(|pidfd| reap(&owned(pidfd))).map_err(|errno| (errno, args.failed))
    }

    pub fn code(&self, actions: &[SpawnAction]) -> Result<i32, (i32, i32)> {
        self.code_with(args_of(actions))
    }

    /// Runs the builder with these actions after a redirection of standard output, and returns the output. An error has
    /// the errno and the index of the failed action, not counting the redirection.
    fn output_with(&self, actions: &[SpawnAction], flags: u32) -> Result<String, (i32, i32)> {
        output_of(|writer| {
            let actions = [&[dup2(writer, 1)], actions].concat();
            let mut args = SpawnArgs { flags, ..args_of(&actions) };
            self.run(&mut args).map(owned).map_err(|errno| (errno, args.failed - i32::from(args.failed > 0)))
        })
    }

    fn output(&self, actions: &[SpawnAction]) -> Result<String, (i32, i32)> {
        self.output_with(actions, 0)
    }

    /// The plan of a run with these actions.
    fn whole_plan(&self, actions: &[SpawnAction]) -> Vec<String> {
        // SAFETY: the tests pass valid arguments.
        unsafe { printed_plan(self.0.as_raw_fd(), &args_of(actions)) }.unwrap()
    }

    /// The lines by which the plan of a run with these actions differs from the plan without actions.
    fn plan(&self, actions: &[SpawnAction]) -> Vec<String> {
        let plain = self.whole_plan(&[]);
        self.whole_plan(actions).into_iter().filter(|line| !plain.contains(line)).collect()
    }
}

fn args_of(actions: &[SpawnAction]) -> SpawnArgs {
    if actions.is_empty() {
        return SpawnArgs::default();
    }
    let (nr_actions, action_size) = (actions.len() as u32, size_of::<SpawnAction>() as u32);
    SpawnArgs { nr_actions, actions: address(actions), action_size, ..SpawnArgs::default() }
}

fn list_of(actions: &[SpawnAction]) -> SpawnActionList {
    let SpawnArgs { actions, nr_actions, action_size, .. } = args_of(actions);
    SpawnActionList { actions, nr_actions, action_size, ..SpawnActionList::default() }
}

fn action(r#type: u32) -> SpawnAction {
    SpawnAction { r#type, ..SpawnAction::default() }
}

fn with_fd(r#type: u32, fd: i32) -> SpawnAction {
    SpawnAction { fd, ..action(r#type) }
}

fn with_arg(r#type: u32, arg: u64) -> SpawnAction {
    SpawnAction { arg, ..action(r#type) }
}

/// An action with a number, and with data at its address.
fn with_data<T: ?Sized>(r#type: u32, fd: i32, data: &T) -> SpawnAction {
    SpawnAction { fd, ..with_arg(r#type, address(data)) }
}

fn with_text(r#type: u32, text: &CStr) -> SpawnAction {
    with_arg(r#type, address(text))
}

fn dup2(fd: i32, newfd: i32) -> SpawnAction {
    SpawnAction { newfd, ..with_fd(SPAWN_ACTION_DUP2, fd) }
}

fn chdir(path: &CStr) -> SpawnAction {
    with_text(SPAWN_ACTION_CHDIR, path)
}

fn umask() -> SpawnAction {
    with_fd(SPAWN_ACTION_UMASK, 0o22)
}

fn ids(r#type: u32, id: i32) -> SpawnAction {
    SpawnAction { fd: id, newfd: id, arg: id as u32 as u64, ..action(r#type) }
}

fn open_of(path: &CStr, flags: i32, mode: u64) -> SpawnOpen {
    let how = OpenHow { flags: flags as u64, mode, resolve: 0 };
    SpawnOpen { path: address(path), how_size: size_of::<OpenHow>() as u64, how }
}

fn open_action(fd: i32, open: &SpawnOpen, newfd: i32) -> SpawnAction {
    SpawnAction { fd, newfd, arg: address(open), ..action(SPAWN_ACTION_OPEN) }
}

fn set_of(bits: &u64) -> SpawnSigset {
    SpawnSigset { sigset: address(bits), sigsetsize: 8 }
}

/// Opens a file, at a number that no action of these tests makes.
fn open_with(path: &str, flags: i32) -> File {
    let file = File::options().read(true).custom_flags(flags).open(path).unwrap();
    owned(call::dup_above(file.as_raw_fd(), 300).unwrap()).into()
}

fn file(path: &str) -> File {
    open_with(path, 0)
}

fn path_only(path: &str) -> File {
    open_with(path, O_PATH)
}
