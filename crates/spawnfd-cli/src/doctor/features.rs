// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests each feature that the library lists: by a system call without effect, or by spawning this command.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;

use rustix::fs::{CWD, MemfdFlags, Mode, OFlags, ResolveFlags, ioctl_ficlone, memfd_create, openat, openat2};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use serde::Serialize;
use spawnfd::support::{Feature, Without, support};
use spawnfd::{Call, Calls, Child, Command, Errno, FilterInstruction, Stdio, Template};

use crate::os::{self, Question};

/// The result of one test.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    pub name: &'static str,
    pub since: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub purpose: &'static str,
    pub available: bool,
    /// A version or kind, if there is one. If the feature is missing: the errno.
    pub detail: Option<String>,
    pub without: &'static str,
    pub cost: Option<&'static str>,
    /// Whether the library uses it at all.
    pub used: bool,
}

/// The detail of an available feature, possibly empty; or the reason why it is missing.
type Answer = Result<String, String>;

/// Tests all features.
pub fn probe() -> Vec<Finding> {
    support().features.iter().map(finding).collect()
}

fn finding(feature: &Feature) -> Finding {
    let answer = try_out(feature.name);
    let (without, cost) = match feature.without {
        Without::Nothing => ("no program can be started", None),
        Without::Refused => ("what asks for it fails", None),
        Without::Instead { way, cost } => (way, Some(cost)),
        Without::Unused => ("not used by the library", None),
        _ => ("unknown", None),
    };
    Finding {
        name: feature.name,
        since: feature.since,
        purpose: feature.purpose,
        available: answer.is_ok(),
        detail: Some(answer.unwrap_or_else(|why| why)).filter(|detail| !detail.is_empty()),
        without,
        cost,
        used: feature.without != Without::Unused,
    }
}

/// Returns the system call of a feature, if the library knows whether a filter kills this process for it.
fn call_of(name: &str) -> Option<Call> {
    Some(match name.split(' ').next()? {
        "clone3" => Call::Clone3,
        "close_range" => Call::CloseRange,
        "pidfd_open" => Call::PidfdOpen,
        "pidfd_getfd" => Call::PidfdGetfd,
        "openat2" => Call::Openat2,
        "faccessat2" => Call::Faccessat2,
        "memfd_create" => Call::MemfdCreate,
        _ => return None,
    })
}

