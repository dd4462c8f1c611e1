# SPDX-License-Identifier: MIT OR Apache-2.0
"""The form in which results and errors pass between the actor of a node and a caller."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, NamedTuple, TypeAlias

from spawnfd._spawnfd import Result
from spawnfd.ray._api import ray

# A longer stream of a result travels through the object store of Ray. The store copies 318 MiB/s,
# and the reply of an actor 176 MiB/s.
_IN_REPLY = 1 << 20
_STREAMS = ("stdout", "stderr")


class Gone(Exception):
    """The actor has no such job or session: it has been started again since."""


class Packed(NamedTuple):
    """A Result on its way.

    Attributes:
        restore: The function that makes a Result of the state.
        state: The argument of that function. A long stream is an ObjectRef in it.
    """

    restore: Any
    state: dict[str, Any]


class Wait(NamedTuple):
    """A step of a call: the caller waits for the value of an object of Ray, and returns it.

    Without `value` the step waits for the first of several objects, and returns those that are
    there: an object may be an error. A wait for no object is a pause.
    """

    refs: list[Any]
    value: bool = True
    timeout: float | None = None


class Item(NamedTuple):
    """A step of map(): a result, or the exception in its place."""

    outcome: Any


# A call as a sequence of waits. One driver blocks in each, another one awaits each.
Steps: TypeAlias = Generator[Wait, Any, Any]


def pack(result: Result, where: str) -> Packed:
    """Prepares a Result for the way to the caller. `where` names the node."""
    reduced: Any = result.__reduce__()
    restore, (state,) = reduced
    state["where"] = where
    for stream in _STREAMS:
        if len(state[stream]) > _IN_REPLY:
            state[stream] = ray.put(state[stream])
    return Packed(restore, state)


def unpack(value: Any) -> Steps:
    """Returns what the actor has sent; raises an exception that the actor has sent.

    Raises:
        RayError: The node was lost before the caller had all of the result.
    """
    if isinstance(value, Exception):
        raise value
    if not isinstance(value, Packed):
        return value
    for stream in _STREAMS:
        if isinstance(value.state[stream], ray.ObjectRef):
            value.state[stream] = yield Wait([value.state[stream]])
    return value.restore(value.state)


def with_defaults(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options for the actor, which adds its default of `tree`.

    Raises:
        ValueError: An option has a meaning in the caller's process alone; the message names it.
    """
    for name in ("limiter", "sandbox", "warm"):
        if options.get(name) is not None:
            instead = "; `slots` of the Pool limits the runs of a node" if name == "limiter" else ""
            raise ValueError(f"{name}: not available in a Pool of Ray nodes{instead}")
    return {name: value for name, value in options.items() if (name, value) != ("tree", None)}
