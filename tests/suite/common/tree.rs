// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs in trees, and helpers to find and kill their processes.

use std::fmt::Display;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use spawnfd::tree::{Tier, Tree, TreeControl};
use spawnfd::{Child, Command, Stdio};

pub const TERM: i32 = libc::SIGTERM;
/// The time limit of a wait. Any kill is faster, even on a busy machine, and the programs run far
/// longer.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Makes one test body a test for each tier (way to control a tree) that also ends the tree if its owner dies.
macro_rules! every_tier {
    ($($name:ident: $body:expr;)*) => {$(
        mod $name {
            #[allow(unused_imports)]
            use super::*;
            #[test]
            fn guard() {
                spawnfd_tests::isolated!(|| ($body)(TreeControl::Guard));
            }
            #[test]
            fn subreaper() {
                spawnfd_tests::isolated!(|| ($body)(TreeControl::Subreaper));
            }
            #[test]
            fn cgroup() {
                spawnfd_tests::isolated!(|| crate::common::tree::in_cgroup($body));
            }
        }
    )*};
}
pub(crate) use every_tier;

/// The same as `every_tier`, for tests whose subject is that the program and its orphans are children of this process.
/// In the tier subreaper they are not.
macro_rules! every_tier_of_own_children {
    ($($name:ident: $body:expr;)*) => {$(
        mod $name {
            #[allow(unused_imports)]
            use super::*;
            #[test]
            fn guard() {
                spawnfd_tests::isolated!(|| ($body)(TreeControl::Guard));
            }
            #[test]
            fn cgroup() {
                spawnfd_tests::isolated!(|| crate::common::tree::in_cgroup($body));
            }
        }
    )*};
}
pub(crate) use every_tier_of_own_children;

/// Runs a test with the tier cgroup; skips it if no cgroup can be created.
pub fn in_cgroup(body: impl FnOnce(TreeControl)) {
    become_subreaper();
    match Tree::prepare(TreeControl::Cgroup).map(drop) {
        Ok(()) => body(TreeControl::Cgroup),
        Err(error) => spawnfd_tests::skip(&format!("no cgroup can be made: {error}")),
    }
}

/// Makes this process a subreaper: the kernel reparents the test's orphans to it. This process never reaps them, so
/// no pid is reused during the test.
pub fn become_subreaper() {
    // SAFETY: prctl takes integers and sets a flag of this process.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }, 0);
}

/// A program in a tree.
pub struct Started {
    pub tree: Tree,
    pub child: Child,
    lines: BufReader<std::io::PipeReader>,
}

impl Started {
    /// Reads the next line of the program's output, which is a pid.
    pub fn pid(&mut self) -> i32 {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("own pipe");
        line.trim().parse().unwrap_or_else(|_| panic!("no number: {line:?}"))
    }

    /// Waits for the program and reaps it. If the kernel lacks group signals by pidfd, the method first tells the
    /// tree that the program has ended, as docs/trees.md requires.
    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        if !has_group_signals() {
            let pid = self.child.id() as i32;
            wait_until("ended", || !is_alive(pid));
            self.tree.program_ended();
        }
        self.child.wait().expect("own child")
    }

    pub fn survivors(&mut self) -> Vec<i32> {
        self.tree.survivors().iter().map(|survivor| survivor.pid as i32).collect()
    }
}

/// Whether the kernel has PIDFD_SIGNAL_PROCESS_GROUP (Linux 6.9). Without this flag a tree finds no process after its
/// program was reaped, unless `Tree::program_ended` was called before.
pub fn has_group_signals() -> bool {
    // SAFETY: the call takes integers and a null pointer for the siginfo, which may be null.
    let answer = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, -1, 0, 0, 4) };
    answer != -1 || std::io::Error::last_os_error().raw_os_error() != Some(libc::EINVAL)
}

pub fn start(want: TreeControl, script: &str) -> Started {
    start_command(want, |command| {
        command.args(["-c", script]).setsid();
    })
}

