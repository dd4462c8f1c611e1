# SPDX-License-Identifier: MIT OR Apache-2.0
"""install() and uninstall(): unmodified code starts its programs by spawnfd."""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
import warnings
from asyncio import unix_events
from collections.abc import Iterator
from subprocess import Popen, check_output
from typing import Any

import pytest
import spawnfd as sf
from patience import in_background, in_threads
from subprocess_support import run_script

LOOP: Any = unix_events._UnixSelectorEventLoop  # type: ignore[attr-defined]
POPEN: Any = getattr(os, "popen")  # noqa: B009 # deprecated softly


def places() -> list[Any]:
    """Returns the attributes that install() replaces, and others that must stay."""
    return [
        Popen.__dict__["_execute_child"],
        Popen.__dict__["_try_wait"],
        Popen.__dict__["_internal_poll"],
        LOOP.__dict__["_make_subprocess_transport"],
        asyncio.create_subprocess_exec,
        asyncio.create_subprocess_shell,
        asyncio.subprocess.create_subprocess_exec,
        asyncio.subprocess.create_subprocess_shell,
        subprocess.Popen,
        subprocess.run,
        POPEN,
    ]


ORIGINAL = places()


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    sf.uninstall()
    assert places() == ORIGINAL


class Derived(Popen[str]):
    """A subclass defined before install()."""


def made_by(start: Any) -> int:
    """Returns how many programs spawnfd starts during a call."""
    before = sf.stats().made
    start()
    return sf.stats().made - before


STARTS = [
    lambda: subprocess.run(["true"], check=True),
    lambda: check_output(["true"]),
    lambda: Popen(["true"]).wait(),
    lambda: Derived(["true"]).wait(),
    lambda: subprocess.getoutput("true"),
    lambda: POPEN("true").close(),
]


@pytest.mark.parametrize("start", STARTS)
def test_install_and_uninstall_are_idempotent(start: Any) -> None:
    assert made_by(start) == 0
    sf.install()
    sf.install()
    assert made_by(start) == 1
    sf.uninstall()
    assert places() == ORIGINAL
    assert made_by(start) == 0
    sf.uninstall()
    assert places() == ORIGINAL
    sf.install()
    assert made_by(start) == 1


def test_classes_and_functions_keep_their_identity() -> None:
    sf.install()
    assert subprocess.Popen is Popen
    assert subprocess.run is ORIGINAL[9]
    with sf.subprocess.Popen(["true"]) as process:
        assert isinstance(process, Popen)
    with pytest.raises(FileNotFoundError) as caught:
        subprocess.run(["/nonexistent/program"])
    assert type(caught.value) is FileNotFoundError
    assert caught.value.filename == "/nonexistent/program"


def test_installed_and_module_calls_count_once() -> None:
    sf.install()
    before = sf.stats()
    sf.subprocess.call(["true"])
    sf.subprocess.call(["true"], preexec_fn=lambda: None)
    subprocess.call(["true"], preexec_fn=lambda: None)
    after = sf.stats()
    assert after.made - before.made == 1
    assert after.passed["preexec_fn"] - before.passed.get("preexec_fn", 0) == 2


def test_wrapped_execute_child_is_kept() -> None:
    sf.install()
    inner: Any = Popen._execute_child  # type: ignore[attr-defined]
    calls: list[Any] = []

    def wrapper(self: Any, *args: Any) -> None:
        calls.append(args)
        inner(self, *args)

    try:
        Popen._execute_child = wrapper  # type: ignore[attr-defined]
        assert made_by(STARTS[0]) == 1
        sf.uninstall()
        assert Popen.__dict__["_execute_child"] is wrapper
        assert made_by(STARTS[0]) == 0
        sf.install()
        assert Popen.__dict__["_execute_child"] is wrapper
        assert made_by(STARTS[0]) == 1
        assert len(calls) == 3
    finally:
        Popen._execute_child = ORIGINAL[0]  # type: ignore[attr-defined]


def test_threads_install_during_spawns() -> None:
    done = threading.Event()

    def switch() -> None:
        while not done.is_set():
            sf.install()
            sf.uninstall()

    def spawn() -> None:
        for _ in range(40):
            assert check_output(["echo", "x"]) == b"x\n"

    with in_background(switch, switch):
        try:
            in_threads(*[spawn] * 4)
        finally:
            done.set()


