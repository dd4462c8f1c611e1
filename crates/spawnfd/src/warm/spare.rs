// SPDX-License-Identifier: MIT OR Apache-2.0
//! Decides whether the machine has CPU time and memory to spare, so that the keeper can start processes ahead.
//!
//! The kernel reports the time in which tasks waited for a CPU or for memory (pressure-stall information). The share of
//! such time between two readings decides. Without these reports, the length of the run queue decides on CPU time, and
//! memory counts as available.

use std::time::{Duration, Instant};

use super::pressure::{Resource, Stalled, run_queue, stalled};
use crate::limiter;

/// The shortest time between two readings whose difference counts.
const SHORTEST_WINDOW: Duration = Duration::from_millis(4);
/// The longest such time. The average over a longer time says little about the present.
const LONGEST_WINDOW: Duration = Duration::from_millis(250);
/// From this share of stalled time on, a machine that had CPU time to spare counts as busy, in percent.
const BUSY_FROM: u128 = 40;
/// Below this share, a machine that was busy counts as having CPU time to spare again.
const SPARE_BELOW: u128 = 20;
/// For how long CPU time that was found counts as available.
const VALID: Duration = Duration::from_millis(10);
/// The pause before the next reading of a busy machine. It doubles with each reading.
const SHORTEST_PAUSE: Duration = Duration::from_millis(8);
const LONGEST_PAUSE: Duration = Duration::from_millis(128);

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

/// Whether the machine has CPU time to spare.
#[derive(Debug)]
pub(super) struct SpareCpu {
    read: fn() -> Option<Load>,
    /// The last reading of stalled time.
    previous: Option<(Instant, Stalled)>,
    finding: Finding,
    /// The time of the next reading. Until then, the finding holds.
    next_reading: Option<Instant>,
    /// The pause after the next reading that finds the machine busy.
    pause: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Finding {
    /// A second reading is necessary.
    Unknown,
    Spare,
    Busy,
}

impl Default for SpareCpu {
    fn default() -> SpareCpu {
        SpareCpu::reading(read_load)
    }
}

impl SpareCpu {
    fn reading(read: fn() -> Option<Load>) -> SpareCpu {
        SpareCpu { read, previous: None, finding: Finding::Unknown, next_reading: None, pause: SHORTEST_PAUSE }
    }

    /// Returns `None` if the machine has CPU time to spare, and otherwise the time of the next reading.
    pub(super) fn busy_until(&mut self, now: Instant) -> Option<Instant> {
        if self.next_reading.is_none_or(|next| now >= next) {
            self.update(now);
        }
        self.next_reading.filter(|_| self.finding != Finding::Spare)
    }

    /// The time until the next reading, if the last one found no CPU time to spare.
    pub(super) fn remaining_pause(&self, now: Instant) -> Duration {
        let next = self.next_reading.filter(|_| self.finding != Finding::Spare);
        next.map_or(Duration::ZERO, |next| next.saturating_duration_since(now))
    }

    fn update(&mut self, now: Instant) {
        let was_busy = self.finding == Finding::Busy;
        self.finding = match (self.read)() {
            None => Finding::Spare,
            Some(Load::Backlog) => Finding::Busy,
            Some(Load::RunQueue(tasks, cpus)) => finding(tasks > cpus.saturating_sub(u64::from(was_busy))),
            Some(Load::Stalled(stalled)) => {
                let window = |at: Instant| now.saturating_duration_since(at);
                let previous = self.previous.replace((now, stalled));
                match previous.filter(|(at, _)| (SHORTEST_WINDOW..=LONGEST_WINDOW).contains(&window(*at))) {
                    Some((at, before)) => {
                        finding(percent(before, stalled, window(at)) >= if was_busy { SPARE_BELOW } else { BUSY_FROM })
                    }
                    None => Finding::Unknown,
                }
            }
        };
        self.next_reading = Some(match self.finding {
            Finding::Unknown => now + SHORTEST_WINDOW,
            Finding::Spare => now + VALID,
            Finding::Busy => now + self.pause,
        });
        self.pause = match self.finding {
            Finding::Busy => (self.pause * 2).min(LONGEST_PAUSE),
            Finding::Spare | Finding::Unknown => SHORTEST_PAUSE,
        };
    }
}

fn finding(is_busy: bool) -> Finding {
    if is_busy { Finding::Busy } else { Finding::Spare }
}

/// Whether the machine has memory to spare.
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

impl SpareMemory {
    /// Whether tasks waited for memory at the last reading.
    pub(super) fn is_scarce(&self) -> bool {
        self.is_scarce
    }

