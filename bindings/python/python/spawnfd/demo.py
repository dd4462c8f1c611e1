# SPDX-License-Identifier: MIT OR Apache-2.0
"""Compares ways to start the tools of this machine: `python -m spawnfd.demo`.

Each way keeps 16 calls in flight, with captured output. The calls run in a workspace that the
program generates. A call counts only if its exit code and output are right.
"""

import argparse
import asyncio as aio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import spawnfd as sf

Answer = tuple[int, bytes, bytes]
Call = Callable[[Sequence[str]], Awaitable[Answer]]
# The milliseconds per call of each way, by workload.
Medians = dict[str, dict[str, float]]
# How the programs of the way "warm" were started, by workload.
Starts = dict[str, Counter[str]]

IN_FLIGHT = 16
# Parked processes of each program.
DEPTH = 4
TIMEOUT_S = 30.0
# Tools and their arguments. A call is left out if its program is missing.
CALLS: dict[str, list[str]] = {
    "rg": ["rg", "--no-config", "--color=never", "--sort=path", "-n", "TODO", "src"],
    "grep": ["grep", "-n", "class ", "src/module_00.py", "src/module_01.py"],
    "sed": ["sed", "-n", "1,40p", "src/module_02.py"],
    "awk": ["awk", "-F,", "{ n += $3 } END { print NR, n }", "records.csv"],
    "cat": ["cat", "records.csv"],
    "head": ["head", "-n", "20", "records.csv"],
    "tail": ["tail", "-n", "20", "records.csv"],
    "find": ["find", "src", "-type", "f", "-name", "*.py"],
    "stat": ["stat", "-c", "%n %s", "records.csv", "src/module_00.py"],
    "ls": ["ls", "-la", "src"],
    "git status": ["git", "status", "--porcelain"],
    "python": ["python3", "-c", "import json; print(len(open('records.csv').readlines()))"],
    "node": ["node", "-e", "console.log(require('fs').readdirSync('src').length)"],
    "sh": ["sh", "-c", "test -f records.csv && wc -l <records.csv"],
    "bash": ["bash", "-c", "cd src && echo *.py | wc -w"],
}
ALL = "all tools"


def find_program(name: str) -> str | None:
    """Returns the path of a program. Skips scripts, such as the shims of pyenv and nvm."""
    directories = [sys.exec_prefix + "/bin"] if name == "python3" else []
    for directory in [*directories, *os.get_exec_path()]:
        path = Path(directory, name)
        if path.is_absolute() and os.access(path, os.X_OK) and path.is_file():
            with path.open("rb") as file:
                if file.read(4) == b"\x7fELF":
                    return str(path)
    return None


@contextmanager
def workspace() -> Generator[None, None, None]:
    """Makes a new workspace the working directory. git reads neither settings nor GIT_DIR."""
    directory, environment = os.getcwd(), dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="spawnfd-demo-") as root:
        try:
            for name in environment:
                if name.startswith("GIT_"):
                    del os.environ[name]
            os.environ |= {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
            os.chdir(root)
            make_workspace(Path(root))
            yield
        finally:
            os.chdir(directory)
            os.environ.clear()
            os.environ.update(environment)


def make_workspace(root: Path) -> None:
    """Writes the files that the calls read, and commits them if git is present."""
    (root / "src").mkdir()
    for number in range(48):
        lines = [f"class Part{number}:", f"    # TODO: {number}"]
        lines += [f"    value_{line} = {line * number}" for line in range(80)]
        (root / "src" / f"module_{number:02}.py").write_text("\n".join(lines) + "\n")
    rows = (f"{row},name{row % 7},{row * 37 % 1000}\n" for row in range(1500))
    (root / "records.csv").write_text("".join(rows))
    git = find_program("git")
    if git is not None:
        identity = ["-c", "user.name=demo", "-c", "user.email=demo@example.invalid"]
        for words in (["init", "-q"], ["add", "."], [*identity, "commit", "-q", "-m", "start"]):
            subprocess.run([git, *words], cwd=root, check=True, stdin=subprocess.DEVNULL)
        (root / "src/module_03.py").write_text("changed = True\n")


async def by_asyncio(argv: Sequence[str]) -> Answer:
    """Starts a program by asyncio.create_subprocess_exec."""
    pipe = subprocess.PIPE
    process = await aio.create_subprocess_exec(
        *argv, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe
    )
    out, err = await process.communicate()
    return process.returncode or 0, out, err


def by_subprocess(argv: Sequence[str]) -> Answer:
    """Starts a program by subprocess.run."""
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True)
    return done.returncode, done.stdout, done.stderr


async def by_spawnfd(argv: Sequence[str]) -> Answer:
    """Starts a program by spawnfd, with a timeout."""
    result = await sf.run_async(argv, timeout=TIMEOUT_S)
    return result.code or 0, result.stdout, result.stderr


async def measure(call: Call, calls: Sequence[Sequence[str]], expected: dict[str, Answer]) -> float:
    """Makes the calls, 16 in flight, and returns the milliseconds per call."""
    waiting = list(reversed(calls))

    async def work() -> None:
        while waiting:
            argv = waiting.pop()
            answer = await call(argv)
            if answer != expected["\0".join(argv)]:
                raise SystemExit(f"demo: {' '.join(argv)}: another exit code or output: {answer}")

    begun = time.perf_counter()
    await aio.gather(*(work() for _ in range(IN_FLIGHT)))
    return (time.perf_counter() - begun) * 1e3 / len(calls)


