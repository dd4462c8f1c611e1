// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sessions whose shell runs in a sandbox.

use std::ffi::OsStr;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use landlock::{ABI, Access, AccessFs, Ruleset, RulesetAttr, RulesetCreatedAttr, path_beneath_rules};
use spawnfd::error::Errno;
use spawnfd::job::Stop;
use spawnfd::sandbox::Sandbox;
use spawnfd::session::{Session, SessionOptions};
use spawnfd::tree::TreeControl;
use spawnfd::{Command, Run};
use spawnfd_tests::{Confined, require_root, require_syscall, scratch, skip};

use crate::common::eventually;
use crate::common::job::read_until;
use crate::common::tree::{fork_owner, kill, next_pid, reap, wait_until_gone};
use crate::{LONG, Shell, change, each_shell, run, shell_end, stdout};

each_shell! {
    state_streams_and_input_work_in_a_sandbox
    a_command_inherits_nothing_from_the_helper
    output_of_a_background_job_belongs_to_its_command_in_a_sandbox
    a_timeout_and_an_interrupt_keep_the_shell_in_a_sandbox
    the_end_of_a_shell_in_a_sandbox_is_reported
    a_stopped_helper_is_continued
    nothing_survives_a_session_in_a_sandbox
    many_commands_in_a_sandbox_use_no_more_descriptors
    a_shell_in_a_sandbox_restarts
    a_sandbox_that_cannot_hold_a_shell_is_an_error
    a_session_in_a_sandbox_works_in_each_tier
    the_sandboxs_descriptors_keep_their_numbers
    a_shell_in_a_landlock_domain_needs_a_sandbox
    a_sandbox_may_change_the_user
    a_shell_in_a_sandbox_ends_with_its_owner
}

mod user {
    use super::*;

    #[test]
    fn state_streams_and_input_work_for_a_user() {
        spawnfd_tests::isolated!(under: Confined::User, || state_streams_and_input_work_in_a_sandbox(Shell::Bash));
    }

    #[test]
    fn a_timeout_and_an_interrupt_work_for_a_user() {
        spawnfd_tests::isolated!(under: Confined::User, || a_timeout_and_an_interrupt_keep_the_shell_in_a_sandbox(Shell::Dash));
    }

    #[test]
    fn nothing_survives_for_a_user() {
        spawnfd_tests::isolated!(under: Confined::User, || nothing_survives_a_session_in_a_sandbox(Shell::Bash));
    }
}

/// Sandbox commands: with shared namespaces, with a pid namespace of their own and its /proc, with a pid namespace and
/// the /proc of the outer one, and with the helper as the first process of the namespace.
const SANDBOXES: [&[&str]; 5] = [
    &["env", "INSIDE=1"],
    &["bwrap", "--dev-bind", "/", "/"],
    &["bwrap", "--dev-bind", "/", "/", "--unshare-pid", "--proc", "/proc", "--die-with-parent"],
    &["bwrap", "--dev-bind", "/", "/", "--unshare-pid"],
    &["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"],
];

/// The sandboxes that this system permits, with their names.
fn sandboxes() -> Vec<(String, Sandbox)> {
    let mut found = Vec::new();
    for words in SANDBOXES {
        let name = words.join(" ");
        match Sandbox::new(words) {
            Ok(sandbox) if Command::new("true").sandbox(&sandbox).run().is_ok_and(|output| output.ok()) => {
                found.push((name, sandbox));
            }
            _ => skip(&format!("{name} does not work here")),
        }
    }
    found
}

fn in_sandbox(sandbox: &Sandbox) -> SessionOptions {
    SessionOptions::new().sandbox(sandbox)
}

/// How long a command may take to return that returns at once. Much less than LONG.
const AT_ONCE: Duration = Duration::from_secs(20);

