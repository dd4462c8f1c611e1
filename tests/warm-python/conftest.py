# SPDX-License-Identifier: MIT OR Apache-2.0
from __future__ import annotations

import subprocess
import zlib

import pytest
import starting
from comparing import ALL, ENV, differences, interpreters
from starting import Call, CannotPark, Parked, cold


@pytest.fixture(scope="session")
def shim(tmp_path_factory):
    return starting.build(tmp_path_factory.mktemp("shim"))


# The system's first.
INTERPRETERS = sorted(sum(interpreters().values(), []), key=lambda path: path[:4] != "/usr")
MODES = ["reserve", "fork"]


def pytest_collection_modifyitems(items):
    """The first interpreter does all in both modes, each of the others in one, by turns."""

    def is_its_turn(item):
        params = item.callspec.params if hasattr(item, "callspec") else {}
        if "same" not in params or params["python"] == INTERPRETERS[0]:
            return True
        name = item.nodeid.replace(f"-{params['same']}", "", 1)
        return params["same"] == MODES[zlib.crc32(name.encode()) % 2]

    items[:] = [item for item in items if ALL or is_its_turn(item)]


@pytest.fixture(scope="session", params=INTERPRETERS)
def python(request, tmp_path_factory):
    """A virtual environment of each interpreter: no .pth files of the machine's own."""
    directory = tmp_path_factory.mktemp("venv")
    subprocess.run(
        [request.param, "-m", "venv", "--without-pip", str(directory)], check=True, timeout=120
    )
    return str(directory / "bin" / "python")


@pytest.fixture(params=MODES)
def same(request, shim, python):
    """Asserts that a program started warm does as one started cold, and gives what it did."""

    def check(*words, flags=(), env=None, parked_env=None, preimport="", **options):
        env = ENV if env is None else env
        call = Call([python, *flags, *words], env=env, **options)
        try:
            parked = Parked(
                shim,
                python,
                [python, *flags],
                parked_env or env,
                fork=request.param == "fork",
                preimport=preimport,
            )
        except CannotPark as error:
            if "of 3.8" not in str(error):
                raise
            pytest.skip(str(error))
        with parked:
            warm = parked.run(call)
            if parked.fork:
                assert differences(warm, parked.run(call)) == []
        expected = cold(python, call)
        found = differences(expected, warm)
        assert not found, "\n" + "\n".join(map(str, found))
        return warm

    return check
