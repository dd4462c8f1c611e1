# SPDX-License-Identifier: MIT OR Apache-2.0
"""Warm starts through each API: Template, TemplateCache, install(), names and paths."""

from __future__ import annotations

import asyncio
import copy
import gc
import os
import pickle
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import spawnfd as sf
from conftest import children, threads
from patience import eventually, in_background, in_threads
from spawnfd import _install
from warm_lines import ENVIRONMENT
from warm_support import (
    FILL_S,
    FOR_ANY,
    Mode,
    Warm,
    Way,
    each_mode,
    new_warm,
    require,
    retry_if_slow,
)

ECHO = ["-c", "echo $0 $1", "a", "b"]


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    sf.uninstall()


def until_gone(before: set[int]) -> bool:
    """Waits until the children are the same as before. Returns whether they are."""
    return eventually(lambda: children() == before)


def filled(warm: sf.Warm | None) -> sf.Warm:
    """Returns the Warm once all its processes are parked."""
    assert warm is not None
    assert warm.fill(FILL_S), warm.stats()
    return warm


def test_all_start_functions_start_warm() -> None:
    argv = ["/bin/sh", "-c", "exit 3"]

    async def run_job() -> sf.Result:
        async with filled(warm).start(argv) as job:
            return await job.result()

    def run_sync_job() -> sf.Result:
        with filled(warm).start_sync(argv) as job:
            return job.result()

    with Warm() as warm:
        warm.add("/bin/sh")
        ways: list[Callable[[], sf.Result]] = [
            lambda: filled(warm).run(argv),
            lambda: asyncio.run(run_job()),
            lambda: asyncio.run(filled(warm).run_async(argv)),
            run_sync_job,
        ]
        results = [retry_if_slow(warm, way) for way in ways]
        assert [(result.started, result.code) for result in results] == [("reserve", 3)] * 4
        with retry_if_slow(warm, lambda: filled(warm).spawn(argv)) as child:
            assert (child.started, child.wait()) == ("reserve", 3)
        seen = filled(warm).run(["/bin/sh", "-c", "stty size"], terminal=(3, 4))
        assert (seen.started, seen.text) == ("reserve", "3 4\r\n")


@each_mode
def test_template_creates_its_own_warm(mode: Mode) -> None:
    before = children()
    template = sf.Template("/bin/sh", warm=mode)
    filled(template.warm)
    result = retry_if_slow(template.warm, partial(template.run, ECHO))
    assert (result.started, result.stdout) == (mode, b"a b\n")
    assert template.spawn(["-c", "exit 3"]).wait() == 3
    assert asyncio.run(template.run_async(ECHO)).stdout == b"a b\n"
    assert copy.copy(template).warm is template.warm
    with pytest.raises(TypeError, match="pickled"):
        pickle.dumps(template)
    del template, result
    gc.collect()
    assert until_gone(before)


def test_template_creates_its_own_warm_with_options() -> None:
    require("/usr/bin/python3")
    template = sf.Template("/usr/bin/python3", warm={"depth": 1, "preimport": ["uuid"]})
    filled(template.warm)
    code = "import sys; print('uuid' in sys.modules)"
    result = retry_if_slow(template.warm, lambda: template.run(["-c", code]))
    assert (result.started, result.text) == ("reserve", "True\n")


def test_template_uses_a_given_warm() -> None:
    with Warm() as warm:
        warm.add("/bin/sh", depth=1)
        template = sf.Template("/bin/sh", warm=warm)
        assert filled(warm).stats().parked == 1, "the template added the program again"
        assert retry_if_slow(warm, lambda: template.run(ECHO)).started == "reserve"
        other = sf.Template("/bin/true", warm=warm)
        filled(warm)
        assert retry_if_slow(warm, other.run).started == "reserve"
        assert template.warm is warm
    # A template can be used after its Warm is closed.
    assert template.run(ECHO).started == "cold: closed"
    with pytest.raises(ValueError, match="closed"):
        sf.Template("/bin/sh", warm=warm)


def test_warm_of_a_call_overrides_the_templates() -> None:
    with Warm() as warm:
        warm.add("/bin/sh")
        template = sf.Template("/bin/sh", warm="fork")
        filled(warm)
        filled(template.warm)
        assert retry_if_slow(warm, lambda: template.run(ECHO, warm=warm)).started == "reserve"
        assert retry_if_slow(template.warm, lambda: template.run(ECHO)).started == "fork"


def test_execution_by_descriptor_starts_cold() -> None:
    template = sf.Template("/bin/sh", warm="reserve")
    assert template.by_descriptor().warm is None
    assert template.by_descriptor().run(ECHO).started == "clone"
    with Warm() as warm:
        assert template.by_descriptor().run(ECHO, warm=warm).started == "cold: descriptor"


