// SPDX-License-Identifier: MIT OR Apache-2.0
//! Thousands of spawns from many threads, while other threads open, duplicate and close descriptors
//! and write executables. No child has a descriptor that it was not given, no wrong program runs,
//! and nothing is left behind.

use crate::common;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::common::{Launcher, code, executable, exits_with, fifo, rounds};
use spawnfd::command::OpenHow;
use spawnfd::error::Errno;
use spawnfd::template::TemplateCache;
use spawnfd::{Stdio, Template};
use spawnfd_tests::leaks::{self, Snapshot};
use spawnfd_tests::{isolated, program, scratch};

const SPAWNS: usize = 20_000;
const SPAWNERS: usize = 8;

/// The number of threads that spawn only at the beginning. Thanks to them, the library's pool has
/// more entries than the test ever uses at once.
const HELPERS: usize = 12;
const ALL: usize = SPAWNERS + 2 + HELPERS;

/// Blocks many spawns at once in an action. The library then opens all descriptors that it keeps,
/// at the lowest numbers.
struct WarmUp {
    gate: PathBuf,
    /// The standard input of each spawn. A spawn without a descriptor to pass needs no socket, so
    /// the library would open its sockets only after the warm-up, at higher numbers.
    input: File,
    inside: Barrier,
    template: Template,
}

impl WarmUp {
    /// Prepares for `threads` blocked spawns.
    fn new(directory: &Path, threads: usize) -> WarmUp {
        let template = Template::open("/bin/true").expect("a template");
        let input = File::open("/dev/null").expect("it exists");
        WarmUp { gate: fifo(directory, "gate"), input, inside: Barrier::new(threads + 1), template }
    }

    fn block_in_a_spawn(&self) {
        // In a thread with a seccomp filter, the first spawn finds out how the library can pass a
        // descriptor. It may start children that fail, and `release` must not count these.
        assert_eq!(code(self.template.command().stdin(&self.input).spawn()), Ok(0));
        self.inside.wait();
        let mut command = self.template.command();
        command.stdin(&self.input).open(&self.gate, OpenHow::READ, 9);
        assert_eq!(code(command.spawn()), Ok(0));
        self.inside.wait();
        // This wait ends once no low descriptor number is free.
        self.inside.wait();
    }

    /// Releases all spawns at once. Opens descriptors at every free number below the library's, and
    /// returns the opened descriptors.
    fn release(&self, threads: usize) -> Vec<OwnedFd> {
        self.inside.wait();
        while common::children().len() < threads {
            std::thread::yield_now();
        }
        // Each child blocks in the open of a FIFO until a process opens it for writing.
        let writer = fs::OpenOptions::new().write(true).open(&self.gate).expect("readers are there");
        self.inside.wait();
        drop(writer);
        let highest = common::library_descriptors().last().copied().unwrap_or(3);
        // The kernel copies a descriptor table in steps of 64 (sane_fdtable_size in fs/file.c).
        // Only after the copy does it close the descriptors that the child must not have.
        let whole_words = (highest / 64 + 1) * 64;
        let mut fillers: Vec<OwnedFd> = Vec::new();
        while fillers.last().is_none_or(|last| last.as_raw_fd() < whole_words) {
            fillers.push(File::open("/dev/null").expect("it exists").into());
        }
        self.inside.wait();
        fillers
    }
}

#[derive(Default)]
struct Tally {
    spawned: AtomicUsize,
    written: AtomicUsize,
    busy: AtomicUsize,
    attacks: AtomicUsize,
    over: AtomicBool,
    /// True if a thread of the test replaces the library's descriptors.
    attacked: bool,
}

/// Keeps a thread, and the library's resources for this thread, until the test is over.
fn wait_until_over(tally: &Tally) {
    while !tally.over.load(Ordering::Relaxed) {
        std::thread::park();
    }
}

/// Starts `count` programs that print their descriptors. If there is an attacker thread, goes on
/// until its first attack.
fn spawner(launcher: Launcher, template: &Template, count: usize, tally: &Tally) {
    let mut left = count;
    while left > 0 || tally.attacked && tally.attacks.load(Ordering::Relaxed) == 0 {
        left = left.saturating_sub(1);
        let mut command = launcher.command_from(template);
        let mut child = command.stdin(Stdio::Null).stdout(Stdio::Piped).spawn().expect("starts");
        let mut stdout = child.stdout.take().expect("piped");
        let mut text = String::new();
        stdout.read_to_string(&mut text).expect("own pipe");
        assert!(child.wait().expect("own child").success());
        let lines: Vec<Vec<u64>> =
            text.lines().map(|line| line.split(' ').map(|n| n.parse().expect("a number")).collect()).collect();
        let numbers: BTreeSet<u64> = lines.iter().map(|line| line[0]).collect();
        assert_eq!(numbers, BTreeSet::from([0, 1, 2]), "{text}");
        let own = File::from(OwnedFd::from(stdout)).metadata().expect("own pipe");
        assert!(lines.contains(&vec![1, own.dev(), own.ino()]), "not this child's pipe: {text}");
        tally.spawned.fetch_add(1, Ordering::Relaxed);
    }
}

