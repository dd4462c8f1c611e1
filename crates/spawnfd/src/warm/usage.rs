// SPDX-License-Identifier: MIT OR Apache-2.0
//! Records how often a program starts, and what its parked processes save and cost. Chooses modes from this.

use std::time::{Duration, Instant};

use super::Mode;
use crate::cold_reason::ColdReason;

/// The time after which a start counts half.
const HALF_LIFE: Duration = Duration::from_secs(60);
/// In mode auto, the number of recent starts from which on the keeper parks a program that was not added.
const FREQUENT: f64 = 1.5;
/// In mode auto, the recent starts that found no parked process, from which on the keeper may fork: four starts within
/// some seconds.
const MISSED: f64 = 3.5;
/// In mode auto, the share of these starts from which on the keeper may fork.
const MISSED_SHARE: f64 = 0.5;

/// The assumed values of a program of which no process has been parked.
const UNMEASURED_START_UP: Duration = Duration::from_millis(1);
const UNMEASURED_MEMORY: u64 = 1 << 20;
/// A process with less private memory counts as one with this much.
const LEAST_MEMORY: u64 = 64 << 10;

/// A start-up that takes so much longer than parking that the keeper's own time does not matter.
const LONG_START_UP: Duration = Duration::from_millis(4);

/// A number of events, in which an event counts half after [`HALF_LIFE`].
#[derive(Clone, Copy, Debug, Default)]
struct RecentCount {
    value: f64,
    updated: Option<Instant>,
}

impl RecentCount {
    fn add_one(&mut self, now: Instant) {
        *self = RecentCount { value: self.at(now) + 1.0, updated: Some(now) };
    }

    fn at(&self, now: Instant) -> f64 {
        let age = self.updated.map_or(Duration::ZERO, |updated| now.saturating_duration_since(updated));
        self.value * 0.5f64.powf(age.as_secs_f64() / HALF_LIFE.as_secs_f64())
    }
}

/// How the keeper treats a program in mode auto.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Choice {
    /// The keeper parks no process. The value is the reason.
    Cold(ColdReason),
    Park(Mode),
}

/// The use of a program, as measured in this process.
#[derive(Clone, Debug, Default)]
pub(super) struct Usage {
    starts: RecentCount,
    /// The starts that found no parked process.
    missed: RecentCount,
    /// The shortest start-up of a process that was parked: what a warm start saves.
    start_up: Option<Duration>,
    /// The private memory of the last process that was parked by exec, in bytes. 0: none has been parked.
    memory: u64,
    /// The private memory of the last process that was forked ahead.
    child_memory: Option<u64>,
}

impl Usage {
    /// Records a start. `found`: whether a process was parked for it.
    pub(super) fn record_start(&mut self, found: bool, now: Instant) {
        self.starts.add_one(now);
        if !found {
            self.missed.add_one(now);
        }
    }

    /// Records a parked process.
    pub(super) fn record_parked(&mut self, start_up: Duration, memory: u64) {
        self.start_up = Some(self.start_up.map_or(start_up, |shortest| shortest.min(start_up)));
        self.memory = memory;
    }

    /// Whether the start-up takes much longer than the keeper's work for a parked process.
    pub(super) fn has_long_start_up(&self) -> bool {
        self.start_up.is_some_and(|start_up| start_up >= LONG_START_UP)
    }

    /// Records a forked process.
    pub(super) fn record_forked(&mut self, memory: u64) {
        self.child_memory = Some(memory);
    }

    /// Forgets what was measured of the program's file, which has changed.
    pub(super) fn forget_program(&mut self) {
        (self.start_up, self.memory, self.child_memory) = (None, 0, None);
    }

    /// The private memory that the next process will have: one parked by exec, or a forked one. 0: unknown.
    pub(super) fn expected_memory(&self, is_forked: bool) -> u64 {
        if is_forked { self.child_memory.unwrap_or_default() } else { self.memory }
    }