def test_stale_template_is_an_error(tmp_path: Path) -> None:
    """A stale template does not use the processes that are parked for the new file."""
    tool = tmp_path / "tool"
    shutil.copy("/bin/sh", tool)
    with Warm() as warm:
        old = sf.Template(tool, warm=warm)
        filled(warm)
        assert retry_if_slow(warm, lambda: old.run(ECHO)).started == "reserve"
        shutil.copy("/bin/sh", tmp_path / "new")
        os.replace(tmp_path / "new", tool)
        new = sf.Template(tool, warm=warm)
        assert new.run(ECHO).stdout == b"a b\n"
        filled(warm)
        for _ in range(3):
            with pytest.raises(sf.StaleTemplate):
                old.run(ECHO)
        assert retry_if_slow(warm, lambda: new.run(ECHO)).started == "reserve"


@each_mode
def test_cache_parks_programs_and_follows_upgrades(mode: Mode, tmp_path: Path) -> None:
    """An upgrade causes one cold start."""
    tool = tmp_path / "tool"
    shutil.copy("/bin/sh", tool)
    cache = sf.TemplateCache(warm=mode)
    assert cache.run([tool, *ECHO]).started == "cold: not added"
    filled(cache.warm)
    assert retry_if_slow(cache.warm, lambda: cache.run([tool, *ECHO])).started == mode
    shutil.copy("/bin/bash", tmp_path / "new")
    os.replace(tmp_path / "new", tool)
    version = [tool, "-c", "echo ${BASH_VERSION:+bash}"]
    after = cache.run(version)
    assert (after.started[:6], after.stdout) == ("cold: ", b"bash\n")
    filled(cache.warm)
    again = retry_if_slow(cache.warm, lambda: cache.run(version))
    assert (again.started, again.stdout) == (mode, b"bash\n")
    filled(cache.warm)
    assert retry_if_slow(cache.warm, lambda: cache.get(tool).run(ECHO)).started == mode
    with pytest.raises(TypeError, match="pickled"):
        pickle.dumps(cache)


def test_cache_parks_as_many_programs_as_it_holds() -> None:
    programs = ["/bin/true", "/bin/sh", "/bin/cat"]
    with Warm() as warm:
        warm.add("/bin/ls", depth=1)
        cache = sf.TemplateCache(2, warm=warm)
        for program in programs:
            cache.run([program, "-c", ":"] if program == "/bin/sh" else [program])
        filled(warm)
        assert warm.stats().parked == 1 + 2 * 2
        for program in ["/bin/ls", "/bin/cat"]:
            run = partial(cache.run, [program])
            assert retry_if_slow(warm, run).started == "reserve"
        assert cache.run(["/bin/true"]).started == "cold: not added"


def test_keep_parks_a_program_with_its_options() -> None:
    """keep=N parks a program after its first start, with the options of that start."""
    require("/usr/bin/python3")
    with Warm(keep=4) as warm:
        for argv in (["-I", "-c", "print(1)"], ["-c", "print(1)"]):
            argv.insert(0, "/usr/bin/python3")
            assert warm.run(argv).started.startswith("cold: ")
            filled(warm)
            assert warm.run(argv).started == "reserve"
            filled(warm)
        # Only the interpreter knows which of these arguments are options.
        argv = ["/usr/bin/python3", "-X", "utf8", "-c", "print(1)"]
        assert [warm.run(argv).started for _ in range(2)] == ["cold: arguments"] * 2


def watched() -> set[int]:
    """Returns the inodes that this process watches with inotify."""
    lines: list[str] = []
    for info in Path("/proc/self/fdinfo").iterdir():
        with suppress(FileNotFoundError):
            lines += info.read_text().splitlines()
    return {int(line.split("ino:")[1].split()[0], 16) for line in lines if "inotify wd:" in line}


def test_replaced_kept_program_is_not_watched(tmp_path: Path) -> None:
    programs = [Path(shutil.copy("/bin/true", tmp_path / name)) for name in ("one", "other")]
    one, other = (program.stat().st_ino for program in programs)
    with Warm(keep=1) as warm:
        for program, expected in zip(programs, (one, other), strict=True):
            assert warm.run([str(program)]).started == "cold: not added"
            filled(warm)
            assert watched() & {one, other} == {expected}


LOOK_FOR = """
import sys
wanted = sys.argv[1].encode() + sys.argv[2].encode()
found = 0
with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as memory:
    for line in maps:
        where, rights = line.split()[:2]
        if rights.startswith("rw"):
            start, end = (int(number, 16) for number in where.split("-"))
            memory.seek(start)
            found += memory.read(end - start).count(wanted) - (wanted in line.encode())
print(found > 1)  # `wanted` itself is found once
"""