/// Opens, duplicates and closes descriptors until the test is over. Some have no close-on-exec
/// flag.
fn opener(low: i32, tally: &Tally) {
    let file = File::open("/etc/passwd").expect("it exists");
    while !tally.over.load(Ordering::Relaxed) {
        let pipe = common::pipe();
        let opened = File::open("/dev/zero").expect("it exists");
        for number in low..low + 40 {
            // SAFETY: only this thread uses these numbers, and it closes them below.
            unsafe {
                libc::dup2(file.as_raw_fd(), number);
            }
        }
        // SAFETY: the new descriptor belongs to the returned value.
        let foreign = unsafe { OwnedFd::from_raw_fd(libc::fcntl(opened.as_raw_fd(), libc::F_DUPFD, 3)) };
        for number in low..low + 40 {
            // SAFETY: only this thread uses these numbers.
            unsafe { libc::close(number) };
        }
        drop((pipe, opened, foreign));
    }
}

/// Writes new programs and runs each at once. If any child holds a copy of the open file, exec
/// fails with ETXTBSY.
fn writer(directory: &Path, name: &str, tally: &Tally) {
    let tools = TemplateCache::new(4);
    let mut round = 0;
    while !tally.over.load(Ordering::Relaxed) {
        round += 1;
        let path = directory.join(format!("{name}-{round}"));
        let expected = (round % 250) as u8;
        executable(&path, exits_with(expected));
        match code(tools.command(&path).spawn()) {
            Ok(found) => assert_eq!(found, i32::from(expected), "a wrong program"),
            Err(error) if error.errno() == Errno::ETXTBSY => drop(tally.busy.fetch_add(1, Ordering::Relaxed)),
            Err(error) => panic!("{error}"),
        }
        fs::remove_file(path).expect("own file");
        tally.written.fetch_add(1, Ordering::Relaxed);
    }
}

/// Threads that the test can stop at any point, even inside the library between two steps of a
/// spawn.
#[derive(Default)]
struct Freezer(Mutex<Vec<i32>>);

/// A flag that tells the threads to stop, and the number of threads that have stopped.
static FREEZE: (AtomicBool, AtomicUsize) = (AtomicBool::new(false), AtomicUsize::new(0));

extern "C" fn freeze(_: libc::c_int) {
    FREEZE.1.fetch_add(1, Ordering::SeqCst);
    while FREEZE.0.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
    FREEZE.1.fetch_sub(1, Ordering::SeqCst);
}

impl Freezer {
    /// Runs `body` in the calling thread. Meanwhile `frozen` can stop this thread.
    fn with(&self, body: impl FnOnce()) {
        struct Member<'a>(&'a Freezer, i32);
        impl Drop for Member<'_> {
            fn drop(&mut self) {
                self.0.threads().retain(|other| *other != self.1);
            }
        }
        // SAFETY: gettid takes no arguments and changes nothing.
        let member = Member(self, unsafe { libc::gettid() });
        self.threads().push(member.1);
        body();
    }

    fn threads(&self) -> MutexGuard<'_, Vec<i32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `body` while all threads are stopped. `body` must not allocate, because a stopped
    /// thread may hold the allocator's lock.
    fn frozen<T>(&self, body: impl FnOnce() -> T) -> T {
        // While this thread holds the lock, no other thread can end.
        let threads = self.threads();
        FREEZE.0.store(true, Ordering::SeqCst);
        for thread in &*threads {
            // SAFETY: the signal goes to an existing thread of this process, and has a handler.
            assert_eq!(unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), *thread, libc::SIGUSR1) }, 0);
        }
        while FREEZE.1.load(Ordering::SeqCst) < threads.len() {
            std::thread::yield_now();
        }
        let answer = body();
        FREEZE.0.store(false, Ordering::SeqCst);
        // Before the next call of `frozen`, all threads must have left the handler.
        while FREEZE.1.load(Ordering::SeqCst) > 0 {
            std::thread::yield_now();
        }
        answer
    }
}

