// SPDX-License-Identifier: MIT OR Apache-2.0
//! Signals in every phase of a spawn: a handler of the caller never runs in a child, waits go on, and nobody is killed by
//! being forgotten.

use crate::common;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::time::Duration;

use crate::common::{Launcher, Refused, code, eventually, fifo, next_child, rounds, state};
use spawnfd::{Command, Errno, OpenHow, Stage, Stdio, Template};
use spawnfd_tests::leaks::{self, Snapshot};
use spawnfd_tests::{State, isolated, scratch};

static PARENT: AtomicI32 = AtomicI32::new(0);
static HERE: AtomicU64 = AtomicU64::new(0);
static ELSEWHERE: AtomicU64 = AtomicU64::new(0);

/// Counts where it runs. A child that shares this memory would count here, too.
extern "C" fn handler(_: libc::c_int) {
    // SAFETY: a system call without arguments, past libc.
    let pid = unsafe { libc::syscall(libc::SYS_getpid) } as i32;
    let counter = if pid == PARENT.load(Ordering::Relaxed) { &HERE } else { &ELSEWHERE };
    counter.fetch_add(1, Ordering::Relaxed);
}

fn handle(signal: i32, restart: bool) {
    // SAFETY: the handler only counts.
    unsafe {
        let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed().assume_init();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = if restart { libc::SA_RESTART } else { 0 };
        assert_eq!(libc::sigaction(signal, &raw const action, std::ptr::null_mut()), 0);
    }
}

/// By default these do nothing, so that a program started under the storm survives it.
const HARMLESS: [i32; 3] = [libc::SIGURG, libc::SIGWINCH, libc::SIGCONT];

/// Sends signals to this process group, children in the making included, while `body` runs.
fn storm(signals: &[i32], toggled: bool, body: impl FnOnce()) {
    PARENT.store(std::process::id() as i32, Ordering::Relaxed);
    for (place, &signal) in signals.iter().enumerate() {
        handle(signal, place % 2 == 0);
    }
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut round = 0_usize;
            while !over.load(Ordering::Relaxed) {
                // SAFETY: to the group of this isolated test, of which the runner is no member.
                unsafe { libc::kill(0, signals[round % signals.len()]) };
                round += 1;
                // While handlers come and go, one signal now and then finds more gaps than many at once.
                let pause = if toggled { round.wrapping_mul(0x9e37_79b9) % 2_000 } else { 0 };
                (0..pause).for_each(|_| std::hint::spin_loop());
            }
        });
        if toggled {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    for &signal in signals {
                        // SAFETY: by default the signal does nothing.
                        unsafe { libc::signal(signal, libc::SIG_DFL) };
                        handle(signal, true);
                    }
                }
            });
        }
        let before = HERE.load(Ordering::Relaxed);
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            eventually("the storm takes place", || HERE.load(Ordering::Relaxed) > before);
            body();
        }));
        over.store(true, Ordering::Relaxed);
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    // Without clone3 a handler younger than 10 ms has a window of two system calls: docs/adr/0003-handlers-without-clone3.md.
    let allowed = u64::from(toggled && !spawnfd_tests::has_syscall("clone3"));
    assert!(ELSEWHERE.load(Ordering::Relaxed) <= allowed, "handlers of the caller ran in children: {ELSEWHERE:?}");
}

fn weather(launcher: Launcher, toggled: bool) {
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
    assert_eq!(State::of_self().signal_mask.known(), Some(&vec![]), "the caller's mask is as it was");
}

const HARMLESS_NAMES: [&str; 3] = ["SIGURG", "SIGWINCH", "SIGCONT"];

macro_rules! storms {
    ($($name:ident: $launcher:ident $toggled:expr;)*) => {$(
        #[test]
        fn $name() {
            isolated!(limit: Duration::from_secs(600), || weather(Launcher::$launcher, $toggled));
        }
    )*};
}

