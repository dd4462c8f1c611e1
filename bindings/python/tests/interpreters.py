# SPDX-License-Identifier: MIT OR Apache-2.0
"""Finds the CPython interpreters of this machine."""

from __future__ import annotations

import functools
import glob
import os
import shutil
import subprocess

import pytest


@functools.cache
def interpreter(version: str, *modules: str) -> str:
    """Returns the path of a CPython of this version that has these test modules.

    Skips the test if there is none. Looks for the system's interpreter, then pyenv's, then PATH.
    setup.sh installs the tests of Debian's interpreter.
    """
    root = os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv"))
    found = sorted(glob.glob(f"{root}/versions/{version}.*/bin/python{version}"), reverse=True)
    ours = shutil.which(f"python{version}", path="/usr/bin")
    for path in filter(None, [ours, *found, shutil.which(f"python{version}")]):
        check = [path, "-c", f"import {', '.join(('sys', *modules))}"]
        if subprocess.run(check, capture_output=True).returncode == 0:
            return path
    what = " with its own tests" if modules else ""
    pytest.skip(f"no CPython {version}{what}: Debian 12 has 3.11's only, PyPI none")
