# SPDX-License-Identifier: MIT OR Apache-2.0
"""Ratios of spawnfd.ray.Pool on one node of this machine.

`rows()` starts a Ray cluster of one node and returns the rows; a suite of bench/ calls it. As a
script, this file prints them: python bench/remote_ray/ray_rows.py --quick
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

from common.bars import Row
from common.stats import estimate, round_order, round_ratios

NOT_MEASURED = [
    "a network: the cluster has one node, and all processes are on this machine",
    "other work of Ray: the cluster is idle",
    "output: the programs write none",
]
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


def local(count: int, tree: Any) -> None:
    """Runs a program `count` times on this machine, WIDTH at once."""
    import spawnfd as sf

    async def main() -> None:
        limiter = sf.Limiter(WIDTH)
        runs = [sf.run_async(TRUE, limiter=limiter, tree=tree) for _ in range(count)]
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

            def mapped(tree: Any) -> None:
                assert sum(result.ok for result in pool.map([TRUE] * runs, tree=tree)) == runs

            def by_asyncio() -> None:
                assert ray.get(actor.many.remote(runs, WIDTH)) == runs

            single = seconds(
                {
                    "empty": repeated(empty, calls),
                    "auto": repeated(lambda: pool.run(TRUE), calls),
                    "local auto": repeated(lambda: sf.run(TRUE, tree="auto"), calls),
                    "guard": repeated(lambda: pool.run(TRUE, tree="guard"), calls),
                    "local guard": repeated(lambda: sf.run(TRUE, tree="guard"), calls),
                },
                rounds,
            )
            many = seconds(
                {
                    "map": lambda: mapped("guard"),
                    "map auto": lambda: mapped("auto"),
                    "local": lambda: local(runs, "guard"),
                    "local auto": lambda: local(runs, "auto"),
                    "subprocess": by_asyncio,
                },
                rounds,
            )
    finally:
        ray.shutdown()
        cluster.shutdown()

    def over(ours: str, theirs: str) -> list[float]:
        parts = zip(single[ours], single["empty"], single[theirs], strict=True)
        return [our / (nothing + their) for our, nothing, their in parts]

    sum_of = "pool.run of true / (an empty call of an asynchronous actor + a local run)"
    rate = f"true per second by pool.map, {WIDTH} slots / by run_async, {WIDTH} at once"
    actor_rate = f"true per second by pool.map, {WIDTH} slots / by asyncio.subprocess in an actor"
    return [
        row("remote.ray.1", over("guard", "local guard"), f"{sum_of}, tier guard"),
        row("remote.ray.1.auto", over("auto", "local auto"), f"{sum_of}, tier auto"),
        row("remote.ray.map", round_ratios(many["map"], many["local"]), f"{rate}, tier guard"),
        row(
            "remote.ray.map.auto",
            round_ratios(many["map auto"], many["local auto"]),
            f"{rate}, tier auto",
        ),
        row(
            "remote.ray.subprocess",
            round_ratios(many["map"], many["subprocess"]),
            f"{actor_rate}, tier guard, {WIDTH} at once",
        ),
    ]


def main() -> None:
    """Prints the rows as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rounds of few calls")
    quick = parser.parse_args().quick
    for each in rows(3, 20, 160) if quick else rows():
        print(json.dumps(each))


if __name__ == "__main__":
    main()
