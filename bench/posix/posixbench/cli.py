# SPDX-License-Identifier: MIT OR Apache-2.0
"""Measures posix_spawn of glibc against that of the C library; writes build/bench/posix.json."""

import argparse
import hashlib
import lzma
import os
import shutil
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from rich.console import Console

from common import flags, machine, session, tables
from common.command import output
from common.errors import BenchError
from common.pipe import EofWorker
from common.samples import Ratio, Samples, ratio_rows
from common.session import Row
from common.stats import estimate, round_order, round_ratios

HERE = Path(__file__).resolve().parents[1]
PROJECT = HERE.parents[1]
FIRST_INSTRUCTION = PROJECT / "bench" / "native" / "programs" / "first_instruction.S"
DEBIAN = "http://deb.debian.org/debian"
# The time within which a worker answers one request.
TIMEOUT_S = 300


@dataclass(frozen=True)
class Parent:
    """The state of a process that starts programs, and what it measures."""

    name: str
    scenarios: tuple[str, ...]
    state: tuple[str, str, str] = ("touch=0", "fds=0", "threads=0")
    rounds: int = 41
    samples: int = 50


PARENTS = (
    Parent("small", ("dup2", "closefrom", "parallel")),
    Parent("touched1g", ("dup2",), ("touch=1024", "fds=0", "threads=0")),
    Parent("fds10000", ("closefrom", "above"), ("touch=0", "fds=10000", "threads=0"), 21, 20),
    Parent("threads64", ("dup2",), ("touch=0", "fds=0", "threads=64"), 21, 20),
)


def _ratios() -> Iterable[Ratio]:
    cells = (
        ("first_insn", "small", "dup2", "first", "adddup2, to the first instruction"),
        ("life", "small", "dup2", "whole", "adddup2, until reaped"),
        ("closefrom", "small", "closefrom", "first", "addopen, adddup2 and addclosefrom"),
        ("parallel8", "small", "parallel", "whole", "8 threads at once, time for all"),
        ("touched1g", "touched1g", "dup2", "first", "parent with 1 GiB touched"),
        ("fds10000", "fds10000", "closefrom", "first", "10,000 fds, addopen and addclosefrom"),
        ("fds10000above", "fds10000", "above", "first", "the same, adddup2 from above them"),
        ("threads64", "threads64", "dup2", "first", "parent with 64 busy threads"),
    )  # fmt: skip
    for name, parent, scenario, part, meaning in cells:
        for over in ("glibc", "glibc241"):
            for under, suffix in (("linked", "ours"), ("preload", "preload")):
                title = "glibc" if over == "glibc" else "glibc 2.41"
                yield Ratio(
                    f"posix.{name}.{over}_vs_{suffix}", parent, scenario, over, under,
                    f"{title} / ours {under}: {meaning}", part,
                )  # fmt: skip


RATIOS = tuple(_ratios())
MAKE = "posix.make.preload"


class PosixWorker(EofWorker):
    """A process that measures one implementation of posix_spawn."""

    def __init__(self, command: Sequence[str | Path], parent: Parent, preload: Path | None) -> None:
        """Starts the process."""
        environment = {"PATH": "/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8"}
        if preload:
            environment["LD_PRELOAD"] = str(preload)
        super().__init__(parent.name, [*map(str, command), *parent.state], environment)

    def sample(self, scenario: str, count: int) -> list[list[float]]:
        """Returns the samples: the time to the first instruction, if measured, and the whole."""
        self.send(scenario=scenario, count=count)
        samples: list[list[float]] = self.receive("samples")["samples"]
        return samples


