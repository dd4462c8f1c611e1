# SPDX-License-Identifier: MIT OR Apache-2.0
"""The job and warm suites: drives their worker processes, with one method and call at a time."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Generic, TypeVar

import jobbench.definitions
import jobbench.measure
import warmbench.cli
import warmbench.definitions
import warmbench.measure
import warmbench.results
from common import presets
from common.session import Setting, make_setting
from common.stats import quantile
from jobbench.definitions import PLAIN, UNFILTERED
from jobbench.methods import NATIVE

from .quantity import Measure, Missing, Offer

STALL_QUANTILE = 0.999
# The number of calls in a block. It is small, so that little time passes between the blocks of a
# pair.
CALLS = 3
GAP_CALLS = 1
Rule = TypeVar("Rule", jobbench.definitions.Rule, warmbench.definitions.Rule)


@dataclass(frozen=True)
class Source(Generic[Rule]):
    """Our side of a rule, for one call."""

    rule: Rule
    call: str

    @property
    def quantity(self) -> str:
        """The quantity's name."""
        return f"{self.rule.id.split('.')[0]} {self.rule.cell} {self.rule.under} {self.call}"


def _sources(rules: Sequence[Rule], calls: Mapping[str, Sequence[str]]) -> dict[str, Source[Rule]]:
    """Returns the sources by id. A rule with {call} in its id has one source for each call."""

    def calls_of(rule: Rule) -> Sequence[str]:
        names = calls[rule.cell]
        return names if "{call}" in rule.id or PLAIN not in names else (PLAIN,)

    return {
        rule.id.format(call=call): Source(rule, call) for rule in rules for call in calls_of(rule)
    }


class Job:
    """The job ids: time per captured call, and the stall of an event loop."""

    def __init__(self, program: Path, scratch: Path) -> None:
        self._program = program
        self._scratch = scratch / "job"
        self._definitions = jobbench.definitions.load()
        self._presets = presets.load()
        self._cells = {cell.name: cell for cell in self._definitions.cells}
        calls = {cell.name: cell.members(self._presets) for cell in self._cells.values()}
        methods = self._definitions.methods

        def is_ours(name: str) -> bool:
            return methods[name].way.startswith("spawnfd.") or methods[name].way in NATIVE

        # Two tiers are both ours. The id names the numerator.
        ours = [
            replace(rule, under=rule.over) if is_ours(rule.over) else rule
            for rule in self._definitions.rules
            if is_ours(rule.under)
        ]
        self._sources = _sources(ours, calls)

    def offers(self) -> Sequence[Offer]:
        """Returns the ids whose denominator is ours."""
        offers: list[Offer] = []
        for id_, source in self._sources.items():
            cell = self._cells[source.rule.cell]
            # A quantile needs many ticks (events of the loop's timer), and a median some calls.
            needs_many = cell.tick_us or source.rule.of == "p50"
            calls = cell.per_block["quick"] if needs_many else max(CALLS, 2 * cell.in_flight)
            offers.append(Offer(id_, source.quantity, "us", "less", calls))
        return offers

    @cached_property
    def _setting(self) -> Setting:
        self._scratch.mkdir()
        tools = presets.resolve_tools(self._presets, {})
        setting = make_setting(self._scratch, self._presets, tools, floors=())
        return replace(setting, native=self._program)

    @contextmanager
    def open(self, quantity: str) -> Iterator[Measure]:
        """Starts a worker, and makes its first calls."""
        source = next(s for s in self._sources.values() if s.quantity == quantity)
        cell = self._cells[source.rule.cell]
        method = self._definitions.methods[source.rule.under]
        parent = self._definitions.parents[cell.parent]
        task = jobbench.measure.Task(cell, UNFILTERED, (source.call,), (method,), parent, 1, 1)
        free = jobbench.measure.free_mib()
        if why := jobbench.measure.why_not(task, None, free, self._program):
            raise Missing(why)
        with jobbench.measure.workers(self._setting, task) as running:
            worker = running[method.name]

            def measure(calls: int) -> float:
                block = jobbench.measure.run_block(worker, source.call, calls)
                if source.rule.of == "stall":
                    return quantile(block.late_us, STALL_QUANTILE)
                if source.rule.of == "p50":
                    return median(block.ns) / 1e3
                return 1e6 * block.seconds / block.calls

            measure(2 * cell.in_flight)
            yield measure


class Warm:
    """The warm ids: time of one warm call, and warm calls per second."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch / "warm"
        self._definitions = warmbench.definitions.load()
        self._cells = {cell.name: cell for cell in self._definitions.cells}
        rules = [rule for rule in self._definitions.rules if rule.of in ("p50", "time")]
        self._sources = _sources(rules, {name: cell.calls for name, cell in self._cells.items()})

    def offers(self) -> Sequence[Offer]:
        """Returns the ids of a median time or of a rate. The warm side is the denominator."""
        offers: list[Offer] = []
        for id_, source in self._sources.items():
            cell = self._cells[source.rule.cell]
            calls = GAP_CALLS if cell.gap_ms else 2 * cell.in_flight
            if source.rule.of == "p50":
                offers.append(Offer(id_, source.quantity, "us", "less", calls))
            else:
                offers.append(Offer(id_, source.quantity, "1/s", "more", calls))
        return offers

    @cached_property
    def _prepared(self) -> warmbench.cli.Prepared:
        self._scratch.mkdir()
        return warmbench.cli.prepare(self._scratch, self._definitions, {})

    @contextmanager
    def open(self, quantity: str) -> Iterator[Measure]:
        """Starts a worker, waits until it has parked, and makes its first calls."""
        source = next(s for s in self._sources.values() if s.quantity == quantity)
        cell = self._cells[source.rule.cell]
        method = self._definitions.methods[source.rule.under]
        if why := self._prepared.reasons[source.call]:
            raise Missing(why)
        call = self._prepared.calls[source.call]
        task = warmbench.measure.Task(cell, (call,), (method,), 1, 1)
        with warmbench.measure.workers(self._prepared.setting, task) as running:
            worker = running[method.name]
            first = warmbench.measure.run_block(worker, source.call, task.warm_up)
            never_warm = method.mode and warmbench.results.warm_share([first]) == 0
            if never_warm and not source.rule.even_if_cold:
                raise Missing(f"never warm: {dict(first.started)}")

            def measure(calls: int) -> float:
                block = warmbench.measure.run_block(worker, source.call, calls)
                if source.rule.of == "p50":
                    return median(block.ns) / 1e3
                return len(block.ns) / block.seconds

            yield measure
