// SPDX-License-Identifier: MIT OR Apache-2.0
//! Several threads start jobs of all kinds, and end them in all ways. At the end nothing is left,
//! and memory has not grown.
//!
//! SPAWNFD_SOAK sets the number of jobs. Without it, the test runs for a few seconds.

mod common;

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::job::{future, sh, started};
use common::{Launcher, eventually};
use spawnfd::error::Errno;
use spawnfd::internal;
use spawnfd::job::{Event, EventOptions, JobOutput, Spill, SpillEnd, Stop, TerminalSize};
use spawnfd::tree::TreeControl;
use spawnfd::{Command, Job, Output, Run, Template};
use spawnfd_tests::isolated;
use spawnfd_tests::leaks::{self, Snapshot};
use tokio::io::AsyncReadExt;

const THREADS: usize = 4;

/// The least number of jobs. It is large enough for every kind of job in every thread.
const FEWEST: usize = 600;

/// The condition that ends the test.
#[derive(Clone, Copy)]
enum Enough {
    Jobs(usize),
    Time(Duration),
}

impl Enough {
    fn asked() -> Enough {
        let jobs = std::env::var("SPAWNFD_SOAK").ok().and_then(|jobs| jobs.parse().ok());
        let full = std::env::var_os("SPAWNFD_FULL").is_some();
        jobs.map_or(Enough::Time(Duration::from_secs(if full { 30 } else { 6 })), Enough::Jobs)
    }

    fn reached(self, begun: Instant, jobs: usize) -> bool {
        match self {
            Enough::Jobs(all) => jobs >= all,
            Enough::Time(all) => begun.elapsed() >= all && jobs >= FEWEST,
        }
    }
}

/// A random number generator (xorshift64) with a fixed seed, so that each thread starts the same
/// jobs in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// The data of one worker thread.
struct Worker<'a> {
    random: Random,
    template: &'a Template,
    /// Jobs that the test may end from any thread.
    victims: &'a Mutex<Vec<Arc<Job>>>,
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(future)
}

#[track_caller]
fn assert_ended(output: &Output, stops: &[Stop]) {
    assert!(stops.contains(&output.stop) && output.signal().is_some(), "{output:?}");
}

