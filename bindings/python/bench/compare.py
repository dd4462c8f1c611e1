# SPDX-License-Identifier: MIT OR Apache-2.0
"""Calls per second through this package and through the standard library, interleaved.

    python bench/compare.py [rounds]

A developer's quick look at the Python side; the benchmark with bars is bench/agent. Prints medians
over rounds, and the ratio of ours to the better of the others with the range of its quartiles.
Every call's output is checked.
"""

from __future__ import annotations

import asyncio
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import spawnfd as sf

Call = Callable[[], Awaitable[bytes]]


def programs(workspace: str) -> dict[str, tuple[list[str], int]]:
    """What is run, and how many calls make a round."""
    git = shutil.which("git") or "git"
    subprocess.run([git, "init", "-q", workspace], check=True)
    return {
        "true": (["/bin/true"], 300),
        "cat": (["/bin/cat", "/etc/services"], 300),
        "git": ([git, "status", "--porcelain"], 150),
    }


async def in_flight(call: Call, calls: int, width: int) -> float:
    """Calls per second with so many under way at a time."""
    left = calls
    first = await call()

    async def worker() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            assert await call() == first

    start = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(width)))
    return calls / (time.perf_counter() - start)


async def measure(argv: list[str], calls: int, width: int, cwd: str, rounds: int) -> None:
    """Prints one line for one program and width."""
    loop = asyncio.get_running_loop()
    env = {"PATH": "/usr/bin:/bin"}
    env_once = sf.Env.empty().update(env)
    pool = ThreadPoolExecutor(width)

    async def std_async() -> bytes:
        process = await asyncio.create_subprocess_exec(
            *argv,
            cwd=cwd,
            env=env,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        return (await process.communicate())[0]

    def std() -> bytes:
        return subprocess.run(
            argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True
        ).stdout

    async def std_threads() -> bytes:
        return await loop.run_in_executor(pool, std)

    async def ours() -> bytes:
        return (await sf.run_async(argv, cwd=cwd, env=env_once, timeout=30)).stdout

    async def ours_threads() -> bytes:
        run = lambda: sf.run(argv, cwd=cwd, env=env_once, timeout=30).stdout  # noqa: E731
        return await loop.run_in_executor(pool, run)

    ways = {
        "asyncio": std_async,
        "threads": std_threads,
        "run_async": ours,
        "run in threads": ours_threads,
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, call in ways.items():
            rates[name].append(await in_flight(call, calls, width))
    pool.shutdown()
    medians = {name: statistics.median(values) for name, values in rates.items()}
    best = max(("asyncio", "threads"), key=lambda name: medians[name])
    ratios = sorted(a / b for a, b in zip(rates["run_async"], rates[best], strict=True))
    quartiles = f"{ratios[len(ratios) // 4]:.2f}-{ratios[-1 - len(ratios) // 4]:.2f}"
    figures = "  ".join(f"{name} {value:7.0f}/s" for name, value in medians.items())
    print(f"  x{width:<3} {figures}  ours/best {statistics.median(ratios):.2f} ({quartiles})")


def measure_sync(argv: list[str], calls: int, cwd: str, rounds: int) -> None:
    """Prints one line for the blocking calls."""
    env = {"PATH": "/usr/bin:/bin"}
    env_once = sf.Env.empty().update(env)
    rates: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(calls):
            subprocess.run(argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True)
        middle = time.perf_counter()
        for _ in range(calls):
            sf.run(argv, cwd=cwd, env=env_once, timeout=30)
        rates[0].append(calls / (middle - start))
        rates[1].append(calls / (time.perf_counter() - middle))
    ratio = statistics.median(b / a for a, b in zip(*rates, strict=True))
    std, ours = (statistics.median(values) for values in rates)
    print(f"  run  subprocess.run {std:7.0f}/s  sf.run {ours:7.0f}/s  ours/std {ratio:.2f}")


async def main() -> None:
    """All programs, one and sixteen in flight."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    if sys.version_info < (3, 12):
        # The default of 3.12; before it was a thread for each child.
        watcher = asyncio.PidfdChildWatcher()
        watcher.attach_loop(asyncio.get_running_loop())
        asyncio.set_child_watcher(watcher)
    with tempfile.TemporaryDirectory() as workspace:
        for name, (argv, calls) in programs(workspace).items():
            print(name)
            measure_sync(argv, calls // 3, workspace, rounds)
            for width in (1, 16):
                await measure(argv, calls, width, workspace, rounds)


if __name__ == "__main__":
    asyncio.run(main())
