# SPDX-License-Identifier: MIT OR Apache-2.0
"""Measures the kernel series in a guest that counts instructions. Writes build/bench/kernel.json.

python bench/kernel/run.py --cache DIR
"""

import argparse
import hashlib
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

from common import bars, document
from common.errors import BenchError
from common.stats import estimate

PROJECT = Path(__file__).resolve().parents[2]
QEMU = PROJECT / "kernel" / "qemu"
HERE = Path(__file__).resolve().parent
INTERVAL = "95 % bootstrap interval of the median over rounds; within one boot, not between boots"
UNIT = "instructions of the guest, by QEMU -icount: not time; see not_measured"
NOT_MEASURED = [
    "time: each instruction counts one, whatever it costs",
    "cache and TLB misses, branch prediction, page-table walks",
    "inter-processor interrupts, lock contention, more than one CPU",
    "real devices and file systems: programs lie in the initramfs",
    "mitigations against speculation, which are off in the guest",
    "differences below 1 %, which the same path shows at different points of one boot",
]
# The number of rounds for each kind of parent.
PARENTS = {"small": 41, "fds10000": 21, "touched1g": 5, "plain": 41, "base": 41}
# The parents of the main boot. `plain` and `base` are the same process in two boots of its own, of
# the kernel with the series and of the kernel without it.
STARTERS = ("small", "fds10000", "touched1g")
DYNAMIC = {
    "true": ["/bin/true"],
    "sed": ["/bin/sed", "-n", "p", "/dev/null"],
    "git": ["/usr/bin/git", "--version"],
}
PARTS = ("first", "whole", "faults")
Row = dict[str, Any]


@dataclass(frozen=True)
class Ratio:
    """The ratio `over` / `under` for one parent and child. `part` is "first" or "whole".

    `base` is the parent of `under`, if it is another.
    """

    id: str
    parent: str
    child: str
    over: str
    under: str
    meaning: str
    part: str = "first"
    base: str = ""

    @property
    def cells(self) -> tuple[tuple[str, str, str], tuple[str, str, str]]:
        """The names of the two cells."""
        return (
            (self.parent, self.child, self.over),
            (self.base or self.parent, self.child, self.under),
        )


RATIOS = (
    Ratio("kernel.first_insn.pristine_vs_vfork", "small", "tiny", "pristine", "vfork",
          "pristine with pidfd / vfork+exec, to the first instruction"),
    Ratio("kernel.first_insn.posix_spawn_vs_builder", "small", "tiny", "posix_spawn", "builder",
          "glibc posix_spawn / builder reused, to the first instruction"),
    Ratio("kernel.first_insn.template_vs_vfork", "small", "tiny", "template", "vfork",
          "template with pidfd and revalidation / vfork+exec, to the first instruction"),
    Ratio("kernel.first_insn.builder_vs_vfork", "small", "tiny", "builder", "vfork",
          "builder reused, with pidfd / vfork+exec, to the first instruction"),
    Ratio("kernel.first_insn.builder_fresh_vs_vfork", "small", "tiny", "builder_fresh", "vfork",
          "builder opened, configured and closed / vfork+exec, to the first instruction"),
    Ratio("kernel.first_insn.io_uring_vs_vfork", "small", "tiny", "io_uring", "vfork",
          "io_uring operation / vfork+exec, to the first instruction"),
    Ratio("kernel.first_insn.fork_vs_vfork", "small", "tiny", "fork", "vfork",
          "fork+exec / vfork+exec, to the first instruction"),
    Ratio("kernel.life.builder_vs_vfork", "small", "tiny", "builder", "vfork",
          "builder reused / vfork+exec, until reaped and closed", "whole"),
    Ratio("kernel.fds10000.vfork_vs_pristine", "fds10000", "tiny", "vfork", "pristine",
          "vfork+exec / pristine, parent with 10,000 descriptors, to the first instruction"),
    Ratio("kernel.fds10000cloexec.posix_spawn_vs_builder", "fds10000", "tiny", "posix_spawn",
          "builder_inherit", "glibc posix_spawn / builder that inherits descriptors, parent with "
          "10,000 close-on-exec descriptors, to the first instruction"),
    Ratio("kernel.touched1g.fork_vs_builder", "touched1g", "tiny", "fork", "builder",
          "fork+exec / builder, parent with 1 GiB touched, to the first instruction"),
    Ratio("kernel.dynamic.vfork_vs_template", "small", "true", "vfork", "template",
          "vfork+exec / template after warm-up, dynamic /bin/true, to the program's entry"),
    Ratio("kernel.dynamic.vfork_vs_template.sed", "small", "sed", "vfork", "template",
          "vfork+exec / template after warm-up, sed, to the program's entry"),
    Ratio("kernel.dynamic.vfork_vs_template.git", "small", "git", "vfork", "template",
          "vfork+exec / template after warm-up, git, to the program's entry"),
    *(Ratio(f"kernel.regress.{name}", "plain", "tiny", name, name,
            f"{meaning}: kernel with the series / without it, in the same place of two boots",
            "whole", "base")
      for name, meaning in (("fork", "fork, exit and wait"), ("exec", "vfork, exec and wait"),
                            ("fault", "faults of private and anonymous pages"))),
)  # fmt: skip


