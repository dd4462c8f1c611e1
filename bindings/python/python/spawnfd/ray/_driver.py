# SPDX-License-Identifier: MIT OR Apache-2.0
"""The two drivers of a call: one blocks in each wait, the other one awaits each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import suppress
from typing import Any

from spawnfd.ray._api import ray
from spawnfd.ray._wire import Item, Steps, Wait


def drive(steps: Steps) -> Any:
    """Runs a call to its end, blocking. Returns its value."""
    try:
        wait = next(steps)
        while True:
            try:
                value = _block(wait)
            except BaseException as error:
                wait = steps.throw(error)
            else:
                wait = steps.send(value)
    except StopIteration as stop:
        return stop.value


def _block(wait: Wait) -> Any:
    if wait.value:
        return ray.get(wait.refs[0])
    if not wait.refs:
        return time.sleep(wait.timeout or 0)
    return ray.wait(wait.refs, timeout=wait.timeout, fetch_local=False)[0]


def iterate(steps: Generator[Wait | Item, Any, None]) -> Generator[Any]:
    """Yields the items of map(), blocking in each wait."""
    try:
        step = next(steps)
        while True:
            if isinstance(step, Item):
                yield step.outcome
                step = next(steps)
                continue
            try:
                value = _block(step)
            except BaseException as error:
                step = steps.throw(error)
            else:
                step = steps.send(value)
    except StopIteration:
        return
    finally:
        steps.close()


async def iterate_async(steps: Generator[Wait | Item, Any, None]) -> AsyncGenerator[Any]:
    """Yields the items of map(), awaiting each wait."""
    try:
        step = next(steps)
        while True:
            if isinstance(step, Item):
                yield step.outcome
                step = next(steps)
                continue
            try:
                value = await _await(step)
            except BaseException as error:
                step = steps.throw(error)
            else:
                step = steps.send(value)
    except StopIteration:
        return
    finally:
        steps.close()


async def drive_async(steps: Steps) -> Any:
    """Runs a call to its end in the running asyncio loop. Returns its value."""
    try:
        wait = next(steps)
        while True:
            try:
                value = await _await(wait)
            except GeneratorExit:
                steps.close()
                raise
            except BaseException as error:
                wait = steps.throw(error)
            else:
                wait = steps.send(value)
    except StopIteration as stop:
        return stop.value


async def _await(wait: Wait) -> Any:
    if wait.value:
        return await wait.refs[0]
    if not wait.refs:
        return await asyncio.sleep(wait.timeout or 0)
    waiting: dict[Any, Any] = {asyncio.ensure_future(_done(ref)): ref for ref in wait.refs}
    try:
        done, _ = await asyncio.wait(
            waiting, timeout=wait.timeout, return_when=asyncio.FIRST_COMPLETED
        )
    finally:
        for each in waiting:
            each.cancel()
    return [waiting[each] for each in done]


async def _done(ref: Any) -> None:
    """Waits until an object has a value or an error."""
    with suppress(ray.exceptions.RayError):
        await ref
