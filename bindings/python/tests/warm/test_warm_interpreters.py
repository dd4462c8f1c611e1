# SPDX-License-Identifier: MIT OR Apache-2.0
"""Interpreters that do not park: they report the reason, run nothing, and are started cold."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import spawnfd as sf
from patience import TIMEOUT_S
from warm_lines import ENVIRONMENT
from warm_support import FILL_S, require

PYTHON, NODE = "/usr/bin/python3", "node"
PATH = ENVIRONMENT["PATH"]
# A relative path. No process may create it while it parks.
NOWHERE = "spawnfd-nowhere"


@dataclass(frozen=True)
class Refusal:
    """Arguments of add(), start-up code, and the reason that the interpreter reports."""

    why: str
    args: Sequence[str] = ()
    code: str = ""
    preimport: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    program: str = PYTHON


REFUSALS = (
    Refusal("a flag that makes the interpreter exit", ["-V"]),
    Refusal("args has more than flags", ["-"]),
    Refusal("interactive mode", ["-i"]),
    Refusal("a relative path to the interpreter", program="python3", env={"PATH": f"bin:{PATH}"}),
    Refusal("a relative path to bytecode", ["-X", f"pycache_prefix={NOWHERE}"]),
    Refusal("a relative path to bytecode", env={"PYTHONPYCACHEPREFIX": NOWHERE}),
    Refusal("a relative path in PYTHONPATH", env={"PYTHONPATH": "relative"}),
    Refusal("a relative path in sys.path", code="import sys; sys.path.append('here')"),
    Refusal("a module from a relative path: …", code="import json; json.__spec__.origin = 'x'"),
    Refusal("start-up code reads the whole environment", code="import os; dict(os.environ)"),
    Refusal(
        "start-up code changes much of the environment",
        code="import os\nfor i in range(200): os.environ[f'A{i}'] = '1'",
    ),
    Refusal("start-up code replaces sys.…", code="import sys; sys.stdout = open('/dev/null', 'w')"),
    Refusal("start-up code writes: …", code="print('word')"),
    Refusal("cannot import …", preimport=["nowhere"]),
    Refusal("unsupported Node.js flag", ["--inspect"], program=NODE),
    Refusal("too many flags", ["--no-warnings"] * 70, program=NODE),
    Refusal("NODE_OPTIONS", env={"NODE_OPTIONS": "--inspect"}, program=NODE),
    Refusal("a relative path", env={"NODE_COMPILE_CACHE": NOWHERE}, program=NODE),
    Refusal(
        "NODE_V8_COVERAGE",
        preimport=["fs"],
        env={"NODE_V8_COVERAGE": "/dev/null/nowhere"},
        program=NODE,
    ),
    Refusal(
        "no module can be loaded before parking",
        ["-r", "fs"],
        preimport=["fs"],
        program=NODE,
    ),
)


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: refusal.why.replace(" ", "-"))
def test_interpreter_reports_why_it_does_not_park(refusal: Refusal, tmp_path: Path) -> None:
    require(refusal.program)
    env = {"PATH": PATH, **refusal.env}
    if refusal.code:
        (tmp_path / "sitecustomize.py").write_text(refusal.code, encoding="utf-8")
        env["PYTHONPATH"] = str(tmp_path)
    with sf.Warm() as warm:
        warm.add(refusal.program, args=refusal.args, preimport=refusal.preimport, env=env)
        assert not warm.fill(FILL_S), warm.stats()
        (why,) = warm.stats().cannot.values()
        assert why.startswith(refusal.why.rstrip("…"))
        assert refusal.why.endswith("…") or why == refusal.why
        assert warm.stats().parked == 0
        argv = [refusal.program, *refusal.args, "/dev/null"]
        result = warm.run(argv, env=env, cwd=tmp_path, timeout=TIMEOUT_S)
    assert result.started == f"cold: {why}"
    assert not Path("/", NOWHERE).exists()


def test_other_program_named_python3_starts_cold(tmp_path: Path) -> None:
    program = shutil.copy("/bin/true", tmp_path / "python3")
    with sf.Warm() as warm:
        warm.add(program)
        assert not warm.fill(FILL_S)
        result = warm.run([program, "-c", "0"])
    assert (result.code, result.started) == (0, "cold: not CPython 3.8 to 3.14")
