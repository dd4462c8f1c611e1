// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parked processes that can execute any program: zygotes, which fork for it, and pools. The tests cover their
//! starts, the commands that the library starts without them, and failures. Other suites test the state of their
//! programs.

use crate::common;
use std::cell::Cell;
use std::fs::{self, File, Permissions, set_permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use crate::common::{
    Refused, code, cold_except_slow, eventually, executable, exits_with, output, retry_while_slow, rounds,
};
use spawnfd::child::Started;
use spawnfd::command::{FilterInstruction, Namespaces, OpenHow};
use spawnfd::error::{Errno, ErrorKind, Stage};
use spawnfd::warm::{Mode, Park, WarmOptions};
use spawnfd::{Command, Stdio, Template, Warm};
use spawnfd_tests::{isolated, scratch};

const BOTH: [(Mode, Started); 2] = [(Mode::Fork, Started::Zygote), (Mode::Reserve, Started::Pool)];

fn any(mode: Mode, depth: usize) -> Warm {
    let warm = Warm::new(WarmOptions::new().mode(mode)).expect("a Warm");
    warm.add_any(depth, None).expect("a keeper");
    filled(&warm);
    warm
}

#[track_caller]
fn filled(warm: &Warm) {
    assert!(warm.fill(Duration::from_secs(60)), "{:?}", warm.stats());
}

/// Runs a command; returns how it was started, and its exit code.
#[track_caller]
fn run(warm: &Warm, command: &mut Command<'_>) -> (Started, i32) {
    command.stdin(Stdio::Null).warm(warm);
    retry_while_slow(warm, || {
        let child = command.spawn().unwrap_or_else(|error| panic!("{error}"));
        (child.started(), code(Ok(child)).expect("own child"))
    })
}

#[test]
fn any_executable_file_is_started_warm() {
    isolated!(|| {
        let directory = scratch();
        let path = |name: &str| directory.path().join(name);
        executable(&path("static"), exits_with(7));
        executable(&path("script"), "#!/bin/sh -e\nexit $1\n");
        fs::copy("/bin/sh", path("setuid")).expect("own directory");
        set_permissions(path("setuid"), Permissions::from_mode(0o4755)).expect("own file");
        for (mode, started) in BOTH {
            let warm = any(mode, 2);
            assert_eq!(run(&warm, &mut Command::new(path("static"))), (started, 7));
            assert_eq!(run(&warm, Command::new(path("script")).arg("5")), (started, 5));
            assert_eq!(run(&warm, Command::new(path("setuid")).args(["-c", "exit 4"])), (started, 4));
            let by_descriptor = Template::from_descriptor(File::open(path("static")).expect("own file")).expect("one");
            assert_eq!(run(&warm, &mut by_descriptor.command()), (started, 7));
            let by_descriptor = Template::open("/bin/sh").expect("it exists").by_descriptor().expect("no script");
            assert_eq!(run(&warm, by_descriptor.command().args(["-c", "exit 3"])), (started, 3));
            let stats = warm.stats();
            assert_eq!((stats.zygote + stats.pool, cold_except_slow(&stats).len()), (5, 0), "{stats:?}");
        }
    });
}

#[test]
fn unsupported_commands_start_cold_with_a_reason() {
    isolated!(|| {
        let allow = FilterInstruction { code: 0x06, jt: 0, jf: 0, k: 0x7fff_0000 };
        for (mode, _) in BOTH {
            let warm = any(mode, 1);
            let cold = |command: &mut Command<'_>| run(&warm, command).0;
            let new = || Command::new("/bin/true");
            assert_eq!(cold(new().inherit_descriptors(true)), Started::Cold("inherited descriptors"));
            assert_eq!(cold(new().parent_death_signal(libc::SIGKILL)), Started::Cold("parent-death signal"));
            if code(new().namespaces(Namespaces::UTS).spawn()).is_ok() {
                assert_eq!(cold(new().namespaces(Namespaces::UTS)), Started::Cold("namespaces"));
            }
            assert_eq!(cold(new().no_new_privs().seccomp([allow])), Started::Cold("seccomp filter"));
            let much = "x".repeat(60_000);
            assert_eq!(cold(new().args([&much, &much, &much])), Started::Cold("arguments too long"));
            warm.close();
            assert_eq!(code(new().warm(&warm).spawn()), Ok(0));
            assert_eq!(warm.stats().cold.get("closed"), Some(&1));
        }
    });
}

#[test]
fn a_process_parked_for_the_program_is_preferred() {
    isolated!(|| {
        for (mode, started) in BOTH {
            let warm = any(mode, 1);
            warm.add("/bin/sh", Park::new().depth(1)).expect("a keeper");
            let own = if mode == Mode::Fork { Started::Fork } else { Started::Reserve };
            let exit = |code: &str| {
                let mut command = Command::new("/bin/sh");
                command.args(["-c", code]);
                command
            };
            assert_eq!(run(&warm, &mut exit("exit 2")), (own, 2));
            // The process that is parked for the program cannot start these two commands, so the library falls back.
            // It detects this early for the first command, and late for the second.
            assert_eq!(run(&warm, exit("exit 3").limit(libc::RLIMIT_DATA, Some(1 << 30), None)), (started, 3));
            assert_eq!(run(&warm, exit("exit $A").env("A", "4").env("LD_DEBUG", "")), (started, 4));
            assert_eq!(run(&warm, &mut exit("exit 5")), (own, 5));
            assert!(cold_except_slow(&warm.stats()).is_empty(), "{:?}", warm.stats());
        }
    });
}

fn zero_exit(path: &Path) -> Template {
    executable(path, exits_with(0));
    Template::open(path).expect("a program")
}

#[test]
fn failures_report_the_errors_of_exec() {
    isolated!(|| {
        let directory = scratch();
        let path = |name: &str| directory.path().join(name);
        executable(&path("text"), "no program");
        let text = Template::open(path("text")).expect("an executable file");
        for (mode, _) in BOTH {
            let warm = any(mode, 2);
            let before = common::children();
            for _ in 0..rounds(20) {
                let refused = |command: &mut Command<'_>| {
                    filled(&warm);
                    let error = command.stdin(Stdio::Piped).warm(&warm).refused("no program");
                    (error.stage(), error.errno(), error.kind())
                };
                let error = refused(&mut text.command());
                assert_eq!(error, (Stage::Exec, Errno::ENOEXEC, ErrorKind::NotExecutable));
                let template = zero_exit(&path("busy"));
                let writer = File::options().append(true).open(path("busy")).expect("own file");
                assert_eq!(refused(&mut template.command()).0, Stage::Exec);
                assert_eq!(refused(&mut template.command()).1, Errno::ETXTBSY);
                drop(writer);
                let long = "x".repeat(200);
                assert_eq!(refused(template.command().chdir("/nowhere")).1, Errno::ENOENT);
                assert_eq!(refused(template.command().umask(0).chdir(&long)).0, Stage::Action(1));
                assert_eq!(refused(template.command().current_dir("/nowhere")).0, Stage::CurrentDir);
            }
            filled(&warm);
            assert_eq!(common::children().len(), before.len(), "failed starts leave no child");
            let stats = warm.stats();
            assert!(cold_except_slow(&stats).is_empty() && stats.zygote + stats.pool == 0, "{stats:?}");
        }
    });
}

