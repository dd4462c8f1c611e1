// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests the kernel features that the library uses, by a harmless system call or by spawning this command.

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
use spawnfd::command::FilterInstruction;
use spawnfd::error::Errno;
use spawnfd::internal::{Call, CallSet, kept_status};
use spawnfd::support::support;
use spawnfd::{Child, Command, Stdio, Template, rlimit};

use crate::os::{self, Probe};

/// A kernel feature, and how to test it.
struct Feature(
    /// The system call, or the call and its flag.
    &'static str,
    /// The first Linux version that has the feature.
    &'static str,
    /// The library's use of the feature.
    &'static str,
    IfMissing,
    fn() -> Answer,
);

/// The consequence if the kernel lacks a feature, or a filter refuses it; and the cost of a fallback.
type IfMissing = (&'static str, Option<&'static str>);

/// The library requires the feature.
const NOTHING: IfMissing = ("the library cannot start any program", None);
/// The requests fail with the kernel's errno.
const REFUSED: IfMissing = ("requests that need it fail", None);
const UNUSED: IfMissing = ("not used by the library", None);

/// The library automatically uses a fallback.
const fn instead(fallback: &'static str, cost: &'static str) -> IfMissing {
    (fallback, Some(cost))
}

const LIST: IfMissing = instead("descriptors listed in /proc/self/fd", "grows with the caller's open descriptors");
const SOCKET: IfMissing =
    instead("a socket pair (SCM_RIGHTS)", "two more system calls for each spawn that passes descriptors");

