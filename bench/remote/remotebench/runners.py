# SPDX-License-Identifier: MIT OR Apache-2.0
"""Calls through a connection to `spawnfd serve`, and the same calls without one."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from common.definitions import Terms
from common.errors import BenchError
from common.methods import Answer, Argvs, AsyncCall, Awaited, Blocking, Made, Runner, import_spawnfd
from common.streams import make_call, spawnfd_streams

from .others import Execnet, SweRex
from .places import Place

LINE = b"%079d\n"
FLOOD = ["cat", "/dev/zero"]
FLOOD_READ = 1 << 20


class Closing(Runner):
    """A runner that also closes what its calls use."""

    def __init__(self, runner: Runner, used: Any) -> None:
        super().__init__()
        self._runner, self._used = runner, used

    def run(self, calls: Argvs, untimed: int = 0, rate: float = 0.0) -> Made:
        """Makes the calls."""
        return self._runner.run(calls, untimed, rate)

    def close(self) -> None:
        """Ends the calls' loop or threads, and then what they use."""
        self._runner.close()
        self._used.close()


class RoundTrips(Runner):
    """A line to `cat` and back for each call, on a connection that may also carry a flood.

    The flood runs during a block. In between, nobody reads it, so its program waits.
    """

    def __init__(self, remote: Any, cwd: str, env: Mapping[str, str], floods: bool) -> None:
        super().__init__()
        self._remote, self._options = remote, {"cwd": cwd, "env": dict(env)}
        self._floods = floods
        self._loop = asyncio.Runner()

    def run(self, calls: Argvs, untimed: int = 0, rate: float = 0.0) -> Made:
        """Makes the round trips."""
        return self._loop.run(self._run(len(calls)))

    async def _run(self, count: int) -> Made:
        async with self._remote.start(["cat"], stdin="stream", **self._options) as cat:
            events = cat.events(lines=True)
            if not self._floods:
                return await self._trips(cat, events, count)
            async with self._remote.start(FLOOD, output_limit=None, **self._options) as flood:
                flowing = asyncio.Event()
                reader = asyncio.create_task(self._read(flood, flowing))
                await flowing.wait()
                try:
                    return await self._trips(cat, events, count)
                finally:
                    reader.cancel()
                    await asyncio.gather(reader, return_exceptions=True)

    async def _read(self, flood: Any, flowing: asyncio.Event) -> None:
        seen = 0
        async for event in flood.events():
            seen += len(event.bytes)
            if seen > FLOOD_READ:
                flowing.set()

    async def _trips(self, cat: Any, events: Any, count: int) -> Made:
        ns: list[int] = []
        first = time.monotonic_ns()
        for number in range(count):
            line, begin = LINE % number, time.monotonic_ns()
            await cat.write(line)
            if (await anext(events)).bytes != line:
                raise BenchError("a line came back changed")
            ns.append(time.monotonic_ns() - begin)
        return Made([(0, b"", b"")] * count, ns, first, time.monotonic_ns())

    def close(self) -> None:
        """Ends the loop and the connection."""
        self._loop.close()
        self._remote.close()


class Commands:
    """Commands of one session, here or there. A connection ends with its session."""

    def __init__(self, session: Any, remote: Any = None) -> None:
        self._session, self._remote = session, remote

    def run(self, argv: list[str]) -> Answer:
        """Runs the text of `bash -c TEXT`."""
        result = self._session.run(argv[2])
        return result.code, result.stdout, result.stderr

    def close(self) -> None:
        """Ends the session."""
        self._session.close()
        if self._remote is not None:
            self._remote.close()


def make(places: Mapping[str, Place], terms: Terms, cwd: str, env: Mapping[str, str]) -> Runner:
    """Creates a method's runner. Raises BenchError if the method is unknown."""
    spawnfd, way = import_spawnfd(), terms.method.way
    place = places[terms.method.place] if terms.method.place else None
    options: dict[str, Any] = {"cwd": cwd, "env": dict(env)}

    def answer(result: Any) -> Answer:
        return result.code, result.stdout, result.stderr

    def blocking(call: Any, used: Any) -> Runner:
        return Closing(Blocking(call, terms.in_flight, terms.gap_ms), used)

    def awaited(call: AsyncCall, used: Any) -> Runner:
        return Closing(Awaited([call] * terms.in_flight, terms), used)

    if way == "execnet":
        execnet = Execnet(cwd, env)
        return blocking(execnet.run, execnet)
    if way == "swerex":
        swerex = SweRex(cwd, env)
        return awaited(swerex.run, swerex)
    if way == "session":
        commands = Commands(spawnfd.SyncSession("bash", **options))
        return blocking(commands.run, commands)
    if place is None:
        raise BenchError(f"unknown method {way!r}")
    if way == "runner":
        one_by_one = place
        return Blocking(
            lambda argv: answer(spawnfd.run(one_by_one.argv(argv))), terms.in_flight, terms.gap_ms
        )
    if way == "runner.streams":
        streamed = place
        return Awaited(
            [
                make_call(
                    lambda data: spawnfd_streams(
                        data, cwd, env, lambda argv, **_: spawnfd.start(streamed.argv(argv))
                    )
                )
            ],
            terms,
        )
    remote = spawnfd.Remote.command(place.server).connect()
    if way == "remote.run":
        return blocking(lambda argv: answer(remote.run(argv, **options)), remote)
    if way == "remote.run_async":

        async def run_async(argv: list[str]) -> Answer:
            return answer(await remote.run_async(argv, **options))

        return awaited(run_async, remote)
    if way == "remote.ping":

        def ping(argv: list[str]) -> Answer:
            remote.ping()
            return 0, b"", b""

        return blocking(ping, remote)
    if way == "remote.streams":
        bulk = make_call(lambda data: spawnfd_streams(data, cwd, env, remote.start))
        return awaited(bulk, remote)
    if way == "remote.session":
        commands = Commands(remote.session_sync("bash", **options), remote)
        return blocking(commands.run, commands)
    if way in ("remote.trips", "remote.trips.flood"):
        return RoundTrips(remote, cwd, env, way.endswith("flood"))
    raise BenchError(f"unknown method {way!r}")
