# SPDX-License-Identifier: MIT OR Apache-2.0
"""asyncio's own way to make a captured call, as the benchmarks compare it."""

import asyncio
import sys
from collections.abc import Mapping

Answer = tuple[int, bytes, bytes]


async def call(argv: list[str], cwd: str, env: Mapping[str, str]) -> Answer:
    """create_subprocess_exec and communicate."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        cwd=cwd,
        env=env,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    stdout, stderr = await process.communicate()
    assert process.returncode is not None
    return process.returncode, stdout, stderr


def watch_by_pidfd(loop: asyncio.AbstractEventLoop) -> None:
    """What Python does by itself from 3.12 on; 3.11 would start a thread for each child."""
    if sys.version_info < (3, 12):
        watcher = asyncio.PidfdChildWatcher()
        watcher.attach_loop(loop)
        asyncio.set_child_watcher(watcher)
