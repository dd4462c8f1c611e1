# SPDX-License-Identifier: MIT OR Apache-2.0
"""A Ray cluster of two nodes on this machine, for test_ray.py, which runs this file as a script.

The script prints the address of the cluster, and ends the cluster at the end of its input. Each
line of the input adds a node of that name, or kills the raylet of a node ("kill NAME"); the script
answers with a line.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
import types
from typing import Any

# How much slower than a machine at rest this one may be.
SLOWNESS = 20
PORTS = (
    "metrics_agent_port",
    "runtime_env_agent_port",
    "dashboard_agent_listen_port",
    "metrics_export_port",
    "object_manager_port",
    "node_manager_port",
)


def ports() -> dict[str, int]:
    """Free ports for the processes of a node: a raylet waits only 15 s if they choose ports."""
    sockets = [socket.socket() for _ in PORTS]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return {name: each.getsockname()[1] for name, each in zip(PORTS, sockets, strict=True)}
    finally:
        for each in sockets:
            each.close()


def be_patient(node: Any) -> None:
    """Makes Ray wait longer than 30 s for the start of a node, a constant in its source."""
    clock = types.SimpleNamespace(**vars(time))
    clock.monotonic = lambda: time.monotonic() / SLOWNESS
    node.time = clock


def main() -> None:
    from ray._private import node as ray_node
    from ray.cluster_utils import Cluster

    be_patient(ray_node)
    cluster: Any = Cluster()
    nodes: dict[str, Any] = {}

    def add(name: str, cpus: int = 1) -> None:
        nodes[name] = cluster.add_node(
            num_cpus=cpus,
            object_store_memory=80 << 20,
            include_dashboard=False,
            include_log_monitor=False,
            labels={"zone": name},
            resources={f"tree:{name}": 1},
            node_name=name,
            **ports(),
        )

    try:
        add("alpha")
        add("beta", 2)
        print(cluster.address, flush=True)
        for line in sys.stdin:
            command, _, name = line.strip().rpartition(" ")
            if command == "kill":
                node = nodes.pop(name)
                os.kill(node.all_processes["raylet"][0].process.pid, signal.SIGKILL)
                cluster.worker_nodes.discard(node)
                node.kill_all_processes(check_alive=False, allow_graceful=False)
            else:
                add(name)
            print("done", flush=True)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
