# SPDX-License-Identifier: MIT OR Apache-2.0
"""Blocks of the same calls by several workers, in random order."""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from .pipe import Worker
from .progress import Progress

Block = TypeVar("Block")


def random_order(
    calls: Sequence[str], methods: Sequence[str], chooser: random.Random
) -> list[tuple[str, str]]:
    """Returns one round: every call once in random order, each by all methods in random order."""
    return [
        (call, method)
        for call in chooser.sample(calls, len(calls))
        for method in chooser.sample(methods, len(methods))
    ]


def interleave(
    calls: Sequence[str],
    workers: Mapping[str, Worker],
    run_block: Callable[[Worker, str, int], Block],
    warm_up: int,
    counts: Iterable[int],
    chooser: random.Random,
    progress: Progress,
) -> dict[tuple[str, str], list[Block]]:
    """Runs a round for each count, with `count` calls per block. Returns blocks by call and method.

    A first round of `warm_up` calls per block is not recorded.
    """
    methods = list(workers)
    blocks: dict[tuple[str, str], list[Block]] = {
        (call, method): [] for call in calls for method in methods
    }
    for call, method in random_order(calls, methods, chooser):
        run_block(workers[method], call, warm_up)
    for count in counts:
        for call, method in random_order(calls, methods, chooser):
            blocks[call, method].append(run_block(workers[method], call, count))
            progress.advance(count)
    return blocks
