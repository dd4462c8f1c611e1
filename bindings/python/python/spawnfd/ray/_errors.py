# SPDX-License-Identifier: MIT OR Apache-2.0
"""The errors of a Pool."""

from __future__ import annotations

import errno
import os


class NodeLost(ConnectionError):
    """A node of Ray, or the actor there, was lost while a program ran, or before it started.

    It is not known whether the program has started, nor how it has ended. It has ended, or ends
    soon, as far as the node still runs.

    Attributes:
        errno: ENOTCONN.
        node: The id of the node.
        where: The name and the beginning of the id, as in `where` of a Result.
    """

    def __init__(self, node: str, where: str, what: str) -> None:
        message = f"{what}: the node {where} was lost, so the status is not known"
        super().__init__(errno.ENOTCONN, message)
        self.node, self.where, self._what = node, where, what

    def __str__(self) -> str:
        return str(self.strerror)

    def __reduce__(self) -> tuple[type[NodeLost], tuple[str, str, str]]:
        return type(self), (self.node, self.where, self._what)


class NoNode(LookupError):
    """No node that is alive has the name, the labels or the resource that a call asks for."""


class PoolClosed(RuntimeError):
    """The Pool was closed."""


def name_of(argv: object) -> str:
    """Returns the program of a call for a message."""
    if isinstance(argv, (list, tuple)) and argv and isinstance(argv[0], (str, bytes)):
        return os.fsdecode(argv[0])
    return "program"
