# SPDX-License-Identifier: MIT OR Apache-2.0
"""Files change after a program has loaded them and before its owner watches them.

The program changes the files itself while it starts, so the order of events is fixed.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
import spawnfd as sf
from patience import TIMEOUT_S
from warm_lines import ENVIRONMENT
from warm_programs import compiled
from warm_support import FILL_S, Mode, each_mode, parked

# The constructor of this library runs after ld.so has loaded it, and before the program parks.
LIBRARY = """
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
int version(void) { return VERSION; }
__attribute__((constructor)) static void change(void) { CHANGE }
"""
PROGRAM = """
#include <stdio.h>
int version(void);
int main(void) { printf("%d\\n", version()); return 0; }
"""
HWCAPS = "glibc-hwcaps/x86-64-v2"
# The keeper thread parks a program again if one of the program's files is younger than this. That
# would hide the race.
AGE_S = 0.1


def build(path: Path, version: int, change: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    flags = ("-shared", "-fPIC", "-Wl,-soname,libown.so", f"-DVERSION={version}")
    compiled(path, LIBRARY.replace("CHANGE", change), *flags)


def build_program(path: Path, library: Path, *searched: Path) -> None:
    rpath = ":".join(map(str, searched))
    compiled(path, PROGRAM, f"-L{library.parent}", "-lown", f"-Wl,-rpath,{rpath}")


def renames(*pairs: tuple[Path, Path]) -> str:
    """Returns C code for these renames. Each rename fails when it runs again."""
    return "".join(f'(void)rename("{old}", "{new}");' for old, new in pairs)


def warm_output(program: Path, mode: Mode) -> str:
    """Returns what the program prints when it is started warm."""
    time.sleep(AGE_S)
    with parked(str(program), mode, env=ENVIRONMENT) as warm:
        result = warm.run([program], env=ENVIRONMENT, timeout=TIMEOUT_S)
        assert result.started == mode
        return result.text


@each_mode
@pytest.mark.parametrize("was_there", [True, False], ids=["directory", "no-directory"])
def test_a_library_appears_in_a_directory_searched_first(
    was_there: bool, mode: Mode, tmp_path: Path
) -> None:
    first, second, new = (tmp_path / name for name in ("first", "second", "new"))
    program, library = tmp_path / "program", second / "libown.so"
    build(new / "libown.so", 1)
    if was_there:
        first.mkdir()
        pair = (new / "libown.so", first / "libown.so")
    else:
        pair = (new, first)
    build(library, 0, renames(pair))
    build_program(program, library, first, second)
    assert warm_output(program, mode) == "1\n"


@each_mode
@pytest.mark.parametrize("variant", [HWCAPS, "x86_64", "tls"])
def test_a_variant_for_this_processor_appears(variant: str, mode: Mode, tmp_path: Path) -> None:
    directory, new = tmp_path / "lib", tmp_path / "new"
    program, library = tmp_path / "program", directory / "libown.so"
    top = variant.partition("/")[0]
    build(new / variant / "libown.so", 1)
    build(library, 0, renames((new / top, directory / top)))
    build_program(program, library, directory)
    output = warm_output(program, mode)
    # The version of glibc and the processor decide which variants ld.so prefers.
    assert output == sf.run([program], env=ENVIRONMENT).text


@each_mode
@pytest.mark.parametrize("what", ["library", "directory", "directory above", "link"])
def test_a_library_is_replaced(what: str, mode: Mode, tmp_path: Path) -> None:
    """The new library, or a new directory or link of its path, is renamed into place."""
    lib = tmp_path / "app" / "lib"
    new = tmp_path / "new"
    program, library = tmp_path / "program", lib / "libown.so"
    aside = tmp_path / "aside"
    if what == "library":
        build(new / "libown.so", 1)
        change = renames((new / "libown.so", library))
    elif what == "directory":
        build(new / "libown.so", 1)
        change = f'if (!access("{new}", F_OK)) {{ {renames((lib, aside), (new, lib))} }}'
    elif what == "directory above":
        build(new / "lib" / "libown.so", 1)
        change = (
            f'if (!access("{new}", F_OK)) {{ {renames((lib.parent, aside), (new, lib.parent))} }}'
        )
    else:
        build(new / "libown.so", 1)
        link = tmp_path / "new-link"
        link.symlink_to(new)
        change = renames((link, lib))
    if what == "link":
        release = tmp_path / "release"
        build(release / "libown.so", 0, change)
        lib.parent.mkdir()
        lib.symlink_to(release)
    else:
        build(library, 0, change)
    build_program(program, library, lib)
    assert warm_output(program, mode) == "1\n"


@each_mode
def test_a_program_is_parked_again_once_its_library_is_whole(mode: Mode, tmp_path: Path) -> None:
    """An upgrade that writes in place leaves half a library for a while."""
    lib = tmp_path / "lib"
    program, library, new = tmp_path / "program", lib / "libown.so", tmp_path / "libown.so"
    build(library, 0)
    build(new, 1)
    build_program(program, library, lib)
    time.sleep(AGE_S)
    with parked(str(program), mode, env=ENVIRONMENT) as warm:
        half = tmp_path / "half"
        half.write_bytes(b"\x7fELF")
        half.replace(library)
        assert warm.run([program], env=ENVIRONMENT, timeout=TIMEOUT_S).code == 127
        # On a busy machine, the library parks the program again only if it is asked to.
        assert not warm.fill(FILL_S)
        assert list(warm.stats().cannot.values()) == ["not parked"]
        new.replace(library)
        assert warm.fill(FILL_S), warm.stats()
        result = warm.run([program], env=ENVIRONMENT, timeout=TIMEOUT_S)
        assert (result.text, result.started) == ("1\n", mode)


@each_mode
def test_a_program_from_a_busy_directory_is_parked(mode: Mode, tmp_path: Path) -> None:
    """Each start creates a file beside the library, under a name that does not matter."""
    directory = tmp_path / "lib"
    program, library = tmp_path / "program", directory / "libown.so"
    creates = (
        f'char name[4096]; snprintf(name, sizeof(name), "{directory}/%d", (int)getpid());'
        "(void)close(open(name, O_CREAT | O_WRONLY, 0600));"
    )
    build(library, 0, creates)
    build_program(program, library, directory)
    with parked(str(program), mode, env=ENVIRONMENT) as warm:
        assert warm.run([program], env=ENVIRONMENT, timeout=TIMEOUT_S).started == mode
        assert len(list(directory.iterdir())) > 1
        assert warm.stats().cold.keys() <= {"slow"}


# This module renames its own file once it has been imported.
RENAMES_ITSELF = """
import os
VERSION = 0
os.rename(__file__, __file__ + ".gone")
"""
IMPORTS_IT = """
try:
    from own_package.part import VERSION