/// The features that `doctor` tests, in the order in which a spawn uses them.
static FEATURES: [Feature; 23] = [
    Feature(
        "pidfd_spawn_run",
        "patched kernel",
        "creating the child and executing the program in one call",
        instead("clone and exec", "some microseconds"),
        || if support().kernel { Ok(String::new()) } else { Err(named(Errno::EINVAL)) },
    ),
    Feature(
        "clone3",
        "5.3",
        "creating the child",
        instead(
            "clone; the child resets signal handlers itself",
            "62 more system calls in the first spawn, and whenever the last spawn is 10 ms old",
        ),
        || syscall(Probe::Clone3),
    ),
    Feature("clone CLONE_PIDFD", "5.2", "getting the child's pidfd", NOTHING, || spawn(|_| {})),
    Feature(
        "clone3 CLONE_INTO_CGROUP",
        "5.7",
        "creating the child in a cgroup",
        instead("the child writes itself to cgroup.procs", "a slower move; until then the child runs outside"),
        || syscall(Probe::CloneIntoCgroup),
    ),
    Feature("close_range", "5.9", "closing the caller's descriptors in the child", LIST, || {
        syscall(Probe::CloseRange(0))
    }),
    Feature(
        "close_range CLOSE_RANGE_UNSHARE",
        "5.9",
        "giving the child a separate descriptor table without copying the caller's",
        instead("the caller's table is copied", "grows with the caller's open descriptors"),
        unshare,
    ),
    Feature(
        "close_range CLOSE_RANGE_CLOEXEC",
        "5.11",
        "marking descriptors that the program must not get",
        instead("descriptors listed in /proc/self/fd", "a few more system calls for each spawn"),
        || syscall(Probe::CloseRange(4)),
    ),
    Feature(
        "pidfd_open",
        "5.3",
        "signaling the processes of a tree, and the guard",
        instead("tier 'group', which signals only the program's process group", "nothing"),
        || pidfd().map(|_| String::new()),
    ),
    Feature("pidfd_open PIDFD_THREAD", "6.9", "passing descriptors to the child", SOCKET, || {
        answer(pidfd_open(getpid(), PidfdFlags::from_bits_retain(libc::O_EXCL as u32)))
    }),
    Feature("pidfd_getfd", "5.6", "passing descriptors to the child", SOCKET, getfd),
    Feature("pidfd_send_signal", "5.1", "sending signals that cannot hit another process", REFUSED, || {
        child(|_| {}).map(|_| String::new())
    }),
    Feature("waitid P_PIDFD", "5.4", "waiting for the child", NOTHING, || child(|_| {}).map(|_| String::new())),
    Feature(
        "openat2",
        "5.6",
        "performing open actions",
        instead("openat; an action with resolve flags fails", "nothing"),
        || answer(openat2(CWD, "/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::empty())),
    ),
    Feature(
        "faccessat2",
        "5.8",
        "checking that a file is executable",
        instead("faccessat", "nothing, unless real and effective ids differ: then exec decides"),
        || syscall(Probe::Faccessat2),
    ),
    Feature("execveat", "3.19", "executing a program by descriptor, and snapshots", REFUSED, strict),
    Feature(
        "memfd_create MFD_EXEC",
        "6.3",
        "creating snapshots that can be executed",
        instead("a memfd without the flag", "nothing; if vm.memfd_noexec forbids such a memfd, snapshots fail"),
        || answer(memfd_create("spawnfd-doctor", MemfdFlags::CLOEXEC | MemfdFlags::EXEC)),
    ),
    Feature("madvise MADV_WIPEONFORK", "4.14", "detecting a fork of the caller", NOTHING, || {
        syscall(Probe::WipeOnFork)
    }),
    Feature("Landlock", "5.13", "confining the program by a ruleset", REFUSED, || {
        os::probe(Probe::Landlock).map(|version| format!("ABI {version}")).map_err(named)
    }),
    Feature("seccomp filter", "3.17", "confining the program by a filter", REFUSED, || {
        syscall(Probe::Seccomp).and_then(|_| filtered())
    }),
    Feature("user namespaces", "3.8", "creating namespaces without privilege", REFUSED, || {
        spawn(|command| _ = command.user_namespace(0, 0))
    }),
    Feature(
        "reflink (FICLONE)",
        "4.5",
        "creating snapshots that share the file's extents",
        instead("a copy in a sealed memfd", "memory and time in proportion to the file"),
        reflink,
    ),
    Feature(
        "ioctl PIDFD_GET_INFO",
        "6.15",
        "reading the status of a child that other code of the caller has reaped",
        instead("the status is reported as lost: by a result, or ECHILD of a wait", "nothing"),
        pidfd_info,
    ),
    Feature("io_uring", "5.1", "", UNUSED, || syscall(Probe::IoUring)),
];

/// The result of one test.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    pub name: &'static str,
    pub since: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub purpose: &'static str,
    pub available: bool,
    /// The version of an available feature, if it has one; or the reason why the feature is
    /// missing.
    pub detail: Option<String>,
    /// The library's fallback, or the consequence, if the feature is missing.
    pub if_missing: &'static str,
    /// The cost of the fallback.
    pub cost: Option<&'static str>,
    /// Whether the library uses the feature.
    pub used: bool,
}

/// The detail of an available feature, possibly empty; or the reason why the feature is missing.
type Answer = Result<String, String>;

/// Tests all features.
pub fn probe() -> Vec<Finding> {
    FEATURES.iter().map(finding).collect()
}

fn finding(feature: &Feature) -> Finding {
    let Feature(name, since, purpose, missing, test) = *feature;
    let result = may_test(name).and_then(|()| test());
    let ((if_missing, cost), used) = (missing, missing != UNUSED);
    let available = result.is_ok();
    let detail = Some(result.unwrap_or_else(|why| why)).filter(|detail| !detail.is_empty());
    Finding { name, since, purpose, available, detail, if_missing, cost, used }
}

/// Returns the feature's system call, if the library checks whether a seccomp filter kills this process for the call.
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

/// Checks that no seccomp filter can kill this process for the test of this feature.
fn may_test(name: &str) -> Result<(), String> {
    let killed_calls = spawnfd::internal::killed_calls();
    if call_of(name).is_some_and(|call| killed_calls.contains(call)) {
        return Err("SIGSYS: a seccomp filter kills the process for this call".to_owned());
    }
    // The library does not check whether a filter kills the process for these calls.
    if ["io_uring", "Landlock"].contains(&name) && killed_calls != CallSet::NONE {
        return Err("not tested: a seccomp filter kills the process for other calls".to_owned());
    }
    Ok(())
}

fn answer<T>(result: rustix::io::Result<T>) -> Answer {
    result.map(|_| String::new()).map_err(|e| why(&e.into()))
}

fn syscall(probe: Probe) -> Answer {
    os::probe(probe).map(|_| String::new()).map_err(named)
}

/// Returns the errno's name and its usual meaning in these tests.
fn why(error: &io::Error) -> String {
    named(Errno::from_raw(error.raw_os_error().unwrap_or(0)))
}

fn named(errno: Errno) -> String {
    let hint = match errno {
        Errno::ENOSYS => ": not in this kernel, or hidden by a seccomp filter",
        Errno::EPERM | Errno::EACCES => ": refused by a seccomp filter or a system setting",
        Errno::EINVAL => ": not in this kernel",
        Errno::EOPNOTSUPP => ": not supported by this file system, or disabled",
        Errno::ENOTTY => ": not in this kernel",
        _ => "",
    };
    format!("{}{hint}", errno.name())
}

/// Tests CLOSE_RANGE_UNSHARE in a short-lived thread, because the call gives its thread a separate
/// descriptor table.
fn unshare() -> Answer {
    let thread = std::thread::spawn(|| syscall(Probe::CloseRange(2)));
    thread.join().unwrap_or_else(|_| Err("the test failed".to_owned()))
}

fn pidfd() -> Result<std::os::fd::OwnedFd, String> {
    pidfd_open(getpid(), PidfdFlags::empty()).map_err(|e| why(&e.into()))
}

/// Tests pidfd_getfd on this process itself, which the ptrace access rules always permit.
///
/// Only the library's spawns show whether a child may use pidfd_getfd on its parent.
fn getfd() -> Answer {
    let file = File::open("/dev/null").map_err(|e| why(&e))?;
    answer(pidfd_getfd(pidfd()?, file.as_raw_fd(), PidfdGetfdFlags::empty()))
}

/// Tests PIDFD_GET_INFO on a child that has been reaped.
fn pidfd_info() -> Answer {
    let mut child = start(Command::new(own_path()?), |_| {})?;
    let pidfd = child.as_fd().try_clone_to_owned().map_err(|e| why(&e))?;
    let status = child.wait().map_err(|error| named(error.errno()))?;
    let found = kept_status(pidfd.as_raw_fd()).map_err(named)?;
    if ExitStatus::from_raw(found) == status { Ok(String::new()) } else { Err("returns a wrong status".to_owned()) }
}

/// Spawns this command with `--version` and without output, sends it signal 0, and waits for it.
fn child(with: impl FnOnce(&mut Command<'_>)) -> Result<ExitStatus, String> {
    run(Command::new(own_path()?), with)
}

/// Returns this command's path. Without /proc, returns the name under which this command was called.
fn own_path() -> Result<OsString, String> {
    std::env::current_exe().map(PathBuf::into_os_string).or_else(|e| {
        let name = std::env::args_os().next().ok_or_else(|| why(&e))?;
        // A name without a slash was found in PATH, so another search in PATH finds it.
        let path = name.as_bytes().contains(&b'/').then(|| std::path::absolute(&name));
        path.map_or(Ok(name), |path| path.map(PathBuf::into_os_string).map_err(|e| why(&e)))
    })
}

fn start(mut command: Command<'_>, with: impl FnOnce(&mut Command<'_>)) -> Result<Child, String> {
    command.arg("--version").stdin(Stdio::Null).stdout(Stdio::Null).stderr(Stdio::Null);
    with(&mut command);
    command.spawn().map_err(|error| named(error.errno()))
}

fn run(command: Command<'_>, with: impl FnOnce(&mut Command<'_>)) -> Result<ExitStatus, String> {
    let failed = |error: spawnfd::Error| named(error.errno());
    let mut child = start(command, with)?;
    child.signal(0).map_err(failed)?;
    child.wait().map_err(failed)
}