/// Starts a shell in a tree, unless `configure` chooses another program.
pub fn start_command(want: TreeControl, configure: impl FnOnce(&mut Command<'static>)) -> Started {
    let mut command = Command::new("/bin/sh");
    let mut tree = Tree::prepare(want).unwrap_or_else(|error| panic!("{error}"));
    let tier = match want {
        TreeControl::Cgroup => Tier::Cgroup,
        TreeControl::Pidns => Tier::Pidns,
        TreeControl::Subreaper => Tier::Subreaper,
        _ => Tier::Guard,
    };
    assert_eq!(tree.tier(), tier);
    command.stdin(Stdio::Null).stdout(Stdio::Piped);
    configure(&mut command);
    command.tree(&tree);
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{error}"));
    tree.program_started(child.id(), child.as_fd());
    let lines = BufReader::new(child.stdout.take().expect("piped"));
    Started { tree, child, lines }
}

/// The state letter of a process from /proc/PID/stat. It is Z for a zombie, and also for a process that is gone.
pub fn state(pid: impl Display) -> char {
    let pid: i32 = pid.to_string().trim().parse().expect("a pid");
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().and_then(|rest| rest.trim_start().chars().next()).unwrap_or('Z')
}

pub fn is_alive(pid: impl Display) -> bool {
    !matches!(state(pid), 'Z' | 'X')
}

/// Waits until a condition holds; returns how long it took.
#[track_caller]
pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) -> Duration {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
    begun.elapsed()
}

#[track_caller]
pub fn wait_until_gone(pids: &[i32]) -> Duration {
    let left = || pids.iter().copied().filter(|&pid| is_alive(pid)).collect::<Vec<_>>();
    let begun = Instant::now();
    while !left().is_empty() {
        let stats =
            || left().into_iter().map(|pid| fs::read_to_string(format!("/proc/{pid}/stat"))).collect::<Vec<_>>();
        assert!(begun.elapsed() < PATIENCE, "not gone within {PATIENCE:?}, of {pids:?}: {:?}", stats());
        std::thread::sleep(Duration::from_millis(1));
    }
    begun.elapsed()
}

/// The pids of a process's guards.
pub fn guards_of(owner: i32) -> Vec<i32> {
    let all = fs::read_dir("/proc").expect("/proc").filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let is_guard = |pid: &i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.contains("(spawnfd-guard) ")
            && stat.rsplit(')').next().unwrap_or_default().split(' ').nth(2) == Some(&owner.to_string())
    };
    all.filter(is_guard).collect()
}

pub fn own_guard() -> i32 {
    let guards = guards_of(std::process::id() as i32);
    assert_eq!(guards.len(), 1, "{guards:?}");
    guards[0]
}

/// The cgroups that the process `owner` has created below this process's cgroup, in any cgroup2 mount.
pub fn groups_of(owner: i32) -> Vec<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mounts = mounts.lines().filter(|line| line.split(' ').nth(2) == Some("cgroup2"));
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default().to_owned();
    let dirs = mounts.filter_map(|line| fs::read_dir(PathBuf::from(line.split(' ').nth(1)?).join(&own)).ok()).flatten();
    let prefix = format!("spawnfd-{owner}-");
    dirs.flatten().map(|dir| dir.path()).filter(|path| path.to_string_lossy().contains(&prefix)).collect()
}

/// Forks; the child runs `body` and exits. Returns the child's pid.
pub fn fork(body: impl FnOnce()) -> i32 {
    // SAFETY: the child has only the calling thread, and ends by _exit.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        // SAFETY: _exit ends the child without running this process's destructors.
        unsafe { libc::_exit(i32::from(outcome.is_err())) };
    }
    pid
}

pub fn kill(pid: i32, signal: i32) {
    // SAFETY: the process belongs to this test and has not been reaped.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
}

/// Reaps a child of this test. Asserts that the child has exited with 0 or was killed by SIGKILL.
pub fn reap(pid: i32) {
    let mut status = 0;
    // SAFETY: waitpid stores an int.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert!(matches!(status, 0 | libc::SIGKILL), "{status:#x}");
}

