# SPDX-License-Identifier: MIT OR Apache-2.0
"""A program or its library is replaced under load. Each call runs the old or the new version.

No call may fail.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import spawnfd as sf
from patience import TIMEOUT_S, eventually, in_background
from warm_lines import ENVIRONMENT
from warm_programs import compiled
from warm_support import FILL_S, Mode, Warm, each_mode, in_mount_namespace, parked

ROUNDS = 8
THREADS = 4
LIBRARY = "const char *version(void) { return VERSION; }\n"
PROGRAM = """
#include <stdio.h>
const char *version(void);
int main(void) { printf("%s %s\\n", VERSION, version()); return 0; }
"""


class Call(NamedTuple):
    """A call's begin and end by time.monotonic_ns(), its output, and how it was started."""

    begin: int
    end: int
    output: str
    started: str


def build_library(path: Path, version: int) -> None:
    compiled(path, LIBRARY, "-shared", "-fPIC", f'-DVERSION="{version}"')


def build_program(path: Path, version: int) -> None:
    compiled(
        path, PROGRAM, f'-DVERSION="{version}"', f"-L{path.parent}", "-lown", "-Wl,-rpath,$ORIGIN"
    )


@each_mode
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
                result = sf.run([program], warm=warm, env=ENVIRONMENT, timeout=TIMEOUT_S)
            except OSError as error:
                failures.append(str(error))
                continue
            end = time.monotonic_ns()
            if (result.code, result.stderr) != (0, b""):
                failures.append(f"{result}")
            calls.append(Call(begin, end, result.text, result.started))

    # Each replacement has the times before and after it, and the output from then on.
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
            last = times[-1][1]

            def is_warm_again() -> bool:
                # On a busy machine, processes are parked only for a caller of fill().
                warm.fill(timeout=0.1)
                return any(call.started == mode and call.begin > last for call in calls)

            assert eventually(is_warm_again), "never warm again"
        finally:
            done.set()
            for thread in threads:
                thread.join()
    assert not failures
    for call in calls:
        # The call may see the state in force when it began, and all later states until it ended.
        first = max(
            (at for at, (_, after, _) in enumerate(times) if after < call.begin), default=-1
        )
        possible = {times[first][2] if first >= 0 else "0 0\n"}
        possible |= {state for before, _, state in times[first + 1 :] if before < call.end}
        assert call.output in possible, (call, times)


@each_mode
@pytest.mark.parametrize("linked", [False, True], ids=["directory", "link"])
def test_parent_directory_is_replaced(linked: bool, mode: Mode, tmp_path: Path) -> None:
    """A deployment renames a directory above the library."""
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
        assert warm.fill(FILL_S)
        moved, new = (release.parent, other.parent) if linked else (release, other)
        moved.rename(tmp_path / "old")
        new.rename(moved)
        assert warm.run([program], env=ENVIRONMENT).text == "0 1\n"
        assert warm.fill(FILL_S)
        assert warm.run([program], env=ENVIRONMENT).started == mode


BETTER = {
    "hwcaps": ("glibc-hwcaps/x86-64-v2", "glibc-hwcaps/x86-64-v3"),
    # ld.so searched these directories until glibc 2.36.
    "legacy": ("x86_64", "tls", "tls/x86_64"),
}


@each_mode
@pytest.mark.parametrize("where", ["beside", "before"])
@pytest.mark.parametrize("kind", BETTER)
def test_better_library_variant_appears(kind: str, where: str, mode: Mode, tmp_path: Path) -> None:
    """The variant appears in a directory that ld.so searches first on this processor."""
    program, library = tmp_path / "program", tmp_path / "libown.so"
    searched = tmp_path if where == "beside" else tmp_path / "before"
    searched.mkdir(exist_ok=True)
    build_library(library, 0)
    flags = (f"-L{tmp_path}", "-lown", f"-Wl,-rpath,{searched}:{tmp_path}")
    compiled(program, PROGRAM, '-DVERSION="0"', *flags)
    with parked(str(program), mode, env=ENVIRONMENT) as warm:
        for version, level in enumerate(BETTER[kind], 1):
            assert warm.run([program], env=ENVIRONMENT).started == mode
            variant = searched / level
            variant.mkdir(parents=True, exist_ok=True)
            build_library(variant / "libown.so", version)
            cold = sf.run([program], env=ENVIRONMENT).text
            assert warm.run([program], env=ENVIRONMENT).text == cold
            assert warm.fill(FILL_S)


