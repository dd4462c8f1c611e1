# SPDX-License-Identifier: MIT OR Apache-2.0
"""Computes ratios from measured cells."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from .definitions import UNFILTERED, Rule
from .measure import Block, Measured, Task
from .stats import Estimate, estimate, quantile, round_ratios, tail_ratio

Row = dict[str, Any]
P99, P999 = 0.99, 0.999
# The figure of a block, by the value of `of` in definitions.toml.
FIGURES: dict[str, Callable[[Block], float]] = {
    "time": lambda block: block.seconds,
    "cpu": lambda block: block.cpu_seconds,
    "p50": lambda block: median(block.ns),
    "p99_block": lambda block: quantile(block.ns, P99),
    "held": lambda block: median(block.held_ns),
    "gap": lambda block: max(block.gap_us),
}
# The samples and the quantile of ratios over all samples of all blocks.
TAILS: dict[str, tuple[Callable[[Block], list[int]], float]] = {
    "p99": (lambda block: block.ns, P99),
    "stall": (lambda block: block.late_us, P999),
}
# The kinds of start by a Warm.
WARM = ("reserve", "fork", "pool", "zygote")


def estimate_of(of: str, over: Iterable[Block], under: Iterable[Block]) -> Estimate:
    """Returns the ratio of two methods' blocks."""
    if of in TAILS:
        samples, share = TAILS[of]
        return tail_ratio([*map(samples, over)], [*map(samples, under)], share)
    return estimate(round_ratios([*map(FIGURES[of], under)], [*map(FIGURES[of], over)]))


def cpu_us(blocks: Sequence[Block]) -> float:
    """Returns the CPU time of a call."""
    return 1e6 * sum(block.cpu_seconds for block in blocks) / calls_of(blocks)


def calls_of(blocks: Iterable[Block]) -> int:
    """Returns the number of calls."""
    return sum(block.calls for block in blocks)


def row_of(task: Task, call: str, method: str, blocks: Sequence[Block]) -> Row:
    """Returns the fields of a row that all suites have."""
    return {
        "cell": task.cell.name,
        "call": call,
        "method": method,
        "title": next(one.title for one in task.methods if one.name == method),
        "in_flight": task.cell.in_flight,
        "calls": calls_of(blocks),
    }


def timed_row(task: Task, call: str, method: str, blocks: Sequence[Block]) -> Row:
    """Returns the fields of a row of timed calls."""
    row = {
        **row_of(task, call, method, blocks),
        "parent": task.cell.parent,
        "cpu_us_per_call": round(cpu_us(blocks), 2),
        "block_seconds": [round(block.seconds, 6) for block in blocks],
    }
    # The pauses between the calls are part of a block.
    if not task.cell.gap_ms:
        time = estimate([1e6 * block.seconds / block.calls for block in blocks])
        row |= {**time.figures("us_per_call", 2), "calls_per_s": round(1e6 / time.value, 2)}
    if all(block.ns for block in blocks):
        middle = estimate([median(block.ns) / 1e3 for block in blocks])
        row |= middle.figures("us_p50", 2)
    return row


def started(blocks: Iterable[Block]) -> Counter[str]:
    """Returns the kinds of start of the blocks' calls, with their counts."""
    return sum((block.started for block in blocks), Counter[str]())


def warm_share(blocks: Iterable[Block]) -> float | None:
    """Returns the share of calls that were started warm, or None for methods that are not ours."""
    counted = started(blocks)
    if not counted:
        return None
    return round(sum(counted[way] for way in WARM) / counted.total(), 4)


@dataclass(frozen=True)
class Pair:
    """Two methods' blocks of the same calls, which a ratio compares."""

    task: Task
    rule: Rule
    call: str
    over: list[Block]
    under: list[Block]


def _pairs(measured: Measured, rules: Iterable[Rule]) -> Iterator[Pair]:
    """Leaves out ratios without one of their methods, and of warm methods that were never warm."""
    task = measured.task
    warm = {method.name for method in task.methods if method.mode}
    for rule in rules:
        for call in rule.calls(task.cell) if rule.cell == task.cell.name else ():
            over, under = (measured.blocks.get((call, side)) for side in (rule.over, rule.under))
            if not over or not under:
                continue
            sides = {rule.over: over, rule.under: under}
            never_warm = any(warm_share(sides[name]) == 0 for name in warm & sides.keys())
            if rule.even_if_cold or not never_warm:
                yield Pair(task, rule, call, over, under)


def ratios_of(measured: Measured, rules: Iterable[Rule], more: Callable[[Pair], Row]) -> list[Row]:
    """Returns the ratios of a cell, with more fields by the suite."""
    ratios: list[Row] = []
    for pair in _pairs(measured, rules):
        rule, call, filter_name = pair.rule, pair.call, pair.task.filter
        suffix, where = "", call
        if filter_name != UNFILTERED:
            suffix = f".{filter_name}"
            where = f"{call}; all under {filter_name}'s seccomp profile"
        ratios.append(
            {
                "id": rule.id.format(call=call) + suffix,
                **estimate_of(rule.of, pair.over, pair.under).ratio(),
                "meaning": f"{rule.meaning}; {where}",
                "rule": rule.id,
                "call": call,
                **more(pair),
                "blocks": len(pair.under),
                "calls": calls_of(pair.under),
            }
        )
    return ratios
