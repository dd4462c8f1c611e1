# SPDX-License-Identifier: MIT OR Apache-2.0
"""An entry point: the script or module whose imports a parked CPython makes before it parks."""

from __future__ import annotations

import os
import time
import zipfile
from pathlib import Path

import pytest
from calls import Call, CannotPark, Parked
from comparing import ENV, write

HERE = Path(__file__).resolve().parent
# The head of the programs below: the modules that the process imports ahead.
HEAD = '"""A program."""\nfrom __future__ import annotations\nimport json.tool\nimport helper, logging\n'


@pytest.fixture
def program(tmp_path):
    """Creates a script and a package that print all state, beside a module that both import."""
    state = (HERE / "state.py").read_text()
    text = HEAD + state
    write(tmp_path, "lib/helper.py", "import time\n")
    write(tmp_path, "lib/package/__init__.py", "from package import part\n")
    write(tmp_path, "lib/package/__main__.py", HEAD + "from .part import PART\n" + state)
    write(tmp_path, "lib/package/module.py", HEAD + "from . import part as other\n" + state)
    write(tmp_path, "lib/package/part.py", "PART = 1\n")
    write(tmp_path, "lib/module.py", text)
    write(tmp_path, "work/empty.txt", "")
    (tmp_path / "link").symlink_to("lib/module.py")
    return tmp_path


def env_with(path: Path) -> dict[str, str]:
    return {**ENV, "PYTHONPATH": str(path), "PYTHONDONTWRITEBYTECODE": "1"}


@pytest.mark.parametrize(
    "flags", [(), ("-O",), ("-u",), ("-X", "dev"), ("-W", "error"), ("-S",)], ids="".join
)
def test_state_of_a_script_with_an_entry(same, program, flags):
    script = str(program / "lib/module.py")
    assert b"helper" in same(script, "a", entry=script, flags=flags).stdout


@pytest.mark.parametrize(
    ("words", "entry"),
    [
        (["lib/module.py", "x"], "lib/module.py"),
        (["link", "-c"], "link"),
    ],
)
def test_state_of_each_path_of_a_script(same, program, words, entry):
    same(*words, entry=str(program / entry), cwd=str(program))


@pytest.mark.parametrize("flags", [(), ("-O",), ("-P",)], ids="".join)
@pytest.mark.parametrize("name", ["module", "package", "package.module"])
def test_state_of_a_module_with_an_entry(same, python, program, name, flags):
    if "-P" in flags and not has_safe_path(python):
        pytest.skip("-P is new in CPython 3.11")
    env = env_with(program / "lib")
    same("-m", name, "x", entry=f"-m {name}", flags=flags, env=env, cwd=str(program / "work"))


def has_safe_path(python: str) -> bool:
    (library,) = Path(python).parents[1].glob("lib/python3.*")
    return int(library.name.partition(".")[2]) >= 11


# --- the statements that are executed ahead ---------------------------------------------------

ATTEMPT = "try:\n    import {0}\nexcept ImportError:\n    {1}\nimport b\n"

