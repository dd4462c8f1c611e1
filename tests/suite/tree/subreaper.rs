// SPDX-License-Identifier: MIT OR Apache-2.0
//! Trees that each have a subreaper: the program's parent, to which every orphan of the tree returns.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::job::sh;
use crate::common::tree::*;
use crate::common::{self, fifo};
use spawnfd::command::{FilterInstruction, OpenHow};
use spawnfd::error::{Errno, Stage};
use spawnfd::job::{Fate, Leftovers, Stop};
use spawnfd::tree::{Tier, Tree, TreeControl};
use spawnfd::{Command, Output, Run, Stdio};
use spawnfd_tests::{Confined, isolated, scratch};

fn run() -> Run {
    Run::new().tree(TreeControl::Subreaper)
}

/// Runs a shell script in a tree with a subreaper, at most for a minute.
#[track_caller]
fn output_of(script: &str) -> Output {
    sh(script).run_with(&run().timeout(PATIENCE)).unwrap_or_else(|error| panic!("{error}"))
}

/// The pids of this process's children named spawnfd-reaper.
fn subreapers() -> Vec<i32> {
    let is_subreaper =
        |pid: &i32| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "spawnfd-reaper\n");
    common::children().into_iter().filter(is_subreaper).collect()
}

/// A perl(1) program, which stands before `$@`, that becomes a daemon: it forks, calls setsid, forks again, prints the
/// pid of the last process, and lets that process execute `$@`.
const DAEMON: &str =
    r#"perl -MPOSIX -e 'exit if fork; setsid; if (my $p = fork) { $| = 1; print "$p\n"; exit } exec @ARGV'"#;

#[test]
fn status_and_usage_are_those_of_the_program() {
    isolated!(under: Confined::Docker, || {
        for code in [0, 1, 7, 127, 255] {
            let output = output_of(&format!("exit {code}"));
            assert_eq!((output.code(), output.tree), (Some(code), Tier::Subreaper));
            assert!(output.leftovers.is_empty() && output.tree.is_complete() && !output.status_lost);
        }
        for signal in [1, 9, 15] {
            assert_eq!(output_of(&format!("kill -{signal} $$; sleep 1000")).signal(), Some(signal));
        }
        let busy = output_of("i=0; while [ $i -lt 100000 ]; do i=$((i + 1)); done");
        assert!(busy.usage.cpu >= Duration::from_millis(10), "{:?}", busy.usage);
        assert!(busy.usage.max_rss >= 100 << 10, "{:?}", busy.usage);
    });
}

#[test]
fn a_job_waits_reads_and_writes() {
    isolated!(|| {
        let job = sh("read line; echo got $line; exit 4").start(&run().writable(4096)).expect("starts");
        assert!(job.wait_timeout(Duration::from_millis(30)).expect("watched").is_none());
        job.write(b"x\n").expect("a reader");
        let output = job.wait().expect("watched");
        assert_eq!(
            (output.code(), output.stdout.as_slice(), output.tree),
            (Some(4), b"got x\n".as_slice(), Tier::Subreaper)
        );
    });
}

#[test]
fn the_programs_parent_is_a_helper_of_this_process() {
    isolated!(|| {
        let mut sh = start(TreeControl::Subreaper, "echo $PPID; exec sleep 1000");
        let parent = sh.pid();
        // The kernel wakes this process before it sets the name and the arguments of the helper.
        wait_until("the helper has its name", || subreapers() == [parent]);
        let arguments = || fs::read_to_string(format!("/proc/{parent}/cmdline")).expect("own child");
        wait_until("the helper has its arguments", || arguments() == "spawnfd-guard\0reap\0");
        // The helper is not dumpable, so a look at its files takes CAP_SYS_PTRACE.
        if let Ok(directory) = fs::read_link(format!("/proc/{parent}/cwd")) {
            assert_eq!(directory, Path::new("/"));
            let descriptors = || fs::read_dir(format!("/proc/{parent}/fd")).expect("it may be read").count();
            wait_until("a pidfd of this process and of the program, a socket, a signalfd", || descriptors() == 4);
        }
        assert!(sh.tree.kill(PATIENCE));
        assert_eq!(sh.wait().signal(), Some(9));
        drop(sh.tree);
        wait_until("the helper is reaped", || subreapers().is_empty());
    });
}