def call(*command: str | Path) -> str:
    """Runs a command and returns its output. Exits this program if the command fails."""
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"bench-kernel: {command[0]}: exit status {done.returncode}\n{done.stdout}")
    return done.stdout


def with_entry(program: Path, code: bytes, copy: Path) -> None:
    """Copies a program, and replaces the code at its entry point.

    When the copy reaches its entry point, the dynamic loader has done all its work, and the
    libraries' constructors have run.
    """
    image = bytearray(program.read_bytes())
    entry, headers = struct.unpack_from("<QQ", image, 24)
    size, count = struct.unpack_from("<HH", image, 54)
    for number in range(count):
        kind, _, offset, address, _, length = struct.unpack_from(
            "<IIQQQQ", image, headers + number * size
        )
        if kind == 1 and address <= entry < address + length:
            place = offset + entry - address
            image[place : place + len(code)] = code
            copy.write_bytes(image)
            copy.chmod(0o755)
            return
    sys.exit(f"bench-kernel: {program}: no segment contains its entry point")


def prepare(kernel: Path, root: Path, scratch: Path) -> list[str]:
    """Fills the guest's root directory. Returns the children as arguments of `measure`."""
    bench = root / "bench"
    bench.mkdir(parents=True)
    source = PROJECT / "bench" / "native" / "programs" / "first_instruction.S"
    call("cc", "-static", "-nostdlib", "-o", bench / "tiny", source)
    call("cc", "-c", "-o", scratch / "tiny.o", source)
    call("objcopy", "-O", "binary", "-j", ".text", scratch / "tiny.o", scratch / "code")
    include = kernel / "include"
    call("cc", "-O2", "-static", "-isystem", include, "-o", bench / "measure", HERE / "measure.c")
    code = (scratch / "code").read_bytes()
    programs = {name: Path(shutil.which(words[0]) or "") for name, words in DYNAMIC.items()}
    found = {name: path for name, path in programs.items() if path.is_file()}
    call(QEMU / "stage.sh", root, "/bin/sh", *found.values())
    children = ["tiny=/bench/tiny"]
    for name, path in found.items():
        with_entry(path, code, bench / name)
        children.append(f"{name}=/bench/{name}")
        children.append(f"{name}.life=" + ",".join([str(path), *DYNAMIC[name][1:]]))
    return children


def rounds_of(parent: str, scale: float) -> int:
    """Returns the number of rounds that `measure` does for this parent."""
    return max(3, round(PARENTS[parent] * scale))


def measure(
    kernel: Path, root: Path, children: Sequence[str], scale: float, log: Path
) -> list[str]:
    """Boots the guest once, with a process for each parent. Returns the lines that it prints."""
    script = []
    for parent in STARTERS:
        what = children if parent == "small" else children[:1]
        script.append(f"/bench/measure {rounds_of(parent, scale)} {parent} {' '.join(what)}")
    return boot(kernel, root, script, log)


def measure_plain(
    kernel: Path, base: Path, root: Path, child: str, scale: float, log: Path
) -> list[str]:
    """Boots the kernels with and without the series. Returns the lines of both."""
    script = [f"/bench/measure {rounds_of('plain', scale)} plain {child}"]
    series = boot(kernel, root, script, log.with_name("bench-plain.log"))
    without = boot(base, root, script, log.with_name("bench-base.log"))
    return series + [line.replace("sample plain ", "sample base ") for line in without]


def boot(kernel: Path, root: Path, script: Sequence[str], log: Path) -> list[str]:
    """Runs these commands in a guest. Returns the lines that they print."""
    script = ["#!/bin/sh", "set -e", *script]
    (root / "bench" / "all.sh").write_text("\n".join(script) + "\n")
    (root / "bench" / "all.sh").chmod(0o755)
    out = call(
        QEMU / "boot.sh", "--count", "--time", "1200", "--memory", "2560", "--log", log,
        kernel / "bzImage", root, "/bench/all.sh",
    )  # fmt: skip
    return out.splitlines()


def collect(
    lines: Iterable[str], scale: float
) -> dict[tuple[str, str, str], dict[str, list[float]]]:
    """Returns the samples by parent, child and method, in the order of rounds.

    Raises BenchError if a line is malformed, or a round has no sample.
    """
    found: dict[tuple[str, str, str], dict[str, list[float]]] = {}
    for line in lines:
        if not line.startswith("sample "):
            continue
        match = re.fullmatch(r"sample (\S+) (\S+) (\S+) (-?\d+) (\d+) (\d+)", line)
        if not match or match[1] not in PARENTS:
            raise BenchError(f"malformed sample: {line!r}")
        cell = found.setdefault((match[1], match[2], match[3]), {part: [] for part in PARTS})
        for part, value in zip(PARTS, match.groups()[3:], strict=True):
            cell[part].append(float(value))
    for name, cell in found.items():
        if len(cell["first"]) != rounds_of(name[0], scale):
            raise BenchError(f"{' '.join(name)}: {len(cell['first'])} samples")
    if not found:
        raise BenchError("the guest measured nothing")
    return found


