# SPDX-License-Identifier: MIT OR Apache-2.0
"""Divides the calls of a cell into rounds that all backends share."""

import random
from collections.abc import Sequence
from itertools import cycle, islice

SHUFFLE_SEED = 6144


def make_rounds(members: Sequence[str], calls: int, rounds: int) -> list[list[str]]:
    """Returns `calls` presets in `rounds` shuffled slices, each member equally often.

    The same arguments give the same result.
    """
    if not members or calls < 1 or rounds < 1:
        raise ValueError("a cell needs members, calls and rounds")
    rounds = min(rounds, calls)
    dealer = cycle(members)
    shuffler = random.Random(SHUFFLE_SEED)
    slices: list[list[str]] = []
    for number in range(rounds):
        size = calls * (number + 1) // rounds - calls * number // rounds
        part = list(islice(dealer, size))
        shuffler.shuffle(part)
        slices.append(part)
    return slices


def share(part: Sequence[str], worker: int, workers: int) -> list[str]:
    """Returns the calls of a slice that one of several worker processes makes."""
    return list(part[worker::workers])
