# SPDX-License-Identifier: MIT OR Apache-2.0
"""Helpers for the tests of warm starts: a filled Warm, scratch directories, scripts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

import pytest
import spawnfd as sf
from patience import TIMEOUT_S
from warm_lines import ENVIRONMENT, FILES

if TYPE_CHECKING:
    from warm_cases import Case


class Started(Protocol):
    """A result or a child. Its attribute says how the program was started."""

    @property
    def started(self) -> str: ...


S = TypeVar("S", bound=Started)

Mode = Literal["reserve", "fork"]
MODES: tuple[Mode, ...] = ("reserve", "fork")
each_mode = pytest.mark.parametrize("mode", MODES)
# The source of a warm start: a process parked for this program ("reserve", "fork"), or a process
# that can become any program ("pool", "zygote").
Way = Literal["reserve", "fork", "pool", "zygote"]
WAYS: tuple[Way, ...] = ("reserve", "fork", "pool", "zygote")
FOR_ANY: tuple[Way, ...] = ("pool", "zygote")
each_way = pytest.mark.parametrize("way", WAYS)
# The modification time of scratch files. A fixed time gives programs that print it equal output.
MODIFIED = 1_750_000_000
FILL_S = TIMEOUT_S
OLDEST_NODE = 20
# The first lines of each script that a test runs.
HEAD = """
import os, signal, subprocess, sys, threading, time
import spawnfd as sf
sys.path.insert(0, sys.argv[1])
from conftest import children, running
from patience import eventually
from warm_support import Warm, add, drop_ids, new_warm, parked
"""


def retry_if_slow(warm: sf.Warm | None, start: Callable[[], S]) -> S:
    """Repeats a start while the machine is too slow for a warm one.

    A parked process that does not begin within half a second is given up ("cold: slow").
    """
    assert warm is not None
    deadline = time.monotonic() + TIMEOUT_S
    while (found := start()).started == "cold: slow" and time.monotonic() < deadline:
        assert warm.fill(FILL_S), warm.stats()
    return found


class Warm(sf.Warm):
    """A Warm whose run() is repeated while the machine is too slow."""

    __slots__ = ()

    def __enter__(self) -> Warm:
        return self

    def run(self, argv: Any, **options: Any) -> sf.Result:
        return retry_if_slow(self, partial(super().run, argv, **options))


def new_warm(way: Way, **options: Any) -> Warm:
    """Returns a Warm in the mode that this way of starting needs."""
    return Warm(mode="fork" if way in ("fork", "zygote") else "reserve", **options)


def add(warm: sf.Warm, way: Way, program: str, depth: int, **options: Any) -> None:
    """Adds the program to the Warm, or adds processes for any program."""
    if way in FOR_ANY:
        warm.add_any(depth=depth)
    else:
        warm.add(program, depth=depth, **options)


@contextmanager
def parked(program: str, way: Way, **options: Any) -> Generator[Warm]:
    """Creates a Warm in which one process for the program is parked."""
    with new_warm(way) as warm:
        add(warm, way, program, 1, **options)
        assert warm.fill(timeout=FILL_S), f"{program} was not parked: {warm.stats()}"
        yield warm


def drop_ids() -> None:
    """Makes this process an unprivileged user, if it is root."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)


def script_environment() -> dict[str, str]:
    """Returns this process's environment, with a PYTHONPATH that finds the tests' modules."""
    here = Path(__file__).parent
    paths = [str(here.parent), str(here), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def outcome_of(case: Case, way: Way, directory: Path, *more: str) -> dict[str, Any]:
    """Returns the outcome of the case in a new process.

    Skips if the machine cannot run the case.
    """
    require(case.argv[0])
    if case.root and os.geteuid() != 0:
        pytest.skip("only root may do this")
    # The process does not start in a new session, because a session leader could not call setsid().
    script = str(Path(__file__).with_name("warm_cases.py"))
    words = [sys.executable, script, way, case.id, *more]
    ended = subprocess.run(
        words, cwd=directory, capture_output=True, text=True, env=script_environment()
    )
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    if "cannot" in found:
        pytest.skip(f"not possible here: {found['cannot']}")
    assert found["filled"]
    assert found["before"] == way
    assert found["warm"] == found["cold"]
    return found


def script_words(script: str, *arguments: str) -> tuple[list[str], dict[str, str]]:
    """Returns the command that runs a script, and its environment."""
    words = [sys.executable, "-c", HEAD + script, str(Path(__file__).parent), *arguments]
    return words, script_environment()


def output_of(script: str, *arguments: str) -> str:
    """Runs the script in a new process, which must end without errors. Returns its output."""
    words, env = script_words(script, *arguments)
    ended = subprocess.run(words, capture_output=True, text=True, timeout=240, env=env)
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stderr
    return ended.stdout


def in_mount_namespace(script: str, *arguments: str) -> Any:
    """Runs the script in a new mount namespace, and returns its JSON output.

    Skips if the machine permits no mount namespace.
    """
    command = ["unshare", "--mount", "--propagation", "private", sys.executable, "-c", script]
    command += arguments
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=240, env=script_environment()
    )
    if "unshare: " in ended.stderr or "mount: " in ended.stderr:
        pytest.skip(f"no mount namespace here: {ended.stderr}")
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def require(*programs: str) -> None:
    """Skips if a program is not installed, or if Node.js is too old for mode fork."""
    missing = [name for name in programs if shutil.which(name, path=ENVIRONMENT["PATH"]) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    if "node" in programs:
        ended = subprocess.run(["node", "--version"], capture_output=True, text=True)
        version = ended.stdout.strip()
        if int(version.lstrip("v").partition(".")[0]) < OLDEST_NODE:
            pytest.skip(f"Node.js {version} is older than {OLDEST_NODE}")


def make_scratch(root: Path, files: Mapping[str, str], repository: bool) -> None:
    """Creates the directory. Equal arguments create equal directories, except for inodes."""
    root.mkdir()
    write_files(root, FILES)
    if repository:
        _make_repository(root)
    write_files(root, files)
    for path in (root, *root.rglob("*")):
        if ".git" not in path.parts:
            os.utime(path, (MODIFIED, MODIFIED))


def write_files(root: Path, files: Mapping[str, str]) -> None:
    """Writes the files. A text that begins with #! becomes executable."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755 if text.startswith("#!") else 0o644)


def _make_repository(root: Path) -> None:
    env = {**ENVIRONMENT, "HOME": str(root)}
    for argv in (
        ["init", "--quiet", "--template=", "--initial-branch=main"],
        ["add", "notes.txt", "src", "table.csv"],
        ["commit", "--quiet", "--message=start"],
    ):
        subprocess.run(["git", *argv], cwd=root, env=env, check=True)
    (root / "notes.txt").write_text("one\ntwo done\nthree TODO\n", encoding="utf-8")
    (root / "new.txt").write_text("untracked\n", encoding="utf-8")


def contents(root: Path) -> dict[str, tuple[str, int, bytes]]:
    """Returns all files below a directory: type, mode, and content or link target.

    The result leaves out git's index, which contains inodes and times.
    """
    found: dict[str, tuple[str, int, bytes]] = {}
    for path in sorted(root.rglob("*")):
        mode = path.lstat().st_mode & 0o7777
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = "link", mode, os.fsencode(os.readlink(path))
        elif path.is_dir():
            found[name] = "directory", mode, b""
        elif name != ".git/index":
            found[name] = "file", mode, path.read_bytes()
    return found
