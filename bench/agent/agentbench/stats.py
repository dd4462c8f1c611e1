# SPDX-License-Identifier: MIT OR Apache-2.0
"""Medians of interleaved rounds, and how sure they are."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

RESAMPLES = 4_000
CONFIDENCE = 0.95
INTERVAL = "95 % bootstrap interval of the median over rounds"


@dataclass(frozen=True)
class Estimate:
    """A median with its interval."""

    value: float
    low: float
    high: float


def estimate(samples: Sequence[float]) -> Estimate:
    """The median of the samples and a percentile-bootstrap interval of it; repeatable."""
    if not samples:
        raise ValueError("no samples")
    chooser = random.Random(len(samples))
    medians = sorted(median(chooser.choices(samples, k=len(samples))) for _ in range(RESAMPLES))
    tail = int(RESAMPLES * (1 - CONFIDENCE) / 2)
    return Estimate(median(samples), medians[tail], medians[-1 - tail])


def round_ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Per round: calls per second of ours over theirs, from the seconds of the same slice."""
    if len(ours) != len(theirs):
        raise ValueError(f"{len(ours)} rounds against {len(theirs)}")
    return [their / our for our, their in zip(ours, theirs, strict=True)]


def round_order(names: Sequence[str], number: int) -> list[str]:
    """The order of round `number`: rotated each round, and turned round every other one."""
    shift = (number // 2) % len(names)
    order = [*names[shift:], *names[:shift]]
    return order[::-1] if number % 2 else order
