# SPDX-License-Identifier: MIT OR Apache-2.0
"""Compares ratios with the bars of bench/bars.toml."""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import BenchError

BARS_FILE = Path(__file__).resolve().parents[1] / "bars.toml"
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Verdict:
    """A bar, and the ratio measured for it."""

    id: str
    op: str
    bar: float
    text: str
    ratio: Row | None
    judged: str = "value"

    @property
    def status(self) -> str:
        """Returns met, met narrowly (the interval crosses the bar), missed, or not measured."""
        if self.ratio is None:
            return "not measured"
        if not _holds(self.ratio[self.judged], self.op, self.bar):
            return "missed"
        weak = self.ratio["low"] if self.op == ">=" else self.ratio["high"]
        return "met" if _holds(weak, self.op, self.bar) else "met narrowly"


def _holds(value: float, op: str, bar: float) -> bool:
    return value >= bar if op == ">=" else value <= bar


def load(path: Path = BARS_FILE) -> list[Row]:
    """Returns the bars, in the order of the file."""
    bars: list[Row] = tomllib.loads(path.read_text(encoding="utf-8"))["bar"]
    for bar in bars:
        if bar["op"] not in ("<=", ">="):
            raise BenchError(f"{path.name}: {bar['id']}: op = {bar['op']!r}")
        if bar.get("judged", "value") not in ("value", "low"):
            raise BenchError(f"{path.name}: {bar['id']}: judged = {bar['judged']!r}")
    return bars


def judge(bars: Iterable[Row], ratios: Iterable[Row]) -> list[Verdict]:
    """Returns a verdict for each bar."""
    found = {ratio["id"]: ratio for ratio in ratios}
    return [Verdict(ratio=found.get(bar["id"]), **bar) for bar in bars]


def verdicts(ratios: Iterable[Row]) -> dict[str, Verdict]:
    """Returns the verdict of each bar in bars.toml by its id."""
    return {verdict.id: verdict for verdict in judge(load(), ratios)}
