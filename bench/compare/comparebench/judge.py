# SPDX-License-Identifier: MIT OR Apache-2.0
"""The intervals and the verdict of a change.

A change is the natural logarithm of new / base time, so positive means slower. For a rate it is the
logarithm of base / new. The sessions of an id are independent: each has its own pair of processes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

CONFIDENCE = 0.95
LIMIT = 0.03
WIDEST = 0.06
# The share of sessions that are left out at each end.
TRIM = 0.2
FEWEST = 4
# A run computes the verdicts twice: after the passes over all quantities, and at its end.
LOOKS = 2


class Verdict(StrEnum):
    """The verdict on a change."""

    SLOWER = "slower"
    FASTER = "faster"
    SAME = "same within"
    UNCLEAR = "unclear"
    NOISY = "too noisy"


@dataclass(frozen=True)
class Interval:
    """A value with its interval, all as logarithms."""

    value: float
    low: float
    high: float

    @property
    def width(self) -> float:
        """The distance between the ends of the interval, as a share."""
        return math.exp(self.high - self.low) - 1


@dataclass(frozen=True)
class Judged:
    """A change with two intervals.

    Attributes:
        interval: The interval at 95 %.
        sure: The interval at the level that holds for all judged ids and both looks together.
    """

    interval: Interval
    sure: Interval

    @property
    def verdict(self) -> Verdict:
        """Slower and faster require that the corrected interval is wholly beyond the limit."""
        limit = math.log1p(LIMIT)
        if self.sure.low > limit:
            return Verdict.SLOWER
        if self.sure.high < -limit:
            return Verdict.FASTER
        if self.interval.width > WIDEST:
            return Verdict.NOISY
        if self.interval.low > limit or self.interval.high < -limit:
            return Verdict.UNCLEAR
        return Verdict.SAME

    @property
    def within(self) -> float:
        """The largest change that the 95 % interval contains, as a share."""
        return math.expm1(max(abs(self.interval.low), abs(self.interval.high)))


def _t_share(t: float, freedom: int) -> float:
    """The share of Student's t between -t and t (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    theta = math.atan(t / math.sqrt(freedom))
    odd = freedom % 2
    term = math.cos(theta) if odd else 1.0
    total = 0.0
    for number in range(2 + odd, freedom + 1, 2):
        total += term
        term *= math.cos(theta) ** 2 * (number - 1) / number
    total *= math.sin(theta)
    return 2 / math.pi * (theta + total) if odd else total


def t_quantile(confidence: float, freedom: int) -> float:
    """Student's t for a two-sided interval."""
    low, high = 0.0, 1.0
    while _t_share(high, freedom) < confidence:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        if _t_share(middle, freedom) < confidence:
            low = middle
        else:
            high = middle
    return high


def trimmed(values: Sequence[float], confidence: float) -> Interval:
    """The trimmed mean, with its t interval from the winsorized variance (Yuen 1974)."""
    if len(values) < FEWEST:
        raise ValueError(f"{len(values)} sessions, at least {FEWEST} are needed")
    ordered = sorted(values)
    cut = int(TRIM * len(ordered))
    kept = ordered[cut : len(ordered) - cut]
    mean = math.fsum(kept) / len(kept)
    winsorized = [*[kept[0]] * cut, *kept, *[kept[-1]] * cut]
    middle = math.fsum(winsorized) / len(winsorized)
    squares = math.fsum((value - middle) ** 2 for value in winsorized)
    freedom = len(kept) - 1
    error = math.sqrt(squares / (len(kept) * freedom))
    reach = t_quantile(confidence, freedom) * error
    return Interval(mean, mean - reach, mean + reach)


def judge(changes: Sequence[float], judged: int) -> Judged:
    """The intervals of one id's sessions, if `judged` quantities are judged in the same run.

    Bonferroni correction: with 95 %, all intervals at both looks contain the true change.
    """
    sure = 1 - (1 - CONFIDENCE) / (LOOKS * max(judged, 1))
    return Judged(trimmed(changes, CONFIDENCE), trimmed(changes, sure))
