// SPDX-License-Identifier: MIT OR Apache-2.0
//! Helpers that all test suites share. `Launcher` names a way to start a child, and the oracle is a program that
//! prints the state of its process.
#![allow(dead_code, unused_macros, unused_imports)]

pub mod job;
pub mod tree;

use std::ffi::CString;
use std::io::{PipeReader, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use spawnfd::command::CapabilitySets;
use spawnfd::{Child, Command, Stdio};
use spawnfd_tests::leaks::{self, Snapshot};
use spawnfd_tests::{State, confine, has_builders, skip};

mod launcher;
pub mod zygote;

pub(crate) use launcher::launchers;
pub use launcher::{Launcher, cold_except_slow, retry_while_slow};
pub use spawnfd_tests::Confined;

/// Returns the effective, permitted, inheritable, bounding and ambient sets.
pub fn capability_sets(all: [u64; 5]) -> CapabilitySets {
    let mut sets = CapabilitySets::new();
    [sets.effective, sets.permitted, sets.inheritable, sets.bounding, sets.ambient] = all;
    sets
}

/// Makes one test body a test for each launcher, each in a process of its own: `name [set under Confined]: body;`.
///
/// `MATRIX` lists the pairs of confinement and set of launchers that `make test` runs.
macro_rules! every_launcher {
    ($($name:ident [$set:ident under $confined:ident]: $body:expr;)*) => {
        #[allow(dead_code)]
        pub(crate) const MATRIX: &[(crate::common::Confined, &str)] =
            &[$((crate::common::Confined::$confined, stringify!($set)),)*];
        $(mod $name {
            #[allow(unused_imports)]
            use super::*;
            crate::common::launchers! { every_launcher! { @ tests $set $confined $body; } }
        })*
    };
    (@ tests $set:ident $confined:ident $body:expr;
        $($(#[$doc:meta])* $test:ident $launcher:ident $sets:tt $properties:tt)*) => {
        $(every_launcher!(@ row $set $sets $confined $body, $test $launcher);)*
    };
    // Selects the set's column: the name of the set, or `-`.
    (@ row every $sets:tt $($test:tt)*) => { every_launcher!(@ test every $($test)*); };
    (@ row tables [$in:tt $steps:tt $authority:tt $exec:tt] $($test:tt)*) => { every_launcher!(@ test $in $($test)*); };
    (@ row steps [$tables:tt $in:tt $authority:tt $exec:tt] $($test:tt)*) => { every_launcher!(@ test $in $($test)*); };
    (@ row authority [$tables:tt $steps:tt $in:tt $exec:tt] $($test:tt)*) => { every_launcher!(@ test $in $($test)*); };
    (@ row exec [$tables:tt $steps:tt $authority:tt $in:tt] $($test:tt)*) => { every_launcher!(@ test $in $($test)*); };
    (@ test - $($test:tt)*) => { every_launcher!(@ emit [#[ignore = "make test-all runs every launcher"]] $($test)*); };
    (@ test $set:ident $($test:tt)*) => { every_launcher!(@ emit [] $($test)*); };
    (@ emit [$($ignored:tt)*] $confined:ident $body:expr, $test:ident $launcher:ident) => {
        #[test]
        $($ignored)*
        fn $test() {
            spawnfd_tests::isolated!(under: crate::common::Confined::$confined, || {
                let launcher = crate::common::Launcher::$launcher;
                launcher.enter();
                let body: fn(crate::common::Launcher) = $body;
                body(launcher);
            });
        }
    };
}
pub(crate) use every_launcher;

/// Runs a command that prints the state of its process as the oracle does, and parses the output.
#[track_caller]
pub fn state(command: &mut Command<'_>) -> State {
    let mut child = command.stdout(Stdio::Piped).spawn().unwrap_or_else(|e| panic!("{e}"));
    let mut json = Vec::new();
    child.stdout.take().expect("piped").read_to_end(&mut json).expect("own pipe");
    let status = child.wait().expect("own child");
    assert!(status.success(), "{status}");
    State::from_json(&json)
}

/// Runs a command, which must succeed, and returns its standard output.
#[track_caller]
pub fn output(command: &mut Command<'_>) -> String {
    let mut child = command.stdout(Stdio::Piped).spawn().unwrap_or_else(|e| panic!("{e}"));
    let mut text = String::new();
    child.stdout.take().expect("piped").read_to_string(&mut text).expect("own pipe");
    let status = child.wait().expect("own child");
    assert!(status.success(), "{status}: {text}");
    text
}

/// A trait for commands whose start must fail.
pub trait Refused {
    /// Returns the error of `spawn`, or the error of `wait` if `spawn` does not wait for exec.
    #[track_caller]
    fn refused(&mut self, why: &str) -> spawnfd::Error;
}

impl Refused for Command<'_> {
    fn refused(&mut self, why: &str) -> spawnfd::Error {
        match self.spawn() {
            Err(error) => error,
            Ok(mut child) => child.wait().expect_err(why),
        }
    }
}

/// Starts `true` a few times, so that the library has created everything that it keeps between spawns.
pub fn warm_up(launcher: Launcher) {
    // After this start, the process-wide template cache holds the template of this program.
    wait_success(Command::new("/bin/true").spawn().expect("starts"));
    for _ in 0..3 {
        // The command passes a descriptor, so that the library learns how it can pass one.
        wait_success(launcher.command("/bin/true").stdin(Stdio::Piped).spawn().expect("starts"));
    }
    if launcher.may_use_kernel() && has_builders() {
        // pidfd_spawn_run of the patched kernel cannot set a nice value, so the library uses clone3 here.
        wait_success(launcher.command("/bin/true").stdin(Stdio::Piped).nice(0).spawn().expect("starts"));
    }
}

/// Drops a running child, and waits until the reaper thread has reaped it and is idle. From then on the reaper thread
/// keeps its files in /proc open.
pub fn drop_a_running_child() {
    let threads = Snapshot::take().threads.len();
    // cat ends when the test drops the child, because this closes cat's stdin.
    let child = Command::new("/bin/cat").stdin(Stdio::Piped).spawn().expect("starts");
    let process = format!("/proc/{}", child.id());
    drop(child);
    eventually("the reaper is idle", || !Path::new(&process).exists() && Snapshot::take().threads.len() <= threads);
}

/// Calls `warm_up`, runs `body`, and asserts that `body` leaves no descriptor, child, thread or temporary file
/// behind.
#[track_caller]
pub fn assert_leaves_nothing<T>(launcher: Launcher, body: impl FnOnce() -> T) -> T {
    warm_up(launcher);
    launcher.drop_parked();
    let before = Snapshot::take();
    let answer = body();
    launcher.drop_parked();
    leaks::assert_unchanged(&before);
    answer
}

/// Runs `before` and `after` in one thread. Between them, another thread installs a filter for this system call in
/// all threads. The library does not notice the new filter, because the first thread did not install it itself.
///
/// Needs CAP_SYS_ADMIN.
pub fn with_unnoticed_filter(
    before: impl FnOnce() + Send,
    (name, errno): (&str, Option<i32>),
    after: impl FnOnce() + Send,
) {
    let has_admin =
        |state: State| state.capabilities["effective"].known().is_some_and(|all| all.contains(&"sys_admin".to_owned()));
    if !has_admin(State::of_self()) {
        return skip("needs CAP_SYS_ADMIN");
    }
    confine::deny(&[("kcmp", libc::EPERM)]).expect("confined");
    let barrier = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            confine::Confinement::default().capabilities(&[]).apply().expect("without CAP_SYS_ADMIN");
            before();
            barrier.wait();
            barrier.wait();
            after();
        });
        barrier.wait();
        confine::refuse_in_all_threads(name, errno).expect("confined");
        barrier.wait();
    });
}

/// Runs `body` in a forked child, which starts with one thread (an isolated test has two).
pub fn in_single_threaded_fork(body: impl FnOnce()) {
    // SAFETY: the child has only the calling thread, and ends by _exit.
    let copy = unsafe { libc::fork() };
    if copy == 0 {
        let outcome = catch_unwind(AssertUnwindSafe(body));
        // SAFETY: _exit ends the child without running this process's destructors.
        unsafe { libc::_exit(i32::from(outcome.is_err())) };
    }
    let mut status = 0;
    // SAFETY: waitpid stores an int, and the child belongs to this test.
    assert_eq!(unsafe { libc::waitpid(copy, &raw mut status, 0) }, copy);
    assert_eq!(status, 0, "the forked child failed");
}

/// Runs `body` while another thread calls `other` again and again, also if `body` panics.
pub fn while_repeating(mut other: impl FnMut() + Send, body: impl FnOnce()) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                other();
            }
        });
        let done = catch_unwind(AssertUnwindSafe(body));
        over.store(true, Ordering::Relaxed);
        done.unwrap_or_else(|panic| resume_unwind(panic));
    });
}

