// SPDX-License-Identifier: MIT OR Apache-2.0
//! Blocking runs of a host with one thread: signals, signal masks, time limits, and the resources
//! that a run creates for its child.

use crate::common;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::job::sh;
use crate::common::{executable, exits_with, rounds};
use spawnfd::error::ErrorKind;
use spawnfd::job::{Drain, Stop, TerminalSize};
use spawnfd::limits::Limits;
use spawnfd::template::TemplateCache;
use spawnfd::tree::{Tree, TreeControl};
use spawnfd::{Command, Run, Template};
use spawnfd_tests::leaks::{self, Snapshot};
use spawnfd_tests::{confine, isolated, scratch, skip};

static CAUGHT: AtomicUsize = AtomicUsize::new(0);
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn on_signal(_: libc::c_int) {
    CAUGHT.fetch_add(1, Ordering::Relaxed);
    INTERRUPTED.store(true, Ordering::Release);
}

fn handle(signal: i32) {
    // SAFETY: an all-zero sigaction has no flags and an empty mask. The handler uses only atomics.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_signal as extern "C" fn(libc::c_int) as usize;
        action.sa_flags = libc::SA_RESTART;
        assert_eq!(libc::sigaction(signal, &raw const action, std::ptr::null_mut()), 0);
    }
}

/// The options of a run that starts no guard.
fn without_guard() -> Run {
    // The thread that reaps the guard would be a second thread of the host.
    Run::new().tree(TreeControl::Group)
}

/// Returns the calling thread's signal mask and the signal dispositions.
fn own_signals() -> Vec<String> {
    let status = std::fs::read_to_string("/proc/thread-self/status").expect("own status");
    signals(&status)
}

fn signals(status: &str) -> Vec<String> {
    let wanted = |line: &&str| ["SigBlk", "SigIgn", "SigCgt"].iter().any(|name| line.starts_with(name));
    status.lines().filter(wanted).map(str::to_owned).collect()
}

fn has_children() -> bool {
    // SAFETY: waitid stores one siginfo_t, for which all zeros are valid. WNOWAIT leaves the child
    // unreaped.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL;
        libc::waitid(libc::P_ALL, 0, &raw mut info, options) == 0
    }
}

/// Forks a child with one thread. The child makes a first run and then calls `body`. From the
/// second run on, the library does not wait for the exec of the program.
fn warmed_up(body: impl FnOnce()) {
    common::in_single_threaded_fork(|| {
        assert_eq!(sh("exit 0").run_with(&without_guard()).expect("runs").code(), Some(0));
        body();
    });
}

#[test]
fn a_run_interrupted_before_its_start_is_cancelled() {
    isolated!(|| {
        warmed_up(|| {
            let output = sh("exec sleep 60").run_interruptible(&without_guard(), || true).expect("runs");
            assert_eq!(output.stop, Stop::Cancelled);
        });
    });
}

#[test]
fn a_panicking_interrupt_callback_kills_the_program() {
    isolated!(|| {
        let (mut ours, theirs) = std::io::pipe().expect("a pipe");
        let mut asked = 0;
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            // The program ignores SIGPIPE, so it does not end when its output is closed.
            let mut command = sh("trap '' PIPE; yes; exec sleep 60");
            command.descriptor(&theirs, 9).run_interruptible(&without_guard(), || {
                asked += 1;
                assert!(asked < 2, "on purpose, at the second call");
                false
            })
        }));
        assert!(outcome.is_err());
        drop(theirs);
        // Only the program has a copy of `theirs`. End of file shows that the program has ended.
        assert_eq!(ours.read(&mut [0]).expect("own pipe"), 0);
    });
}

#[test]
fn a_signal_interrupts_a_run_while_the_program_writes() {
    isolated!(|| {
        for threads in [1, 2] {
            warmed_up(|| {
                handle(libc::SIGALRM);
                if threads == 2 {
                    // With a second thread, the library does not use its code for hosts with one
                    // thread.
                    std::thread::spawn(|| {
                        loop {
                            std::thread::park();
                        }
                    });
                }
                for _ in 0..3 {
                    INTERRUPTED.store(false, Ordering::Release);
                    let soon = libc::timeval { tv_sec: 0, tv_usec: 50_000 };
                    let never = libc::timeval { tv_sec: 0, tv_usec: 0 };
                    let timer = libc::itimerval { it_interval: never, it_value: soon };
                    // SAFETY: the call reads a valid timer, and the timer's signal has a handler.
                    unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut()) };
                    let run = without_guard().timeout(Duration::from_secs(60));
                    let output = sh("yes & yes & wait").run_interruptible(&run, || INTERRUPTED.load(Ordering::Acquire));
                    assert_eq!(output.expect("runs").stop, Stop::Cancelled, "{threads} threads");
                }
            });
        }
    });
}

