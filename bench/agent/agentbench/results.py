# SPDX-License-Identifier: MIT OR Apache-2.0
"""Computes the ratios and rows of agent.json from measured cells."""

from collections.abc import Iterable, Mapping
from typing import Any

from common.stats import INTERVAL, estimate, round_ratios

from .backends import BACKENDS, FLOOR, kind_of, label_of
from .measure import CellResult, Series

SUITE = "agent"
AUTO, FORK = "auto", "fork"
AUTO_VS_FORK = "auto_vs_fork"
Row = dict[str, Any]


def better_platform(series: Mapping[str, Series]) -> str | None:
    """Returns the platform backend with the most calls per second over the whole cell."""
    platform = [name for name in series if kind_of(name) == "platform"]
    return max(platform, key=lambda name: series[name].calls_per_s, default=None)


def _ratio(identifier: str, ours: Series, theirs: Series, meaning: str) -> Row:
    found = estimate(round_ratios(ours.seconds, theirs.seconds))
    return {
        "id": identifier,
        **found.ratio(),
        "meaning": meaning,
        "rounds": len(ours.timings),
        "calls": ours.calls,
    }


def ratios_of(result: CellResult) -> list[Row]:
    """Returns every ratio of a cell.

    They compare ours with the better platform backend, both with the floor, and auto with fork.
    """
    cell, series = result.cell, result.series
    platform = better_platform(series)
    prefix = "agent.tool" if cell.per_tool else f"agent.{cell.harness}"
    where = f"{cell.set_name}" if cell.per_tool else f"{cell.split}.{cell.set_name}"
    ratios: list[Row] = []
    if platform and FLOOR in series and not cell.per_tool:
        meaning = (
            f"C floor, without a harness / {label_of(platform)}: about the most that a cold "
            f"launcher can reach; calls per second, {cell.harness} {cell.split}, {cell.set_name}"
        )
        identifier = f"agent.headroom.{cell.harness}.{where}"
        ratios.append(_ratio(identifier, series[FLOOR], series[platform], meaning))
    for name, own in series.items():
        if kind_of(name) != "ours":
            continue
        mode = BACKENDS[name].mode
        if platform:
            meaning = (
                f"{label_of(name)} ({mode}) / {label_of(platform)}, the better platform backend; "
                f"calls per second, {cell.harness} {cell.split}, {cell.set_name}"
            )
            ratios.append(_ratio(f"{prefix}.{where}.{mode}", own, series[platform], meaning))
        if FLOOR in series and cell.harness == "asyncio" and not cell.per_tool:
            meaning = (
                f"{label_of(name)} ({mode}) under asyncio / C floor; calls per second, "
                f"{cell.split}, {cell.set_name}"
            )
            ratios.append(_ratio(f"agent.floor.{where}.{mode}", own, series[FLOOR], meaning))
    if AUTO in series and FORK in series and not cell.per_tool:
        meaning = (
            f"{label_of(AUTO)}, trusted / {label_of(FORK)}; calls per second, "
            f"{cell.harness} {cell.split}, {cell.set_name}"
        )
        identifier = f"{prefix}.{where}.{AUTO_VS_FORK}"
        ratios.append(_ratio(identifier, series[AUTO], series[FORK], meaning))
    return ratios


def rows_of(result: CellResult) -> list[Row]:
    """Returns one row for each backend of a cell, with its rounds."""
    cell = result.cell
    platform = better_platform(result.series)
    rows: list[Row] = []
    for name, series in result.series.items():
        rates = [timing.calls / timing.seconds for timing in series.timings]
        rate = estimate(rates)
        rows.append(
            {
                "kind": "tool" if cell.per_tool else "cell",
                "harness": cell.harness,
                "split": cell.split,
                "set": cell.set_name,
                "backend": name,
                "label": label_of(name),
                "role": kind_of(name),
                "mode": "cold" if name == FLOOR else BACKENDS[name].mode,
                "better_platform": name == platform,
                "calls": series.calls,
                "seconds": round(sum(series.seconds), 4),
                "calls_per_s": round(series.calls_per_s, 2),
                "calls_per_s_median": round(rate.value, 2),
                "calls_per_s_low": round(rate.low, 2),
                "calls_per_s_high": round(rate.high, 2),
                "ms_per_call": round(1e3 / rate.value, 4),
                "ms_per_call_low": round(1e3 / rate.high, 4),
                "ms_per_call_high": round(1e3 / rate.low, 4),
                "cpu_ms_per_call": round(series.cpu_ms_per_call, 4),
                "started": dict(series.started),
                "round_seconds": [round(seconds, 5) for seconds in series.seconds],
            }
        )
    return rows


def suite(results: Iterable[CellResult], machine: Mapping[str, object]) -> dict[str, Any]:
    """Returns the content of agent.json."""
    results = list(results)
    return {
        "suite": SUITE,
        "machine": dict(machine),
        "interval": INTERVAL,
        "ratios": [ratio for result in results for ratio in ratios_of(result)],
        "rows": [row for result in results for row in rows_of(result)],
    }
