// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the resources that a `Warm` uses (CPU time, memory, processes), of mode auto, and of explanations.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use spawnfd::child::Started;
use spawnfd::limits::Limiter;
use spawnfd::warm::{Mode, Park, WarmOptions};
use spawnfd::{Command, Warm};
use spawnfd_tests::isolated;

use crate::common::eventually;

const LONG: Duration = Duration::from_secs(60);

/// Starts a program, again after an answer that was late because the machine is busy.
fn start(warm: &Warm, program: &str) -> Started {
    let run = || Command::new(program).args(["-c", "exit 0"]).warm(warm).run().unwrap().check().unwrap().started;
    match run() {
        Started::Cold("slow") => {
            assert!(warm.fill(LONG));
            run()
        }
        started => started,
    }
}

/// A backlog in a limiter of this process, so that the machine counts as busy.
fn with_backlog<T>(test: impl FnOnce() -> T) -> T {
    let limiter = Limiter::new(0);
    let mut waiter = limiter.acquire_async();
    assert!(waiter.take().is_none());
    assert_eq!(limiter.waiting(), 1);
    test()
}

/// The share of the last 10 seconds, in percent, in which a task of this machine waited for a processor.
fn processor_pressure() -> f64 {
    let text = fs::read_to_string("/proc/pressure/cpu").unwrap_or_default();
    let value = text.split_once("avg10=").and_then(|(_, rest)| rest.split(' ').next());
    value.and_then(|value| value.parse().ok()).unwrap_or(0.0)
}

#[test]
fn a_busy_machine_gets_no_process_ahead() {
    isolated!(|| {
        let warm = Warm::new(WarmOptions::new()).unwrap();
        warm.add("sh", Park::new().depth(1)).unwrap();
        assert!(warm.fill(LONG));
        with_backlog(|| {
            assert_eq!(start(&warm, "sh"), Started::Reserve);
            sleep(Duration::from_millis(300));
            assert_eq!((start(&warm, "sh"), warm.stats().made), (Started::Cold("empty"), 1));
            // A caller of `fill` asks for processes now.
            assert!(warm.fill(LONG));
            assert_eq!((start(&warm, "sh"), warm.stats().made), (Started::Reserve, 2));
        });
        // Without a backlog, only other programs on this machine can keep the keeper from parking a process.
        let start = Instant::now();
        while warm.stats().parked == 0 {
            if start.elapsed() > Duration::from_secs(20) && processor_pressure() > 5.0 {
                return spawnfd_tests::skip("other programs keep this machine busy");
            }
            assert!(start.elapsed() < LONG, "the keeper parks a process once the machine has time");
            sleep(Duration::from_millis(2));
        }
    });
}

#[test]
fn a_busy_machine_gets_a_parent_but_no_forks_ahead() {
    isolated!(|| {
        with_backlog(|| {
            let warm = Warm::new(WarmOptions::new().mode(Mode::Fork)).unwrap();
            warm.add("sh", Park::new().depth(4)).unwrap();
            eventually("the keeper parks the parent", || warm.stats().parked == 1);
            sleep(Duration::from_millis(100));
            assert_eq!((start(&warm, "sh"), warm.stats().parked), (Started::Fork, 1));
        });
    });
}

#[test]
fn the_memory_limit_is_kept() {
    isolated!(|| {
        let warm = Warm::new(WarmOptions::new()).unwrap();
        warm.add("sh", Park::new().depth(1)).unwrap();
        assert!(warm.fill(LONG));
        let one = warm.stats().memory;
        assert!(one > 0);
        let limit = one * 4;
        let limited = Warm::new(WarmOptions::new().memory(limit)).unwrap();
        limited.add("sh", Park::new().depth(16)).unwrap();
        assert!(limited.fill(LONG));
        let stats = limited.stats();
        assert!(stats.memory <= limit && (1..16).contains(&stats.parked), "{stats:?}, {one}");
        let forking = Warm::new(WarmOptions::new().mode(Mode::Fork).memory(limit)).unwrap();
        forking.add("sh", Park::new().depth(64)).unwrap();
        assert!(forking.fill(LONG));
        let stats = forking.stats();
        assert!(stats.memory <= limit && (2..64).contains(&stats.parked), "{stats:?}, {one}");
        let tiny = Warm::new(WarmOptions::new().memory(one / 2)).unwrap();
        tiny.add("sh", Park::new()).unwrap();
        assert!(!tiny.fill(LONG));
        assert_eq!((tiny.stats().parked, start(&tiny, "sh")), (0, Started::Cold("memory limit")));
    });
}

#[test]
fn a_program_in_use_replaces_the_processes_of_an_unused_one() {
    isolated!(|| {
        let warm = Warm::new(WarmOptions::new().processes(2)).unwrap();
        warm.add("bash", Park::new()).unwrap();
        assert!(warm.fill(LONG));
        warm.add("sh", Park::new()).unwrap();
        assert!(warm.fill(LONG), "both are unused, so neither replaces the other");
        assert_eq!(start(&warm, "sh"), Started::Cold("empty"));
        // The keeper knows what a start of `sh` saves once it has parked it, so make space for one.
        assert_eq!(start(&warm, "bash"), Started::Reserve);
        eventually("the keeper parks sh", || {
            let _ = warm.fill(Duration::from_millis(20));
            start(&warm, "sh") == Started::Reserve
        });
        assert!(warm.stats().parked <= 2);
    });
}