impl Worker<'_> {
    fn sleeper(&self) -> Command<'static> {
        let mut command = Command::new("/bin/sleep");
        command.arg("1000");
        command
    }

    fn one(&mut self) {
        if self.random.below(4) == 0 {
            self.end_a_victim();
        }
        match self.random.below(24) {
            0..6 => assert!(self.template.command().run().expect("runs").ok()),
            6..9 => self.captured(),
            9 | 10 => self.called_back(),
            11 | 12 => self.conversation(),
            13 => self.lines(),
            14 => self.future(),
            15 => self.terminal(),
            16 => self.spilled(),
            17 | 18 => self.timed_out(),
            19..21 => self.ended_by_others(),
            21 => drop(self.sleeper().start(&Run::new()).expect("starts")),
            22 => drop(self.template.command().spawn().expect("starts")),
            _ => {
                let error = Command::new("/nowhere").start(&Run::new()).expect_err("no program");
                assert_eq!(error.errno(), Errno::ENOENT);
            }
        }
    }

    /// Ends a job in one of several ways. Another thread may be waiting for this job.
    fn end_a_victim(&mut self) {
        let job = {
            let mut victims = self.victims.lock().expect("no panic");
            let number = self.random.below(victims.len().max(1) as u64) as usize;
            if victims.is_empty() { return } else { victims.swap_remove(number) }
        };
        match self.random.below(3) {
            0 => job.stop(Duration::from_millis(self.random.below(5))),
            1 => job.signal(9, true).expect("a signal"),
            _ => job.signal(15, false).expect("a signal"),
        }
    }

    fn ended_by_others(&mut self) {
        let job = Arc::new(self.sleeper().start(&Run::new()).expect("starts"));
        self.victims.lock().expect("no panic").push(job.clone());
        let patience = Duration::from_micros(self.random.below(20_000));
        if let Ok(None) = job.wait_timeout(patience) {
            job.stop(Duration::ZERO);
        }
        // The job has this result even if another thread has ended it before exec.
        assert_ended(&job.wait().expect("a result"), &[Stop::Cancelled, Stop::Exited]);
    }

    fn captured(&mut self) {
        let code = self.random.below(100) as i32;
        let output = sh(&format!("echo out {code}; echo err >&2; exit {code}")).run().expect("runs");
        assert_eq!((output.code(), output.stderr_text().trim()), (Some(code), "err"));
        assert_eq!(output.stdout_text(), format!("out {code}\n"));
    }

    fn called_back(&mut self) {
        let (sender, receiver) = channel();
        let done = move |output| sender.send(output).expect("the receiver is alive");
        let run = Run::new().input(vec![b'x'; 70_000]).keep(100_000, 0);
        let handle = Command::new("/bin/cat").run_then(&run, done).expect("starts");
        let cancelled = self.random.below(3) == 0;
        if cancelled {
            handle.cancel();
        }
        let output = receiver.recv().expect("a message").expect("runs");
        assert!(cancelled || output.ok() && output.stdout.len() == 70_000, "{output:?}");
    }

    fn conversation(&mut self) {
        let job = sh("read x; echo got $x").start(&Run::new().writable(100).window(100)).expect("starts");
        assert_eq!(job.write(b"this\n").expect("stdin is open"), 5);
        let output = job.wait().expect("a job result");
        assert_eq!((&output.stdout_text()[..], &job.read(0).text()[..]), ("got this\n", "got this\n"));
    }

    fn lines(&mut self) {
        let options = EventOptions::new().max_bytes(200).lines(100);
        let (job, mut events) =
            Command::new("/usr/bin/seq").arg("500").start_events(&Run::new(), options).expect("starts");
        let stop_at = self.random.below(700);
        let mut count = 0;
        while let Some(Event::Line { bytes, .. }) = events.next_timeout(Duration::from_secs(100)) {
            count += 1;
            assert_eq!(bytes, count.to_string().as_bytes());
            if count == stop_at {
                // This return drops the job and the event receiver.
                return;
            }
        }
        assert!(count == 500 && job.wait().expect("a job result").ok());
    }

    fn future(&mut self) {
        let command = self.template.command();
        let run = match self.random.below(3) {
            0 => return drop(started(command, &Run::new())),
            1 => return drop(future(command, &Run::new())),
            _ => future(command, &Run::new()),
        };
        assert!(block_on(run).expect("runs").ok());
        let (_job, events) = sh("echo text").start_events(&Run::new(), EventOptions::default()).expect("starts");
        let mut text = String::new();
        block_on(JobOutput::new(events).read_to_string(&mut text)).expect("own job");
        assert_eq!(text, "text\n");
    }

    fn terminal(&mut self) {
        let run = Run::new().terminal(TerminalSize::default()).writable(100);
        let job = sh("stty -echo; read x; echo got $x").start(&run).expect("starts");
        job.write(b"this\n").expect("stdin is open");
        assert!(job.wait().expect("a job result").stdout_text().contains("got this\r\n"));
    }

    fn spilled(&mut self) {
        let run = Run::new().keep(100, 100).spill(Spill::new(50_000));
        let output = Command::new("/usr/bin/seq").arg("20000").run_with(&run).expect("runs");
        let spill = output.spill.as_ref().expect("a spill file");
        assert_eq!((output.ok(), spill.end, spill.bytes), (true, SpillEnd::Capped, 50_000));
    }

    fn timed_out(&mut self) {
        let want = if self.random.below(2) == 0 { TreeControl::Group } else { TreeControl::Auto };
        let timeout = Duration::from_millis(self.random.below(10));
        let run = Run::new().timeout(timeout).grace(Duration::from_secs(100)).tree(want);
        let deaf = self.random.below(4) == 0;
        let output = if deaf {
            sh("trap '' TERM; sleep 1000 & wait").run_with(&run.grace(Duration::from_millis(5)))
        } else {
            self.sleeper().run_with(&run)
        };
        assert_ended(&output.expect("runs"), &[Stop::Timeout]);
    }
}

