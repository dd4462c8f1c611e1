// SPDX-License-Identifier: MIT OR Apache-2.0
//! Limits of a session: the result of a command names them, and the limit that has ended the command or the shell.

use std::time::Duration;

use spawnfd::error::Errno;
use spawnfd::job::Stop;
use spawnfd::limits::{Enforce, Enforcer, Limits, Resource};
use spawnfd::session::SessionOptions;
use spawnfd::tree::TreeControl;
use spawnfd::{Output, Run};

use crate::{LONG, Shell, each_shell, run, stdout};

each_shell! {
    the_result_names_the_enforcer_of_each_limit
    a_program_that_reaches_its_cpu_time_ends_the_command_only
    a_limit_that_ends_the_shell_ends_the_command
}

/// Options of a session in the guard tier, which has no cgroup.
fn within(limits: Limits) -> SessionOptions {
    SessionOptions::new().limits(limits).tree(TreeControl::Guard).grace(Duration::from_millis(100))
}

fn reached(output: &Output) -> (Stop, Option<(Resource, Enforcer)>, bool, bool) {
    (output.stop, output.limit.map(|limit| (limit.resource, limit.by)), output.ok(), output.shell_exited)
}

const BURN: &str = "while :; do :; done";

fn the_result_names_the_enforcer_of_each_limit(shell: Shell) {
    let limits = Limits::new().memory(1 << 30).cpu_time(LONG).cpus(1.0).enforce(Enforce::BestEffort);
    let session = shell.open(within(limits));
    for (text, stop) in [("true", Stop::Exited), ("exit 0", Stop::Lost)] {
        let output = run(&session, text);
        let named: Vec<String> = output.limits.iter().map(ToString::to_string).collect();
        assert_eq!(named, ["memory (rlimit)", "cpu_time (rlimit)", "cpus (unenforced)"]);
        assert_eq!((output.stop, output.limit), (stop, None));
    }
    let session = shell.open(SessionOptions::new());
    assert_eq!(run(&session, "true").limits, []);
}

fn a_program_that_reaches_its_cpu_time_ends_the_command_only(shell: Shell) {
    let session = shell.open(within(Limits::new().cpu_time(Duration::from_secs(1))));
    let output = run(&session, &format!("X=1; sh -c '{BURN}'"));
    let limit = Some((Resource::CpuTime, Enforcer::Rlimit));
    assert_eq!(reached(&output), (Stop::Limit, limit, false, false), "{output:?}");
    assert_eq!(output.code(), Some(128 + 24));
    assert!(output.check().expect_err("not ok").to_string().contains("reached its cpu_time limit (rlimit)"));
    assert_eq!(stdout(&session, "echo $X"), "1\n");
    // The program sends itself the signal without having used its time.
    assert_eq!(reached(&run(&session, "sh -c 'kill -XCPU $$'")), (Stop::Exited, None, false, false));
}

fn a_limit_that_ends_the_shell_ends_the_command(shell: Shell) {
    let cases = [
        (Limits::new().cpu_time(Duration::from_secs(1)), BURN, Resource::CpuTime, Enforcer::Rlimit),
        (
            Limits::new().memory(200 << 20).enforce(Enforce::Watch),
            "perl -e '$x = \"x\" x (300 << 20); sleep 1000'",
            Resource::Memory,
            Enforcer::Watch,
        ),
        (
            Limits::new().pids(12).enforce(Enforce::Watch),
            "i=0; while [ $((i += 1)) -lt 30 ]; do sleep 1000 & done; sleep 1000",
            Resource::Pids,
            Enforcer::Watch,
        ),
    ];
    for (limits, text, resource, by) in cases {
        let session = shell.open(within(limits));
        assert!(run(&session, "true").ok());
        let output = run(&session, text);
        assert_eq!(reached(&output), (Stop::Limit, Some((resource, by)), false, true), "{output:?}");
        let session = shell.open(within(limits));
        let job = session.start(text, &Run::new().timeout(LONG)).expect("starts");
        let output = job.wait().expect("a result");
        assert_eq!(reached(&output), (Stop::Limit, Some((resource, by)), false, true), "{output:?}");
    }
    // Every cgroup counts CPU time. The program gets SIGTERM, which the shell ignores.
    let limits = Limits::new().cpu_time(Duration::from_millis(300));
    let options = SessionOptions::new().limits(limits).grace(LONG);
    let session = shell.open(options.clone());
    let output = run(&session, &format!("sh -c '{BURN}'"));
    assert_eq!((output.stop, output.limit.map(|limit| limit.resource)), (Stop::Limit, Some(Resource::CpuTime)));
    if output.limit.is_some_and(|limit| limit.by == Enforcer::Rlimit) {
        return spawnfd_tests::skip("CPU time of a tree: needs a cgroup");
    }
    assert!(output.shell_exited && !output.ok() && output.wall < LONG / 2, "{output:?}");
    assert_eq!(session.run("echo next", &Run::new()).expect_err("the session has ended").errno(), Errno::ESRCH);
    let session = shell.open(options.restart(true));
    assert!(run(&session, &format!("sh -c '{BURN}'")).shell_exited);
    assert_eq!(stdout(&session, "echo next"), "next\n");
}