/// Repeatedly replaces one of the library's descriptors by `file`, while all threads are stopped.
/// The file stays open at that number, which belongs to the application from then on.
fn attacker(file: &File, freezer: &Freezer, tally: &Tally) -> Vec<i32> {
    // SAFETY: the handler only uses atomics and yields.
    unsafe { libc::signal(libc::SIGUSR1, freeze as *const () as libc::sighandler_t) };
    let mut taken = Vec::new();
    while !tally.over.load(Ordering::Relaxed) {
        let since = tally.spawned.load(Ordering::Relaxed);
        let kept = common::library_descriptors();
        let Some(&number) = kept.get(since % kept.len().max(1)) else { continue };
        let Some(library) = file_at(number).filter(|_| common::library_descriptors().contains(&number)) else {
            continue;
        };
        let attacked = freezer.frozen(|| {
            let still = file_at(number) == Some(library);
            // SAFETY: dup2 takes integers. The number belongs to the library, as the test requires.
            still && unsafe { libc::dup2(file.as_raw_fd(), number) } == number
        });
        if !attacked {
            continue;
        }
        taken.push(number);
        tally.attacks.fetch_add(1, Ordering::Relaxed);
        // The library detects the replacement at its next use of the descriptor.
        while tally.spawned.load(Ordering::Relaxed) < since + 100 && !tally.over.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
    }
    taken
}

/// Returns device and inode of the file at a descriptor number.
fn file_at(number: i32) -> Option<(u64, u64)> {
    let mut found = std::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: fstat fills in a struct for which all zeros are valid.
    unsafe { (libc::fstat(number, found.as_mut_ptr()) == 0).then(|| found.assume_init()) }
        .map(|found| (found.st_dev, found.st_ino))
}

