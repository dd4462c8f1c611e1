# SPDX-License-Identifier: MIT OR Apache-2.0
from __future__ import annotations

import subprocess

import pytest
import starting
from comparing import ENV, differences, interpreters
from starting import Call, CannotPark, Parked, cold


@pytest.fixture(scope="session")
def shim(tmp_path_factory):
    return starting.build(tmp_path_factory.mktemp("shim"))


@pytest.fixture(scope="session", params=interpreters())
def python(request, tmp_path_factory):
    """A virtual environment of each interpreter: no .pth files of the machine's own."""
    directory = tmp_path_factory.mktemp("venv")
    subprocess.run(
        [request.param, "-m", "venv", "--without-pip", str(directory)], check=True, timeout=120
    )
    return str(directory / "bin" / "python")


@pytest.fixture(params=["reserve", "fork"])
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
