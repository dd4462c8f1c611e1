# SPDX-License-Identifier: MIT OR Apache-2.0
"""The choice of the portable engine, its warning, and what it refuses.

SPAWNFD_PORTABLE=1 lets the other tests run against it.
"""

from __future__ import annotations

import os
import pickle
import select
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
import spawnfd as sf
from patience import TIMEOUT_S

PACKAGE = Path(sf.__file__).parent
MISSING = [
    "sf.Session('bash').start('x').__await__().send(None)",
    "sf.SyncSession('bash').start('x')",
    "sf.Template('true')",
    "sf.Template.from_fd(0)",
    "sf.TemplateCache()",
    "sf.TemplateCache.shared()",
    "sf.Warm()",
    "sf.Remote.command(['true'])",
    "sf.Sandbox(['env'])",
    "sf.snapshot('/bin/true')",
    "sf.Snapshot()",
    "sf.SnapshotCache()",
    "sf.spawn(['true'])",
    "sf.install()",
    "sf.uninstall()",
    "sf.stats()",
    "sf.Stats()",
    "sf.subprocess.run",
    "sf.asyncio.create_subprocess_exec",
    "__import__('spawnfd.subprocess', fromlist=['Popen']).Popen",
]
OPTIONS = [
    "actions=[sf.actions.Umask(0)]",
    "limits=sf.Limits(pids=5)",
    "spill=sf.Spill(1000)",
    "terminal=(24, 80)",
    *(f'tree="{tree}"' for tree in ("guard", "subreaper", "cgroup", "pidns")),
]


def ended(
    code: str, package: Path = PACKAGE, options: tuple[str, ...] = (), **env: str
) -> subprocess.CompletedProcess[str]:
    """Runs code in a new interpreter that imports this package."""
    start = f"import sys; sys.path.insert(0, {str(package.parent)!r})\nimport spawnfd as sf\n"
    others = {name: value for name, value in os.environ.items() if "SPAWNFD" not in name}
    return subprocess.run(
        [sys.executable, "-B", *options, "-c", start + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=100,
        env=others | env,
    )


def portable(code: str) -> str:
    """Runs code with the portable engine, and returns what it prints."""
    result = ended(code, SPAWNFD_PORTABLE="1", SPAWNFD_PORTABLE_WARNING="0")
    assert (result.returncode, result.stderr) == (0, ""), result.stderr
    return result.stdout


def copy_of_package(directory: Path) -> Path:
    """Copies the package without its native part."""
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    return Path(shutil.copytree(PACKAGE, directory / "spawnfd", ignore=ignored))


@contextmanager
def fifo_reader(path: Path) -> Generator[int]:
    """Creates a FIFO, and opens it for reading."""
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        yield reader
    finally:
        os.close(reader)


def has_no_writer(reader: int) -> bool:
    """Waits until all processes that have opened the FIFO for writing have ended."""
    return bool(select.select([reader], [], [], TIMEOUT_S)[0]) and os.read(reader, 1) == b""


SHOW = "print(sf.portable, sf.run(['true']).started)"


@pytest.mark.skipif(not any(PACKAGE.glob("_spawnfd.*so")), reason="the native part is not built")
def test_native_part_is_used_if_there_is_one() -> None:
    for value in ("", "0"):
        assert ended(SHOW, SPAWNFD_PORTABLE=value).stdout == "False clone\n"
    assert portable(SHOW) == "True portable\n"


def test_package_without_native_part_is_portable(tmp_path: Path) -> None:
    result = ended(SHOW, copy_of_package(tmp_path))
    assert (result.stdout, result.returncode) == ("True portable\n", 0)
    assert "PortableWarning" in result.stderr


def test_native_part_that_cannot_be_imported_is_an_error(tmp_path: Path) -> None:
    package = copy_of_package(tmp_path)
    (package / "_spawnfd.abi3.so").write_bytes(b"\0")
    result = ended(SHOW, package)
    assert (result.stdout, result.returncode) == ("", 1)
    assert "ImportError" in result.stderr
    # The portable engine is used only if the caller asks for it.
    assert ended(SHOW, package, SPAWNFD_PORTABLE="1").stdout == "True portable\n"


def test_package_in_a_zip_file_is_portable(tmp_path: Path) -> None:
    copy_of_package(tmp_path / "tree")
    archive = Path(shutil.make_archive(str(tmp_path / "package"), "zip", tmp_path / "tree"))
    assert ended(SHOW, archive / "spawnfd").stdout == "True portable\n"


def test_every_public_name_exists() -> None:
    assert portable("from spawnfd import *; print(set(sf.__all__) - set(globals()))") == "set()\n"


@pytest.mark.parametrize("use", MISSING)
def test_missing_name_raises_unsupported(use: str) -> None:
    code = f"""
    try:
        {use}
    except sf.Unsupported as error:
        print(error.what and error.why and str(error).startswith(error.what))
    """
    assert portable(code).startswith("True")


@pytest.mark.parametrize("option", OPTIONS)
def test_option_that_cannot_be_honoured_raises_unsupported(option: str) -> None:
    code = f"""
    import asyncio, os
    async def start():
        async with sf.start(["touch", "marker"], {option}):
            pass
    os.chdir("/proc/self")  # nothing can be created here
    for call in (
        lambda: sf.run(["touch", "marker"], {option}),
        lambda: asyncio.run(sf.run_async(["touch", "marker"], {option})),
        lambda: sf.start_sync(["touch", "marker"], {option}),
        lambda: asyncio.run(start()),
    ):
        try:
            call()
        except sf.Unsupported as error:
            print(error.what)
    """
    name = option.partition("=")[0]
    assert [line.partition("=")[0] for line in portable(code).splitlines()] == [name] * 4


def test_options_that_ask_for_nothing_are_accepted() -> None:
    code = """
    nothing = {"actions": [], "limits": sf.Limits(), "warm": None, "sandbox": None, "spill": None}
    for tree in (None, "auto", "group"):
        print(sf.run(["true"], tree=tree, **nothing).tree)
    """
    assert portable(code) == "group\n" * 3


def test_warning_is_issued_once_at_the_first_start() -> None:
    code = """
    print("imported", flush=True)
    for _ in range(2):
        sf.run(["true"])
    """
    result = ended(code, SPAWNFD_PORTABLE="1")
    assert (result.stdout, result.returncode) == ("imported\n", 0)
    assert result.stderr.count("PortableWarning: ") == 1
    # The warning names the line of the caller.
    assert result.stderr.startswith("<string>:6: ")
    error = ended(code, options=("-W", "error"), SPAWNFD_PORTABLE="1")
    assert (error.stdout, error.returncode) == ("imported\n", 1)


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("sf.run(['true'])", "0"),
        ("import warnings; warnings.simplefilter('ignore', sf.PortableWarning); sf.run(['x'])", ""),
        ("pass", ""),
    ],
)
def test_warning_can_be_turned_off(code: str, value: str) -> None:
    result = ended(code, SPAWNFD_PORTABLE="1", SPAWNFD_PORTABLE_WARNING=value)
    assert "PortableWarning" not in result.stderr


