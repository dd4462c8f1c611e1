# SPDX-License-Identifier: MIT OR Apache-2.0
"""Computes the ratios and rows of job.json from measured cells."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from common.stats import INTERVAL, Estimate, estimate, quantile, round_ratios, tail_ratio

from .definitions import UNFILTERED, Rule
from .measure import Block, Measured

SUITE = "job"
TAIL = 0.999
Row = dict[str, Any]


def _estimate(rule: Rule, over: Sequence[Block], under: Sequence[Block]) -> Estimate:
    if rule.of == "stall":
        return tail_ratio(
            [block.late_us for block in over], [block.late_us for block in under], TAIL
        )

    def figure(block: Block) -> float:
        return median(block.ns) if rule.of == "p50" else block.seconds

    return estimate(round_ratios([figure(b) for b in under], [figure(b) for b in over]))


def ratios_of(measured: Measured, rules: Iterable[Rule]) -> list[Row]:
    """Returns the ratios of a cell. Leaves a ratio out if one of its methods was left out."""
    task, ratios = measured.task, []
    suffix = "" if task.filter == UNFILTERED else f".{task.filter}"
    for rule in rules:
        if rule.cell != task.cell.name:
            continue
        for name in task.members if "{call}" in rule.id else (task.cell.main_call,):
            over = measured.blocks.get((name, rule.over))
            under = measured.blocks.get((name, rule.under))
            if not over or not under:
                continue
            found = _estimate(rule, over, under)
            where = name if not suffix else f"{name}; all under {task.filter}'s seccomp profile"
            ratios.append(
                {
                    "id": rule.id.format(call=name) + suffix,
                    **found.ratio(),
                    "meaning": f"{rule.meaning}; {where}",
                    "rule": rule.id,
                    "call": name,
                    "filter": task.filter,
                    "blocks": len(under),
                    "calls": sum(block.calls for block in under),
                }
            )
    return ratios


def rows_of(measured: Measured) -> list[Row]:
    """Returns one row for each tool and method of a cell, with its blocks."""
    task = measured.task
    methods = {method.name: method for method in task.methods}
    rows: list[Row] = []
    for (name, method), blocks in measured.blocks.items():
        time = estimate([1e6 * block.seconds / block.calls for block in blocks])
        calls = sum(block.calls for block in blocks)
        row = {
            "cell": task.cell.name,
            "filter": task.filter,
            "parent": task.parent.name,
            "in_flight": task.cell.in_flight,
            "call": name,
            "method": method,
            "title": methods[method].title,
            "calls": calls,
            **time.figures("us_per_call", 2),
            "calls_per_s": round(1e6 / time.value, 2),
            "cpu_us_per_call": round(1e6 * sum(block.cpu_seconds for block in blocks) / calls, 2),
            "block_seconds": [round(block.seconds, 6) for block in blocks],
        }
        if all(block.ns for block in blocks):
            middle = estimate([median(block.ns) / 1e3 for block in blocks])
            row |= middle.figures("us_p50", 2)
        late = [sample for block in blocks for sample in block.late_us]
        if late:
            row["ticks"] = len(late)
            row |= {
                f"late_us_{label}": quantile(late, share)
                for label, share in (("p50", 0.5), ("p99", 0.99), ("p99.9", TAIL))
            }
        rows.append(row)
    return rows


def suite(
    measured: Iterable[Measured],
    rules: Sequence[Rule],
    machine: Mapping[str, object],
    left_out: Mapping[str, str],
) -> Row:
    """Returns the content of job.json."""
    measured = list(measured)
    return {
        "suite": SUITE,
        "machine": dict(machine),
        "interval": INTERVAL,
        "left_out": dict(left_out),
        "ratios": [ratio for one in measured for ratio in ratios_of(one, rules)],
        "rows": [row for one in measured for row in rows_of(one)],
    }
