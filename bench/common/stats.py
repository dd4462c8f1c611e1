# SPDX-License-Identifier: MIT OR Apache-2.0
"""Medians of interleaved rounds, with bootstrap intervals."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

RESAMPLES = 4_000
POOLED_RESAMPLES = 1_000  # of ratios of many samples
CONFIDENCE = 0.95
INTERVAL = "95 % bootstrap interval of the median over rounds"


@dataclass(frozen=True)
class Estimate:
    """A median with its interval."""

    value: float
    low: float
    high: float

    def ratio(self) -> dict[str, float]:
        """Returns the figures of a ratio for JSON."""
        return {name: round(number, 4) for name, number in vars(self).items()}

    def figures(self, name: str, digits: int) -> dict[str, float]:
        """Returns the figures of a row for JSON."""
        ends = {"": self.value, "_low": self.low, "_high": self.high}
        return {f"{name}{end}": round(number, digits) for end, number in ends.items()}


def estimate(samples: Sequence[float]) -> Estimate:
    """Returns the median of the samples, and its percentile-bootstrap interval.

    The same samples give the same interval.
    """
    if not samples:
        raise ValueError("no samples")
    chooser = random.Random(len(samples))
    medians = sorted(median(chooser.choices(samples, k=len(samples))) for _ in range(RESAMPLES))
    tail = int(RESAMPLES * (1 - CONFIDENCE) / 2)
    return Estimate(median(samples), medians[tail], medians[-1 - tail])


def round_ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Returns calls per second of `ours` over `theirs` for each round, from the seconds."""
    if len(ours) != len(theirs):
        raise ValueError(f"{len(ours)} rounds against {len(theirs)}")
    return [their / our for our, their in zip(ours, theirs, strict=True)]


def round_order(names: Sequence[str], number: int) -> list[str]:
    """Returns the order of a round: rotated every second round, and reversed in odd rounds."""
    shift = (number // 2) % len(names)
    order = [*names[shift:], *names[:shift]]
    return order[::-1] if number % 2 else order


def quantile(samples: Sequence[float], share: float) -> float:
    """Returns the smallest sample that is at least as large as `share` of the samples."""
    if not samples:
        raise ValueError("no samples")
    return sorted(samples)[max(math.ceil(len(samples) * share) - 1, 0)]


def _bootstrap(
    over: Sequence[Sequence[float]],
    under: Sequence[Sequence[float]],
    ratio: Callable[[Sequence[int]], float],
    resamples: int,
) -> Estimate:
    """Returns the ratio of all blocks, whose numbers are the argument of `ratio`.

    The bootstrap draws whole blocks. Blocks with the same index were measured one after the other,
    and are drawn together.
    """
    if len(over) != len(under):
        raise ValueError(f"{len(over)} blocks against {len(under)}")
    chooser = random.Random(len(over))
    every = range(len(over))
    ratios = sorted(ratio(chooser.choices(every, k=len(over))) for _ in range(resamples))
    tail = int(resamples * (1 - CONFIDENCE) / 2)
    return Estimate(ratio(every), ratios[tail], ratios[-1 - tail])


def tail_ratio(
    over: Sequence[Sequence[float]], under: Sequence[Sequence[float]], share: float
) -> Estimate:
    """Returns the ratio of a quantile over all samples of all blocks."""
    sides = _Tails(over, share), _Tails(under, share)
    return _bootstrap(
        over, under, lambda drawn: sides[0].quantile(drawn) / sides[1].quantile(drawn), RESAMPLES
    )


def pooled_ratio(
    over: Sequence[Sequence[float]],
    under: Sequence[Sequence[float]],
    statistic: Callable[[Sequence[float]], float],
) -> Estimate:
    """Returns the ratio of a statistic, such as the mean, over all samples of all blocks."""

    def of(blocks: Sequence[Sequence[float]], drawn: Sequence[int]) -> float:
        return statistic([sample for block in drawn for sample in blocks[block]])

    return _bootstrap(
        over, under, lambda drawn: of(over, drawn) / of(under, drawn), POOLED_RESAMPLES
    )


class _Tails:
    """The largest samples of each block. Only these can be the quantile of drawn blocks."""

    def __init__(self, blocks: Sequence[Sequence[float]], share: float) -> None:
        self._share = share
        self._sizes = [len(block) for block in blocks]
        most = len(blocks) * max(self._sizes)
        self._tails = [sorted(block)[-self._above(most) :] for block in blocks]

    def _above(self, size: int) -> int:
        """Returns how many of `size` sorted samples are at or above the quantile."""
        return size - max(math.ceil(size * self._share) - 1, 0)

    def quantile(self, drawn: Sequence[int]) -> float:
        """Returns the quantile of all samples of the drawn blocks."""
        above = self._above(sum(self._sizes[block] for block in drawn))
        return sorted(sample for block in drawn for sample in self._tails[block])[-above]
