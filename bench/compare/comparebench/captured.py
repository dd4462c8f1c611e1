# SPDX-License-Identifier: MIT OR Apache-2.0
"""The job and warm suites: drives their worker processes, with one method and call at a time."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import jobbench.cli
import warmbench.cli
from common import machine, presets
from common.definitions import Cell, Definitions, Rule, load
from common.measure import Block, Task, fleets
from common.results import FIGURES, TAILS, warm_share
from common.session import NATIVE, Setting, make_setting
from common.stats import quantile

from .quantity import Better, Measure, Missing, Offer

# The number of calls in a block. It is small, so that little time passes between the blocks of a
# pair.
CALLS = 3
GAP_CALLS = 1


@dataclass(frozen=True)
class Source:
    """Our side of a rule, for one call."""

    rule: Rule
    call: str

    @property
    def quantity(self) -> str:
        """The quantity's name."""
        return f"{self.rule.id.split('.')[0]} {self.rule.cell} {self.rule.under} {self.call}"


class Cells:
    """The ids of a suite with cells. A rule with {call} in its id has one id for each call."""

    def __init__(self, definitions: Definitions, rules: Sequence[Rule], scratch: Path) -> None:
        self._definitions = definitions
        self._scratch = scratch
        self._cells = {cell.name: cell for cell in definitions.cells}
        self._sources = {
            rule.id.format(call=call): Source(rule, call)
            for rule in rules
            for call in rule.calls(self._cells[rule.cell])
        }

    def _unit(self, rule: Rule) -> str:
        """Returns us for a time, or 1/s for a rate."""
        raise NotImplementedError

    def _calls(self, rule: Rule, cell: Cell) -> int:
        """Returns the number of calls in a block."""
        raise NotImplementedError

    def _commands(self, task: Task) -> Mapping[str, list[str]]:
        """Returns the worker's command. Raises Missing if this machine cannot measure the task."""
        raise NotImplementedError

    def _check_first(self, source: Source, block: Block) -> None:
        """Raises Missing if the first block shows that the quantity cannot be measured."""

    def offers(self) -> Sequence[Offer]:
        """Returns the ids that include a time or rate of ours."""
        offers: list[Offer] = []
        for id_, source in self._sources.items():
            unit = self._unit(source.rule)
            calls = self._calls(source.rule, self._cells[source.rule.cell])
            better: Better = "less" if unit == "us" else "more"
            offers.append(Offer(id_, source.quantity, unit, better, calls))
        return offers

    @contextmanager
    def open(self, quantity: str) -> Iterator[Measure]:
        """Starts a worker, and makes its first calls."""
        source = next(s for s in self._sources.values() if s.quantity == quantity)
        rule, names = source.rule, [source.call]
        cell = self._cells[rule.cell]
        method = self._definitions.methods[rule.under]
        task = Task(cell, (source.call,), (method,), 1, 1)
        commands = self._commands(task)
        with fleets(f"{rule.id.split('.')[0]}", task.title, commands) as running:
            fleet = running[method.name]

            def measure(calls: int) -> float:
                block = fleet.run(names * calls)
                if rule.of in TAILS:
                    samples, share = TAILS[rule.of]
                    return quantile(samples(block), share)
                if rule.of == "p50":
                    return FIGURES["p50"](block) / 1e3
                rate = block.calls / block.seconds
                return rate if self._unit(rule) == "1/s" else 1e6 / rate

            self._check_first(source, fleet.run(names * task.warm_up))
            yield measure


class Job(Cells):
    """The job ids: time per captured call, and the stall of an event loop."""

    def __init__(self, program: Path, scratch: Path) -> None:
        self._program = program
        definitions = load(jobbench.cli.DEFINITIONS_FILE)

        def is_ours(name: str) -> bool:
            return definitions.methods[name].way.startswith(("spawnfd.", NATIVE))

        # Two tiers are both ours. The id names the numerator.
        ours = [
            replace(rule, under=rule.over) if is_ours(rule.over) else rule
            for rule in definitions.rules
            if is_ours(rule.under)
        ]
        super().__init__(definitions, ours, scratch / "job")

    def _unit(self, rule: Rule) -> str:
        return "us"

    def _calls(self, rule: Rule, cell: Cell) -> int:
        # A quantile needs many ticks (events of the loop's timer), and a median some calls.
        needs_many = cell.tick_us or rule.of == "p50"
        return cell.per_block["quick"] if needs_many else max(CALLS, 2 * cell.in_flight)

    @cached_property
    def _setting(self) -> Setting:
        self._scratch.mkdir()
        calls = presets.load()
        tools = presets.resolve_tools(calls, {})
        setting = make_setting(self._scratch, calls, tools, floors=())
        return replace(setting, native=self._program)

    def _commands(self, task: Task) -> Mapping[str, list[str]]:
        touch_mib = self._definitions.parents[task.cell.parent].touch_mib
        free = machine.free_mib()
        if why := jobbench.cli.why_not(task, touch_mib, free, None, self._program):
            raise Missing(why)
        return jobbench.cli.commands(self._setting, self._definitions, task)


class Warm(Cells):
    """The warm ids: time of one warm call, and warm calls per second. Ours is the denominator."""

    def __init__(self, scratch: Path) -> None:
        definitions = load(warmbench.cli.DEFINITIONS_FILE)
        rules = [rule for rule in definitions.rules if rule.of in ("p50", "time")]
        super().__init__(definitions, rules, scratch / "warm")

    def _unit(self, rule: Rule) -> str:
        return "us" if rule.of == "p50" else "1/s"

    def _calls(self, rule: Rule, cell: Cell) -> int:
        return GAP_CALLS if cell.gap_ms else 2 * cell.in_flight

    @cached_property
    def _prepared(self) -> warmbench.cli.Prepared:
        self._scratch.mkdir()
        return warmbench.cli.prepare(self._scratch, self._definitions, {})

    def _commands(self, task: Task) -> Mapping[str, list[str]]:
        if why := self._prepared.reasons[task.calls[0]]:
            raise Missing(why)
        prepared = self._prepared
        return warmbench.cli.commands(prepared.setting, self._definitions, prepared.calls, task)

    def _check_first(self, source: Source, block: Block) -> None:
        method = self._definitions.methods[source.rule.under]
        if method.mode and warm_share([block]) == 0 and not source.rule.even_if_cold:
            raise Missing(f"never warm: {dict(block.started)}")