def build(scratch: Path, libraries: Path) -> tuple[Path, Path, Path]:
    """Compiles the program without libc, the worker, and the worker linked to our library."""
    program, plain, linked = scratch / "program", scratch / "worker", scratch / "linked"
    output("cc", "-static", "-nostdlib", "-o", program, FIRST_INSTRUCTION)
    output("cc", "-O2", "-pthread", "-o", plain, HERE / "worker.c")
    output("cc", "-O2", "-pthread", "-o", linked, HERE / "worker.c",
        f"-L{libraries}", "-lspawnfd", f"-Wl,-rpath,{libraries}",
    )  # fmt: skip
    return program, plain, linked


def fetch_glibc(cache: Path) -> Path:
    """Downloads libc6 of Debian 13, and returns the directory of its libraries.

    Raises OSError if the archive cannot be reached.
    """
    index = f"{DEBIAN}/dists/trixie/main/binary-amd64/Packages.xz"
    with urllib.request.urlopen(index, timeout=60) as answer:
        packages = lzma.decompress(answer.read()).decode()
    entry = next(text for text in packages.split("\n\n") if text.startswith("Package: libc6\n"))
    fields = dict(line.split(": ", 1) for line in entry.splitlines() if ": " in line)
    root = cache / f"libc6-{fields['SHA256'][:16]}"
    if not root.is_dir():
        with urllib.request.urlopen(f"{DEBIAN}/{fields['Filename']}", timeout=60) as answer:
            content = answer.read()
        if hashlib.sha256(content).hexdigest() != fields["SHA256"]:
            raise BenchError(f"{fields['Filename']}: wrong checksum")
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            package = Path(folder, "libc6.deb")
            package.write_bytes(content)
            output("dpkg-deb", "--extract", package, Path(folder, "root"))
            Path(folder, "root").rename(root)
    return root / "usr" / "lib" / "x86_64-linux-gnu"


def measure(commands: dict[str, tuple[Sequence[str | Path], Path | None]], scale: float) -> Samples:
    """Returns the median of each round by parent, scenario and method."""
    found: Samples = {}
    for parent in PARENTS:
        with ExitStack() as stack:
            workers = {}
            for name, (command, preload) in commands.items():
                worker = PosixWorker(command, parent, preload)
                workers[name] = stack.enter_context(worker)
            rounds = max(5, round(parent.rounds * scale))
            for number in range(rounds):
                print(f"\r{parent.name}: round {number + 1} of {rounds} ", end="", file=sys.stderr)
                for scenario in parent.scenarios:
                    for name in round_order(list(workers), number):
                        samples = workers[name].sample(scenario, parent.samples)
                        cell = found.setdefault((parent.name, scenario, name), {})
                        cell.setdefault("whole", []).append(median(s[-1] for s in samples))
                        if len(samples[0]) == 2:
                            cell.setdefault("first", []).append(median(s[0] for s in samples))
            print(file=sys.stderr)
    return found


MAKEFILE = """\
all: $(addprefix out/,$(addsuffix .txt,$(shell seq 1000))) $(addprefix copy/,$(shell seq 1000))
out/%.txt: ; @echo $* | sed 's/^/step /' >$@
copy/%: input ; @cp input $@
"""


def make_seconds(folder: Path, preload: Path | None) -> float:
    """Builds a project of 2,000 steps with make -j2, checks the files, and returns the time."""
    for name in ("out", "copy"):
        shutil.rmtree(folder / name, ignore_errors=True)
        (folder / name).mkdir()
    environment = {"PATH": "/usr/bin:/bin"}
    if preload:
        environment["LD_PRELOAD"] = str(preload)
    begun = time.perf_counter()
    output("make", "-j2", "-s", cwd=folder, env=environment, timeout=TIMEOUT_S)
    taken = time.perf_counter() - begun
    steps = [(folder / "out" / f"{number}.txt").read_text() for number in range(1, 1001)]
    copies = {path.read_text() for path in (folder / "copy").iterdir()}
    if steps != [f"step {number}\n" for number in range(1, 1001)] or copies != {"input\n"}:
        raise BenchError("make wrote other files than expected")
    return taken