/// Waits until a child blocks in the open of a FIFO, and returns the child's pid. The child is the parked process, or
/// a cold child if the parked process was too slow.
fn wait_for_opener() -> i32 {
    let opens = |pid: &i32| {
        let says = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
        let (place, call) = (says("wchan"), says("syscall"));
        let in_open = [libc::SYS_openat, libc::SYS_openat2].iter().any(|open| call.starts_with(&format!("{open} ")));
        in_open || place.contains("fifo") || place.contains("wait_for_partner")
    };
    let found = Cell::new(None);
    eventually("a child blocks on the FIFO", || {
        found.set(common::children().iter().copied().find(opens));
        found.get().is_some()
    });
    found.get().expect("found")
}

fn kill(pid: i32, signal: i32) {
    // SAFETY: the pid belongs to a child of this process that has not been reaped.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
}

/// Returns the pids of the parked processes. Other children of this process are left out.
fn parked() -> Vec<i32> {
    let waits =
        |pid: &i32| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "spawnfd-zygote\n");
    common::children().into_iter().filter(waits).collect()
}

#[test]
fn killed_parked_processes_are_replaced() {
    isolated!(|| {
        for (mode, started) in BOTH {
            let warm = any(mode, 2);
            let killed = parked();
            // In Fork mode the zygote is one more parked process.
            let all = if mode == Mode::Fork { 3 } else { 2 };
            assert_eq!(killed.len(), all);
            killed.iter().for_each(|&pid| kill(pid, libc::SIGKILL));
            eventually("the parked processes have ended", || !killed.iter().any(|&pid| common::tree::is_alive(pid)));
            for _ in 0..2 {
                let child = Command::new("/bin/true").warm(&warm).spawn().expect("a cold start");
                assert_eq!(child.started(), Started::Cold("died"));
                assert_eq!(code(Ok(child)), Ok(0));
            }
            assert_eq!(run(&warm, &mut Command::new("/bin/true")), (started, 0));
            assert!(warm.fill(Duration::from_secs(60)), "{:?}", warm.stats());
            eventually("the killed processes are reaped and replaced", || {
                parked().iter().all(|pid| !killed.contains(pid)) && parked().len() == all
            });
        }
    });
}

