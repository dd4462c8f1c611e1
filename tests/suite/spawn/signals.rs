// SPDX-License-Identifier: MIT OR Apache-2.0
//! Signals in every phase of a spawn. A handler of the caller never runs in a child, waits go on
//! after a signal, and dropping a handle kills no process.

use crate::common;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::time::Duration;

use crate::common::{Launcher, Refused, code, eventually, fifo, next_child, rounds, state, while_repeating};
use spawnfd::command::OpenHow;
use spawnfd::error::{Errno, Stage};
use spawnfd::{Command, Stdio, Template};
use spawnfd_tests::leaks::{self, Snapshot};
use spawnfd_tests::{State, isolated, scratch};

static PARENT: AtomicI32 = AtomicI32::new(0);
static IN_PARENT: AtomicU64 = AtomicU64::new(0);
static IN_CHILDREN: AtomicU64 = AtomicU64::new(0);

/// Counts the calls of the handler, by the process in which it runs. A child that shares this
/// memory also counts here.
extern "C" fn handler(_: libc::c_int) {
    // SAFETY: getpid takes no arguments. This is a raw system call, because libc may cache the pid.
    let pid = unsafe { libc::syscall(libc::SYS_getpid) } as i32;
    let counter = if pid == PARENT.load(Ordering::Relaxed) { &IN_PARENT } else { &IN_CHILDREN };
    counter.fetch_add(1, Ordering::Relaxed);
}

fn handle(signal: i32, restart: bool) {
    // SAFETY: the handler only counts its calls.
    unsafe {
        let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed().assume_init();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = if restart { libc::SA_RESTART } else { 0 };
        assert_eq!(libc::sigaction(signal, &raw const action, std::ptr::null_mut()), 0);
    }
}

/// The default action of these signals does nothing, so a program that gets one lives on.
const HARMLESS: [i32; 3] = [libc::SIGURG, libc::SIGWINCH, libc::SIGCONT];

/// Sends signals to this process group while `body` runs. Children before exec get the signals too.
fn storm(signals: &[i32], toggled: bool, body: impl FnOnce()) {
    PARENT.store(std::process::id() as i32, Ordering::Relaxed);
    for (place, &signal) in signals.iter().enumerate() {
        handle(signal, place % 2 == 0);
    }
    let mut round = 0_usize;
    let send = || {
        // SAFETY: kill takes integers. The process group belongs to this isolated test and does not contain the test
        // runner.
        unsafe { libc::kill(0, signals[round % signals.len()]) };
        round += 1;
        // While another thread sets and resets the handlers, signals at random intervals hit more gaps than a stream
        // of signals.
        let pause = if toggled { round.wrapping_mul(0x9e37_79b9) % 2_000 } else { 0 };
        (0..pause).for_each(|_| std::hint::spin_loop());
    };
    let toggle = || {
        for &signal in signals {
            // SAFETY: SIG_DFL installs no handler, and the signal's default action does nothing.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
            handle(signal, true);
        }
    };
    let body = || {
        let before = IN_PARENT.load(Ordering::Relaxed);
        eventually("the handler runs", || IN_PARENT.load(Ordering::Relaxed) > before);
        body();
    };
    while_repeating(send, || if toggled { while_repeating(toggle, body) } else { body() });
    assert_eq!(IN_CHILDREN.load(Ordering::Relaxed), 0, "no handler of the caller runs in a child");
}

fn check_storm(launcher: Launcher, toggled: bool) {
    launcher.enter();
    let template = launcher.template("/bin/true");
    storm(&HARMLESS, toggled, || {
        for round in 0..rounds(3000) {
            let mut command = template.command();
            launcher.prepare(&mut command);
            let found = code(command.spawn());
            assert_eq!(found, Ok(0), "round {round}");
        }
        let child = state(&mut launcher.oracle());
        assert_eq!(child.signal_mask.known(), Some(&vec![]));
        assert_eq!(child.sigactions.keys().filter(|name| HARMLESS_NAMES.contains(&name.as_str())).count(), 0);
    });
    assert_eq!(State::of_self().signal_mask.known(), Some(&vec![]), "the caller's mask is restored");
}

