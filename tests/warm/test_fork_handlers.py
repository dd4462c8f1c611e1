# SPDX-License-Identifier: MIT OR Apache-2.0
"""The handlers of pthread_atfork(3) that run when a parked process forks."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from calls import Call, Parked

# This library counts the runs of its fork handlers, in this process and its ancestors.
COUNTS = """
#include <pthread.h>
int count;
static void add(void) { count++; }
__attribute__((constructor)) static void begin(void) { pthread_atfork(add, add, add); }
"""
# This library belongs to the program. Its constructor runs before the program parks.
AHEAD = """
#include <dlfcn.h>
#include <stddef.h>
static int *kept;
__attribute__((constructor)) static void begin(void)
{
    void *before = KEEPS == 1 ? dlopen(COUNTS, RTLD_NOW) : NULL, *closed, *library;
    for (int i = 0; i < 100; i++) {
        if (!(closed = dlopen(CLOSED, RTLD_NOW))) return;
        dlclose(closed);
    }
    library = before ? before : dlopen(COUNTS, RTLD_NOW);
    kept = library ? dlsym(library, "count") : NULL;
}
int counted(void) { return kept ? *kept : -1; }
"""
PROGRAM = """
#include <stdio.h>
int counted(void);
int main(void) { printf("%d\\n", counted()); }
"""


def compile_c(made: Path, text: str, *flags: str) -> Path:
    source = made.with_suffix(".c")
    source.write_text(text)
    command = ["cc", "-o", str(made), str(source), *flags, "-ldl", "-pthread"]
    subprocess.run(command, check=True, timeout=60)
    return made


@pytest.mark.parametrize("keeps", ["a library loaded before", "a library loaded after"])
def test_forks_run_the_handlers_of_loaded_libraries_only(tmp_path: Path, keeps: str) -> None:
    """A library may get the addresses of another library that the program has closed before."""
    counts = compile_c(tmp_path / "counts.so", COUNTS, "-shared", "-fPIC")
    closed = compile_c(tmp_path / "closed.so", COUNTS, "-shared", "-fPIC")
    ahead = compile_c(
        tmp_path / "ahead.so",
        AHEAD,
        "-shared",
        "-fPIC",
        f'-DCOUNTS="{counts}"',
        f'-DCLOSED="{closed}"',
        f"-DKEEPS={int(keeps.endswith('before'))}",
    )
    program = compile_c(tmp_path / "program", PROGRAM, str(ahead))
    with Parked([str(program)], {}, fork=True) as parked:
        # Each fork runs one handler in the parked process before the fork, and one after it. A
        # handler adds 1 to a counter, which the child inherits. One handler runs in the child.
        found = [parked.run(Call([str(program)])) for _ in range(4)]
    assert [result.code for result in found] == [0] * 4
    assert [int(result.stdout) for result in found] == [2, 4, 6, 8]
