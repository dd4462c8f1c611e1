# SPDX-License-Identifier: MIT OR Apache-2.0
"""spawnfd.subprocess compared with the original: exceptions, killed children, closed streams."""

from __future__ import annotations

import os
import shutil
import subprocess as original
from pathlib import Path
from typing import Any

import pytest
from call_numbers import numbers
from conftest import make_script
from spawnfd import subprocess as ours
from subprocess_support import PYTHON, CountersSince, failure, run_script


class Once:
    """Raises an exception on the first use, and answers later uses."""

    def __init__(self, error: Exception | None, answer: Any) -> None:
        self.error = error
        self.answer = answer

    def _ask(self) -> Any:
        error, self.error = self.error, None
        if error is not None:
            raise error
        return self.answer

    __iter__ = __fspath__ = _ask


class Stops(Once):
    """An iterator that raises at the item None, and then goes on."""

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        if self.answer[0] is None:
            self.answer.pop(0)
            self._ask()
        return self.answer.pop(0)


class Variables(dict[str, str]):
    def __init__(self, error: Exception) -> None:
        super().__init__(A="b")
        self.once = Once(error, super().items())

    def items(self) -> Any:
        return self.once._ask()


@pytest.mark.parametrize("kind", [ValueError, TypeError, OverflowError, TimeoutError, KeyError])
def test_exceptions_of_the_callers_objects_are_passed_on(kind: Any) -> None:
    def ways(error: Exception) -> list[tuple[Any, dict[str, Any]]]:
        return [
            (Stops(error, ["false", None, "echo", "wrong"]), {}),
            (["true"], {"pass_fds": Stops(error, [1, None, 2])}),
            (["true"], {"env": Variables(error)}),
            (["true", Once(error, "a")], {}),
            (["true"], {"cwd": Once(error, "/")}),
            (["true"], {"env": {"A": Once(error, "b")}}),
        ]

    counted = CountersSince()
    for args, options in ways(error := kind("once")):
        with pytest.raises(kind) as caught:
            ours.Popen(args, **options)
        assert caught.value is error
    assert counted.get() == (0, {}, 6)


def test_templates_leave_descriptors_for_pipes(tmp_path: Path) -> None:
    for number in range(64):
        make_script(tmp_path / str(number), "#!/bin/sh\n")
    out = run_script(
        """
        import resource
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
        from spawnfd import subprocess
        for number in range(64):
            subprocess.run([f"{sys.argv[1]}/{number}"], check=True, capture_output=True)
        print(sf.stats().made)
        """,
        str(tmp_path),
    )
    assert out == "64\n"


def test_path_object_that_is_iterable() -> None:
    class Listed(Once, os.PathLike):  # type: ignore[type-arg]
        pass

    args = Listed(None, iter(["true"]))
    assert failure(ours, args, shell=True) == failure(original, args, shell=True)


def test_env_whose_items_can_be_read_once() -> None:
    class Variables:
        def __init__(self) -> None:
            # CPython accepts lists as pairs. Such a start is left to the original.
            self.left = iter([["A", "b"], ["C", "d"]])

        def items(self) -> Any:
            return self.left

        def get(self, name: str) -> None:
            return None

    def output(module: Any) -> Any:
        return module.run(["env"], env=Variables(), capture_output=True).stdout

    assert output(ours) == output(original) == b"A=b\nC=d\n"


def test_variable_without_a_name() -> None:
    def outcome(module: Any) -> Any:
        # CPython 3.13 starts a program given by path with posix_spawn, which refuses the variable.
        env: Any = shutil.which("env")
        try:
            return module.run([env], env={"": "b"}, capture_output=True).stdout
        except ValueError as error:
            return str(error)

    counted = CountersSince()
    assert outcome(ours) == outcome(original)
    assert counted.get()[0] == 0


def test_exceptions_of_hooks_and_handlers_start_nothing() -> None:
    """A ValueError of a hook must not be taken for an error in the arguments."""
    run_script(
        """
        import signal
        raised, way = [ValueError("mine")], ""
        def handler(*args):
            if raised: raise raised[0]
        def hook(event, args):
            if event == "subprocess.Popen" and way == "hook": handler()
        class Name(str):
            def encode(self, *args):
                if way == "handler": signal.raise_signal(signal.SIGALRM)
                return super().encode(*args)
        sys.addaudithook(hook)
        signal.signal(signal.SIGALRM, handler)
        for way in ("hook", "handler"):
            try: sf.subprocess.Popen(["echo", "ran"], executable=Name("echo"))
            except ValueError as error: assert error is raised[0]
            else: raise SystemExit(f"{way}: not raised")
        assert sf.stats() == sf.subprocess.Stats(0, {}, 2), sf.stats()
        """
    )


PYENV = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
INTERPRETERS = [PYTHON, *map(str, sorted(PYENV.glob("versions/3.1[0-9]*/bin/python3")))]