const HARMLESS_NAMES: [&str; 3] = ["SIGURG", "SIGWINCH", "SIGCONT"];

macro_rules! storms {
    ($($name:ident: $launcher:ident $toggled:expr;)*) => {$(
        #[test]
        fn $name() {
            isolated!(limit: Duration::from_secs(600), || check_storm(Launcher::$launcher, $toggled));
        }
    )*};
}

storms! {
    spawns_survive_a_signal_storm_by_clone3: Clone3 false;
    spawns_survive_a_signal_storm_by_clone: Clone false;
    spawns_survive_a_signal_storm_with_separate_mm: SeparateMm false;
    spawns_survive_a_signal_storm_with_separate_mm_by_clone: SeparateMmClone false;
    spawns_survive_a_signal_storm_asynchronous: Asynchronous false;
    spawns_survive_a_signal_storm_detached_by_clone: AsynchronousClone false;
    spawns_survive_changing_handlers_asynchronous: Asynchronous true;
    spawns_survive_changing_handlers_detached_by_clone: AsynchronousClone true;
    spawns_survive_changing_handlers_by_clone3: Clone3 true;
    spawns_survive_changing_handlers_by_clone: Clone true;
    spawns_survive_changing_handlers_with_separate_mm_by_clone: SeparateMmClone true;
}

#[test]
fn a_deadly_signal_kills_only_children() {
    isolated!(limit: Duration::from_secs(600), || {
        for launcher in [Launcher::Clone3, Launcher::SeparateMm, Launcher::Asynchronous] {
            common::warm_up(launcher);
            let before = Snapshot::take();
            let (mut ran, mut killed, mut early) = (0, 0, 0);
            storm(&[libc::SIGUSR1], false, || {
                for _ in 0..rounds(1000) {
                    match launcher.command("/bin/true").spawn().and_then(|mut child| child.wait()) {
                        Ok(status) => match status.signal() {
                            Some(libc::SIGUSR1) => killed += 1,
                            None => ran += 1,
                            other => panic!("{other:?}"),
                        },
                        Err(error) => {
                            assert_eq!((error.stage(), error.errno()), (Stage::Killed, Errno::ECANCELED), "{error}");
                            early += 1;
                        }
                    }
                }
            });
            println!("{launcher:?}: {ran} ran, {killed} killed, {early} killed before exec");
            common::assert_unchanged_except_sockets(&before);
        }
    });
}

#[test]
fn a_kill_before_exec_is_an_error() {
    isolated!(|| {
        let directory = scratch();
        let gate = fifo(directory.path(), "gate");
        for launcher in [Launcher::Clone3, Launcher::SeparateMm, Launcher::ByDescriptor, Launcher::Asynchronous] {
            common::warm_up(launcher);
            let before = Snapshot::take();
            // Without clone3 the child blocks all signals except SIGKILL until exec.
            let signals = &[libc::SIGKILL, libc::SIGTERM][..if spawnfd_tests::has_syscall("clone3") { 2 } else { 1 }];
            for &signal in signals {
                let marker = directory.path().join(signal.to_string());
                let _ = fs::remove_file(&marker);
                let mut command = launcher.command("/bin/true");
                command.open(&marker, OpenHow::CREATE, 8).open(&gate, OpenHow::READ, 9);
                let killer = std::thread::spawn(move || {
                    let child = next_child();
                    // The thread waits until the child blocks in open. Before that, the child may
                    // share the caller's descriptor table.
                    while !marker.exists() {
                        std::thread::yield_now();
                    }
                    // SAFETY: kill takes integers, and `child` is a child of this isolated test.
                    unsafe { libc::kill(child, signal) };
                });
                let error = command.refused("killed");
                assert_eq!((error.stage(), error.errno()), (Stage::Killed, Errno::ECANCELED), "{error}");
                assert!(error.call().contains(&format!(", signal: {signal} (SIG")), "{error}");
                killer.join().expect("no panic");
            }
            common::assert_unchanged_except_sockets(&before);
        }
    });
}

