# SPDX-License-Identifier: MIT OR Apache-2.0
"""Measures the kernel series in a guest that counts instructions. Writes build/bench/kernel.json.

python bench/kernel/run.py --cache DIR
"""

import argparse
import hashlib
import re
import shutil
import struct
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
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
    raise BenchError(f"{program}: no segment contains its entry point")


def prepare(kernel: Path, root: Path, scratch: Path) -> list[str]:
    """Fills the guest's root directory. Returns the children as arguments of `measure`."""
    bench = root / "bench"
    bench.mkdir(parents=True)
    source = PROJECT / "bench" / "native" / "programs" / "first_instruction.S"
    output("cc", "-static", "-nostdlib", "-o", bench / "tiny", source)
    output("cc", "-c", "-o", scratch / "tiny.o", source)
    output("objcopy", "-O", "binary", "-j", ".text", scratch / "tiny.o", scratch / "code")
    include = kernel / "include"
    output("cc", "-O2", "-static", "-isystem", include, "-o", bench / "measure", HERE / "measure.c")
    code = (scratch / "code").read_bytes()
    programs = {name: Path(shutil.which(words[0]) or "") for name, words in DYNAMIC.items()}
    found = {name: path for name, path in programs.items() if path.is_file()}
    output(QEMU / "stage.sh", root, "/bin/sh", *found.values())
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
    out = output(
        QEMU / "boot.sh", "--count", "--time", "1200", "--memory", "2560", "--log", log,
        kernel / "bzImage", root, "/bench/all.sh",
    )  # fmt: skip
    return out.splitlines()


def collect(lines: Iterable[str], scale: float) -> Samples:
    """Returns the samples by parent, child and method, in the order of rounds.

    Raises BenchError if a line is malformed, or a round has no sample.
    """
    found: Samples = {}
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


def ratio_rows(samples: Samples) -> list[Row]:
    """Returns the ratios of RATIOS for which both methods were measured."""
    ratios = (replace(one, meaning=f"{one.meaning}; instruction counts") for one in RATIOS)
    return common.samples.ratio_rows(ratios, samples)


def cell_rows(samples: Samples) -> list[Row]:
    """Returns the medians of instructions (in thousands) and of the child's minor faults."""
    rows = []
    for (parent, child, method), cell in samples.items():
        row: Row = {"parent": parent, "child": child, "method": method}
        for part in PARTS[:2]:
            if any(cell[part]):
                thousands = estimate([value / 1000 for value in cell[part]])
                row |= thousands.figures(f"{part}_kinsn", 2)
        row["faults"] = round(estimate(cell["faults"]).value)
        rows.append(row | {"samples": len(cell["first"])})
    return rows


def show(console: Console, document: Row) -> None:
    """Prints the medians, and the ratios with their bars."""
    console.print(
        "Thousands of instructions (QEMU -icount, not time), medians: first / whole life; "
        "and minor faults in that life"
    )
    for row in document["rows"]:
        cells = f"{row.get('first_kinsn', '-')} / {row.get('whole_kinsn', '-')}"
        name = f"{row['parent']:10} {row['child']:10} {row['method']:14}"
        console.print(f"  {name} {cells:20} {row['faults']:4}", highlight=False)
    tables.show_ratios(console, document)
    for missing in document["missing"]:
        console.print(missing, style="yellow", highlight=False)
    console.print("Not measured: " + "; ".join(NOT_MEASURED), highlight=False)


def run(options: argparse.Namespace, console: Console) -> Row:
    """Measures, and returns the content of kernel.json."""
    scale = 0.2 if options.quick else 1.0

    def build(patches: Path) -> Path:
        return Path(output(QEMU / "build.sh", "--patches", patches, options.cache, "base").strip())

    kernel = build(options.patches)
    log = PROJECT / "build" / "kernel" / "bench.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="spawnfd-bench-") as folder:
        scratch = Path(folder)
        children = prepare(kernel, scratch / "root", scratch)
        lines = measure(kernel, scratch / "root", children, scale, log)
        (scratch / "none").mkdir()
        base = build(scratch / "none")
        lines += measure_plain(kernel, base, scratch / "root", children[0], scale, log)
    missing = [line for line in lines if line.startswith("missing ")]
    try:
        samples = collect(lines, scale)
    except BenchError as error:
        raise BenchError(f"{error}; see {log}") from None
    banner = next(
        (x for x in log.read_text(errors="replace").splitlines() if "Linux version" in x), ""
    )
    facts = {
        "kernel": banner.partition("Linux version ")[2],
        "image": kernel.name,
        "image_sha256": hashlib.sha256((kernel / "bzImage").read_bytes()).hexdigest(),
        "qemu": output("qemu-system-x86_64", "--version").splitlines()[0],
        "cpus": 1,
        "memory_mib": 2560,
        "scale": flags.scale(options),
    }
    return session.suite(
        "kernel",
        facts,
        ratio_rows(samples),
        cell_rows(samples),
        INTERVAL,
        unit=UNIT,
        not_measured=NOT_MEASURED,
        missing=missing,
    )


def main() -> int:
    """Runs the benchmark. Exits with an error if samples are missing or malformed."""
    parser = flags.new_parser("bench-kernel", __doc__)
    parser.add_argument("--cache", type=Path, required=True, help="of kernel/qemu/build.sh")
    parser.add_argument("--patches", type=Path, default=PROJECT / "kernel" / "patches")
    options = flags.parse(parser, None)
    return session.run_suite("kernel", options.out, partial(run, options), show)


if __name__ == "__main__":
    sys.exit(main())
