# SPDX-License-Identifier: MIT OR Apache-2.0
"""The scheduler of map(): batches of runs, spread over the nodes."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Generator, Iterable, Mapping
from typing import Any, NamedTuple

from spawnfd._types import Args
from spawnfd.ray._api import ray
from spawnfd.ray._calls import PROCESS, Calls
from spawnfd.ray._errors import NodeLost, name_of
from spawnfd.ray._nodes import Node, Place
from spawnfd.ray._wire import Item, Wait, unpack, with_defaults

# An actor of Ray holds about 1,000 calls a second, so quick runs share calls.
MAX_BATCH = 16
# A batch that takes at most this many seconds is followed by one of twice the size, and a batch
# that takes longer than the second number by one of half the size. So long runs spread over the
# nodes, and their results do not wait for each other.
_QUICK, _SLOW = 0.1, 0.5


class _Task(NamedTuple):
    number: int
    argv: Args
    # The ids of the nodes that were lost during this task.
    tried: tuple[str, ...] = ()


class _Batch(NamedTuple):
    node: Node
    tasks: list[_Task]
    started: float


class Map:
    """One call of map(). `steps()` yields waits for the driver, and items for the caller."""

    def __init__(
        self,
        calls: Calls,
        commands: Iterable[Args],
        place: Place,
        options: Mapping[str, Any],
        *,
        ordered: bool,
        repeatable: bool,
        return_exceptions: bool,
    ) -> None:
        self._calls, self._place, self._options = calls, place, with_defaults(options)
        self._ordered, self._repeatable = ordered, repeatable
        self._raises = not return_exceptions
        self._commands = enumerate(commands)
        self._is_exhausted = False
        # Tasks of lost nodes come first.
        self._again: deque[_Task] = deque()
        self._batches: dict[Any, _Batch] = {}
        self._sizes: dict[str, int] = {}
        # The outcomes that the caller has not got yet, by index.
        self._outcomes: dict[int, Any] = {}
        self._next = self._sent = 0

    def steps(self) -> Generator[Wait | Item, Any, None]:
        """Yields until all items are there. Closing the generator cancels the active runs."""
        try:
            while True:
                yield from self._fill()
                if not self._batches:
                    return
                for ref in (yield Wait([*self._batches], value=False)):
                    yield from self._finish(ref)
                yield from self._items()
        finally:
            for ref, batch in self._batches.items():
                batch.node.active -= len(batch.tasks)
                ray.cancel(ref)

    def _fill(self) -> Generator[Wait | Item, Any, None]:
        """Sends batches until each node has enough, or the caller has too many results to take."""
        full: set[str] = set()
        while not self._is_done_reading():
            nodes = self._calls.fitting(self._place)
            room = [node for node in nodes if node.id not in full]
            # In order, one slow run must not make the results of all later ones pile up.
            capacity = sum(8 * max(node.slots, MAX_BATCH) for node in nodes)
            if not room or self._sent - self._next > capacity:
                return
            node = min(room, key=lambda node: node.active / node.slots)
            size = self._sizes.get(node.id, 1)
            if node.active >= 2 * max(node.slots, size):
                full.add(node.id)
                continue
            tasks = self._take(size, node.id, {each.id for each in nodes})
            if not tasks:
                full.add(node.id)
                continue
            try:
                yield from self._calls.ready(node)
            except NodeLost as error:
                self._lose(tasks, node, error)
                continue
            argvs = [task.argv for task in tasks]
            ref = node.actor.run_many.remote(PROCESS, argvs, self._options)
            node.active += len(tasks)
            self._batches[ref] = _Batch(node, tasks, time.monotonic())

    def _is_done_reading(self) -> bool:
        return self._is_exhausted and not self._again

    def _take(self, count: int, node: str, nodes: set[str]) -> list[_Task]:
        """Takes tasks for a node. A task that was lost with it goes to another one if possible."""
        fit = (t for t in self._again if node not in t.tried or nodes <= {*t.tried})
        again = [*itertools.islice(fit, count)]
        self._again = deque(task for task in self._again if task not in again)
        tasks = again
        while len(tasks) < count:
            following = next(self._commands, None)
            if following is None:
                self._is_exhausted = True
                break
            self._sent += 1
            tasks.append(_Task(*following))
        return tasks

    def _finish(self, ref: Any) -> Generator[Wait, Any, None]:
        """Takes the results of a batch."""
        batch = self._batches[ref]
        try:
            outcomes = yield Wait([ref])
            for task, outcome in zip(batch.tasks, outcomes, strict=True):
                yield from self._keep(task, batch.node, outcome)
        except ray.exceptions.RayTaskError:
            raise
        except ray.exceptions.RayError:
            error = self._calls.lost(batch.node, name_of(batch.tasks[0].argv))
            left = [task for task in batch.tasks if task.number not in self._outcomes]
            self._lose(left, batch.node, error)
        else:
            self._resize(batch)
        del self._batches[ref]
        batch.node.active -= len(batch.tasks)

    def _keep(self, task: _Task, node: Node, outcome: Any) -> Generator[Wait, Any, None]:
        if not isinstance(outcome, Exception):
            outcome = yield from unpack(outcome)
            if outcome.stop == "lost" and self._repeats(task, node):
                return
        self._outcomes[task.number] = outcome

    def _repeats(self, task: _Task, node: Node) -> bool:
        if not self._repeatable or node.id in task.tried:
            return False
        self._again.append(task._replace(tried=(*task.tried, node.id)))
        return True

    def _lose(self, tasks: list[_Task], node: Node, error: Exception) -> None:
        for task in tasks:
            if not (isinstance(error, NodeLost) and self._repeats(task, node)):
                self._outcomes[task.number] = error

    def _resize(self, batch: _Batch) -> None:
        seconds, size = time.monotonic() - batch.started, len(batch.tasks)
        if seconds < _QUICK and size == self._sizes.get(batch.node.id, 1):
            self._sizes[batch.node.id] = min(2 * size, MAX_BATCH)
        elif seconds > _SLOW:
            self._sizes[batch.node.id] = max(1, size // 2)

    def _items(self) -> Generator[Item, Any, None]:
        if self._ordered:
            while self._next in self._outcomes:
                yield self._item(self._outcomes.pop(self._next))
        else:
            while self._outcomes:
                yield self._item(self._outcomes.pop(next(iter(self._outcomes))))

    def _item(self, outcome: Any) -> Item:
        self._next += 1
        if self._raises and isinstance(outcome, Exception):
            raise outcome
        return Item(outcome)
