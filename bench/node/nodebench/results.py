# SPDX-License-Identifier: MIT OR Apache-2.0
"""Computes the ratios and rows of node.json from measured cells."""

from collections.abc import Mapping, Sequence
from itertools import product
from statistics import median

from common import results, session
from common.definitions import Rule
from common.measure import Measured
from common.results import Row, started, timed_row
from common.stats import estimate


def rows_of(measured: Measured) -> list[Row]:
    """Returns one row for each tool and method of a cell, with its blocks."""
    task = measured.task
    rows: list[Row] = []
    for name, method in product(task.calls, task.methods):
        blocks = measured.blocks[name, method.name]
        row = {
            **timed_row(task, name, method.name, blocks),
            "host": method.host or "",
            "started": dict(started(blocks)),
        }
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
