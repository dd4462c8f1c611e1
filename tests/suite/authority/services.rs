// SPDX-License-Identifier: MIT OR Apache-2.0
//! Confinements x what acts for callers x which thread comes first: engine, reaper and guard serve each thread with its own reach.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::sync::Barrier;
use std::time::Duration;

use spawnfd::tree::Want;
use spawnfd::{Command, Fate, Job, Run, Stop};
use spawnfd_tests::copy::{fork, wait_for};
use spawnfd_tests::{isolated, skip};

use crate::common::tree::{adopt_orphans, guards_of, kill, lives, next_pid, owner, until, until_gone};
use crate::confinements::{WAYS, Way};

/// For ever, compared with any limit here.
fn sleep() -> Command<'static> {
    let mut command = Command::new("/bin/sleep");
    command.arg("1000");
    command
}

fn guarded() -> Run {
    Run::new().tree(Want::Guard)
}

fn start(run: &Run) -> Job {
    sleep().start(run).unwrap_or_else(|error| panic!("{error}"))
}

/// All that acts for the calling thread does so.
#[track_caller]
pub fn is_served(who: &str) {
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
    let mut child = sleep();
    let child = child.spawn().unwrap_or_else(|error| panic!("{who}: {error}"));
    let pid = child.id();
    child.kill().unwrap_or_else(|error| panic!("{who}: {error}"));
    drop(child);
    until(&format!("{who}: a dropped child is reaped"), || !Path::new(&format!("/proc/{pid}")).exists());
}

/// The calling thread may not signal its programs, and nothing does it in its place; its runs end all the same.
#[track_caller]
fn is_not_served_beyond_its_reach(way: &Way) -> Vec<u32> {
    let a_moment = Duration::from_millis(50);
    let runs = [Run::new(), guarded()].map(|run| run.timeout(a_moment).grace(a_moment));
    let jobs: Vec<Job> = runs.iter().map(start).collect();
    let outputs = jobs.iter().map(|job| job.wait().unwrap_or_else(|error| panic!("{}: {error}", way.name)));
    for output in outputs {
        assert_eq!((output.stop, output.status), (Stop::Timeout, None), "{}: {output:?}", way.name);
        assert_eq!(output.leftovers[0].fate, Fate::NotPermitted, "{}: {output:?}", way.name);
    }
    jobs.iter().map(Job::id).inspect(|pid| assert!(lives(*pid as i32), "{}: {pid}", way.name)).collect()
}

/// Calls `others` in the calling thread while a thread that is confined, and `uses` the library, is there. `false`: it cannot be confined so.
fn beside(way: &Way, uses: impl FnOnce() -> Vec<Job> + Send, others: impl FnOnce()) -> bool {
    let (ready, done) = (Barrier::new(2), Barrier::new(2));
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let confined = (way.apply)();
            // Jobs keep engine and guard.
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
        thread.join().expect("its assertions hold")
    })
}

/// What a thread, or a process, may do to others, as /proc shows it. No exec leaves capabilities that the bounding set lacks.
fn power(status: impl AsRef<Path>) -> (Vec<String>, u64) {
    let status = fs::read_to_string(status).expect("/proc");
    let named = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
    let set = |name| u64::from_str_radix(named(name).expect("there"), 16).expect("hexadecimal");
    let rest = ["Uid", "Gid", "Seccomp", "Seccomp_filters"].map(|name| named(name).unwrap_or_default().to_owned());
    (rest.into(), set("CapEff") & set("CapBnd"))
}

/// The programs that a confined thread has started, to be ended in the end by the one that is not.
fn end_all(jobs: &[u32]) {
    jobs.iter().for_each(|&pid| kill(pid as i32, libc::SIGKILL));
}

fn each_way(first: bool, test: fn(&Way, bool)) {
    for way in WAYS {
        let copy = fork(|| test(way, first));
        wait_for(copy);
    }
}

/// A free thread is served while a confined one is; and the confined one, if it could do it itself.
fn served(way: &Way, first: bool) {
    if !first {
        is_served("the other thread, before");
    }
    let pids = std::sync::Mutex::new(Vec::new());
    let uses = || {
        if !way.can_start_threads {
            return Vec::new();
        }
        if way.can_signal {
            is_served(way.name);
        } else {
            pids.lock().expect("no panic").extend(is_not_served_beyond_its_reach(way));
        }
        let jobs = vec![start(&Run::new()), start(&guarded())];
        pids.lock().expect("no panic").extend(jobs.iter().map(Job::id));
        jobs
    };
    let confined = beside(way, uses, || {
        is_served("the other thread");
        end_all(&pids.lock().expect("no panic"));
    });
    if !confined {
        skip(&format!("{}: refused here", way.name));
    }
}

/// The owner is killed: the tree of a thread that is not confined ends, whichever thread the first guard was started by.
fn ended_with_owner(way: &Way, first: bool) {
    adopt_orphans();
    let (owner, mut report) = owner(|tell| {
        let earlier = (!first).then(|| start(&guarded()));
        let mut job = None;
        let pids = std::sync::Mutex::new(Vec::new());
        let uses = || {
            let jobs: Vec<Job> = way.can_start_threads.then(|| start(&guarded())).into_iter().collect();
            pids.lock().expect("no panic").extend(jobs.iter().map(Job::id));
            jobs
        };
        beside(way, uses, || {
            job = Some(start(&guarded()));
            // Jobs of a thread that may not signal are ended here, and not by its guard.
            tell(pids.lock().expect("no panic").first().map_or(0, |&pid| pid as i32));
        });
        tell(job.as_ref().expect("started").id() as i32);
        tell(earlier.as_ref().map_or(0, |job| job.id() as i32));
        (earlier, job)
    });
    let [confined, job, earlier] = [(); 3].map(|()| next_pid(&mut report));
    kill(owner, libc::SIGKILL);
    until_gone(&[job]);
    if earlier != 0 {
        until_gone(&[earlier]);
    }
    if confined != 0 {
        if way.can_signal {
            until_gone(&[confined]);
        }
        kill(confined, libc::SIGKILL);
    }
}

/// A guard has the power of the thread that had it started: an exec can add to it, and take from it.
fn guard_has_the_power_of_its_thread(way: &Way, _: bool) {
    let started = std::thread::scope(|scope| {
        let body = || {
            if !(way.apply)() || !way.can_start_threads {
                return None;
            }
            let job = start(&guarded());
            let guards = guards_of(std::process::id() as i32);
            assert_eq!(guards.len(), 1, "{}", way.name);
            assert_eq!(power(format!("/proc/{}/status", guards[0])), power("/proc/thread-self/status"), "{}", way.name);
            let pid = job.id();
            job.detach();
            Some(pid)
        };
        scope.spawn(body).join().expect("its assertions hold")
    });
    // The guard of a thread that may not signal could not.
    end_all(started.as_slice());
}

macro_rules! tests {
    ($($name:ident: $test:ident, $first:literal;)*) => {$(
        #[test]
        fn $name() {
            isolated!(|| {
                adopt_orphans();
                each_way($first, $test);
            });
        }
    )*};
}

tests! {
    a_confined_thread_comes_first: served, true;
    a_confined_thread_comes_second: served, false;
    the_first_guard_is_a_confined_thread_s: ended_with_owner, true;
    the_second_guard_is_a_confined_thread_s: ended_with_owner, false;
    a_guard_has_the_power_of_its_thread: guard_has_the_power_of_its_thread, true;
}
