// SPDX-License-Identifier: MIT OR Apache-2.0
//! Helpers: calls of the C functions, and the actions of the tests.

pub use std::ffi::{CStr, CString};
pub use std::fs::File;
pub use std::io::Read;
pub use std::mem::offset_of;
pub use std::os::fd::{AsRawFd, IntoRawFd, RawFd};
pub use std::os::unix::fs::OpenOptionsExt;
pub use std::path::Path;
pub use std::sync::atomic::{AtomicU32, Ordering};

pub use libc::{
    AT_FDCWD, E2BIG, EACCES, EAGAIN, EBADF, EEXIST, EFAULT, EINVAL, EMFILE, ENAMETOOLONG, ENOENT, ENOEXEC, ENOTDIR,
    EOPNOTSUPP, EPERM, O_CLOEXEC, O_DIRECTORY, O_NONBLOCK, O_PATH,
};
pub use spawnfd_capi::builder::*;
pub use spawnfd_tests::{is_root, isolated};

pub use crate::common::*;

pub const SHELL: &CStr = c"/bin/sh";
/// Prints the numbers of the shell's descriptors below 30.
pub const LIST: &CStr = c"n=0; while [ $n -lt 30 ]; do [ -e /proc/$$/fd/$n ] && printf '%s ' $n; n=$((n + 1)); done";

pub fn result(returned: i32) -> Result<i32, i32> {
    if returned < 0 { Err(errno()) } else { Ok(returned) }
}

/// Pointers to strings, and a NULL pointer at the end.
pub fn pointers(strings: &[&CStr]) -> Vec<u64> {
    strings.iter().map(|string| string.as_ptr().expose_provenance() as u64).chain([0]).collect()
}

/// A builder, which its drop closes.
pub struct Builder(pub RawFd);

impl Drop for Builder {
    fn drop(&mut self) {
        // SAFETY: the test owns the builder.
        unsafe { libc::close(self.0) };
    }
}

pub fn call_config(fd: i32, cmd: u32, key: u32, value: u64, aux: i32) -> Result<(), i32> {
    // SAFETY: the tests pass 0, or the address of a value.
    result(unsafe { spawnfd_builder_config(fd, cmd, key, value as usize as *const _, aux) }).map(drop)
}

pub fn call_run(fd: i32, args: &mut SpawnArgs) -> Result<i32, i32> {
    // SAFETY: the tests pass valid arguments.
    result(unsafe { spawnfd_builder_run(fd, args, size_of::<SpawnArgs>()) })
}

impl Builder {
    pub fn open() -> Builder {
        Builder(result(spawnfd_builder_open(0)).unwrap())
    }

    /// A builder of the shell with this script.
    pub fn shell(script: &CStr) -> Builder {
        let builder = Builder::open();
        builder.path(SHELL);
        builder.argv(&[c"sh", c"-c", script]);
        builder
    }

    pub fn config(&self, cmd: u32, key: u32, value: u64, aux: i32) -> Result<(), i32> {
        call_config(self.0, cmd, key, value, aux)
    }

    pub fn string(&self, key: u32, string: &CStr) -> Result<(), i32> {
        self.config(PIDFD_CONFIG_SET_STRING, key, string.as_ptr().expose_provenance() as u64, 0)
    }

    pub fn strings(&self, key: u32, strings: &[&CStr]) -> Result<(), i32> {
        self.config(PIDFD_CONFIG_SET_STRINGS, key, address(&*pointers(strings)), 0)
    }

    pub fn path(&self, path: &CStr) {
        self.string(PIDFD_CONFIG_KEY_PATH, path).unwrap();
    }

    pub fn argv(&self, argv: &[&CStr]) {
        self.strings(PIDFD_CONFIG_KEY_ARGV, argv).unwrap();
    }

    pub fn fd(&self, key: u32, number: i32) -> Result<(), i32> {
        self.config(PIDFD_CONFIG_SET_FD, key, 0, number)
    }

    /// Sets the actions. An error has the errno and the index of the refused action.
    pub fn actions(&self, actions: &[SpawnAction]) -> Result<(), (i32, i32)> {
        let mut list = list_of(actions);
        self.list(&mut list).map_err(|errno| (errno, list.failed))
    }

    pub fn list(&self, list: &mut SpawnActionList) -> Result<(), i32> {
        let value = (&raw mut *list).expose_provenance() as u64;
        self.config(PIDFD_CONFIG_SET_ACTIONS, PIDFD_CONFIG_KEY_ACTIONS, value, size_of::<SpawnActionList>() as i32)
    }

    pub fn namespaces(&self, flags: i32) -> Result<(), i32> {
        self.config(PIDFD_CONFIG_SET_FLAGS, PIDFD_CONFIG_KEY_NAMESPACES, 0, flags)
    }

    pub fn reset(&self, key: u32) -> Result<(), i32> {
        self.config(PIDFD_CONFIG_RESET, key, 0, 0)
    }