#[test]
fn daemons_are_found_and_killed() {
    isolated!(under: Confined::User, || {
        for script in [&format!("{DAEMON} sleep 1000"), "setsid -f sleep 1000", "(setsid sleep 1000 &)"] {
            let output = output_of(script);
            assert_eq!(output.leftovers.iter().map(|left| left.fate).collect::<Vec<_>>(), [Fate::Killed], "{script}: {output:?}");
            wait_until_gone(&[output.leftovers[0].pid as i32]);
        }
        wait_until("the helpers are reaped", || subreapers().is_empty());
    });
}

#[test]
fn a_timeout_ends_daemons_too() {
    isolated!(|| {
        let run = run().timeout(Duration::from_millis(300)).grace(Duration::from_secs(30));
        let output = sh(&format!("{DAEMON} sleep 1000; sleep 1000")).run_with(&run).expect("runs");
        assert_eq!((output.stop, output.signal()), (Stop::Timeout, Some(TERM)));
        wait_until_gone(&[output.stdout_text().trim().parse().expect("a pid")]);
    });
}

#[test]
fn an_adopted_daemon_ends_with_its_job() {
    isolated!(|| {
        let job = sh(&format!("{DAEMON} sleep 1000")).start(&run().leftovers(Leftovers::Adopt)).expect("starts");
        let output = job.wait().expect("watched");
        let fates: Vec<Fate> = output.leftovers.iter().map(|left| left.fate).collect();
        assert_eq!(fates, [Fate::Adopted], "{output:?}");
        let daemon = output.leftovers[0].pid as i32;
        assert!(is_alive(daemon));
        job.stop(Duration::ZERO);
        wait_until_gone(&[daemon]);
    });
}

#[test]
fn a_detached_daemon_lives_on_below_its_helper() {
    isolated!(|| {
        become_subreaper();
        let output = sh(&format!("{DAEMON} sleep 1000")).run_with(&run().leftovers(Leftovers::Detach)).expect("runs");
        let daemon = output.leftovers[0].pid as i32;
        assert!(is_alive(daemon));
        assert_eq!(subreapers().len(), 1, "the helper reaps the daemon later");
        kill(daemon, libc::SIGKILL);
        wait_until("the helper has ended and is reaped", || subreapers().is_empty());
    });
}

#[test]
fn an_unseen_daemon_ends_with_its_owner() {
    isolated!(|| {
        become_subreaper();
        // The last round kills the guard, so that only the helper watches the owner.
        for (signal, kills_guard) in [(0, false), (libc::SIGSTOP, false), (libc::SIGKILL, false), (0, true)] {
            let (owner, mut report) = fork_owner(|tell| {
                let script = format!("{DAEMON} sleep 1000; echo $PPID; exec sleep 1000");
                let mut sh = start(TreeControl::Subreaper, &script);
                let (daemon, helper) = (sh.pid(), sh.pid());
                kill(helper, signal);
                tell(daemon);
                tell(helper);
                tell(sh.child.id() as i32);
                sh
            });
            let [daemon, helper, program] = [0; 3].map(|_| next_pid(&mut report));
            if kills_guard {
                kill(wait_for_some(|| guards_of(owner))[0], libc::SIGKILL);
            }
            kill(owner, libc::SIGKILL);
            wait_until_gone(&[helper, program]);
            if signal == libc::SIGKILL {
                // Without the helper, the tier is `guard`, which does not find the daemon.
                kill(daemon, libc::SIGKILL);
            }
            wait_until_gone(&[daemon]);
            reap(owner);
        }
    });
}