fn state_streams_and_input_work_in_a_sandbox(shell: Shell) {
    for (name, sandbox) in sandboxes() {
        let session = shell.open(in_sandbox(&sandbox));
        let output = run(&session, "cd /usr/bin; X=1; export Y='a  b'; f() { echo \"f $1\"; }; umask 027; false");
        assert_eq!((output.code(), output.cwd.as_deref()), (Some(1), Some(Path::new("/usr/bin"))), "{name}");
        assert_eq!(
            stdout(&session, "echo $? $X $PWD; sh -c 'echo \"$Y\"'; f 2"),
            "1 1 /usr/bin\na  b\nf 2\n",
            "{name}"
        );
        assert_eq!(run(&session, "(exit 42)").code(), Some(42), "{name}");
        let output = run(&session, "echo out; echo err >&2");
        assert_eq!((&output.stdout[..], &output.stderr[..]), (&b"out\n"[..], &b"err\n"[..]), "{name}");
        assert_eq!(stdout(&session, "cat; readlink /proc/self/fd/0"), "/dev/null\n", "{name}");
        let input = Run::new().input("one\ntwo\n").timeout(LONG);
        let output = session.run("read line; echo \"got $line\"; cat", &input).expect("a result");
        assert_eq!(output.stdout, b"got one\ntwo\n", "{name}");
        let job =
            session.start("echo ask; read a; echo \"<$a>\"", &Run::new().writable(100).window(1000)).expect("a job");
        read_until(&job, 0, "ask\n");
        job.write(b"yes\n").expect("an open pipe");
        assert_eq!(job.wait().expect("a result").stdout, b"ask\n<yes>\n", "{name}");
        let long = "x".repeat(1 << 20);
        assert_eq!(stdout(&session, &format!("wc -c <<E\n{long}\nE\n")), "1048577\n", "{name}");
        let merged = shell.open(in_sandbox(&sandbox).merge(true));
        assert_eq!(stdout(&merged, "echo out; echo err >&2; echo out"), "out\nerr\nout\n", "{name}");
        session.close().expect("a result");
    }
}

fn a_command_inherits_nothing_from_the_helper(shell: Shell) {
    for (name, sandbox) in sandboxes() {
        let session = shell.open(in_sandbox(&sandbox));
        for _ in 0..2 {
            let listed = stdout(&session, "ls /proc/self/fd");
            // ls has its own descriptor 3.
            assert_eq!(listed.split_whitespace().collect::<Vec<_>>(), ["0", "1", "2", "3"], "{name}");
        }
        assert_eq!(stdout(&session, "env | grep ^__spawnfd; set | grep ^__spawnfd_files || :"), "", "{name}");
        // The shell's signals are not those of its helper.
        assert_eq!(stdout(&session, "grep SigBlk /proc/self/status"), "SigBlk:\t0000000000000000\n", "{name}");
    }
}

fn output_of_a_background_job_belongs_to_its_command_in_a_sandbox(shell: Shell) {
    for (name, sandbox) in sandboxes() {
        let dir = scratch();
        let go = dir.path().join("go");
        let session = shell.open(in_sandbox(&sandbox));
        let text = format!("(while [ ! -e {0} ]; do sleep 0.01; done; echo late) & echo first", go.display());
        let job = session.start(&text, &Run::new().window(1000).drain(Duration::from_millis(1))).expect("a job");
        assert_eq!(job.wait().expect("a result").stdout, b"first\n", "{name}");
        assert_eq!(stdout(&session, &format!("touch {}; wait; echo second", go.display())), "second\n", "{name}");
        eventually("the job's own handle has its output", || job.read(0).text().ends_with("late\n"));
        eventually("the background job has ended", || session.processes().is_empty());
    }
}

fn a_timeout_and_an_interrupt_keep_the_shell_in_a_sandbox(shell: Shell) {
    for (name, sandbox) in sandboxes() {
        let session = shell.open(in_sandbox(&sandbox));
        let id = session.id().expect("a shell");
        change(&session, "X=1; sleep 600 >/dev/null 2>&1 &");
        let background: Vec<u32> = session.processes().iter().map(|process| process.pid).collect();
        assert_eq!(background.len(), 1, "{name}");
        eventually("the job has executed its program", || session.processes()[0].name == "sleep");
        for text in ["echo on; sleep 600; echo no", "echo on; sleep 600 | cat; echo no", "echo on; while :; do :; done"]
        {
            let begun = Instant::now();
            let job = session.start(text, &Run::new().window(100)).expect("a job");
            read_until(&job, 0, "on\n");
            job.stop(LONG);
            let output = job.wait().expect("a result");
            assert_eq!((output.stop, output.code()), (Stop::Cancelled, Some(130)), "{name}: {text}: {output:?}");
            let job = session.start(text, &Run::new().window(100)).expect("a job");
            read_until(&job, 0, "on\n");
            session.interrupt();
            let output = job.wait().expect("a result");
            assert_eq!((output.stop, output.code()), (Stop::Exited, Some(130)), "{name}: {text}: {output:?}");
            assert_eq!(output.stdout, b"on\n", "{name}: {text}");
            assert!(begun.elapsed() < AT_ONCE, "{name}: {text}");
            assert_eq!(stdout(&session, "echo $X"), "1\n", "{name}: {text}");
        }
        let ends = Run::new().timeout(Duration::from_millis(50)).grace(Duration::from_millis(100));
        let output = session.run("sh -c 'trap \"\" INT TERM; while :; do sleep 0.01; done'", &ends).expect("a result");
        assert_eq!((output.stop, output.shell_exited), (Stop::Timeout, false), "{name}: {output:?}");
        // The background job and the shell have survived. A last `sleep 0.01` may have lost its parent.
        eventually("only the background job is left", || {
            session.processes().iter().map(|process| process.pid).collect::<Vec<_>>() == background
        });
        assert_eq!((session.id(), stdout(&session, "echo $X")), (Some(id), "1\n".to_owned()), "{name}");
    }
}

