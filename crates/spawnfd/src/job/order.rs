// SPDX-License-Identifier: MIT OR Apache-2.0
//! The order in which the bytes of both streams arrived.

use std::ops::Range;

use super::stream::Stream;

/// The order in which the bytes of both streams arrived.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct ArrivalOrder {
    /// The lengths of runs of bytes from one stream. The runs alternate between the streams and begin with standard
    /// output.
    runs: Vec<u64>,
    /// The number of runs that remained after the last pruning.
    #[cfg_attr(feature = "serde", serde(skip))]
    pruned: usize,
}

/// The number of runs that may always be added before the next pruning.
const LEAST_RUNS: usize = 64;

impl ArrivalOrder {
    pub(super) fn append(&mut self, stream: Stream, length: u64) {
        let begins_run = self.runs.len() % 2 == stream.index();
        match self.runs.last_mut() {
            _ if length == 0 => {}
            _ if begins_run => self.runs.push(length),
            Some(last) => *last += length,
            None => self.runs.extend([0, length]),
        }
    }

    /// The runs in order of arrival. Neighbours belong to different streams.
    pub(super) fn runs(&self) -> impl Iterator<Item = (Stream, u64)> + '_ {
        Stream::ALL.into_iter().cycle().zip(self.runs.iter().copied()).filter(|(_, length)| *length > 0)
    }

    /// Whether pruning is due. Runs double between two prunings, so pruning takes constant time per run.
    pub(super) fn is_long(&self) -> bool {
        self.runs.len() > LEAST_RUNS + 2 * self.pruned
    }

    /// Moves all omitted bytes of a stream to the place where the first of them arrived. The number of runs is then
    /// bounded by the number of kept bytes. `omitted`: the positions of each stream's omitted bytes.
    pub(super) fn prune(&mut self, omitted: [Range<u64>; 2]) {
        let mut pruned = ArrivalOrder::default();
        let mut positions = [0, 0];
        for (stream, length) in self.runs() {
            let omitted = &omitted[stream.index()];
            let start = positions[stream.index()];
            let end = start + length;
            positions[stream.index()] = end;
            let before = omitted.start.clamp(start, end) - start;
            let after = end - omitted.end.clamp(start, end);
            let moved = if (start..end).contains(&omitted.start) { omitted.end - omitted.start } else { 0 };
            pruned.append(stream, before + moved + after);
        }
        pruned.pruned = pruned.runs.len();
        *self = pruned;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The stream and the position of each byte, without the omitted bytes. `None` stands for the first omitted byte
    /// of a stream.
    fn kept_bytes(order: &ArrivalOrder, omitted: &[Range<u64>; 2]) -> Vec<(Stream, Option<u64>)> {
        let mut positions = [0, 0];
        let mut bytes = Vec::new();
        for (stream, length) in order.runs() {
            for _ in 0..length {
                let position = positions[stream.index()];
                positions[stream.index()] += 1;
                let omitted = &omitted[stream.index()];
                if !omitted.contains(&position) {
                    bytes.push((stream, Some(position)));
                } else if position == omitted.start {
                    bytes.push((stream, None));
                }
            }
        }
        bytes
    }

    proptest! {
        #[test]
        fn pruning_keeps_the_order_of_kept_bytes(
            chunks in prop::collection::vec((any::<bool>(), 0..5_u64), 0..40),
            omitted in [(0..20_u64, 0..40_u64), (0..20_u64, 0..40_u64)],
        ) {
            let mut order = ArrivalOrder::default();
            let mut lengths = [0, 0];
            for (error, length) in chunks {
                order.append(Stream::ALL[usize::from(error)], length);
                lengths[usize::from(error)] += length;
            }
            let omitted = [0, 1].map(|index| {
                let (start, length) = omitted[index];
                let start = start.min(lengths[index]);
                start..(start + length).min(lengths[index])
            });
            let expected = kept_bytes(&order, &omitted);
            order.prune(omitted.clone());
            prop_assert_eq!(kept_bytes(&order, &omitted), expected.clone());
            prop_assert!(order.runs().count() <= expected.len());
        }
    }

    #[test]
    fn neighbouring_runs_of_a_stream_are_one() {
        let mut order = ArrivalOrder::default();
        for (stream, length) in [(Stream::Stderr, 1), (Stream::Stderr, 2), (Stream::Stdout, 0), (Stream::Stderr, 3)] {
            order.append(stream, length);
        }
        order.append(Stream::Stdout, 4);
        assert_eq!(order.runs().collect::<Vec<_>>(), [(Stream::Stderr, 6), (Stream::Stdout, 4)]);
    }
}