def ratio_rows(samples: dict[tuple[str, str, str], dict[str, list[float]]]) -> list[Row]:
    """Returns the ratios of RATIOS for which both methods were measured."""
    rows = []
    for ratio in RATIOS:
        over, under = (samples.get(cell) for cell in ratio.cells)
        if not over or not under:
            continue
        pairs = zip(over[ratio.part], under[ratio.part], strict=True)
        found = estimate([above / below for above, below in pairs])
        rows.append(
            {
                "id": ratio.id,
                **found.ratio(),
                "meaning": f"{ratio.meaning}; instruction counts",
                "samples": len(over["first"]),
            }
        )
    return rows


def cell_rows(samples: dict[tuple[str, str, str], dict[str, list[float]]]) -> list[Row]:
    """Returns the medians of instructions (in thousands) and of the child's minor faults."""
    rows = []
    for (parent, child, method), cell in samples.items():
        row: Row = {"parent": parent, "child": child, "method": method}
        for part in PARTS[:2]:
            if any(cell[part]):
                found = estimate(cell[part])
                row[f"{part}_kinsn"] = round(found.value / 1000, 2)
                row[f"{part}_kinsn_low"] = round(found.low / 1000, 2)
                row[f"{part}_kinsn_high"] = round(found.high / 1000, 2)
        row["faults"] = round(estimate(cell["faults"]).value)
        rows.append(row | {"samples": len(cell["first"])})
    return rows


def show(rows: Iterable[Row], ratios: Iterable[Row]) -> None:
    """Prints the medians, the ratios, and whether each ratio meets its bar."""
    print("\nThousands of instructions (QEMU -icount, not time), medians: first / whole life;")
    print("and minor faults in that life")
    for row in rows:
        cells = f"{row.get('first_kinsn', '-')} / {row.get('whole_kinsn', '-')}"
        name = f"{row['parent']:10} {row['child']:10} {row['method']:14}"
        print(f"  {name} {cells:20} {row['faults']:4}")
    print("\nRatios of instruction counts (median, 95 % interval within the boot)")
    for ratio in ratios:
        print(f"  {ratio['id']:42} {ratio['value']:9.4f}  {ratio['low']:.4f} - {ratio['high']:.4f}")
    wanted = [bar for bar in bars.load() if bar["id"].startswith("kernel.")]
    for verdict in bars.judge(wanted, ratios):
        print(f"  {verdict.status:14} {verdict.id} {verdict.op} {verdict.bar}")
    print("\nNot measured: " + "; ".join(NOT_MEASURED))


def main() -> int:
    """Runs the benchmark. Exits with an error if samples are missing or malformed."""
    parser = argparse.ArgumentParser(prog="bench-kernel", description=__doc__)
    parser.add_argument("--cache", type=Path, required=True, help="of kernel/qemu/build.sh")
    parser.add_argument("--patches", type=Path, default=PROJECT / "kernel" / "patches")
    parser.add_argument("--out", type=Path, default=PROJECT / "build" / "bench")
    options = parser.parse_args()
    quick = os.environ.get("QUICK", "0") not in ("", "0")
    scale = 0.2 if quick else 1.0
    kernel = Path(
        call(QEMU / "build.sh", "--patches", options.patches, options.cache, "base").strip()
    )
    log = PROJECT / "build" / "kernel" / "bench.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="spawnfd-bench-") as folder:
        scratch = Path(folder)
        children = prepare(kernel, scratch / "root", scratch)
        lines = measure(kernel, scratch / "root", children, scale, log)
        (scratch / "none").mkdir()
        base = Path(
            call(
                QEMU / "build.sh", "--patches", scratch / "none", options.cache, "base"
            ).strip()
        )  # fmt: skip
        lines += measure_plain(kernel, base, scratch / "root", children[0], scale, log)
    missing = [line for line in lines if line.startswith("missing ")]
    try:
        samples = collect(lines, scale)
    except BenchError as error:
        sys.exit(f"bench-kernel: {error}; see {log}")
    rows, ratios = cell_rows(samples), ratio_rows(samples)
    banner = next(
        (x for x in log.read_text(errors="replace").splitlines() if "Linux version" in x), ""
    )
    qemu = call("qemu-system-x86_64", "--version").splitlines()[0]
    found: Row = {
        "suite": "kernel",
        "unit": UNIT,
        "machine": {
            "kernel": banner.partition("Linux version ")[2],
            "image": kernel.name,
            "image_sha256": hashlib.sha256((kernel / "bzImage").read_bytes()).hexdigest(),
            "qemu": qemu,
            "cpus": 1,
            "memory_mib": 2560,
            "scale": "quick" if quick else "full",
        },
        "interval": INTERVAL,
        "not_measured": NOT_MEASURED,
        "missing": missing,
        "ratios": ratios,
        "rows": rows,
    }
    document.write(found, options.out / "kernel.json")
    show(rows, ratios)
    print("\n".join(missing))
    print(f"figures: {options.out / 'kernel.json'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