fn the_end_of_a_shell_in_a_sandbox_is_reported(shell: Shell) {
    let texts = [
        ("exit 3", Some(3), None),
        ("exec sh -c 'exit 4'", Some(4), None),
        ("kill -9 $$", None, Some(9)),
        ("kill -9 $$; sleep 600", None, Some(9)),
        ("sleep 600 & exit 6", Some(6), None),
    ];
    for (name, sandbox) in sandboxes() {
        for (text, code, signal) in texts {
            let session = shell.open(in_sandbox(&sandbox));
            let begun = Instant::now();
            let output = run(&session, text);
            assert_eq!(shell_end(&output), (true, code, signal), "{name}: {output:?}");
            assert!(begun.elapsed() < AT_ONCE, "{name}: {text}");
            let error = session.run(":", &Run::new()).expect_err("no shell");
            assert_eq!(error.errno(), Errno::ESRCH, "{name}: {text}");
            eventually("its processes have ended", || session.processes().is_empty());
            if let Some(code) = code {
                let output = session.close().expect("a result").expect("a shell");
                assert_eq!(output.code(), Some(code), "{name}: {text}");
            }
        }
    }
}

/// The processes whose environment has a variable with this value.
fn with_mark(mark: &str) -> Vec<String> {
    let entries = fs::read_dir("/proc").expect("a directory").flatten();
    let has_mark = |path: &Path| {
        fs::read(path.join("environ")).is_ok_and(|all| all.split(|byte| *byte == 0).any(|word| word == mark.as_bytes()))
    };
    let paths = entries.map(|entry| entry.path()).filter(|path| has_mark(path));
    paths
        .map(|path| fs::read_to_string(path.join("stat")).unwrap_or_default())
        .filter(|stat| !stat.is_empty())
        .collect()
}

fn a_stopped_helper_is_continued(shell: Shell) {
    for (name, sandbox) in sandboxes() {
        let session = shell.open(in_sandbox(&sandbox));
        let begun = Instant::now();
        assert!(run(&session, "kill -STOP $PPID; echo on").stdout == b"on\n", "{name}");
        // A background job stops the helper between two commands.
        change(&session, "X=1; (sleep 0.05; kill -STOP $PPID) >/dev/null 2>&1 &");
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(stdout(&session, "echo $X"), "1\n", "{name}");
        assert!(begun.elapsed() < AT_ONCE, "{name}");
        session.close().expect("a result");
    }
}

fn nothing_survives_a_session_in_a_sandbox(shell: Shell) {
    for (index, (name, sandbox)) in sandboxes().into_iter().enumerate() {
        for (number, text) in
            ["sleep 600 &", "setsid -f sleep 600", "trap '' TERM INT HUP; sleep 600"].iter().enumerate()
        {
            let mark = format!("SPAWNFD_MARK={}-{index}-{number}", std::process::id());
            let mut command = Command::new(shell.name());
            command.env("SPAWNFD_MARK", mark.split_once('=').expect("a value").1);
            let options = in_sandbox(&sandbox).grace(Duration::from_millis(100));
            let session = Session::open(command, options).expect("a session");
            let job = session.start(text, &Run::new()).expect("a job");
            eventually("the program has started", || with_mark(&mark).iter().any(|stat| stat.contains("(sleep)")));
            drop(session);
            job.wait().expect("a result");
            eventually("no process is left", || with_mark(&mark).is_empty());
        }
        let dir = scratch();
        let file = dir.path().join("bye");
        let session = shell.open(in_sandbox(&sandbox));
        change(&session, &format!("trap 'echo bye >{}' EXIT", file.display()));
        assert!(session.close().expect("a result").is_some_and(|output| output.ok()), "{name}");
        assert_eq!(fs::read_to_string(&file).expect("the trap has run"), "bye\n", "{name}");
    }
}

