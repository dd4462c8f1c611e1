# SPDX-License-Identifier: MIT OR Apache-2.0
"""Measures two builds in turns: sessions of short paired blocks, in passes over all quantities."""

import math
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from statistics import median
from typing import Any

from common.errors import BenchError
from common.pipe import Worker

from .judge import FEWEST, Judged, Verdict, judge

PROTOCOL = 1
# Measuring again ends at this width, so that it is below judge.WIDEST also if it grows a little.
NARROW = 0.05


@dataclass(frozen=True)
class Plan:
    """How much is measured.

    Attributes:
        passes: Over all quantities, each with one session of `session_s` and at least two pairs.
        again_s: The same for a session of a quantity that is undecided after the passes.
        deadline_s: No pass begins later after the start of the command, builds included.
    """

    passes: int
    session_s: float
    again_s: float
    deadline_s: float


QUICK = Plan(passes=8, session_s=0.25, again_s=1.0, deadline_s=555)
FULL = Plan(passes=12, session_s=0.5, again_s=2.0, deadline_s=1_770)


@dataclass
class Subject:
    """A quantity of both builds, and its sessions so far.

    Attributes:
        quantities: What the base and the new build call it.
        sessions: For each session its pairs of figures, base and new.
    """

    ids: list[str]
    quantities: tuple[str, str]
    unit: str
    better: str
    calls: int
    barred: bool
    sessions: list[list[tuple[float, float]]] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)

    def changes(self) -> list[float]:
        """A session's change is the median over its pairs; positive is worse."""
        sign = 1 if self.better == "less" else -1
        return [
            median(sign * math.log(new / base) for base, new in pairs) for pairs in self.sessions
        ]

    def judge(self, judged: int) -> Judged:
        """The intervals."""
        return judge(self.changes(), judged)


class Side:
    """One build's server."""

    def __init__(self, name: str, server: Worker) -> None:
        self.name = name
        self._server = server
        hello = server.hear("protocol")
        if hello["protocol"] != PROTOCOL:
            raise BenchError(
                f"the {name} build's server speaks protocol {hello['protocol']}, not {PROTOCOL}"
            )
        self.offers: dict[str, dict[str, Any]] = {offer["id"]: offer for offer in hello["offers"]}

    def open(self, quantity: str) -> str | None:
        """Has a fresh worker started; the reason if that is impossible."""
        self._server.tell(do="open", quantity=quantity)
        reply = self._server.hear("opened")
        return None if reply["opened"] else str(reply["missing"])

    def measure(self, calls: int) -> float:
        """The figure of a block."""
        self._server.tell(do="measure", calls=calls)
        return float(self._server.hear("figure")["figure"])

    def tell_close(self) -> None:
        """Tells the server to end its worker."""
        self._server.tell(do="close")

    def hear_closed(self) -> None:
        """Waits until the worker has ended."""
        self._server.hear("closed")


def choose(
    base: Side, work: Side, barred: Collection[str], patterns: Sequence[str]
) -> tuple[list[Subject], dict[str, str]]:
    """The quantities that are asked for, and the ids that only one build has.

    Without patterns: those of ids that have a bar.
    """

    def wanted(id_: str) -> bool:
        return any(fnmatchcase(id_, p) for p in patterns) if patterns else id_ in barred

    found: dict[tuple[str, str], Subject] = {}
    for id_, offer in work.offers.items():
        if not wanted(id_) or id_ not in base.offers:
            continue
        key = base.offers[id_]["quantity"], offer["quantity"]
        subject = found.setdefault(
            key, Subject([], key, offer["unit"], offer["better"], offer["calls"], False)
        )
        subject.ids.append(id_)
        subject.barred |= id_ in barred
    alone = {id_: f"only in the {side.name} build" for side in (base, work) for id_ in side.offers}
    both = base.offers.keys() & work.offers.keys()
    return list(found.values()), {
        id_: why for id_, why in alone.items() if wanted(id_) and id_ not in both
    }


def _close(sides: Sequence[Side]) -> None:
    # All at once: some workers wait a second for their last child.
    for side in sides:
        side.tell_close()
    for side in sides:
        side.hear_closed()


