# SPDX-License-Identifier: MIT OR Apache-2.0
"""Importing the package a second time, and in a second interpreter of the process."""

from __future__ import annotations

from functools import partial

import pytest
import subprocess_support

run_script = partial(subprocess_support.run_script, start="")

AGAIN = """
import sys
import spawnfd as sf

def use(sf):
    limits, spill = sf.Limits(cpu_time=60), sf.Spill(1 << 20)
    actions = [sf.actions.Umask(0o77)]
    result = sf.run(["seq", "1000"], keep=(4, 4), limits=limits, spill=spill, actions=actions)
    assert type(result.check().spilled) is sf.Spilled
    try:
        sf.run(["/nonexistent"])
    except sf.SpawnError:
        pass
    try:
        sf.run(["false"]).check()
    except sf.ExitError:
        pass

def pop_modules():
    names = [name for name in sys.modules if name.split(".")[0] == "spawnfd"]
    return {name: sys.modules.pop(name) for name in names}

use(sf)
first = pop_modules()
import spawnfd
assert spawnfd is not sf
use(spawnfd)
# A test may import a fresh copy for a while, and then restore the first modules.
pop_modules()
sys.modules.update(first)
use(sf)
"""


def test_second_import() -> None:
    assert run_script(AGAIN) == ""


INSTALLED = """
import asyncio, importlib, subprocess, sys
import spawnfd as sf

def places():
    execute = subprocess.Popen.__dict__["_execute_child"]
    return execute, asyncio.create_subprocess_exec, asyncio.subprocess.create_subprocess_shell

original = places()
sf.install()
if len(sys.argv) > 1:
    for name in sys.argv[1:]:
        importlib.reload(sys.modules[name])
else:
    for name in list(sys.modules):
        if name.split(".")[0] == "spawnfd":
            del sys.modules[name]
    import spawnfd._install
subprocess.run(["true"], check=True)
now, popen = sys.modules["spawnfd._install"], sys.modules["spawnfd._popen"]
now.install()
made = popen.stats().made
subprocess.run(["true"], check=True)
assert popen.stats().made == made + 1
now.uninstall()
assert places() == original
subprocess.run(["true"], check=True)
assert popen.stats().made == made + 1
"""


@pytest.mark.parametrize("names", [[], ["_popen"], ["_install"], ["_popen", "_install"]])
def test_second_import_while_installed(names: list[str]) -> None:
    assert run_script(INSTALLED, *(f"spawnfd.{name}" for name in names)) == ""


INTERPRETERS = """
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
import spawnfd as sf
code = '''
import os, sys
sys.path.append(%r)
try:
    import spawnfd
except ImportError:
    os.write(1, b"refused")
''' % sys.path[-1]
other = interpreters.create()
interpreters.run_string(other, code)
interpreters.destroy(other)
sf.run(["true"]).check()
"""


def test_subinterpreter_is_refused() -> None:
    assert run_script(INTERPRETERS) == "refused"


LAZY = """
import sys
unwanted = {"asyncio", "dataclasses", "inspect", "subprocess"} - set(sys.modules)
import spawnfd
print(unwanted & set(sys.modules))
"""


def test_import_does_not_import_slow_modules() -> None:
    assert run_script(LAZY) == "set()\n"


FIRST_USE = """
import sys
names = sys.argv[1:]
import spawnfd as sf
assert set(names) <= set(dir(sf))
values = [getattr(sf, name) for name in names]
from spawnfd import actions, asyncio, install, stats, Stats, subprocess, uninstall
assert values == [globals()[name] for name in names]
import spawnfd.actions, spawnfd.asyncio, spawnfd.subprocess
assert values == [getattr(spawnfd, name) for name in names]
try:
    sf.no_such_name
except AttributeError as error:
    print(error)
"""


def test_lazy_names_are_attributes_of_the_package() -> None:
    names = ["actions", "asyncio", "install", "stats", "Stats", "subprocess", "uninstall"]
    message = "module 'spawnfd' has no attribute 'no_such_name'\n"
    assert run_script(FIRST_USE, *names) == message


DEBUGGED = """
import _posixsubprocess, subprocess
calls = []
original = _posixsubprocess.fork_exec

def fork_exec(*args):
    calls.append(args)
    return original(*args)

def patch():
    _posixsubprocess.fork_exec = fork_exec
    if hasattr(subprocess, "_fork_exec"):
        subprocess._fork_exec = fork_exec

if sys.argv[1] == "before":
    patch()
import spawnfd as sf
if sys.argv[1] == "after":
    patch()
sf.install()
subprocess.run(["true"], check=True)
print(len(calls), dict(sf.stats().passed))
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_patched_fork_exec_is_called(when: str) -> None:
    assert run_script(DEBUGGED, when) == "1 {'patched': 1}\n"
