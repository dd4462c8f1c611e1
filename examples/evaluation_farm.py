# SPDX-License-Identifier: MIT OR Apache-2.0
"""Evaluates 5,000 samples, each by a program, with a progress bar.

    pip install spawnfd rich
    python evaluation_farm.py [SAMPLES]

A limiter bounds the number of programs that run at once, whatever the number of tasks. A sample
that hangs or is wrong costs its timeout, and the farm goes on.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter

import spawnfd as sf
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

TIMEOUT_S = 3.0


def candidate(number: int) -> str:
    """The program that a model wrote for a sample: print the square of the input.

    Stands for a model: each 100th program is wrong, and each 1,000th hangs.
    """
    if number % 1_000 == 500:
        return "sleep 600"
    return "read n; echo $((n + n))" if number % 100 == 50 else "read n; echo $((n * n))"


async def evaluate(number: int, limiter: sf.Limiter) -> str:
    """Runs one sample's program, and returns its grade."""
    result = await sf.run_async(
        sf.sh(candidate(number)),
        env=sf.Env.only(["PATH"]),
        input=f"{number}\n",
        timeout=TIMEOUT_S,
        grace=0,
        keep=(1_000, 1_000),
        limiter=limiter,
    )
    if result.stop != "exited":
        return result.stop
    return "right" if result.ok and result.text == f"{number * number}\n" else "wrong"


async def main(samples: int) -> None:
    # Programs mostly wait for the kernel: a few for each processor keep all processors busy.
    limiter = sf.Limiter(4 * (os.cpu_count() or 1))
    grades: Counter[str] = Counter()
    with Progress(BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()) as progress:
        bar = progress.add_task("samples", total=samples)
        for done in asyncio.as_completed([evaluate(n, limiter) for n in range(samples)]):
            grades[await done] += 1
            progress.advance(bar)
    for grade, count in grades.most_common():
        print(f"{grade}: {count}")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 5_000))