#[test]
fn stopped_parked_processes_are_abandoned() {
    isolated!(|| {
        let directory = scratch();
        let log = directory.path().join("log");
        let script = format!("echo x >>{}", log.display());
        for (mode, _) in BOTH {
            fs::write(&log, "").expect("own directory");
            let warm = any(mode, 1);
            parked().iter().for_each(|&pid| kill(pid, libc::SIGSTOP));
            let mut command = Command::new("/bin/sh");
            let child = command.args(["-c", &script]).warm(&warm).spawn().expect("a cold start");
            assert_eq!(child.started(), Started::Cold("slow"));
            assert_eq!(code(Ok(child)), Ok(0));
            filled(&warm);
            assert_eq!(fs::read_to_string(&log).expect("own file"), "x\n", "the program ran once");
        }
    });
}

#[test]
fn a_process_killed_during_a_start_is_an_error() {
    isolated!(|| {
        let directory = scratch();
        let pipe = common::fifo(directory.path(), "fifo");
        let warm = any(Mode::Reserve, 1);
        let pid = std::thread::scope(|scope| {
            let killed = scope.spawn(|| {
                let pid = wait_for_opener();
                kill(pid, libc::SIGKILL);
                pid
            });
            let mut command = Command::new("/bin/true");
            let error = command.open(&pipe, OpenHow::READ, 5).warm(&warm).refused("killed");
            assert_eq!(error.stage(), Stage::Killed, "{error}");
            killed.join().expect("the thread's assertions hold")
        });
        assert!(!common::children().contains(&pid), "the killed process is reaped");
    });
}

#[test]
fn many_threads_can_start_at_once() {
    isolated!(|| {
        for (mode, _) in BOTH {
            let warm = any(mode, 2);
            std::thread::scope(|scope| {
                for thread in 0..4 {
                    let warm = &warm;
                    scope.spawn(move || {
                        for round in 0..rounds(100) {
                            let text = format!("{thread} {round}");
                            let mut command = Command::new("/bin/echo");
                            assert_eq!(output(command.arg(&text).stdin(Stdio::Null).warm(warm)), format!("{text}\n"));
                            let mut command = Command::new("/bin/true");
                            let error = command.chdir("/nowhere").warm(warm).refused("no such directory");
                            assert_eq!(error.errno(), Errno::ENOENT);
                        }
                    });
                }
            });
            let stats = warm.stats();
            // A confined process cannot verify that all its threads have the same seccomp filters. The library then
            // uses no parked process (reason "seccomp").
            let confined = stats.cold.contains_key("seccomp");
            assert!(confined || stats.zygote + stats.pool > 0, "{stats:?}");
            assert!(cold_except_slow(&stats).keys().all(|reason| ["empty", "seccomp"].contains(reason)), "{stats:?}");
        }
    });
}

