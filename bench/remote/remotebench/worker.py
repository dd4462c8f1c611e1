# SPDX-License-Identifier: MIT OR Apache-2.0
"""The worker of this benchmark, with methods that no other benchmark has. See common/worker.py."""

import sys
from functools import partial
from typing import TextIO

from common import methods, worker
from common.worker import Job

from . import runners
from .places import Place

SHARED = ("subprocess.run", "create_subprocess_exec", "spawnfd.run", "spawnfd.run_async")


def serve(job: Job, out: TextIO) -> None:
    """Serves the driver. The job also has the places."""
    places = {name: Place(**place) for name, place in job["places"].items()}
    is_shared = job["method"]["way"] in SHARED
    worker.serve(methods.make if is_shared else partial(runners.make, places), job, out)


if __name__ == "__main__":
    sys.exit(worker.run_worker(serve))