def measure_make(scratch: Path, preload: Path, rounds: int) -> dict[str, list[float]]:
    """Returns the seconds of each round, without and with the preloaded library."""
    folder = scratch / "project"
    folder.mkdir()
    (folder / "Makefile").write_text(MAKEFILE)
    (folder / "input").write_text("input\n")
    found: dict[str, list[float]] = {"plain": [], "preload": []}
    for number in range(rounds):
        print(f"\rmake: round {number + 1} of {rounds} ", end="", file=sys.stderr)
        for name in round_order(list(found), number):
            found[name].append(make_seconds(folder, preload if name == "preload" else None))
    print(file=sys.stderr)
    return found


def make_ratio(made: dict[str, list[float]]) -> Row:
    """Returns the ratio of the times of make."""
    found = estimate(round_ratios(made["preload"], made["plain"]))
    meaning = "make -j2 of 2,000 steps: time without / with the preloaded library"
    return {"id": MAKE, **found.ratio(), "meaning": meaning}


def cell_rows(samples: Samples, made: dict[str, list[float]]) -> list[Row]:
    """Returns the medians in microseconds, and the seconds of make."""
    rows: list[Row] = []
    for (parent, scenario, method), cell in samples.items():
        row: Row = {"parent": parent, "scenario": scenario, "method": method}
        for part, values in cell.items():
            row |= estimate([value / 1000 for value in values]).figures(f"{part}_us", 1)
        rows.append(row)
    for method, values in made.items():
        row = {"parent": "make", "scenario": "2,000 steps", "method": method}
        rows.append(row | estimate(values).figures("whole_s", 3))
    return rows


def show(console: Console, document: Row) -> None:
    """Prints the medians, and the ratios with their bars."""
    console.print("Medians in us: to the first instruction / until reaped")
    for row in document["rows"]:
        name = f"{row['parent']:10} {row['scenario']:11} {row['method']:9}"
        whole = row.get("whole_us", row.get("whole_s"))
        console.print(f"  {name} {row.get('first_us', '-'):>9} / {whole}", highlight=False)
    tables.show_ratios(console, document)
    for missing in document["missing"]:
        console.print(f"missing: {missing}", style="yellow", highlight=False)


def run(options: argparse.Namespace, console: Console) -> Row:
    """Measures, and returns the content of posix.json."""
    libraries = options.libraries.resolve()
    preload = libraries / "libspawnfd-spawn.so"
    missing = []
    with tempfile.TemporaryDirectory(prefix="spawnfd-bench-") as folder:
        scratch = Path(folder)
        program, plain, linked = build(scratch, libraries)
        commands: dict[str, tuple[Sequence[str | Path], Path | None]] = {
            "glibc": ([plain, program], None),
            "linked": ([linked, program], None),
            "preload": ([plain, program], preload),
        }
        try:
            newer = fetch_glibc(options.cache)
            loader = newer / "ld-linux-x86-64.so.2"
            commands["glibc241"] = ([loader, "--library-path", newer, plain, program], None)
        except OSError as error:
            missing.append(f"glibc 2.41: {error}")
        samples = measure(commands, 0.25 if options.quick else 1.0)
        made = measure_make(scratch, preload, 5 if options.quick else 15)
    facts = {**machine.host(), "glibc": os.confstr("CS_GNU_LIBC_VERSION")}
    ratios = [*ratio_rows(RATIOS, samples), make_ratio(made)]
    rows = cell_rows(samples, made)
    return session.suite("posix", facts, ratios, rows, unit="us", missing=missing)


def main() -> int:
    """Runs the benchmark."""
    parser = flags.new_parser("bench-posix", __doc__)
    parser.add_argument("--libraries", type=Path, required=True, help="of scripts/build-capi.sh")
    parser.add_argument("--cache", type=Path, required=True, help="for libc6 of Debian 13")
    options = flags.parse(parser, None)
    return session.run_suite("posix", options.out, partial(run, options), show)
