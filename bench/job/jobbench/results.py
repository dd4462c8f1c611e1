# SPDX-License-Identifier: MIT OR Apache-2.0
"""Computes the ratios and rows of job.json from measured cells."""

from collections.abc import Mapping, Sequence

from common import results, session
from common.definitions import Rule
from common.measure import Measured
from common.results import P99, P999, Row, timed_row
from common.stats import quantile


def ratios_of(measured: Measured, rules: Sequence[Rule]) -> list[Row]:
    """Returns the ratios of a cell. Leaves a ratio out if one of its methods was left out."""
    return results.ratios_of(measured, rules, lambda pair: {"filter": pair.task.filter})


def rows_of(measured: Measured) -> list[Row]:
    """Returns one row for each tool and method of a cell, with its blocks."""
    task = measured.task
    rows: list[Row] = []
    for (name, method), blocks in measured.blocks.items():
        row = {**timed_row(task, name, method, blocks), "filter": task.filter}
        if late := [sample for block in blocks for sample in block.late_us]:
            row["ticks"] = len(late)
            for label, share in (("p50", 0.5), ("p99", P99), ("p99.9", P999)):
                row[f"late_us_{label}"] = quantile(late, share)
        rows.append(row)
    return rows


def suite(
    measured: Sequence[Measured],
    rules: Sequence[Rule],
    machine: Mapping[str, object],
    left_out: Mapping[str, str],
) -> Row:
    """Returns the content of job.json."""
    ratios = (ratio for one in measured for ratio in ratios_of(one, rules))
    rows = (row for one in measured for row in rows_of(one))
    return session.suite("job", machine, ratios, rows, left_out=dict(left_out))
