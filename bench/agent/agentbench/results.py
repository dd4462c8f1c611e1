# SPDX-License-Identifier: MIT OR Apache-2.0
"""Computes the ratios and rows of agent.json from measured cells."""

from collections.abc import Mapping, Sequence

from common import session
from common.floor import FLOOR
from common.measure import Block
from common.results import Row, calls_of, cpu_us, estimate_of, started
from common.stats import estimate

from .backends import kind_of, label_of, mode_of
from .measure import CellResult

AUTO, FORK = "auto", "fork"
AUTO_VS_FORK = "auto_vs_fork"
Series = Sequence[Block]


def _seconds(series: Series) -> float:
    return sum(block.seconds for block in series)


def _rate(series: Series) -> float:
    return calls_of(series) / _seconds(series)


def better_platform(series: Mapping[str, Series]) -> str | None:
    """Returns the platform backend with the most calls per second over the whole cell."""
    platform = [name for name in series if kind_of(name) == "platform"]
    return max(platform, key=lambda name: _rate(series[name]), default=None)


def _ratio(identifier: str, ours: Series, theirs: Series, meaning: str) -> Row:
    return {
        "id": identifier,
        **estimate_of("time", theirs, ours).ratio(),
        "meaning": meaning,
        "rounds": len(ours),
        "calls": calls_of(ours),
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
        mode = mode_of(name)
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
        rate = estimate([block.calls / block.seconds for block in series])
        rows.append(
            {
                "kind": "tool" if cell.per_tool else "cell",
                "harness": cell.harness,
                "split": cell.split,
                "set": cell.set_name,
                "backend": name,
                "label": label_of(name),
                "role": kind_of(name),
                "mode": mode_of(name),
                "better_platform": name == platform,
                "calls": calls_of(series),
                "seconds": round(_seconds(series), 4),
                "calls_per_s": round(_rate(series), 2),
                "calls_per_s_median": round(rate.value, 2),
                "calls_per_s_low": round(rate.low, 2),
                "calls_per_s_high": round(rate.high, 2),
                "ms_per_call": round(1e3 / rate.value, 4),
                "ms_per_call_low": round(1e3 / rate.high, 4),
                "ms_per_call_high": round(1e3 / rate.low, 4),
                "cpu_ms_per_call": round(cpu_us(series) / 1e3, 4),
                "started": dict(started(series)),
                "round_seconds": [round(block.seconds, 5) for block in series],
            }
        )
    return rows


def suite(results: Sequence[CellResult], machine: Mapping[str, object]) -> Row:
    """Returns the content of agent.json."""
    ratios = (ratio for result in results for ratio in ratios_of(result))
    rows = (row for result in results for row in rows_of(result))
    return session.suite("agent", machine, ratios, rows)
