// SPDX-License-Identifier: MIT OR Apache-2.0
//! One test alone in a process of its own: quiet, with its own temporary directory.

use std::fs::{File, Permissions, set_permissions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use crate::scratch::scratch;

/// Set to the test's name in the process that runs it.
const MARKER: &str = "SPAWNFD_ISOLATED";

/// What a test may take unless it says otherwise: most take less than a second where nothing else runs.
const LIMIT: Duration = Duration::from_secs(300);

/// How lines begin that are shown also when the test passes.
const TOLD: [&str; 2] = ["SKIP ", "REPORT "];

/// The running test, as libtest names it.
pub(crate) fn test_name() -> String {
    std::env::var(MARKER).unwrap_or_else(|_| thread::current().name().unwrap_or("unknown").to_owned())
}

/// Whether this process was started by [`isolated()`].
pub(crate) fn is_isolated() -> bool {
    std::env::var_os(MARKER).is_some()
}

/// Runs the rest of a test alone: the test binary is executed again for this test only, and `body` runs there,
/// with stdin from /dev/null, stdout and stderr to a file, no descriptor above them, and TMPDIR a new directory. There are
/// two threads: libtest's main one, which waits until the end, and the one that runs `body`.
///
/// `test_name` is the name as libtest prints it, modules included. The whole test must be this call.
///
/// # Panics
/// If the test fails there, takes longer than 300 seconds, or is not found under that name; with its output.
pub fn isolated(test_name: &str, body: impl FnOnce()) {
    isolated_within(LIMIT, test_name, body);
}

/// The same with a time limit.
///
/// # Panics
/// As [`isolated()`].
pub fn isolated_within(limit: Duration, test_name: &str, body: impl FnOnce()) {
    match std::env::var(MARKER) {
        Ok(name) if name == test_name => body(),
        Ok(name) => panic!("isolated({test_name:?}) within the process of {name:?}"),
        Err(_) => in_another_process(limit, test_name),
    }
}

fn in_another_process(limit: Duration, test_name: &str) {
    let temporary = scratch();
    set_permissions(temporary.path(), Permissions::from_mode(0o1777)).expect("own directory");
    // A file, not a pipe: whoever keeps it open cannot make us wait.
    let mut output = tempfile::tempfile().expect("a file for the output");
    let copy = |file: &File| file.try_clone().map(Stdio::from).expect("a copy of a descriptor");
    let mut command = Command::new(std::env::current_exe().expect("the path of this test"));
    // SAFETY: `keep_standard_descriptors` only makes system calls.
    unsafe { command.pre_exec(keep_standard_descriptors) };
    let mut child = command
        .args(["--exact", test_name, "--nocapture", "--include-ignored", "--test-threads=1"])
        .env(MARKER, test_name)
        .env("TMPDIR", temporary.path())
        .stdin(Stdio::null())
        .stdout(copy(&output))
        .stderr(copy(&output))
        .process_group(0)
        .spawn()
        .expect("the test binary starts once more");
    let status = wait(&mut child, limit);
    let mut text = Vec::new();
    output.rewind().and_then(|()| output.read_to_end(&mut text)).expect("own file");
    let text = String::from_utf8_lossy(&text);
    for line in text.lines().filter(|line| TOLD.iter().any(|told| line.starts_with(told))) {
        // Skips are already in their file; not by eprint!, which libtest captures.
        writeln!(std::io::stderr(), "{line}").ok();
    }
    let Some(status) = status else { panic!("{test_name}: still running after {limit:?}, killed; output:\n{text}") };
    let signal = status.signal().map(|signal| format!(", signal {signal}")).unwrap_or_default();
    assert!(status.success(), "{test_name} failed in its own process ({status}{signal}); output:\n{text}");
    assert!(text.contains("1 passed"), "no test is named {test_name:?}; output:\n{text}");
}

/// Sets FD_CLOEXEC above the standard descriptors: whoever started the tests may have left some open.
fn keep_standard_descriptors() -> std::io::Result<()> {
    // SAFETY: integers only; a flag of the child's own descriptors, none of which is closed here.
    unsafe {
        if libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) != 0 {
            // Absent or denied. What lies higher than this stays.
            for fd in 3..4096 {
                libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC);
            }
        }
    }
    Ok(())
}

/// Waits for the child; kills its process group and answers None if it takes too long.
fn wait(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let pid = child.id();
    let (ended, end) = channel();
    let waiter = thread::spawn(move || {
        let mut info = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
        // SAFETY: stores one `siginfo_t`. WNOWAIT leaves the child to `Child::wait`, so its pid stays ours meanwhile.
        while unsafe { libc::waitid(libc::P_PID, pid, info.as_mut_ptr(), libc::WEXITED | libc::WNOWAIT) } != 0
            && std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted
        {}
        ended.send(()).ok();
    });
    let in_time = end.recv_timeout(limit).is_ok();
    if !in_time {
        let group = i32::try_from(pid).expect("a pid");
        // SAFETY: a signal to the group of a child that has not been waited for.
        unsafe { libc::kill(-group, libc::SIGKILL) };
    }
    waiter.join().ok();
    let status = child.wait().expect("own child");
    in_time.then_some(status)
}
