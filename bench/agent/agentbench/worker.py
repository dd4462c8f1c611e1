# SPDX-License-Identifier: MIT OR Apache-2.0
"""The worker of this benchmark: one harness and one backend. See common/worker.py."""

import sys
from collections.abc import Mapping

from common import methods, worker
from common.definitions import Terms
from common.methods import AsyncCall, Awaited, Runner


def make(terms: Terms, cwd: str, env: Mapping[str, str]) -> Runner:
    """Creates a backend's runner under its harness. Imports AutoGen only if needed."""
    if terms.harness != "autogen":
        return methods.make(terms, cwd, env)
    from .autogen import Autogen

    def under_autogen(call: AsyncCall, terms: Terms) -> Awaited:
        return Autogen(call, terms, cwd)

    return methods.make(terms, cwd, env, under_autogen)


if __name__ == "__main__":
    sys.exit(worker.main(make))