#[test]
fn failed_starts_leave_nothing() {
    isolated!(|| {
        // This tree keeps the guard running.
        let _guarded = Tree::prepare(TreeControl::Guard).expect("prepared");
        let descriptors = || fs::read_dir("/proc/self/fd").expect("/proc").count();
        let directory = scratch();
        let broken = directory.path().join("broken");
        common::executable(&broken, "#!/nonexistent/interpreter\n");
        let fail = || {
            let error = sh("exit").current_dir("/nonexistent").run_with(&run()).expect_err("no directory");
            assert_eq!((error.stage(), error.errno()), (Stage::CurrentDir, Errno::ENOENT));
            let error = Command::new(&broken).run_with(&run()).expect_err("no interpreter");
            assert_eq!(error.errno(), Errno::ENOENT, "{error}");
            let missing = sh("exit").open("/nonexistent/file", OpenHow::READ, 5).run_with(&run());
            let error = missing.expect_err("no file");
            assert_eq!((error.stage(), error.errno()), (Stage::Action(0), Errno::ENOENT));
            let bad = [FilterInstruction { code: 0xffff, jt: 0, jf: 0, k: 0 }];
            let error = sh("exit").no_new_privs().seccomp(bad).run_with(&run()).expect_err("no filter");
            assert_eq!((error.stage(), error.errno()), (Stage::Filter, Errno::EINVAL));
        };
        // The second round uses a socket for the child's descriptors, the third a copy of the table.
        for refused in ["pidfd_getfd", "close_range", "clone3"] {
            (0..3).for_each(|_| fail());
            // Another thread may still close descriptors of earlier starts. A leak makes each repetition differ.
            wait_until("the failures leave no descriptor", || {
                let before = descriptors();
                (0..10).for_each(|_| fail());
                descriptors() == before
            });
            assert_eq!(subreapers(), [0; 0]);
            spawnfd_tests::confine::deny(&[(refused, libc::EPERM)]).expect("confined");
        }
    });
}

#[test]
fn an_open_that_blocks_does_not_delay_the_timeout() {
    isolated!(|| {
        let directory = scratch();
        let pipe = fifo(directory.path(), "pipe");
        let begun = Instant::now();
        let run = run().timeout(Duration::from_millis(200)).grace(Duration::ZERO);
        let error = sh("exit").open(&pipe, OpenHow::READ, 5).run_with(&run);
        assert!(begun.elapsed() < PATIENCE, "{error:?}");
        let output = error.expect("the timeout is a result");
        assert_eq!((output.stop, output.signal()), (Stop::Timeout, Some(9)));
        wait_until("the helper is reaped", || subreapers().is_empty());
    });
}

#[test]
fn a_tree_has_one_program() {
    isolated!(|| {
        let mut command = sh("sleep 1000");
        let mut tree = Tree::prepare(TreeControl::Subreaper).expect("prepared");
        command.tree(&tree).stdout(Stdio::Null);
        let mut child = command.spawn().expect("starts");
        let error = command.spawn().expect_err("a second program");
        assert_eq!((error.stage(), error.errno()), (Stage::Tree, Errno::EBUSY));
        assert!(error.to_string().contains("one program only"), "{error}");
        tree.program_started(child.id(), child.as_fd());
        assert!(tree.kill(PATIENCE));
        assert_eq!(child.wait().expect("reported").signal(), Some(9));
    });
}

/// A program that kills its helper loses the completeness of the tree, and perhaps its status.
#[test]
fn a_killed_helper_costs_the_status_at_most() {
    isolated!(|| {
        let output = output_of("kill -KILL $PPID; exit 5");
        assert_eq!(output.tree, Tier::Guard, "{output:?}");
        // Another process adopts the program, and may not reap it in time.
        assert!(output.code() == Some(5) || output.status_lost, "{output:?}");
        // Now this process adopts the program, so the kernel tells this process the status.
        become_subreaper();
        for script in ["kill -KILL $PPID; exit 5", "kill -KILL $PPID; sleep 0.1; exit 5"] {
            let output = output_of(&format!("sleep 1000 & {script}"));
            assert_eq!(output.tree, Tier::Guard, "{output:?}");
            assert!(!output.tree.is_complete());
            assert_eq!((output.code(), output.status_lost), (Some(5), false), "{output:?}");
            let names: Vec<&str> = output.leftovers.iter().map(|left| left.name.as_str()).collect();
            assert!(matches!(names[..], ["sleep" | "sh"]), "{output:?}");
            wait_until_gone(&[output.leftovers[0].pid as i32]);
        }
    });
}

#[test]
fn a_stopped_helper_is_continued() {
    isolated!(|| {
        for script in ["kill -STOP $PPID; exit 5", "setsid -f sleep 1000; kill -STOP $PPID; exit 5"] {
            let begun = Instant::now();
            let output = output_of(script);
            assert_eq!((output.code(), output.tree, output.status_lost), (Some(5), Tier::Subreaper, false));
            assert!(begun.elapsed() < PATIENCE);
        }
        // A process of the tree stops the helper again and again.
        let output = output_of("(while kill -STOP $PPID; do :; done) & while kill -STOP $PPID; do :; done & exit 5");
        assert_eq!(output.stop, Stop::Exited, "{output:?}");
        wait_until("the helpers are reaped", || subreapers().is_empty());
    });
}