/// The host process has several hundred descriptors, at low and high numbers.
#[test]
fn parked_processes_hold_no_descriptor_of_the_host() {
    isolated!(|| {
        let file = File::open("/etc/passwd").expect("it exists");
        let _many: Vec<File> = (0..300).map(|_| file.try_clone().expect("a copy")).collect();
        for (mode, _) in BOTH {
            let warm = any(mode, 2);
            let open = |pid: i32| fs::read_dir(format!("/proc/{pid}/fd"));
            if parked().iter().any(|&pid| open(pid).is_err()) {
                return spawnfd_tests::skip("cannot read /proc/PID/fd");
            }
            let look = || {
                for pid in parked() {
                    // After the list was made, the process may have executed a program and ended.
                    let Ok(all) = open(pid) else { continue };
                    let all: Vec<_> = all.flatten().flat_map(|entry| fs::read_link(entry.path())).collect();
                    assert!(all.len() <= 8 && !all.iter().any(|target| target == Path::new("/etc/passwd")), "{all:?}");
                }
            };
            look();
            for _ in 0..20 {
                assert_eq!(run(&warm, Command::new("/bin/true").descriptor(&file, 77)).1, 0);
                look();
            }
        }
    });
}

/// The zygote closes its copies of the descriptors that it has received for its children.
#[test]
fn a_zygote_keeps_no_descriptor_of_its_starts() {
    isolated!(|| {
        let warm = any(Mode::Fork, 1);
        let Some(pid) = parked().into_iter().min() else { panic!("no zygote") };
        let count = || fs::read_dir(format!("/proc/{pid}/fd")).map(Iterator::count).ok();
        // Only root can read the zygote's fd directory. At this point the zygote may still have open the two
        // descriptors that it has just received.
        let Some(before) = count() else { return spawnfd_tests::skip("cannot read /proc/PID/fd") };
        let (reader, writer) = common::pipe();
        for number in 3..9 {
            let mut command = Command::new("/bin/true");
            assert_eq!(run(&warm, command.descriptor(&writer, number)).0, Started::Zygote);
            assert_eq!(command.chdir("/nowhere").warm(&warm).refused("no such directory").errno(), Errno::ENOENT);
        }
        // After each start, the number of the zygote's descriptors returns to its earlier value.
        eventually("the descriptors of each start are closed", || count().is_some_and(|now| now <= before));
        drop(writer);
        assert_eq!(std::io::read_to_string(reader).expect("own pipe"), "", "no process has the other end");
    });
}

#[test]
fn add_after_close_is_invalid() {
    isolated!(|| {
        let warm = Warm::new(WarmOptions::default()).expect("a Warm");
        warm.close();
        for added in [warm.add("true", Park::default()), warm.add_any(1, None)] {
            let error = added.expect_err("closed");
            assert_eq!((error.kind(), &*error.message()), (ErrorKind::Invalid, "the Warm is closed"));
        }
    });
}

#[test]
fn fill_is_false_if_a_program_cannot_be_parked() {
    isolated!(|| {
        let warm = Warm::new(WarmOptions::default()).expect("a Warm");
        let directory = scratch();
        let program = directory.path().join("program");
        // This program has no libc.
        executable(&program, exits_with(0));
        warm.add(&program, Park::default()).expect("added");
        let filled = warm.fill(Duration::from_secs(60));
        let stats = warm.stats();
        assert!(!filled && stats.cannot.len() == 1, "{stats:?}");
    });
}