LEADING = {
    "imports": ("import a\nfrom b import c\n", "a b"),
    "docstring and constants": ("'''x'''\n__all__ = ['f']\nX = Y = 1\nimport a\n", "a"),
    "plain functions": ("def f(x, y=1, *, z=None): pass\nimport a\n", "a"),
    "after a call": ("import a\nprint\nprint()\nimport b\n", "a"),
    "after a change of the environment": ("import os\nos.environ['A'] = '2'\nimport b\n", ""),
    "after a change of sys.path": ("import sys\nsys.path.insert(0, '/x')\nimport b\n", ""),
    "after a class": ("import a\nclass C: pass\nimport b\n", "a"),
    "after a decorator": ("import a\n@a.d\ndef f(): pass\nimport b\n", "a"),
    "after a default that is called": ("import a\ndef f(x=a.d()): pass\nimport b\n", "a"),
    "in a function": ("def f():\n    import a\n", ""),
    "in the main block": ("import a\nif __name__ == '__main__':\n    import b\n    b.run()\n", "a b"),
    "in another block": ("if __name__ != '__main__':\n    import a\nimport b\n", "b"),
    "for type checkers": (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import a\nimport b\n",
        "b",
    ),
    "for a version": (
        "import sys\nif sys.version_info >= (3,):\n    import a\nelse:\n    import b\n",
        "a",
    ),
    "after an unknown condition": ("import a\nif len('x'):\n    import b\n", "a"),
    "after a block with an effect": (
        "if __name__ == '__main__':\n    import a\n    a.f()\nimport b\n",
        "a",
    ),
    "attempt": (ATTEMPT.format("a", "a = None"), "a b"),
    "failed attempt": (ATTEMPT.format("missing", "a = None"), "b"),
    "failed attempt with an effect": (ATTEMPT.format("missing", "print()"), ""),
    "attempt without an effect": (ATTEMPT.format("a", "print()"), "a b"),
    "attempt of anything": ("try:\n    import a\nexcept Exception:\n    pass\nimport b\n", ""),
    "missing module": ("import a\nimport missing\nimport b\n", "a"),
    "module that raises ImportError": ("import a\nimport fails\nimport b\n", "a"),
    "empty": ("", ""),
}


# At exit, prints the modules that the parked process has imported, not its fork.
REPORT = """
import atexit, os, sys
def report():
    print(*(name for name in ("a", "b") if getattr(sys.modules.get(name), "PID", os.getpid()) != os.getpid()))
atexit.register(report)
"""


@pytest.mark.parametrize("name", LEADING)
def test_leading_imports_are_made_ahead(python, tmp_path, name):
    text, expected = LEADING[name]
    write(tmp_path, "lib/sitecustomize.py", REPORT)
    script = write(tmp_path, "script.py", text)
    for module in ("a", "b"):
        write(tmp_path, module + ".py", "import os\nc = d = f = run = 1\nPID = os.getpid()\n")
    write(tmp_path, "fails.py", "raise ImportError('by intention')\n")
    call = Call([python, script], env=env_with(tmp_path / "lib"))
    with Parked([python], call.env, fork=True, entry=script) as parked:
        assert parked.run(call).stdout.decode().split() == expected.split()


def test_failing_imports_fail_at_the_start_as_in_a_cold_start(same, tmp_path):
    for text in ("import json\nimport missing\n", "from json import nothing\n"):
        script = write(tmp_path, "script.py", text)
        assert b"ImportError" in same(script, entry=script).stderr.replace(b"ModuleNotFound", b"Import")


def test_warning_for_the_main_module_prevents_parking(python, tmp_path):
    """CPython shows a DeprecationWarning that is attributed to the program."""
    write(tmp_path, "old.py", "import warnings\nwarnings.warn('old', DeprecationWarning, 2)\n")
    script = write(tmp_path, "script.py", "import old\n")
    with pytest.raises(CannotPark, match="writes: .*script.py:1: DeprecationWarning: old"):
        Parked([python], ENV, entry=script).close()


def test_warning_of_the_parser_is_shown_at_the_start(same, tmp_path):
    script = write(tmp_path, "script.py", "import json\nprint(1 is 1)\nprint('\\d')\n")
    assert b"SyntaxWarning" in same(script, entry=script).stderr


