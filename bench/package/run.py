# SPDX-License-Identifier: MIT OR Apache-2.0
"""Measures the time of `import spawnfd`, and the wheel's size; writes build/bench/package.json."""

import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console

sys.path.append(str(Path(__file__).resolve().parents[1]))

from common import flags, machine, session, tables
from common.errors import BenchError
from common.session import Row
from common.stats import estimate, round_order, round_ratios

# A program that imports nothing, the base of comparison, and the package.
PROGRAMS = {
    "nothing": "pass",
    "subprocess": "import subprocess",
    "asyncio": "import asyncio",
    "spawnfd": "import spawnfd",
}
ROUNDS = 101


def run(program: str, environment: Mapping[str, str]) -> float:
    """Runs Python with a program, and returns the milliseconds until its end."""
    begun = time.perf_counter()
    pid = os.posix_spawn(sys.executable, [sys.executable, "-c", program], environment)
    _, status = os.waitpid(pid, 0)
    elapsed = time.perf_counter() - begun
    if status != 0:
        raise BenchError(f"{program!r} ended with status {status}")
    return elapsed * 1e3


def measure(rounds: int) -> dict[str, list[float]]:
    """Returns the times of each program, from interleaved rounds."""
    times: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    # All modules have compiled code, as after an installation: the first runs fill this directory.
    with tempfile.TemporaryDirectory() as cache:
        environment = {"PATH": os.environ["PATH"], "PYTHONPYCACHEPREFIX": cache}
        for program in PROGRAMS.values():
            run(program, environment)
        for number in range(rounds):
            for name in round_order(list(PROGRAMS), number):
                times[name].append(run(PROGRAMS[name], environment))
    return times


def ratios_of(times: Mapping[str, Sequence[float]]) -> list[Row]:
    """Returns the ratios of whole runs, the start of the interpreter included."""
    ratios: list[Row] = []
    for name in ("spawnfd", "asyncio", "nothing"):
        ratio = estimate(round_ratios(times["subprocess"], times[name]))
        # Only the package's own import has a bar.
        id_ = "package.import" if name == "spawnfd" else f"package.import.{name}"
        meaning = f"a program that imports {name} / one that imports subprocess, until the end"
        ratios.append({"id": id_, "meaning": meaning, **ratio.ratio()})
    return ratios


def wheel_size(directory: Path) -> Row:
    """Returns the size of the wheel in a directory, as a ratio for the bars."""
    wheels = list(directory.glob("spawnfd-*-cp310-abi3-*.whl"))
    if len(wheels) != 1:
        raise BenchError(f"{directory} has {len(wheels)} wheels; packaging/wheels.sh makes one")
    size = round(wheels[0].stat().st_size / (1 << 20), 2)
    meaning = f"MiB of {wheels[0].name}"
    return {"id": "package.wheel_mib", "meaning": meaning, "value": size, "low": size, "high": size}


def measure_suite(wheels: Path, rounds: int, console: Console) -> Row:
    """Measures, and returns the content of package.json."""
    facts = {**machine.host(), "python": sys.version}
    times = measure(rounds)
    rows = [
        {"program": PROGRAMS[name], **estimate(samples).figures("ms", 2)}
        for name, samples in times.items()
    ]
    ratios = [*ratios_of(times), wheel_size(wheels)]
    return session.suite("package", facts, ratios, rows, unit="ms", rounds=rounds)


def show(console: Console, document: Row) -> None:
    """Prints the times and the ratios."""
    for row in document["rows"]:
        console.print(f"{row['ms']:8.2f} ms  {row['program']}", highlight=False)
    tables.show_ratios(console, document)


def main() -> int:
    """Runs the benchmark."""
    parser = flags.new_parser("bench-package", __doc__)
    parser.add_argument("--wheels", type=Path, required=True, help="the folder with the wheel")
    options = flags.parse(parser, None)
    rounds = ROUNDS // 4 if options.quick else ROUNDS
    measured = partial(measure_suite, options.wheels, rounds)
    return session.run_suite("package", options.out, measured, show)


if __name__ == "__main__":
    sys.exit(main())
