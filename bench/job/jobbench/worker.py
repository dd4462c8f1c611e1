# SPDX-License-Identifier: MIT OR Apache-2.0
"""The worker of this benchmark, with methods that no other benchmark has. See common/worker.py."""

import sys
from collections.abc import Mapping
from functools import partial

from common import methods, streams, worker
from common.definitions import Terms
from common.methods import Awaited, Runner

from .repl import Repl

STREAMS = {"asyncio.streams": streams.asyncio_streams, "spawnfd.streams": streams.spawnfd_streams}


def make(terms: Terms, cwd: str, env: Mapping[str, str]) -> Runner:
    """Creates a method's runner."""
    if terms.method.way == "pexpect.replwrap":
        return Repl(cwd, env)
    if made := STREAMS.get(terms.method.way):
        return Awaited([streams.make_call(partial(made, cwd=cwd, env=env))], terms)
    return methods.make(terms, cwd, env)


if __name__ == "__main__":
    sys.exit(worker.main(make))
