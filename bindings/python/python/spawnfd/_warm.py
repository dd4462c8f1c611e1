# SPDX-License-Identifier: MIT OR Apache-2.0
"""Warm: pools of parked processes that programs start from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from spawnfd import _spawnfd
from spawnfd._methods import StartMethods
from spawnfd._options import Actions, Environment, Wraps
from spawnfd._spawnfd import Sandbox
from spawnfd._types import Arg, Args, Cwd, Fd

if TYPE_CHECKING:
    from typing import Literal, TypeAlias

    _Mode: TypeAlias = Literal["reserve", "fork", "auto"]


class WarmStats(NamedTuple):
    """Counters and the current state of a Warm.

    Attributes:
        reserve: Starts in which a parked process became the program.
        fork: Starts in which a parked process forked the program.
        zygote: Starts in which a child of a zygote executed the program (add_any()).
        pool: Starts in which a process of the pool executed the program (add_any()).
        cold: Starts without a parked process, by reason.
        parked: Processes that are parked now.
        memory: Bytes of private memory that these processes had when they were parked.
        made: Processes parked so far.
        time_saved: Seconds of start-up that warm starts have saved: the start-up time of the parked
            processes that have become programs, or of their parents.
        refill_time: Seconds of CPU time that parking has cost: the start-up time of all parked
            processes, and the time of the thread that parks them.
        cannot: Programs that cannot be parked, with the reason.
    """

    reserve: int
    fork: int
    zygote: int
    pool: int
    cold: Mapping[str, int]
    parked: int
    memory: int
    made: int
    time_saved: float
    refill_time: float
    cannot: Mapping[str, str]

    @property
    def hit_rate(self) -> float | None:
        """The share of starts that were warm, from 0 to 1; None before the first start."""
        warm = self.reserve + self.fork + self.zygote + self.pool
        starts = warm + sum(self.cold.values())
        return warm / starts if starts else None


class WarmExplanation(NamedTuple):
    """How a run would start, and why; str() gives sentences.

    Attributes:
        started: As in a Result: "reserve", "fork", "zygote", "pool", or "cold: " and the reason.
        saves: Seconds of start-up that a warm start would save; 0 for a cold start, and with
            add_any().
        meaning: Why the start would be cold; None if it would be warm.
        remedy: What to change so that the start is warm; None if it would be warm.
        text: All of this in sentences.
    """

    started: str
    saves: float
    meaning: str | None
    remedy: str | None
    text: str

    def __str__(self) -> str:
        return self.text


class Warm(StartMethods):
    """Keeps programs warm: processes parked before main(), or after an interpreter's start-up.

        with sf.Warm() as warm:
            warm.add("bash")
            warm.add("/usr/bin/python3", preimport=["json"])
            warm.fill()  # until then starts are cold
            warm.run(["bash", "-c", "echo hello"]).started  # "reserve"

    A program starts from a parked process if there is one for it, and if that process has the same
    permissions and attributes as a child of the calling thread would have. Otherwise it starts
    cold, and `started` of the Result or Child is "cold: " and the reason.
    docs/warm-differences.md lists the differences that a program can notice. run(), start() and
    spawn() use a Warm that is passed as `warm=warm`.

    The parked processes end when the block is left, by close(), with the last reference, or with
    this process. They are children of this process, so os.wait() can return one that has ended.
    SPAWNFD_WARM=0 in the environment, and turn_off(), disable all warm starts.
    """

    __slots__ = ("_core",)
    _core: _spawnfd.Warm

    def __init__(
        self,
        *,
        mode: _Mode = "reserve",
        trusted: bool = False,
        memory: int = 512 << 20,
        processes: int = 64,
        keep: int = 0,
        idle: float | None = 300.0,
        delay: float = 0.002,
        forks: int = 1000,
        age: float | None = 600.0,
    ) -> None:
        """Creates a Warm without programs.

        Args:
            mode: "reserve": each parked process becomes one program, with its own memory layout
                and secrets. "fork": programs are forked from one parked process; they share its
                memory layout, and all random data and files that it had read before. "auto": for
                each program no parked process, "reserve", or "fork", by what was measured: how
                often it starts, and how many starts found no parked process.
            trusted: Whether all inputs of programs in mode "auto" are trusted, so that "auto" may
                choose "fork". Forked programs share a memory layout and secrets.
            memory: Maximum bytes of private memory of all parked processes. For a further process,
                the Warm first ends processes of programs that save less for each start and MiB.
            processes: Maximum number of parked processes.
            keep: How many programs that were not added are kept warm from their first start on; the
                least recently used one is dropped first. They are parked with a few variables of
                that start: PATH, HOME, the locale, and those of the loader and the interpreters.
            idle: Seconds without use after which a program's parked processes end; None: never.
            delay: Seconds between a start and the parking of the next process, so that the running
                program gets the processor first.
            forks: In mode "fork": number of forks after which the parked process is replaced, or
                more if more forked processes are waiting.
            age: In mode "fork": seconds after which the parked process is replaced, at least 0.1;
                None: never.

        Raises:
            SpawnError: EMFILE, ENFILE, ENOMEM. ENOSPC: no inotify instance is left.
            TypeError, ValueError: An argument is invalid; the message names it.
        """
        limits = memory, processes, keep, idle, delay, forks, age
        self._core = _spawnfd.Warm(mode, trusted, *limits)

    def add(
        self,
        program: Arg | Wraps[_spawnfd.Template],
        *,
        depth: int = 2,
        args: Sequence[Arg] = (),
        env: Environment | None = None,
        preimport: Sequence[str] = (),
        entry: Arg | None = None,
        sandbox: Sandbox | None = None,
        cwd: Arg | None = None,
        mode: _Mode | None = None,
        no_new_privs: bool = False,
        landlock: Fd | None = None,
        seccomp: bytes | None = None,
    ) -> None:
        """Adds a program, whose processes are parked in the background; fill() waits for them.

        A program that cannot be parked is not an error: it starts cold, and stats() has the reason.

        Args:
            program: A path (a relative one starts at the working directory), a name that is
                searched in PATH, or a Template.
            depth: How many processes are parked.
            args: Arguments that all starts begin with, such as an interpreter's options.
            env: The environment of the parked process, this process's by default. A start with
                another environment is warm if the variables that the program has read before
                parking are equal in both. The parked environment stays in the program's memory.
            preimport: Modules that an interpreter imports before it parks. For Node.js these are
                built-in modules; its start-up then proceeds further, which shows in
                process.moduleLoadList (docs/warm-differences.md).
            entry: The script or module that all starts of CPython run: "tool.py", or "-m pytest".
                The process imports the modules that this program imports first, and then parks. It
                serves starts whose arguments begin with `args` and this entry. A relative path
                starts at the working directory. docs/warm-reference.md describes the conditions.
            sandbox: A Sandbox that the parked process runs in. The process serves starts through
                the same Sandbox, or an equal one with the same words and the same, unchanged files,
                with the same environment and `cwd`.
            cwd: With a sandbox: the directory in which the sandbox starts, as passed to run(). With
                an entry: the directory in which the process parks. It then serves only starts in
                this directory.
            mode: The mode of this program, see Warm(); by default the Warm's.
            no_new_privs: The process parks with no_new_privs, and serves starts with
                actions.NoNewPrivs.
            landlock: The process parks inside this Landlock ruleset, and serves starts with
                actions.Landlock of the same descriptor or a duplicate. Rules that are added to the
                ruleset later do not apply.
            seccomp: The process parks under this seccomp filter, and serves starts with
                actions.Seccomp of the same bytes.

        Raises:
            SpawnError: The program does not exist.
            TypeError, ValueError: An argument is invalid; the message names it.
        """
        core: Any = getattr(program, "_core", program)
        confined = no_new_privs, landlock, seccomp
        self._core.add(core, depth, args, env, preimport, entry, sandbox, cwd, mode, *confined)

    def add_any(self, *, depth: int = 2, mode: _Mode | None = None) -> None:
        """Adds processes that execute any program that has no parked process of its own.

        docs/warm-reference.md says how much time this saves, and when.

        Args:
            depth: How many processes are parked.
            mode: "fork": the processes are forked from a zygote; `started` is "zygote". "reserve":
                a pool of processes started by exec; `started` is "pool". By default the Warm's.

        Raises:
            SpawnError: EMFILE, ENFILE, ENOMEM.
            TypeError, ValueError: An argument is invalid; the message names it.
        """
        self._core.add_any(depth, mode)

    def fill(self, timeout: float | None = 10.0) -> bool:
        """Waits until all processes that can be parked are parked, at most `timeout` seconds.

        Returns False after `timeout` seconds (None: no limit), or if parking is not possible at
        present: the Warm is closed or turned off, this process has closed descriptor 0, 1 or 2, a
        program cannot be parked, or a resource is missing (`stats().cannot` has the reason).

        Raises:
            TypeError, ValueError: `timeout` is not a valid number of seconds.
        """
        return self._core.fill(timeout)

    def explain(
        self,
        argv: Args,
        *,
        cwd: Cwd | None = None,
        env: Environment | None = None,
        actions: Actions | None = None,
        arg0: Arg | None = None,
        sandbox: Sandbox | None = None,
    ) -> WarmExplanation:
        """Finds out how run() would start a program now, and starts nothing.

            print(warm.explain(["bash", "-c", "echo"]))
            # cold: empty: No process is parked now. Call fill() before the first start, ...

        Args:
            argv: As for run(), like the other arguments.

        Raises:
            SpawnError: run() would fail before a program starts.
            TypeError, ValueError: An argument is invalid; the message names it.
        """
        options = {"cwd": cwd, "env": env, "actions": actions, "arg0": arg0, "sandbox": sandbox}
        return WarmExplanation(*_spawnfd.explain(self._core, argv, options))

    def stats(self) -> WarmStats:
        """Returns the counters of this process and the current state."""
        return WarmStats(*self._core.stats())

    @staticmethod
    def turn_off() -> None:
        """Disables all warm starts of this process permanently, as SPAWNFD_WARM=0 does.

        No more processes are parked, and parked ones end within two seconds. All starts are cold.
        """
        _spawnfd.Warm.turn_off()

    @property
    def closed(self) -> bool:
        """Whether close() was called; passing a closed Warm as an option raises ValueError."""
        return self._core.closed

    def close(self) -> None:
        """Ends the parked processes. Programs that have started are not affected."""
        self._core.close()

    def __enter__(self) -> Warm:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{self.stats().parked} parked"
        return f"<spawnfd.Warm: {state}>"


def as_warm(value: Warm | _Mode, keep: int = 0) -> Warm:
    """Returns the Warm for a `warm` argument: the given one, or a new one for a mode.

    Raises:
        TypeError, ValueError: The argument is neither a Warm nor a mode, or the Warm is closed.
    """
    given: Any = value
    if isinstance(given, Warm):
        if given.closed:
            raise ValueError("warm: the Warm is closed")
        return given
    if given in ("reserve", "fork", "auto"):
        return Warm(mode=given, keep=keep)
    if isinstance(given, str):
        raise ValueError(f'warm: expected "reserve", "fork" or "auto", got {given!r}')
    found = type(given).__qualname__
    raise TypeError(f'warm: expected spawnfd.Warm, "reserve", "fork", "auto" or None, not {found}')