    /// Reads the memory pressure, at most once a second. Returns `true` if a new reading has found pressure.
    pub(super) fn update(&mut self, now: Instant) -> bool {
        let window = |at: Instant| now.saturating_duration_since(at);
        if self.previous.is_some_and(|(at, _)| window(at) < MEMORY_WINDOW) {
            return false;
        }
        let Some(stalled) = (self.read)() else { return false };
        let Some((at, before)) = self.previous.replace((now, stalled)) else { return false };
        let limit = if self.is_scarce { AVAILABLE_BELOW } else { SCARCE_FROM };
        self.is_scarce = percent(before, stalled, window(at)) >= limit;
        self.is_scarce
    }
}

/// The larger share of stalled time in a window, of the machine and of the cgroup.
fn percent(before: Stalled, after: Stalled, window: Duration) -> u128 {
    let share = |index: usize| after[index].saturating_sub(before[index]).as_nanos() * 100 / window.as_nanos().max(1);
    share(0).max(share(1))
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

        /// The pause that the machine's load causes now, in milliseconds. `None`: there is CPU time to spare.
        fn pause(&mut self) -> Option<u128> {
            let until = self.spare.busy_until(self.now)?;
            assert_eq!(self.spare.remaining_pause(self.now), until - self.now);
            Some((until - self.now).as_millis())
        }

        /// A machine for which the first two readings have found CPU time to spare.
        fn idle() -> Machine {
            let mut machine = Machine::new();
            assert_eq!(machine.pause(), Some(4), "one reading says nothing");
            machine.pass(4, [0, 0]);
            assert_eq!(machine.pause(), None);
            machine
        }
    }

    #[test]
    fn a_busy_machine_needs_less_load_to_count_as_idle_again() {
        let mut machine = Machine::idle();
        machine.pass(20, [39, 0]);
        assert_eq!(machine.pause(), None);
        machine.pass(20, [40, 0]);
        assert_eq!(machine.pause(), Some(8));
        machine.pass(8, [39, 0]);
        assert_eq!(machine.pause(), Some(16));
        machine.pass(16, [19, 0]);
        assert_eq!(machine.pause(), None);
        assert_eq!(machine.spare.remaining_pause(machine.now), Duration::ZERO);
    }

    #[test]
    fn pauses_grow_and_begin_again_after_an_idle_time() {
        let mut machine = Machine::idle();
        machine.pass(10, [100, 0]);
        let mut pauses = Vec::new();
        for _ in 0..7 {
            let pause = machine.pause().expect("busy");
            pauses.push(pause);
            machine.pass(u64::try_from(pause).unwrap(), [100, 0]);
        }
        assert_eq!(pauses, [8, 16, 32, 64, 128, 128, 128]);
        assert_eq!(machine.pause(), Some(128));
        machine.pass(128, [0, 0]);
        assert_eq!(machine.pause(), None);
        machine.pass(10, [100, 0]);
        assert_eq!(machine.pause(), Some(8));
    }

    #[test]
    fn a_finding_holds_until_the_next_reading() {
        let mut machine = Machine::idle();
        machine.pass(9, [100, 0]);
        assert_eq!(machine.pause(), None);
        machine.pass(1, [100, 0]);
        assert_eq!(machine.pause(), Some(8));
        machine.pass(7, [0, 0]);
        assert_eq!(machine.pause(), Some(1));
        machine.pass(1, [0, 0]);
        assert_eq!(machine.pause(), None);
    }

    #[test]
    fn an_old_reading_does_not_count() {
        let mut machine = Machine::idle();
        machine.pass(251, [0, 0]);
        assert_eq!(machine.pause(), Some(4), "the average of a long idle time hides a load that has just begun");
        machine.pass(4, [30, 0]);
        assert_eq!(machine.pause(), None, "the machine has not been busy");
    }

    #[test]
    fn a_cgroup_without_cpu_time_counts_as_busy() {
        let mut machine = Machine::idle();
        machine.pass(20, [0, 60]);
        assert_eq!(machine.pause(), Some(8));
    }

    #[test]
    fn the_run_queue_decides_without_stall_times() {
        let mut machine = Machine::new();
        let mut reads = |tasks| {
            machine.now += Duration::from_secs(1);
            LOAD.set(Some(Load::RunQueue(tasks, 4)));
            machine.pause()
        };
        let pauses = [4, 5, 4, 3].map(&mut reads);
        assert_eq!(pauses, [None, Some(8), Some(16), None]);
    }

    #[test]
    fn memory_is_scarce_from_a_share_of_stalled_time_on() {
        let mut machine = Machine::new();
        let read = || match LOAD.get() {
            Some(Load::Stalled(stalled)) => Some(stalled),
            _ => None,
        };
        let mut memory = SpareMemory { read, ..SpareMemory::default() };
        let mut update = |milliseconds, percent| {
            machine.pass(milliseconds, [percent, 0]);
            (memory.update(machine.now), memory.is_scarce())
        };
        assert_eq!(update(0, 0), (false, false), "one reading says nothing");
        assert_eq!(update(1000, 9), (false, false));
        assert_eq!(update(1000, 10), (true, true));
        assert_eq!(update(999, 0), (false, true), "the next reading is a second later");
        assert_eq!(update(1000, 11), (true, true));
        assert_eq!(update(1000, 5), (true, true));
        assert_eq!(update(1000, 4), (false, false));
    }

    #[test]
    fn a_backlog_counts_as_busy_and_an_unknown_load_does_not() {
        let mut machine = Machine::new();
        LOAD.set(Some(Load::Backlog));
        assert_eq!(machine.pause(), Some(8));
        machine.now += Duration::from_millis(8);
        LOAD.set(None);
        assert_eq!(machine.pause(), None);
    }
}
