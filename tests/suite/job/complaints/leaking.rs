// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reported problem: the host process keeps zombies, terminals or descriptors. A name such as openclaw#97616 is a
//! public report.

use std::time::Duration;

use spawnfd::job::{Event, EventOptions, TerminalSize};
use spawnfd::{Command, Run};
use spawnfd_tests::isolated;
use spawnfd_tests::leaks::Snapshot;

use super::{LONG, sh, std_sh};
use crate::common::job::started;
use crate::common::{self, Launcher, eventually, rounds};

/// Returns true if this process has no child, not even a zombie, and only the test's two threads.
fn idle() -> bool {
    let now = Snapshot::take();
    now.children.is_empty() && !now.has_zombie && now.threads.len() <= 2
}

/// openclaw#97616: one agent had 513 zombie children.
#[test]
fn no_zombies_remain() {
    isolated!(limit: Duration::from_secs(600), || {
        for round in 0..rounds(600) {
            match round % 6 {
                0 => assert!(sh("exit 0").run().expect("runs").ok()),
                1 => drop(sh("exit 0").start(&Run::new()).expect("starts")),
                2 => drop(sh("exec sleep 1000").start(&Run::new()).expect("starts")),
                3 => drop(Command::new("/bin/true").spawn().expect("starts")),
                4 => sh("exit 0").start(&Run::new()).expect("starts").detach(),
                _ => drop(started(sh("exec sleep 1000"), &Run::new())),
            }
        }
        eventually("all are reaped", idle);

        // A dropped child of std stays a zombie as long as the host lives.
        let child = std_sh("exit 0").spawn().expect("starts");
        let pid = child.id().cast_signed();
        drop(child);
        eventually("it has ended", || Snapshot::take().has_zombie);
        // SAFETY: waitpid stores nothing. The pid is that of the child dropped above, which is a zombie.
        assert_eq!(unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) }, pid);
    });
}

/// The number of terminals that this process has open.
fn terminals() -> usize {
    Snapshot::take().fds.values().filter(|fd| fd.target.contains("/ptmx") || fd.target.contains("/pts/")).count()
}

/// codex#26984, gemini-cli#21626: one agent never closed 527 terminals and descriptors.
#[test]
fn terminals_and_descriptors_are_closed() {
    isolated!(limit: Duration::from_secs(600), || {
        let run = Run::new().terminal(TerminalSize::default()).writable(1000).window(1000);
        let many_at_once = || {
            let jobs: Vec<_> = (0..60).map(|_| sh("read x; echo got $x").start(&run).expect("starts")).collect();
            assert!(terminals() >= 60);
            for (number, job) in jobs.iter().enumerate() {
                match number % 3 {
                    0 => drop(job.write(b"1\n").expect("stdin is open")),
                    1 => job.close_stdin(),
                    // The program gets neither a line nor end of file; dropping its job ends it.
                    _ => {}
                }
            }
            for job in jobs.iter().step_by(3) {
                assert!(job.wait().expect("a job result").stdout_text().contains("got 1"));
            }
        };
        let one_by_one = || {
            let output = sh("tty").run_with(&run).expect("runs");
            assert!(output.stdout_text().starts_with("/dev/pts/"), "{output:?}");
            let command = Command::new("/nowhere");
            assert!(command.run_with(&run).is_err(), "the program does not exist");
            let (_job, mut events) = sh("tty").start_events(&run, EventOptions::default()).expect("starts");
            assert!(matches!(events.next_timeout(LONG), Some(Event::Chunk { .. })));
        };
        common::warm_up(Launcher::Clone3);
        many_at_once();
        eventually("idle", idle);
        assert_eq!(terminals(), 0);
        let before = Snapshot::take();
        (0..rounds(100) / 10).for_each(|_| many_at_once());
        (0..rounds(400)).for_each(|_| one_by_one());
        eventually("idle", idle);
        assert_eq!(terminals(), 0);
        common::assert_unchanged_except_sockets(&before);
    });
}
