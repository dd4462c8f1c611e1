# SPDX-License-Identifier: MIT OR Apache-2.0
"""Tests of the benchmark's own code: `python -m pytest bench/kernel`. They boot no kernel."""

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
import run

from common import bars
from common.errors import BenchError

pytestmark = pytest.mark.timeout(300)
SCALE = 0.2  # the scale that QUICK=1 selects


def _lines(first: dict[tuple[str, str, str], int], faults: int = 44) -> Iterator[str]:
    for (parent, child, method), value in first.items():
        for number in range(run.rounds_of(parent, SCALE)):
            yield f"sample {parent} {child} {method} {value + number} {value * 2} {faults}"


def _all(value: int) -> dict[tuple[str, str, str], int]:
    cells = {}
    for ratio in run.RATIOS:
        over, under = ratio.cells
        cells[over] = value * 3
        cells[under] = value
    return cells


# ---- data ----


def test_every_bar_has_a_measured_ratio() -> None:
    barred = {bar["id"] for bar in bars.load() if bar["id"].startswith("kernel.")}
    assert "kernel.dynamic.vfork_vs_template" in barred
    assert barred <= {ratio.id for ratio in run.RATIOS}


def test_ratios_name_existing_parents_and_methods() -> None:
    ids = [ratio.id for ratio in run.RATIOS]
    assert len(set(ids)) == len(ids)
    source = (run.HERE / "measure.c").read_text()
    for ratio in run.RATIOS:
        assert {name for name, _, _ in ratio.cells} <= set(run.PARENTS)
        assert ratio.scenario in {"tiny", *run.DYNAMIC}
        assert ratio.part in run.PARTS
        assert f'{{"{ratio.over}", ' in source
        assert f'{{"{ratio.under}", ' in source


# ---- arithmetic ----


def test_ratios_divide_the_right_methods() -> None:
    cells = {("small", "true", "vfork"): 460_000, ("small", "true", "template"): 400_000}
    rows = run.ratio_rows(run.collect(_lines(cells), SCALE))
    assert [row["id"] for row in rows] == ["kernel.dynamic.vfork_vs_template"]
    assert rows[0]["value"] == pytest.approx(1.15, abs=1e-3)
    assert rows[0]["low"] <= rows[0]["value"] <= rows[0]["high"]
    assert rows[0]["samples"] == run.rounds_of("small", SCALE)


def test_whole_life_and_first_instruction_are_separate() -> None:
    cells = {("small", "tiny", "builder"): 72_000, ("small", "tiny", "vfork"): 71_000}
    lines = [
        line.replace(" 144000 ", " 99000 ").replace(" 142000 ", " 90000 ") for line in _lines(cells)
    ]
    rows = {row["id"]: row["value"] for row in run.ratio_rows(run.collect(lines, SCALE))}
    assert rows["kernel.life.builder_vs_vfork"] == 1.1
    assert rows["kernel.first_insn.builder_vs_vfork"] == pytest.approx(72 / 71, abs=1e-3)


def test_ratio_needs_both_sides() -> None:
    samples = run.collect(_lines({("small", "true", "vfork"): 1000}), SCALE)
    assert run.ratio_rows(samples) == []
    [row] = run.cell_rows(samples)
    assert (row["child"], row["method"], row["faults"]) == ("true", "vfork", 44)


def test_rows_count_thousands_of_instructions() -> None:
    lines = [f"sample small true.life vfork 0 {602_000 + number} 48" for number in range(8)]
    [row] = run.cell_rows(run.collect(lines, SCALE))
    assert "first_kinsn" not in row  # this child does not report its first instruction
    assert row["whole_kinsn"] == pytest.approx(602, abs=0.01)
    assert row["faults"] == 48


def test_all_bars_get_a_verdict() -> None:
    rows = run.ratio_rows(run.collect(_lines(_all(10_000)), SCALE))
    wanted = [bar for bar in bars.load() if bar["id"].startswith("kernel.")]
    verdicts = {verdict.id: verdict.status for verdict in bars.judge(wanted, rows)}
    assert verdicts["kernel.dynamic.vfork_vs_template"] == "met"
    assert verdicts["kernel.fds10000.vfork_vs_pristine"] == "missed"
    assert "not measured" not in verdicts.values()


# ---- logs ----


@pytest.mark.parametrize(
    "line",
    [
        "sample small true vfork 460000 578000",
        "sample small true vfork 460000 578000 x",
        "sample small true vfork 460000 -1 44",
        "sample small true vfork 460000 578000 44 [    1.2] printk: over it",
        "sample elsewhere true vfork 460000 578000 44",
        "sample ",
    ],
)
def test_malformed_line_is_an_error(line: str) -> None:
    good = list(_lines({("small", "true", "vfork"): 460_000}))
    assert run.collect(good, SCALE)
    with pytest.raises(BenchError, match="malformed sample"):
        run.collect([*good, line], SCALE)


def test_truncated_log_is_an_error() -> None:
    lines = list(_lines({("small", "true", "vfork"): 1, ("small", "true", "template"): 1}))
    with pytest.raises(BenchError, match="small true template: 7 samples"):
        run.collect(lines[:-1], SCALE)
    with pytest.raises(BenchError, match="nothing"):
        run.collect(["missing template: small with true", "ready"], SCALE)


# ---- children ----


def test_only_the_entry_point_is_overwritten(tmp_path: Path) -> None:
    program = tmp_path / "program"
    image = bytearray(8192)
    struct.pack_into("<4s20xQQ", image, 0, b"\x7fELF", 0x401010, 64)
    struct.pack_into("<HH", image, 54, 56, 1)
    struct.pack_into("<IIQQQQ", image, 64, 1, 5, 0x1000, 0x401000, 0, 0x1000)
    program.write_bytes(image)
    run.with_entry(program, b"code", tmp_path / "copy")
    copy = (tmp_path / "copy").read_bytes()
    assert copy[0x1010:0x1014] == b"code"
    assert copy.replace(b"code", bytes(4)) == bytes(image)
    struct.pack_into("<Q", image, 24, 0x500000)
    program.write_bytes(image)
    with pytest.raises(BenchError, match="no segment contains its entry point"):
        run.with_entry(program, b"code", tmp_path / "copy")