/// Returns the resident memory of this process, in KiB.
fn rss() -> f64 {
    let status = fs::read_to_string("/proc/self/status").expect("own status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("listed");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// Returns the growth of memory over all samples, in KiB, by linear regression.
fn growth(samples: &[f64]) -> f64 {
    let count = samples.len() as f64;
    let (middle, mean) = ((count - 1.0) / 2.0, samples.iter().sum::<f64>() / count);
    let (mut up, mut across) = (0.0, 0.0);
    for (number, sample) in samples.iter().enumerate() {
        up += (number as f64 - middle) * (sample - mean);
        across += (number as f64 - middle).powi(2);
    }
    up / across * count
}

/// Removes the descriptors that the library reopens as needed: sockets for starts, pidfds, and the
/// guard's table. Returns the rest, and the number of removed descriptors.
fn without_renewed(mut snapshot: Snapshot) -> (Snapshot, usize) {
    let all = snapshot.fds.len();
    let renewed = ["socket:", "anon_inode:[pidfd]", "pidfd:", "/memfd:spawnfd-trees"];
    snapshot.fds.retain(|_, fd| !renewed.iter().any(|target| fd.target.starts_with(target)));
    let left = snapshot.fds.len();
    (snapshot, all - left)
}

/// Lists other processes that this test has started, directly or indirectly. Their environment
/// contains this test's temporary directory.
fn descendants() -> Vec<String> {
    let variable_of_test = format!("TMPDIR={}", std::env::temp_dir().display());
    let entries = fs::read_dir("/proc").expect("proc").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let ours = [std::process::id(), std::os::unix::process::parent_id()];
    pids.filter(|pid| !ours.contains(pid))
        .filter(|pid| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|variable| variable == variable_of_test.as_bytes())
        })
        .map(|pid| format!("{pid} {}", fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default()))
        .collect()
}

#[test]
fn jobs_of_all_kinds_leave_nothing_behind() {
    let enough = Enough::asked();
    let limit = match enough {
        Enough::Time(time) => time + Duration::from_secs(600),
        // Each job gets ten times the time that it takes in a debug build.
        Enough::Jobs(jobs) => Duration::from_secs(300) + Duration::from_millis(18) * jobs as u32,
    };
    isolated!(limit: limit, || run(enough));
}

fn run(enough: Enough) {
    let template = Template::open("/bin/true").expect("a template");
    let victims = Mutex::new(Vec::new());
    common::warm_up(Launcher::Clone3);
    for program in ["/bin/sh", "/bin/cat", "/bin/sleep", "/usr/bin/seq"] {
        // After this run, the process-wide cache has the template of the program.
        let _ = Command::new(program).run().expect("runs");
    }
    internal::end_idle_threads();
    let before = Snapshot::take();
    let (begun, jobs, working) = (Instant::now(), AtomicUsize::new(0), AtomicUsize::new(THREADS));
    let mut samples = Vec::new();
    std::thread::scope(|scope| {
        for number in 0..THREADS {
            let (template, victims, jobs, working) = (&template, &victims, &jobs, &working);
            scope.spawn(move || {
                let mut worker = Worker { random: Random(0x9e37_79b9 + number as u64), template, victims };
                let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    while !enough.reached(begun, jobs.fetch_add(1, Ordering::Relaxed)) {
                        worker.one();
                    }
                }));
                working.fetch_sub(1, Ordering::Relaxed);
                done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            });
        }
        while working.load(Ordering::Relaxed) == THREADS {
            std::thread::sleep(Duration::from_millis(100));
            samples.push((jobs.load(Ordering::Relaxed), rss()));
        }
    });
    let (elapsed, jobs) = (begun.elapsed(), jobs.into_inner() - THREADS);
    drop(victims);
    eventually("all children are reaped, and the library's threads have ended", || {
        let now = Snapshot::take();
        now.children.is_empty() && now.threads == before.threads
    });
    internal::end_idle_threads();
    let ((before, _), (after, renewed)) = (without_renewed(before), without_renewed(Snapshot::take()));
    leaks::assert_same(&before, &after);
    assert!(renewed <= 2 * 2 * THREADS + 2 * 32 + 4, "{renewed} descriptors, more than concurrent starts need");
    eventually("no descendant is left", || descendants().is_empty());
    // The samples of the first third are left out, because the library and the allocator allocate
    // memory on first use.
    let steady: Vec<f64> = samples.into_iter().filter(|(done, _)| *done >= jobs / 3).map(|(_, rss)| rss).collect();
    let (first, last, growth) = (steady[0], steady[steady.len() - 1], growth(&steady));
    println!(
        "\nREPORT soak: {jobs} jobs in {:.1} s, {:.0} a second; memory {first} KiB, then {last} KiB, slope {growth:+.0} KiB",
        elapsed.as_secs_f64(),
        jobs as f64 / elapsed.as_secs_f64(),
    );
    assert!(growth < 2048.0, "memory grows: {steady:?}");
}