/// A perl(1) program that forks and acts at random: its processes call setsid, stop the helper and themselves, and kill
/// their parents. `$ARGV[0]` is the seed, and `$ARGV[2]` the pid of the test. In `$ARGV[1]`, the word "helper" makes the
/// processes kill the helper, and the word "siblings" makes them kill or stop their siblings.
const HOSTILE: &str = r#"
use POSIX; my ($seed, $targets, $test) = @ARGV; srand($seed); my ($helper, $is_child, @siblings) = (getppid, 0);
# By now, a foreign process may have the pid.
sub has { my ($pid, $file, $text) = @_; open my $f, '<', "/proc/$pid/$file" or return 0; local $/; index(<$f>, $text) >= 0 }
sub ours { has($_[0], "environ", "SPAWNFD_HOSTILE=$test\0") }
sub helper { has($helper, "stat", "(spawnfd-reaper) ") }
sub act {
    my $kind = int rand 10;
    if ($kind == 0) { setsid }
    elsif ($kind == 1) { kill STOP => $helper if helper }
    elsif ($kind == 2) { my $p = getppid; kill KILL => $p if $p != $helper and $p != $test and $is_child and ours $p }
    elsif ($kind == 3) { kill STOP => $$ if $is_child and rand() < 0.1 }
    elsif ($kind == 4) { select undef, undef, undef, rand(0.002) }
    elsif ($kind == 5) { exit 0 if rand() < 0.5 }
    elsif ($kind == 6) { kill CONT => $helper if helper }
    elsif ($kind == 7) { setpgid(0, 0) }
    elsif ($kind == 8) { kill KILL => $helper if $targets =~ /helper/ and getppid == $helper }
    elsif ($targets =~ /siblings/) { my $signal = rand() < 0.5 ? "KILL" : "STOP"; kill $signal, grep { ours $_ } @siblings }
}
for (1 .. 3) {
    my $p = fork; last unless defined $p;
    if ($p) { push @siblings, $p; act(); next }
    srand($seed + $$); $is_child = 1; act() for 1 .. 4; sleep 1000 if rand() < 0.3
}
"#;

/// The time after which a run that has begun has ended, so that it needs the status of its program no more.
const END_OF_RUN: Duration = Duration::from_secs(20);

/// The children of this process, a subreaper, with the time since when they are known: runs, and processes that it has
/// adopted. Thousands of them would slow down each search in /proc.
#[derive(Default)]
struct Orphans(Vec<(i32, Instant)>);

impl Orphans {
    /// Reaps the children that are too old for a run to wait for them. If `kills_helper`, kills those of them that live:
    /// the tier `guard` does not promise to find them.
    fn reap(&mut self, kills_helper: bool) {
        let reap = |pid: i32| {
            // SAFETY: the calls take integers, and all-zero is a valid siginfo_t. waitid stores one.
            unsafe {
                if kills_helper {
                    libc::kill(pid, libc::SIGKILL);
                }
                let mut info: libc::siginfo_t = std::mem::zeroed();
                libc::waitid(libc::P_PID, pid as u32, &raw mut info, libc::WEXITED | libc::WNOHANG) == 0
                    && info.si_pid() == pid
            }
        };
        let known = std::mem::take(&mut self.0);
        let since = |pid| known.iter().find(|(other, _)| *other == pid).map_or_else(Instant::now, |(_, since)| *since);
        self.0 = common::children().into_iter().map(|pid| (pid, since(pid))).collect();
        self.0.retain(|(pid, since)| since.elapsed() < END_OF_RUN || !reap(*pid));
    }
}