fn try_out(name: &str) -> Answer {
    let killed = spawnfd::killed_calls();
    if call_of(name).is_some_and(|call| killed.contains(call)) {
        return Err("SIGSYS: a filter kills the process for it".to_owned());
    }
    match name {
        // The library does not use these calls, so it does not know whether a filter kills for them.
        "io_uring" | "Landlock" if killed != Calls::NONE => {
            Err("not tried: a filter kills the process for other calls".to_owned())
        }
        "pidfd_spawn_run" if support().kernel => Ok(String::new()),
        "pidfd_spawn_run" => Err(named(Errno::EINVAL)),
        "clone3" => ask(Question::Clone3),
        "clone CLONE_PIDFD" => spawn(|_| {}),
        "clone3 CLONE_INTO_CGROUP" => ask(Question::CloneIntoCgroup),
        "close_range" => ask(Question::CloseRange(0)),
        "close_range CLOSE_RANGE_UNSHARE" => unshare(),
        "close_range CLOSE_RANGE_CLOEXEC" => ask(Question::CloseRange(4)),
        "pidfd_open" => pidfd().map(|_| String::new()),
        "pidfd_open PIDFD_THREAD" => pidfd_open(getpid(), PidfdFlags::from_bits_retain(libc::O_EXCL as u32))
            .map(|_| String::new())
            .map_err(|e| why(&e.into())),
        "pidfd_getfd" => getfd(),
        "pidfd_send_signal" => child(|_| {}).map(|_| String::new()),
        "waitid P_PIDFD" => child(|_| {}).map(|_| String::new()),
        "openat2" => openat2(CWD, "/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::empty())
            .map(|_| String::new())
            .map_err(|e| why(&e.into())),
        "faccessat2" => ask(Question::Faccessat2),
        "execveat" => strict(),
        "memfd_create MFD_EXEC" => memfd_create("spawnfd-doctor", MemfdFlags::CLOEXEC | MemfdFlags::EXEC)
            .map(|_| String::new())
            .map_err(|e| why(&e.into())),
        "madvise MADV_WIPEONFORK" => ask(Question::WipeOnFork),
        "Landlock" => os::ask(Question::Landlock).map(|version| format!("ABI {version}")).map_err(|e| why(&e)),
        "seccomp filter" => ask(Question::Seccomp).and_then(|_| filtered()),
        "user namespaces" => spawn(|command| {
            command.user_namespace(0, 0);
        }),
        "reflink (FICLONE)" => reflink(),
        "ioctl PIDFD_GET_INFO" => pidfd_info(),
        "io_uring" => ask(Question::IoUring),
        _ => Err("not tried".to_owned()),
    }
}

fn ask(question: Question) -> Answer {
    os::ask(question).map(|_| String::new()).map_err(|e| why(&e))
}

/// Returns the errno's name, with its usual meaning here.
fn why(error: &io::Error) -> String {
    named(Errno::from_raw(error.raw_os_error().unwrap_or(0)))
}

fn named(errno: Errno) -> String {
    let hint = match errno {
        Errno::ENOSYS => ": not in this kernel, or filtered out",
        Errno::EPERM | Errno::EACCES => ": refused by a filter or a setting",
        Errno::EINVAL => ": not known to this kernel",
        Errno::EOPNOTSUPP => ": not on this file system, or switched off",
        Errno::ENOTTY => ": not known to this kernel",
        _ => "",
    };
    format!("{}{hint}", errno.name())
}

/// Tests in a short-lived thread, as the call gives the thread a descriptor table of its own.
fn unshare() -> Answer {
    let thread = std::thread::spawn(|| ask(Question::CloseRange(2)));
    thread.join().unwrap_or_else(|_| Err("the probe failed".to_owned()))
}

fn pidfd() -> Result<std::os::fd::OwnedFd, String> {
    pidfd_open(getpid(), PidfdFlags::empty()).map_err(|e| why(&e.into()))
}

/// Tests pidfd_getfd on this process itself, which ptrace rules always permit.
///
/// Only the library's spawns show whether a child may use it on its parent.
fn getfd() -> Answer {
    let file = File::open("/dev/null").map_err(|e| why(&e))?;
    let copy = pidfd_getfd(pidfd()?, file.as_raw_fd(), PidfdGetfdFlags::empty());
    copy.map(|_| String::new()).map_err(|e| why(&e.into()))
}

/// Tests PIDFD_GET_INFO on a child that has been reaped.
fn pidfd_info() -> Answer {
    let mut child = begin(Command::new(own()?), |_| {})?;
    let pidfd = child.as_fd().try_clone_to_owned().map_err(|e| why(&e))?;
    let status = child.wait().map_err(|error| named(error.errno()))?;
    let told = os::status_of_reaped(pidfd).map_err(|e| why(&e))?;
    if ExitStatus::from_raw(told) == status { Ok(String::new()) } else { Err("answers with another status".to_owned()) }
}

/// Spawns this command with `--version` and without output, sends it signal 0, and waits for it.
fn child(with: impl FnOnce(&mut Command<'_>)) -> Result<ExitStatus, String> {
    run(Command::new(own()?), with)
}

/// Returns the path of this command; without /proc, the name that it was called by.
fn own() -> Result<OsString, String> {
    std::env::current_exe().map(PathBuf::into_os_string).or_else(|e| {
        let name = std::env::args_os().next().ok_or_else(|| why(&e))?;
        // A name without a directory was found in PATH, so a new search in PATH finds it again.
        let path = name.as_bytes().contains(&b'/').then(|| std::path::absolute(&name));
        path.map_or(Ok(name), |path| path.map(PathBuf::into_os_string).map_err(|e| why(&e)))
    })
}

fn begin(mut command: Command<'_>, with: impl FnOnce(&mut Command<'_>)) -> Result<Child, String> {
    command.arg("--version").stdin(Stdio::Null).stdout(Stdio::Null).stderr(Stdio::Null);
    with(&mut command);
    command.spawn().map_err(|error| named(error.errno()))
}

fn run(command: Command<'_>, with: impl FnOnce(&mut Command<'_>)) -> Result<ExitStatus, String> {
    let failed = |error: spawnfd::Error| named(error.errno());
    let mut child = begin(command, with)?;
    child.signal(0).map_err(failed)?;
    child.wait().map_err(failed)
}

fn spawn(with: impl FnOnce(&mut Command<'_>)) -> Answer {
    succeeded(child(with)?)
}

fn succeeded(status: ExitStatus) -> Answer {
    if status.success() { Ok(String::new()) } else { Err(format!("the probe ended with {status}")) }
}

fn strict() -> Answer {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let template = Template::search(own()?, path).and_then(|template| template.by_descriptor());
    succeeded(run(template.map_err(|error| named(error.errno()))?.command(), |_| {})?)
}

/// Tests a filter that allows everything: BPF_RET with SECCOMP_RET_ALLOW.
fn filtered() -> Answer {
    spawn(|command| {
        let allow = FilterInstruction { code: 0x06, jt: 0, jf: 0, k: 0x7fff_0000 };
        command.no_new_privs().seccomp(vec![allow]);
    })
}

/// Tests a reflink of one page between two unnamed files in the working directory.
fn reflink() -> Answer {
    const LENGTH: usize = 4096;
    // A write beyond RLIMIT_FSIZE would end this process by SIGXFSZ.
    let [most, _] = os::limit(libc::RLIMIT_FSIZE).map_err(|e| why(&e))?;
    if most.is_some_and(|most| most < LENGTH as u64) {
        return Err(named(Errno::EFBIG));
    }
    let unnamed = || openat(CWD, ".", OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR);
    let from = unnamed().map_err(|e| why(&e.into()))?;
    let mut file = File::from(from);
    file.write_all(&[1; LENGTH]).map_err(|e| why(&e))?;
    let to = unnamed().map_err(|e| why(&e.into()))?;
    ioctl_ficlone(&to, &file).map(|()| "here".to_owned()).map_err(|e| why(&e.into()))
}
