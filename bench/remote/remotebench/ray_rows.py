# SPDX-License-Identifier: MIT OR Apache-2.0
"""Ratios of spawnfd.ray.Pool on one node of this machine."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from common.results import Row
from common.stats import estimate, round_order, round_ratios

IDS = ("remote.ray.1", "remote.ray.map", "remote.ray.subprocess")
TRUE = ["/bin/true"]
WIDTH = 16


def actor_class() -> type:
    """Returns the class of an actor. Its code travels to the worker, as it is in a function."""

    class Empty:
        """An actor with a call that does nothing, and one that uses asyncio.subprocess."""

        async def nothing(self) -> None:
            """Returns at once."""

        async def many(self, count: int, width: int) -> int:
            """Runs a program `count` times by asyncio.subprocess, `width` at once."""
            free = asyncio.Semaphore(width)

            async def one() -> bool:
                async with free:
                    pipe = asyncio.subprocess.PIPE
                    process = await asyncio.create_subprocess_exec(*TRUE, stdout=pipe, stderr=pipe)
                    await process.communicate()
                    return process.returncode == 0

            return sum(await asyncio.gather(*[one() for _ in range(count)]))

    return Empty


def repeated(call: Callable[[], object], count: int) -> Callable[[], None]:
    """Returns a function that makes a call `count` times."""

    def calls() -> None:
        for _ in range(count):
            call()

    return calls


def local(count: int) -> None:
    """Runs a program `count` times on this machine, WIDTH at once."""
    import spawnfd as sf

    async def main() -> None:
        limiter = sf.Limiter(WIDTH)
        runs = [sf.run_async(TRUE, limiter=limiter) for _ in range(count)]
        assert all(result.ok for result in await asyncio.gather(*runs))

    asyncio.run(main())


def seconds(methods: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Returns the seconds of each method in each round, after one round that does not count."""
    found: dict[str, list[float]] = {name: [] for name in methods}
    for number in range(rounds + 1):
        for name in round_order(list(methods), number):
            begin = time.perf_counter()
            methods[name]()
            if number:
                found[name].append(time.perf_counter() - begin)
    return found


def row(id: str, ratios: Sequence[float], meaning: str) -> Row:
    """Returns a row for JSON."""
    return {"id": id, **estimate(ratios).ratio(), "meaning": meaning, "rounds": len(ratios)}


def rows(rounds: int = 20, calls: int = 50, runs: int = 480) -> list[Row]:
    """Starts a cluster of one node, and returns the ratios.

    Args:
        rounds: Rounds, each with all methods in another order.
        calls: Calls one after the other, in each round.
        runs: Runs that are WIDTH at once, in each round.
    """
    # Only this suite needs Ray.
    import ray
    import spawnfd as sf
    from ray.cluster_utils import Cluster
    from spawnfd.ray import Pool

    cluster: Any = Cluster()
    try:
        cluster.add_node(num_cpus=WIDTH, object_store_memory=80 << 20, include_dashboard=False)
        ray.init(address=cluster.address, log_to_driver=False)
        actor: Any = ray.remote(num_cpus=0)(actor_class()).remote()
        with Pool(slots=WIDTH) as pool:

            def empty() -> None:
                ray.get(actor.nothing.remote())

            def mapped() -> None:
                assert sum(result.ok for result in pool.map([TRUE] * runs)) == runs

            def by_asyncio() -> None:
                assert ray.get(actor.many.remote(runs, WIDTH)) == runs

            single = seconds(
                {
                    "empty": repeated(empty, calls),
                    "pool": repeated(lambda: pool.run(TRUE), calls),
                    "local": repeated(lambda: sf.run(TRUE), calls),
                },
                rounds,
            )
            many = seconds(
                {
                    "map": mapped,
                    "local": lambda: local(runs),
                    "subprocess": by_asyncio,
                },
                rounds,
            )
    finally:
        ray.shutdown()
        cluster.shutdown()

    parts = zip(single["pool"], single["empty"], single["local"], strict=True)
    over = [pool / (empty + local) for pool, empty, local in parts]
    by_map = f"runs of true per second by pool.map, {WIDTH} slots"
    sum_of = "an empty call of an asynchronous actor + spawnfd.run"
    return [
        row(IDS[0], over, f"time of pool.run of true / ({sum_of})"),
        row(
            IDS[1],
            round_ratios(many["map"], many["local"]),
            f"{by_map} / by run_async, {WIDTH} at once",
        ),
        row(
            IDS[2],
            round_ratios(many["map"], many["subprocess"]),
            f"{by_map} / by asyncio.subprocess in an actor, {WIDTH} at once",
        ),
    ]
