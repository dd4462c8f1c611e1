# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the tests of warm starts share: a Warm that is filled, scratch directories, processes."""

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
    """What says how it was started."""

    @property
    def started(self) -> str: ...


S = TypeVar("S", bound=Started)

Mode = Literal["reserve", "fork"]
MODES: tuple[Mode, ...] = ("reserve", "fork")
each_mode = pytest.mark.parametrize("mode", MODES)
# How a program is started warm: by a process of its own, or by one for any program.
Way = Literal["reserve", "fork", "pool", "zygote"]
WAYS: tuple[Way, ...] = ("reserve", "fork", "pool", "zygote")
ANY: tuple[Way, ...] = ("pool", "zygote")
each_way = pytest.mark.parametrize("way", WAYS)
# Files have had this time since 2025, so that what prints it prints the same.
MODIFIED = 1_750_000_000
FILL_S = TIMEOUT_S
OLDEST_NODE = 20
# Before each script of the tests.
HEAD = """
import os, signal, subprocess, sys, time
import spawnfd as sf
sys.path.insert(0, sys.argv[1])
from conftest import children, running
from warm_support import Warm, add, warm_of
"""


def unless_slow(warm: sf.Warm | None, start: Callable[[], S]) -> S:
    """What a start comes to where the machine has let what is parked begin with it.

    It has half a second for that, and is given up then: the start is made again.
    """
    assert warm is not None
    deadline = time.monotonic() + TIMEOUT_S
    while (found := start()).started == "cold: slow" and time.monotonic() < deadline:
        assert warm.fill(FILL_S), warm.stats()
    return found


class Warm(sf.Warm):
    """One whose run() is made again where the machine was too slow."""

    __slots__ = ()

    def __enter__(self) -> Warm:
        return self

    def run(self, argv: Any, **options: Any) -> sf.Result:
        return unless_slow(self, partial(super().run, argv, **options))


def warm_of(way: Way, **options: Any) -> Warm:
    """A Warm of that mode."""
    return Warm(mode="fork" if way in ("fork", "zygote") else "reserve", **options)


def add(warm: sf.Warm, way: Way, program: str, depth: int, **options: Any) -> None:
    """Has the program started that way."""
    if way in ANY:
        warm.add_any(depth=depth)
    else:
        warm.add(program, depth=depth, **options)


@contextmanager
def parked(program: str, way: Way, **options: Any) -> Generator[Warm]:
    """A Warm with one program, parked."""
    with warm_of(way) as warm:
        add(warm, way, program, 1, **options)
        assert warm.fill(timeout=FILL_S), f"{program} was not parked: {warm.stats()}"
        yield warm


def with_tests() -> dict[str, str]:
    """This environment, for a Python that imports what the tests do."""
    here = Path(__file__).parent
    paths = [str(here.parent), str(here), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def outcome_of(case: Case, way: Way, directory: Path, *more: str) -> dict[str, Any]:
    """What the case comes to in a process of its own; skips where it cannot be had."""
    need(case.argv[0])
    if case.root and os.geteuid() != 0:
        pytest.skip("only root may do this")
    # No session of its own: a leader could not become one again.
    script = str(Path(__file__).with_name("warm_cases.py"))
    words = [sys.executable, script, way, case.id, *more]
    ended = subprocess.run(words, cwd=directory, capture_output=True, text=True, env=with_tests())
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    if "cannot" in found:
        pytest.skip(f"not possible here: {found['cannot']}")
    assert found["filled"]
    assert found["before"] == way
    assert found["warm"] == found["cold"]
    return found


def script_words(script: str, *arguments: str) -> tuple[list[str], dict[str, str]]:
    """The command that runs a script of the tests, and its environment."""
    words = [sys.executable, "-c", HEAD + script, str(Path(__file__).parent), *arguments]
    return words, with_tests()


def told(script: str, *arguments: str) -> str:
    """What the script prints, in a process of its own, which has to end."""
    words, env = script_words(script, *arguments)
    ended = subprocess.run(words, capture_output=True, text=True, timeout=240, env=env)
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stderr
    return ended.stdout


def in_mount_namespace(script: str, *arguments: str) -> Any:
    """What the script prints, as JSON, where its mounts are its own; skips where none can be."""
    command = ["unshare", "--mount", "--propagation", "private", sys.executable, "-c", script]
    command += arguments
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, env=with_tests())
    if "unshare: " in ended.stderr or "mount: " in ended.stderr:
        pytest.skip(f"no mount namespace here: {ended.stderr}")
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def need(*programs: str) -> None:
    """Skips where a program is not installed, or is a Node.js too old to be parked."""
    missing = [name for name in programs if shutil.which(name, path=ENVIRONMENT["PATH"]) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    if "node" in programs:
        said = subprocess.run(["node", "-p", "process.version"], capture_output=True, text=True)
        version = said.stdout.strip()
        if int(version.lstrip("v").partition(".")[0]) < OLDEST_NODE:
            pytest.skip(f"Node.js {version} is older than {OLDEST_NODE}")


def make_scratch(root: Path, files: Mapping[str, str], repository: bool) -> None:
    """Makes the directory; the same arguments make the same, but for inodes."""
    root.mkdir()
    write_files(root, FILES)
    if repository:
        _make_repository(root)
    write_files(root, files)
    for path in (root, *root.rglob("*")):
        if ".git" not in path.parts:
            os.utime(path, (MODIFIED, MODIFIED))


def write_files(root: Path, files: Mapping[str, str]) -> None:
    """Writes them; those that begin with #! can be executed."""
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
    """All that lies below a directory: type, mode, and bytes or target.

    But for git's index, which holds inodes and times.
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
