// SPDX-License-Identifier: MIT OR Apache-2.0
//! Samples by series and round, and the statistics computed from them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::definitions::Statistic;

/// Names one series of samples.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Key {
    pub suite: String,
    #[serde(default = "none")]
    pub filter: String,
    #[serde(default = "none")]
    pub parent: String,
    #[serde(default = "no_libc")]
    pub program: String,
    #[serde(default)]
    pub search: bool,
    pub method: String,
}

fn none() -> String {
    "none".to_owned()
}

fn no_libc() -> String {
    "static".to_owned()
}

/// One series: a list of samples for each round.
pub type Rounds = Vec<Vec<f64>>;

/// Every series of a run.
#[derive(Debug, Default)]
pub struct Samples(pub BTreeMap<Key, Rounds>);

impl Samples {
    /// Adds the samples of one round.
    pub fn push(&mut self, key: Key, round: Vec<f64>) {
        self.0.entry(key).or_default().push(round);
    }
}

/// Returns the quantile `share` of sorted samples, by nearest rank.
pub fn quantile(sorted: &[f64], share: f64) -> f64 {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}

/// Returns the samples of all rounds, sorted.
pub fn sorted(rounds: &Rounds) -> Vec<f64> {
    let mut all: Vec<f64> = rounds.iter().flatten().copied().collect();
    all.sort_unstable_by(f64::total_cmp);
    all
}

fn statistic_of(mut all: Vec<f64>, statistic: Statistic) -> f64 {
    match statistic {
        Statistic::Mean => all.iter().sum::<f64>() / all.len() as f64,
        Statistic::Median => {
            let middle = (all.len() - 1) / 2;
            *all.select_nth_unstable_by(middle, f64::total_cmp).1
        }
    }
}

/// A ratio and its 95 % interval.
#[derive(Debug, Clone, Copy)]
pub struct Interval {
    pub value: f64,
    pub low: f64,
    pub high: f64,
}

/// Computes `over / under`, with an interval from resampling whole rounds. Returns `None` if either
/// series is empty.
///
/// Round r of both series was measured at the same time, so each draw uses the same rounds for both. Effects that
/// both share, such as a noisy neighbour or the CPU's clock, then cancel as they do in the ratio itself.
pub fn ratio(over: &Rounds, under: &Rounds, statistic: Statistic) -> Option<Interval> {
    const DRAWS: usize = 1000;
    let rounds = over.len().min(under.len());
    if rounds == 0 || over.iter().all(Vec::is_empty) || under.iter().all(Vec::is_empty) {
        return None;
    }
    let of = |series: &Rounds, picks: &[usize]| {
        statistic_of(picks.iter().flat_map(|&r| series[r].iter().copied()).collect(), statistic)
    };
    let all: Vec<usize> = (0..rounds).collect();
    let value = of(over, &all) / of(under, &all);
    let mut random = Random::new(0x5eed);
    let mut draws: Vec<f64> = (0..DRAWS)
        .map(|_| {
            let picks: Vec<usize> = (0..rounds).map(|_| random.below(rounds)).collect();
            of(over, &picks) / of(under, &picks)
        })
        .collect();
    draws.sort_unstable_by(f64::total_cmp);
    Some(Interval { value, low: quantile(&draws, 0.025), high: quantile(&draws, 0.975) })
}

/// A small deterministic generator (xorshift64*), so that each run has the same order.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// Seeds the generator. Sets the lowest bit, because xorshift never leaves the state 0.
    pub fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    /// Returns the next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns a number below `bound`. The remainder is slightly biased, which does not matter for
    /// the order of calls.
    pub fn below(&mut self, bound: usize) -> usize {
        ((self.bits() >> 33) % bound as u64) as usize
    }

    /// Shuffles in place.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_samples() {
        let s: Vec<f64> = (1..=1000).map(f64::from).collect();
        assert_eq!(quantile(&s, 0.5), 500.0);
        assert_eq!(quantile(&s, 0.99), 990.0);
        assert_eq!(quantile(&s, 0.999), 999.0);
        assert_eq!(quantile(&s[..1], 0.999), 1.0);
    }

    #[test]
    fn a_drift_of_both_series_does_not_widen_the_interval() {
        let under: Rounds = (1..=20).map(|r| vec![f64::from(r); 5]).collect();
        let over: Rounds = under.iter().map(|r| r.iter().map(|x| 2.0 * x).collect()).collect();
        let found = ratio(&over, &under, Statistic::Median).unwrap();
        assert_eq!((found.value, found.low, found.high), (2.0, 2.0, 2.0));
    }

    #[test]
    fn an_empty_series_has_no_ratio() {
        assert!(ratio(&vec![], &vec![vec![1.0]], Statistic::Mean).is_none());
    }
}
