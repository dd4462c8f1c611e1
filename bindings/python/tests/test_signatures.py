# SPDX-License-Identifier: MIT OR Apache-2.0
"""The signatures that help() and editors show, and the version."""

from __future__ import annotations

import asyncio
import importlib.metadata
import inspect
import pydoc
import re
import typing
from collections.abc import Callable
from typing import Any

import pytest
import spawnfd as sf

Function = Callable[..., Any]
OWNERS: list[Any] = [sf, sf.Template, sf.TemplateCache, sf.Warm]
NAMES = {
    "run": sf.RunOptions,
    "run_async": sf.RunOptions,
    "start": sf.StartOptions,
    "start_sync": sf.StartOptions,
    "spawn": sf.SpawnOptions,
}
FUNCTIONS: list[Any] = [
    pytest.param(getattr(owner, name), options, id=f"{owner.__name__}.{name}")
    for owner in OWNERS
    for name, options in NAMES.items()
]


def options_of(function: Function) -> dict[str, inspect.Parameter]:
    """The keyword-only parameters; the function must not have any other optional ones."""
    parameters = inspect.signature(function).parameters
    assert all(each.kind is not each.VAR_KEYWORD for each in parameters.values())
    return {name: each for name, each in parameters.items() if each.kind is each.KEYWORD_ONLY}


COMMANDS: list[Any] = [
    getattr(owner, name) for owner in (sf.Session, sf.SyncSession) for name in ("run", "start")
]


@pytest.mark.parametrize("function", COMMANDS, ids=lambda function: function.__qualname__)
def test_signature_of_a_command_equals_the_typed_dict(function: Function) -> None:
    options = {name: each for name, each in options_of(function).items() if name not in OWN}
    annotations: dict[str, Any] = dict(sf.CommandOptions.__annotations__)
    assert {name: each.annotation for name, each in options.items()} == {
        name: each.__forward_arg__ for name, each in annotations.items()
    }
    expected = defaults_of(sf.start)
    for name, each in options.items():
        assert each.default == expected[name]
    assert "**" not in pydoc.plain(pydoc.render_doc(function)).splitlines()[2]


# The options of one method of a session.
OWN = {"yield_after", "hold"}


def test_help_begins_with_what_people_call() -> None:
    lines = pydoc.plain(pydoc.render_doc(sf)).splitlines()
    for name in ("run", "start", "Session", "Env", "Limits", "Warm"):
        assert any(re.match(rf" +{name}\b", line) for line in lines[:40]), name


def defaults_of(function: Function) -> dict[str, Any]:
    return {name: each.default for name, each in options_of(function).items()}


@pytest.mark.parametrize(("function", "options"), FUNCTIONS)
def test_signature_equals_the_typed_dict(function: Function, options: Any) -> None:
    types = {name: each.__forward_arg__ for name, each in options.__annotations__.items()}
    assert {name: each.annotation for name, each in options_of(function).items()} == types


@pytest.mark.parametrize(("function", "options"), FUNCTIONS)
def test_defaults_agree(function: Function, options: Any) -> None:
    """A parameter has the same default in every function."""
    expected = defaults_of({name: getattr(sf, name) for name in NAMES}[function.__name__])
    assert defaults_of(function) == expected
    if options is not sf.SpawnOptions:
        assert {name: expected[name] for name in defaults_of(sf.run)} == defaults_of(sf.run)


@pytest.mark.parametrize(("function", "options"), FUNCTIONS)
def test_help_shows_every_option_with_its_default(function: Function, options: Any) -> None:
    # Since 3.13, pydoc breaks a long signature into lines.
    lines = pydoc.plain(pydoc.render_doc(function)).splitlines()[2:]
    signature = " ".join(lines).partition(" -> ")[0]
    for name, default in defaults_of(function).items():
        assert re.search(rf"\b{name}: [^=]+ = {re.escape(repr(default))} *[,)]", signature)
    assert "unknown" not in signature


@pytest.mark.parametrize(("function", "options"), FUNCTIONS)
def test_annotations_can_be_evaluated(function: Function, options: Any) -> None:
    hints = typing.get_type_hints(function)
    assert hints.keys() >= options.__annotations__.keys()
    assert "unknown" not in hints


def test_run_async_is_a_coroutine_function() -> None:
    for owner in OWNERS:
        assert inspect.iscoroutinefunction(owner.run_async)


def run_async(argv: Any, **options: Any) -> sf.Result:
    return asyncio.run(sf.run_async(argv, **options))


def run_job(argv: Any, **options: Any) -> sf.Result:
    async def main() -> sf.Result:
        async with sf.start(argv, **options) as job:
            return await job.result()

    return asyncio.run(main())


def run_job_sync(argv: Any, **options: Any) -> sf.Result:
    with sf.start_sync(argv, **options) as job:
        return job.result()


@pytest.mark.parametrize(
    ("run", "of"),
    [(sf.run, sf.run), (run_async, sf.run), (run_job, sf.start), (run_job_sync, sf.start)],
)
@pytest.mark.parametrize("given", [{}, {"input": b"x"}, {"terminal": (3, 4), "input": "x\n"}])
def test_default_is_the_same_as_an_omitted_option(
    run: Function, of: Function, given: dict[str, Any]
) -> None:
    results = [run(["cat"], **options) for options in (given, {**defaults_of(of), **given})]
    first, second = [(each.check().stdout, each.tree, each.drain) for each in results]
    assert first == second


def test_default_of_spawn_is_the_same_as_an_omitted_option() -> None:
    for options in ({}, defaults_of(sf.spawn)):
        with sf.spawn(["true"], **options) as child:
            assert (child.stdin, child.stdout, child.stderr) == (None, None, None)
            assert child.wait() == 0


async def started(start: Function, *args: Any, **options: Any) -> Any:
    value = start(*args, **options)
    return await value if inspect.isawaitable(value) else value


@pytest.mark.parametrize("name", NAMES)
def test_unknown_option_is_refused_with_advice(name: str) -> None:
    advice = 'unexpected keyword argument "shell"; for a shell command line pass spawnfd.sh'
    with sf.Warm() as warm:
        for owner in (sf, sf.Template("true"), sf.TemplateCache(), warm):
            with pytest.raises(TypeError, match=advice):
                asyncio.run(started(getattr(owner, name), ["true"], shell=True))


def test_version_is_that_of_the_package() -> None:
    assert sf.__version__ == importlib.metadata.version("spawnfd")