/// Reaps a child of this process that has ended, if there is one, as a host does that reaps all children. Returns the
/// child's wait status.
pub fn reap_any() -> Option<i32> {
    let mut status = 0;
    // SAFETY: waitpid stores an int. The tests want it to reap any child of this process.
    let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) };
    (pid > 0).then_some(status)
}

/// Pins the calling thread to one processor.
pub fn pin_to_one_cpu() {
    // SAFETY: an all-zero cpu_set_t is a valid, empty set. The calls read and write only this set.
    unsafe {
        let mut all: libc::cpu_set_t = std::mem::zeroed();
        assert_eq!(libc::sched_getaffinity(0, size_of_val(&all), &raw mut all), 0);
        let first = (0..1024).find(|&cpu| libc::CPU_ISSET(cpu, &all)).expect("one at least");
        libc::CPU_ZERO(&mut all);
        libc::CPU_SET(first, &mut all);
        assert_eq!(libc::sched_setaffinity(0, size_of_val(&all), &raw const all), 0);
    }
}

/// Creates a FIFO in a directory. A child that opens the FIFO for reading blocks until a process opens it for
/// writing.
pub fn fifo(directory: &Path, name: &str) -> std::path::PathBuf {
    let path = directory.join(name);
    let path_c = c_path(&path);
    // SAFETY: mkfifo reads a C string.
    assert_eq!(unsafe { libc::mkfifo(path_c.as_ptr(), 0o600) }, 0);
    path
}

