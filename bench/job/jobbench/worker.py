# SPDX-License-Identifier: MIT OR Apache-2.0
"""The worker of this benchmark, with methods that no other benchmark has. See common/worker.py."""

import sys
from collections.abc import Mapping

from common import methods, worker
from common.definitions import Terms
from common.methods import Awaited, Runner

from . import streams
from .repl import Repl


def make(terms: Terms, cwd: str, env: Mapping[str, str]) -> Runner:
    """Creates a method's runner."""
    if terms.method.way == "pexpect.replwrap":
        return Repl(cwd, env)
    if terms.method.way in streams.WAYS:
        return Awaited([streams.make_call(terms.method.way, cwd, env)], terms)
    return methods.make(terms, cwd, env)


if __name__ == "__main__":
    sys.exit(worker.main(make))
