// SPDX-License-Identifier: MIT OR Apache-2.0
//! Confinements x the library's services x which thread comes first. The engine (the thread that
//! runs jobs), the reaper thread and the guard (the process that kills trees of a dead owner) act
//! with the authority of the thread that they serve.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::sync::Barrier;
use std::time::Duration;

use spawnfd::job::{Fate, Stop};
use spawnfd::tree::TreeControl;
use spawnfd::{Command, Job, Run};
use spawnfd_tests::copy::{fork, wait_for};
use spawnfd_tests::{isolated, skip};

use crate::common::tree::{
    become_subreaper, fork_owner, guards_of, is_alive, kill, next_pid, wait_until, wait_until_gone,
};
use crate::confinements::{CONFINEMENTS, ThreadConfinement};

/// A program that outlasts every limit in this file.
fn sleep() -> Command<'static> {
    let mut command = Command::new("/bin/sleep");
    command.arg("1000");
    command
}

fn guarded() -> Run {
    Run::new().tree(TreeControl::Guard)
}

fn start(run: &Run) -> Job {
    sleep().start(run).unwrap_or_else(|error| panic!("{error}"))
}

/// Asserts that engine, reaper and guard serve the calling thread.
#[track_caller]
pub fn assert_served(who: &str) {
    let a_moment = Duration::from_millis(50);
    let ended = |job: &Job, stop: Stop| {
        let output = job.wait().unwrap_or_else(|error| panic!("{who}: {error}"));
        assert_eq!(output.stop, stop, "{who}: {output:?}");
        assert!(output.status.is_some_and(|status| status.signal().is_some()), "{who}: {output:?}");
    };
    for run in [Run::new(), guarded()] {
        ended(&start(&run.clone().timeout(a_moment).grace(a_moment)), Stop::Timeout);
        let job = start(&run);
        job.stop(Duration::ZERO);
        ended(&job, Stop::Cancelled);
    }
    let child = sleep();
    let child = child.spawn().unwrap_or_else(|error| panic!("{who}: {error}"));
    let pid = child.id();
    child.kill().unwrap_or_else(|error| panic!("{who}: {error}"));
    drop(child);
    wait_until(&format!("{who}: a dropped child is reaped"), || !Path::new(&format!("/proc/{pid}")).exists());
}

/// Asserts that the library does not kill programs that the calling thread may not signal, and that
/// their runs still end. Returns the pids of the surviving programs.
#[track_caller]
fn assert_not_killed_without_permission(confinement: &ThreadConfinement) -> Vec<u32> {
    let a_moment = Duration::from_millis(50);
    let runs = [Run::new(), guarded()].map(|run| run.timeout(a_moment).grace(a_moment));
    let jobs: Vec<Job> = runs.iter().map(start).collect();
    let outputs = jobs.iter().map(|job| job.wait().unwrap_or_else(|error| panic!("{}: {error}", confinement.name)));
    for output in outputs {
        assert_eq!((output.stop, output.status), (Stop::Timeout, None), "{}: {output:?}", confinement.name);
        assert_eq!(output.leftovers[0].fate, Fate::NotPermitted, "{}: {output:?}", confinement.name);
    }
    jobs.iter().map(Job::id).inspect(|pid| assert!(is_alive(*pid as i32), "{}: {pid}", confinement.name)).collect()
}

/// Starts a confined thread that calls `uses`. While that thread exists, calls `others` in the
/// calling thread. Returns `false` if the thread cannot be confined.
fn beside(confinement: &ThreadConfinement, uses: impl FnOnce() -> Vec<Job> + Send, others: impl FnOnce()) -> bool {
    let (ready, done) = (Barrier::new(2), Barrier::new(2));
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let confined = (confinement.apply)();
            // While a job runs, the library keeps the engine thread and the guard running.
            let jobs = if confined { uses() } else { Vec::new() };
            ready.wait();
            done.wait();
            for job in jobs {
                job.detach();
            }
            confined
        });
        ready.wait();
        others();
        done.wait();
        thread.join().expect("the thread's assertions hold")
    })
}

/// Reads the ids, filters and capabilities of a thread or process from its status file. The result
/// leaves out capabilities outside the bounding set, because exec drops them.
fn authority_of(status: impl AsRef<Path>) -> (Vec<String>, u64) {
    let status = fs::read_to_string(status).expect("/proc");
    let named = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
    let set = |name| u64::from_str_radix(named(name).expect("it exists"), 16).expect("hexadecimal");
    let rest = ["Uid", "Gid", "Seccomp", "Seccomp_filters"].map(|name| named(name).unwrap_or_default().to_owned());
    (rest.into(), set("CapEff") & set("CapBnd"))
}

