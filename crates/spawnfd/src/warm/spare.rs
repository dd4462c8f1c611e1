// SPDX-License-Identifier: MIT OR Apache-2.0
//! Decides whether the machine has CPU time and memory to spare, so that the keeper can start processes ahead.
//!
//! The kernel reports the time in which tasks waited for a CPU or for memory (pressure-stall information). The share of
//! such time between two readings decides. Without these reports, the length of the run queue decides on CPU time, and
//! memory counts as available.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::limiter;
use crate::tree::own_directory;

/// The shortest time between two readings whose difference counts.
const SHORTEST_WINDOW: Duration = Duration::from_millis(4);
/// The longest such time. The average over a longer time says little about the present.
const LONGEST_WINDOW: Duration = Duration::from_millis(250);
/// From this share of stalled time on, a machine that had CPU time to spare counts as busy, in percent.
const BUSY_FROM: u128 = 20;
/// Below this share, a machine that was busy counts as having CPU time to spare again.
const SPARE_BELOW: u128 = 10;
/// For how long a finding of CPU time to spare holds.
const VALID: Duration = Duration::from_millis(10);
/// The pause before the next reading of a busy machine. It doubles with each reading.
const SHORTEST_PAUSE: Duration = Duration::from_millis(8);
const LONGEST_PAUSE: Duration = Duration::from_millis(128);

/// The keeper uses at most one part in this many of a CPU's time.
const KEEPER_SHARE: u32 = 40;
/// The time whose unused share the keeper may use at once.
const BURST: Duration = Duration::from_millis(800);

/// The time between two readings of the memory pressure.
const MEMORY_WINDOW: Duration = Duration::from_secs(1);
/// From this share of time on in which tasks waited for memory, memory counts as scarce, in percent.
const SCARCE_FROM: u128 = 10;
/// Below this share, memory that was scarce counts as available again.
const AVAILABLE_BELOW: u128 = 5;

/// One reading of the machine's load.
#[derive(Clone, Copy, Debug)]
enum Load {
    /// Starts wait in a limiter of this process.
    Backlog,
    Stalled(Stalled),
    /// The number of runnable tasks, and of CPUs.
    RunQueue(u64, u64),
}

/// Reads the load. `None` if this system reports none.
fn read_load() -> Option<Load> {
    if limiter::has_backlog() {
        return Some(Load::Backlog);
    }
    let stalled = stalled(Resource::Cpu).map(Load::Stalled);
    stalled.or_else(|| run_queue().map(|(tasks, cpus)| Load::RunQueue(tasks, cpus)))
}

/// Whether the machine has CPU time to spare, and until when this holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Finding {
    pub(super) is_busy: bool,
    pub(super) until: Instant,
}

/// Finds out whether the machine has CPU time to spare.
#[derive(Debug)]
pub(super) struct SpareCpu {
    read: fn() -> Option<Load>,
    /// The last reading of stalled time.
    previous: Option<(Instant, Stalled)>,
    /// Whether the machine was busy at the last reading that could be compared.
    was_busy: bool,
    /// The pause after the next reading that finds the machine busy.
    pause: Duration,
}

impl Default for SpareCpu {
    fn default() -> SpareCpu {
        SpareCpu::reading(read_load)
    }
}

impl SpareCpu {
    fn reading(read: fn() -> Option<Load>) -> SpareCpu {
        SpareCpu { read, previous: None, was_busy: false, pause: SHORTEST_PAUSE }
    }

    /// Reads the load. A first reading has nothing to compare with, so the machine counts as busy until a second one.
    pub(super) fn look(&mut self, now: Instant) -> Finding {
        self.was_busy = match (self.read)() {
            None => false,
            Some(Load::Backlog) => true,
            Some(Load::RunQueue(tasks, cpus)) => tasks > cpus.saturating_sub(u64::from(self.was_busy)),
            Some(Load::Stalled(stalled)) => {
                let window = |at: Instant| now.saturating_duration_since(at);
                let previous = self.previous.replace((now, stalled));
                let recent = previous.filter(|(at, _)| (SHORTEST_WINDOW..=LONGEST_WINDOW).contains(&window(*at)));
                let Some((at, before)) = recent else {
                    return Finding { is_busy: true, until: now + SHORTEST_WINDOW };
                };
                percent(before, stalled, window(at)) >= if self.was_busy { SPARE_BELOW } else { BUSY_FROM }
            }
        };
        if !self.was_busy {
            self.pause = SHORTEST_PAUSE;
            return Finding { is_busy: false, until: now + VALID };
        }
        let pause = self.pause;
        self.pause = (pause * 2).min(LONGEST_PAUSE);
        Finding { is_busy: true, until: now + pause }
    }
}