# --- programs that do not park ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import sys; NAME = sys.argv[0]", "start-up code reads sys.argv"),
        ("import sys; COUNT = len(sys.argv)", "start-up code reads sys.argv"),
        ("import sys; sys.argv.append('x')", "start-up code reads sys.argv"),
        ("from sys import argv", "start-up code reads sys.argv"),
        ("import argparse; argparse.ArgumentParser()", "start-up code reads sys.argv"),
        ("import os; HERE = os.getcwd()", "start-up code reads the working directory"),
        ("from pathlib import Path; HERE = Path.cwd()", "start-up code reads the working directory"),
        ("import os; HERE = os.path.abspath('x')", "start-up code reads the working directory"),
        ("import os; HERE = os.getcwdb()", "start-up code reads the working directory"),
        ("try: open('nowhere.ini')\nexcept OSError: pass", "start-up code reads the working directory"),
        ("try: open(b'nowhere.ini')\nexcept OSError: pass", "start-up code reads the working directory"),
        ("try: open('n\\udce9.ini')\nexcept OSError: pass", "start-up code reads the working directory"),
        ("raise ValueError('n\\udce9')", r"cannot import the entry's modules: ValueError: n\\udce9"),
        ("import sys; sys.path.insert(0, '/usr')", "start-up code changes sys.path"),
        ("import sys; sys.path.remove(sys.path[0])", "start-up code changes sys.path"),
        ("import os; dict(os.environ)", "whole environment"),
        ("print('hello')", "writes: hello"),
        ("import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()", "threads"),
        ("import os; os.open('/dev/null', 0)", "descriptors"),
        ("1 / 0", "cannot import the entry's modules: ZeroDivisionError: division by zero"),
        ("raise SystemExit(3)", "cannot import the entry's modules: SystemExit: 3"),
    ],
)
@pytest.mark.parametrize("way", ["script", "parent package"])
def test_module_that_prevents_parking(python, tmp_path, text, why, way):
    write(tmp_path, "lib/ahead.py", text)
    write(tmp_path, "lib/tool/__init__.py", "import ahead\n")
    write(tmp_path, "lib/tool/__main__.py", "")
    script = write(tmp_path, "lib/script.py", "import ahead\n")
    entry = script if way == "script" else "-m tool"
    with pytest.raises(CannotPark, match=why):
        Parked([python], env_with(tmp_path / "lib"), entry=entry).close()


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ("missing.py", "cannot read the entry"),
        ("folder", "cannot import the entry's modules: IsADirectoryError"),
        ("bad.py", "cannot import the entry's modules: SyntaxError"),
        ("-m missing", "cannot import the entry's modules: ImportError: No module named missing"),
        ("-m folder", "cannot import the entry's modules: ImportError: No module named folder.__main__"),
        ("-m zipped", "the entry is not a source file"),
        ("-m circle.main", "the entry imports itself"),
    ],
)
def test_entry_that_cannot_be_used(python, tmp_path, entry, why):
    write(tmp_path, "folder/file.txt", "")
    write(tmp_path, "bad.py", "import json\na = = 1\n")
    write(tmp_path, "circle/__init__.py", "")
    write(tmp_path, "circle/main.py", "import circle.other\n")
    write(tmp_path, "circle/other.py", "import circle.main\n")
    with zipfile.ZipFile(tmp_path / "packed.zip", "w") as file:
        file.writestr("zipped.py", "import json\n")
    path = entry if entry.startswith("-m") else str(tmp_path / entry)
    env = {**ENV, "PYTHONPATH": f"{tmp_path}:{tmp_path / 'packed.zip'}"}
    with pytest.raises(CannotPark, match=why):
        Parked([python], env, entry=path).close()


# --- files and import paths --------------------------------------------------------------------


def test_file_that_a_module_writes_may_change(python, tmp_path):
    log = write(tmp_path, "log.txt", "")
    write(tmp_path, "helper.py", f"open({log!r}, 'w').close()\n")
    script = write(tmp_path, "script.py", "import helper\n")
    with Parked([python], ENV, entry=script, delay=600) as parked:
        write(tmp_path, "log.txt", "changed")
        assert parked.run(Call([python, script], env=ENV)).code == 0


def test_paths_need_not_be_utf_8(same, python, tmp_path):
    directory = os.fsdecode(b"caf\xe9/")
    opened = [f"{tmp_path}/{directory}{name}" for name in ("text", "bytes", "path")]
    lines = f"import os, pathlib\nopen({opened[0]!r}).close()\nopen({opened[1]!r}.encode('utf-8', 'surrogateescape'))"
    lines += f".close()\nos.close(os.open(pathlib.Path({opened[2]!r}), 0))\n"
    helper = write(tmp_path, directory + "helper.py", lines)
    script = write(tmp_path, directory + "script.py", "import helper, sys\nprint(ascii(sys.path[0]))\n")
    for path in opened:
        write(tmp_path, str(Path(path).relative_to(tmp_path)), "")
    assert b"udce9" in same(script, entry=script).stdout
    for path in (helper, *opened):
        with Parked([python], ENV, entry=script, delay=600) as parked:
            Path(path).touch()
            parked.run_cold(Call([python, script], env=ENV), "stale")


