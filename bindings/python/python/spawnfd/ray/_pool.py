# SPDX-License-Identifier: MIT OR Apache-2.0
"""The Pool, which runs programs on the nodes of a Ray cluster."""

from __future__ import annotations

import functools
import weakref
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from spawnfd._errors import Unsupported
from spawnfd._select import PORTABLE as portable
from spawnfd._signatures import RunOptions, StartOptions
from spawnfd._spawnfd import Result
from spawnfd._start import Starting
from spawnfd._types import Arg, Args, deadline, remaining
from spawnfd.ray._api import ray
from spawnfd.ray._calls import END_TIMEOUT, PROCESS, Calls
from spawnfd.ray._driver import drive, drive_async, iterate, iterate_async
from spawnfd.ray._errors import NodeLost, name_of
from spawnfd.ray._job import Job, JobHandle, SyncJob, forget_started
from spawnfd.ray._map import Map
from spawnfd.ray._nodes import Nodes, Place, Placement
from spawnfd.ray._session import Session, SyncSession
from spawnfd.ray._wire import Steps, Wait, with_defaults

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack


class Pool:
    """Runs programs on the nodes of a Ray cluster, with the calls and results of this package.

        with spawnfd.ray.Pool() as pool:
            result = pool.run(["pytest", "-q"], timeout=600)
            print(result.code, result.where)
            for result in pool.map([["pytest", path] for path in paths], timeout=600):
                ...

    Each node has one actor, which needs no CPU of Ray. The actor starts a server of this package,
    and the server starts the programs and supervises them. So timeouts, limits and process trees
    are kept on the node. `where` of a Result names the node.

    If a node or its actor is lost, the active calls raise NodeLost; nothing is repeated, except
    calls with `repeatable`. An actor that was killed starts again, for later calls.

    The process that has created the Pool owns the actors. Leaving the block, close(), dropping the
    Pool and the end of that process end all programs. A Pool can be passed to tasks and actors:
    the programs that they start end with their process, too. docs/ray.md describes all of this.
    """

    def __init__(self, *, slots: int | None = None, placement: Placement | None = None) -> None:
        """Starts an actor on each node. The call does not wait for the actors.

        Without a connection to Ray, it calls ray.init() first.

        Args:
            slots: How many runs and jobs execute at once on each node; the others wait there.
                None: the number of CPUs that the node has in Ray.
            placement: The nodes of the Pool: a mapping of labels that a node must have, or the name
                of a resource, such as that of a file tree that the node has. None: all nodes.

        Raises:
            TypeError, ValueError: An argument is invalid; the message names it.
            Unsupported: The package is portable.
        """
        if slots is not None and (not isinstance(slots, int) or slots < 1):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"slots: must be an int of at least 1, or None, got {slots!r}")
        if portable:
            raise Unsupported("spawnfd.ray", "it has no connections to servers")
        if not ray.is_initialized():
            ray.init()
        self._attach(Nodes(Place(None, placement), slots))
        self._nodes.refresh(now=True)
        finalizer = weakref.finalize(self._calls, _kill, self._nodes)
        # At the end of the interpreter Ray ends the actors.
        finalizer.atexit = False
        self._end: Callable[[], object] = finalizer

    def _attach(self, nodes: Nodes) -> None:
        self._nodes, self._calls = nodes, Calls(nodes)

    def __reduce__(self) -> tuple[Any, ...]:
        return _borrow, (self._nodes,)

    @property
    def closed(self) -> bool:
        """Whether the Pool was closed in this process, by close() or by the end of a block."""
        return self._calls.closed

    @property
    def nodes(self) -> dict[str, str]:
        """The nodes that are alive and have an actor: their ids, with the names for `where`."""
        self._nodes.refresh()
        return {node.id: node.where for node in self._nodes.nodes.values()}

    def _run(self, argv: Args, place: Place, repeatable: bool, options: Mapping[str, Any]) -> Steps:
        given = with_defaults(options)
        tried: list[str] = []
        while True:
            node = self._calls.choose(place, tried)
            try:
                yield from self._calls.ready(node)
                ref = node.actor.run.remote(PROCESS, argv, given)
                result = yield from self._calls.call(node, ref, name_of(argv))
                if result.stop != "lost" or not repeatable or node.id in tried:
                    return result
            except NodeLost:
                if not repeatable or node.id in tried:
                    raise
            tried.append(node.id)

    def _start(
        self, form: type[JobHandle], argv: Args, place: Place, options: Mapping[str, Any]
    ) -> Steps:
        given = with_defaults(options)
        node = self._calls.choose(place)
        yield from self._calls.ready(node)
        ref = node.actor.start.remote(PROCESS, argv, given)
        undo = functools.partial(forget_started, self._calls, node)
        started = yield from self._calls.call(node, ref, name_of(argv), undo=undo)
        return form(self._calls, node, started, slots=1)

    # The public calls.

    def run(
        self,
        argv: Args,
        *,
        node: str | None = None,
        placement: Placement | None = None,
        repeatable: bool = False,
        **options: Unpack[RunOptions],
    ) -> Result:
        """Runs a program on a node to its end: run() at once, run_async() when awaited.

        The arguments and the Result are those of spawnfd.run(), with these additions. Paths, PATH
        and users are those of the node. Without `env`, the program has the environment of the Ray
        worker there. Without `cwd`, it starts in the directory of the worker.

        Ctrl-C and the cancellation of the task end the program.

        Args:
            argv: The program and its arguments.
            node: The id or the name of a node. None: the node with the fewest active runs.
            placement: As for the Pool, to choose among its nodes.
            repeatable: Whether the program may run once more, on another node if there is one,
                after its node was lost.
            options: The options of spawnfd.run(), without those of this process alone: descriptors
                and files, "inherit", `limiter`, `sandbox` and `warm`.

        Raises:
            SpawnError: The program could not be started, for the reasons of spawnfd.run().
            NodeLost: The node was lost: the status of the program is not known.
            NoNode: No node that is alive fits.
            PoolClosed: The Pool was closed.
            TypeError, ValueError: An argument is invalid, or has a meaning in this process alone;
                the message names it.
        """
        return drive(self._run(argv, Place(node, placement), repeatable, options))

    async def run_async(
        self,
        argv: Args,
        *,
        node: str | None = None,
        placement: Placement | None = None,
        repeatable: bool = False,
        **options: Unpack[RunOptions],
    ) -> Result:
        """The awaitable form of run()."""
        return await drive_async(self._run(argv, Place(node, placement), repeatable, options))

    def map(
        self,
        commands: Iterable[Args],
        *,
        ordered: bool = True,
        return_exceptions: bool = False,
        node: str | None = None,
        placement: Placement | None = None,
        repeatable: bool = False,
        **options: Unpack[RunOptions],
    ) -> Generator[Any]:
        """Runs many programs on the nodes: map() in a `for`, map_async() in an `async for`.

            for result in pool.map([["pytest", path] for path in paths], timeout=600): ...

        The call takes commands from `commands` as the nodes get room for them, and waits while the
        caller takes no results. Quick runs share calls to the actors, up to 16 in each. Leaving the
        loop, closing the iterator and an exception of it end the active runs.

        Args:
            commands: The argument lists.
            ordered: Whether the results come in the order of the commands, or as they arrive.
            return_exceptions: Whether an error of one run takes the place of its result, instead of
                ending the iteration.
            node, placement, repeatable, options: As for run(), for each command.

        Raises:
            SpawnError, NodeLost, NoNode, PoolClosed, TypeError, ValueError: In the same cases as
                run().
        """
        steps = Map(
            self._calls,
            commands,
            Place(node, placement),
            options,
            ordered=ordered,
            repeatable=repeatable,
            return_exceptions=return_exceptions,
        )
        return iterate(steps.steps())

    def map_async(
        self,
        commands: Iterable[Args],
        *,
        ordered: bool = True,
        return_exceptions: bool = False,
        node: str | None = None,
        placement: Placement | None = None,
        repeatable: bool = False,
        **options: Unpack[RunOptions],
    ) -> AsyncGenerator[Any]:
        """The awaitable form of map()."""
        steps = Map(
            self._calls,
            commands,
            Place(node, placement),
            options,
            ordered=ordered,
            repeatable=repeatable,
            return_exceptions=return_exceptions,
        )
        return iterate_async(steps.steps())

    def start(
        self,
        argv: Args,
        *,
        node: str | None = None,
        placement: Placement | None = None,
        **options: Unpack[StartOptions],
    ) -> Starting:
        """Starts a job on a node: start() when awaited, start_sync() at once.

            async with pool.start(["npm", "test"], timeout=600) as job:
                async for event in job.events(lines=True):
                    print(event.text, end="")

        The arguments are those of run() and of spawnfd.start(). The job takes a slot of its node
        until it ends. All methods of the job are calls to the node, and awaitable.

        Raises:
            SpawnError, NodeLost, NoNode, PoolClosed, TypeError, ValueError: In the same cases as
                run().
        """
        return Starting(drive_async(self._start(Job, argv, Place(node, placement), options)))

    def start_sync(
        self,
        argv: Args,
        *,
        node: str | None = None,
        placement: Placement | None = None,
        **options: Unpack[StartOptions],
    ) -> SyncJob:
        """The blocking form of start()."""
        job: SyncJob = drive(self._start(SyncJob, argv, Place(node, placement), options))
        return job

    def session(
        self,
        program: Arg = "bash",
        args: Args = (),
        *,
        node: str | None = None,
        placement: Placement | None = None,
        **options: Any,
    ) -> Session:
        """Prepares a session on a node; its block, or its first command, opens it.

            async with pool.session("bash", node="worker-3") as session:
                result = await session.run("make test", timeout=600)

        session_sync() returns the blocking form. The arguments are those of spawnfd.Session,
        except for a Template, `limiter`, `sandbox` and `warm`. A session takes no slot.

        Raises:
            TypeError, ValueError: An argument is invalid, or has a meaning in this process alone;
                the message names it.
        """
        return Session(self._calls, Place(node, placement), program, args, options)

    def session_sync(
        self,
        program: Arg = "bash",
        args: Args = (),
        *,
        node: str | None = None,
        placement: Placement | None = None,
        **options: Any,
    ) -> SyncSession:
        """The blocking form of session()."""
        return SyncSession(self._calls, Place(node, placement), program, args, options)

    def close(self) -> None:
        """Ends all programs and actors of the Pool, without waiting.

        Active calls raise PoolClosed. In a process that has got the Pool from another one, the
        actors go on, and so do active calls and jobs; the Pool only takes no further calls there.
        """
        self._calls.closed = True
        self._end()

    def _shut(self) -> Steps:
        """Ends all programs, and waits for their end."""
        self._calls.closed = True
        try:
            refs = [actor.close.remote() for actor in self._nodes.actors() if self._nodes.owned]
            end = deadline(END_TIMEOUT)
            for ref in refs:
                yield Wait([ref], value=False, timeout=remaining(end))
        finally:
            self._end()

    def _all_ready(self) -> Steps:
        for node in [*self._nodes.nodes.values()]:
            yield from self._calls.ready(node)

    def __enter__(self) -> Self:
        """Waits until all actors have answered. The end of the block ends all programs."""
        try:
            drive(self._all_ready())
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        drive(self._shut())

    async def __aenter__(self) -> Self:
        """Waits until all actors have answered. The end of the block ends all programs."""
        try:
            await drive_async(self._all_ready())
        except BaseException:
            self.close()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is GeneratorExit:
            self.close()
        else:
            await drive_async(self._shut())

    def __repr__(self) -> str:
        state = "closed" if self._calls.closed else f"{len(self._nodes.nodes)} nodes"
        return f"<spawnfd.ray.Pool: {state}>"


def _borrow(nodes: Nodes) -> Pool:
    pool = object.__new__(Pool)
    pool._attach(nodes)
    pool._end = _end_nothing
    return pool


def _end_nothing() -> None:
    """The end of a Pool in a process that has not created it."""


def _kill(nodes: Nodes) -> None:
    for actor in nodes.actors():
        ray.kill(actor)
