# SPDX-License-Identifier: MIT OR Apache-2.0
"""What type checkers say about calls. `make lint` checks this file, and the tests run it."""
# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

import re
from typing import Literal

import pytest
import spawnfd as sf
from conftest import RunLoop
from patience import TIMEOUT_S
from typing_extensions import assert_type


async def test_a_yielded_job_is_narrowed(run_loop: RunLoop) -> None:
    async with sf.Session() as session:
        job = await session.run("echo on; read x", yield_after=0, stdin="stream")
        if isinstance(job, sf.Job):
            assert_type(job, sf.Job)
            await job.wait_for("on", TIMEOUT_S)
        else:
            assert_type(job, sf.Result)
        if job.running is True:
            assert_type(job, sf.Job)
            job.close_stdin()
    with sf.SyncSession() as sync_session:
        sync_job = sync_session.run("read x", yield_after=0, stdin="stream")
        assert isinstance(sync_job, sf.SyncJob)
        sync_job.close_stdin()


def test_a_stream_needs_yield_after() -> None:
    with sf.SyncSession() as session:
        with pytest.raises(ValueError, match="needs yield_after"):
            session.run("cat", stdin="stream")  # pyright: ignore[reportArgumentType]
        result = session.run("echo on", timeout=TIMEOUT_S, keep="all")
        assert_type(result, sf.Result)


def test_wait_for_tells_timeout_from_end() -> None:
    with sf.start_sync(["echo", "on"]) as job:
        found = job.wait_for(["off", re.compile("o.")], TIMEOUT_S)
        assert_type(found, sf.OutputMatch | Literal[False] | None)
        if found:
            assert_type(found, sf.OutputMatch)
        assert job.wait_for("off") is False


def wrapper(argv: sf.Args, input: sf.Input, env: sf.Environment) -> sf.Result:
    return sf.run(argv, input=input, env=env)


def test_exported_types_describe_arguments() -> None:
    result = wrapper(["sh", "-c", "cat; exit $X"], "text", {"X": "3"})
    assert (result.text, result.returncode) == ("text", 3)
