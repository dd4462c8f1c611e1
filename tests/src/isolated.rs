// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs one test in a process of its own, below a supervisor that kills every process the test leaves behind.
//!
//! The test binary runs three times for one test. [`isolated!`](crate::isolated!) takes a different branch each time:
//! 1. libtest's own process starts the supervisor and reports the outcome of the test;
//! 2. the supervisor, a subreaper, starts the test, enforces the time limit, and kills every surviving process;
//! 3. the test's process runs the body.

use std::ffi::OsString;
use std::fs::{File, Permissions, set_permissions};
use std::io::{Read, Seek, Write};
use std::mem::MaybeUninit;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio, exit};
use std::thread;
use std::time::{Duration, Instant};

use crate::raw;
use crate::scratch::{program, scratch};

/// An environment variable with the test's name. The supervisor and the test's own process have it.
const NAME: &str = "SPAWNFD_ISOLATED";

/// Environment variable that is set only in the supervisor, the process that starts one test and kills its leftovers.
const SUPERVISOR: &str = "SPAWNFD_SUPERVISOR";

/// An environment variable that turns off [`Confined`]. The caller sets it if the whole run is
/// confined already, or if it wants no confinement.
const AS_IS: &str = "SPAWNFD_AS_IS";

/// The default time limit of a test. Most tests take less than a second on an idle machine.
const LIMIT: Duration = Duration::from_secs(120);

/// An environment variable with a number, by which the time limit of each test is multiplied. The caller sets it on a
/// slow machine.
const SLOWNESS: &str = "SPAWNFD_SLOWNESS";

/// The time that a test's processes have to end after the test. The library's guard runs on for up
/// to a second.
const GRACE: Duration = Duration::from_secs(10);

/// The uid and gid of [`Confined::User`].
const USER: &str = "65534";

/// The confinement of a test's process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Confined {
    /// The test's process is confined no more than the test runner.
    #[default]
    No,
    /// Docker's default seccomp profile and capabilities. If the test runner is root, the process is also in a new
    /// pid namespace, and its session leader is outside that namespace.
    Docker,
    /// An unprivileged user. Without root this is the same as [`Confined::No`].
    User,
}

/// Returns the name of the running test, as libtest prints it.
pub(crate) fn test_name() -> String {
    std::env::var(NAME).unwrap_or_else(|_| thread::current().name().unwrap_or("unknown").to_owned())
}

/// Returns whether this is the process of one isolated test.
pub(crate) fn is_isolated() -> bool {
    std::env::var_os(NAME).is_some()
}

/// Runs the body of a test in a process of its own. The whole test must be this call.
///
/// The process has /dev/null as stdin, a file as stdout and stderr, and no other descriptor. It has default signal
/// dispositions, an empty signal mask, and a new directory as TMPDIR. It has two threads: libtest's main thread, and
/// the thread that runs the body.
///
/// There are four forms: `isolated!(|| …)`; `isolated!(root: || …)` skips the test without root;
/// `isolated!(limit: Duration, || …)` sets a time limit; and `isolated!(under: Confined, || …)` confines the process.
///
/// # Panics
/// With the test's output, if the test fails, exceeds its limit (120 s by default), or leaves a process behind.
#[macro_export]
macro_rules! isolated {
    (limit: $limit:expr, $body:expr) => { $crate::isolated!(@ .limit($limit), $body) };
    (root: $body:expr) => { $crate::isolated!(|| if $crate::require_root() { ($body)() }) };
    (under: $confined:expr, $body:expr) => { $crate::isolated!(@ .under($confined), $body) };
    (@ $(.$option:ident($value:expr))*, $body:expr) => {{
        fn here() {}
        $crate::Isolated::new(std::any::type_name_of_val(&here))$(.$option($value))*.run($body)
    }};
    ($body:expr) => { $crate::isolated!(@ , $body) };
}

/// The expansion of [`isolated!`](crate::isolated!).
#[derive(Debug)]
pub struct Isolated {
    name: String,
    limit: Duration,
    confined: Confined,
}

impl Isolated {
    /// `path` is the path of a function inside the test: `crate::module::test::here`.
    #[must_use]
    pub fn new(path: &str) -> Self {
        let path = path.strip_suffix("::here").expect("a function named `here`").replace("::{{closure}}", "");
        let (_, name) = path.split_once("::").expect("a crate's name comes first");
        Isolated { name: name.to_owned(), limit: LIMIT, confined: Confined::No }
    }

    /// Replaces the time limit.
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Confines the test's process, unless SPAWNFD_AS_IS is set.
    #[must_use]
    pub fn under(mut self, confined: Confined) -> Self {
        let is_possible = confined != Confined::User || raw::geteuid() == Ok(0);
        if std::env::var_os(AS_IS).is_none() && is_possible {
            self.confined = confined;
        }
        self
    }

