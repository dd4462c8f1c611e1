// SPDX-License-Identifier: MIT OR Apache-2.0
//! Many commands in one session, and many sessions at once.

use std::fs;
use std::time::Duration;

use spawnfd::Run;
use spawnfd::job::Stop;
use spawnfd::session::{Session, SessionOptions};

use crate::common::{eventually, rounds};
use crate::{LONG, Shell, change, each_shell, run, stdout};

each_shell! {
    many_commands_use_no_more_memory_and_descriptors
    many_sessions_run_at_once
    random_ends_keep_each_output_with_its_command
}

/// The resident memory of a process in KiB, and its number of descriptors.
fn usage(pid: u32) -> (u64, usize) {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("a running process");
    let memory = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("resident memory");
    let memory = memory.trim().trim_end_matches(" kB").parse().expect("a number");
    (memory, fs::read_dir(format!("/proc/{pid}/fd")).expect("descriptors").count())
}

fn many_commands_use_no_more_memory_and_descriptors(shell: Shell) {
    let session = shell.open(SessionOptions::new().restart(true));
    let pid = session.id().expect("a shell");
    let commands = |count: usize| {
        for number in 0..count {
            assert_eq!(stdout(&session, &format!("echo {number}; X={number}")), format!("{number}\n"));
            if number % 100 == 0 {
                change(&session, "(exit 3); true & false");
            }
        }
        // The shell may still be closing the files of its last command.
        std::thread::sleep(Duration::from_millis(100));
        (usage(std::process::id()), usage(pid))
    };
    commands(500);
    let (own, shells) = commands(500);
    let (own_after, shells_after) = commands(rounds(10_000));
    let limit = |before: u64| before + 2048;
    assert!(
        own_after.0 < limit(own.0) && shells_after.0 < limit(shells.0),
        "{own:?} {own_after:?} {shells:?} {shells_after:?}"
    );
    // The shell may still be closing the files of its last command.
    eventually("the number of descriptors does not grow with the number of commands", || {
        // dash keeps a few copies of its standard streams for a while. This process opens the namespaces of its parent
        // once it has run for some seconds.
        usage(std::process::id()).1 <= own.1 + 4 && usage(pid).1 <= shells.1 + 4
    });
    assert_eq!(session.id(), Some(pid));
}

fn many_sessions_run_at_once(shell: Shell) {
    fn assert_shared_by_threads<T: Send + Sync>() {}
    assert_shared_by_threads::<Session>();
    let sessions: Vec<Session> = (0..100).map(|_| shell.open(SessionOptions::new())).collect();
    let jobs: Vec<_> = sessions
        .iter()
        .enumerate()
        .map(|(number, session)| session.start(&format!("X={number}; sleep 0.1; echo $X"), &Run::new()).expect("a job"))
        .collect();
    for (number, job) in jobs.iter().enumerate() {
        assert_eq!(job.wait().expect("a result").stdout, format!("{number}\n").into_bytes());
    }
    for (number, session) in sessions.iter().enumerate() {
        assert_eq!(stdout(session, "echo $X"), format!("{number}\n"));
    }
}

fn random_ends_keep_each_output_with_its_command(shell: Shell) {
    let session = shell.open(SessionOptions::new().restart(true));
    let mut seed: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut random = |below: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % below
    };
    for number in 0..rounds(2000) {
        let text = match random(6) {
            0 => format!("echo {number}; sleep 600"),
            1 => format!("echo {number}; while :; do :; done"),
            2 => format!("echo {number}; (sleep 0.00{}; echo {number}) & kill -9 $$", random(10)),
            3 => format!("echo {number}; exit 3"),
            4 => format!("(i=0; while [ $((i += 1)) -lt 100 ]; do echo {number}; sleep 0.01; done) & echo {number}"),
            _ => format!("echo {number}"),
        };
        let ends = Run::new().timeout(Duration::from_micros(random(20_000))).grace(LONG).drain(Duration::ZERO);
        let output = session.run(&text, &ends).expect("a result");
        let is_expected = matches!(output.stop, Stop::Exited | Stop::Timeout) || output.shell_exited;
        assert!(is_expected, "{text}: {output:?}");
        let own = format!("{number}\n");
        assert_eq!(output.stdout_text().replace(&own, ""), "", "{text}: {output:?}");
    }
    assert_eq!(run(&session, "echo end").stdout, b"end\n");
    session.close().expect("a result");
}
