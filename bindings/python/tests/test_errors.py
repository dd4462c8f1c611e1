# SPDX-License-Identifier: MIT OR Apache-2.0
"""The exceptions: what they are, and what they carry."""

from __future__ import annotations

import errno
import os
import pickle
from pathlib import Path

import pytest
import spawnfd as sf


def test_not_found() -> None:
    for argv in (["no-such-program"], ["/no/such/program"]):
        with pytest.raises(FileNotFoundError) as caught:
            sf.run(argv)
        error = caught.value
        assert isinstance(error, sf.SpawnError)
        assert (error.errno, error.stage, error.action) == (errno.ENOENT, "template", None)
        assert error.strerror == os.strerror(errno.ENOENT)
        assert error.filename == argv[0]
        assert str(error) == f"template: {error.call} = -1 ENOENT (No such file or directory)"


def test_not_allowed(tmp_path: Path) -> None:
    path = tmp_path / "plain"
    path.write_text("#!/bin/sh\n")
    with pytest.raises(PermissionError) as caught:
        sf.run([path])
    assert isinstance(caught.value, sf.SpawnError)
    assert caught.value.filename == str(path)
    with pytest.raises(PermissionError):
        sf.run([tmp_path])


def test_no_executable(tmp_path: Path) -> None:
    path = tmp_path / "noise"
    path.write_bytes(b"\0noise")
    path.chmod(0o755)
    with pytest.raises(sf.SpawnError) as caught:
        sf.run([path])
    assert (caught.value.errno, caught.value.stage) == (errno.ENOEXEC, "exec")


def test_relative_says_what_to_do() -> None:
    with pytest.raises(sf.SpawnError) as caught:
        sf.run(["bin/tool"])
    error = caught.value
    assert isinstance(error, ValueError)
    assert (error.errno, error.stage, error.filename) == (errno.EINVAL, "validate", "bin/tool")
    assert "os.path.abspath" in str(error)
    assert "os.path.join(cwd" in str(error)


def test_the_directory_is_the_file() -> None:
    with pytest.raises(FileNotFoundError) as caught:
        sf.run(["true"], cwd="/no/such")
    assert isinstance(caught.value, sf.SpawnError)
    assert (caught.value.stage, caught.value.filename) == ("cwd", "/no/such")


def test_too_long() -> None:
    with pytest.raises(sf.SpawnError) as caught:
        sf.run(["true", "x" * (1 << 20)])
    assert (caught.value.errno, caught.value.stage) == (errno.E2BIG, "exec")


def test_classes() -> None:
    assert issubclass(sf.SpawnError, OSError)
    assert issubclass(sf.StaleTemplate, sf.SpawnError)
    assert not issubclass(sf.ExitError, OSError)
    assert str(sf.SpawnError(2, "plain")) == "[Errno 2] plain"


def test_pickles() -> None:
    with pytest.raises(sf.SpawnError) as caught:
        sf.run(["true"], actions=[sf.actions.Chdir("/no")])
    copy = pickle.loads(pickle.dumps(caught.value))
    assert type(copy) is type(caught.value)
    assert (copy.errno, copy.stage, copy.action) == (errno.ENOENT, "action", 0)
    assert str(copy) == str(caught.value)