    /// Runs the body in this process, or starts the process that runs it.
    ///
    /// # Panics
    /// See [`isolated!`](crate::isolated!).
    pub fn run(self, body: impl FnOnce()) {
        match std::env::var(NAME) {
            Ok(name) if name != self.name => panic!("isolated test {:?} within the process of {name:?}", self.name),
            Ok(_) if std::env::var_os(SUPERVISOR).is_some() => self.supervise(),
            Ok(_) => body(),
            Err(_) => self.report(),
        }
    }

    /// Returns a command that runs this test binary again, for this test only.
    fn command(&self, prefix: &[OsString]) -> Command {
        let test = std::env::current_exe().expect("the path of this test");
        let words: Vec<OsString> = prefix.iter().cloned().chain([test.into()]).collect();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).args(["--exact", &self.name, "--nocapture", "--include-ignored", "--test-threads=1"]);
        command
    }

    /// Starts the supervisor, prints the test's reports, and fails if the test failed.
    fn report(&self) {
        let temporary = scratch();
        set_permissions(temporary.path(), Permissions::from_mode(0o1777)).expect("own directory");
        // The output goes to a file. With a pipe, a surviving process that keeps the write end open would delay the
        // end of file, and thereby this function.
        let mut output = tempfile::tempfile().expect("a file for the output");
        let copy = |file: &File| file.try_clone().map(Stdio::from).expect("a copy of a descriptor");
        let mut command = self.command(&self.namespace());
        // SAFETY: the closure runs between fork and exec; both functions only make system calls.
        unsafe { command.pre_exec(|| keep_standard_descriptors().and_then(|()| prepare_supervisor())) };
        let status = command
            .env(NAME, &self.name)
            .env(SUPERVISOR, "1")
            .env("TMPDIR", temporary.path())
            .stdin(Stdio::null())
            .stdout(copy(&output))
            .stderr(copy(&output))
            .process_group(0)
            .status()
            .expect("the test binary starts again");
        let mut text = Vec::new();
        output.rewind().and_then(|()| output.read_to_end(&mut text)).expect("own file");
        let text = String::from_utf8_lossy(&text);
        for line in text.lines() {
            if let Some(skipped) = line.strip_prefix("SKIP ") {
                crate::skips::gather(&format!("SKIP {}{skipped}\n", self.confined.label()));
            } else if line.starts_with("REPORT ") {
                // libtest captures the output of eprint!, so the line is written to stderr itself.
                writeln!(std::io::stderr(), "{line}").ok();
            }
        }
        assert!(status.success() && text.contains("1 passed"), "{} failed ({status}); output:\n{text}", self.name);
    }

    /// Returns the command that gives the supervisor a pid namespace, or nothing if it needs none.
    fn namespace(&self) -> Vec<OsString> {
        if self.confined != Confined::Docker || raw::geteuid() != Ok(0) {
            return Vec::new();
        }
        ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"].map(OsString::from).into()
    }

    /// Runs the test in a child, kills and reports the processes that survive it, and exits.
    fn supervise(&self) -> ! {
        // SAFETY: prctl takes an integer and sets a flag of this process.
        assert_eq!(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) }, 0);
        let confine = || program("spawnfd-confine").into_os_string();
        let prefix: Vec<OsString> = match self.confined {
            Confined::Docker => vec![confine(), "--docker".into(), "--".into()],
            Confined::User => vec![confine(), "--user".into(), USER.into(), "--".into()],
            Confined::No => Vec::new(),
        };
        let mut command = self.command(&prefix);
        // SAFETY: the function runs between fork and exec, and only makes system calls.
        unsafe { command.pre_exec(default_signals) };
        if !prefix.is_empty() {
            command.env("HOME", std::env::temp_dir());
        }
        // cargo sets LD_LIBRARY_PATH to directories that another user cannot read.
        command.env_remove("LD_LIBRARY_PATH");
        let test = command.env_remove(SUPERVISOR).process_group(0).spawn().expect("the test binary starts again");
        let test = i32::try_from(test.id()).expect("a pid");

        let slowness = std::env::var(SLOWNESS).map_or(1, |text| text.parse().expect("a number"));
        let limit = self.limit * slowness;
        let outcome = wait_for(Some(test), Instant::now() + limit);
        let message = match outcome {
            // Processes that the test started may take a moment to end.
            Outcome::Ended(status) if wait_for(None, Instant::now() + GRACE) == Outcome::Childless => {
                exit(status.code().unwrap_or_else(|| {
                    eprintln!("{status}");
                    1
                }));
            }
            Outcome::Ended(status) => format!("left behind after {status}: {}", described_children()),
            Outcome::Late => format!("still running after {limit:?}, killed: {}", described_children()),
            Outcome::Interrupted => "interrupted".to_owned(),
            Outcome::Childless => "the test's process was lost".to_owned(),
        };
        eprintln!("{}: {message}", self.name);
        kill_children();
        exit(1);
    }
}

impl Confined {
    /// The prefix that marks tests under this confinement in the list of skipped tests.
    fn label(self) -> &'static str {
        match self {
            Confined::No => "",
            Confined::Docker => "[docker] ",
            Confined::User => "[user] ",
        }
    }
}