def test_unsupported_is_a_spawn_error_and_can_be_pickled() -> None:
    error = sf.Unsupported("limits", "there is no cgroup")
    again: sf.Unsupported = pickle.loads(pickle.dumps(error))
    assert issubclass(sf.Unsupported, sf.SpawnError)
    assert (again.what, again.why, str(again)) == ("limits", "there is no cgroup", str(error))
    assert str(error) == "limits: not available in portable mode: there is no cgroup"


def test_nothing_is_left_when_the_interpreter_ends(tmp_path: Path) -> None:
    line = "exec 9>fifo; sleep 1000 & echo ready; wait"
    code = f"""
    job = sf.start_sync(sf.sh({line!r}), cwd={str(tmp_path)!r})
    print(bool(job.wait_for("ready", 60)))
    """
    with fifo_reader(tmp_path / "fifo") as reader:
        assert portable(code) == "True\n"
        assert has_no_writer(reader)


def test_forked_copy_cannot_use_a_job() -> None:
    code = """
    import os
    job = sf.start_sync(["cat"], stdin="stream")
    pid = os.fork()
    if pid == 0:
        for use in (job.wait, lambda: job.write("x")):
            try:
                use()
                os._exit(1)
            except (ChildProcessError, BrokenPipeError):
                pass
        del job
        os._exit(0 if list(sf.run(["echo", "x"]).text) == ["x", "\\n"] else 2)
    print(os.waitpid(pid, 0)[1], job.wait(0))
    job.write("still")
    job.close_stdin()
    print(job.result().text)
    """
    assert portable(code) == "0 None\nstill\n"


def test_audit_hook_sees_each_start_and_can_refuse_it() -> None:
    code = """
    import sys
    events = []
    def hook(event, args):
        if event == "subprocess.Popen":
            events.append(args[1])
            if refuses: raise RuntimeError("refused")
    sys.addaudithook(hook)
    for refuses in (False, True):
        try:
            print(sf.run(["true", "x"]).code, events)
        except RuntimeError as error:
            print(error)
    """
    assert portable(code) == "0 [['true', 'x']]\nrefused\n"


def test_loop_without_readers_is_woken() -> None:
    """The default loop of Windows cannot watch a descriptor."""
    code = """
    import asyncio
    class Loop(asyncio.SelectorEventLoop):
        def add_reader(self, fd, callback, *args):
            if "spawnfd" in getattr(callback, "__module__", "") or hasattr(callback, "__self__"):
                if type(callback.__self__).__module__.startswith("spawnfd"):
                    raise NotImplementedError
            return super().add_reader(fd, callback, *args)
        def remove_reader(self, fd):
            if fd not in self._selector.get_map():
                raise NotImplementedError
            return super().remove_reader(fd)
    async def main():
        async with sf.start(["cat"], stdin="stream") as job:
            await job.write("one\\n")
            async for event in job.events(lines=True):
                print(event.text, end="")
                break
            job.close_stdin()
            print((await job.result()).code)
        print((await sf.run_async(["echo", "two"])).text, end="")
    loop = Loop()
    loop.run_until_complete(main())
    loop.close()
    """
    assert portable(code) == "one\n0\ntwo\n"