#[test]
fn waits_continue_after_signals() {
    isolated!(|| {
        storm(&HARMLESS[..2], false, || {
            for _ in 0..rounds(200) {
                let mut child = Command::new("/bin/cat").stdin(Stdio::Piped).spawn().expect("starts");
                assert_eq!(child.wait_timeout(Duration::from_millis(2)).expect("own child"), None);
                assert!(child.wait().expect("own child").success());
                let output = Command::new("/bin/echo").arg("x").run().expect("runs");
                assert_eq!(output.stdout, b"x\n");
            }
        });
    });
}

/// Returns whether this process has a thread of this name.
fn has_thread(name: &str) -> bool {
    let threads = fs::read_dir("/proc/self/task").expect("own directory").flatten();
    threads.flat_map(|thread| fs::read_to_string(thread.path().join("comm"))).any(|comm| comm.trim() == name)
}

#[test]
fn dropped_children_are_reaped_and_not_killed() {
    isolated!(|| {
        common::drop_a_running_child();
        common::warm_up(Launcher::Clone3);
        common::wait_success(Command::new("/bin/sh").stdin(Stdio::Null).spawn().expect("starts"));
        let directory = scratch();
        let before = Snapshot::take();
        for round in 0..5 {
            let (reader, writer) = common::pipe();
            let done = directory.path().join(round.to_string());
            for number in 0..20 {
                let script = format!("read x; echo done >> {}/{round}", directory.path().display());
                let mut command = Command::new("/bin/sh");
                command.args(["-c", &script]).stdin(&reader);
                let child = command.spawn().expect("starts");
                assert!(number % 2 == 1 || !child.id().to_string().is_empty());
                drop(child);
            }
            eventually("the thread is named", || has_thread("spawnfd-reaper"));
            assert_eq!(common::children().len(), 20, "all children still run");
            drop(reader);
            drop(writer);
            eventually("reaped", || common::children().is_empty() && !has_thread("spawnfd-reaper"));
            assert_eq!(fs::read_to_string(done).expect("written").lines().count(), 20, "no child was killed");
        }
        // If a child has ended before its drop, the library needs no reaper thread.
        for _ in 0..50 {
            let child = Command::new("/bin/true").spawn().expect("starts");
            let mut pidfd = [poll_entry(&child)];
            // SAFETY: poll reads and writes one entry, which this function owns.
            unsafe { libc::poll(pidfd.as_mut_ptr(), 1, -1) };
            drop(child);
            assert!(!has_thread("spawnfd-reaper"));
        }
        drop(directory);
        leaks::assert_unchanged(&before);
    });
}

/// Returns the numbers of this process's eventfds. All of them belong to the library.
fn eventfds() -> Vec<i32> {
    let fds = Snapshot::take().fds;
    fds.into_iter().filter(|(_, fd)| fd.target.contains("eventfd")).map(|(number, _)| number).collect()
}

fn reader_of(input: &std::io::PipeReader) -> spawnfd::Child {
    Command::new("/bin/cat").stdin(input).stdout(Stdio::Null).spawn().expect("starts")
}

#[test]
fn a_reused_reaper_number_is_left_alone() {
    isolated!(|| {
        let directory = scratch();
        let path = directory.path().join("theirs");
        let file = fs::File::create(&path).expect("own directory");
        let (reader, writer) = common::pipe();
        drop(reader_of(&reader));
        let numbers = eventfds();
        assert!(!numbers.is_empty());
        let theirs: Vec<_> = numbers.iter().map(|&number| common::at_number(&file, number)).collect();
        let stays = || {
            assert_eq!(fs::metadata(&path).expect("it exists").len(), 0, "the library wrote to the application's file");
            for number in &numbers {
                assert_eq!(fs::read_link(format!("/proc/self/fd/{number}")).expect("still open"), path);
            }
        };
        let (second, second_writer) = common::pipe();
        drop(reader_of(&second));
        stays();
        // This child was dropped last and ends first.
        drop((second, second_writer));
        eventually("the second is reaped", || common::children().len() == 1);
        stays();
        drop((reader, writer));
        eventually("all children are reaped", || common::children().is_empty() && !has_thread("spawnfd-reaper"));
        stays();
        drop(theirs);
    });
}