pub fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).expect("no NUL")
}

/// Copies a program by cp(1), so that this process never has it open for writing.
pub fn copy(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    let status = std::process::Command::new("cp").arg(from.as_ref()).arg(to.as_ref()).status().expect("cp starts");
    assert!(status.success());
}

/// Duplicates a descriptor to a given number, without close-on-exec. Raises the soft limit of this process if needed.
pub fn at_number(file: &impl AsRawFd, number: i32) -> OwnedFd {
    let enough = number as u64 + 1;
    if soft_limit(libc::RLIMIT_NOFILE) < enough {
        set_soft_limit(libc::RLIMIT_NOFILE, enough);
    }
    // SAFETY: the caller passes a number that no other owner uses. The returned value owns the new
    // descriptor.
    unsafe {
        assert_eq!(libc::dup2(file.as_raw_fd(), number), number);
        OwnedFd::from_raw_fd(number)
    }
}

/// Checks a lost run: one whose descriptors the application has replaced with its own file at the same numbers.
/// Asserts that the library has neither closed nor written to the file at `numbers`, and kills the run's program.
#[track_caller]
pub fn assert_left_alone(path: &Path, numbers: &[i32], program: i32) {
    assert_eq!(std::fs::metadata(path).expect("it exists").len(), 0, "the library wrote to the application's file");
    for number in numbers {
        assert_eq!(std::fs::read_link(format!("/proc/self/fd/{number}")).expect("still open"), path);
    }
    // SAFETY: the program is a child of this process, and no other code waits for it.
    unsafe {
        libc::kill(program, libc::SIGKILL);
        libc::waitpid(program, std::ptr::null_mut(), 0);
    }
}