    /// The time that warm starts of this program save, for each start and MiB: seconds, multiplied by the recent
    /// starts, divided by the MiB of a parked process.
    pub(super) fn value(&self, now: Instant) -> f64 {
        let memory = match self.child_memory.unwrap_or(self.memory) {
            0 => UNMEASURED_MEMORY,
            memory => memory.max(LEAST_MEMORY),
        };
        let start_up = self.start_up.unwrap_or(UNMEASURED_START_UP);
        start_up.as_secs_f64() * self.starts.at(now) / (memory as f64 / f64::from(1 << 20))
    }

    /// Chooses for a program in mode auto. `is_added`: the application has added the program. `may_fork`: its input is
    /// trusted. `mode`: the present mode.
    pub(super) fn choose(&self, is_added: bool, may_fork: bool, mode: Mode, now: Instant) -> Choice {
        let starts = self.starts.at(now);
        // A busy machine leaves no time to park processes ahead. A fork costs less than a start-up.
        let missed = self.missed.at(now);
        let is_behind = missed >= MISSED && missed >= MISSED_SHARE * starts;
        if may_fork && (is_behind || mode == Mode::Fork) {
            return Choice::Park(Mode::Fork);
        }
        if is_added || starts >= FREQUENT { Choice::Park(Mode::Reserve) } else { Choice::Cold(ColdReason::Rare) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn started(count: usize, found: bool, now: Instant) -> Usage {
        let mut usage = Usage::default();
        (0..count).for_each(|_| usage.record_start(found, now));
        usage
    }

    #[test]
    fn starts_lose_half_their_weight_each_minute() {
        let now = Instant::now();
        let mut usage = started(4, true, now);
        usage.record_parked(10 * MS, 1 << 20);
        assert!((usage.value(now) - 0.04).abs() < 1e-9);
        assert!((usage.value(now + HALF_LIFE) - 0.02).abs() < 1e-9);
        assert!((usage.value(now + 2 * HALF_LIFE) - 0.01).abs() < 1e-9);
    }

    #[test]
    fn value_grows_with_saved_time_and_starts_and_falls_with_memory() {
        let now = Instant::now();
        let value = |starts, start_up, memory| {
            let mut usage = started(starts, true, now);
            usage.record_parked(start_up, memory);
            usage.value(now)
        };
        let base = value(2, 2 * MS, 2 << 20);
        assert!(
            value(4, 2 * MS, 2 << 20) > base && value(2, 4 * MS, 2 << 20) > base && value(2, 2 * MS, 1 << 20) > base
        );
        assert_eq!(Usage::default().value(now), 0.0);
    }

    #[test]
    fn a_program_is_parked_from_its_second_start_on_or_when_added() {
        let now = Instant::now();
        let choose = |usage: &Usage, is_added, now| usage.choose(is_added, false, Mode::Reserve, now);
        assert_eq!(choose(&started(1, false, now), false, now), Choice::Cold(ColdReason::Rare));
        assert_eq!(choose(&started(1, false, now), true, now), Choice::Park(Mode::Reserve));
        let twice = started(2, false, now);
        assert_eq!(choose(&twice, false, now), Choice::Park(Mode::Reserve));
        assert_eq!(choose(&twice, false, now + HALF_LIFE), Choice::Cold(ColdReason::Rare));
    }

    #[test]
    fn only_trusted_programs_without_spare_cpu_time_are_forked() {
        let now = Instant::now();
        let missed = started(4, false, now);
        assert_eq!(missed.choose(true, false, Mode::Reserve, now), Choice::Park(Mode::Reserve));
        assert_eq!(missed.choose(true, true, Mode::Reserve, now), Choice::Park(Mode::Fork));
        assert_eq!(started(3, false, now).choose(true, true, Mode::Reserve, now), Choice::Park(Mode::Reserve));
        let mut served = started(5, true, now);
        (0..4).for_each(|_| served.record_start(false, now));
        assert_eq!(served.choose(true, true, Mode::Reserve, now), Choice::Park(Mode::Reserve));
        // The parent is there already, so the mode stays.
        assert_eq!(served.choose(true, true, Mode::Fork, now), Choice::Park(Mode::Fork));
    }
}
