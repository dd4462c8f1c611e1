# SPDX-License-Identifier: MIT OR Apache-2.0
"""Starts of CPython with an entry: which starts are warm, and why the others are cold."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
import spawnfd as sf
from patience import TIMEOUT_S
from warm_lines import ENVIRONMENT
from warm_support import FILL_S, Mode, Warm, each_mode, new_warm, parked, write_files

PYTHON = sys.executable
SHOWS = """
import json, part, sys
print(sys.argv, __name__, __file__, part.NUMBER, json.__name__)
"""
SHOWS_FIRST = "import sys\nprint(sys.path[0], part.NUMBER)\n"
FILES = {
    "lib/tool/__init__.py": "",
    "lib/tool/__main__.py": SHOWS.replace("part", "tool.part"),
    "lib/tool/part.py": "NUMBER = 1\n",
    "lib/part.py": "NUMBER = 2\n",
    "lib/tool.py": SHOWS,
    "work/notes.txt": "",
    "work/tool.ini": "",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_files(tmp_path, FILES)
    return tmp_path


def env_of(root: Path) -> dict[str, str]:
    return ENVIRONMENT | {"PYTHONPATH": str(root / "lib"), "PYTHONDONTWRITEBYTECODE": "1"}


def outcome(result: sf.Result) -> tuple[int | None, str, bytes]:
    return result.code, result.text, result.stderr


def run(warm: sf.Warm, root: Path, *words: str, cwd: str = "work") -> sf.Result:
    """Starts the program through the Warm, and asserts that its outcome is that of a cold start."""
    argv = [PYTHON, *words]
    options: dict[str, Any] = {"env": env_of(root), "cwd": root / cwd}
    result = warm.run(argv, timeout=TIMEOUT_S, **options)
    assert outcome(result) == outcome(sf.run(argv, timeout=TIMEOUT_S, **options))
    return result


# --- which starts are warm --------------------------------------------------------------------


@each_mode
def test_module_starts_warm_in_any_directory(mode: Mode, root: Path) -> None:
    with parked(PYTHON, mode, env=env_of(root), entry="-m tool") as warm:
        for cwd in ("work", "work/..", "/"):
            result = run(warm, root, "-m", "tool", "a", "-b", cwd=cwd)
            assert (result.started, result.code) == (mode, 0)
            assert warm.fill(FILL_S), warm.stats()


@each_mode
def test_script_starts_warm_by_each_of_its_paths(mode: Mode, root: Path) -> None:
    script = str(root / "lib/tool.py")
    with parked(PYTHON, mode, env=env_of(root), entry=script) as warm:
        for words, cwd in (([script, "a"], "work"), (["tool.py"], "lib"), (["lib/tool.py"], ".")):
            result = run(warm, root, *words, cwd=cwd)
            assert (result.started, result.code) == (mode, 0)
            assert warm.fill(FILL_S), warm.stats()


def test_relative_entry_starts_at_the_working_directory(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root / "lib")
    with parked(PYTHON, "reserve", env=env_of(root), entry="tool.py") as warm:
        assert run(warm, root, "tool.py", cwd="lib").started == "reserve"


def test_interpreter_options_precede_the_entry(root: Path) -> None:
    options: dict[str, Any] = {"args": ["-O"], "entry": "-m tool", "env": env_of(root)}
    with parked(PYTHON, "reserve", **options) as warm:
        assert run(warm, root, "-m", "tool").started == "cold: arguments"
        assert run(warm, root, "-O", "-m", "tool").started == "reserve"


@pytest.mark.parametrize(
    "words", [["-c", "pass"], ["-m", "json.tool", "-h"], ["part.py"], ["tool.py"]]
)
def test_start_of_another_program_is_cold(words: Sequence[str], root: Path) -> None:
    with Warm() as warm:
        script = root / "lib/tool.py"
        warm.add(PYTHON, depth=1, entry=script, env=env_of(root))
        warm.add(PYTHON, depth=1, entry="-m tool", env=env_of(root))
        assert warm.fill(FILL_S), warm.stats()
        assert run(warm, root, *words).started == "cold: entry"


def test_start_uses_the_processes_of_its_entry(root: Path) -> None:
    """Other starts use the processes without an entry."""
    code = "import sys; print('json' in sys.modules, 'tool.part' in sys.modules)"
    with Warm() as warm:
        warm.add(PYTHON, depth=1, env=env_of(root))
        warm.add(PYTHON, depth=1, env=env_of(root), entry="-m tool")
        assert warm.fill(FILL_S), warm.stats()
        assert run(warm, root, "-m", "tool").started == "reserve"
        assert run(warm, root, "-c", code).started == "reserve"
        assert warm.stats().cold == {}


@pytest.mark.parametrize(
    ("cwd", "words", "why"),
    [
        (None, ["-c", "pass"], "entry"),
        ("lib", ["-m", "tool"], "working directory"),
        ("lib", ["tool.py"], "entry"),
    ],
)
def test_keep_parks_programs_beside_an_entry(
    cwd: str | None, words: Sequence[str], why: str, root: Path
) -> None:
    entry = "-m tool" if words[0] == "-m" else str(root / "lib/tool.py")
    write_files(root, {"work/tool.py": ""})
    with Warm(keep=1) as warm:
        directory: dict[str, Any] = {"cwd": root / cwd} if cwd else {}
        warm.add(PYTHON, depth=1, env=env_of(root), entry=entry, **directory)
        assert warm.fill(FILL_S), warm.stats()
        assert run(warm, root, *words).started == f"cold: {why}"
        assert warm.fill(FILL_S), warm.stats()
        assert run(warm, root, *words).started == "reserve"


# --- several entries for a start --------------------------------------------------------------


@each_mode
def test_start_uses_the_entry_of_its_directory(mode: Mode, root: Path) -> None:
    for name in ("one", "two"):
        write_files(root, {f"{name}/own.py": f"NAME = {name!r}\n"})
        write_files(root, {f"{name}/program.py": "import own\nprint(own.NAME)\n"})
    with new_warm(mode) as warm:
        for name in ("one", "two"):
            options: dict[str, Any] = {"env": env_of(root), "cwd": root / name}
            warm.add(PYTHON, depth=1, entry="-m program", **options)
        assert warm.fill(FILL_S), warm.stats()
        for name in ("one", "two"):
            result = run(warm, root, "-m", "program", cwd=name)
            assert (result.started, result.text) == (mode, f"{name}\n")


@each_mode
@pytest.mark.parametrize("why", ["shadowed module", "working directory", "entry", "variable"])
def test_start_that_an_entry_refuses_uses_a_process_without_an_entry(
    mode: Mode, why: str, root: Path
) -> None:
    script = str(root / "lib/program.py")
    write_files(
        root,
        {
            "lib/own.py": "import os\nos.environ.get('COLOUR')\n",
            "lib/program.py": "import own\n",
            "work/program.py": "print('other')\n",
        },
    )
    if why == "shadowed module":
        write_files(root, {"work/own.py": "print('shadows')\n"})
    entry, words = (script, ["program.py"]) if why == "entry" else ("-m program", ["-m", "program"])
    env = env_of(root) | ({"COLOUR": "red"} if why == "variable" else {})
    directory: dict[str, Any] = {"cwd": root / "lib"} if why == "working directory" else {}
    cwd = root / ("notes" if why == "variable" else "work")
    cwd.mkdir(exist_ok=True)
    options: dict[str, Any] = {"env": env, "cwd": cwd}

    def check(warm: sf.Warm, expected: str) -> None:
        assert warm.fill(FILL_S), warm.stats()
        assert warm.explain([PYTHON, *words], **options).started == expected
        result = warm.run([PYTHON, *words], timeout=TIMEOUT_S, **options)
        assert result.started == expected
        cold = sf.run([PYTHON, *words], timeout=TIMEOUT_S, **options)
        assert outcome(result) == outcome(cold)

    with new_warm(mode) as warm:
        warm.add(PYTHON, depth=1, env=env_of(root), entry=entry, **directory)
        check(warm, f"cold: {why}")
        warm.add(PYTHON, depth=1, env=env_of(root))
        check(warm, mode)


def test_template_parks_the_program_beside_an_entry(root: Path) -> None:
    with Warm() as warm:
        warm.add(PYTHON, depth=1, env=env_of(root), entry="-m tool")
        template = sf.Template(PYTHON, warm=warm)
        assert warm.fill(FILL_S), warm.stats()
        assert warm.stats().parked == 3
        assert template.run(["-c", "pass"]).started in ("reserve", "cold: slow")


# --- the first import path --------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """Files in the working directory of a start with `-m`, and how the program starts."""

    files: Mapping[str, str]
    started: str


FOUND = {
    "module": Found({"json.py": "1 / 0\n"}, "cold: shadowed module"),
    "package": Found({"tool/__init__.py": "print('other')\n"}, "cold: shadowed module"),
    "namespace package": Found({"json/data.txt": ""}, "cold: shadowed module"),
    "extension module": Found({"json.abi3.so": ""}, "cold: shadowed module"),
    "other files": Found({"json.ini": "", "tool.toml": "", "src/json.py": "1 / 0\n"}, "reserve"),
    "built-in module": Found({"sys.py": "1 / 0\n"}, "reserve"),
    "metadata": Found({"json.dist-info/METADATA": ""}, "reserve"),
}


@pytest.mark.parametrize("name", FOUND)
def test_module_in_the_working_directory_makes_the_start_cold(name: str, root: Path) -> None:
    found = FOUND[name]
    write_files(root / "work", found.files)
    with parked(PYTHON, "reserve", env=env_of(root), entry="-m tool") as warm:
        assert run(warm, root, "-m", "tool").started == found.started


def test_directory_of_an_action_is_the_working_directory(root: Path) -> None:
    write_files(root / "shadowing", {"json.py": "1 / 0\n"})
    with parked(PYTHON, "reserve", env=env_of(root), entry="-m tool") as warm:
        argv, env = [PYTHON, "-m", "tool"], env_of(root)
        fd = os.open(root / "shadowing", os.O_RDONLY | os.O_DIRECTORY)
        try:
            for action in (sf.actions.Fchdir(fd), sf.actions.Chdir("../shadowing")):
                result = warm.run(argv, env=env, cwd=root / "work", actions=[action])
                assert (result.started, result.code) == ("cold: shadowed module", 1)
        finally:
            os.close(fd)


def test_interpreter_that_ignores_the_working_directory_is_warm(root: Path) -> None:
    write_files(root / "work", {"json.py": "1 / 0\n"})
    with parked(PYTHON, "reserve", args=["-I"], entry="-m json.tool", env=env_of(root)) as warm:
        assert run(warm, root, "-I", "-m", "json.tool", "-h").started == "reserve"


def test_metadata_in_the_working_directory_makes_the_start_cold(root: Path) -> None:
    """A module has read the metadata of an installed package, which may also be found there."""
    write_files(
        root,
        {
            "lib/mine-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n",
            "lib/tool/part.py": "import importlib.metadata as m\nNUMBER = m.version('mine')\n",
        },
    )
    with parked(PYTHON, "reserve", env=env_of(root), entry="-m tool") as warm:
        write_files(
            root,
            {"work/mine.egg-info/PKG-INFO": "Metadata-Version: 2.1\nName: mine\nVersion: 2.0\n"},
        )
        assert run(warm, root, "-m", "tool").started == "cold: shadowed module"


# --- a working directory ----------------------------------------------------------------------


@each_mode
def test_entry_in_a_directory_imports_the_modules_of_this_directory(mode: Mode, root: Path) -> None:
    write_files(
        root,
        {
            "work/own/__init__.py": "import os\nHERE = os.getcwd()\n",
            "work/own/__main__.py": "import own\nprint(own.HERE, open('own.txt').read())\n",
            "work/own.txt": "text",
            "work/own/data.py": "TEXT = open('own.txt').read()\n",
        },
    )
    with parked(PYTHON, mode, env=env_of(root), entry="-m own", cwd=root / "work") as warm:
        assert run(warm, root, "-m", "own").started == mode
        assert run(warm, root, "-m", "own", cwd="lib").started == "cold: working directory"
        assert warm.fill(FILL_S), warm.stats()
        write_files(root, {"work/own/__init__.py": "HERE = 1\n"})
        assert run(warm, root, "-m", "own").started == "cold: stale"


@each_mode
def test_entry_in_the_root_directory_imports_the_modules_of_this_directory(mode: Mode) -> None:
    # The directory is a namespace package of the package tmp. Its name has no dot.
    with tempfile.TemporaryDirectory(prefix="spawnfd_", dir="/tmp") as directory:
        write_files(Path(directory), {"part.py": "NUMBER = 1\n"})
        package = directory.strip("/").replace("/", ".")
        write_files(Path(directory), {"tool.py": f"import {package}.part as part\n{SHOWS_FIRST}"})
        argv, env = [PYTHON, "-m", f"{package}.tool"], ENVIRONMENT
        with parked(PYTHON, mode, env=env, entry=f"-m {package}.tool", cwd="/") as warm:
            for cwd in ("/", "/tmp/.."):
                result = warm.run(argv, env=env, cwd=cwd)
                assert (result.started, result.text) == (mode, "/ 1\n")
                assert warm.fill(FILL_S), warm.stats()
            assert warm.run(argv, env=env, cwd="/usr").started == "cold: working directory"


def test_directory_of_an_entry_must_exist(root: Path) -> None:
    with Warm() as warm:
        warm.add(PYTHON, entry="-m tool", cwd=root / "missing", env=env_of(root))
        assert not warm.fill(FILL_S)
        (why,) = warm.stats().cannot.values()
        assert "missing" in why


# --- real programs ------------------------------------------------------------------------------

TOOLS = {
    "pytest": ["-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "test_it.py"],
    "mypy": ["-m", "mypy", "--cache-dir=/dev/null", "wrong.py"],
    "unittest": ["-m", "unittest", "-v", "test_it"],
    "json.tool": ["-m", "json.tool", "data.json"],
}
TEST = """
import sys, unittest
class Test(unittest.TestCase):
    def test_arguments(self): print(sys.argv, __name__)
    def test_fails(self): assert [1, 2] == [1, 3]
