# SPDX-License-Identifier: MIT OR Apache-2.0
from __future__ import annotations

import subprocess
import zlib

import pytest
from calls import Call, CannotPark, Parked, cold
from comparing import ENV, FULL, differences, interpreters

# The system's interpreter is the first.
INTERPRETERS = sorted(sum(interpreters().values(), []), key=lambda path: path[:4] != "/usr")
MODES = ["reserve", "fork"]


def pytest_collection_modifyitems(config, items):
    """Keeps, for each test, the first interpreter and one other, in one mode.

    A hash of the test's id chooses them.
    """

    def is_chosen(item):
        params = item.callspec.params if hasattr(item, "callspec") else {}
        if FULL or "same" not in params:
            return True
        others = [value for name, value in params.items() if name not in ("same", "python")]
        turn = zlib.crc32(repr((item.nodeid.partition("[")[0], others)).encode())
        chosen = {INTERPRETERS[0], ([*INTERPRETERS[1:], None])[turn % max(1, len(INTERPRETERS) - 1)]}
        return params["python"] in chosen and params["same"] == MODES[turn // 16 % len(MODES)]

    config.hook.pytest_deselected(items=[item for item in items if not is_chosen(item)])
    items[:] = [item for item in items if is_chosen(item)]


@pytest.fixture(scope="session", params=INTERPRETERS)
def python(request, tmp_path_factory):
    """Creates a virtual environment of each interpreter, without the machine's .pth files."""
    directory = tmp_path_factory.mktemp("venv")
    subprocess.run(
        [request.param, "-m", "venv", "--without-pip", str(directory)], check=True, timeout=120
    )
    return str(directory / "bin" / "python")


@pytest.fixture(params=MODES)
def same(request, python):
    """Runs a program cold and warm, asserts equal outcomes, and returns the warm result."""

    def check(*words, flags=(), env=None, parked_env=None, preimport=(), entry=None, **options):
        env = ENV if env is None else env
        call = Call([python, *flags, *words], env=env, **options)
        fork = request.param == "fork"
        try:
            parked = Parked([python, *flags], parked_env or env, fork=fork, preimport=preimport, entry=entry)
        except CannotPark as error:
            if "of 3.8" not in str(error):
                raise
            pytest.skip(str(error))
        with parked:
            warm = parked.run(call)
            if fork:
                assert differences(warm, parked.run(call)) == []
        expected = cold(call)
        found = differences(expected, warm)
        assert not found, "\n" + "\n".join(map(str, found))
        return warm

    return check