class Driver:
    """Takes sessions of both builds."""

    def __init__(self, base: Side, work: Side, seed: int) -> None:
        self._sides = (base, work)
        self._random = random.Random(seed)

    def session(self, subject: Subject, seconds: float) -> None:
        """Fresh workers of both builds, and pairs of blocks in the order ABBA.

        A subject that one of them cannot measure is marked.
        """
        order = self._random.sample((0, 1), 2)
        opened: list[Side] = []
        for index in order:
            side = self._sides[index]
            why = side.open(subject.quantities[index])
            if why:
                subject.missing[side.name] = why
            else:
                opened.append(side)
        if not subject.missing:
            subject.sessions.append(self._pairs(subject, order, seconds))
        _close(opened)
        if len(opened) == 1:
            self._try_alone(subject)

    def _try_alone(self, subject: Subject) -> None:
        """If a build lacks memory only beside the other, none of the two has lost the quantity."""
        (name,) = subject.missing
        index = 0 if name == self._sides[0].name else 1
        side = self._sides[index]
        if side.open(subject.quantities[index]) is None:
            _close([side])
            why = f"not beside the other build: {subject.missing[name]}"
            subject.missing = {each.name: why for each in self._sides}

    def _pairs(
        self, subject: Subject, order: Sequence[int], seconds: float
    ) -> list[tuple[float, float]]:
        pairs: list[tuple[float, float]] = []
        until = time.monotonic() + seconds
        while len(pairs) < 2 or len(pairs) % 2 or time.monotonic() < until:
            turn = order if len(pairs) % 2 == 0 else order[::-1]
            figures = {side: self._sides[side].measure(subject.calls) for side in turn}
            pairs.append((figures[0], figures[1]))
        return pairs

    def one_pass(self, subjects: Sequence[Subject], seconds: float) -> float:
        """A session of each subject, in random order; how long the pass took."""
        begin = time.monotonic()
        for subject in self._random.sample(subjects, len(subjects)):
            if not subject.missing:
                self.session(subject, seconds)
        return time.monotonic() - begin

    def passes(
        self, subjects: Sequence[Subject], plan: Plan, end: float, say: Callable[[str], None]
    ) -> None:
        """The passes over all subjects; fewer if the time is short."""
        took = 0.0
        for number in range(plan.passes):
            if number > FEWEST and time.monotonic() + took > end:
                break
            took = self.one_pass(subjects, plan.session_s)
            say(f"pass {number + 1}: {len(subjects)} quantities, {took:.0f} s")

    def again(
        self, subjects: Sequence[Subject], plan: Plan, end: float, say: Callable[[str], None]
    ) -> None:
        """Passes over these subjects alone; a subject leaves when its interval is narrow enough.

        Where the interval lies plays no part in that, or looking often would make alarms likely.
        """
        longest = 0.0
        number = 0
        while subjects and time.monotonic() + longest < end:
            took = self.one_pass(subjects, plan.again_s)
            longest = max(longest, took)
            number += 1
            say(f"again {number}: {len(subjects)} quantities alone, {took:.0f} s")
            subjects = [s for s in subjects if s.judge(1).interval.width > NARROW]


def undecided(subjects: Sequence[Subject], judged: int) -> list[Subject]:
    """Subjects whose interval is too wide, or lies beyond the limit at 95 % only."""
    open_ = (Verdict.NOISY, Verdict.UNCLEAR)
    return [s for s in subjects if not s.missing and s.judge(judged).verdict in open_]


def compare(
    servers: Mapping[str, Worker],
    barred: Collection[str],
    patterns: Sequence[str],
    plan: Plan,
    seed: int,
    end: float,
    say: Callable[[str], None],
) -> tuple[list[Subject], dict[str, str]]:
    """Measures what is asked for by the servers "base" and "new"; see `choose`."""
    base, work = (Side(name, servers[name]) for name in ("base", "new"))
    subjects, alone = choose(base, work, barred, patterns)
    if not subjects:
        raise BenchError(f"no id matches {' '.join(patterns) or 'a bar'}")
    driver = Driver(base, work, seed)
    driver.passes(subjects, plan, end, say)
    judged = sum(subject.barred for subject in subjects)
    driver.again(undecided(subjects, judged), plan, end, say)
    return subjects, alone
