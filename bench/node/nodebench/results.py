# SPDX-License-Identifier: MIT OR Apache-2.0
"""Computes the ratios and rows of node.json from measured cells."""

from collections.abc import Mapping, Sequence
from itertools import product
from statistics import median

from common import results, session
from common.definitions import Rule
from common.measure import Measured
from common.results import Row, cpu_us, row_of, started
from common.stats import estimate


def rows_of(measured: Measured) -> list[Row]:
    """Returns one row for each tool and method of a cell, with its blocks."""
    task = measured.task
    rows: list[Row] = []
    for name, method in product(task.calls, task.methods):
        blocks = measured.blocks[name, method.name]
        row = {
            **row_of(task, name, method.name, blocks),
            "host": method.host or "",
            "parent": task.cell.parent,
            "cpu_us_per_call": round(cpu_us(blocks), 2),
            "started": dict(started(blocks)),
            "block_seconds": [round(block.seconds, 6) for block in blocks],
        }
        # The pauses between the calls are part of a block.
        if not task.cell.gap_ms:
            time = estimate([1e6 * block.seconds / block.calls for block in blocks])
            row |= {**time.figures("us_per_call", 2), "calls_per_s": round(1e6 / time.value, 2)}
        if all(block.ns for block in blocks):
            middle = estimate([median(block.ns) / 1e3 for block in blocks])
            row |= middle.figures("us_p50", 2)
        if all(block.held_ns for block in blocks):
            held = estimate([median(block.held_ns) / 1e3 for block in blocks])
            row |= held.figures("held_us_p50", 2)
        if all(block.gap_us for block in blocks):
            longest = estimate([max(block.gap_us) / 1e3 for block in blocks])
            row |= longest.figures("gap_ms_max", 3)
        rows.append(row)
    return rows


def suite(
    measured: Sequence[Measured],
    rules: Sequence[Rule],
    machine: Mapping[str, object],
    left_out: Mapping[str, str],
) -> Row:
    """Returns the content of node.json."""
    ratios = (ratio for one in measured for ratio in results.ratios_of(one, rules, lambda pair: {}))
    rows = (row for one in measured for row in rows_of(one))
    return session.suite("node", machine, ratios, rows, left_out=dict(left_out))