/// Runs [`HOSTILE`] again and again. No run hangs, and no process survives that the tier promises to find.
fn run_hostile_trees(targets: &str) {
    become_subreaper();
    let token = format!("SPAWNFD_HOSTILE={}", std::process::id());
    let (name, value) = token.split_once('=').expect("one sign");
    let run = run().timeout(Duration::from_millis(300)).grace(Duration::from_millis(20));
    let kills_helper = targets.contains("helper");
    let threads: Vec<_> = (0..4)
        .map(|thread| {
            let (run, name, value, targets) = (run.clone(), name.to_owned(), value.to_owned(), targets.to_owned());
            std::thread::spawn(move || {
                let (mut tiers, mut orphans) = (Vec::new(), Orphans::default());
                for round in 0..common::rounds(10_000) / 4 {
                    if thread == 0 && round % 8 == 0 {
                        orphans.reap(kills_helper);
                    }
                    let mut command = Command::new("perl");
                    let (seed, test) = ((round * 4 + thread).to_string(), std::process::id().to_string());
                    command.args(["-e", HOSTILE, &seed, &targets, &test]).env(&name, &value);
                    let begun = Instant::now();
                    let output = command.run_with(&run).unwrap_or_else(|error| panic!("{error}"));
                    assert!(begun.elapsed() < END_OF_RUN, "{output:?}");
                    assert!(!output.status_lost, "this process adopts the program of a killed helper: {output:?}");
                    tiers.push(output.tree);
                }
                tiers
            })
        })
        .collect();
    let tiers: Vec<Tier> = threads.into_iter().flat_map(|thread| thread.join().expect("no failed round")).collect();
    let expected: &[Tier] = if kills_helper { &[Tier::Guard, Tier::Subreaper] } else { &[Tier::Subreaper] };
    assert!(tiers.iter().all(|tier| expected.contains(tier)), "{tiers:?}");
    assert!(expected.iter().all(|tier| tiers.contains(tier)), "{tiers:?}");
    let left = || -> Vec<i32> {
        let all = fs::read_dir("/proc").expect("/proc");
        let all = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let has_token = |pid: &i32| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            *pid != std::process::id() as i32
                && environment.split(|&byte| byte == 0).any(|variable| variable == token.as_bytes())
        };
        all.filter(has_token).collect()
    };
    wait_until("no process of a tree is left", || {
        let left = left();
        if kills_helper {
            // The tier `guard` does not find a process that has left the session and has lost its parent. It may end by
            // itself now, or fork.
            // SAFETY: kill takes integers.
            left.iter().for_each(|&pid| _ = unsafe { libc::kill(pid, libc::SIGKILL) });
        }
        left.is_empty()
    });
    wait_until("the helpers are reaped", || subreapers().is_empty());
}

fn hostile_limit() -> Duration {
    Duration::from_secs(if common::rounds(10_000) == 10_000 { 3600 } else { 240 })
}

#[test]
fn hostile_trees_end() {
    isolated!(limit: hostile_limit(), || run_hostile_trees(""));
}

#[test]
fn hostile_trees_that_kill_their_siblings_end() {
    isolated!(limit: hostile_limit(), || run_hostile_trees("siblings"));
}

#[test]
fn hostile_trees_that_kill_their_helper_end() {
    isolated!(limit: hostile_limit(), || run_hostile_trees("helper"));
}

#[test]
fn hostile_trees_that_kill_their_helper_and_their_siblings_end() {
    isolated!(limit: hostile_limit(), || run_hostile_trees("helper siblings"));
}

#[test]
fn capabilities_survive_only_where_exec_keeps_them() {
    isolated!(root: || {
        // A program that gives up root's ids is killed by a helper that has them.
        let mut command = sh("setsid -f sleep 1000; exit 3");
        command.gid(65534).uid(65534);
        let output = command.run_with(&run()).expect("runs");
        assert_eq!((output.code(), output.leftovers.len()), (Some(3), 1), "{output:?}");
        wait_until_gone(&[output.leftovers[0].pid as i32]);
    });
}

/// The program kills its parent as its first act, when that process may not have executed the helper yet.
#[test]
fn a_program_that_kills_its_parent_at_once_does_not_escape() {
    isolated!(limit: Duration::from_secs(600), || {
        become_subreaper();
        for round in 0..common::rounds(2000) {
            let mut command = Command::new("perl");
            command
                .args(["-e", "kill 9, getppid; exec 'sleep', '1000'"])
                .setsid()
                .stdin(Stdio::Null)
                .stdout(Stdio::Null);
            let mut tree = Tree::prepare(TreeControl::Subreaper).expect("prepared");
            let child = command.tree(&tree).spawn().unwrap_or_else(|error| panic!("{round}: {error}"));
            tree.program_started(child.id(), child.as_fd());
            let program = child.id() as i32;
            drop(tree);
            wait_until_gone(&[program]);
        }
    });
}