    /// Runs the builder, and returns the exit code.
    pub fn code(&self, actions: &[SpawnAction]) -> Result<i32, (i32, i32)> {
        let mut args = args_of(actions);
        match call_run(self.0, &mut args) {
            Ok(pidfd) => Ok(reap(&owned(pidfd))),
            Err(errno) => Err((errno, args.failed)),
        }
    }

    /// Runs the builder with these actions after a redirection of standard output, and returns the output. An error has
    /// the errno and the index of the failed action, not counting the redirection.
    pub fn output_with(&self, actions: &[SpawnAction], flags: u32) -> Result<String, (i32, i32)> {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let all: Vec<SpawnAction> = [dup2(writer.as_raw_fd(), 1)].into_iter().chain(actions.iter().copied()).collect();
        let mut args = SpawnArgs { flags, ..args_of(&all) };
        let pidfd = call_run(self.0, &mut args)
            .map_err(|errno| (errno, if args.failed > 0 { args.failed - 1 } else { args.failed }))?;
        drop(writer);
        let mut output = String::new();
        reader.read_to_string(&mut output).unwrap();
        assert_eq!(reap(&owned(pidfd)), 0, "{output}");
        Ok(output)
    }

    /// The lines by which the plan of a run with these actions differs from the plan without actions.
    pub fn plan(&self, actions: &[SpawnAction]) -> Vec<String> {
        // SAFETY: the tests pass valid arguments.
        let [plain, all] = [&[], actions].map(|actions| unsafe { printed_plan(self.0, &args_of(actions)) }.unwrap());
        all.into_iter().filter(|line| !plain.contains(line)).collect()
    }

    pub fn output(&self, actions: &[SpawnAction]) -> Result<String, (i32, i32)> {
        self.output_with(actions, 0)
    }
}

pub fn args_of(actions: &[SpawnAction]) -> SpawnArgs {
    SpawnArgs {
        nr_actions: actions.len() as u32,
        actions: if actions.is_empty() { 0 } else { address(actions) },
        action_size: if actions.is_empty() { 0 } else { size_of::<SpawnAction>() as u32 },
        ..SpawnArgs::default()
    }
}

pub fn list_of(actions: &[SpawnAction]) -> SpawnActionList {
    let SpawnArgs { actions, nr_actions, action_size, .. } = args_of(actions);
    SpawnActionList { actions, nr_actions, action_size, ..SpawnActionList::default() }
}

pub fn action(r#type: u32) -> SpawnAction {
    SpawnAction { r#type, ..SpawnAction::default() }
}

pub fn with_fd(r#type: u32, fd: i32) -> SpawnAction {
    SpawnAction { fd, ..action(r#type) }
}

pub fn with_arg(r#type: u32, arg: u64) -> SpawnAction {
    SpawnAction { arg, ..action(r#type) }
}

pub fn with_text(r#type: u32, text: &CStr) -> SpawnAction {
    with_arg(r#type, text.as_ptr().expose_provenance() as u64)
}

pub fn dup2(fd: i32, newfd: i32) -> SpawnAction {
    SpawnAction { newfd, ..with_fd(SPAWN_ACTION_DUP2, fd) }
}

pub fn chdir(path: &CStr) -> SpawnAction {
    with_text(SPAWN_ACTION_CHDIR, path)
}

pub fn umask() -> SpawnAction {
    with_fd(SPAWN_ACTION_UMASK, 0o22)
}

pub fn ids(r#type: u32, id: i32) -> SpawnAction {
    SpawnAction { fd: id, newfd: id, arg: id as u32 as u64, ..action(r#type) }
}

pub fn open_of(path: &CStr, flags: i32, mode: u64) -> SpawnOpen {
    let how = OpenHow { flags: flags as u64, mode, resolve: 0 };
    SpawnOpen { path: path.as_ptr().expose_provenance() as u64, how_size: size_of::<OpenHow>() as u64, how }
}

pub fn open_action(fd: i32, open: &SpawnOpen, newfd: i32) -> SpawnAction {
    SpawnAction { fd, newfd, arg: address(open), ..action(SPAWN_ACTION_OPEN) }
}

pub fn set_of(bits: &u64) -> SpawnSigset {
    SpawnSigset { sigset: address(bits), sigsetsize: 8 }
}

/// Opens a file, at a number that no action of these tests makes.
fn open_with(path: &str, flags: i32) -> File {
    let file = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path).unwrap();
    // SAFETY: F_DUPFD_CLOEXEC has no requirements.
    owned(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 300) }).into()
}

pub fn file(path: &str) -> File {
    open_with(path, 0)
}

pub fn path_only(path: &str) -> File {
    open_with(path, O_PATH)
}

pub fn directory(path: &str) -> File {
    open_with(path, O_PATH | O_DIRECTORY)
}

/// Whether the process may create namespaces. Root in a container of Docker may not.
pub fn has_cap_sys_admin() -> bool {
    const CAP_SYS_ADMIN: u64 = 1 << 21;
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:\t")).unwrap();
    u64::from_str_radix(effective, 16).unwrap() & CAP_SYS_ADMIN != 0
}
