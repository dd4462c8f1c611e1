# SPDX-License-Identifier: MIT OR Apache-2.0
"""The cases of tests/data/cases.json, by each way to call. docs/testing.md has the notation."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import portable_exclusions
import pytest
import spawnfd as sf
from conftest import RunLoop, is_alive, wait_until
from patience import growing_timeouts
from session_support import Awaitables, opener

ALL_CASES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[3] / "tests" / "data" / "cases.json").read_text()
)
CASES = portable_exclusions.applying(ALL_CASES) if sf.portable else ALL_CASES

OF_PROGRAMS = ["run", "run_async", "start", "start_sync"]
OF_SESSIONS = [
    f"{shell} {form} {method}"
    for shell in ("bash", "dash")
    for form in ("async", "sync")
    for method in ("run", "start")
]


def ways(case: dict[str, Any]) -> list[str]:
    """The functions that run a case; those of a session with the shell, and the form."""
    steps = case.get("steps", [case])
    of_programs = [] if "session" in case else OF_PROGRAMS
    is_command = "session" in case or "command" in steps[0]
    of_sessions = OF_SESSIONS if is_command and not sf.portable else []
    takes_writes = any("writes" in step for step in steps)
    return [way for way in of_programs + of_sessions if "start" in way or not takes_writes]


def env_of(calls: list[list[Any]]) -> sf.Env:
    (first, *patterns), *changes = calls
    env = sf.Env.only(patterns) if first == "only" else getattr(sf.Env, first)()
    for name, *arguments in changes:
        if name == "set":
            for variable, value in arguments[0].items():
                env = env.unset(variable) if value is None else env.set(variable, value)
        else:
            env = env.deny(arguments) if name == "deny" else getattr(env, name)(*arguments)
    return env


def action_of(item: Any) -> Any:
    if not isinstance(item, list):
        return item
    name, *arguments = cast("list[Any]", item)
    return getattr(sf.actions, name.title().replace("_", ""))(*arguments)


# Values that JSON does not have, by the name of an object's only key.
VALUES: dict[str, Callable[[Any], Any]] = {
    "bytes": lambda text: text.encode("latin-1"),
    "number": float,
    "repeat": lambda pair: pair[0] * pair[1],
    "join": "".join,
    "seq": lambda last: "".join(f"{number}\n" for number in range(1, last + 1)),
    "Env": env_of,
}
# Options whose values are objects of the package.
OPTIONS: dict[str, Callable[[Any], Any]] = {
    "limits": lambda fields: sf.Limits(**fields),
    "spill": lambda fields: sf.Spill(**fields),
    "sandbox": sf.Sandbox,
    "limiter": sf.Limiter,
    "keep": tuple,
    "terminal": tuple,
    "actions": lambda items: [action_of(item) for item in items],
}
KINDS = {"type": TypeError, "value": ValueError}


class Run:
    """One run of a case, in a directory of its own."""

    def __init__(self, way: str, directory: Path, files: ExitStack) -> None:
        self.way, self.files = way, files
        self.directory = directory
        self.text = "{text}"

    def value(self, given: Any) -> Any:
        """Converts a value of the table."""
        if isinstance(given, str):
            return given.replace("{tmp}", str(self.directory)).replace("{text}", self.text)
        if isinstance(given, list):
            return [self.value(item) for item in given]  # pyright: ignore
        if not isinstance(given, dict):
            return given
        values: dict[str, Any] = {name: self.value(item) for name, item in given.items()}  # pyright: ignore
        if values.keys() == {"file"}:
            fd = os.open(self.directory / values["file"], os.O_RDWR | os.O_CREAT, 0o644)
            self.files.callback(os.close, fd)
            return fd
        name = next(iter(values), "")
        return VALUES[name](values[name]) if len(values) == 1 and name in VALUES else values

    def options(self, given: dict[str, Any]) -> dict[str, Any]:
        """Converts options. A value of a wrong type stays as it is."""

        def option(name: str, value: Any) -> Any:
            is_converted = isinstance(value, (list, dict)) or (name == "limiter" and value == 1)
            return OPTIONS[name](value) if is_converted and name in OPTIONS else cast("Any", value)

        return {name: option(name, self.value(value)) for name, value in given.items()}

    def create(self, files: dict[str, str | None]) -> None:
        for name, content in files.items():
            path = self.directory / name
            if content is None:
                os.mkfifo(path)
            elif name.endswith("/"):
                path.mkdir()
            else:
                path.write_text(self.value(content))
                path.chmod(0o755 if content.startswith("#!") else 0o644)

    @asynccontextmanager
    async def target(self, case: dict[str, Any]) -> AsyncGenerator[Any]:
        """The object whose methods run the steps: the package, a template, or a session."""
        if "template" in case:
            template = sf.Template(
                self.value(case["template"]), **self.value(case.get("search", {}))
            )
            for name, expected in case.get("attributes", {}).items():
                assert getattr(template, name) == self.value(expected), name
            yield template
        elif " " not in self.way:
            yield sf
        else:
            shell, form, _ = self.way.split()
            options = self.options(case.get("session", {}))
            args = [options.pop("args")] if "args" in options else []
            async with opener(form, shell)(
                options.pop("shell", shell), *args, **options
            ) as session:
                yield session

    async def perform(self, case: dict[str, Any]) -> None:
        self.create(case.get("given", {}))
        if "refused" in case:
            with pytest.raises(Exception) as caught:  # noqa: PT011 # check_error() looks at it
                async with self.target(case):
                    pass
            return self.check_error(caught.value, case["refused"])
        async with self.target(case) as target:
            for step in case.get("steps", [case]):
                if step is not case:
                    self.create(step.get("given", {}))
                await self.step(target, step)
        return None

    async def step(self, target: Any, step: dict[str, Any]) -> None:
        if "error" in step:
            with pytest.raises(Exception) as caught:  # noqa: PT011 # check_error() looks at it
                await self.call(target, step, self.options(step.get("options", {})))
            self.check_error(caught.value, step["error"])
        else:
            options = self.options(step.get("options", {}))
            result = await self.call(target, step, options)
            if "ready" in step and not (self.directory / step["ready"]).exists():
                for timeout in growing_timeouts(2 * options["timeout"]):
                    result = await self.call(target, step, {**options, "timeout": timeout})
                    if (self.directory / step["ready"]).exists():
                        break
            if result is not None:
                await self.check_result(result, step)
        for name, content in step.get("files", {}).items():
            assert (self.directory / name).read_text() == self.value(content), name

    async def call(self, target: Any, step: dict[str, Any], options: dict[str, Any]) -> Any:
        method = self.way.split()[-1]
        if "resize" in step:
            return target.resize(*step["resize"])
        if "side" in step:
            return await target.side_command(self.value(step["side"]), **options)
        default = "true" if " " in self.way else ["true"]
        what = self.value(step.get("command", step.get("sh", step.get("argv", default))))
        if " " not in self.way and isinstance(what, str) and "argv" not in step:
            what = sf.sh(what)
        if method in ("run", "run_async"):
            result = getattr(target, method)(what, **options)
            return result if isinstance(result, sf.Result) else await result
        job = getattr(target, method)(what, **options)
        job = Awaitables(job) if method == "start_sync" else await job
        async with job:
            for text in step.get("writes", []):
                await job.write(self.value(text))
            if "writes" in step:
                job.close_stdin()
            return await job.result()

    def check_error(self, error: BaseException, expected: dict[str, Any]) -> None:
        expected = of_python(expected)
        if "wrong" in expected:
            assert isinstance(error, KINDS[expected["is"]]), repr(error)
            self.compare(str(error), {"has": of_python(expected["wrong"])})
        else:
            assert isinstance(error, sf.SpawnError), repr(error)
            number = getattr(errno, expected["errno"])
            assert isinstance(error, type(OSError(number, ""))), repr(error)
            found = (error.errno, error.stage, error.action)
            assert found == (number, expected["stage"], expected.get("action")), error
        says = of_python(expected.get("says", ""))
        self.compare(str(error), says if isinstance(says, dict) else {"has": says})

    async def check_result(self, result: sf.Result, step: dict[str, Any]) -> None:
        expected: dict[str, Any] = step.get("result", {})
        if not expected.keys() & {"ok", "code", "signal", "stop"}:
            expected = {**expected, "ok": True, "code": 0}
            if not expected.keys() & {"stderr", "stderr_text", "output"}:
                expected["stderr"] = ""
        self.text = result.text.strip()
        for name, value in expected.items():
            is_file = name == "spill_text"
            found = Path(result.spill_path or "").read_text() if is_file else getattr(result, name)
            self.compare(plain(name, found), value, name, result)
        assert json.loads(json.dumps(result.to_dict()))["stdout"] == result.text
        if result.ok:
            assert result.check() is result
        else:
            with pytest.raises(sf.ExitError) as failed:
                result.check()
            assert failed.value.result is result
            if "check" in step:
                check: dict[str, str] | list[str] = self.value(step["check"])
                text = exit_text(*check) if isinstance(check, list) else check
                start, end = f"{result.args} ", str(failed.value)
                assert end.startswith(start)
                self.compare(end.removeprefix(start), text, "check")
        for left in result.leftovers:
            if left.fate == "detached":
                os.kill(left.pid, signal.SIGKILL)
            await wait_until(partial(has_ended, left.pid))

    def compare(self, found: Any, expected: Any, name: str = "error", result: Any = None) -> None:
        """Compares a value with that of the table."""
        expected = self.value(expected)
        if isinstance(expected, list) and isinstance(found, list) and len(found) == len(expected):  # pyright: ignore
            for pair in zip(found, expected, strict=True):  # pyright: ignore
                self.compare(*pair, name, result)  # pyright: ignore
        elif not isinstance(expected, dict):
            assert found == expected, (name, found, expected, result)
        elif isinstance(found, dict):
            assert found.keys() == expected.keys(), (name, found, expected, result)  # pyright: ignore
            for key, value in expected.items():  # pyright: ignore
                self.compare(found.get(key), value, f"{name}.{key}", result)  # pyright: ignore
        else:
            [(test, value)] = expected.items()  # pyright: ignore
            assert TESTS[test](found, value), (name, found, expected, result)


# How a value is compared with an object of the table, by the object's only key.
TESTS: dict[str, Callable[[Any, Any], object]] = {
    "match": lambda found, pattern: bool(re.search(str(pattern), str(found), re.DOTALL)),
    "has": lambda found, part: part in found,
    "over": lambda found, least: found > least,
    "in": lambda found, values: values.count(found),
}


def plain(name: str, value: Any) -> Any:
    """Returns a value of a result in the notation of the table."""
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if name == "output":
        return value and [
            [each.stream, each.text, *([each.omitted] * (each.omitted > 0))] for each in value
        ]
    if name == "leftovers":
        return [f"{left.pid} {left.name} {left.fate}" for left in value]
    if name == "spilled":
        return value and [value.bytes, value.end, value.errno and errno.errorcode[value.errno]]
    if name == "omitted":
        return {stream: list(omitted) for stream, omitted in value.items()}
    return str(value) if isinstance(value, Path) else value


def of_python(text: Any) -> Any:
    """A text that the fronts may word differently."""
    return text.get("python", text) if isinstance(text, dict) else text  # pyright: ignore


def exit_text(end: str, of: str = "", *lines: str) -> str:
    """The text of an ExitError after the command: how it ended, and the lines of which output."""
    before = "\n" if len(lines) > 1 else " "
    return f"{end}; {of}:{before}" + "\n".join(lines) if lines else end


def has_ended(pid: int) -> bool:
    return not is_alive(pid)


def name_of(case: dict[str, Any]) -> str:
    """The name of a case, or else the call that it tests."""
    call = {name: value for name, value in case.items() if name not in ("error", "refused")}
    return str(case.get("name") or json.dumps(call))


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_case(
    case: dict[str, Any], run_loop: RunLoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in case.get("environ", {}).items():
        monkeypatch.setenv(name, value)
    for number, way in enumerate(ways(case)):
        directory = tmp_path / str(number)
        directory.mkdir()
        with ExitStack() as files:
            print("by", way)
            run_loop(partial(Run(way, directory, files).perform, case))


KEYS = {
    *("name", "given", "environ", "template", "search", "attributes", "session", "steps"),
    *("argv", "sh", "command", "side", "resize", "options", "writes", "ready"),
    *("result", "files", "check", "error", "refused"),
}


def test_cases_have_known_keys_and_unique_names() -> None:
    for case in CASES:
        for step in (case, *case.get("steps", [])):
            assert step.keys() <= KEYS, step
    names = [name_of(case) for case in CASES]
    assert len(set(names)) == len(names)
