# SPDX-License-Identifier: MIT OR Apache-2.0
"""Counts the instructions of a start on emulated x86_64 and aarch64. Writes build/bench/count.json.

python bench/count/run.py --cache DIR
"""

import argparse
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from rich.console import Console

sys.path.append(str(Path(__file__).resolve().parents[1]))

import common.samples
from common import flags, session, tables
from common.command import output
from common.errors import BenchError
from common.samples import Ratio, Samples
from common.session import Row
from common.stats import estimate

PROJECT = Path(__file__).resolve().parents[2]
PACKAGES = PROJECT / "packaging"
QEMU = PROJECT / "kernel" / "qemu"
INTERVAL = "95 % bootstrap interval of the median over rounds; within one boot, not between boots"
UNIT = "instructions of the guest, kernel and user, by QEMU -icount: not time; see not_measured"
NOT_MEASURED = [
    "time: each instruction counts one, whatever it costs",
    "cache and TLB misses, branch prediction, page-table walks",
    "lock contention, more than one CPU",
    "fewer than 16 instructions on aarch64, whose clock advances by 16 ns",
]
RELEASE = "trixie"
# The packages of the guest of test-static.sh and test-npm.sh, so that all use one root.
ARM64_ROOT = "linux-image-arm64 bash busybox-static coreutils dash libstdc++6 musl"
MACHINES = ("x86_64", "aarch64")
SCENARIO = "first-instruction"
PARTS = ("first", "whole")

RATIOS = tuple(
    Ratio(
        f"count.{part}.{over}_vs_{under}.{machine}", machine, SCENARIO, over, under,
        f"{meaning}, {machine}, {text}; instruction counts", part,
    )
    for machine in MACHINES
    for part, text in (("first", "to the first instruction"), ("whole", "spawn and wait"))
    for over, under, meaning in (
        ("ours", "same_calls", "spawnfd / the same system calls in C"),
        ("ours", "vfork", "spawnfd / vfork+exec in C"),
        ("posix_spawn", "ours", "glibc posix_spawn / spawnfd"),
    )
)  # fmt: skip


def build(machine: str) -> Path:
    """Builds bench-launch for a machine. Returns the program."""
    target = f"{machine}-unknown-linux-gnu"
    linker = f"CARGO_TARGET_{target.upper().replace('-', '_')}_LINKER"
    output(
        *("cargo", "build", "--quiet", "--release", "-p", "spawnfd-bench", "--target", target),
        cwd=PROJECT,
        env={**os.environ, linker: f"{machine}-linux-gnu-gcc"},
    )
    directory = Path(os.environ.get("CARGO_TARGET_DIR", PROJECT / "target"))
    return directory / target / "release" / "bench-launch"


def script(program: str) -> str:
    """Returns the commands of the guest."""
    return f"mkdir /programs\n{program} --install /programs\n{program} --counted /programs\n"


def count_x86_64(cache: Path, scratch: Path) -> list[str]:
    """Boots an x86_64 guest. Returns the lines that it prints."""
    program, root = build("x86_64"), scratch / "root"
    kernel = output(QEMU / "debian-kernel.sh", RELEASE, cache / "kernel").strip()
    output(QEMU / "stage.sh", root, "/bin/sh", shutil.which("mkdir") or "", program)
    (root / "count.sh").write_text(f"#!/bin/sh\nset -e\n{script(str(program))}")
    (root / "count.sh").chmod(0o755)
    boot = (QEMU / "boot.sh", "--count", "--time", "1200")
    return output(*boot, kernel, root, "/count.sh").splitlines()


def count_aarch64(cache: Path, scratch: Path) -> list[str]:
    """Boots an arm64 guest. Returns the lines that it prints."""
    program, work = build("aarch64"), scratch / "work"
    work.mkdir()
    shutil.copy(program, work)
    root = output(
        *(PACKAGES / "root.sh", "--unpack", "arm64", cache / "roots", RELEASE),
        *ARM64_ROOT.split(),
    ).strip()
    boot = (PACKAGES / "in-arm64.sh", "--count", "--time", "1200")
    return output(*boot, root, work, script("./bench-launch")).splitlines()


def collect(machine: str, lines: Iterable[str]) -> Samples:
    """Returns the samples of a machine. Raises BenchError if a line is malformed."""
    found: Samples = {}
    for line in lines:
        if not line.startswith("sample "):
            continue
        match = re.fullmatch(r"sample (\S+) (\d+) (\d+)", line)
        if not match:
            raise BenchError(f"malformed sample: {line!r}")
        cell = found.setdefault((machine, SCENARIO, match[1]), {part: [] for part in PARTS})
        for part, value in zip(PARTS, match.groups()[1:], strict=True):
            cell[part].append(float(value))
    if not found:
        raise BenchError(f"the guest for {machine} measured nothing")
    return found


def cell_rows(samples: Samples) -> list[Row]:
    """Returns the medians of instructions, in thousands."""
    rows = []
    for (machine, _, method), cell in samples.items():
        row: Row = {"machine": machine, "method": method, "samples": len(cell["first"])}
        for part in PARTS:
            thousands = estimate([value / 1000 for value in cell[part]])
            row |= thousands.figures(f"{part}_kinsn", 2)
        rows.append(row)
    return rows


def show(console: Console, document: Row) -> None:
    """Prints the medians and the ratios."""
    console.print("Thousands of instructions (QEMU -icount, not time), medians: first / whole")
    for row in document["rows"]:
        name = f"{row['machine']:10} {row['method']:14}"
        console.print(f"  {name} {row['first_kinsn']} / {row['whole_kinsn']}", highlight=False)
    tables.show_ratios(console, document)
    console.print("Not measured: " + "; ".join(NOT_MEASURED), highlight=False)


def run(options: argparse.Namespace, console: Console) -> Row:
    """Measures, and returns the content of count.json."""
    scripts = PROJECT / "scripts"
    for setup in (
        PACKAGES / "setup-roots.sh",
        scripts / "setup-guest.sh",
        scripts / "setup-aarch64.sh",
    ):
        output(setup, cwd=PROJECT)
    samples: Samples = {}
    with tempfile.TemporaryDirectory(prefix="spawnfd-bench-") as folder:
        for machine, count in (("x86_64", count_x86_64), ("aarch64", count_aarch64)):
            samples |= collect(machine, count(options.cache, Path(folder)))
    facts = {"kernel": f"Debian {RELEASE}", "cpus": 1}
    for machine in MACHINES:
        qemu = output(f"qemu-system-{machine}", "--version")
        facts[f"qemu_{machine}"] = qemu.splitlines()[0]
    ratios = common.samples.ratio_rows(RATIOS, samples)
    return session.suite(
        "count", facts, ratios, cell_rows(samples), INTERVAL, unit=UNIT, not_measured=NOT_MEASURED
    )


def main() -> int:
    """Runs the benchmark. Exits with an error if a guest fails."""
    parser = flags.new_parser("bench-count", __doc__)
    parser.add_argument("--cache", type=Path, required=True, help="kernels and root directories")
    options = flags.parse(parser, None)
    return session.run_suite("count", options.out, partial(run, options), show)


if __name__ == "__main__":
    sys.exit(main())