def test_kept_program_has_no_variables_of_its_first_start() -> None:
    """A program added with add() has the variables that add() got."""
    require("/usr/bin/python3")
    secret, path = "a-long-and-rare-word", "/usr/bin:/bin"
    argv = ["/usr/bin/python3", "-c", LOOK_FOR, secret[:9], secret[9:]]
    with Warm(keep=1) as kept, Warm() as added:
        kept.run(argv, env={"PATH": path, "TOKEN": f"{secret} {secret}"})
        added.add(argv[0], env={"PATH": path, "TOKEN": f"{secret} {secret}"})
        for warm, expected in ((kept, "False\n"), (added, "True\n")):
            filled(warm)
            result = warm.run(argv, env={"PATH": path})
            assert (result.started, result.text) == ("reserve", expected)


def test_warm_without_programs_has_no_thread() -> None:
    assert eventually(lambda: "spawnfd-warm" not in threads()), "a thread of another test"
    with Warm() as warm:
        assert warm.run(["/bin/true"]).started == "cold: not added"
        assert "spawnfd-warm" not in threads()


def counted() -> tuple[int, int, dict[str, int]]:
    stats = sf.stats()
    return stats.made, stats.warm, dict(stats.cold)


def gained(warm: sf.Warm, calls: Callable[[], object]) -> tuple[int, int, dict[str, int]]:
    """Returns how much the counters grow by the calls.

    Everything is parked before the calls, and slow attempts are repeated.
    """
    for _ in range(20):
        filled(warm)
        made, started, cold = counted()
        calls()
        now = counted()
        more = {why: count - cold.get(why, 0) for why, count in now[2].items()}
        more = {why: count for why, count in more.items() if count}
        if "slow" not in more:
            return now[0] - made, now[1] - started, more
    raise AssertionError(f"always too slow: {warm.stats()}")


def start_by_both(program: str = "sh") -> None:
    """Starts a program by subprocess, and one by asyncio."""
    assert subprocess.check_output([program, *ECHO]) == b"a b\n"

    async def main() -> None:
        process = await asyncio.create_subprocess_exec(
            program, "-c", "cat; exit 3", stdin=-1, stdout=-1
        )
        assert await process.communicate(b"data") == (b"data", None)
        assert process.returncode == 3

    asyncio.run(main())


def test_installed_with_a_warm() -> None:
    with Warm() as warm:
        warm.add("sh", depth=2)
        sf.install(warm=warm)
        assert gained(warm, start_by_both) == (2, 2, {})
        # A second install() without arguments keeps the Warm.
        sf.install()
        assert gained(warm, start_by_both) == (2, 2, {})
        true = partial(subprocess.run, ["/bin/true"], check=True)
        assert gained(warm, true) == (1, 0, {"not added": 1})
        sf.uninstall()
        assert not warm.closed
        assert gained(warm, start_by_both) == (0, 0, {})
        sf.install()
        assert gained(warm, start_by_both) == (2, 0, {})
    with pytest.raises(ValueError, match="closed"):
        sf.install(warm=warm)


@pytest.mark.parametrize("way", FOR_ANY)
def test_installed_with_a_warm_for_any_program(way: Way) -> None:
    with new_warm(way) as warm:
        warm.add_any(depth=2)
        sf.install(warm=warm)
        assert gained(warm, start_by_both) == (2, 2, {})


@each_mode
def test_installed_with_a_mode(mode: Mode) -> None:
    before = children()
    sf.install(warm=mode)
    _, started, _ = counted()
    start_by_both()
    deadline = time.monotonic() + FILL_S
    while counted()[1] == started and time.monotonic() < deadline:
        # These starts keep the machine busy. Mode reserve then parks only for fill().
        cast(sf.Warm, _install._own_warm).fill(FILL_S)
        start_by_both()
    assert counted()[1] > started
    sf.uninstall()
    sf.uninstall()
    assert until_gone(before)
    _, started, cold = counted()
    sf.install()
    start_by_both()
    assert counted()[1:] == (started, cold)


def test_install_replaces_the_warm() -> None:
    before = children()
    sf.install(warm="reserve")
    start_by_both()
    with Warm() as warm:
        sf.install(warm=warm)
        assert until_gone(before), "install() did not close the Warm that it had created"
        sf.install(warm="fork")
        assert not warm.closed
        # The Warm is still usable, because install() did not create it.
        sf.install(warm=warm)
    start_by_both()
    wrong: Any
    for wrong in ("forks", 3, warm):
        with pytest.raises((TypeError, ValueError), match="warm"):
            sf.install(warm=wrong)