#[test]
fn auto_parks_a_program_from_its_second_start_on() {
    isolated!(|| {
        let warm = Warm::new(WarmOptions::new().mode(Mode::Auto).keep(8)).unwrap();
        assert_eq!(start(&warm, "sh"), Started::Cold("not added"));
        assert!(warm.fill(LONG));
        assert_eq!(warm.stats().made, 0);
        assert_eq!(warm.explain(&Command::new("sh")).unwrap().reason(), Some("rare"));
        assert_eq!(start(&warm, "sh"), Started::Cold("empty"));
        assert!(warm.fill(LONG));
        assert_eq!(start(&warm, "sh"), Started::Reserve);
        let stats = warm.stats();
        assert!(stats.time_saved > Duration::ZERO && stats.refill_time >= stats.time_saved, "{stats:?}");
        assert_eq!(stats.hit_rate(), Some(1.0 / 3.0));
    });
}

#[test]
fn auto_forks_only_programs_with_trusted_input() {
    isolated!(|| {
        for trusted in [false, true] {
            let warm = Warm::new(WarmOptions::new().mode(Mode::Auto).trusted(trusted)).unwrap();
            with_backlog(|| {
                warm.add("bash", Park::new()).unwrap();
                // The machine is busy, so no start finds a parked process.
                for _ in 0..4 {
                    assert_eq!(start(&warm, "bash"), Started::Cold("empty"));
                }
                if trusted {
                    eventually("the keeper parks a parent", || start(&warm, "bash") == Started::Fork);
                } else {
                    assert_eq!(start(&warm, "bash"), Started::Cold("empty"));
                }
            });
            assert!(warm.fill(LONG));
            let expected = if trusted { Started::Fork } else { Started::Reserve };
            assert_eq!(start(&warm, "bash"), expected);
        }
    });
}

#[test]
fn an_explanation_changes_nothing() {
    isolated!(|| {
        let explain = |warm: &Warm| warm.explain(&Command::new("sh")).unwrap().started;
        // A parent without a child: a start would fork one.
        with_backlog(|| {
            let warm = Warm::new(WarmOptions::new().mode(Mode::Fork)).unwrap();
            warm.add("sh", Park::new()).unwrap();
            eventually("the keeper parks the parent", || warm.stats().parked == 1);
            assert_eq!((explain(&warm), warm.stats().parked), (Started::Fork, 1));
        });
        // Processes that execute any program serve a start that the program's own process cannot serve.
        let warm = Warm::new(WarmOptions::new().mode(Mode::Fork)).unwrap();
        warm.add("sh", Park::new()).unwrap();
        warm.add_any(1, None).unwrap();
        assert!(warm.fill(LONG));
        let other = |command: &mut Command<'_>| warm.explain(command.env("LD_BIND_NOW", "1")).unwrap().started;
        assert_eq!((explain(&warm), other(&mut Command::new("sh"))), (Started::Fork, Started::Zygote));
        // A program that has not been used ends its processes, whether or not a caller asks for explanations.
        let idle = Warm::new(WarmOptions::new().idle(Duration::from_millis(300))).unwrap();
        idle.add("sh", Park::new()).unwrap();
        assert!(idle.fill(LONG));
        eventually("the unused process ends", || {
            let _ = explain(&idle);
            idle.stats().parked == 0
        });
    });
}

#[test]
fn an_explanation_is_that_of_the_next_start() {
    isolated!(|| {
        let warm = Warm::new(WarmOptions::new()).unwrap();
        let explain = |command: &Command<'_>| warm.explain(command).unwrap();
        let unknown = explain(&Command::new("sh"));
        assert_eq!(unknown.started, Started::Cold("not added"));
        assert!(unknown.to_string().contains("Call add()"), "{unknown}");
        warm.add("sh", Park::new().depth(1)).unwrap();
        assert!(warm.fill(LONG));
        // The processor time of the keeper goes on.
        let counted = || {
            let mut stats = warm.stats();
            stats.refill_time = Duration::ZERO;
            stats
        };
        let before = counted();
        let mut command = Command::new("sh");
        command.args(["-c", "exit 3"]).warm(&warm);
        for _ in 0..3 {
            let warm_start = explain(&command);
            assert_eq!(warm_start.started, Started::Reserve);
            assert!(warm_start.saves > Duration::ZERO && warm_start.to_string().contains(" ms of start-up"));
        }
        let other = explain(Command::new("sh").env("LD_BIND_NOW", "1"));
        assert_eq!(other.reason(), Some("variable"));
        assert_eq!(counted(), before, "an explanation starts nothing and counts nothing");
        let output = command.run().unwrap();
        assert_eq!((output.code(), output.started), (Some(3), Started::Reserve));
    });
}