/// The reason why a supervisor stopped waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Ended(ExitStatus),
    Childless,
    Late,
    Interrupted,
}

/// Reaps a supervisor's children until `pid` has ended, or until no child is left. SIGCHLD and SIGTERM are blocked.
fn wait_for(pid: Option<i32>, deadline: Instant) -> Outcome {
    loop {
        let mut status = 0;
        // SAFETY: waitpid stores an int.
        match unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) } {
            -1 => return Outcome::Childless,
            0 => match next_signal(deadline.saturating_duration_since(Instant::now())) {
                Some(libc::SIGCHLD) => {}
                Some(_) => return Outcome::Interrupted,
                None => return Outcome::Late,
            },
            ended if Some(ended) == pid => return Outcome::Ended(ExitStatus::from_raw(status)),
            _ => {}
        }
    }
}

/// Kills all children of the supervisor, and the orphans that are then reparented to it. Only this thread reaps
/// children, so no pid is reused before its process is killed.
fn kill_children() {
    while wait_for(None, Instant::now() + Duration::from_millis(50)) != Outcome::Childless {
        for pid in children() {
            // SAFETY: the pid belongs to a child of this process that has not been reaped.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
    }
}

/// This process's children as text for an error message: pid, command line, state, and each thread's name and
/// current system call.
fn described_children() -> String {
    let read = |pid: i32, name: &str| std::fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
    let describe = |pid| {
        let words = read(pid, "cmdline").split(|&byte| byte == 0).collect::<Vec<_>>().join(&b' ');
        let state = read(pid, "stat").rsplit(|&byte| byte == b')').next().and_then(|rest| rest.get(1).copied());
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let of = |path: &Path, name: &str| std::fs::read_to_string(path.join(name)).unwrap_or_default();
        let threads: Vec<String> = tasks
            .map(|task| task.path())
            .map(|path| format!("{} in {}", of(&path, "comm").trim(), of(&path, "syscall").trim()))
            .collect();
        let words = String::from_utf8_lossy(&words);
        let state = char::from(state.unwrap_or(b'?'));
        format!("pid {pid} ({}, state {state}, threads: {})", words.trim(), threads.join("; "))
    };
    children().into_iter().map(describe).collect::<Vec<_>>().join(", ")
}

/// This process's children.
fn children() -> Vec<i32> {
    let tasks = std::fs::read_dir("/proc/self/task").expect("own tasks").flatten();
    let lists = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()).collect()
}

/// Waits for the supervisor's next signal; returns `None` if none arrives within `time`.
fn next_signal(time: Duration) -> Option<i32> {
    let set = set_of(&[libc::SIGCHLD, libc::SIGTERM]);
    let time =
        libc::timespec { tv_sec: time.as_secs().try_into().unwrap_or(i64::MAX), tv_nsec: time.subsec_nanos().into() };
    // SAFETY: sigtimedwait reads a set and a time, and stores nothing.
    let signal = unsafe { libc::sigtimedwait(&raw const set, std::ptr::null_mut(), &raw const time) };
    (signal > 0).then_some(signal)
}

fn set_of(signals: &[i32]) -> libc::sigset_t {
    let mut set = MaybeUninit::zeroed();
    // SAFETY: sigemptyset initialises the set.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for &signal in signals {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        set.assume_init()
    }
}

/// Blocks the signals that the supervisor waits for, and asks the kernel for SIGTERM when the thread that started the
/// supervisor ends.
fn prepare_supervisor() -> std::io::Result<()> {
    let set = set_of(&[libc::SIGCHLD, libc::SIGTERM]);
    // SAFETY: sigprocmask reads a set. Both calls change only the new child.
    unsafe {
        libc::sigprocmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut());
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
    }
    Ok(())
}

/// Restores the default action of every signal, and an empty mask. nohup(1), and shells without job control, start
/// their commands with some signals ignored, and the test inherits that.
fn default_signals() -> std::io::Result<()> {
    let none = set_of(&[]);
    // An all-zero buffer, larger than any architecture's struct sigaction, means SIG_DFL, no flags and an empty mask.
    let default = [0_u64; 5];
    // SAFETY: the calls read the buffer and the set, and change only the child. The raw system call also reaches the
    // signals 32 and 33, which libc reserves. For SIGKILL and SIGSTOP the call fails with EINVAL.
    unsafe {
        for signal in 1..=64 {
            libc::syscall(libc::SYS_rt_sigaction, signal, default.as_ptr(), 0, 8);
        }
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
    }
    Ok(())
}

/// Sets FD_CLOEXEC on all descriptors above 2: the process that runs the tests may have left some inheritable.
fn keep_standard_descriptors() -> std::io::Result<()> {
    // SAFETY: the calls take integers, and set a flag of the child's own descriptors without closing any.
    unsafe {
        if libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) != 0 {
            // close_range is absent or denied. Descriptors from 4,096 on stay inheritable.
            for fd in 3..4096 {
                libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC);
            }
        }
    }
    Ok(())
}