@pytest.mark.parametrize("python", INTERPRETERS)
@pytest.mark.parametrize(
    "calls", [("clone", "fork", "vfork", "clone3"), ("execve", "execveat"), ("chdir",), ("setsid",)]
)
def test_kernel_errors_equal_the_originals(calls: tuple[str, ...], python: str) -> None:
    """Failures of fork, exec, chdir and setsid. Each error names its own file."""
    run_script(
        """
        calls = eval(sys.argv[1])
        def failure(module, args, options):
            try: module.Popen(args, **options).wait()
            except OSError as error: return type(error), error.args, error.strerror, error.filename
        plain = [{}, {"executable": "/bin/true"}, {"start_new_session": True}]
        more = [{}, {"cwd": "/"}, {"close_fds": False}]
        ways = [{**one, **other} for one in plain for other in more]
        table = [(args, options) for args in (["true"], ["/bin/true"]) for options in ways]
        for number in (1, 7, 11, 12, 13, 23, 24):
            child = os.fork()
            if child:
                assert os.waitpid(child, 0)[1] == 0, number
                continue
            answer(calls, 0x50000 | number)
            for way in table:
                theirs, mine = (failure(module, *way) for module in (subprocess, sf.subprocess))
                assert theirs == mine, (number, way, theirs, mine)
            os._exit(0)
        """,
        repr(numbers(*calls)),
        python=python,
    )


@pytest.mark.parametrize("calls", [("execve", "execveat"), ("setsid",)])
def test_child_killed_before_exec(calls: tuple[str, ...]) -> None:
    """A filter kills the child at execve or setsid. Popen reports this as the program's end."""
    run_script(
        """
        import asyncio, resource
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        answer(eval(sys.argv[1]), 0x80000000)

        async def main():
            process = await asyncio.create_subprocess_exec("true", start_new_session=True)
            return await process.wait()

        for module in (subprocess, sf.subprocess):
            ended = module.run(["echo", "x"], stdout=-1, start_new_session=True)
            assert (ended.returncode, ended.stdout) == (-31, b""), ended
            process = module.Popen(["true"], start_new_session=True)
            assert (process.wait(30), process.poll()) == (-31, -31)
            process.kill()
        sf.install()
        assert asyncio.run(main()) == -31
        assert sf.stats() == sf.subprocess.Stats(3, {}, 0), sf.stats()
        WALL = 0x40000000
        try: left = os.waitpid(-1, WALL)
        except ChildProcessError: left = None
        assert left is None, left
        """,
        repr(numbers(*calls)),
    )


def test_signal_handler_between_any_two_lines() -> None:
    """The handler starts programs, and calls install() and uninstall()."""
    run_script(
        """
        import signal, threading
        def handler(*args):
            sys.settrace(None)
            subprocess.call(["true"])
            subprocess.call(["true"], preexec_fn=int)
            sf.uninstall()
            sf.stats()
            sf.install()
        def trace(frame, event, arg):
            if frame.f_code.co_filename.endswith(("_popen.py", "_install.py")):
                lines.add((frame.f_code.co_filename, frame.f_lineno))
                if event == "line" and len(lines) > reached:
                    handler()
            return trace
        # trace() sees each line of work(), so the handler runs once between any two lines.
        def work():
            subprocess.call(["true"])
            subprocess.call(["true"], preexec_fn=int)
            sf.stats()
            sf.uninstall()
            sf.install()
        sf.install()
        done = threading.Event()
        def watch():
            if not done.wait(200): os._exit(1)
        threading.Thread(target=watch, daemon=True).start()
        reached = 0
        while True:
            lines = set()
            sys.settrace(trace)
            work()
            if sys.gettrace() is not None:
                break
            reached += 1
        sys.settrace(None)
        done.set()
        assert reached > 20, reached
        """
    )


@pytest.mark.parametrize("closed", [0, 2])
def test_closed_stream_and_a_pipe_of_the_same_number(closed: int) -> None:
    """The pipe gets the closed stream's number.

    In the options of Popen, this number still means the closed stream.
    """
    run_script(
        """
        import signal
        signal.alarm(200)
        errors = os.dup(2)
        os.close(closed := int(sys.argv[1]))
        ways = [{"stdin": closed, "stdout": -1}, {"stdin": closed, "stderr": -1}]
        ways += [{"stdin": -1, "stdout": -1, "stderr": closed}]
        ways += [{"stdin": closed, "stdout": -1, "stderr": -1}]
        ways += [{"stdout": -1, "pass_fds": [closed]}]
        def outcome(module, options):
            code = "import os; print(sorted(os.listdir('/proc/self/fd')))"
            try:
                process = module.Popen([sys.executable, "-S", "-c", code], **options)
            except OSError as error:
                return error.errno, error.args
            return process.communicate(), process.wait()
        for options in ways:
            one, two = outcome(subprocess, options), outcome(sf.subprocess, options)
            if one != two:
                os.write(errors, repr((options, one, two)).encode())
                os._exit(1)
        """,
        str(closed),
    )
