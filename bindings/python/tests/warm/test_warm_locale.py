# SPDX-License-Identifier: MIT OR Apache-2.0
"""Locales loaded while parking: the program gets the same locale as one started cold."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import spawnfd as sf
from patience import TIMEOUT_S
from warm_programs import compiled
from warm_support import FILL_S, MODES, Mode, each_mode, in_mount_namespace, parked

# This program prints the locale before and after setlocale(), and some effects of it. It prints to
# stderr whether the locale was mapped before setlocale().
PROGRAM = r"""
#include <langinfo.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int main(void) {
    char line[4096];
    int loaded = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof(line), maps)) loaded |= strstr(line, "/LC_CTYPE") != 0;
    fclose(maps);
    printf("%s %s\n", setlocale(LC_ALL, 0), nl_langinfo(CODESET));
    const char *set = setlocale(LC_ALL, "");
    printf("%s %s %zu\n", set ? set : "none", nl_langinfo(CODESET), MB_CUR_MAX);
    printf("%d %s %s\n", mblen("\xc3\xa4", 2), nl_langinfo(YESEXPR), nl_langinfo(DAY_1));
    fprintf(stderr, "%d", loaded);
    return 0;
}
"""
PATH = {"PATH": "/usr/bin:/bin"}
UTF8 = PATH | {"LANG": "C.UTF-8"}
ENVIRONMENTS = {
    "none": PATH,
    "C": PATH | {"LC_ALL": "C"},
    "utf8": UTF8,
    "ctype": PATH | {"LC_CTYPE": "C.utf8"},
    "overruled": UTF8 | {"LC_ALL": "POSIX"},
    "absent": PATH | {"LANG": "no_SUCH.UTF-8"},
    "partly": UTF8 | {"LC_TIME": "no_SUCH"},
    "elsewhere": UTF8 | {"LOCPATH": "/nonexistent"},
    "here": UTF8 | {"LOCPATH": "."},
}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("program") / "program", PROGRAM)


@each_mode
@pytest.mark.parametrize("before", ENVIRONMENTS)
def test_locale_is_the_same_under_all_variables(program: Path, mode: Mode, before: str) -> None:
    with parked(str(program), mode, env=ENVIRONMENTS[before]) as warm:
        for env in ENVIRONMENTS.values():
            cold = sf.run([program], env=env, timeout=TIMEOUT_S)
            result = warm.run([program], env=env, timeout=TIMEOUT_S)
            assert warm.fill(FILL_S)
            assert (result.code, result.started) == (0, mode)
            assert (result.code, result.stdout) == (cold.code, cold.stdout)
            assert cold.stderr == b"0"
            assert result.stderr == (b"1" if before in ("utf8", "ctype", "partly") else b"0")


# This owner runs in a new mount namespace with a copy of the locales. One locale appears,
# disappears or is completed.
OWNER = """
import json, os, shutil, subprocess, sys
import spawnfd as sf
from warm_support import Warm
mode, program, kind, locales = sys.argv[1:]
system = "/usr/lib/locale"
shutil.copytree(system, locales)
subprocess.run(["mount", "--bind", locales, system], check=True)
env = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8" if kind == "removed" else "xx_YY.UTF-8"}
if kind == "completed":
    os.mkdir(locales + "/xx_YY.utf8")
found = []
with Warm(mode=mode, delay=0) as warm:
    warm.add(program, env=env)
    assert warm.fill(timeout=60)
    def both():
        cold, result = (run([program], env=env, timeout=60) for run in (sf.run, warm.run))
        found.append([cold.text, result.text, result.started])
        assert warm.fill(timeout=60)
    both()
    if kind == "removed":
        shutil.rmtree(locales + "/C.utf8")
    else:
        shutil.copytree(locales + "/C.utf8", locales + "/xx_YY.utf8", dirs_exist_ok=True)
    both()
    both()
print(json.dumps(found))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
@pytest.mark.parametrize("kind", ["removed", "added", "completed"])
@pytest.mark.parametrize("mode", MODES)
def test_changed_locale_is_noticed(mode: Mode, kind: str, program: Path, tmp_path: Path) -> None:
    before, changed, after = in_mount_namespace(
        OWNER, mode, str(program), kind, str(tmp_path / "locales")
    )
    assert before[2] == after[2] == mode
    assert all(cold == warm for cold, warm, _ in (before, changed, after))
    assert before[0] != after[0]