/// Forks a process, the owner of trees, that the test kills later. The owner runs `body`, which can send numbers to
/// the test, and keeps the result of `body` alive. Returns the owner's pid and the reader of the numbers.
pub fn fork_owner<T>(body: impl FnOnce(&dyn Fn(i32)) -> T) -> (i32, BufReader<std::io::PipeReader>) {
    let (reader, mut writer) = std::io::pipe().expect("a pipe");
    let pid = fork(|| {
        let writer = std::cell::RefCell::new(&mut writer);
        let _kept = body(&|number| writeln!(writer.borrow_mut(), "{number}").expect("own pipe"));
        std::thread::sleep(PATIENCE * 2);
    });
    (pid, BufReader::new(reader))
}

pub fn next_pid(report: &mut BufReader<std::io::PipeReader>) -> i32 {
    let mut line = String::new();
    report.read_line(&mut line).expect("own pipe");
    line.trim().parse().unwrap_or_else(|_| panic!("no number: {line:?}"))
}

pub fn wait_for_some<T>(mut get: impl FnMut() -> Vec<T>) -> Vec<T> {
    let mut got = Vec::new();
    wait_until("something", || {
        got = get();
        !got.is_empty()
    });
    got
}

/// A pid that exists in two pid namespaces. In the outer namespace, [`with_outer_proc_mounted`]
/// gives it to a shell. Among that shell's children are the pids of [`unrelated_processes`]. In the
/// inner namespace, [`set_next_pid`] gives it to a program.
pub const ROOT_PID: i32 = 20;
const UNRELATED: i32 = 8;

/// Forks until the next process of this pid namespace gets the pid `next`.
pub fn set_next_pid(next: i32) {
    loop {
        let pid = fork(|| ());
        reap(pid);
        assert!(pid < next, "{pid}");
        if pid == next - 1 {
            return;
        }
    }
}

/// Runs `body` as pid 1 of a pid namespace, in which /proc shows the outer pid namespace. Returns `false` if this
/// user cannot create the namespaces.
pub fn with_outer_proc_mounted(body: impl FnOnce()) -> bool {
    // SAFETY: unshare takes integers. It affects the children forked from now on, and this process's mounts.
    if unsafe { libc::unshare(libc::CLONE_NEWPID | libc::CLONE_NEWNS) } != 0 {
        return false;
    }
    // This child is pid 1 of the outer namespace. When it ends, the kernel kills all processes of the namespace.
    reap(fork(|| {
        let none = std::ptr::null();
        // SAFETY: the calls read C strings and null pointers, and change only the mounts of this process.
        unsafe {
            assert_eq!(libc::mount(none, c"/".as_ptr(), none, libc::MS_REC | libc::MS_PRIVATE, none.cast()), 0);
            let proc = c"proc".as_ptr();
            assert_eq!(libc::mount(proc, c"/proc".as_ptr(), proc, 0, none.cast()), 0);
        }
        set_next_pid(ROOT_PID);
        let script = format!("for i in $(seq {}); do sleep 1000 & done; echo; wait", UNRELATED * 2);
        let mut command = std::process::Command::new("sh");
        let mut other = command.args(["-c", &script]).stdout(std::process::Stdio::piped()).spawn().expect("starts");
        assert_eq!(other.id() as i32, ROOT_PID);
        BufReader::new(other.stdout.take().expect("piped")).read_line(&mut String::new()).expect("own pipe");
        // SAFETY: unshare takes an integer, and affects only the children forked from now on.
        assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWPID) }, 0);
        reap(fork(body));
        let _ = other.kill().and_then(|()| other.wait());
    }));
    true
}

/// Starts processes that belong to no tree. In the outer namespace, children of the shell with the
/// pid [`ROOT_PID`] have the same pids.
pub fn unrelated_processes() -> Vec<std::process::Child> {
    let sleep = || std::process::Command::new("sleep").arg("1000").spawn().expect("starts");
    let unrelated_processes: Vec<_> = (0..UNRELATED).map(|_| sleep()).collect();
    assert!(
        unrelated_processes.iter().all(|one| (ROOT_PID + 1..=ROOT_PID + UNRELATED * 2).contains(&(one.id() as i32)))
    );
    unrelated_processes
}
