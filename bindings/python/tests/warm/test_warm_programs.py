# SPDX-License-Identifier: MIT OR Apache-2.0
"""Programs that cannot be parked are started cold, and the reason is reported."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import spawnfd as sf
from conftest import children
from warm_lines import ENVIRONMENT
from warm_programs import (
    ARGUMENTS,
    CONSTRUCTORS,
    EARLY,
    ERRNO,
    LOADS,
    MAIN,
    OWN_ENTRY,
    PLAIN,
    PLUGIN,
    PROGRAMS,
    SAYS,
    VARIABLE,
    Program,
    compiled,
    with_constructor,
    with_library,
)
from warm_support import FILL_S, Mode, Warm, each_mode, parked, require


def outcome(result: sf.Result) -> tuple[int | None, int | None, bytes, bytes]:
    return result.code, result.signal, result.stdout, result.stderr


@each_mode
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.id)
def test_unsupported_program_starts_cold(program: Program, mode: Mode, tmp_path: Path) -> None:
    path = str(program.make(tmp_path / "program"))
    cold = sf.run([path, "x"], env=ENVIRONMENT)
    assert cold.code == 5
    before = children()
    with Warm(mode=mode) as warm:
        warm.add(path, env=ENVIRONMENT)
        warm.fill(FILL_S)
        for _ in range(3):
            result = warm.run([path, "x"], env=ENVIRONMENT)
            assert outcome(result) == outcome(cold)
            assert result.started.startswith("cold: ")
            assert program.cold in result.started
        # The guard may have ended, and another one started.
        assert len(children()) <= len(before)
        counted = warm.stats().cold
    assert sum(counted.values()) == 3


@each_mode
def test_plain_program_starts_warm(mode: Mode, tmp_path: Path) -> None:
    """A plain program from the same compiler is parked."""
    path = str(compiled(tmp_path / "program", PLAIN))
    with parked(path, mode, env=ENVIRONMENT) as warm:
        result = warm.run([path, "x"], env=ENVIRONMENT)
    assert outcome(result) == (5, None, b"ran\n", b"")
    assert result.started == mode


@each_mode
@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_constructors_run_after_parking(name: str, mode: Mode, tmp_path: Path) -> None:
    path = str(with_constructor(tmp_path / "program", CONSTRUCTORS[name], "-pthread"))
    argv, env = [path, "one", "two"], ENVIRONMENT | {"KEPT": "kept"}
    cold = sf.run(argv, env=env)
    assert cold.code == 5
    with parked(path, mode, env=ENVIRONMENT) as warm:
        result = warm.run(argv, env=env)
    assert outcome(result) == outcome(cold)
    assert result.started == mode


@each_mode
def test_variable_read_by_a_library_must_be_equal(mode: Mode, tmp_path: Path) -> None:
    path = str(with_library(tmp_path / "program", VARIABLE))
    with parked(path, mode, env=ENVIRONMENT | {"KEPT": "a"}) as warm:
        for kept, started in (("a", mode), ("b", "cold: variable")):
            result = warm.run([path], env=ENVIRONMENT | {"KEPT": kept})
            assert outcome(result) == (5, None, f"{kept}\n".encode(), b"")
            assert result.started == started
            warm.fill(timeout=FILL_S)


@each_mode
def test_library_sees_the_arguments_of_parking(mode: Mode, tmp_path: Path) -> None:
    """The library saved the arguments while parking, which the owner cannot know."""
    path = str(with_library(tmp_path / "program", ARGUMENTS))
    with Warm(mode=mode) as warm:
        warm.add(path, env=ENVIRONMENT)
        warm.fill(timeout=FILL_S)
        result = warm.run([path, "one", "two"], env=ENVIRONMENT)
    assert outcome(result) == (5, None, f"1 {path}\n".encode(), b"")
    assert result.started == mode


@each_mode
def test_program_that_was_not_added_starts_cold(mode: Mode) -> None:
    with parked("true", mode) as warm:
        result = warm.run(["false"])
    assert result.code == 1
    assert result.started.startswith("cold: ")


@each_mode
def test_missing_program_is_an_error(mode: Mode, tmp_path: Path) -> None:
    with parked("true", mode) as warm, pytest.raises(FileNotFoundError):
        warm.run([str(tmp_path / "nothing")])


@each_mode
@pytest.mark.parametrize("preimport", [[], ["net"]])
def test_node_that_warns_starts_cold(mode: Mode, preimport: list[str], tmp_path: Path) -> None:
    """A warning printed before parking must not be lost."""
    require("node")
    argv, env = ["node", "-e", "1"], ENVIRONMENT | {"NODE_EXTRA_CA_CERTS": str(tmp_path / "none")}
    cold = sf.run(argv, env=env)
    with Warm(mode=mode) as warm:
        warm.add("node", args=["-e"], env=env, preimport=preimport)
        assert warm.fill(timeout=FILL_S) is not bool(cold.stderr)
        result = warm.run(argv, env=env)
    assert outcome(result)[:3] == outcome(cold)[:3]
    assert bool(result.stderr) == bool(cold.stderr)
    assert result.started == ("cold: start-up code writes" if cold.stderr else mode)


@each_mode
def test_program_with_its_own_entry_does_not_run(mode: Mode, tmp_path: Path) -> None:
    path, ran = str(compiled(tmp_path / "program", OWN_ENTRY, "-nostartfiles")), tmp_path / "ran"
    env = ENVIRONMENT | {"RAN": str(ran)}
    with Warm(mode=mode) as warm:
        warm.add(path, env=env)
        warm.fill(timeout=FILL_S)
        assert "entry point outside libc" in warm.stats().cannot.values()
        assert not ran.exists()
        assert warm.run([path], env=env).stdout == b"ran\n"
        assert ran.read_text() == "."


@each_mode
def test_errno_is_zero(mode: Mode, tmp_path: Path) -> None:
    path = str(compiled(tmp_path / "program", ERRNO))
    with parked(path, mode, env=ENVIRONMENT) as warm:
        result = warm.run([path], env=ENVIRONMENT)
    assert (outcome(result), result.started) == ((5, None, b"0\n", b""), mode)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LD_PRELOAD", "{}/libpreloaded.so"),
        ("LD_LIBRARY_PATH", "lib:/usr/lib"),
        ("LD_LIBRARY_PATH", "/usr/lib:"),
        ("LD_SHOW_AUXV", "1"),
    ],
)
def test_loader_variables_start_cold(name: str, value: str, tmp_path: Path) -> None:
    compiled(tmp_path / "libpreloaded.so", "int unused;", "-shared", "-fPIC")
    path, env = str(compiled(tmp_path / "program", PLAIN)), dict(ENVIRONMENT)
    env[name] = value.format(tmp_path)
    with Warm() as warm:
        warm.add(path, env=env)
        warm.fill(timeout=FILL_S)
        result = warm.run([path], env=env)
    assert (result.code, result.started) == (5, "cold: loader")
    with parked(path, "reserve", env=env | {name: ""}) as warm:
        assert warm.run([path], env=env | {name: ""}).started == "reserve"


@each_mode
@pytest.mark.parametrize("change", ["earlier", "link"])
def test_library_in_another_directory_is_used(change: str, mode: Mode, tmp_path: Path) -> None:
    """An earlier directory of the search path gets the library, or a link on its path changes."""
    for word in ("old", "new"):
        (tmp_path / word).mkdir()
        library = tmp_path / word / "libsays.so"
        compiled(library, SAYS, *EARLY, f'-DWORD="{word}"', "-shared", "-fPIC")
    (tmp_path / "first").mkdir()
    (tmp_path / "current").symlink_to("old")
    search = "$ORIGIN/first:$ORIGIN/old" if change == "earlier" else "$ORIGIN/current"
    flags = (f"-L{tmp_path / 'old'}", "-lsays", f"-Wl,-rpath,{search}")
    path = str(compiled(tmp_path / "program", MAIN, *flags))
    with parked(path, mode, env=ENVIRONMENT) as warm:
        assert warm.run([path], env=ENVIRONMENT).stdout == b"old\n"
        assert warm.fill(timeout=FILL_S)
        if change == "earlier":
            (tmp_path / "new" / "libsays.so").rename(tmp_path / "first" / "libsays.so")
        else:
            (tmp_path / "next").symlink_to("new")
            (tmp_path / "next").rename(tmp_path / "current")
        result = warm.run([path], env=ENVIRONMENT)
        assert (result.code, result.stdout) == (5, b"new\n")
        assert warm.fill(timeout=FILL_S)
        result = warm.run([path], env=ENVIRONMENT)
        assert (result.stdout, result.started) == (b"new\n", mode)


@each_mode
def test_library_from_a_memory_file_is_loaded(mode: Mode, tmp_path: Path) -> None:
    """ld.so must not take the path /proc/self/fd/N for a library that parking has loaded."""
    plugin = str(compiled(tmp_path / "plugin.so", PLUGIN, "-shared", "-fPIC"))
    path = str(compiled(tmp_path / "program", LOADS))
    with parked(path, mode, env=ENVIRONMENT) as warm:
        result = warm.run([path, plugin], env=ENVIRONMENT)
    assert outcome(result) == (5, None, b"", b"")
    assert result.started == mode


FROM_MEMORY = """
import ctypes, os, sys
for _ in range(60):
    memory = os.memfd_create("plugin", 0)
    os.write(memory, open(sys.argv[1], "rb").read())
    ctypes.CDLL(f"/proc/self/fd/{memory}").answer
"""


@each_mode
def test_library_from_a_memory_file_is_loaded_by_python(mode: Mode, tmp_path: Path) -> None:
    plugin = str(compiled(tmp_path / "plugin.so", PLUGIN, "-shared", "-fPIC"))
    with parked(sys.executable, mode) as warm:
        result = warm.run([sys.executable, "-c", FROM_MEMORY, plugin])
    assert outcome(result) == (0, None, b"", b"")
    assert result.started == mode