/// Kills the programs that a confined thread has started. An unconfined thread calls this.
fn end_all(jobs: &[u32]) {
    jobs.iter().for_each(|&pid| kill(pid as i32, libc::SIGKILL));
}

fn for_each_confinement(first: bool, test: fn(&ThreadConfinement, bool)) {
    for confinement in CONFINEMENTS {
        let copy = fork(|| test(confinement, first));
        wait_for(copy);
    }
}

/// Asserts that the library serves an unconfined thread while a confined thread exists. It serves
/// the confined thread too, if that thread may signal its own programs.
fn threads_are_served(confinement: &ThreadConfinement, first: bool) {
    if !first {
        assert_served("the other thread, before");
    }
    let pids = std::sync::Mutex::new(Vec::new());
    let uses = || {
        if !confinement.can_start_threads {
            return Vec::new();
        }
        if confinement.can_signal {
            assert_served(confinement.name);
        } else {
            pids.lock().expect("no panic").extend(assert_not_killed_without_permission(confinement));
        }
        let jobs = vec![start(&Run::new()), start(&guarded())];
        pids.lock().expect("no panic").extend(jobs.iter().map(Job::id));
        jobs
    };
    let confined = beside(confinement, uses, || {
        assert_served("the other thread");
        end_all(&pids.lock().expect("no panic"));
    });
    if !confined {
        skip(&format!("{}: refused here", confinement.name));
    }
}

/// Kills the owner of two trees. The tree of its unconfined thread ends, whichever thread has
/// started the first guard.
fn tree_ends_with_owner(confinement: &ThreadConfinement, first: bool) {
    become_subreaper();
    let (owner, mut report) = fork_owner(|tell| {
        let earlier = (!first).then(|| start(&guarded()));
        let mut job = None;
        let pids = std::sync::Mutex::new(Vec::new());
        let uses = || {
            let jobs: Vec<Job> = confinement.can_start_threads.then(|| start(&guarded())).into_iter().collect();
            pids.lock().expect("no panic").extend(jobs.iter().map(Job::id));
            jobs
        };
        beside(confinement, uses, || {
            job = Some(start(&guarded()));
            // If the confined thread may not signal, neither may its guard. The test then kills the
            // thread's program.
            tell(pids.lock().expect("no panic").first().map_or(0, |&pid| pid as i32));
        });
        tell(job.as_ref().expect("started").id() as i32);
        tell(earlier.as_ref().map_or(0, |job| job.id() as i32));
        (earlier, job)
    });
    let [confined, job, earlier] = [(); 3].map(|()| next_pid(&mut report));
    kill(owner, libc::SIGKILL);
    wait_until_gone(&[job]);
    if earlier != 0 {
        wait_until_gone(&[earlier]);
    }
    if confined != 0 {
        if confinement.can_signal {
            wait_until_gone(&[confined]);
        }
        kill(confined, libc::SIGKILL);
    }
}

/// A guard has the authority of the thread that has started it, although exec can add or drop
/// capabilities.
fn guard_has_authority_of_its_thread(confinement: &ThreadConfinement, _: bool) {
    let started = std::thread::scope(|scope| {
        let body = || {
            if !(confinement.apply)() || !confinement.can_start_threads {
                return None;
            }
            let job = start(&guarded());
            let guards = guards_of(std::process::id() as i32);
            assert_eq!(guards.len(), 1, "{}", confinement.name);
            assert_eq!(
                authority_of(format!("/proc/{}/status", guards[0])),
                authority_of("/proc/thread-self/status"),
                "{}",
                confinement.name
            );
            let pid = job.id();
            job.detach();
            Some(pid)
        };
        scope.spawn(body).join().expect("the thread's assertions hold")
    });
    // If the thread may not signal, neither may its guard. The test therefore kills the program.
    end_all(started.as_slice());
}

macro_rules! tests {
    ($($name:ident: $test:ident, $first:literal;)*) => {$(
        #[test]
        fn $name() {
            isolated!(|| {
                become_subreaper();
                for_each_confinement($first, $test);
            });
        }
    )*};
}

tests! {
    a_confined_thread_comes_first: threads_are_served, true;
    a_confined_thread_comes_second: threads_are_served, false;
    a_confined_thread_starts_the_first_guard: tree_ends_with_owner, true;
    a_confined_thread_starts_the_second_guard: tree_ends_with_owner, false;
    a_guard_has_the_authority_of_its_thread: guard_has_authority_of_its_thread, true;
}
