# SPDX-License-Identifier: MIT OR Apache-2.0
"""Measures two builds alternately: sessions of paired blocks, in passes over all quantities."""

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
# Repeated measuring ends at this width. It is below judge.WIDEST, in case the interval grows a bit.
NARROW = 0.05


@dataclass(frozen=True)
class Plan:
    """The size of a run.

    Attributes:
        passes: Passes over all quantities, each with one session of `session_s` seconds and at
            least two pairs.
        again_s: Seconds of a session for a quantity that is undecided after the passes.
        deadline_s: No pass begins later than this after the command's start, builds included.
    """

    passes: int
    session_s: float
    again_s: float
    deadline_s: float


QUICK = Plan(passes=8, session_s=0.25, again_s=1.0, deadline_s=555)
FULL = Plan(passes=12, session_s=0.5, again_s=2.0, deadline_s=1_770)


@dataclass
class Subject:
    """A quantity of both builds, with its sessions so far.

    Attributes:
        quantities: Its names in the base and the new build.
        sessions: For each session, its pairs of figures (base, new).
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
        """The change of each session: the median over its pairs. Positive means worse."""
        sign = 1 if self.better == "less" else -1
        return [
            median(sign * math.log(new / base) for base, new in pairs) for pairs in self.sessions
        ]

    def judge(self, judged: int) -> Judged:
        """Returns the change with its intervals."""
        return judge(self.changes(), judged)


class Side:
    """One build's server."""

    def __init__(self, name: str, server: Worker) -> None:
        self.name = name
        self._server = server
        hello = server.receive("protocol")
        if hello["protocol"] != PROTOCOL:
            raise BenchError(
                f"the {name} build's server speaks protocol {hello['protocol']}, not {PROTOCOL}"
            )
        self.offers: dict[str, dict[str, Any]] = {offer["id"]: offer for offer in hello["offers"]}

    def open(self, quantity: str) -> str | None:
        """Makes the server start a new worker. Returns the reason if that is impossible."""
        self._server.send(do="open", quantity=quantity)
        reply = self._server.receive("opened")
        return None if reply["opened"] else str(reply["missing"])

    def measure(self, calls: int) -> float:
        """Measures a block, and returns its figure."""
        self._server.send(do="measure", calls=calls)
        return float(self._server.receive("figure")["figure"])

    def request_close(self) -> None:
        """Orders the server to end its worker."""
        self._server.send(do="close")

    def wait_closed(self) -> None:
        """Waits until the worker has ended."""
        self._server.receive("closed")


def choose(
    base: Side, work: Side, barred: Collection[str], patterns: Sequence[str]
) -> tuple[list[Subject], dict[str, str]]:
    """Returns the chosen quantities, and the ids that only one build has.

    Without patterns, chooses the ids that have a bar.
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
    # Both servers end their workers at the same time, because some workers wait a second for a
    # child.
    for side in sides:
        side.request_close()
    for side in sides:
        side.wait_closed()


class Driver:
    """Takes sessions of both builds."""

    def __init__(self, base: Side, work: Side, seed: int) -> None:
        self._sides = (base, work)
        self._random = random.Random(seed)

    def session(self, subject: Subject, seconds: float) -> None:
        """Starts workers of both builds, and measures pairs of blocks in the order ABBA.

        Records in subject.missing why a build cannot measure it.
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
        """Checks whether a build can measure the quantity without the other build's worker.

        If so, for example because memory is short, neither build has lost the quantity.
        """
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
        """Runs a session of each subject, in random order. Returns the duration of the pass."""
        begin = time.monotonic()
        for subject in self._random.sample(subjects, len(subjects)):
            if not subject.missing:
                self.session(subject, seconds)
        return time.monotonic() - begin

    def passes(
        self, subjects: Sequence[Subject], plan: Plan, end: float, say: Callable[[str], None]
    ) -> None:
        """Runs the passes over all subjects, or fewer if time is short."""
        took = 0.0
        for number in range(plan.passes):
            if number > FEWEST and time.monotonic() + took > end:
                break
            took = self.one_pass(subjects, plan.session_s)
            say(f"pass {number + 1}: {len(subjects)} quantities, {took:.0f} s")

    def again(
        self, subjects: Sequence[Subject], plan: Plan, end: float, say: Callable[[str], None]
    ) -> None:
        """Runs passes over these subjects until their intervals are narrow enough.

        Only the width of an interval may end the passes, not its position. Otherwise the repeated
        looks at the intervals would make false alarms likely.
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
    """Returns subjects with a wide interval, or beyond the limit only without the correction."""
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
    """Measures the chosen quantities with the servers "base" and "new". See `choose`."""
    base, work = (Side(name, servers[name]) for name in ("base", "new"))
    subjects, alone = choose(base, work, barred, patterns)
    if not subjects:
        raise BenchError(f"no id matches {' '.join(patterns) or 'a bar'}")
    driver = Driver(base, work, seed)
    driver.passes(subjects, plan, end, say)
    judged = sum(subject.barred for subject in subjects)
    driver.again(undecided(subjects, judged), plan, end, say)
    return subjects, alone