/// The number of descriptors of a process.
fn descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).expect("descriptors").count()
}

/// The parent of a process.
fn parent(pid: u32) -> u32 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")).expect("a parent");
    parent.trim().parse().expect("a number")
}

fn many_commands_in_a_sandbox_use_no_more_descriptors(shell: Shell) {
    for (name, sandbox) in sandboxes() {
        let session = shell.open(in_sandbox(&sandbox).restart(true));
        let pid = session.id().expect("a shell");
        let helper = parent(pid);
        let commands = |count: usize| {
            for number in 0..count {
                assert_eq!(stdout(&session, &format!("echo {number}; (exit 3)||:")), format!("{number}\n"), "{name}");
            }
        };
        commands(20);
        assert_eq!(fs::read_to_string(format!("/proc/{helper}/comm")).expect("a helper"), "spawnfd-broker\n", "{name}");
        let own = descriptors(std::process::id());
        commands(200);
        // Between two commands the helper has its socket, a descriptor for signals, and seven files of the session.
        eventually("there are no more descriptors than before", || {
            descriptors(std::process::id()) <= own && descriptors(helper) == 9
        });
        assert_eq!(session.id(), Some(pid), "{name}");
    }
}

fn a_shell_in_a_sandbox_restarts(shell: Shell) {
    for (name, sandbox) in sandboxes() {
        let dir = scratch();
        let odd = dir.path().join(OsStr::from_bytes(b"it's\n a dir"));
        fs::create_dir(&odd).expect("a directory");
        let mut command = Command::new(shell.name());
        command.env("ODD", &odd);
        let session = Session::open(command, in_sandbox(&sandbox).restart(true)).expect("a session");
        change(&session, "cd \"$ODD\"; export X=\"a'\nb\"; umask 027");
        let first = session.id();
        for text in ["exit 7", "kill -9 $$", "exit 7"] {
            assert!(run(&session, text).shell_exited, "{name}");
            assert_eq!(stdout(&session, "echo \"$X\"; umask"), "a'\nb\n0027\n", "{name}");
            assert_eq!(run(&session, ":").cwd.as_ref(), Some(&odd), "{name}");
            assert_ne!(session.id(), first, "{name}");
        }
    }
}

fn a_sandbox_that_cannot_hold_a_shell_is_an_error(shell: Shell) {
    let refused = |shell: &str, sandbox: &Sandbox| {
        let begun = Instant::now();
        let error = Session::open(Command::new(shell), in_sandbox(sandbox)).expect_err("no shell");
        assert!(begun.elapsed() < AT_ONCE);
        (error.errno(), error.to_string())
    };
    for (name, sandbox) in sandboxes() {
        let (errno, message) = refused("nonexistent-shell", &sandbox);
        assert_eq!(errno, Errno::ESRCH, "{name}");
        assert!(message.contains("nonexistent-shell") && message.contains("no such program"), "{name}: {message}");
    }
    let slow = Sandbox::new(["sh", "-c", "exec sleep 600"]).expect("sh");
    let options = in_sandbox(&slow).startup_timeout(Duration::from_millis(100));
    let error = Session::open(Command::new(shell.name()), options).expect_err("not a sandbox").to_string();
    assert!(error.contains("did not start within 100ms"), "{error}");
    let without_proc = Sandbox::new(["bwrap", "--dev-bind", "/", "/", "--tmpfs", "/proc"]);
    let Ok(without_proc) = without_proc else { return skip("bwrap is missing") };
    if !Command::new("true").sandbox(&without_proc).run().is_ok_and(|output| output.ok()) {
        return skip("bwrap does not work here");
    }
    let (errno, message) = refused(&shell.name(), &without_proc);
    assert_eq!(errno, Errno::ESRCH);
    assert!(message.contains("the sandbox must have /proc"), "{message}");
    let (_, message) = refused(&shell.name(), &Sandbox::new(["false"]).expect("false"));
    assert!(message.contains("exit status: 1"), "{message}");
}

