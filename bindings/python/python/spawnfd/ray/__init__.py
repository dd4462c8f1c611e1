# SPDX-License-Identifier: MIT OR Apache-2.0
"""Programs on the nodes of a Ray cluster; needs `pip install spawnfd[ray]`.

import spawnfd.ray

with spawnfd.ray.Pool() as pool:
    for result in pool.map([["pytest", path] for path in paths], timeout=600):
        print(result.where, result.code)
"""

from spawnfd.ray._errors import NodeLost, NoNode, PoolClosed
from spawnfd.ray._job import Job, SyncJob
from spawnfd.ray._pool import Pool
from spawnfd.ray._session import Session, SyncSession

__all__ = [
    "Job",
    "NoNode",
    "NodeLost",
    "Pool",
    "PoolClosed",
    "Session",
    "SyncJob",
    "SyncSession",
]