def test_isolated_interpreter_does_not_search_the_scripts_directory(same, python, tmp_path):
    write(tmp_path, "json.py", "1 / 0")
    script = write(tmp_path, "script.py", "import json; print(json.dumps(1))")
    assert same(script, entry=script, flags=("-I",)).stdout == b"1\n"


# --- differences that a program can notice: docs/warm-differences.md --------------------------

AHEAD = """
import os, sys, time
import __main__
STARTED, PID = time.monotonic_ns(), os.getpid()
FIRST, FILE = sys.path[0], getattr(__main__, "__file__", None)
STREAMS = [os.readlink(f"/proc/self/fd/{fd}").partition(":")[0] for fd in range(3)]
"""
SEEN = """
import ahead
import os, sys
print(ahead.STARTED, ahead.PID == os.getpid(), ahead.FIRST, ahead.FILE, *ahead.STREAMS)
"""


@pytest.mark.parametrize("fork", [False, True], ids=["reserve", "fork"])
def test_modules_imported_ahead_see_the_parked_process(python, tmp_path, fork):
    write(tmp_path, "ahead.py", AHEAD)
    script = write(tmp_path, "script.py", SEEN)
    with Parked([python], ENV, fork=fork, entry=script) as parked:
        before = time.monotonic_ns()
        output = parked.run(Call([python, script], env=ENV, stdout="file")).stdout.split()
    started, same_pid, first, file, *streams = [word.decode() for word in output]
    assert int(started) < before
    assert same_pid == str(not fork)
    assert first == str(tmp_path)
    assert file == "None"
    assert streams == ["/dev/null", "pipe", "pipe"]


def test_first_path_of_a_module_is_missing_while_it_is_imported(python, tmp_path):
    write(tmp_path, "lib/ahead.py", AHEAD)
    write(tmp_path, "lib/tool.py", SEEN)
    env = env_with(tmp_path / "lib")
    with Parked([python], env, entry="-m tool") as parked:
        output = parked.run(Call([python, "-m", "tool"], env=env, cwd=str(tmp_path))).stdout.split()
    assert output[2] == str(tmp_path / "lib").encode()


def test_check_of_a_relative_path_sees_the_parked_directory(python, tmp_path):
    """An open of the path would prevent parking. A check is not noticed."""
    write(tmp_path, "ahead.py", "import os\nFOUND = os.path.exists('ahead.py')\n")
    script = write(tmp_path, "script.py", "import ahead\nprint(ahead.FOUND)\n")
    with Parked([python], ENV, entry=script) as parked:
        finished = parked.run(Call([python, script], env=ENV, cwd=str(tmp_path)))
    assert finished.stdout == b"False\n"


def test_module_of_preimport_sees_the_arguments_and_directory_of_the_parked_process(
    python, tmp_path
):
    write(tmp_path, "ahead.py", "import os, sys\nSEEN = sys.argv[:], os.getcwd()\n")
    call = Call([python, "-c", "import ahead; print(ahead.SEEN)", "x"], env=env_with(tmp_path))
    with Parked([python], call.env, preimport=["ahead"]) as parked:
        assert parked.run(call).stdout == b"(['-c'], '/')\n"


def test_failing_module_runs_ahead_and_again_at_the_start(python, tmp_path):
    write(tmp_path, "log.py", "COUNT = []\n")
    write(tmp_path, "fails.py", "import log\nlog.COUNT.append(1)\nraise ImportError\n")
    program = "try:\n    import fails\nexcept ImportError:\n    pass\nimport log\nprint(len(log.COUNT))\n"
    script = write(tmp_path, "script.py", program)
    with Parked([python], ENV, entry=script) as parked:
        assert parked.run(Call([python, script], env=ENV)).stdout == b"2\n"