def test_program_is_not_parked_while_its_files_change(tmp_path: Path) -> None:
    """The program is parked once its library stays the same."""
    program, library = tmp_path / "program", tmp_path / "libown.so"
    build_library(library, 0)
    build_program(program, 0)
    done = threading.Event()

    def change() -> None:
        while not done.wait(0.001):
            library.touch()

    with Warm(delay=0.001) as warm:
        with in_background(change):
            try:
                warm.add(str(program), depth=1, env=ENVIRONMENT)
                # The library reports this only after many changes in a row.
                deadline = time.monotonic() + 3 * TIMEOUT_S
                while list(warm.stats().cannot.values()) != ["changing files"]:
                    assert time.monotonic() < deadline, warm.stats()
                    warm.fill(timeout=0.01)
            finally:
                done.set()
        # An attempt in progress may still notice the last change, and fill() then returns False.
        assert eventually(lambda: warm.fill(FILL_S)), warm.stats()
        assert warm.run([program], env=ENVIRONMENT).started == "reserve"


# This owner runs in a new mount namespace. After each mount it prints a call's output, how the
# program was started, and how many processes have been parked.
MOUNTS = """
import json, subprocess, sys
import spawnfd as sf
from warm_support import Warm
mode, program, modules, elsewhere, *mounts = sys.argv[1:]
options, argv = {}, [program]
if modules:
    code = "import own_module; print(own_module.VERSION)"
    options, argv = {"preimport": ["own_module"]}, [program, "-c", code]
env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": modules, "PYTHONDONTWRITEBYTECODE": "1"}
found = []
with Warm(mode=mode) as warm:
    warm.add(program, env=env, depth=1, **options)
    assert warm.fill(timeout=60)
    def call(*change):
        if change:
            subprocess.run(change, check=True)
        cold = sf.run(argv, env=env, timeout=60)
        result = warm.run(argv, env=env, timeout=60)
        assert (result.code, result.text) == (0, cold.text), (change, result, cold)
        assert warm.fill(timeout=60)
        stats = warm.stats()
        # Each process that was too slow has been replaced by another one.
        slow = stats.cold.get("slow", 0) if mode == "reserve" else 0
        found.append([result.text.strip(), result.started, stats.made - slow])
    call()
    call("mount", "--bind", elsewhere, elsewhere)
    call("mount", "--bind", *mounts)
    call()
    call("umount", "--lazy", mounts[-1])
    call()
print(json.dumps(found))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
@pytest.mark.parametrize("what", ["library", "modules"])
@each_mode
def test_mount_over_a_parent_directory(what: str, mode: Mode, tmp_path: Path) -> None:
    """Processes parked before the mount are stale. A mount elsewhere changes nothing."""
    release, new, elsewhere = (tmp_path / name for name in ("release", "new", "elsewhere"))
    for version, directory in enumerate((release / "lib", new / "lib")):
        directory.mkdir(parents=True)
        build_library(directory / "libown.so", version)
        (directory / "own_module.py").write_text(f"VERSION = {version}\n", encoding="utf-8")
    elsewhere.mkdir()
    program, modules = sys.executable, str(release / "lib")
    if what == "library":
        program, modules = str(tmp_path / "program"), ""
        flags = ('-DVERSION="0"', f"-L{release}/lib", "-lown", f"-Wl,-rpath,{release}/lib")
        compiled(Path(program), PROGRAM, *flags)
    found = in_mount_namespace(
        MOUNTS, mode, program, modules, str(elsewhere), str(new), str(release)
    )
    output, started, made = zip(*found, strict=True)
    before, after = ("0 0", "0 1") if what == "library" else ("0", "1")
    assert output == (before, before, after, after, before, before)
    # After a change the start is cold, or warm if the keeper thread was faster.
    assert [started[call] for call in (0, 1, 3, 5)] == [mode] * 4
    # In mode "fork" the same process goes on forking.
    assert made[1] - made[0] == (1 if mode == "reserve" else 0)
    assert made[2] > made[1]


# This owner runs in a new mount namespace. The parked process, or a thread of the owner, has its
# own copy of the mounts.
COPIES = """
import ctypes, json, os, subprocess, sys, threading
import spawnfd as sf
from warm_support import Warm
kind, new, release = sys.argv[1:]
env, program = {"PATH": "/usr/bin:/bin"}, os.path.dirname(release) + "/program"
sandbox = sf.Sandbox(["unshare", "--mount"]) if kind == "sandbox" else None
argv = [program] if kind == "thread" else ["cat", release + "/output"]
options = {"env": env} if kind == "thread" else {"env": env, "sandbox": sandbox, "cwd": "/"}
apart, mounted = threading.Event(), threading.Event()
elsewhere = [None]
def call_from_elsewhere(warm):
    CLONE_FS, CLONE_NEWNS = 0x200, 0x20000
    assert ctypes.CDLL(None, use_errno=True).unshare(CLONE_FS | CLONE_NEWNS) == 0
    apart.set()
    mounted.wait(60)
    result = sf.run([argv[0]], warm=warm, env=env, timeout=60)
    assert result.started.startswith("cold: "), result
    elsewhere[0] = result.text.strip()
