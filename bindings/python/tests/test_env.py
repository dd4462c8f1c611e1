# SPDX-License-Identifier: MIT OR Apache-2.0
"""Env, and mappings as `env=`."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest
import spawnfd as sf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


def seen(env: Any) -> dict[str, str]:
    """The environment that a program receives."""
    output = sf.run(["/usr/bin/env", "-0"], env=env).check().stdout
    pairs = (line.partition(b"=") for line in output.split(b"\0")[:-1])
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def test_inherits_the_current_environ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPAWNFD_TEST", "one")
    assert seen(None)["SPAWNFD_TEST"] == "one"
    # C libraries such as readline may have set further variables.
    assert seen(None).items() >= os.environ.items()
    env = sf.Env.inherit()
    monkeypatch.setenv("SPAWNFD_TEST", "two")
    assert seen(None)["SPAWNFD_TEST"] == "two"
    assert seen(env)["SPAWNFD_TEST"] == "one"
    monkeypatch.delenv("SPAWNFD_TEST")
    assert "SPAWNFD_TEST" not in seen(None)


# This host process has the same name twice in its environ. Only execve() can produce that.
TWICE = """
import ctypes, sys
argv = (ctypes.c_char_p * 4)(sys.executable.encode(), b"-c", sys.argv[1].encode(), None)
environ = (ctypes.c_char_p * 3)(b"X=first", b"X=second", None)
ctypes.CDLL(None).execve(argv[0], argv, environ)
"""


def test_duplicate_name_uses_the_first_value() -> None:
    ask = """
import os, spawnfd as sf
env = sf.Env.inherit()
assert os.environ["X"] == "first"
found = sf.run(["/usr/bin/env"], env=env).check().stdout.split()
print(env.get("X"), [variable for variable in found if variable.startswith(b"X=")])
"""
    ask = f"import sys\nsys.path[:] = {sys.path!r}\n{ask}"
    result = sf.run([sys.executable, "-c", TWICE, ask]).check()
    assert result.stdout == b"first [b'X=first']\n"


def test_deny_is_an_argument_of_inherit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_TOKEN", "secret")
    denied = seen(sf.Env.inherit(deny=["*_TOKEN", "*_KEY"]))
    assert "API_TOKEN" not in denied
    assert "PATH" in denied


def test_changes_return_a_new_env() -> None:
    first = sf.Env.empty().set("A", "1")
    second = first.set("B", b"\xff").update({"C": "3", b"D": "4"}).unset("A", "Z")
    assert seen(first) == {"A": "1"}
    assert seen(second) == {"B": "\udcff", "C": "3", "D": "4"}


def test_reads_as_a_mapping() -> None:
    env = sf.Env.empty().update({"B": "2", "A": "1"})
    assert (env["A"], env.get("B"), env.get("C"), env.get("C", "x")) == ("1", "2", None, "x")
    assert ("A" in env, "C" in env, 3 in env, len(env)) == (True, False, False, 2)
    assert (list(env), env.keys(), env.values()) == (["A", "B"], ["A", "B"], ["1", "2"])
    assert dict(env.items()) == dict(env) == {"A": "1", "B": "2"}
    assert env == sf.Env.empty().set("A", "1").set("B", "2")
    assert env != sf.Env.empty()
    with pytest.raises(KeyError, match="C"):
        env["C"]
    with pytest.raises(TypeError):
        hash(env)


def test_shows_no_values() -> None:
    env = sf.Env.empty().set("TOKEN", "secret")
    assert "TOKEN" in repr(env)
    assert "secret" not in repr(env)


def test_wrong_types() -> None:
    with pytest.raises(TypeError, match="variables"):
        sf.Env.empty().update([("A", "1")])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="deny"):
        sf.Env.inherit(deny="*_KEY")  # type: ignore[arg-type]


names = st.binary(min_size=1, max_size=10).filter(lambda raw: not {0, ord("=")} & set(raw))
values = st.binary(max_size=20).filter(lambda raw: 0 not in raw)


# There is no deadline, because generating examples takes long on a slow machine.
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(names, values, max_size=5))
def test_variables_arrive(variables: dict[bytes, bytes]) -> None:
    decoded = {os.fsdecode(name): os.fsdecode(value) for name, value in variables.items()}
    assert seen(variables) == decoded
    assert seen(decoded) == decoded
    assert dict(sf.Env.empty().update(variables).items()) == decoded