/// Sets a soft limit of this process, and returns the previous one.
pub fn set_soft_limit(resource: libc::__rlimit_resource_t, soft: u64) -> u64 {
    let limit = limit(resource);
    let changed = libc::rlimit { rlim_cur: soft, ..limit };
    // SAFETY: the call reads a struct of this function, and changes only a limit of this isolated process.
    assert_eq!(unsafe { libc::setrlimit(resource, &raw const changed) }, 0);
    limit.rlim_cur
}

/// Returns a soft limit of this process.
pub fn soft_limit(resource: libc::__rlimit_resource_t) -> u64 {
    limit(resource).rlim_cur
}

fn limit(resource: libc::__rlimit_resource_t) -> libc::rlimit {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call writes to a struct of this function.
    assert_eq!(unsafe { libc::getrlimit(resource, &raw mut limit) }, 0);
    limit
}

/// The pids of this process's children, except guards. They include zombies, and children whose exit signal is 0.
pub fn children() -> Vec<i32> {
    let pids = Snapshot::take().children.into_iter().map(|child| child.pid);
    pids.filter(|&pid| !is_guard(pid)).collect()
}

/// Whether a process is a guard, the helper process that ends the trees of a dead owner.
pub fn is_guard(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim_end() == "spawnfd-guard")
}

/// Waits, without a time limit, until this process has a child; returns its pid.
pub fn next_child() -> i32 {
    loop {
        if let Some(&pid) = children().first() {
            return pid;
        }
        std::thread::yield_now();
    }
}

/// A pipe: the read end and the write end. The reader gets end of file once every copy of the write end is closed.
pub fn pipe() -> (PipeReader, std::io::PipeWriter) {
    std::io::pipe().expect("a pipe")
}

/// A new pseudo-terminal: its master and its slave.
pub fn terminal() -> (OwnedFd, OwnedFd) {
    // SAFETY: each call gets a descriptor that this function has opened, and the returned values own both
    // descriptors.
    unsafe {
        let ours = libc::posix_openpt(libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC);
        assert!(ours >= 0 && libc::grantpt(ours) == 0 && libc::unlockpt(ours) == 0);
        let ours = OwnedFd::from_raw_fd(ours);
        let theirs = libc::ioctl(ours.as_raw_fd(), libc::TIOCGPTPEER, libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC);
        assert!(theirs >= 0, "{}", std::io::Error::last_os_error());
        (ours, OwnedFd::from_raw_fd(theirs))
    }
}