storms! {
    a_storm_by_clone3: Clone3 false;
    a_storm_by_clone: Clone false;
    a_storm_by_own_memory: OwnMemory false;
    a_storm_by_own_memory_clone: OwnMemoryClone false;
    a_storm_detached: Detached false;
    a_storm_detached_by_clone: DetachedClone false;
    handlers_come_and_go_detached: Detached true;
    handlers_come_and_go_detached_by_clone: DetachedClone true;
    handlers_come_and_go_by_clone3: Clone3 true;
    handlers_come_and_go_by_clone: Clone true;
    handlers_come_and_go_by_own_memory_clone: OwnMemoryClone true;
}

#[test]
fn a_deadly_signal_kills_only_children() {
    isolated!(limit: Duration::from_secs(600), || {
        for launcher in [Launcher::Clone3, Launcher::OwnMemory, Launcher::Detached] {
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
            println!("{launcher:?}: {ran} ran, {killed} killed, {early} before they were the program");
            common::assert_unchanged_except_sockets(&before);
        }
    });
}

#[test]
fn killed_while_it_is_made() {
    isolated!(|| {
        let directory = scratch();
        let gate = fifo(directory.path(), "gate");
        for launcher in [Launcher::Clone3, Launcher::OwnMemory, Launcher::ByDescriptor, Launcher::Detached] {
            common::warm_up(launcher);
            let before = Snapshot::take();
            // Without clone3 all other signals are blocked until the end.
            let signals = &[libc::SIGKILL, libc::SIGTERM][..if spawnfd_tests::has_syscall("clone3") { 2 } else { 1 }];
            for &signal in signals {
                let marker = directory.path().join(signal.to_string());
                let _ = fs::remove_file(&marker);
                let mut command = launcher.command("/bin/true");
                command.open(&marker, OpenHow::CREATE, 8).open(&gate, OpenHow::READ, 9);
                let killer = std::thread::spawn(move || {
                    let child = next_child();
                    // Until it stands in the open: before, it may still share what is not its own to lose.
                    while !marker.exists() {
                        std::thread::yield_now();
                    }
                    // SAFETY: the child of this isolated test.
                    unsafe { libc::kill(child, signal) };
                });
                let error = command.refused("killed");
                assert_eq!((error.stage(), error.errno()), (Stage::Killed, Errno::ECANCELED), "{error}");
                assert!(error.call().contains(&format!(", signal: {signal} (SIG")), "{error}");
                killer.join().expect("ends");
            }
            common::assert_unchanged_except_sockets(&before);
        }
    });
}

#[test]
fn waits_go_on_through_signals() {
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

/// Whether a thread of the library's is there.
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
            assert_eq!(common::children().len(), 20, "all run on");
            drop(reader);
            drop(writer);
            eventually("reaped", || common::children().is_empty() && !has_thread("spawnfd-reaper"));
            assert_eq!(fs::read_to_string(done).expect("written").lines().count(), 20, "none was killed");
        }
        // Ended before it is dropped: no thread at all.
        for _ in 0..50 {
            let child = Command::new("/bin/true").spawn().expect("starts");
            let mut pidfd = [rustix_poll(&child)];
            // SAFETY: one entry, without a time limit.
            unsafe { libc::poll(pidfd.as_mut_ptr(), 1, -1) };
            drop(child);
            assert!(!has_thread("spawnfd-reaper"));
        }
        drop(directory);
        leaks::assert_unchanged(&before);
    });
}

/// The numbers of this process's eventfds, which are the library's.
fn eventfds() -> Vec<i32> {
    let fds = Snapshot::take().fds;
    fds.into_iter().filter(|(_, fd)| fd.target.contains("eventfd")).map(|(number, _)| number).collect()
}

fn reader_of(input: &std::io::PipeReader) -> spawnfd::Child {
    Command::new("/bin/cat").stdin(input).stdout(Stdio::Null).spawn().expect("starts")
}

