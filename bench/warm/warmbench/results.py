# SPDX-License-Identifier: MIT OR Apache-2.0
"""Computes the ratios and rows of warm.json from measured cells."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from common import results, session
from common.definitions import Parent, Rule
from common.measure import Measured
from common.results import P99, P999, Pair, Row, cpu_us, row_of, started, warm_share
from common.stats import estimate, quantile

from .memory import MemoryUse

KIB_IN_MIB = 1024


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


def _share(pair: Pair) -> Row:
    return {"warm_share": warm_share(pair.under if pair.rule.of != "cpu" else pair.over)}


def ratios_of(measured: Measured, rules: Sequence[Rule]) -> list[Row]:
    """Returns the ratios of a cell.

    Leaves a ratio out if one of its methods was left out, or if a warm method was never warm.
    """
    return results.ratios_of(measured, rules, _share)


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


def rows_of(measured: Measured, parents: Mapping[str, Parent]) -> list[Row]:
    """Returns one row for each call and method of a cell, with its blocks."""
    cell = measured.task.cell
    methods = {method.name: method for method in measured.task.methods}
    rows: list[Row] = []
    for (call, name), blocks in measured.blocks.items():
        every = [ns / 1e3 for block in blocks for ns in block.ns]
        middles = [median(block.ns) / 1e3 for block in blocks]
        row = {
            **row_of(measured.task, call, name, blocks),
            "mode": methods[name].mode or "cold",
            "gap_ms": cell.gap_ms,
            "load": cell.load,
            "touched_mib": parents[cell.parent].touch_mib,
            **estimate(middles).figures("us_p50", 1),
            "us_p99": round(quantile(every, P99), 1),
            "us_p999": round(quantile(every, P999), 1),
            "cpu_us_per_call": round(cpu_us(blocks), 1),
            "warm_share": warm_share(blocks),
            "started": dict(started(blocks)),
        }
        if not cell.gap_ms and not cell.load:
            rate = estimate([len(block.ns) / block.seconds for block in blocks])
            row |= rate.figures("calls_per_s", 1)
        rows.append(row | {"block_p50_us": [round(us, 1) for us in middles]})
    return rows


def memory_row(use: MemoryUse) -> Row:
    """Returns the row with the memory of a call's parked processes."""
    return {"cell": "memory", "call": use.call, "mode": use.mode, "kib": use.kib}


def suite(
    measured: Sequence[Measured],
    memory_uses: Sequence[MemoryUse],
    rules: Sequence[Rule],
    parents: Mapping[str, Parent],
    machine: Mapping[str, object],
    left_out: Mapping[str, str],
) -> Row:
    """Returns the content of warm.json."""
    ratios = [ratio for one in measured for ratio in ratios_of(one, rules)]
    rows = [row for one in measured for row in rows_of(one, parents)]
    return session.suite(
        "warm",
        machine,
        [*ratios, *(memory_of(one) for one in memory_uses if one.kib)],
        [*rows, *(memory_row(one) for one in memory_uses)],
        left_out=dict(left_out),
    )