def test_asyncio() -> None:
    create_exec = asyncio.create_subprocess_exec

    async def main() -> None:
        for create in (create_exec, asyncio.create_subprocess_exec):
            process = await create("cat", stdin=-1, stdout=-1)
            assert await process.communicate(b"data") == (b"data", None)
            assert process.returncode == 0
            assert not any("waitpid" in thread.name for thread in threading.enumerate())
        process = await asyncio.create_subprocess_shell("exit 3")
        assert await process.wait() == 3
        loop = asyncio.get_running_loop()
        transport, _ = await loop.subprocess_exec(asyncio.SubprocessProtocol, "true")
        assert isinstance(transport.get_extra_info("subprocess"), Popen)
        await transport._wait()  # type: ignore[attr-defined]
        transport.close()

    sf.install()
    assert made_by(lambda: asyncio.run(main())) == 4


def test_warning_registry_is_not_reset() -> None:
    """A start may reset the registry only if asyncio's own start does, as in 3.12 and 3.13."""

    async def main() -> None:
        for _ in range(3):
            warnings.warn_explicit("once", UserWarning, "place", 1, registry=registry)
            # Searching PATH for a plain name imports code that resets the registry.
            process = await asyncio.create_subprocess_exec("/bin/true")
            assert await process.wait() == 0

    seen: list[int] = []
    for place in (sf.uninstall, sf.install):
        place()
        registry: dict[Any, Any] = {}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            asyncio.run(main())
        seen.append(len([each for each in caught if each.category is UserWarning]))
    assert seen[0] == seen[1]


@pytest.mark.skipif(not hasattr(asyncio, "SafeChildWatcher"), reason="3.14 removed child watchers")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_custom_child_watcher_is_used() -> None:
    seen: list[int] = []

    class Watcher(asyncio.SafeChildWatcher):
        def add_child_handler(self, pid: int, callback: Any, *args: Any) -> None:
            seen.append(pid)
            super().add_child_handler(pid, callback, *args)

    async def main() -> int:
        watcher.attach_loop(asyncio.get_running_loop())
        process = await asyncio.create_subprocess_exec("true")
        assert seen == [process.pid]
        return await process.wait()

    watcher = Watcher()
    set_child_watcher: Any = getattr(asyncio, "set_child_watcher")  # noqa: B009 # deprecated
    set_child_watcher(watcher)
    try:
        sf.install()
        assert made_by(lambda: asyncio.run(main())) == 1
    finally:
        set_child_watcher(None)
        watcher.close()


def test_subclasses_installed_before_the_import() -> None:
    """eventlet replaces the classes by derived classes."""
    code = """
        import subprocess
        from asyncio import unix_events
        class Other(subprocess.Popen): pass
        class Loop(unix_events._UnixSelectorEventLoop): pass
        subprocess.Popen, unix_events._UnixSelectorEventLoop = Other, Loop
        import spawnfd as sf
        sf.install()
        assert isinstance(subprocess.run(["true"]), subprocess.CompletedProcess)
        assert type(Other(["true"])).wait is Other.wait
        assert sf.stats().made == 2
        sf.uninstall()
        subprocess.run(["true"])
        assert sf.stats().made == 2
    """
    run_script(code, start="")


def test_popen_mocked_during_the_import() -> None:
    """unittest.mock and pytest-subprocess replace Popen for a while."""
    code = """
        import subprocess
        from unittest import mock
        with mock.patch("subprocess.Popen"):
            import spawnfd as sf
            import spawnfd.subprocess
        assert sf.subprocess.call(["true"]) == 0
        sf.install()
        subprocess.run(["true"])
        assert sf.stats().made == 2
    """
    run_script(code, start="")


def test_popen_class_collected_before_the_import() -> None:
    code = """
        import gc, subprocess
        subprocess.Popen = lambda *args, **options: None
        gc.collect()
        import spawnfd as sf
        import spawnfd.subprocess
        sf.install()
        sf.uninstall()
        assert sf.run(["true"]).ok
    """
    run_script(code, start="")
