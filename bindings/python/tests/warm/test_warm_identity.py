# SPDX-License-Identifier: MIT OR Apache-2.0
"""The files that an interpreter loads at start-up change: the next start uses the new files."""

from __future__ import annotations

import encodings
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import spawnfd as sf
from warm_lines import ENVIRONMENT
from warm_support import FILL_S, Mode, each_mode, new_warm, write_files

LIB = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
SITE, USER = f"venv/{LIB}", f"home/.local/{LIB}"
# This program prints everything that the changes below affect.
CODE = """
import colorsys, encodings, json, own, sys
files = [module.__file__ for module in (colorsys, encodings, json)]
print(sys.path, sys.prefix, sys.flags.no_user_site, files, own.PART, getattr(sys, "marker", None))
"""
SETS_MARKER = "import sys; sys.marker = 1\n"
CONFIG = f"home = {os.path.dirname(os.path.realpath(sys.executable))}\n"
FILES = {
    "venv/pyvenv.cfg": CONFIG + "include-system-site-packages = true\n",
    f"{SITE}/a.pth": "/usr/share\n",
    f"{USER}/kept.txt": "",
    "modules/own/__init__.py": "from own.part import PART\n",
    "modules/own/part.py": "PART = 1\n",
}


def write(name: str, text: str) -> Callable[[Path], None]:
    return lambda root: write_files(root, {name: text})


def remove(name: str) -> Callable[[Path], None]:
    return lambda root: (root / name).unlink()


def replace_modules(root: Path) -> None:
    """Replaces the directory of modules by rename, as a deployment does."""
    shutil.copytree(root / "modules", root / "new")
    write_files(root, {"new/own/part.py": "PART = 2\n"})
    (root / "modules").rename(root / "old")
    (root / "new").rename(root / "modules")


def shadow_encodings(root: Path) -> None:
    """`encodings` is the only start-up module that every version searches in directories."""
    shutil.copytree(Path(encodings.__file__).parent, root / "modules/encodings")


CHANGES: dict[str, Callable[[Path], None]] = {
    "a .pth file appears": write(f"{SITE}/b.pth", SETS_MARKER),
    "a .pth file of the user appears": write(f"{USER}/b.pth", SETS_MARKER),
    "a .pth file changes": write(f"{SITE}/a.pth", "/usr/lib\n"),
    "a .pth file is removed": remove(f"{SITE}/a.pth"),
    "pyvenv.cfg changes": write(
        "venv/pyvenv.cfg", CONFIG + "include-system-site-packages = false\n"
    ),
    "pyvenv.cfg is removed": remove("venv/pyvenv.cfg"),
    "sitecustomize appears": write("modules/sitecustomize/__init__.py", SETS_MARKER),
    "sitecustomize appears with its directory": write("later/sitecustomize.py", SETS_MARKER),
    "usercustomize appears": write(f"{USER}/usercustomize.py", SETS_MARKER),
    "a module is shadowed": write("modules/colorsys.py", ""),
    "a start-up module is shadowed": shadow_encodings,
    "a preimported module is shadowed": write("modules/json.py", ""),
    "a preimported module changes": write("modules/own/part.py", "PART = 2\n"),
    "a directory of modules is replaced": replace_modules,
}


@each_mode
@pytest.mark.parametrize("change", CHANGES)
def test_changed_start_up_file_starts_cold_once(change: str, mode: Mode, tmp_path: Path) -> None:
    write_files(tmp_path, FILES)
    python = tmp_path / "venv/bin/python"
    python.parent.mkdir()
    python.symlink_to(os.path.realpath(sys.executable))
    env = ENVIRONMENT | {
        "HOME": f"{tmp_path}/home",
        "PYTHONPATH": f"{tmp_path}/modules:{tmp_path}/later",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    argv = [str(python), "-c", CODE]

    def outcome(result: sf.Result) -> tuple[int | None, str, bytes]:
        return result.code, result.text, result.stderr

    # Because of the delay, the keeper thread does not park anew before the start that finds the
    # change.
    with new_warm(mode, delay=600) as warm:
        warm.add(str(python), depth=2, env=env, preimport=["json", "own"])
        assert warm.fill(timeout=FILL_S), warm.stats()
        before = warm.run(argv, env=env)
        assert (before.code, before.started) == (0, mode)
        CHANGES[change](tmp_path)
        found = warm.run(argv, env=env)
        assert found.started == "cold: stale"
        cold = outcome(sf.run(argv, env=env))
        assert outcome(found) == cold
        assert cold != outcome(before)
        assert warm.fill(timeout=FILL_S), warm.stats()
        again = warm.run(argv, env=env)
        assert again.started == mode
        assert outcome(again) == cold
