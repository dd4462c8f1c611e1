// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the command under test, for five minutes at most.
#![allow(dead_code)]

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

pub const LIMIT: Duration = Duration::from_secs(300);

/// The result of one call of the command.
#[derive(Debug)]
pub struct Called {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// Returns the command under test, not yet started.
pub fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spawnfd"));
    command.stdin(Stdio::null());
    command
}

/// Calls the command with these arguments.
pub fn call<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Called {
    finish(command().args(args))
}

/// Opens a pseudoterminal. Returns its master and its terminal end.
pub fn terminal() -> (OwnedFd, File) {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
    (master, File::options().read(true).write(true).open(name).unwrap())
}

/// Calls `spawnfd run` with these arguments.
pub fn run<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Called {
    finish(command().arg("run").args(args))
}

/// Calls `spawnfd run FLAGS -- sh -c SCRIPT`, which must succeed. Returns the script's output, trimmed.
#[track_caller]
pub fn shell<'a>(flags: impl IntoIterator<Item = &'a str>, script: &str) -> String {
    let called = finish(command().arg("run").args(flags).args(["--", "sh", "-c", script]));
    assert_eq!(called.code, Some(0), "{script}: {}", called.stderr);
    called.stdout.trim_end().to_owned()
}

/// Runs a command to its end. After five minutes, kills the command and panics.
#[track_caller]
pub fn finish(command: &mut Command) -> Called {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let Output { status, stdout, stderr } = wait(child);
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    Called { code: status.code(), stdout: text(&stdout), stderr: text(&stderr) }
}

#[track_caller]
pub fn wait(mut child: Child) -> Output {
    fn reader(pipe: Option<impl Read + Send + 'static>) -> thread::JoinHandle<Vec<u8>> {
        thread::spawn(move || {
            let mut bytes = Vec::new();
            if let Some(mut pipe) = pipe {
                let _ = pipe.read_to_end(&mut bytes);
            }
            bytes
        })
    }
    let (out, err) = (reader(child.stdout.take()), reader(child.stderr.take()));
    let status = wait_status(&mut child);
    Output { status, stdout: out.join().unwrap(), stderr: err.join().unwrap() }
}

#[track_caller]
pub fn wait_status(child: &mut Child) -> ExitStatus {
    let end = Instant::now() + LIMIT;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if Instant::now() > end {
            let _ = child.kill();
            panic!("the command did not end in {LIMIT:?}");
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until a process that received SIGKILL has ended. Its parent may not have reaped it.
#[track_caller]
pub fn await_end(pid: i32) {
    let end = Instant::now() + LIMIT;
    loop {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        if stat.is_empty() || stat.contains(") Z ") || stat.contains(") X ") {
            return;
        }
        assert!(Instant::now() < end, "process {pid} still runs: {stat}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the single line that a failing command prints, without its prefix.
#[track_caller]
pub fn complaint(called: &Called, code: i32) -> &str {
    assert_eq!(called.code, Some(code), "{called:?}");
    let line = called.stderr.strip_suffix('\n').unwrap_or(&called.stderr);
    assert!(line.starts_with("spawnfd: ") && !line.contains('\n'), "{line}");
    line.trim_start_matches("spawnfd: ")
}
