// SPDX-License-Identifier: MIT OR Apache-2.0
//! A program of `child_process`, started in the order and with the errors of libuv's `uv_spawn`.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use napi_derive::napi;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use spawnfd::error::{Errno, ErrorKind, Stage};
use spawnfd::internal::fall_back_to_shell;
use spawnfd::signal::SignalSet;
use spawnfd::{Child, Command, Env, Stdio};

use crate::request::IGNORED_BY_NODE;

/// The arguments of a start, as Node has checked them.
#[napi(object, object_to_js = false)]
pub struct ProgramStart {
    pub file: String,
    pub args: Vec<String>,
    pub cwd: Option<String>,
    /// The variables, each `NAME=VALUE` and separated by NUL bytes, and their number. Undefined: those of this process.
    pub env: Option<String>,
    pub env_count: u32,
    /// For each of the child's descriptors, a descriptor of the caller, or [`IGNORE`], or [`PIPE`].
    pub stdio: Vec<i32>,
    pub detached: bool,
    pub uid: Option<i32>,
    pub gid: Option<i32>,
}

const IGNORE: i32 = -1;
/// A new pair of sockets, as in libuv.
const PIPE: i32 = -2;

/// Why no program was started.
pub enum StartError {
    Failed(Errno),
    /// The attempt had no visible effect. Node's own code starts the program, or reports the error.
    Unsupported,
}

/// The PATH of execvp(3) if the environment has none.
const DEFAULT_PATH: [&str; 2] = ["/bin", "/usr/bin"];

/// The caller's ends of the child's pipes, by the child's descriptor.
pub type Pipes = Vec<Option<OwnedFd>>;

impl ProgramStart {
    /// Starts the program. Also returns the caller's ends of the pipes, which exist even if exec has failed.
    pub fn start(&self) -> Result<(Result<Child, Errno>, Pipes), StartError> {
        let mut command = Command::new("");
        // libuv regards a child that a signal kills before exec as a program that has ended.
        command.take_killed();
        fall_back_to_shell(&mut command);
        let Some((arg0, args)) = self.args.split_first() else { return Err(StartError::Unsupported) };
        command.arg0(arg0).args(args).environment(&self.environment()?);
        command.signal_mask(SignalSet::EMPTY);
        command.default_signals(IGNORED_BY_NODE);
        let pipes = self.connect(&mut command)?;
        if let Some(cwd) = &self.cwd {
            if is_process_specific(Path::new(cwd)) {
                return Err(StartError::Unsupported);
            }
            command.current_dir(cwd);
        }
        if self.detached {
            command.setsid();
        }
        self.change_ids(&mut command)?;
        match self.start_first(&mut command) {
            Ok(child) => Ok((Ok(child), pipes)),
            Err(StartError::Failed(errno)) => Ok((Err(errno), pipes)),
            Err(StartError::Unsupported) => Err(StartError::Unsupported),
        }
    }

    fn environment(&self) -> Result<Env, StartError> {
        let Some(joined) = &self.env else { return Ok(Env::inherit()) };
        // A NUL byte inside a variable makes the number differ.
        let strings: Vec<&str> = if self.env_count == 0 { Vec::new() } else { joined.split('\0').collect() };
        if strings.len() != self.env_count as usize {
            return Err(StartError::Unsupported);
        }
        Env::verbatim(strings).map_err(|_| StartError::Unsupported)
    }

    /// Connects the child's descriptors, and returns the caller's ends of the pipes.
    fn connect(&self, command: &mut Command<'static>) -> Result<Pipes, StartError> {
        // The descriptors of the caller come first: a new pipe could get the number of a closed one.
        for (to, &fd) in (0..).zip(&self.stdio).filter(|(_, fd)| **fd != PIPE) {
            if fd == IGNORE {
                if to <= 2 {
                    set_stream(command, to, Stdio::Null);
                }
                continue;
            }
            // SAFETY: the descriptor is only used during the start, which fails if it is not open.
            let source = unsafe { BorrowedFd::borrow_raw(fd) };
            let flags = fcntl_getfl(source).map_err(|_| StartError::Failed(Errno::EBADF))?;
            // Programs expect blocking standard streams.
            if to <= 2 && flags.contains(OFlags::NONBLOCK) {
                let _ = fcntl_setfl(source, flags - OFlags::NONBLOCK);
            }
            place(command, to, source);
        }
        let mut pipes = Pipes::new();
        for (to, &fd) in (0..).zip(&self.stdio) {
            let own = (fd == PIPE).then(|| pair().map(|(own, other)| (place(command, to, other), own).1));
            pipes.push(own.transpose().map_err(StartError::Failed)?);
        }
        Ok(pipes)
    }

