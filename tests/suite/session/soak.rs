// SPDX-License-Identifier: MIT OR Apache-2.0
//! SIGKILL of the owner, the shells and the helper processes of sessions, at random moments.

use std::fs;
use std::time::{Duration, Instant};

use spawnfd::job::Stop;
use spawnfd::session::SessionOptions;
use spawnfd::tree::TreeControl;
use spawnfd::{Command, Run};
use spawnfd_tests::isolated;

use crate::LONG;
use crate::common::tree::{become_subreaper, fork, kill, wait_until};

/// The variable that all processes of the test's sessions have in their environment.
const TOKEN: &str = "SPAWNFD_SESSION_SOAK";

/// The guard looks at the children of each helper twice a second. An orphan that it has not seen yet survives the end of
/// the helper (docs/trees.md).
const GUARD_MICROSECONDS: u64 = 1_100_000;

/// A pseudorandom sequence (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// The owner of three sessions: each command must return its own output, in time, whoever is killed. Never returns.
fn own_sessions(seed: u64) {
    let threads: Vec<_> = (0..3)
        .map(|index| {
            std::thread::spawn(move || {
                let mut random = Random(seed * 3 + index + 1);
                let shell = ["bash", "dash"][random.below(2) as usize];
                let tree = [TreeControl::Subreaper, TreeControl::Guard][random.below(2) as usize];
                let options = SessionOptions::new().restart(true).tree(tree);
                let mut session = None;
                for number in 0.. {
                    let own = format!("{index}.{number}");
                    let text = match random.below(5) {
                        0 => format!("echo {own}; sleep 600"),
                        // It outlives the shell, because the session restarts.
                        1 => format!(
                            "(i=0; while [ $((i += 1)) -lt 100 ]; do echo {own}; sleep 0.01; done) & echo {own}"
                        ),
                        2 => format!("echo {own}; sleep 0.00{} & echo {own}; wait", random.below(10)),
                        _ => format!("echo {own}"),
                    };
                    let run = Run::new().timeout(Duration::from_micros(random.below(50_000))).grace(LONG);
                    let begun = Instant::now();
                    if session.is_none() {
                        let mut command = Command::new(shell);
                        command.env(TOKEN, std::process::id().to_string());
                        // The shell may have been killed while it started.
                        session = spawnfd::session::Session::open(command, options.clone()).ok();
                    }
                    let output = session.as_ref().map(|session| session.run(&text, &run.drain(Duration::ZERO)));
                    assert!(begun.elapsed() < Duration::from_secs(30), "{text}: {:?}, {output:?}", begun.elapsed());
                    match output {
                        Some(Ok(output)) => {
                            // If the subreaper was killed, the status is lost while the shell may still run.
                            let is_expected = matches!(output.stop, Stop::Exited | Stop::Timeout)
                                || output.shell_exited
                                || output.stop == Stop::Lost && tree == TreeControl::Subreaper;
                            assert!(is_expected, "{text}: {output:?}");
                            let foreign = output.stdout_text().replace(&format!("{own}\n"), "");
                            assert_eq!(foreign, "", "{text}: {output:?}");
                        }
                        // The next command opens another session.
                        _ => session = None,
                    }
                }
            })
        })
        .collect();
    for thread in threads {
        if thread.join().is_err() {
            std::process::exit(1);
        }
    }
}

/// The processes with the token of an owner: its shells and their programs. And the subreapers of its trees.
fn processes_of(owner: i32) -> (Vec<i32>, Vec<i32>) {
    let (mut members, mut helpers) = (Vec::new(), Vec::new());
    let token = format!("{TOKEN}={owner}");
    for entry in fs::read_dir("/proc").expect("/proc").flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let is_child = stat.rsplit(')').next().and_then(|rest| rest.split(' ').nth(2)) == Some(&owner.to_string());
        let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
        if environment.split(|&byte| byte == 0).any(|variable| variable == token.as_bytes()) {
            members.push(pid);
        } else if is_child && stat.contains("(spawnfd-reaper)") {
            helpers.push(pid);
        }
    }
    (members, helpers)
}

/// Describes a process as /proc shows it.
fn describe(pid: i32) -> String {
    let of = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default().replace('\0', " ");
    let status = of("status");
    let signals = status.lines().filter(|line| line.starts_with("Shd") || line.starts_with("Sig"));
    format!("{} {} {} {:?}", of("stat").trim(), of("cmdline"), of("cgroup").trim(), signals.collect::<Vec<_>>())
}

/// Runs for SPAWNFD_SESSION_SECONDS, 2 by default; `make soak` sets 600.
#[test]
fn nothing_hangs_or_survives_random_kills() {
    let seconds = std::env::var("SPAWNFD_SESSION_SECONDS").map_or(2, |text| text.parse().expect("a number"));
    isolated!(limit: Duration::from_secs(seconds + 180), || {
        become_subreaper();
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        let end = Instant::now() + Duration::from_secs(seconds);
        let mut owners = 0;
        while Instant::now() < end {
            owners += 1;
            let seed = random.below(1 << 32);
            let owner = fork(|| own_sessions(seed));
            for _ in 0..random.below(200) {
                // A look at all processes takes long on a busy machine.
                if Instant::now() >= end {
                    break;
                }
                let kills_helper = random.below(16) == 0;
                let pause = random.below(20_000) + if kills_helper { GUARD_MICROSECONDS } else { 0 };
                std::thread::sleep(Duration::from_micros(pause));
                let (members, helpers) = processes_of(owner);
                // A session without its helper is in tier guard, where these commands leave nothing behind either.
                let victims = if kills_helper { helpers } else { members };
                if !victims.is_empty() {
                    kill_if_alive(victims[random.below(victims.len() as u64) as usize]);
                }
            }
            let mut status = 0;
            // SAFETY: waitpid stores an int.
            let ended = unsafe { libc::waitpid(owner, &raw mut status, libc::WNOHANG) };
            assert_eq!((ended, status), (0, 0), "the owner has failed");
            kill(owner, libc::SIGKILL);
            // SAFETY: waitpid stores an int.
            assert_eq!(unsafe { libc::waitpid(owner, &raw mut status, 0) }, owner);
            let killed = Instant::now();
            while !processes_of(owner).0.is_empty() {
                let left: Vec<String> = processes_of(owner).0.into_iter().map(describe).collect();
                assert!(killed.elapsed() < LONG, "left by a dead owner, {owner}: {left:#?}");
                std::thread::sleep(Duration::from_millis(1));
            }
            reap_orphans();
        }
        assert!(owners > 0);
        // This process adopts the helpers of the owners.
        wait_until("no helper is left", || {
            reap_orphans();
            processes_of(std::process::id() as i32).1.is_empty()
        });
    });
}

/// Reaps the processes of dead owners, which this process has adopted.
fn reap_orphans() {
    // SAFETY: waitpid stores no status.
    while unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) } > 0 {}
}

/// Sends SIGKILL to a process that may have ended.
fn kill_if_alive(pid: i32) {
    // SAFETY: kill takes integers.
    unsafe { libc::kill(pid, libc::SIGKILL) };
}
