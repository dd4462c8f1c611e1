// SPDX-License-Identifier: MIT OR Apache-2.0
//! The drain time: processes that outlive the program can end by themselves before the library kills them.

use std::fs::{self, File};
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::common::job::{block_on, future, sh, start, text};
use crate::common::tree::{in_cgroup, is_alive};
use spawnfd::job::{Drain, Leftovers, Stop, TerminalSize};
use spawnfd::tree::{Tier, TreeControl};
use spawnfd::{Command, Output, Run, Stdio};
use spawnfd_tests::{isolated, scratch};

/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(60);

/// A shell that leaves a process of its session, which appends a line to the file `$0` after the shell has ended. The
/// process has none of the program's streams. It ignores the SIGHUP that the kernel sends when the shell of a terminal
/// ends.
const WRITES_LATE: &str = "trap '' HUP; (exec <&- >&- 2>&-; sleep 0.05; echo late >>\"$0\") & exit 3";

/// A shell that leaves a process without the program's streams, and prints the pid of that process.
const SERVER: &str = "sleep 1000 >/dev/null 2>&1 & until grep -q sleep /proc/$!/comm; do sleep 0.01; done; echo $!";

/// Runs a command to its end.
type Form<'a> = &'a dyn Fn(Command<'static>, &Run) -> Output;

/// Runs `configure`d commands in each form of a run, and passes the file's text and the output to `check`.
fn in_every_form(run: &Run, configure: impl Fn(&mut Command<'static>, &Path), check: impl Fn(&str, Output)) {
    let by_callback = |command: Command<'static>, run: &Run| {
        let (sender, receiver) = channel();
        let _handle = command.run_then(run, move |output| sender.send(output).expect("the receiver is alive"));
        receiver.recv().expect("a message").expect("runs")
    };
    let forms: [Form<'_>; 4] = [
        &|command, run| command.run_with(run).expect("runs"),
        &by_callback,
        &|command, run| command.start(run).expect("starts").wait().expect("a result").as_ref().clone(),
        &|command, run| block_on(future(command, run)).expect("runs"),
    ];
    for form in forms {
        let directory = scratch();
        let path = directory.path().join("log");
        let mut command = sh(WRITES_LATE);
        command.arg(&path);
        configure(&mut command, directory.path());
        let output = form(command, run);
        check(&fs::read_to_string(&path).unwrap_or_default(), output);
    }
}

fn assert_late_line_is_written(written: &str, output: Output) {
    assert_eq!(
        (written, output.code(), output.stop, output.leftovers.len()),
        ("late\n", Some(3), Stop::Exited, 0),
        "{output:?}"
    );
}

#[test]
fn a_leftover_without_captured_streams_ends_within_the_drain_time() {
    isolated!(|| {
        let run = Run::new().drain(LONG);
        let to_files = |command: &mut Command<'static>, directory: &Path| {
            let file = |name: &str| File::create(directory.join(name)).expect("own directory");
            command.stdout(file("out")).stderr(file("err"));
        };
        in_every_form(&run, to_files, assert_late_line_is_written);
        let to_null = |command: &mut Command<'static>, _: &Path| _ = command.stdout(Stdio::Null).stderr(Stdio::Null);
        in_every_form(&run.clone().timeout(LONG), to_null, assert_late_line_is_written);
    });
}

#[test]
fn a_leftover_that_has_closed_captured_streams_ends_within_the_drain_time() {
    isolated!(|| {
        let run = Run::new().drain(LONG);
        in_every_form(&run, |_, _| (), assert_late_line_is_written);
        in_every_form(&run.terminal(TerminalSize::default()), |_, _| (), assert_late_line_is_written);
    });
}

#[test]
fn leftovers_have_the_drain_time_in_every_tier() {
    isolated!(|| {
        let to_null = |command: &mut Command<'static>, _: &Path| _ = command.stdout(Stdio::Null).stderr(Stdio::Null);
        let in_tier = |tier, control| {
            let check = |written: &str, output: Output| {
                assert_eq!(output.tree, tier);
                assert_late_line_is_written(written, output);
            };
            in_every_form(&Run::new().drain(LONG).tree(control), to_null, check);
        };
        in_tier(Tier::Group, TreeControl::Group);
        in_tier(Tier::Guard, TreeControl::Guard);
        in_tier(Tier::Subreaper, TreeControl::Subreaper);
        if Command::new("true").run_with(&Run::new().tree(TreeControl::Pidns)).is_ok() {
            in_tier(Tier::Pidns, TreeControl::Pidns);
        }
        in_cgroup(|control| in_tier(Tier::Cgroup, control));
    });
}

#[test]
fn a_leftover_is_killed_after_the_drain_time() {
    isolated!(|| {
        for drain in [Duration::ZERO, Duration::from_millis(20)] {
            let run = Run::new().drain(drain);
            for output in
                [sh(SERVER).run_with(&run).expect("runs"), (*start(SERVER, &run).wait().expect("runs")).clone()]
            {
                let pid: u32 = text(&output).trim().parse().expect("a pid");
                let left: Vec<u32> = output.leftovers.iter().map(|left| left.pid).collect();
                assert_eq!((output.ok(), output.drain, left), (true, Drain::Eof, vec![pid]));
                crate::common::eventually("it is killed", || !is_alive(pid as i32));
            }
        }
    });
}

#[test]
fn a_stop_ends_the_drain_time() {
    isolated!(|| {
        let job = start(SERVER, &Run::new().drain(LONG).window(100));
        let (pid, _) = crate::common::job::read_until(&job, 0, "\n");
        let pid: i32 = pid.trim().parse().expect("a pid");
        let shell = job.id() as i32;
        crate::common::eventually("the shell ends", || !is_alive(shell));
        assert!(job.wait_timeout(Duration::from_millis(20)).expect("watched").is_none(), "the leftover has time");
        job.stop(LONG);
        let output = job.wait().expect("a result");
        assert_eq!((output.leftovers.len(), output.leftovers[0].pid), (1, pid as u32));
        crate::common::eventually("it is killed", || !is_alive(pid));
    });
}

#[test]
fn leftovers_that_are_not_killed_do_not_delay_the_result() {
    isolated!(|| {
        let run = Run::new().drain(Duration::MAX).leftovers(Leftovers::Detach);
        let output = sh(SERVER).run_with(&run).expect("runs");
        // SAFETY: kill takes integers, and the process belongs to this test.
        unsafe { libc::kill(text(&output).trim().parse().expect("a pid"), libc::SIGKILL) };
        assert_eq!(output.leftovers.len(), 1);
    });
}

/// Without a drain time, the process may be in the middle of its way out of the session.
#[test]
fn a_process_that_is_just_leaving_the_tree_is_ended_and_listed() {
    isolated!(|| {
        for tree in [TreeControl::Group, TreeControl::Guard] {
            for _ in 0..300 {
                let run = Run::new().timeout(LONG).drain(Duration::ZERO).tree(tree);
                let output = sh("(setsid sleep 1000 &); echo y").run_with(&run).expect("a result");
                let Drain::Cut(holders) = &output.drain else { continue };
                for pid in holders {
                    let is_listed = output.leftovers.iter().any(|left| left.pid == *pid);
                    assert!(is_listed || !is_alive(*pid as i32), "{tree:?}: {output:?}");
                }
            }
        }
    });
}