#[test]
fn a_child_dropped_without_free_descriptors_is_reaped() {
    isolated!(|| {
        let (first, second) = (common::pipe(), common::pipe());
        let (reads_first, reads_second) = (reader_of(&first.0), reader_of(&second.0));
        let mut fillers = Vec::new();
        while let Ok(filler) = fs::File::open("/dev/null") {
            fillers.push(filler);
        }
        drop(reads_first);
        drop(fillers);
        eventually("the reaper starts for the first child", || has_thread("spawnfd-reaper"));
        // The reaper has no eventfd, so no thread can wake it. It still finds the second child.
        drop(reads_second);
        drop(second);
        eventually("the second is reaped", || common::children().len() == 1);
        drop(first);
        eventually("all children are reaped", || common::children().is_empty() && !has_thread("spawnfd-reaper"));
    });
}

fn poll_entry(child: &spawnfd::Child) -> libc::pollfd {
    use std::os::fd::{AsFd, AsRawFd};
    libc::pollfd { fd: child.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 }
}

#[test]
fn library_threads_block_all_signals() {
    isolated!(|| {
        let (reader, writer) = common::pipe();
        drop(Command::new("/bin/cat").stdin(&reader).stdout(Stdio::Null).spawn().expect("starts"));
        let mut command = Command::new("/bin/cat");
        let handle = command.stdin(&reader).run_then(&spawnfd::Run::new(), drop).expect("starts");
        for name in ["spawnfd-reaper", "spawnfd-engine"] {
            eventually("the thread is named", || has_thread(name));
        }
        let threads = fs::read_dir("/proc/self/task").expect("own directory").flatten();
        for thread in threads {
            let comm = fs::read_to_string(thread.path().join("comm")).unwrap_or_default();
            if comm.starts_with("spawnfd-") {
                let status = fs::read_to_string(thread.path().join("status")).expect("it exists");
                let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).expect("a line").trim();
                // The mask lacks SIGKILL and SIGSTOP, which cannot be blocked, and the two signals
                // that glibc reserves.
                let never = 1 << 8 | 1 << 18 | 3 << 31;
                assert_eq!(u64::from_str_radix(blocked, 16).expect("hexadecimal") | never, u64::MAX, "{comm}");
            }
        }
        handle.cancel();
        drop(writer);
        eventually("all children are reaped", || common::children().is_empty() && !has_thread("spawnfd-reaper"));
    });
}

#[test]
fn seteuid_works_with_library_threads() {
    isolated!(root: || {
        let (reader, writer) = common::pipe();
        drop(Command::new("/bin/cat").stdin(&reader).stdout(Stdio::Null).spawn().expect("starts"));
        let mut command = Command::new("/bin/cat");
        let handle = command.stdin(&reader).run_then(&spawnfd::Run::new(), drop).expect("starts");
        let warm = crate::common::zygote::zygote();
        for name in ["spawnfd-reaper", "spawnfd-engine", "spawnfd-warm"] {
            eventually("the thread is named", || has_thread(name));
        }
        // For seteuid, libc waits until every thread has changed its ids.
        // SAFETY: seteuid takes an integer.
        assert_eq!(unsafe { [libc::seteuid(54_321), libc::seteuid(0)] }, [0, 0]);
        handle.cancel();
        drop((writer, warm));
        eventually("all children are reaped", || common::children().is_empty() && !has_thread("spawnfd-reaper"));
    });
}

#[test]
fn writing_unread_input_does_not_kill_the_host() {
    isolated!(|| {
        // In a host in C, or in Python without its own handling, SIGPIPE has its default action.
        // SAFETY: SIG_DFL installs no handler.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
        let run = spawnfd::Run::new().input(vec![0; 1 << 20]);
        for _ in 0..20 {
            let output = Command::new("/bin/true").run_with(&run).expect("runs");
            assert!(output.ok());
        }
        assert_eq!(State::of_self().pending.known(), Some(&vec![]), "no signal is pending");
    });
}

#[test]
fn a_template_survives_its_thread() {
    isolated!(|| {
        let template =
            std::thread::spawn(|| Template::open("/bin/true").expect("a template")).join().expect("no panic");
        assert_eq!(code(template.command().spawn()), Ok(0));
        let mut null = File::options().write(true).open("/dev/null").expect("it exists");
        null.write_all(b"x").expect("takes all");
    });
}