    fn change_ids(&self, command: &mut Command<'_>) -> Result<(), StartError> {
        // The core leaves an id unchanged in place of failing.
        if self.uid == Some(-1) || self.gid == Some(-1) {
            return Err(StartError::Unsupported);
        }
        if (self.uid.is_some() || self.gid.is_some()) && rustix::process::geteuid().is_root() {
            command.groups([]);
        }
        if let Some(gid) = self.gid.map(|gid| gid as u32) {
            command.group_ids(gid, gid, gid);
        }
        if let Some(uid) = self.uid.map(|uid| uid as u32) {
            command.user_ids(uid, uid, uid);
        }
        Ok(())
    }

    /// The paths that execvp(3) would try, or the name if the core searches PATH.
    fn programs(&self, command: &Command<'_>) -> Vec<PathBuf> {
        let has_path = command.get_env().is_some_and(|env| env.get("PATH").is_some());
        if self.file.contains('/') || has_path {
            return vec![PathBuf::from(&self.file)];
        }
        DEFAULT_PATH.map(|directory| Path::new(directory).join(&self.file)).to_vec()
    }

    fn start_first(&self, command: &mut Command<'_>) -> Result<Child, StartError> {
        let mut failed = Errno::ENOENT;
        for program in self.programs(command) {
            match self.start_one(command, &program) {
                Err(StartError::Failed(errno)) if is_not_here(errno) => {
                    failed = if failed == Errno::EACCES { failed } else { errno };
                }
                outcome => return outcome,
            }
        }
        Err(StartError::Failed(failed))
    }

    fn start_one(&self, command: &mut Command<'_>, program: &Path) -> Result<Child, StartError> {
        // The child resolves a path whose meaning depends on the child's directory or process.
        let is_plain = program.is_absolute() || !self.file.contains('/');
        let mut outcome = if is_plain && !is_process_specific(program) {
            command.program(program).spawn()
        } else {
            command.unpinned(program).spawn()
        };
        if is_plain && outcome.as_ref().is_err_and(|e| (e.stage(), e.errno()) == (Stage::Template, Errno::EINVAL)) {
            outcome = command.unpinned(program).spawn();
        }
        let error = match outcome {
            Ok(child) => return Ok(child),
            Err(error) => error,
        };
        let errno = error.errno();
        Err(match error.stage() {
            _ if error.kind() == ErrorKind::Stale => StartError::Unsupported,
            // The child would meet another error first, or none.
            Stage::Template if !is_exec_errno(errno) || self.can_fail_before_exec() => StartError::Unsupported,
            Stage::Clone if !matches!(errno, Errno::EAGAIN | Errno::ENOMEM) => StartError::Unsupported,
            Stage::Template
            | Stage::Revalidate
            | Stage::Clone
            | Stage::Stdio(_)
            | Stage::CurrentDir
            | Stage::Action(_)
            | Stage::Exec => StartError::Failed(errno),
            _ => StartError::Unsupported,
        })
    }

    fn can_fail_before_exec(&self) -> bool {
        self.cwd.is_some() || self.uid.is_some() || self.gid.is_some()
    }
}

fn set_stream(command: &mut Command<'static>, to: i32, stdio: Stdio<'static>) {
    match to {
        0 => command.stdin(stdio),
        1 => command.stdout(stdio),
        _ => command.stderr(stdio),
    };
}

fn place(command: &mut Command<'static>, to: i32, source: impl Into<spawnfd::command::Descriptor<'static>>) {
    match to {
        0..=2 => set_stream(command, to, Stdio::Descriptor(source.into())),
        _ => {
            command.descriptor(source, to);
        }
    }
}

fn pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .map_err(|errno| Errno::from_raw(errno.raw_os_error()))
}

/// Whether a path begins with a directory whose contents depend on the process, such as /proc/self.
fn is_process_specific(path: &Path) -> bool {
    const OWN: [&str; 6] = ["/proc/self", "/proc/thread-self", "/dev/fd", "/dev/stdin", "/dev/stdout", "/dev/stderr"];
    OWN.iter().any(|own| path.starts_with(own))
}

/// Whether an error in creating a template has the errno that execve would return for the same file.
fn is_exec_errno(errno: Errno) -> bool {
    is_not_here(errno) || matches!(errno, Errno::ELOOP | Errno::ENOEXEC | Errno::ENAMETOOLONG)
}

/// Whether execvp(3) continues its search after this error.
fn is_not_here(errno: Errno) -> bool {
    matches!(errno, Errno::ENOENT | Errno::ENOTDIR | Errno::EACCES)
}