with Warm() as warm:
    warm.add(argv[0], depth=1, **options)
    assert warm.fill(timeout=60), warm.stats()
    given = {"env": env, "timeout": 60}
    if sandbox:
        given |= {"sandbox": sandbox, "cwd": "/"}
    before = warm.run(argv, **given)
    assert warm.fill(timeout=60)
    if kind == "thread":
        thread = threading.Thread(target=call_from_elsewhere, args=[warm])
        thread.start()
        apart.wait(60)
    subprocess.run(["mount", "--bind", new, release], check=True)
    if kind == "thread":
        mounted.set()
        thread.join()
    after = warm.run(argv, **given)
    found = [[before.text.strip(), before.started], after.text.strip(), elsewhere[0]]
print(json.dumps(found))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
@pytest.mark.parametrize("kind", ["sandbox", "thread"])
def test_private_copies_of_mounts(kind: str, tmp_path: Path) -> None:
    """A sandbox keeps the mounts of its start. A thread with other mounts starts cold."""
    release, new = tmp_path / "release", tmp_path / "new"
    for version, directory in enumerate((release, new)):
        (directory / "lib").mkdir(parents=True)
        (directory / "output").write_text(f"{version}\n", encoding="utf-8")
        build_library(directory / "lib" / "libown.so", version)
    # The program lies outside the directories, so it does not change.
    program = tmp_path / "program"
    flags = ('-DVERSION="0"', f"-L{release}/lib", "-lown", f"-Wl,-rpath,{release}/lib")
    compiled(program, PROGRAM, *flags)
    before, after, elsewhere = in_mount_namespace(COPIES, kind, str(new), str(release))
    if kind == "sandbox":
        assert (before, after) == (["0", "reserve"], "1")
    else:
        assert (before, after) == (["0 0", "reserve"], "0 1")
        assert elsewhere == "0 0"


@each_mode
@pytest.mark.parametrize("what", ["libown.so", "program"])
def test_change_is_counted_as_stale(what: str, mode: Mode, tmp_path: Path) -> None:
    build_library(tmp_path / "libown.so", 0)
    program = tmp_path / "program"
    build_program(program, 0)
    with parked(str(program), mode, env=ENVIRONMENT) as warm:
        # The keeper thread may notice the change before the start, and park the program anew.
        for _ in range(20):
            shutil.copy(tmp_path / what, tmp_path / "new")
            os.replace(tmp_path / "new", tmp_path / what)
            if warm.run([program], env=ENVIRONMENT).started != mode:
                break
            assert warm.fill(timeout=FILL_S)
        assert {**warm.stats().cold, "slow": 0} == {"stale": 1, "slow": 0}
        assert warm.fill(timeout=FILL_S)
        assert warm.run([program], env=ENVIRONMENT).started == mode
