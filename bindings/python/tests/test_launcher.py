# SPDX-License-Identifier: MIT OR Apache-2.0
"""The thread launcher: where it is used, and where it is not."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import threading
from collections.abc import Iterator

import pytest
import spawnfd as sf
from conftest import threads
from patience import eventually


@pytest.fixture
def launcher() -> Iterator[sf.LauncherThread]:
    with sf.LauncherThread() as launcher:
        yield launcher


def test_every_start_takes_it(launcher: sf.LauncherThread) -> None:
    assert sf.run(["echo", "x"], launcher=launcher).started == "thread"
    assert asyncio.run(sf.run_async(["true"], launcher=launcher)).started == "thread"
    with sf.spawn(["true"], launcher=launcher) as child:
        assert child.started == "thread"
    with sf.start_sync(["cat"], stdin="stream", launcher=launcher) as job:
        job.write("text")
        job.close_stdin()
        assert (job.result().started, job.result().text) == ("thread", "text")

    async def held() -> sf.Result:
        async with sf.start(["true"], launcher=launcher) as job:
            return await job.result()

    assert asyncio.run(held()).started == "thread"
    template = sf.Template("true")
    with template.spawn(launcher=launcher) as child:
        assert child.started == "thread"
    assert template.run(launcher=launcher).started == "thread"
    assert sf.TemplateCache().run(["true"], launcher=launcher).started == "thread"
    assert launcher.stats() == (8, {})
    assert sf.run(["true"]).started == "clone"
    with sf.spawn(["true"]) as child:
        assert child.started == "clone"


def test_what_the_program_is_given(launcher: sf.LauncherThread, tmp_path: os.PathLike[str]) -> None:
    result = sf.run(
        ["sh", "-c", "pwd; cat; echo $A; exit 3"],
        cwd=tmp_path,
        input="in ",
        env={"A": "b", "PATH": os.defpath},
        launcher=launcher,
    )
    assert (result.started, result.text, result.code) == ("thread", f"{tmp_path}\nin b\n", 3)
    with pytest.raises(FileNotFoundError) as caught:
        sf.run(["true"], actions=[sf.actions.Chdir("/nowhere")], launcher=launcher)
    assert isinstance(caught.value, sf.SpawnError)
    assert (caught.value.stage, caught.value.action) == ("action", 0)


def no_new_privs() -> None:
    PR_SET_NO_NEW_PRIVS = 38
    assert ctypes.CDLL(None).prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0


def other_directory() -> None:
    if ctypes.CDLL(None, use_errno=True).unshare(0x200) != 0:  # CLONE_FS
        raise OSError(ctypes.get_errno(), "unshare(CLONE_FS)")
    os.chdir("/")


def nicer() -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), os.nice(0) + 1)


@pytest.mark.parametrize("change", [no_new_privs, other_directory, nicer])
def test_a_thread_that_is_another(launcher: sf.LauncherThread, change: object) -> None:
    told: list[sf.Result] = []
    refused: list[OSError] = []

    def other() -> None:
        assert callable(change)
        try:
            change()
        except OSError as error:
            refused.append(error)
            return
        told.append(sf.run(["grep", "NoNewPrivs", "/proc/self/status"], launcher=launcher))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    if refused:
        pytest.skip(f"this thread cannot be another: {refused[0]}")
    assert told[0].ok
    assert told[0].started == "clone"
    assert told[0].text.split() == ["NoNewPrivs:", str(int(change is no_new_privs))]
    assert launcher.stats().spawned == 0
    assert sum(launcher.stats().fell_back.values()) == 1
    assert sf.run(["true"], launcher=launcher).started == "thread"


def test_what_only_the_calling_thread_can_give(launcher: sf.LauncherThread) -> None:
    actions = [sf.actions.ParentDeathSignal(9)]
    assert sf.run(["true"], actions=actions, launcher=launcher).started == "clone"
    assert launcher.stats() == (0, {"parent-death signal": 1})


def test_closed(launcher: sf.LauncherThread) -> None:
    def left() -> int:
        return threads().count("spawnfd-launch")

    assert left() >= 1
    assert "0 started" in repr(launcher)
    with sf.spawn(["cat"], stdin="pipe", launcher=launcher) as child:
        launcher.close()
        assert eventually(lambda: left() == 0)
        launcher.close()
        assert (launcher.closed, launcher.stats()) == (True, (1, {}))
        assert child.poll() is None
    with pytest.raises(ValueError, match="launcher: it is closed"):
        sf.run(["true"], launcher=launcher)
    assert repr(launcher) == "<spawnfd.LauncherThread closed: 1 started>"
    other = sf.LauncherThread()
    assert left() == 1
    del other
    gc.collect()
    assert eventually(lambda: left() == 0)


def test_what_is_none() -> None:
    assert sf.run(["true"], launcher=None).started == "clone"
    for wrong in (True, "thread", object()):
        with pytest.raises(TypeError, match=r"launcher: expected spawnfd\.LauncherThread or None"):
            sf.run(["true"], launcher=wrong)  # type: ignore[arg-type] # pyright: ignore


def test_in_a_fork(launcher: sf.LauncherThread) -> None:
    if (pid := os.fork()) == 0:
        ok = sf.run(["true"], launcher=launcher).started == "clone"
        ok &= launcher.stats() == (0, {"fork": 1})
        launcher.close()
        os._exit(not ok)
    assert os.waitpid(pid, 0)[1] == 0
    assert sf.run(["true"], launcher=launcher).started == "thread"