/// A signal arrives at any moment of a start, and cancels the run.
#[test]
fn no_signal_is_lost() {
    isolated!(|| {
        for cpus in [1, 2] {
            warmed_up(|| {
                if cpus == 1 {
                    common::pin_to_one_cpu();
                }
                handle(libc::SIGUSR1);
                // SAFETY: getpid takes no arguments and changes nothing.
                let target = unsafe { libc::getpid() };
                for round in 0..rounds(300) {
                    INTERRUPTED.store(false, Ordering::Release);
                    // SAFETY: the forked child spins, sends a signal to its parent, and exits.
                    let sender = unsafe { libc::fork() };
                    if sender == 0 {
                        let until = std::time::Instant::now() + Duration::from_micros(round as u64 * 7 % 600);
                        while std::time::Instant::now() < until {}
                        // SAFETY: the calls take integers. _exit ends the forked child without
                        // running destructors.
                        unsafe {
                            libc::kill(target, libc::SIGUSR1);
                            libc::_exit(0);
                        }
                    }
                    let run = without_guard().grace(Duration::ZERO);
                    let output = Command::new("/bin/sleep")
                        .arg("20")
                        .run_interruptible(&run, || INTERRUPTED.swap(false, Ordering::AcqRel))
                        .expect("runs");
                    assert_eq!(output.stop, Stop::Cancelled, "round {round}");
                    // SAFETY: waitpid stores nothing, and `sender` is a child of this process.
                    assert_eq!(unsafe { libc::waitpid(sender, std::ptr::null_mut(), 0) }, sender);
                }
            });
        }
    });
}

#[test]
fn runs_succeed_under_a_storm_of_signals() {
    isolated!(|| {
        warmed_up(|| {
            handle(libc::SIGALRM);
            let before = (Snapshot::take(), own_signals());
            let tick = libc::timeval { tv_sec: 0, tv_usec: 150 };
            let never = libc::timeval { tv_sec: 0, tv_usec: 0 };
            // SAFETY: setitimer reads one timer.
            let every = |tick| unsafe {
                let timer = libc::itimerval { it_interval: tick, it_value: tick };
                assert_eq!(libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut()), 0);
            };
            every(tick);
            for round in 0..rounds(200) {
                let output = sh("echo out; echo err >&2; exit 3").run_with(&without_guard()).expect("runs");
                let found = (output.code(), &*output.stdout, &*output.stderr, output.drain);
                assert_eq!(found, (Some(3), &b"out\n"[..], &b"err\n"[..], Drain::Eof), "round {round}");
            }
            every(never);
            assert!(CAUGHT.load(Ordering::Relaxed) > 0);
            assert_eq!(own_signals(), before.1);
            leaks::assert_unchanged(&before.0);
        });
    });
}

#[test]
fn the_program_has_the_callers_mask() {
    isolated!(|| {
        warmed_up(|| {
            handle(libc::SIGUSR1);
            // SAFETY: sigemptyset initialises the set before another call reads it.
            unsafe {
                libc::signal(libc::SIGHUP, libc::SIG_IGN);
                let mut blocked: libc::sigset_t = std::mem::zeroed();
                libc::sigemptyset(&raw mut blocked);
                libc::sigaddset(&raw mut blocked, libc::SIGUSR2);
                assert_eq!(libc::pthread_sigmask(libc::SIG_SETMASK, &raw const blocked, std::ptr::null_mut()), 0);
            }
            let mut cat = Command::new("cat");
            cat.arg("/proc/self/status");
            let ran = cat.run_with(&without_guard()).expect("runs");
            let interruptible = cat.run_interruptible(&without_guard(), || false).expect("runs");
            let mut child = cat.stdout(spawnfd::Stdio::Piped).spawn().expect("starts");
            let text = std::io::read_to_string(child.stdout.take().expect("piped")).expect("own pipe");
            child.wait().expect("own child");
            assert_eq!(signals(&String::from_utf8_lossy(&ran.stdout)), signals(&text));
            assert_eq!(signals(&String::from_utf8_lossy(&interruptible.stdout)), signals(&text));
        });
    });
}

/// Returns the error of a spawn that waits for exec, as text.
fn spawn_error(command: &mut Command<'_>) -> String {
    format!("{:?}", command.spawn().expect_err("fails"))
}