async def compare(calls: dict[str, list[str]], seconds: float) -> tuple[Medians, Starts]:
    """Measures each call in each way, in interleaved rounds."""
    expected = {"\0".join(argv): by_subprocess(argv) for argv in calls.values()}
    # Enough for the parked processes of each program, and for the process that forks them.
    limit = 2 * (DEPTH + 1) * len(calls)
    with (
        ThreadPoolExecutor(IN_FLIGHT) as pool,
        sf.Warm(mode="fork", memory=1 << 30, processes=limit) as warm,
    ):
        for argv in calls.values():
            # Node.js needs -e when it starts, which is before it parks.
            args = argv[1:2] if os.path.basename(argv[0]) == "node" else []
            warm.add(argv[0], depth=DEPTH, args=args)

        async def by_threads(argv: Sequence[str]) -> Answer:
            return await aio.get_running_loop().run_in_executor(pool, by_subprocess, argv)

        async def by_warm(argv: Sequence[str]) -> Answer:
            result = await warm.run_async(argv, timeout=TIMEOUT_S)
            starts[name][result.started] += 1
            return result.code or 0, result.stdout, result.stderr

        ways: dict[str, Call] = {
            "asyncio": by_asyncio,
            "threads": by_threads,
            "spawnfd": by_spawnfd,
            "warm": by_warm,
        }
        workloads = {ALL: list(calls.values()) * 2}
        workloads |= {name: [argv] * IN_FLIGHT for name, argv in calls.items()}
        times: dict[str, dict[str, list[float]]] = {
            name: {way: [] for way in ways} for name in workloads
        }
        starts: Starts = {name: Counter() for name in workloads}
        begun = time.monotonic()
        rounds = 0
        # The last round must end in time, too.
        while rounds == 0 or (time.monotonic() - begun) * (rounds + 1) / rounds < seconds:
            for name, load in workloads.items():
                # The order changes, so that no way always runs first.
                for way in sorted(ways, reverse=rounds % 2 == 1):
                    warm.fill()
                    times[name][way].append(await measure(ways[way], load, expected))
            rounds += 1
            print(f"\rround {rounds}", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
    medians = {
        name: {way: statistics.median(values) for way, values in found.items()}
        for name, found in times.items()
    }
    return medians, starts


def cold_starts(starts: Counter[str]) -> Counter[str]:
    """Selects the starts that used no parked process. Each key is "cold: " and the reason."""
    return Counter({how: number for how, number in starts.items() if how.startswith("cold: ")})


def table(medians: Medians, starts: Starts) -> str:
    """Formats the medians, and how much faster spawnfd is than the better platform way.

    If most starts of the way "warm" were cold, the reason takes the place of the figures.
    """
    head = ("milliseconds per call", "asyncio", "threads", "spawnfd", "gain", "warm", "gain")
    rows: list[tuple[str, ...]] = [head]
    for name, found in medians.items():
        platform = min(found["asyncio"], found["threads"])
        cells = [f"{found['asyncio']:.2f}", f"{found['threads']:.2f}"]
        for way in ("spawnfd", "warm"):
            cells += [f"{found[way]:.2f}", f"{(platform / found[way] - 1) * 100:+.0f} %"]
        cold = cold_starts(starts[name])
        if 2 * cold.total() > starts[name].total():
            cells[-2:] = [cold.most_common(1)[0][0], ""]
        rows.append((name, *cells))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(
            cell.ljust(width) if index == 0 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)


def legend(starts: Starts) -> str:
    """Explains the columns, and counts the cold starts in the figures of warm starts."""
    text = (
        f"16 calls in flight, Python {sys.version.split()[0]}, spawnfd {sf.__version__}. threads: "
        "subprocess.run.\ngain: against the better of asyncio and threads."
    )
    mixed = ""
    is_warm = False
    for name, found in starts.items():
        cold, total = cold_starts(found), found.total()
        if 2 * cold.total() <= total:
            is_warm = True
            if cold:
                reason = cold.most_common(1)[0][0]
                mixed += f"\nwarm: {name}: {cold.total()} of {total} starts were cold ({reason})"
    if is_warm:
        text += " warm: the library starts the programs ahead, in mode fork."
    return text + mixed


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the comparison. The exit status is 0 if all answers were right."""
    parser = argparse.ArgumentParser(
        prog="python -m spawnfd.demo",
        description="Starts tools of this machine with 16 calls in flight, and compares spawnfd "
        "with asyncio.create_subprocess_exec and with subprocess.run in threads.",
    )
    parser.add_argument("--seconds", type=float, default=40.0, help="time to measure (%(default)s)")
    parser.add_argument("--tool", action="append", choices=CALLS, help="only this tool; repeatable")
    options = parser.parse_args(arguments)
    load, processors = os.getloadavg()[0], os.cpu_count() or 1
    if load > processors:
        # The kernel's autogroups share the CPU time among sessions, and only runs of spawnfd have
        # sessions of their own. So other load may slow down the other methods more.
        print(f"the machine is busy (load {load:.1f}): the figures may favour spawnfd")
    calls: dict[str, list[str]] = {}
    for name in options.tool or CALLS:
        program, *words = CALLS[name]
        path = find_program(program)
        if path is None:
            print(f"skipped: {name}: no program {program} in PATH")
        else:
            calls[name] = [path, *words]
    if not calls:
        print("demo: none of the tools is in PATH", file=sys.stderr)
        return 1
    with workspace():
        medians, starts = aio.run(compare(calls, options.seconds))
    print(table(medians, starts))
    print(legend(starts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
