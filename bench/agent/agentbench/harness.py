# SPDX-License-Identifier: MIT OR Apache-2.0
"""Harnesses, which dispatch the calls in a worker process. This module has the asyncio harness."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import ClassVar

from common.asyncio_calls import Answer

from .backends import Backend

Job = tuple[int, list[str]]


class Harness:
    """Runs `in_flight` calls of a slice at once. Answers are in the slice's order."""

    name: ClassVar[str]

    def __init__(self, backend: Backend, cwd: str, in_flight: int) -> None:
        self.backend = backend
        self.cwd = cwd
        self.in_flight = in_flight

    async def open(self) -> None:
        """Creates the objects that live as long as the worker."""

    async def close(self) -> None:
        """Closes the objects that `open` has created."""

    async def dispatch(self, lane: int, argv: list[str]) -> Answer:
        """Makes one call on one of the `in_flight` lanes."""
        raise NotImplementedError

    async def run(self, slice_argv: Sequence[list[str]]) -> list[Answer]:
        """Runs a slice to its end."""
        answers: list[Answer | None] = [None] * len(slice_argv)
        jobs: Iterator[Job] = iter(enumerate(slice_argv))

        async def lane(number: int) -> None:
            for index, argv in jobs:
                answers[index] = await self.dispatch(number, argv)

        await asyncio.gather(*(lane(number) for number in range(self.in_flight)))
        return [answer for answer in answers if answer is not None]


class AsyncioHarness(Harness):
    """Coroutines that await the backend directly."""

    name = "asyncio"

    async def dispatch(self, lane: int, argv: list[str]) -> Answer:
        return await self.backend.call(argv, self.cwd)


def make_harness(name: str, backend: Backend, cwd: str, in_flight: int) -> Harness:
    """Creates a harness by its name. Imports AutoGen only if needed."""
    if name == AsyncioHarness.name:
        return AsyncioHarness(backend, cwd, in_flight)
    if name == "autogen":
        from .harness_autogen import AutogenHarness

        return AutogenHarness(backend, cwd, in_flight)
    raise ValueError(f"no harness {name!r}")


HARNESSES = ("autogen", "asyncio")
