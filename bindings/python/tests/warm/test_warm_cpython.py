# SPDX-License-Identifier: MIT OR Apache-2.0
"""CPython's own test suite, run by interpreters that were started warm.

Each module runs as `python -m test MODULE` in an interpreter started cold, and in one started warm.
Every test must have the same outcome. cpython_differences.txt lists the exceptions, with reasons.
"""

from __future__ import annotations

import functools
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
import spawnfd as sf
from interpreters import interpreter
from warm_support import MODES, Mode, parked

LIST = Path(__file__).with_name("cpython_differences.txt")
MAIN_VERSION = "3.12"
# Modules that test what start-up affects: command line, paths, environment, streams, locale,
# signals, exit.
CORE = ["test_cmd_line", "test_cmd_line_script", "test_os", "test_runpy", "test_site", "test_sys"]
MODULES = [
    *CORE,
    *["test_atexit", "test_audit", "test_builtin", "test_c_locale_coercion", "test_code"],
    *["test_codecs", "test_context", "test_contextlib", "test_exceptions", "test_fcntl"],
    *["test_file_eintr", "test_fileio", "test_gc", "test_getpass", "test_hash", "test_import"],
    *["test_inspect", "test_json", "test_linecache", "test_locale", "test_mmap", "test_monitoring"],
    *["test_pdb", "test_posix", "test_pty", "test_repl", "test_resource", "test_sys_settrace"],
    *["test_sysconfig", "test_thread", "test_threading_local", "test_time", "test_trace"],
    *["test_traceback", "test_tracemalloc", "test_unicode", "test_utf8_mode"],
    *["test_warnings", "test_zipapp", "test_zipimport"],
]
CASES = [(MAIN_VERSION, name) for name in MODULES] + [
    (version, name) for version in ("3.11", "3.13") for name in CORE
]
# `make test` runs these; `make test-all` runs all.
SHORT = {(MAIN_VERSION, name) for name in ("test_runpy", "test_site", "test_sys")}
MARKED = [pytest.param(*c, marks=() if c in SHORT else pytest.mark.full) for c in CASES]
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "TZ": "UTC"}


def differences(text: str) -> dict[tuple[str, str, str], str]:
    """Returns the known differences: reasons by (mode, version, test id)."""
    rows = [line.split(None, 3) for line in text.splitlines() if line and line[0] != "#"]
    assert all(len(row) == 4 for row in rows), "modes, versions, test id, reason"
    return {
        (mode, version, test): reason
        for modes, versions, test, reason in rows
        for mode in modes.split(",")
        for version in versions.split(",")
    }


@contextmanager
def home() -> Generator[tuple[str, dict[str, str]]]:
    """Creates a temporary directory, and an environment in which it is HOME."""
    # The directory is not pytest's tmp_path, whose path is too long for the sockets of some tests.
    with tempfile.TemporaryDirectory() as scratch:
        yield scratch, ENVIRONMENT | {"HOME": scratch}


def outcomes(
    start: Callable[..., sf.Result], python: str, module: str, scratch: str, env: dict[str, str]
) -> tuple[dict[str, str], sf.Result]:
    """Returns the outcome of each test (such as passed or skipped), and the result of the run."""
    report = Path(scratch, "report.xml")
    command = [python, "-m", "test", f"--junit-xml={report}", "--tempdir", scratch, module]
    result = start(command, cwd=scratch, env=env, timeout=800)
    assert result.stop == "exited", (result, result.text)
    assert report.exists(), (result, result.text, result.stderr)
    found: dict[str, str] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case} & {"failure", "error", "skipped"}
        found[case.attrib["name"]] = "+".join(sorted(kinds)) or "passed"
    return found, result


@functools.cache
def cold(python: str, module: str, turn: int) -> dict[str, str]:
    """Returns the outcomes of a module in a cold interpreter. Both modes share them."""
    with home() as (scratch, env):
        return outcomes(sf.run, python, module, scratch, env)[0]


def test_list_of_differences_is_valid() -> None:
    assert len(set(MODULES)) == len(MODULES) >= 30
    listed = differences(LIST.read_text())
    assert {mode for mode, _, _ in listed} <= set(MODES)
    assert {version for _, version, _ in listed} <= {version for version, _ in CASES}
    text = "# m v t r\nfork,reserve 3.12 a.b.c why it is so\n"
    assert differences(text) == {
        ("fork", "3.12", "a.b.c"): "why it is so",
        ("reserve", "3.12", "a.b.c"): "why it is so",
    }


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("version", "module"), MARKED)
def test_module_has_the_same_outcomes_warm(
    version: str, module: str, mode: Mode, capsys: pytest.CaptureFixture[str]
) -> None:
    python = interpreter(version, "test.test_cmd_line", "test.libregrtest")
    listed = differences(LIST.read_text())
    known = {test for how, of, test in listed if (how, of) == (mode, version)}
    suspects: set[str] | None = None
    differ = set[str]()
    # Some tests have their own time limits, which a slow machine may miss once. A suspect test must
    # have the same outcome in two further rounds.
    for turn in range(3):
        expected = cold(python, module, turn)
        with home() as (scratch, env), parked(python, mode, env=env) as warm:
            found, result = outcomes(warm.run, python, module, scratch, env)
        assert result.started == mode
        assert len(expected) > 0
        known &= expected.keys() | {test for test in known if test.startswith(f"test.{module}.")}
        every = expected.keys() | found.keys()
        differ = {test for test in every if expected.get(test) != found.get(test)}
        if suspects is None:
            suspects = differ - known
        else:
            assert not suspects & differ, result.text
        if not suspects:
            break
    if suspects:
        with capsys.disabled():
            print(f"\n{module} of {version}, {mode}: differed once: {sorted(suspects)}")
    assert not known - differ, "listed, but the outcomes are the same"
