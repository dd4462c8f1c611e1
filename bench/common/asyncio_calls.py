# SPDX-License-Identifier: MIT OR Apache-2.0
"""A captured call by asyncio itself, for comparison."""

import asyncio
import sys
from collections.abc import Mapping

Answer = tuple[int, bytes, bytes]


async def call(argv: list[str], cwd: str, env: Mapping[str, str]) -> Answer:
    """Calls create_subprocess_exec and communicate."""
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
    """Makes Python 3.11 watch children by pidfd.

    By default, 3.11 uses a thread for each child, and 3.12 uses pidfds.
    """
    if sys.version_info < (3, 12):
        watcher = asyncio.PidfdChildWatcher()
        watcher.attach_loop(loop)
        asyncio.set_child_watcher(watcher)