/// Limits the CPU time that the keeper thread itself uses, which is the cost of warm starts beside the start-ups that
/// they move ahead.
#[derive(Debug, Default)]
pub(super) struct KeeperShare {
    /// The time from which on the keeper may work. `None`: it has not worked yet.
    allowed_from: Option<Instant>,
}

impl KeeperShare {
    /// Records CPU time that the keeper has used.
    pub(super) fn record(&mut self, used: Duration, now: Instant) {
        let earliest = now.checked_sub(BURST).unwrap_or(now);
        self.allowed_from = Some(self.allowed_from.map_or(earliest, |from| from.max(earliest)) + used * KEEPER_SHARE);
    }

    /// Returns `None` if the keeper may work now, and otherwise the time from which on it may.
    pub(super) fn used_up_until(&self, now: Instant) -> Option<Instant> {
        self.allowed_from.filter(|&from| now < from)
    }
}

/// Finds out whether the machine has memory to spare.
#[derive(Debug)]
pub(super) struct SpareMemory {
    read: fn() -> Option<Stalled>,
    previous: Option<(Instant, Stalled)>,
    is_scarce: bool,
}

impl Default for SpareMemory {
    fn default() -> SpareMemory {
        SpareMemory { read: || stalled(Resource::Memory), previous: None, is_scarce: false }
    }
}

/// Whether the machine has memory to spare.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum MemoryFinding {
    Available,
    /// Tasks waited for memory at the last reading.
    Scarce,
    /// A new reading shows that tasks wait for memory.
    Pressure,
}

impl SpareMemory {
    /// Reads the memory pressure, at most once a second.
    pub(super) fn look(&mut self, now: Instant) -> MemoryFinding {
        let known = if self.is_scarce { MemoryFinding::Scarce } else { MemoryFinding::Available };
        let window = |at: Instant| now.saturating_duration_since(at);
        if self.previous.is_some_and(|(at, _)| window(at) < MEMORY_WINDOW) {
            return known;
        }
        let Some(stalled) = (self.read)() else { return known };
        let Some((at, before)) = self.previous.replace((now, stalled)) else { return known };
        let limit = if self.is_scarce { AVAILABLE_BELOW } else { SCARCE_FROM };
        self.is_scarce = percent(before, stalled, window(at)) >= limit;
        if self.is_scarce { MemoryFinding::Pressure } else { MemoryFinding::Available }
    }
}

/// The larger share of stalled time in a window, of the machine and of the cgroup.
fn percent(before: Stalled, after: Stalled, window: Duration) -> u128 {
    let share = |index: usize| after[index].saturating_sub(before[index]).as_nanos() * 100 / window.as_nanos().max(1);
    share(0).max(share(1))
}

/// A resource with pressure-stall information.
#[derive(Clone, Copy, Debug)]
enum Resource {
    Cpu,
    Memory,
}

/// The total time in which at least one task waited for a resource: a task of the machine, and a task of this process's
/// cgroup.
type Stalled = [Duration; 2];

/// Reads the stall times of a resource. `None` if the kernel does not report them. Without a report for the cgroup, its
/// time is 0.
fn stalled(resource: Resource) -> Option<Stalled> {
    static OWN: OnceLock<Option<PathBuf>> = OnceLock::new();
    let (machine, own) = match resource {
        Resource::Cpu => ("/proc/pressure/cpu", "cpu.pressure"),
        Resource::Memory => ("/proc/pressure/memory", "memory.pressure"),
    };
    let group = OWN.get_or_init(own_directory).as_ref();
    let group = group.and_then(|group| some_total(&read_start(&group.join(own))?));
    Some([some_total(&read_start(machine.as_ref())?)?, group.unwrap_or_default()])
}

/// The number of runnable tasks of the machine, without the calling thread, and the number of its CPUs.
fn run_queue() -> Option<(u64, u64)> {
    let tasks = runnable(&read_start("/proc/loadavg".as_ref())?)?;
    let cpus = count(&read_start("/sys/devices/system/cpu/online".as_ref())?)?;
    Some((tasks.saturating_sub(1), cpus))
}