#[test]
fn errors_equal_those_of_spawn() {
    isolated!(|| {
        warmed_up(|| {
            common::pin_to_one_cpu();
            let directory = scratch();
            let garbage = directory.path().join("garbage");
            std::fs::write(&garbage, b"\x7fELF, but not much of it").expect("own directory");
            std::fs::set_permissions(&garbage, std::fs::Permissions::from_mode(0o755)).expect("own file");
            let pinned = directory.path().join("pinned");
            executable(&pinned, exits_with(7));
            let template = Template::open(&pinned).expect("a template");
            let cache = TemplateCache::new(4);
            let mut before = None;
            for round in 0..rounds(100) {
                let mut nowhere = Command::new("/bin/true");
                nowhere.current_dir("/nonexistent");
                let mut broken = Command::new(&garbage);
                for command in [&mut nowhere, &mut broken] {
                    let error = command.run_with(&without_guard()).expect_err("fails");
                    assert_eq!(format!("{error:?}"), spawn_error(command), "round {round}");
                    assert!(!has_children(), "round {round}");
                }
                leaks::assert_unchanged(before.get_or_insert_with(Snapshot::take));
            }
            assert_eq!(template.command().run_with(&without_guard()).expect("runs").code(), Some(7));
            assert_eq!(cache.command(&pinned).run_with(&without_guard()).expect("runs").code(), Some(7));
            std::fs::remove_file(&pinned).expect("own file");
            let error = template.command().run_with(&without_guard()).expect_err("fails");
            assert_eq!((error.kind(), format!("{error:?}")), (ErrorKind::Stale, spawn_error(&mut template.command())));
            let error = cache.command(&pinned).run_with(&without_guard()).expect_err("fails");
            assert_eq!(format!("{error:?}"), spawn_error(&mut cache.command(&pinned)));
            executable(&pinned, exits_with(8));
            assert_eq!(cache.command(&pinned).run_with(&without_guard()).expect("runs").code(), Some(8));
            assert!(!has_children());
        });
    });
}

/// If the interrupt callback forks, the forked process must not keep the program's ends of the
/// pipes open.
#[test]
fn a_fork_during_a_run_keeps_no_pipe_open() {
    isolated!(|| {
        warmed_up(|| {
            handle(libc::SIGUSR1);
            let mut copies = Vec::new();
            let (theirs, mut ours) = std::io::pipe().expect("a pipe");
            // SAFETY: getpid takes no arguments and changes nothing.
            let script = format!("kill -USR1 {}; read forked <&3; echo out", unsafe { libc::getpid() });
            let output = sh(&script).descriptor(theirs, 3).run_interruptible(&without_guard(), || {
                if INTERRUPTED.swap(false, Ordering::AcqRel) {
                    // SAFETY: the forked child only sleeps until the parent kills it.
                    copies.push(unsafe { libc::fork() });
                    while copies.last() == Some(&0) {
                        std::thread::park();
                    }
                    ours.write_all(b"\n").expect("the script has the other end");
                }
                false
            });
            for copy in &copies {
                // SAFETY: the calls take integers, and `copy` is a child of this process.
                unsafe {
                    libc::kill(*copy, libc::SIGKILL);
                    libc::waitpid(*copy, std::ptr::null_mut(), 0);
                }
            }
            let output = output.expect("runs");
            assert_eq!((&*output.stdout, output.drain), (&b"out\n"[..], Drain::Eof));
            assert_eq!(copies.len(), 1);
        });
    });
}

#[test]
fn a_timeout_ends_stopped_and_silent_programs() {
    isolated!(|| {
        warmed_up(|| {
            let run = without_guard().grace(Duration::from_millis(20));
            for script in ["kill -STOP $$", "exec sleep 60", "exec >&- 2>&-; exec sleep 60", "sleep 60 & exit 0"] {
                let left = script.ends_with('0') && script.contains('&') && !script.contains('>');
                let timeout = if left { Duration::from_secs(60) } else { Duration::from_millis(50) };
                let output = sh(script).run_with(&run.clone().timeout(timeout)).expect("runs");
                assert_eq!(output.stop, if left { Stop::Exited } else { Stop::Timeout }, "{script}");
                assert_eq!(output.leftovers.len(), usize::from(left), "{script}");
            }
            assert!(!has_children());
        });
    });
}

/// The child starts in the caller's descriptor table, and finds the run's terminal or cgroup there.
#[test]
fn terminals_and_cgroups_of_a_run_reach_its_child() {
    isolated!(|| {
        let mut runs = vec![without_guard().terminal(TerminalSize::default())];
        if Tree::prepare(TreeControl::Cgroup).is_ok() {
            runs.push(Run::new().tree(TreeControl::Cgroup));
            runs.push(Run::new().limits(Limits::new().cpu_time(Duration::from_secs(60))));
        } else {
            skip("no cgroup can be made");
        }
        for (run, has_clone3) in runs.iter().flat_map(|run| [(run, true), (run, false)]) {
            common::in_single_threaded_fork(|| {
                if !has_clone3 {
                    confine::deny(&[("clone3", libc::ENOSYS)]).expect("confined");
                }
                assert_eq!(sh("exit 0").run_with(&without_guard()).expect("runs").code(), Some(0));
                for _ in 0..rounds(40) {
                    let output = sh("echo here").run_with(run).expect("runs");
                    assert_eq!(output.stdout_text().trim_end(), "here");
                }
            });
        }
    });
}