"""


@each_mode
@pytest.mark.parametrize("tool", TOOLS)
def test_tool_has_the_outcome_of_a_cold_start(tool: str, mode: Mode, tmp_path: Path) -> None:
    files = {"test_it.py": TEST, "wrong.py": "x: int = 'a'\n", "data.json": "[1, 2]"}
    write_files(tmp_path, files)
    env = ENVIRONMENT | {"PYTHONDONTWRITEBYTECODE": "1"}
    argv, entry = [PYTHON, *TOOLS[tool]], " ".join(TOOLS[tool][:2])
    cold = sf.run(argv, env=env, cwd=tmp_path, timeout=TIMEOUT_S)
    with parked(PYTHON, mode, env=env, entry=entry) as warm:
        found = warm.run(argv, env=env, cwd=tmp_path, timeout=TIMEOUT_S)
    assert found.started == mode
    assert cold.code == (0 if tool == "json.tool" else 1)

    def without_times(result: sf.Result) -> tuple[int | None, str, str]:
        texts = (result.text, result.stderr.decode())
        out, err = (re.sub(r"in [0-9.]+s", "in _s", text) for text in texts)
        return result.code, out, err

    assert without_times(found) == without_times(cold)


# --- changed files ----------------------------------------------------------------------------


def write(name: str, text: str) -> Callable[[Path], None]:
    return lambda root: write_files(root, {name: text})


CHANGES: dict[str, Callable[[Path], None]] = {
    "the script": write("lib/tool.py", "print('new')\n"),
    "an imported module": write("lib/part.py", "NUMBER = 3\n"),
    "a file that a module has read": write("data.txt", "4"),
    "a module that shadows another one": write("lib/json.py", ""),
    "a package that shadows a module": write("lib/part/__init__.py", "NUMBER = 5\n"),
    "a module that was missing": write("lib/optional.py", "NUMBER = 6\n"),
}


@each_mode
@pytest.mark.parametrize("change", CHANGES)
def test_changed_file_makes_the_next_start_cold(change: str, mode: Mode, root: Path) -> None:
    reads = f"NUMBER = int(open({str(root / 'data.txt')!r}).read())\n"
    reads += "try: from optional import NUMBER\nexcept ImportError: pass\n"
    write_files(root, {"data.txt": "2", "lib/part.py": reads})
    env = {name: value for name, value in env_of(root).items() if name != "PYTHONPATH"}
    argv = [PYTHON, str(root / "lib/tool.py")]
    # Because of the delay, the keeper does not park anew before the start that finds the change.
    with new_warm(mode, delay=600) as warm:
        warm.add(PYTHON, depth=2, env=env, entry=argv[1])
        assert warm.fill(FILL_S), warm.stats()
        before = warm.run(argv, env=env)
        assert (before.started, before.code) == (mode, 0), before
        CHANGES[change](root)
        found = warm.run(argv, env=env)
        assert found.started == "cold: stale"
        assert warm.fill(FILL_S), warm.stats()
        again = warm.run(argv, env=env)
        assert again.started == mode
        assert outcome(again) == outcome(found) == outcome(sf.run(argv, env=env))


def test_other_file_in_the_scripts_directory_does_not_matter(root: Path) -> None:
    with parked(PYTHON, "reserve", env=ENVIRONMENT, entry=root / "lib/tool.py") as warm:
        write_files(root, {"lib/output.txt": "", "lib/json.txt": ""})
        result = warm.run([PYTHON, root / "lib/tool.py"], env=ENVIRONMENT)
        assert (result.started, result.code) == ("reserve", 0)


# --- arguments --------------------------------------------------------------------------------


def test_template_takes_an_entry(root: Path) -> None:
    template = sf.Template(PYTHON, warm={"depth": 1, "entry": "-m tool", "env": env_of(root)})
    assert template.warm is not None
    assert template.warm.fill(FILL_S)
    result = template.run(["-m", "tool"], env=env_of(root), cwd=root / "work")
    assert (result.started, result.code) in (("reserve", 0), ("cold: slow", 0))
    assert template.run(["-c", "pass"], env=env_of(root)).started == "cold: entry"
    assert template.warm.fill(FILL_S)
    assert template.warm.stats().parked == 1


@pytest.mark.parametrize("entry", ["", "-m", "-mtool", "-c", "-m a b"])
def test_invalid_entry_is_refused(entry: str) -> None:
    with Warm() as warm, pytest.raises(sf.SpawnError, match="expected the path of a script, or -m"):
        warm.add(PYTHON, entry=entry)


def test_entry_is_for_cpython_outside_a_sandbox() -> None:
    with Warm() as warm:
        for program in ("/bin/sh", "/bin/true"):
            with pytest.raises(sf.SpawnError, match="only CPython"):
                warm.add(program, entry="tool.py")
        with pytest.raises(sf.SpawnError, match="an entry in a sandbox"):
            warm.add(PYTHON, entry="tool.py", sandbox=sf.Sandbox(["/usr/bin/env"]))
        with pytest.raises(TypeError, match="entry"):
            warm.add(PYTHON, entry=cast(Any, 3))