#[test]
fn what_the_application_has_at_the_reaper_s_number_stays() {
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
            assert_eq!(fs::metadata(&path).expect("there").len(), 0, "nothing is written to it");
            for number in &numbers {
                assert_eq!(fs::read_link(format!("/proc/self/fd/{number}")).expect("still open"), path);
            }
        };
        let (second, second_writer) = common::pipe();
        drop(reader_of(&second));
        stays();
        // The one that comes later ends first.
        drop((second, second_writer));
        eventually("the second is reaped", || common::children().len() == 1);
        stays();
        drop((reader, writer));
        eventually("all over", || common::children().is_empty() && !has_thread("spawnfd-reaper"));
        stays();
        drop(theirs);
    });
}

#[test]
fn a_child_is_reaped_that_is_dropped_without_a_descriptor_left() {
    isolated!(|| {
        let (first, second) = (common::pipe(), common::pipe());
        let (reads_first, reads_second) = (reader_of(&first.0), reader_of(&second.0));
        let mut fillers = Vec::new();
        while let Ok(filler) = fs::File::open("/dev/null") {
            fillers.push(filler);
        }
        drop(reads_first);
        drop(fillers);
        eventually("it does not wait for the next one", || has_thread("spawnfd-reaper"));
        // Nothing can wake it; it sees this one all the same.
        drop(reads_second);
        drop(second);
        eventually("the second is reaped", || common::children().len() == 1);
        drop(first);
        eventually("reaped", || common::children().is_empty() && !has_thread("spawnfd-reaper"));
    });
}

fn rustix_poll(child: &spawnfd::Child) -> libc::pollfd {
    use std::os::fd::{AsFd, AsRawFd};
    libc::pollfd { fd: child.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 }
}

#[test]
fn threads_of_the_library_take_no_signals() {
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
                let status = fs::read_to_string(thread.path().join("status")).expect("there");
                let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).expect("a line").trim();
                // Not SIGKILL and SIGSTOP, and not the two that glibc takes for itself.
                let never = 1 << 8 | 1 << 18 | 3 << 31;
                assert_eq!(u64::from_str_radix(blocked, 16).expect("hexadecimal") | never, u64::MAX, "{comm}");
            }
        }
        handle.cancel();
        drop(writer);
        eventually("all over", || common::children().is_empty() && !has_thread("spawnfd-reaper"));
    });
}

#[test]
fn setuid_reaches_the_threads_of_the_library() {
    isolated!(|| {
        if !spawnfd_tests::require_root() {
            return;
        }
        let (reader, writer) = common::pipe();
        drop(Command::new("/bin/cat").stdin(&reader).stdout(Stdio::Null).spawn().expect("starts"));
        let mut command = Command::new("/bin/cat");
        let handle = command.stdin(&reader).run_then(&spawnfd::Run::new(), drop).expect("starts");
        let warm = crate::common::zygote::zygote();
        for name in ["spawnfd-reaper", "spawnfd-engine", "spawnfd-warm"] {
            eventually("the thread is named", || has_thread(name));
        }
        // libc waits until every thread has changed its own.
        // SAFETY: integers.
        assert_eq!(unsafe { [libc::seteuid(54_321), libc::seteuid(0)] }, [0, 0]);
        handle.cancel();
        drop((writer, warm));
        eventually("all over", || common::children().is_empty() && !has_thread("spawnfd-reaper"));
    });
}

#[test]
fn writing_to_a_program_that_does_not_read_kills_nobody() {
    isolated!(|| {
        // A host in C, or Python's without its own handling, has SIGPIPE as the kernel gives it.
        // SAFETY: the default.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
        let run = spawnfd::Run::new().input(vec![0; 1 << 20]);
        for _ in 0..20 {
            let output = Command::new("/bin/true").run_with(&run).expect("runs");
            assert!(output.ok());
        }
        assert_eq!(State::of_self().pending.known(), Some(&vec![]), "nothing left to come");
    });
}

#[test]
fn a_template_survives_its_thread() {
    isolated!(|| {
        let template = std::thread::spawn(|| Template::open("/bin/true").expect("a template")).join().expect("ends");
        assert_eq!(code(template.command().spawn()), Ok(0));
        let mut null = File::options().write(true).open("/dev/null").expect("there");
        null.write_all(b"x").expect("takes all");
    });
}
