# SPDX-License-Identifier: MIT OR Apache-2.0
"""The calls of one Pool to the actors, as sequences of waits."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any

from spawnfd._spawnfd import __version__
from spawnfd.ray._api import ray
from spawnfd.ray._errors import NodeLost, PoolClosed
from spawnfd.ray._nodes import Node, Nodes, Place
from spawnfd.ray._wire import Gone, Steps, Wait, unpack

# Seconds that a cancelled call waits for the end of its program, and a block for the servers.
END_TIMEOUT = 10.0
# Seconds after which a caller that waits for the start of an actor looks whether its node is alive.
_CHECK_INTERVAL = 1.0
# The subject of a message about an actor that does not answer.
_START = "start of the actor"
# The name of this process as a caller of the actors of another one.
PROCESS = uuid.uuid4().hex


class Calls:
    """The calls of a Pool. The Pool, its jobs and its sessions share the object.

    Attributes:
        nodes: The nodes with their actors.
        closed: Whether the Pool was closed in this process.
    """

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes
        self.closed = False

    def choose(self, place: Place, avoid: Collection[str] = ()) -> Node:
        """Returns the best node for a call; see Nodes.choose()."""
        if self.closed:
            raise PoolClosed("the Pool was closed")
        return self.nodes.choose(place, avoid)

    def fitting(self, place: Place) -> list[Node]:
        """Returns the nodes that a call may use."""
        if self.closed:
            raise PoolClosed("the Pool was closed")
        return self.nodes.fitting(place)

    def ready(self, node: Node) -> Steps:
        """Waits until the actor of a node has answered. An actor that was killed starts again.

        Raises:
            NodeLost, PoolClosed: The actor will not answer.
            RuntimeError: The node has another version of this package.
        """
        while not node.is_ready:
            ref = node.actor.hello.remote()
            while not (yield Wait([ref], value=False, timeout=_CHECK_INTERVAL)):
                self._check_alive(node)
            try:
                version = yield from self.call(node, ref, _START, 0)
            except NodeLost as error:
                if not isinstance(error.__cause__, ray.exceptions.ActorUnavailableError):
                    raise
                # The actor is starting again. This question changes nothing, so it is repeated.
                self._check_alive(node)
                yield Wait([], value=False, timeout=_CHECK_INTERVAL / 10)
                continue
            if version != __version__:
                raise RuntimeError(
                    f"spawnfd has version {version} on the node {node.where}, and version "
                    f"{__version__} here; install the same version"
                )
            node.introduce(PROCESS)
            node.is_ready = True

    def _check_alive(self, node: Node) -> None:
        self.nodes.refresh(now=True)
        if self.closed or node.id not in self.nodes.nodes:
            raise self.lost(node, _START)

    def call(
        self,
        node: Node,
        ref: Any,
        what: str,
        runs: int = 1,
        undo: Callable[[Any], None] | None = None,
    ) -> Steps:
        """Waits for the reply of an actor. If the caller is interrupted, cancels the call first.

        The call counts as this many active runs on the node. `undo` gets a reply that the
        interrupted caller does not get.

        Raises:
            NodeLost, PoolClosed: There will be no reply.
        """
        node.active += runs
        try:
            value = yield Wait([ref])
            return (yield from unpack(value))
        except Gone as error:
            raise self.lost(node, what) from error
        except ray.exceptions.RayTaskError:
            raise
        except ray.exceptions.RayError as error:
            raise self.lost(node, what) from error
        except (Exception, GeneratorExit):
            raise
        except BaseException:
            ray.cancel(ref)
            done = yield Wait([ref], value=False, timeout=END_TIMEOUT)
            if undo is not None and done:
                # The reply may have been on its way.
                with suppress(ray.exceptions.RayError):
                    undo((yield Wait([ref])))
            raise
        finally:
            node.active -= runs

    def lost(self, node: Node, what: str) -> Exception:
        """Returns the exception for a node that does not answer."""
        if self.closed:
            return PoolClosed(f"{what}: the Pool was closed, so the status is not known")
        node.forget()
        return NodeLost(node.id, node.where, what)