fn spawn(with: impl FnOnce(&mut Command<'_>)) -> Answer {
    succeeded(child(with)?)
}

fn succeeded(status: ExitStatus) -> Answer {
    if status.success() { Ok(String::new()) } else { Err(format!("the test program ended with {status}")) }
}

fn strict() -> Answer {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let template = Template::search(own_path()?, path).and_then(|template| template.by_descriptor());
    succeeded(run(template.map_err(|error| named(error.errno()))?.command(), |_| {})?)
}

/// Tests a seccomp filter that allows every call: BPF_RET with SECCOMP_RET_ALLOW.
fn filtered() -> Answer {
    spawn(|command| {
        let allow = FilterInstruction { code: 0x06, jt: 0, jf: 0, k: 0x7fff_0000 };
        command.no_new_privs().seccomp(vec![allow]);
    })
}

/// Tests a reflink of one page between two unnamed files in the working directory.
fn reflink() -> Answer {
    const LENGTH: usize = 4096;
    // A write beyond RLIMIT_FSIZE would kill this process with SIGXFSZ.
    let [most, _] = os::limit(rlimit::FSIZE).map_err(named)?;
    if most.is_some_and(|most| most < LENGTH as u64) {
        return Err(named(Errno::EFBIG));
    }
    let unnamed = || openat(CWD, ".", OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR);
    let from = unnamed().map_err(|e| why(&e.into()))?;
    let mut file = File::from(from);
    file.write_all(&[1; LENGTH]).map_err(|e| why(&e))?;
    let to = unnamed().map_err(|e| why(&e.into()))?;
    ioctl_ficlone(&to, &file).map(|()| "in the working directory".to_owned()).map_err(|e| why(&e.into()))
}