fn everything_at_once(launcher: Launcher, attacked: bool) -> Tally {
    let directory = scratch();
    let template = Template::open(program("spawnfd-fds")).expect("a template");
    let file = File::open("/etc/passwd").expect("it exists");
    common::warm_up(Launcher::Clone3);
    let before = Snapshot::take();
    let (tally, count) = (Tally { attacked, ..Tally::default() }, rounds(SPAWNS) / SPAWNERS);
    let freezer = Freezer::default();
    let warm = WarmUp::new(directory.path(), ALL);
    std::thread::scope(|scope| {
        let (tally, freezer, warm, template, directory) = (&tally, &freezer, &warm, &template, directory.path());
        let after_warm_up = |body: Box<dyn FnOnce() + Send>| {
            scope.spawn(move || {
                warm.block_in_a_spawn();
                freezer.with(body);
            })
        };
        let spawners: Vec<_> =
            (0..SPAWNERS).map(|_| after_warm_up(Box::new(move || spawner(launcher, template, count, tally)))).collect();
        let writers = ["a", "b"].map(|name| after_warm_up(Box::new(move || writer(directory, name, tally))));
        let helpers: Vec<_> = (0..HELPERS).map(|_| after_warm_up(Box::new(move || wait_until_over(tally)))).collect();
        let fillers = warm.release(ALL);
        let openers = [2000, 3000].map(|low| scope.spawn(move || freezer.with(|| opener(low, tally))));
        let attacker = attacked.then(|| scope.spawn(|| attacker(&file, freezer, tally)));
        let outcomes: Vec<_> = spawners.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        tally.over.store(true, Ordering::Relaxed);
        helpers.iter().for_each(|thread| thread.thread().unpark());
        let others = openers.into_iter().chain(writers).chain(helpers);
        others.for_each(|thread| thread.join().expect("the thread's assertions hold"));
        outcomes.into_iter().for_each(|outcome| outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        let taken: BTreeSet<i32> =
            attacker.map(|thread| thread.join().expect("no panic")).into_iter().flatten().collect();
        check_what_is_left(&file, &taken);
        if !attacked {
            let filled = fillers.last().map_or(0, AsRawFd::as_raw_fd);
            let above: Vec<i32> = common::library_descriptors().into_iter().filter(|&number| number > filled).collect();
            assert!(above.is_empty(), "opened by the library after the warm-up: {above:?}, above {filled}");
        }
        drop(fillers);
    });
    drop(warm);
    let mut after = Snapshot::take();
    // The library may have replaced its own descriptors, so the comparison leaves them out.
    let foreign = |snapshot: &mut Snapshot| {
        snapshot.fds.retain(|_, fd| !(fd.target.starts_with("socket:") || fd.target.contains("pidfd")));
    };
    let ours = file.metadata().expect("open").ino();
    after.fds.retain(|number, fd| fd.inode != ours || *number == file.as_raw_fd());
    let mut before = before;
    foreign(&mut before);
    foreign(&mut after);
    after.threads.clear();
    before.threads.clear();
    leaks::assert_same(&before, &after);
    assert!(common::library_descriptors().len() <= 2 * 16 + 2 * ALL, "more descriptors than the pool needs");
    println!(
        "{} spawns, {} programs written and run, {} attacks, {} ETXTBSY",
        tally.spawned.load(Ordering::Relaxed),
        tally.written.load(Ordering::Relaxed),
        tally.attacks.load(Ordering::Relaxed),
        tally.busy.load(Ordering::Relaxed),
    );
    tally
}

/// Asserts that the library has not closed the files that the application has put at the library's
/// numbers.
fn check_what_is_left(file: &File, taken: &BTreeSet<i32>) {
    let ours = file.metadata().expect("open").ino();
    let after = Snapshot::take();
    let lost: Vec<&i32> =
        taken.iter().filter(|number| after.fds.get(number).is_none_or(|fd| fd.inode != ours)).collect();
    assert!(lost.is_empty(), "closed by the library: {lost:?}");
}

fn assert_no_leaks(launcher: Launcher) {
    launcher.enter();
    let tally = everything_at_once(launcher, false);
    assert_eq!(tally.busy.into_inner(), 0, "no foreign descriptor is below the library's sockets");
    assert!(tally.written.into_inner() > 0);
}

#[test]
fn nothing_leaks_by_clone3() {
    isolated!(limit: Duration::from_secs(1200), || assert_no_leaks(Launcher::Clone3));
}

#[test]
fn nothing_leaks_by_scm_rights() {
    isolated!(limit: Duration::from_secs(1200), || assert_no_leaks(Launcher::ScmRights));
}

#[test]
fn nothing_leaks_from_asynchronous_starts() {
    isolated!(limit: Duration::from_secs(1200), || {
        // The first spawns wait for exec, so that the library's sockets get low numbers.
        Launcher::ScmRights.enter();
        assert_no_leaks(Launcher::Asynchronous);
    });
}

#[test]
fn nothing_leaks_by_clone() {
    isolated!(limit: Duration::from_secs(1200), || assert_no_leaks(Launcher::Clone));
}

#[test]
fn nothing_leaks_from_a_copied_table() {
    isolated!(limit: Duration::from_secs(1200), || {
        Launcher::CopyTable.enter();
        // No program inherits a descriptor. But until exec, a child with a copied table holds the
        // descriptors of other threads. A program that another thread has just written may then
        // fail with ETXTBSY (adr/0001).
        everything_at_once(Launcher::CopyTable, false);
    });
}

#[test]
fn nothing_leaks_when_the_application_reuses_library_numbers() {
    isolated!(limit: Duration::from_secs(1200), || {
        assert!(everything_at_once(Launcher::Clone3, true).attacks.into_inner() > 0);
    });
}

#[test]
fn nothing_leaks_when_the_application_reuses_socket_numbers() {
    isolated!(limit: Duration::from_secs(1200), || {
        Launcher::ScmRights.enter();
        assert!(everything_at_once(Launcher::ScmRights, true).attacks.into_inner() > 0);
    });
}

/// Writes new programs and runs each at once, by the given launcher, or by the standard library if
/// there is none.
fn low_writer(launcher: Option<Launcher>, directory: &Path, name: usize, count: usize, tally: &Tally) {
    for round in 0..count {
        // The test only asks whether a program is ever busy (ETXTBSY).
        if tally.busy.load(Ordering::Relaxed) > 0 {
            return;
        }
        let path = directory.join(format!("{name}-{round}"));
        let expected = (round % 250) as u8;
        // The file stays open during this yield, so that another thread can create a child
        // meanwhile, even on one CPU.
        let file = fs::OpenOptions::new().write(true).create_new(true).mode(0o755).open(&path);
        let mut file = file.expect("own directory");
        file.write_all(&exits_with(expected)).expect("own file");
        std::thread::yield_now();
        drop(file);
        let outcome = match launcher {
            Some(launcher) => code(launcher.command(&path).spawn()).map_err(|error| error.errno().raw()),
            None => std::process::Command::new(&path)
                .status()
                .map(|status| status.code().unwrap_or(-1))
                .map_err(|error| error.raw_os_error().unwrap_or(0)),
        };
        match outcome {
            Ok(found) => assert_eq!(found, i32::from(expected), "a wrong program"),
            Err(libc::ETXTBSY) => drop(tally.busy.fetch_add(1, Ordering::Relaxed)),
            Err(errno) => panic!("{}", std::io::Error::from_raw_os_error(errno)),
        }
        fs::remove_file(path).expect("own file");
        tally.written.fetch_add(1, Ordering::Relaxed);
    }
}

/// Runs six threads that each write and run `count` programs, with all descriptors at low numbers.
/// Returns how many programs were busy (ETXTBSY).
fn busy_with_all_low(launcher: Option<Launcher>, count: usize) -> usize {
    let directory = scratch();
    let tally = Tally::default();
    std::thread::scope(|scope| {
        let (tally, directory) = (&tally, directory.path());
        let template = Template::open(program("spawnfd-fds")).expect("a template");
        scope.spawn(move || {
            while !tally.over.load(Ordering::Relaxed) {
                match launcher {
                    Some(launcher) => spawner(launcher, &template, 10, tally),
                    None => assert!(std::process::Command::new("/bin/true").status().expect("starts").success()),
                }
            }
        });
        let opener = scope.spawn(move || opener(2000, tally));
        let writers: Vec<_> =
            (0..6).map(|name| scope.spawn(move || low_writer(launcher, directory, name, count, tally))).collect();
        let outcomes: Vec<_> = writers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        tally.over.store(true, Ordering::Relaxed);
        outcomes.into_iter().for_each(|outcome| outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        opener.join().expect("no panic");
    });
    println!(
        "{launcher:?}: {} spawns, {} programs written and run, {} ETXTBSY",
        tally.spawned.load(Ordering::Relaxed),
        tally.written.load(Ordering::Relaxed),
        tally.busy.load(Ordering::Relaxed),
    );
    tally.busy.into_inner()
}

#[test]
fn zygote_children_never_hold_a_foreign_descriptor() {
    const ROUNDS: usize = 50;
    // Under a seccomp filter, a zygote serves several threads only if the process began with one
    // thread.
    isolated!(limit: Duration::from_secs(1200), || {
        common::in_single_threaded_fork(|| {
            // These files reserve twenty numbers below all descriptors of the library. The test
            // frees them later.
            let holes: Vec<File> = (0..20).map(|_| File::open("/dev/null").expect("it exists")).collect();
            Launcher::Zygote.enter();
            common::warm_up(Launcher::Zygote);
            drop(holes);
            let mut left = rounds(3000);
            while left > 0 {
                let before = Launcher::Zygote.cold_and_parked();
                let busy = busy_with_all_low(Some(Launcher::Zygote), ROUNDS);
                // On a slow machine the library may start a program without the zygote, or start
                // the zygote again. Both kinds of children may hold low-numbered descriptors.
                if Launcher::Zygote.cold_and_parked() == before {
                    assert_eq!(busy, 0);
                    left = left.saturating_sub(ROUNDS);
                }
            }
            Launcher::Zygote.assert_used();
            // This control shows that the test can detect the problem: children of the standard
            // library do hold such descriptors. Children of the clone launcher hardly ever do,
            // because they close them before exec.
            let begun = Instant::now();
            while busy_with_all_low(None, rounds(3000)) == 0 {
                assert!(begun.elapsed() < Duration::from_secs(600), "std never loses the race");
            }
        })
    });
}

#[test]
fn attributes_can_be_set_from_any_thread() {
    isolated!(limit: Duration::from_secs(600), || {
        let template = Template::open(program("spawnfd-fds")).expect("a template");
        let tally = Tally::default();
        std::thread::scope(|scope| {
            for thread in 0..SPAWNERS {
                let (template, tally) = (&template, &tally);
                scope.spawn(move || {
                    for round in 0..rounds(200) {
                        let mut command = template.command();
                        match (thread + round) % 4 {
                            0 => command.group_ids(u32::MAX, u32::MAX, u32::MAX),
                            1 => command.inherit_descriptors(true),
                            2 => command.setsid().umask(0o77).nice(5),
                            _ => command.chdir("/nowhere"),
                        };
                        let spawned = command.stdin(Stdio::Null).stdout(Stdio::Null).spawn();
                        match spawned {
                            Ok(child) => common::wait_success(child),
                            Err(error) => assert_eq!(error.errno(), Errno::ENOENT, "{error}"),
                        }
                        tally.spawned.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(common::children(), Vec::<i32>::new());
    });
}
