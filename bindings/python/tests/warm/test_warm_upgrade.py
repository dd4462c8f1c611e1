# SPDX-License-Identifier: MIT OR Apache-2.0
"""A program or its library is replaced under load: old before, new after, never a failure."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import spawnfd as sf
from warm_lines import ENVIRONMENT
from warm_programs import compiled
from warm_support import Mode, each_mode, parked

ROUNDS = 8
THREADS = 4
LIBRARY = "const char *version(void) { return VERSION; }\n"
PROGRAM = """
#include <stdio.h>
const char *version(void);
int main(void) { printf("%s %s\\n", VERSION, version()); return 0; }
"""


class Call(NamedTuple):
    """When it was begun and ended, by time.monotonic_ns(), and what it said."""

    begin: int
    end: int
    said: str
    started: str


def build_library(path: Path, version: int) -> None:
    compiled(path, LIBRARY, "-shared", "-fPIC", f'-DVERSION="{version}"')


def build_program(path: Path, version: int) -> None:
    compiled(
        path, PROGRAM, f'-DVERSION="{version}"', f"-L{path.parent}", "-lown", "-Wl,-rpath,$ORIGIN"
    )


@each_mode
@pytest.mark.timeout(120)
@pytest.mark.parametrize("what", ["library", "program", "both"])
def test_upgrade_under_load(what: str, mode: Mode, tmp_path: Path) -> None:
    library, program = tmp_path / "libown.so", tmp_path / "program"
    versions: dict[Path, int] = {library: 0, program: 0}
    build_library(library, 0)
    build_program(program, 0)
    build: dict[Path, Callable[[Path, int], None]] = {
        library: build_library,
        program: build_program,
    }
    replaced = {"library": [library], "program": [program], "both": [library, program]}[what]

    calls: list[Call] = []
    failures: list[str] = []
    done = threading.Event()

    def load(warm: sf.Warm) -> None:
        while not done.is_set():
            begin = time.monotonic_ns()
            try:
                result = warm.run([program], env=ENVIRONMENT, timeout=20)
            except OSError as error:
                failures.append(str(error))
                continue
            end = time.monotonic_ns()
            if (result.code, result.stderr) != (0, b""):
                failures.append(f"{result}")
            calls.append(Call(begin, end, result.text, result.started))

    # When which pair of versions stood: from before the first change of a round to after its last.
    times: list[tuple[int, int, str]] = []
    with parked(str(program), mode, env=ENVIRONMENT) as warm:
        threads = [threading.Thread(target=load, args=(warm,)) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(ROUNDS):
                time.sleep(0.2)
                for path in replaced:
                    versions[path] += 1
                    new = tmp_path / f"new-{path.name}"
                    build[path](new, versions[path])
                    before = time.monotonic_ns()
                    new.replace(path)
                    times.append(
                        (before, time.monotonic_ns(), f"{versions[program]} {versions[library]}\n")
                    )
            warm.fill(timeout=30)
            time.sleep(0.2)
        finally:
            done.set()
            for thread in threads:
                thread.join()
    assert not failures
    for call in calls:
        # The state that stood for certain when it began, and all that came until it ended.
        first = max(
            (at for at, (_, after, _) in enumerate(times) if after < call.begin), default=-1
        )
        possible = {times[first][2] if first >= 0 else "0 0\n"}
        possible |= {state for before, _, state in times[first + 1 :] if before < call.end}
        assert call.said in possible, (call, times)
    assert any(call.started == mode for call in calls)
    last = times[-1][1]
    assert any(call.started == mode and call.begin > last for call in calls), "never warm again"


@each_mode
@pytest.mark.parametrize("linked", [False, True], ids=["directory", "link"])
def test_a_directory_above_is_swapped(linked: bool, mode: Mode, tmp_path: Path) -> None:
    """As deployments do: what was read from below it is not where it was."""
    release = tmp_path / "releases" / "app"
    (release / "lib").mkdir(parents=True)
    app = tmp_path / "current" if linked else release
    if linked:
        app.symlink_to(release)
    program, library = tmp_path / "program", app / "lib" / "libown.so"
    build_library(library, 0)
    compiled(
        program, PROGRAM, '-DVERSION="0"', f"-L{library.parent}", "-lown", f"-Wl,-rpath,{app}/lib"
    )
    other = tmp_path / "other" / "app" if linked else tmp_path / "releases" / "new"
    (other / "lib").mkdir(parents=True)
    build_library(other / "lib" / "libown.so", 1)
    with parked(str(program), mode, env=ENVIRONMENT) as warm:
        assert warm.run([program], env=ENVIRONMENT).text == "0 0\n"
        assert warm.fill(timeout=30)
        moved, new = (release.parent, other.parent) if linked else (release, other)
        moved.rename(tmp_path / "old")
        new.rename(moved)
        assert warm.run([program], env=ENVIRONMENT).text == "0 1\n"
        assert warm.fill(timeout=30)
        assert warm.run([program], env=ENVIRONMENT).started == mode


@each_mode
def test_a_better_library_comes(mode: Mode, tmp_path: Path) -> None:
    """Not in the place of another, but where ld.so looks first on such a processor."""
    program, library = tmp_path / "program", tmp_path / "libown.so"
    build_library(library, 0)
    build_program(program, 0)
    with parked(str(program), mode, env=ENVIRONMENT) as warm:
        for version, level in enumerate(("x86-64-v2", "x86-64-v3"), 1):
            assert warm.run([program], env=ENVIRONMENT).started == mode
            variant = tmp_path / "glibc-hwcaps" / level
            variant.mkdir(parents=True)
            build_library(variant / "libown.so", version)
            cold = sf.run([program], env=ENVIRONMENT).text
            assert warm.run([program], env=ENVIRONMENT).text == cold
            assert warm.fill(timeout=30)