def test_installed_in_a_fork() -> None:
    with Warm() as warm:
        warm.add("sh")
        filled(warm)
        sf.install(warm=warm)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                _, started, cold = counted()
                start_by_both()
                code = 0 if counted()[1] == started and counted()[2] != cold else 2
                sf.uninstall()
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert gained(warm, start_by_both) == (2, 2, {})


def test_threads_install_and_uninstall_during_spawns() -> None:
    done = threading.Event()

    def switch() -> None:
        while not done.is_set():
            sf.install(warm="reserve")
            time.sleep(0.01)
            sf.uninstall()

    def spawn() -> None:
        for _ in range(30):
            assert subprocess.check_output(["sh", *ECHO]) == b"a b\n"

    with in_background(switch):
        try:
            in_threads(*[spawn] * 3)
        finally:
            done.set()


def test_counters_can_be_pickled() -> None:
    sf.install(warm="reserve")
    subprocess.run(["/bin/true"], check=True)
    stats = sf.stats()
    assert pickle.loads(pickle.dumps(stats)) == stats


def test_relative_path_is_resolved_by_add(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later chdir() does not change the meaning of an added path."""
    (tmp_path / "bin").mkdir()
    shutil.copy("/bin/sh", tmp_path / "bin" / "tool")
    monkeypatch.chdir(tmp_path)
    with Warm() as warm:
        warm.add("bin/tool")
        monkeypatch.chdir("/")
        filled(warm)
        assert warm.run([tmp_path / "bin" / "tool", *ECHO]).started == "reserve"
        with pytest.raises(FileNotFoundError):
            warm.add("./bin/tool")


@each_mode
def test_python_of_a_venv(mode: Mode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter is added by its path, and started by a name that PATH finds."""
    require("/usr/bin/python3")
    make = ["/usr/bin/python3", "-m", "venv", "--without-pip", tmp_path / ".venv"]
    made = subprocess.run(make, capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"no venv: {made.stdout}{made.stderr}")
    monkeypatch.chdir(tmp_path)
    code = "import sys; print(sys.executable, sys.prefix, sys.orig_argv, sys.argv, sys.flags)"
    env = {**ENVIRONMENT, "PATH": f"{tmp_path}/.venv/bin:/usr/bin:/bin"}
    with Warm(mode=mode) as warm:
        warm.add(".venv/bin/python", depth=1, env=env)
        filled(warm)
        for program in ("python", f"{tmp_path}/.venv/bin/python"):
            argv = [program, "-c", code, "x"]
            cold, warmed = sf.run(argv, env=env), warm.run(argv, env=env)
            assert str(tmp_path) in cold.text
            assert (warmed.started, warmed.text) == (mode, cold.text), warmed
            filled(warm)
        # With this arg0 the interpreter searches its prefix in another directory.
        nowhere = f"{tmp_path}/bin/python"
        cold, other = (run(argv, env=env, arg0=nowhere) for run in (sf.run, warm.run))
        assert (other.started, other.text) == ("cold: arguments", cold.text)


@pytest.mark.parametrize("name", ["memory", "processes", "keep", "idle", "delay"])
def test_wrong_options_are_refused(name: str) -> None:
    wrong: Any
    for wrong in (-1, "x", 1.5j):
        with pytest.raises((TypeError, ValueError), match=name):
            sf.Warm(**{name: wrong})


def test_wrong_arguments_of_add_are_refused(tmp_path: Path) -> None:
    wrong: Any
    with Warm() as warm:
        for wrong in (-1, "x", 1 << 70, True):
            with pytest.raises((TypeError, ValueError), match="depth"):
                warm.add("/bin/true", depth=wrong)
            with pytest.raises((TypeError, ValueError), match="depth"):
                warm.add_any(depth=wrong)
            with pytest.raises((TypeError, ValueError), match=r'mode: .*"auto", (not|got)'):
                warm.add("/bin/true", mode=wrong)
        with pytest.raises(ValueError, match="program: must not be empty"):
            warm.add("")
        with pytest.raises(TypeError, match="no_new_privs"):
            warm.add("/bin/true", no_new_privs=cast(Any, 3))
        with pytest.raises(ValueError, match=r"cwd: .*sandbox"):
            warm.add("/bin/true", cwd=tmp_path)
        with pytest.raises(sf.SpawnError, match="modules"):
            warm.add("/bin/true", preimport=["json"])
        assert filled(warm).stats().parked == 0
    for add in (partial(warm.add, "/bin/true"), warm.add_any):
        with pytest.raises(ValueError, match="closed"):
            add()