/// The first bytes of a file of the kernel.
fn read_start(path: &Path) -> Option<String> {
    let mut text = [0; 256];
    let length = File::open(path).ok()?.read(&mut text).ok()?;
    std::str::from_utf8(&text[..length]).ok().map(str::to_owned)
}

/// The total of the line `some` in a pressure file, which has it in microseconds.
fn some_total(text: &str) -> Option<Duration> {
    let line = text.lines().find(|line| line.starts_with("some "))?;
    line.split(' ').find_map(|field| field.strip_prefix("total=")?.parse().ok()).map(Duration::from_micros)
}

/// The number of runnable tasks in /proc/loadavg, whose fourth field is "runnable/all".
fn runnable(text: &str) -> Option<u64> {
    text.split(' ').nth(3)?.split('/').next()?.parse().ok()
}

/// The length of a list of numbers and ranges, such as "0-3,8".
fn count(list: &str) -> Option<u64> {
    let mut ranges = list.trim_end().split(',').map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        last.parse::<u64>().ok()?.checked_sub(first.parse().ok()?)?.checked_add(1)
    });
    ranges.try_fold(0u64, |sum, range| sum.checked_add(range?))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        static LOAD: Cell<Option<Load>> = const { Cell::new(None) };
    }

    /// A machine whose load and clock the test sets.
    struct Machine {
        spare: SpareCpu,
        now: Instant,
        stalled: Stalled,
    }

    impl Machine {
        fn new() -> Machine {
            let machine =
                Machine { spare: SpareCpu::reading(|| LOAD.get()), now: Instant::now(), stalled: Stalled::default() };
            LOAD.set(Some(Load::Stalled(machine.stalled)));
            machine
        }

        /// Lets time pass, in which tasks wait for a CPU for this share of the time.
        fn pass(&mut self, milliseconds: u64, percent: [u32; 2]) {
            let time = Duration::from_millis(milliseconds);
            self.now += time;
            self.stalled[0] += time * percent[0] / 100;
            self.stalled[1] += time * percent[1] / 100;
            LOAD.set(Some(Load::Stalled(self.stalled)));
        }

        /// Whether the machine is busy, and for how many milliseconds this holds.
        fn look(&mut self) -> (bool, u128) {
            let Finding { is_busy, until } = self.spare.look(self.now);
            (is_busy, (until - self.now).as_millis())
        }

        /// A machine for which the first two readings have found CPU time to spare.
        fn idle() -> Machine {
            let mut machine = Machine::new();
            assert_eq!(machine.look(), (true, 4), "one reading says nothing");
            machine.pass(4, [0, 0]);
            assert_eq!(machine.look(), (false, 10));
            machine
        }
    }

    #[test]
    fn a_busy_machine_needs_less_load_to_count_as_idle_again() {
        let mut machine = Machine::idle();
        machine.pass(20, [19, 0]);
        assert_eq!(machine.look(), (false, 10));
        machine.pass(20, [20, 0]);
        assert_eq!(machine.look(), (true, 8));
        machine.pass(8, [19, 0]);
        assert_eq!(machine.look(), (true, 16));
        machine.pass(16, [9, 0]);
        assert_eq!(machine.look(), (false, 10));
    }

    #[test]
    fn pauses_grow_and_begin_again_after_an_idle_time() {
        let mut machine = Machine::idle();
        machine.pass(10, [100, 0]);
        let mut pauses = Vec::new();
        for _ in 0..7 {
            let (is_busy, pause) = machine.look();
            assert!(is_busy);
            pauses.push(pause);
            machine.pass(u64::try_from(pause).unwrap(), [100, 0]);
        }
        assert_eq!(pauses, [8, 16, 32, 64, 128, 128, 128]);
        machine.pass(128, [0, 0]);
        machine.look();
        machine.pass(10, [0, 0]);
        assert_eq!(machine.look(), (false, 10));
        machine.pass(10, [100, 0]);
        assert_eq!(machine.look(), (true, 8));
    }

    #[test]
    fn an_old_reading_does_not_count() {
        let mut machine = Machine::idle();
        machine.pass(251, [0, 0]);
        assert_eq!(machine.look(), (true, 4), "the average of a long idle time hides a load that has just begun");
        machine.pass(4, [15, 0]);
        assert_eq!(machine.look(), (false, 10), "the machine was not busy before");
        machine.pass(10, [20, 0]);
        assert_eq!(machine.look(), (true, 8));
        machine.pass(251, [0, 0]);
        assert_eq!(machine.look(), (true, 4));
        machine.pass(4, [15, 0]);
        assert_eq!(machine.look(), (true, 16), "the machine was busy before");
    }

    #[test]
    fn a_cgroup_without_cpu_time_counts_as_busy() {
        let mut machine = Machine::idle();
        machine.pass(20, [0, 60]);
        assert_eq!(machine.look(), (true, 8));
    }

    #[test]
    fn the_run_queue_decides_without_stall_times() {
        let mut machine = Machine::new();
        let found = [4, 5, 4, 3].map(|tasks| {
            LOAD.set(Some(Load::RunQueue(tasks, 4)));
            machine.look()
        });
        assert_eq!(found, [(false, 10), (true, 8), (true, 16), (false, 10)]);
    }

    #[test]
    fn the_keeper_uses_a_small_share_of_a_cpu() {
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let mut share = KeeperShare::default();
        assert_eq!(share.used_up_until(start), None);
        // Each millisecond of work takes 40 ms of the share, of which 800 ms are free at first.
        share.record(Duration::from_millis(21), start);
        assert_eq!((share.used_up_until(at(39)), share.used_up_until(at(40))), (Some(at(40)), None));
        // After an idle time, the keeper may use the share of the last 800 ms at once.
        for _ in 0..20 {
            assert_eq!(share.used_up_until(at(10_000)), None);
            share.record(Duration::from_millis(1), at(10_000));
        }
        share.record(Duration::from_millis(1), at(10_000));
        assert_eq!(share.used_up_until(at(10_000)), Some(at(10_040)));
    }

    #[test]
    fn memory_is_scarce_from_a_share_of_stalled_time_on() {
        let mut machine = Machine::new();
        let read = || match LOAD.get() {
            Some(Load::Stalled(stalled)) => Some(stalled),
            _ => None,
        };
        let mut memory = SpareMemory { read, ..SpareMemory::default() };
        let mut look = |milliseconds, percent| {
            machine.pass(milliseconds, [percent, 0]);
            memory.look(machine.now)
        };
        use MemoryFinding::{Available, Pressure, Scarce};
        assert_eq!(look(0, 0), Available, "one reading says nothing");
        assert_eq!(look(1000, 9), Available);
        assert_eq!(look(1000, 10), Pressure);
        assert_eq!(look(999, 0), Scarce, "the next reading is a second later");
        assert_eq!(look(1000, 11), Pressure);
        assert_eq!(look(1000, 5), Pressure);
        assert_eq!(look(1000, 4), Available);
    }

    #[test]
    fn a_backlog_counts_as_busy_and_an_unknown_load_does_not() {
        let mut machine = Machine::new();
        LOAD.set(Some(Load::Backlog));
        assert_eq!(machine.look(), (true, 8));
        LOAD.set(None);
        assert_eq!(machine.look(), (false, 10));
    }

    #[test]
    fn totals_are_read_from_the_kernels_text() {
        let text =
            "some avg10=0.53 avg60=0.11 avg300=0.04 total=1500\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=9\n";
        assert_eq!(some_total(text), Some(Duration::from_micros(1500)));
        assert_eq!(some_total("full avg10=0.00 total=9\n"), None);
        assert_eq!(runnable("0.53 0.11 0.04 3/180 12345\n"), Some(3));
        assert_eq!(runnable(""), None);
        assert_eq!((count("0-3,8\n"), count("0\n"), count("")), (Some(5), Some(1), None));
    }

    #[test]
    fn this_machine_has_a_run_queue() {
        let (_, cpus) = run_queue().expect("/proc/loadavg and /sys");
        assert!(cpus >= 1);
    }

    #[test]
    fn stall_times_do_not_decrease() {
        let Some(before) = stalled(Resource::Cpu) else {
            return spawnfd_tests::skip("the kernel has no pressure-stall information");
        };
        let after = stalled(Resource::Cpu).expect("the file has just been read");
        assert!(after[0] >= before[0] && after[1] >= before[1], "{before:?} {after:?}");
    }
}