except ImportError:
    VERSION = 1
"""


def of_module(directory: Path, mode: Mode, **variables: str) -> str:
    """Returns the version of `own_module`, which a warm Python imports before it parks."""
    env = {**ENVIRONMENT, "PYTHONPATH": str(directory), **variables}
    argv = [sys.executable, "-c", "import own_module; print(own_module.VERSION)"]
    time.sleep(AGE_S)
    with parked(sys.executable, mode, env=env, preimport=["own_module"]) as warm:
        result = warm.run(argv, env=env, timeout=TIMEOUT_S)
        assert (result.started, result.stderr) == (mode, b"")
        return result.text


@each_mode
def test_a_module_of_a_package_is_removed(mode: Mode, tmp_path: Path) -> None:
    package = tmp_path / "own_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "part.py").write_text(RENAMES_ITSELF, encoding="utf-8")
    (tmp_path / "own_module.py").write_text(IMPORTS_IT, encoding="utf-8")
    assert of_module(tmp_path, mode, PYTHONDONTWRITEBYTECODE="1") == "1\n"


@each_mode
def test_python_that_writes_bytecode_is_parked(mode: Mode, tmp_path: Path) -> None:
    """The first start creates the directory for bytecode beside the module."""
    (tmp_path / "own_module.py").write_text("VERSION = 0\n", encoding="utf-8")
    assert of_module(tmp_path, mode) == "0\n"
    assert list((tmp_path / "__pycache__").iterdir())