/// The program kills its helper at any moment of a run: at once, while it runs, or just before it ends.
#[test]
fn a_run_ends_although_its_program_kills_the_helper() {
    isolated!(limit: Duration::from_secs(600), || {
        become_subreaper();
        // On a busy machine, perl can need a quarter of a second until it kills the helper.
        let run = run().timeout(Duration::from_millis(500)).grace(Duration::from_secs(30));
        for round in 0..common::rounds(1000) {
            let waits = round % 20;
            let (end, stop, code) = match round % 4 {
                0 => ("exec 'sleep', '1000'", Stop::Timeout, None),
                _ => ("exit 5", Stop::Exited, Some(5)),
            };
            let script = format!("select undef, undef, undef, {waits} / 10_000; kill 9, getppid; {end}");
            let begun = Instant::now();
            let output = Command::new("perl").args(["-e", &script]).run_with(&run).expect("runs");
            assert!(begun.elapsed() < Duration::from_secs(20), "{round}: {output:?}");
            assert_eq!((output.tree, output.status_lost), (Tier::Guard, false), "{round}: {output:?}");
            // On a busy machine, the timeout may end the program earlier.
            if output.stop == stop || stop == Stop::Timeout {
                assert_eq!((output.stop, output.code()), (stop, code), "{round}: {output:?}");
            }
        }
        wait_until("the helpers are reaped", || subreapers().is_empty());
    });
}

#[test]
fn a_host_that_ignores_sigchld_gets_the_status() {
    isolated!(|| {
        // SAFETY: SIG_IGN installs no handler.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
        for (script, leftovers) in [("exit 3", 0), ("setsid -f sleep 1000; exit 3", 1)] {
            let output = output_of(script);
            assert_eq!((output.code(), output.tree), (Some(3), Tier::Subreaper), "{output:?}");
            assert_eq!(output.leftovers.len(), leftovers, "{output:?}");
            assert!(!output.usage.cpu.is_zero(), "{output:?}");
        }
    });
}

/// A forked copy of the host has a copy of the helper's end of the socket, so the socket does not show the helper's end.
#[test]
fn a_killed_helper_is_noticed_while_a_copy_of_the_host_runs() {
    isolated!(|| {
        become_subreaper();
        let mut tree = Tree::prepare(TreeControl::Subreaper).expect("prepared");
        let copy = fork(|| std::thread::sleep(PATIENCE * 2));
        let mut command = sh("kill -KILL $PPID; exit 5");
        let mut child = command.tree(&tree).stdout(Stdio::Null).spawn().expect("starts");
        tree.program_started(child.id(), child.as_fd());
        let status = child.wait_timeout(PATIENCE).expect("this process has adopted the program");
        assert_eq!(status.and_then(|status| status.code()), Some(5));
        kill(copy, libc::SIGKILL);
        reap(copy);
    });
}

#[test]
fn a_program_started_without_the_tree_is_controlled_as_in_tier_guard() {
    isolated!(|| {
        let mut tree = Tree::prepare(TreeControl::Subreaper).expect("prepared");
        let mut child = Command::new("sleep").arg("1000").setsid().spawn().expect("starts");
        tree.program_started(child.id(), child.as_fd());
        assert_eq!(tree.tier(), Tier::Guard);
        assert!(tree.kill(PATIENCE));
        assert_eq!(child.wait().expect("own child").signal(), Some(9));
    });
}

#[test]
fn a_failed_helper_leaves_no_process_and_no_message() {
    isolated!(|| {
        become_subreaper();
        // The copied table makes the program's pidfd arrive by the socket.
        spawnfd_tests::confine::deny(&[("close_range", libc::EPERM)]).expect("confined");
        let ran = scratch().path().join("ran");
        let mut tree = Tree::prepare(TreeControl::Subreaper).expect("prepared");
        let mut command = Command::new("/bin/touch");
        command.arg(&ran).tree(&tree);
        // The helper starts from a descriptor, the program from a path.
        spawnfd_tests::confine::deny(&[("execveat", libc::EPERM)]).expect("confined");
        for _ in 0..3 {
            let error = command.spawn().expect_err("no helper");
            assert_eq!(error.stage(), Stage::Tree, "{error}");
        }
        assert_eq!(subreapers(), [0; 0]);
        assert!(common::children().iter().all(|&pid| !is_alive(pid)));
        assert!(tree.kill(PATIENCE));
    });
}
