# SPDX-License-Identifier: MIT OR Apache-2.0
"""Computes the ratios and rows of warm.json from measured cells."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from common.stats import INTERVAL, Estimate, estimate, quantile, round_ratios, tail_ratio

from .definitions import Rule
from .measure import Block, Measured, MemoryUse

SUITE = "warm"
P99 = 0.99
KIB_IN_MIB = 1024
Row = dict[str, Any]

P999 = 0.999
WARM = ("reserve", "fork", "pool", "zygote")


def _estimate(rule: Rule, over: Sequence[Block], under: Sequence[Block]) -> Estimate:
    if rule.of == "p99":
        return tail_ratio([block.ns for block in over], [block.ns for block in under], P99)

    def figure(block: Block) -> float:
        if rule.of == "p50":
            return median(block.ns)
        if rule.of == "p99_block":
            return quantile(block.ns, P99)
        return block.seconds if rule.of == "time" else block.cpu_seconds

    return estimate(round_ratios([figure(b) for b in under], [figure(b) for b in over]))


def started(blocks: Iterable[Block]) -> Counter[str]:
    """Returns the kinds of start of the blocks' calls, with their counts."""
    return sum((block.started for block in blocks), Counter[str]())


def warm_share(blocks: Iterable[Block]) -> float | None:
    """Returns the share of calls that were started warm, or None for methods that are not ours."""
    counted = started(blocks)
    if not counted:
        return None
    return round(sum(counted[way] for way in WARM) / counted.total(), 4)


def cold_ones(measured: Measured, rules: Iterable[Rule]) -> dict[str, str]:
    """Returns calls that were never warm and so lack a ratio, and how they were started instead."""
    cell = measured.task.cell.name
    warm = {method.name for method in measured.task.methods if method.mode}
    for_warm = [rule for rule in rules if rule.cell == cell and not rule.even_if_cold]
    lacking = warm & {name for rule in for_warm for name in (rule.over, rule.under)}
    return {
        f"{cell}, {call}, {method}": f"never warm: {dict(started(blocks))}"
        for (call, method), blocks in measured.blocks.items()
        if method in lacking and warm_share(blocks) == 0
    }


def ratios_of(measured: Measured, rules: Iterable[Rule]) -> list[Row]:
    """Returns the ratios of a cell.

    Leaves a ratio out if one of its methods was left out, or if a warm method was never warm.
    """
    ratios: list[Row] = []
    warm = {method.name for method in measured.task.methods if method.mode}
    for rule in rules:
        if rule.cell != measured.task.cell.name:
            continue
        for call in measured.task.calls:
            over = measured.blocks.get((call.name, rule.over))
            under = measured.blocks.get((call.name, rule.under))
            if not over or not under:
                continue
            sides = {rule.over: over, rule.under: under}
            never_warm = any(warm_share(sides[name]) == 0 for name in warm & sides.keys())
            if never_warm and not rule.even_if_cold:
                continue
            found = _estimate(rule, over, under)
            ratios.append(
                {
                    "id": rule.id.format(call=call.name),
                    **found.ratio(),
                    "meaning": f"{rule.meaning}; {call.name}",
                    "rule": rule.id,
                    "call": call.name,
                    "warm_share": warm_share(under if rule.of != "cpu" else over),
                    "blocks": len(under),
                    "calls": sum(len(block.ns) for block in under),
                }
            )
    return ratios


def memory_of(use: MemoryUse) -> Row:
    """Returns private MiB of a process parked for a call: median, smallest and largest."""
    mib = sorted(kib["private"] / KIB_IN_MIB for kib in use.kib)
    suffix = "" if use.mode == "reserve" else f".{use.mode}"
    return {
        "id": f"warm.private_mib.{use.call}{suffix}",
        "value": round(median(mib), 3),
        "low": round(mib[0], 3),
        "high": round(mib[-1], 3),
        "meaning": f"private MiB of a process parked for {use.call}, mode {use.mode}; "
        "low and high are the smallest and the largest of the inspected ones",
        "rule": "warm.private_mib.{call}",
        "call": use.call,
        "processes": len(mib),
    }


def rows_of(measured: Measured) -> list[Row]:
    """Returns one row for each call and method of a cell, with its blocks."""
    cell = measured.task.cell
    methods = {method.name: method for method in measured.task.methods}
    rows: list[Row] = []
    for (call, name), blocks in measured.blocks.items():
        every = [ns / 1e3 for block in blocks for ns in block.ns]
        middle = estimate([median(block.ns) / 1e3 for block in blocks])
        row = {
            "cell": cell.name,
            "call": call,
            "method": name,
            "title": methods[name].title,
            "mode": methods[name].mode or "cold",
            "in_flight": cell.in_flight,
            "gap_ms": cell.gap_ms,
            "load": cell.load,
            "touched_mib": cell.touched_mib,
            "calls": len(every),
            **middle.figures("us_p50", 1),
            "us_p99": round(quantile(every, P99), 1),
            "us_p999": round(quantile(every, P999), 1),
            "cpu_us_per_call": round(
                1e6 * sum(block.cpu_seconds for block in blocks) / len(every), 1
            ),
            "warm_share": warm_share(blocks),
            "started": dict(started(blocks)),
        }
        if not cell.gap_ms and not cell.load:
            rate = estimate([len(block.ns) / block.seconds for block in blocks])
            row |= rate.figures("calls_per_s", 1)
        rows.append(row | {"block_p50_us": [round(median(b.ns) / 1e3, 1) for b in blocks]})
    return rows


def memory_row(use: MemoryUse) -> Row:
    """Returns the row with the memory of a call's parked processes."""
    return {"cell": "memory", "call": use.call, "mode": use.mode, "kib": use.kib}


def suite(
    measured: Sequence[Measured],
    memory_uses: Sequence[MemoryUse],
    rules: Sequence[Rule],
    machine: Mapping[str, object],
    left_out: Mapping[str, str],
) -> Row:
    """Returns the content of warm.json."""
    return {
        "suite": SUITE,
        "machine": dict(machine),
        "interval": INTERVAL,
        "left_out": dict(left_out),
        "ratios": [
            *(ratio for one in measured for ratio in ratios_of(one, rules)),
            *(memory_of(one) for one in memory_uses if one.kib),
        ],
        "rows": [
            *(row for one in measured for row in rows_of(one)),
            *(memory_row(one) for one in memory_uses),
        ],
    }
