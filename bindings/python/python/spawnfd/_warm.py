# SPDX-License-Identifier: MIT OR Apache-2.0
"""Programs that have been started ahead, and wait to become what is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from spawnfd import _spawnfd
from spawnfd._child import Child, spawn
from spawnfd._job import SyncJob
from spawnfd._options import Environment, RunOptions, SpawnOptions, StartOptions, Wraps
from spawnfd._run import run, run_async
from spawnfd._spawnfd import Result, Sandbox
from spawnfd._start import Starting, start, start_sync
from spawnfd._types import Arg, Args, Fd, NotPickled

if TYPE_CHECKING:
    from typing import Literal, TypeAlias

    from typing_extensions import Unpack

    _Mode: TypeAlias = Literal["reserve", "fork"]


class WarmStats(NamedTuple):
    """What a Warm has done, and has.

    Attributes:
        reserve: Programs that a parked process has become.
        fork: Programs that were forked from one.
        zygote: Programs that a zygote has had executed.
        pool: Programs that a process of the pool has executed.
        cold: Programs that were started as ever, by the reason.
        parked: Processes that wait.
        memory: Bytes that these had for themselves when they were parked.
        made: Processes parked so far.
        cannot: Programs that cannot be parked, and why.
    """

    reserve: int
    fork: int
    zygote: int
    pool: int
    cold: Mapping[str, int]
    parked: int
    memory: int
    made: int
    cannot: Mapping[str, str]


class Warm(NotPickled):
    """Keeps programs warm: started ahead, waiting at main(), or after an interpreter's start-up.

        with sf.Warm() as warm:
            warm.add("bash")
            warm.add("/usr/bin/python3", preimport=["json"])
            warm.fill()  # until then starts are cold
            warm.run(["bash", "-c", "echo hello"]).started  # "reserve"

    A program is started from a parked process if there is one for it, and if that may do, and
    has, just what a child of the calling thread would: else as ever, and `started` of the Result or
    Child says "cold: " and why. Nothing else differs, but for what docs/warm.md lists. It goes for
    every program of run(), start() and spawn() that is given one (`warm=warm`), too.

    The processes end when the block is left, with close(), with the last reference, or with this
    process. They are its children: os.wait() sees one that has ended. SPAWNFD_WARM=0 in the
    environment turns all of it off, and so does turn_off().
    """

    __slots__ = ("_core",)
    _core: _spawnfd.Warm

    def __init__(
        self,
        *,
        mode: _Mode = "reserve",
        memory: int = 512 << 20,
        processes: int = 64,
        keep: int = 0,
        idle: float | None = 300.0,
        delay: float = 0.002,
        forks: int = 1000,
        age: float | None = 600.0,
    ) -> None:
        """Begins with nothing.

        Args:
            mode: "reserve": each parked process becomes one program, with a memory layout and
                secrets of its own. "fork": they are forked from one; they share layout and
                whatever was drawn or read before.
            memory: Bytes that parked processes may have for themselves; no more are started then.
            processes: How many there may be.
            keep: How many programs that were not added are kept warm from their first start on; the
                one last used longest ago gives way. They are parked with few variables of that
                start: PATH, HOME, locale, the loader's and the interpreters' own.
            idle: Seconds without use after which a program's are ended; None: never.
            delay: Seconds from a start to the parking of the next: what runs goes first.
            forks: In mode fork: after how many births the process they are forked from is
                replaced; after more if as many wait.
            age: In mode fork: after how many seconds it is, 0.1 at least; None: never.

        Raises:
            SpawnError: EMFILE, ENFILE, ENOMEM; ENOSPC: no more inotify instances.
            TypeError, ValueError: An argument cannot be what it is; the message names it.
        """
        self._core = _spawnfd.Warm(mode, memory, processes, keep, idle, delay, forks, age)

    def add(
        self,
        program: Arg | Wraps[_spawnfd.Template],
        *,
        depth: int = 2,
        args: Sequence[Arg] = (),
        env: Environment | None = None,
        preimport: Sequence[str] = (),
        sandbox: Sandbox | None = None,
        cwd: Arg | None = None,
        mode: _Mode | None = None,
        no_new_privs: bool = False,
        landlock: Fd | None = None,
        seccomp: bytes | None = None,
    ) -> None:
        """Keeps a program warm. It is parked in the background; fill() waits for that.

        One that cannot be parked is no error: stats() says why, and it is started cold.

        Args:
            program: A path (from here, if it is relative), a name searched in PATH, or a Template.
            depth: How many processes wait.
            args: Arguments that all starts have first: an interpreter's options.
            env: The environment it is parked with, this process's by default. A start with another
                one is warm if what was looked at before parking is the same in both; it stays in
                the program's memory.
            preimport: Modules an interpreter imports before it parks; for Node.js, of its own ones:
                it is then started further, and process.moduleLoadList tells (docs/warm.md).
            sandbox: A Sandbox: the parked process sits inside, and serves starts through that one
                (or one that is the same, word for word, and is given the same files, unchanged),
                with the same environment and `cwd`.
            cwd: With a sandbox: the directory it is started in, as given to run().
            mode: As for Warm, for this program.
            no_new_privs: It parks with no_new_privs, and serves starts with actions.NoNewPrivs.
            landlock: It parks inside this Landlock ruleset, and serves starts with actions.Landlock
                of the same descriptor (or a duplicate). Rules added to it later are not in force.
            seccomp: It parks under this seccomp filter, and serves starts with actions.Seccomp of
                the same bytes.

        Raises:
            SpawnError: There is no such program.
            TypeError, ValueError: An argument cannot be what it is; the message names it.
        """
        core: Any = getattr(program, "_core", program)
        confined = no_new_privs, landlock, seccomp
        self._core.add(core, depth, args, env, preimport, sandbox, cwd, mode, *confined)

    def add_any(self, *, depth: int = 2, mode: _Mode | None = None) -> None:
        """Has all programs that no parked process of their own serves executed by one made ahead.

        As an exec follows, any program will do. What it is worth, and when: docs/warm.md.

        Args:
            depth: How many processes wait.
            mode: As for Warm. "fork": they are forked from a zygote, `started` is "zygote".
                "reserve": a pool of processes started by exec, `started` is "pool".

        Raises:
            SpawnError: EMFILE, ENFILE, ENOMEM.
            ValueError: `mode` is neither.
        """
        self._core.add_any(depth, mode)

    def fill(self, timeout: float | None = 10.0) -> bool:
        """Waits until all that can be parked is.

        False if that takes longer than `timeout` s, or something is missing for it now, which is
        in `stats().cannot`.

        Raises:
            TypeError, ValueError: `timeout` is no time to wait.
        """
        return self._core.fill(timeout)

    def run(self, argv: Args, **options: Unpack[RunOptions]) -> Result:
        """spawnfd.run() with `warm=self`."""
        options["warm"] = self
        return run(argv, **options)

    async def run_async(self, argv: Args, **options: Unpack[RunOptions]) -> Result:
        """spawnfd.run_async() with `warm=self`."""
        options["warm"] = self
        return await run_async(argv, **options)

    def start(self, argv: Args, **options: Unpack[StartOptions]) -> Starting:
        """spawnfd.start() with `warm=self`."""
        options["warm"] = self
        return start(argv, **options)

    def start_sync(self, argv: Args, **options: Unpack[StartOptions]) -> SyncJob:
        """spawnfd.start_sync() with `warm=self`."""
        options["warm"] = self
        return start_sync(argv, **options)

    def spawn(self, argv: Args, **options: Unpack[SpawnOptions]) -> Child:
        """spawnfd.spawn() with `warm=self`."""
        options["warm"] = self
        return spawn(argv, **options)

    def stats(self) -> WarmStats:
        """What it has done so far, in this process."""
        return WarmStats(**self._core.stats())

    @staticmethod
    def turn_off() -> None:
        """Turns all warm starts of this process off, for good, as SPAWNFD_WARM=0 does.

        Nothing is parked any more, and what is ends within two seconds. Starts are cold.
        """
        _spawnfd.Warm.turn_off()

    @property
    def closed(self) -> bool:
        """Whether it was closed. As an option it is a ValueError then."""
        return self._core.closed

    def close(self) -> None:
        """Ends what is parked. Programs are not affected."""
        self._core.close()

    def __enter__(self) -> Warm:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{self.stats().parked} parked"
        return f"<spawnfd.Warm: {state}>"


def as_warm(value: Warm | _Mode, keep: int = 0) -> Warm:
    """The Warm that an argument means: itself, or one of its own for a mode.

    Raises:
        TypeError, ValueError: It means none; the message says so.
    """
    given: Any = value
    if isinstance(given, Warm):
        if given.closed:
            raise ValueError("warm: it is closed")
        return given
    if given in ("reserve", "fork"):
        return Warm(mode=given, keep=keep)
    if isinstance(given, str):
        raise ValueError(f'warm: "reserve" or "fork", not {given!r}')
    found = type(given).__qualname__
    raise TypeError(f'warm: expected spawnfd.Warm, "reserve", "fork" or None, not {found}')
