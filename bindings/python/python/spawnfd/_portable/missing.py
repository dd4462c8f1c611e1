# SPDX-License-Identifier: MIT OR Apache-2.0
"""The names of the package that the portable engine does not provide.

They exist, and raise Unsupported when they are used.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, NoReturn

from spawnfd._errors import Unsupported

_REASONS = {
    "Session": "sessions need the native part's control of terminals and process trees",
    "Template": "a template pins an executable, which the native part does, on Linux",
    "TemplateCache": "a template pins an executable, which the native part does, on Linux",
    "Child": "spawn() identifies its process by a pidfd of Linux; use run() or start()",
    "Warm": "parked processes need the native part, on Linux",
    "Remote": "the native part talks to the server of the other machine",
    "Sandbox": "the native part starts the sandbox's command",
    "Snapshot": "snapshots are reflinks or sealed memory files of Linux",
    "SnapshotCache": "snapshots are reflinks or sealed memory files of Linux",
    "install": "programs that should not change keep Python's own subprocess and asyncio here",
}

# Names whose front is a function or a module.
_SHOWN = {"Child": "spawn()"}


class _Missing:
    """The base of classes that cannot be created."""

    def __new__(cls, *_args: object, **_options: object) -> Any:
        cls._refuse()

    @classmethod
    def _refuse(cls) -> NoReturn:
        name = cls.__name__
        raise Unsupported(f"spawnfd.{_SHOWN.get(name, name)}", _REASONS[name])


class Session(_Missing):
    """A shell that keeps its state; not provided."""


class Template(_Missing):
    """A pinned executable; not provided."""

    @classmethod
    def from_fd(cls, fd: object) -> NoReturn:
        cls._refuse()


class TemplateCache(_Missing):
    """A cache of templates; not provided."""

    @classmethod
    def shared(cls) -> NoReturn:
        cls._refuse()


class Child(_Missing):
    """A program without supervision; not provided."""


class Warm(_Missing):
    """Pools of parked processes; not provided."""

    @staticmethod
    def turn_off() -> None:
        """Nothing is warm here."""


class Sandbox(_Missing):
    """A command that confines programs; not provided."""

    __module__ = "spawnfd"


class Remote(_Missing):
    """A connection to another machine; not provided."""


class Snapshot(_Missing):
    """An immutable view of a file; not provided."""

    __module__ = "spawnfd"


class SnapshotCache(_Missing):
    """A cache of snapshots; not provided."""


class CommandText:
    """The text of a session's command; never created, because there is no session."""


class ShellStart:
    """The start of a session's shell; never created, because there is no session."""


class RemoteSession:
    """A session on another machine; never created, because there is no connection."""


class RemoteShellStart:
    """The start of such a session's shell; never created."""


class RemoteStart:
    """The start of a job on another machine; never created."""


class Question:
    """A question to the server of another machine; never created."""


class PopenChild:
    """A child of spawnfd.subprocess; never created, because that module is not provided."""


def snapshot(file: object) -> NoReturn:
    """Takes a snapshot of a file; not provided."""
    Snapshot._refuse()


def refuse_program(program: object) -> None:
    """Refuses a program that is not found by its name."""
    if program is not None:
        raise Unsupported(f"spawnfd.{type(program).__name__}", "the native part has it, on Linux")


class _MissingModule(ModuleType):
    """A module of the package that exists, and whose names raise Unsupported."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        raise Unsupported(f"{self.__name__}.{name}", _REASONS["install"])


def module(name: str) -> ModuleType:
    """Returns the placeholder for a module of the package."""
    return _MissingModule(f"spawnfd.{name}", f"Not provided: {_REASONS['install']}.")


def function(name: str) -> Any:
    """Returns the placeholder for a function of the package."""

    def missing(*_args: object, **_options: object) -> NoReturn:
        raise Unsupported(f"spawnfd.{name}()", _REASONS["install"])

    missing.__name__ = missing.__qualname__ = name
    missing.__doc__ = f"Not provided: {_REASONS['install']}."
    missing.__module__ = "spawnfd"
    return missing


def printed_actions(actions: object) -> list[str]:
    raise Unsupported("printing actions", "the native part prints them")


def popen(*_arguments: object) -> NoReturn:
    raise Unsupported("spawnfd.subprocess", _REASONS["install"])


def serve() -> NoReturn:
    Remote._refuse()


def explain(*_arguments: object) -> NoReturn:
    Warm._refuse()


def pidfd_calls_are_killed() -> bool:
    return False