def test_no_ps_means_that_leftovers_are_unknown(tmp_path: Path) -> None:
    """The library kills the leftovers nevertheless."""
    line = "exec 9>fifo; sleep 1000 >/dev/null 2>&1 &"
    code = f"""
    import os
    argv, options = sf.sh({line!r}), {{"cwd": {str(tmp_path)!r}, "env": dict(os.environ)}}
    print([left.name for left in sf.run(argv, **options).leftovers])
    os.environ["PATH"] = {str(tmp_path)!r}
    result = sf.run(argv, **options)
    print(result.leftovers, result.leftovers_unknown)
    """
    with fifo_reader(tmp_path / "fifo") as reader:
        assert portable(code) == "['sleep']\n[] True\n"
        assert has_no_writer(reader)


def test_status_that_other_code_has_taken_is_lost() -> None:
    code = """
    import signal
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    result = sf.run(["sh", "-c", "echo out; exit 3"])
    print(result.stop, result.status_lost, result.code, result.ok, result.leftovers_unknown)
    """
    assert portable(code) == "lost True None False True\n"


def test_no_thread_is_left() -> None:
    code = """
    import asyncio, threading, time
    sf.run(["true"])
    asyncio.run(sf.run_async(["true"]))
    with sf.start_sync(["true"]) as job:
        job.result()
    sf._spawnfd.end_idle_threads()
    print(threading.active_count())
    """
    assert portable(code) == "1\n"


def test_import_needs_no_module_of_posix() -> None:
    """What Windows lacks is imported only where a run uses it."""
    code = """
    import queue, selectors, signal, socket, subprocess, threading
    for name in ("fcntl", "grp", "pty", "pwd", "resource", "termios", "tty", "_posixsubprocess"):
        sys.modules[name] = None
    import os
    for name in ("killpg", "register_at_fork", "sched_getaffinity", "set_blocking", "wait4"):
        delattr(os, name)
    del signal.pthread_sigmask, signal.SIGKILL
    sys.platform = "win32"
    for name in [name for name in sys.modules if name.partition(".")[0] == "spawnfd"]:
        del sys.modules[name]
    import spawnfd
    assert spawnfd is not sf and spawnfd.portable
    env = spawnfd.Env.empty().set("Path", "x")
    print(env.keys(), spawnfd.sh("x"))
    from spawnfd._portable import platforms
    print(platforms.IS_WINDOWS)
    """
    expected = "['PATH'] ['/bin/sh', '-c', 'x']\nTrue\n"
    assert portable(code) == expected


def test_values_are_pickled_for_either_engine() -> None:
    code = """
    import pickle
    with sf.start_sync(["echo", "x"]) as job:
        event = next(job.events())
        values = [sf.Env.empty().set("A", "1"), event, job.read()]
    sys.stdout.buffer.write(pickle.dumps(values))
    """
    env = {"SPAWNFD_PORTABLE": "1", "SPAWNFD_PORTABLE_WARNING": "0"}
    start = f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r})\nimport spawnfd as sf\n"
    pickled = subprocess.run(
        [sys.executable, "-B", "-c", start + textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        timeout=100,
        check=True,
        env=os.environ | env,
    ).stdout
    given, event, chunk = pickle.loads(pickled)
    assert (type(given), type(event), type(chunk)) == (sf.Env, sf.Event, sf.Chunk)
    assert (given["A"], event.text, chunk.next) == ("1", "x\n", 2)


def test_failed_start_returns_its_permit_at_once() -> None:
    code = """
    limiter = sf.Limiter(1)
    for argv, options in ((["true"], {"actions": [1]}), (["/no/program"], {}), ([], {})):
        try:
            sf.run(argv, limiter=limiter, **options)
        except (OSError, ValueError) as error:
            print(limiter.running, limiter.waiting)
    """
    assert portable(code) == "0 0\n" * 3


def test_start_without_a_thread_is_a_spawn_error() -> None:
    """A process that may have no more threads is refused, and leaves no program."""
    code = """
    import _thread, os, threading
    start, start_of_class = _thread.start_new_thread, threading.Thread.start
    for allowed in (0, 1):
        left = allowed
        def refuse(start, *arguments):
            global left
            left -= 1
            if left < 0:
                raise RuntimeError("can't start new thread")
            return start(*arguments)
        _thread.start_new_thread = lambda *arguments: refuse(start, *arguments)
        threading.Thread.start = lambda thread: refuse(start_of_class, thread)
        try:
            sf.run(["sleep", "1000"])
        except sf.SpawnError as error:
            print(error.stage, isinstance(error, BlockingIOError))
        _thread.start_new_thread, threading.Thread.start = start, start_of_class
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        print(sf.run(["echo", "on"]).text, end="")
    """
    assert portable(code) == "clone True\nclone True\non\n"