/// Waits until a condition holds.
pub fn eventually(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The number of rounds of a stress test: a part of `full`, at least 10. SPAWNFD_ROUNDS is the divisor, 50 by default
/// (`make test`). All rounds if SPAWNFD_FULL is set (`make test-all`).
pub fn rounds(full: usize) -> usize {
    if std::env::var_os("SPAWNFD_FULL").is_some() {
        return full;
    }
    let divisor = std::env::var("SPAWNFD_ROUNDS").map_or(50, |text| text.parse().expect("a number"));
    (full / divisor).max(10)
}

/// Waits for a child, which must succeed.
pub fn wait_success(mut child: Child) {
    let status = child.wait().expect("own child");
    assert!(status.success(), "{status}");
}

/// The loader of glibc.
pub const LOADER: &str =
    if cfg!(target_arch = "aarch64") { "/lib/ld-linux-aarch64.so.1" } else { "/lib64/ld-linux-x86-64.so.2" };

/// The machine code of exit(code), and its `e_machine` in an ELF header.
#[cfg(target_arch = "x86_64")]
fn exit(code: u8) -> (Vec<u8>, u16) {
    // mov edi, code; mov eax, 60 (exit); syscall.
    (vec![0xbf, code, 0, 0, 0, 0xb8, 60, 0, 0, 0, 0x0f, 0x05], 62)
}

/// The machine code of exit(code), and its `e_machine` in an ELF header.
#[cfg(target_arch = "aarch64")]
fn exit(code: u8) -> (Vec<u8>, u16) {
    let mov = |register: u32, value: u32| 0x5280_0000 | value << 5 | register;
    // mov w0, code; mov w8, 93 (exit); svc 0.
    ([mov(0, code.into()), mov(8, 93), 0xd400_0001].iter().flat_map(|word| word.to_le_bytes()).collect(), 183)
}

/// A program without libc, of a fixed size, that exits with `code`.
pub fn exits_with(code: u8) -> Vec<u8> {
    const BASE: u64 = 0x40_0000;
    let (text, machine) = exit(code);
    let size = (64 + 56 + text.len()) as u64;
    let mut elf = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    for half in [2_u16, machine] {
        elf.extend(half.to_le_bytes());
    }
    elf.extend(1_u32.to_le_bytes());
    for word in [BASE + 120, 64, 0] {
        elf.extend(word.to_le_bytes());
    }
    elf.extend(0_u32.to_le_bytes());
    for half in [64_u16, 56, 1, 0, 0, 0] {
        elf.extend(half.to_le_bytes());
    }
    // The program header: p_type is PT_LOAD (1), p_flags is PF_R | PF_X (5).
    for half in [1_u32, 5] {
        elf.extend(half.to_le_bytes());
    }
    for word in [0, BASE, BASE, size, size, 4096] {
        elf.extend(word.to_le_bytes());
    }
    elf.extend(text);
    elf
}

/// Writes an executable file, truncating an existing one.
pub fn executable(path: &Path, contents: impl AsRef<[u8]>) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(path, contents).expect("own directory");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("own file");
}

/// Waits for a started program and returns its exit code.
pub fn code(child: spawnfd::Result<Child>) -> spawnfd::Result<i32> {
    let status = child?.wait()?;
    Ok(status.code().unwrap_or_else(|| panic!("{status}")))
}

/// Mounts, for this thread alone, a file system whose timestamps have the granularity of the clock tick. Skips the
/// test if the mount fails.
pub fn coarse_file_system(directory: &Path) -> bool {
    let path = c_path(directory);
    let none = std::ptr::null();
    // SAFETY: the calls read C strings and null pointers. The mounts are in this thread's new mount namespace.
    let mounted = unsafe {
        libc::unshare(libc::CLONE_NEWNS) == 0
            && libc::mount(none, c"/".as_ptr(), none, libc::MS_REC | libc::MS_PRIVATE, none.cast()) == 0
            && libc::mount(c"ramfs".as_ptr(), path.as_ptr(), c"ramfs".as_ptr(), 0, none.cast()) == 0
    };
    if !mounted {
        spawnfd_tests::skip("cannot mount a ramfs");
    }
    mounted
}

/// Mounts, for this thread alone, an empty file system with noexec. Skips the test if the mount fails.
pub fn mount_noexec(directory: &Path) -> bool {
    let (path, none) = (c_path(directory), std::ptr::null());
    // SAFETY: the calls read C strings and null pointers. The mounts are in this thread's new mount namespace.
    let mounted = unsafe {
        libc::unshare(libc::CLONE_NEWNS) == 0
            && libc::mount(none, c"/".as_ptr(), none, libc::MS_REC | libc::MS_PRIVATE, none.cast()) == 0
            && libc::mount(c"tmpfs".as_ptr(), path.as_ptr(), c"tmpfs".as_ptr(), libc::MS_NOEXEC, none.cast()) == 0
    };
    if !mounted {
        spawnfd_tests::skip("cannot mount");
    }
    mounted
}

/// A new cgroup below the cgroup of this process. Dropping the value removes the cgroup.
pub struct Cgroup(pub std::path::PathBuf);

