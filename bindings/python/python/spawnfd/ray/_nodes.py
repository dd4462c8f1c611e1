# SPDX-License-Identifier: MIT OR Apache-2.0
"""The nodes of a Pool, their actors, and the choice among them."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeAlias

from spawnfd.ray._actor import NodeActor
from spawnfd.ray._api import ray
from spawnfd.ray._errors import NoNode

# The labels that a node must have, or the name of a resource that it must have.
Placement: TypeAlias = str | Mapping[str, str]

# Seconds after which a Pool looks for new nodes and lost ones.
_REFRESH = 5.0
# The actor of a node accepts this many calls at once. Most of them wait for a slot or for output.
_CALLS = 10_000


# For each actor: an object that this process owns as long as it lives. All Pools of this process
# that have the actor share it, as each one is a call that the actor holds.
_presences: dict[Any, Any] = {}


class Node:
    """A node with its actor.

    Attributes:
        id: The id of the node, in hexadecimal digits.
        facts: What ray.nodes() says about it.
        actor: The handle of its actor.
        slots: How many runs and jobs execute there at once.
        active: How many of this Pool's runs have been sent there and not come back.
    """

    def __init__(self, facts: Mapping[str, Any], actor: Any, slots: int) -> None:
        self.facts = facts
        self.id: str = facts["NodeID"]
        self.actor, self.slots, self.active = actor, slots, 0
        # Whether the actor has answered, with the version of this process.
        self.is_ready = False

    def introduce(self, caller: str) -> None:
        """Lets the actor end the programs of this process when this process ends.

        If this process has created the Pool, Ray ends the actor, too. But after a regular end of
        the process, Ray waits up to 30 s for the running calls of the actor.
        """
        if self.actor._actor_id not in _presences:
            presence = self.actor.alive.remote()
            self.actor.watch.remote(caller, [presence])
            _presences[self.actor._actor_id] = presence

    def forget(self) -> None:
        """Notes that the process of the actor is gone: another one may follow."""
        self.is_ready = False
        _presences.pop(self.actor._actor_id, None)

    @property
    def where(self) -> str:
        """The name of the node in results and errors."""
        return _where(self.facts)


def _where(facts: Mapping[str, Any]) -> str:
    return f"{facts['NodeName']} (ray {facts['NodeID'][:8]})"


class Place:
    """A choice of nodes.

    Attributes:
        node: The id or the name of the node; None: any.
        placement: The labels or the resource that the node must have; None: any node.

    Raises:
        TypeError: `placement` is neither a str nor a mapping.
    """

    def __init__(self, node: str | None, placement: Placement | None) -> None:
        if placement is not None and not isinstance(placement, (str, Mapping)):  # pyright: ignore[reportUnnecessaryIsInstance]
            found = type(placement).__qualname__
            raise TypeError(f"placement: expected str or a mapping of labels, not {found}")
        self.node, self.placement = node, placement

    def fits(self, facts: Mapping[str, Any]) -> bool:
        """Whether a node with these facts of ray.nodes() is among them."""
        if self.node not in (None, facts["NodeID"], facts["NodeName"]):
            return False
        if self.placement is None:
            return True
        if isinstance(self.placement, str):
            return bool(facts["Resources"].get(self.placement))
        labels: Mapping[str, str] = facts.get("Labels") or {}
        return all(labels.get(name) == value for name, value in self.placement.items())

    def __str__(self) -> str:
        asked = [f"node={self.node!r}"] if self.node is not None else []
        asked += [f"placement={self.placement!r}"] if self.placement is not None else []
        return " and ".join(asked) or "the call"


class Nodes:
    """The nodes of a Pool that are alive.

    Only the process that has created the Pool starts actors: they end with that process.
    """

    def __init__(self, place: Place, slots: int | None) -> None:
        self._place, self._slots = place, slots
        self.nodes: dict[str, Node] = {}
        self._next_refresh = 0.0
        self.owned = True

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process gets the actors, but starts none."""
        known = [(node.facts, node.actor, node.slots) for node in self.nodes.values()]
        return _borrowed, (self._place, self._slots, known)

    def refresh(self, *, now: bool = False) -> None:
        """Forgets the nodes that are lost, and starts an actor on each new node."""
        if not now and time.monotonic() < self._next_refresh:
            return
        self._next_refresh = time.monotonic() + _REFRESH
        found: list[dict[str, Any]] = ray.nodes()
        alive = {facts["NodeID"]: facts for facts in found if facts["Alive"]}
        self.nodes = {id: node for id, node in self.nodes.items() if id in alive}
        for id, facts in alive.items():
            if self.owned and id not in self.nodes and self._place.fits(facts):
                slots = self._slots or max(1, int(facts["Resources"].get("CPU", 1)))
                self.nodes[id] = Node(facts, _start_actor(facts, slots), slots)

    def choose(self, place: Place, avoid: Collection[str] = ()) -> Node:
        """Returns the node with the fewest active runs for its slots.

        `avoid` has the ids of the nodes that come last.

        Raises:
            NoNode: No node that is alive fits.
        """
        found = self.fitting(place)
        return min(found, key=lambda node: (node.id in avoid, node.active / node.slots))

    def fitting(self, place: Place) -> list[Node]:
        """Returns the nodes that fit.

        Raises:
            NoNode: No node that is alive fits.
        """
        self.refresh()
        for attempt in range(2):
            if found := [node for node in self.nodes.values() if place.fits(node.facts)]:
                return found
            if attempt == 0:
                self.refresh(now=True)
        known = ", ".join(node.where for node in self.nodes.values()) or "none"
        raise NoNode(f"no node of the Pool fits {place}; its nodes: {known}")

    def actors(self) -> Iterable[Any]:
        """Returns the handles of all actors."""
        return [node.actor for node in self.nodes.values()]


def _borrowed(place: Place, slots: int | None, known: Iterable[tuple[Any, Any, int]]) -> Nodes:
    nodes = Nodes(place, slots)
    nodes.owned = False
    nodes.nodes = {facts["NodeID"]: Node(facts, actor, slots) for facts, actor, slots in known}
    return nodes


def _start_actor(facts: Mapping[str, Any], slots: int) -> Any:
    strategies = ray.util.scheduling_strategies
    strategy = strategies.NodeAffinitySchedulingStrategy(facts["NodeID"], soft=False)
    remote = ray.remote(NodeActor)
    return remote.options(
        num_cpus=0,
        max_restarts=-1,
        max_task_retries=0,
        max_concurrency=_CALLS,
        scheduling_strategy=strategy,
    ).remote(_where(facts), slots)