fn a_session_in_a_sandbox_works_in_each_tier(shell: Shell) {
    let tiers =
        [TreeControl::Group, TreeControl::Guard, TreeControl::Subreaper, TreeControl::Cgroup, TreeControl::Pidns];
    for (name, sandbox) in sandboxes() {
        for control in tiers {
            let options = in_sandbox(&sandbox).tree(control);
            let session = match Session::open(Command::new(shell.name()), options) {
                Ok(session) => session,
                Err(error) if matches!(control, TreeControl::Cgroup | TreeControl::Pidns) => {
                    skip(&format!("{control:?}, {name}: {error}"));
                    continue;
                }
                Err(error) => panic!("{control:?}, {name}: {error}"),
            };
            let ends = Run::new().timeout(Duration::from_millis(50)).grace(LONG);
            let output = session.run("X=1; sleep 600", &ends).expect("a result");
            assert_eq!((output.code(), output.shell_exited), (Some(130), false), "{control:?}, {name}: {output:?}");
            assert_eq!(stdout(&session, "echo $X"), "1\n", "{control:?}, {name}");
            session.close().expect("a result");
        }
    }
}

fn the_sandboxs_descriptors_keep_their_numbers(shell: Shell) {
    let file = fs::File::open("/etc/passwd").expect("a file");
    let mut sandbox = Sandbox::new(["env", "INSIDE=1"]).expect("env");
    for number in 18..24 {
        sandbox = sandbox.descriptor(&file, number).expect("a free number");
    }
    let session = shell.open(in_sandbox(&sandbox));
    let listed = stdout(&session, "ls /proc/$$/fd");
    let given: Vec<&str> =
        listed.split_whitespace().filter(|number| (18..30).any(|n| n.to_string() == **number)).collect();
    assert_eq!(given, ["18", "19", "20", "21", "22", "23"]);
    assert_eq!(stdout(&session, "echo $INSIDE"), "1\n");
}

fn a_shell_in_a_landlock_domain_needs_a_sandbox(shell: Shell) {
    if !require_syscall("landlock_create_ruleset") {
        return;
    }
    // The rules allow everything. The kernel still permits no access to processes outside the domain.
    let rules = path_beneath_rules(["/"], AccessFs::from_all(ABI::V1));
    let ruleset = Ruleset::default().handle_access(AccessFs::from_all(ABI::V1)).and_then(Ruleset::create);
    let ruleset = ruleset.and_then(|ruleset| ruleset.add_rules(rules)).expect("this kernel has Landlock");
    let ruleset = Option::<OwnedFd>::from(ruleset).expect("this kernel has Landlock");
    let confined = || {
        let mut command = Command::new(shell.name());
        command.no_new_privs().landlock(ruleset.try_clone().expect("a copy"));
        command
    };
    let error = Session::open(confined(), SessionOptions::new()).expect_err("it cannot open the pipes").to_string();
    assert!(error.contains("/proc/PID/fd"), "{error}");
    let sandbox = Sandbox::new(["env", "INSIDE=1"]).expect("env");
    let session = Session::open(confined(), in_sandbox(&sandbox)).expect("a session");
    assert_eq!(stdout(&session, "echo $INSIDE"), "1\n");
    assert!(run(&session, "exit 3").shell_exited);
}

fn a_sandbox_may_change_the_user(shell: Shell) {
    if !require_root() {
        return;
    }
    let sandbox = Sandbox::new(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]).expect("setpriv");
    let session = shell.open(in_sandbox(&sandbox).restart(true));
    assert_eq!(stdout(&session, "id -u; X=1"), "65534\n");
    let output = session.run("cat; echo $X; echo err >&2; false", &Run::new().input("in\n")).expect("a result");
    assert_eq!((&output.stdout[..], &output.stderr[..], output.code()), (&b"in\n1\n"[..], &b"err\n"[..], Some(1)));
    let job = session.start("echo on; sleep 600", &Run::new().window(100)).expect("a job");
    read_until(&job, 0, "on\n");
    session.interrupt();
    assert_eq!(job.wait().expect("a result").code(), Some(130));
    assert!(run(&session, "exit 3").shell_exited);
    assert_eq!(stdout(&session, "id -u"), "65534\n");
}

fn a_shell_in_a_sandbox_ends_with_its_owner(shell: Shell) {
    for (_, sandbox) in sandboxes() {
        // No guard ends this tree. The shell does not read its input.
        let options = in_sandbox(&sandbox).tree(TreeControl::Group);
        let (owner, mut report) = fork_owner(|tell| {
            let session = shell.open(options);
            let job = session.start("echo on; while :; do :; done", &Run::new().window(100)).expect("a job");
            read_until(&job, 0, "on\n");
            let pid = session.id().expect("a shell");
            tell(pid as i32);
            tell(parent(pid) as i32);
            (session, job)
        });
        let (pid, helper) = (next_pid(&mut report), next_pid(&mut report));
        kill(owner, libc::SIGKILL);
        wait_until_gone(&[pid, helper]);
        reap(owner);
    }
}