impl Cgroup {
    pub fn new() -> Option<Cgroup> {
        let mounts = std::fs::read_to_string("/proc/self/mounts").ok()?;
        let mount = mounts.lines().find(|line| line.split(' ').nth(2) == Some("cgroup2"))?.split(' ').nth(1)?;
        let cgroups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
        let here = cgroups.lines().find_map(|line| line.strip_prefix("0::"))?.trim_start_matches('/').to_owned();
        let path = Path::new(mount).join(here).join(format!("spawnfd-test-{}", std::process::id()));
        std::fs::create_dir(&path).ok()?;
        let group = Cgroup(path);
        std::fs::OpenOptions::new().write(true).open(group.0.join("cgroup.procs")).ok()?;
        Some(group)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        std::fs::remove_dir(&self.0).expect("empty: its processes have been reaped");
    }
}

/// The numbers of the descriptors that the library keeps open between spawns: sockets, and pidfds of this process's
/// threads.
pub fn library_descriptors() -> Vec<i32> {
    let is_own = |number: i32| {
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{number}")).unwrap_or_default();
        let pid = info.lines().find_map(|line| line.strip_prefix("Pid:")).map(str::trim);
        pid.is_some_and(|pid| Path::new("/proc/self/task").join(pid).exists())
    };
    let fds = Snapshot::take().fds;
    let kept = fds
        .iter()
        .filter(|(number, fd)| fd.target.starts_with("socket:") || fd.target.contains("pidfd") && is_own(**number));
    kept.map(|(number, _)| *number).collect()
}

/// Like `assert_unchanged`, but ignores descriptors that the library may close and open again. After a failed spawn
/// it replaces its sockets. The guard (the helper process that kills trees whose owner has died) ends after a while
/// without a job; the library then closes the guard's table and a pidfd of the guard.
#[track_caller]
pub fn assert_unchanged_except_sockets(before: &Snapshot) {
    let is_table = |target: &str| target.starts_with("/memfd:spawnfd-trees");
    let is_pidfd = |target: &str| target.starts_with("anon_inode:[pidfd]") || target.starts_with("pidfd:");
    let without = |mut snapshot: Snapshot, other: &Snapshot| {
        let (mut tables, mut pidfds) = (0, 0);
        snapshot.fds.retain(|number, fd| {
            let renewed = other.fds.get(number) != Some(&*fd);
            tables += usize::from(is_table(&fd.target));
            pidfds += usize::from(renewed && is_pidfd(&fd.target));
            let guard_s = is_table(&fd.target) && tables == 1 || renewed && is_pidfd(&fd.target) && pidfds == 1;
            !guard_s && !fd.target.starts_with("socket:")
        });
        snapshot
    };
    let taken = before;
    let now = || {
        let now = Snapshot::take();
        (without(taken.clone(), &now), without(now.clone(), taken))
    };
    let start = Instant::now();
    let (mut before, mut after) = now();
    // A joined thread stays listed in /proc for a moment, and the guard runs on for about a second.
    while after != before && start.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(2));
        (before, after) = now();
    }
    leaks::assert_same(&before, &after);
}

/// Whether the kernel keeps the exit status of a process after the process was reaped (Linux 6.15 and later).
pub fn kernel_keeps_exit_status() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("a kernel");
    let mut numbers = release.split(['.', '-']).map_while(|number| number.trim().parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(15))
}

/// Makes memfd_create with MFD_EXEC fail with EACCES for the calling thread, as the sysctl vm.memfd_noexec=2 does.
/// memfd_create without MFD_EXEC still works.
pub fn deny_executable_memory() {
    const MFD_EXEC: u32 = 0x10;
    let instruction = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let load = |offset| instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, offset);
    let answer = |value| instruction(libc::BPF_RET | libc::BPF_K, 0, 0, value);
    // In struct seccomp_data the number of the call is at offset 0, and the low half of its second argument at 24.
    let mut filter = [
        load(0),
        instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 3, libc::SYS_memfd_create as u32),
        load(24),
        instruction(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, 0, 1, MFD_EXEC),
        answer(libc::SECCOMP_RET_ERRNO | libc::EACCES as u32),
        answer(libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the first call sets a flag of this thread. The second passes a program, which the kernel copies and
    // checks.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
    }
}
