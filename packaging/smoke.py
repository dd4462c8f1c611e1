# SPDX-License-Identifier: MIT OR Apache-2.0
"""Shows that an installed package works, with the standard library alone: `python smoke.py`."""

from __future__ import annotations

import asyncio
import errno
import faulthandler
import os
import sys
import tempfile
import time
import unittest
from collections.abc import Callable
from functools import partial
from pathlib import Path

import spawnfd as sf

# The time limit of one test, and of one wait in a test.
TEST_S = 120
WAIT_S = 60.0
# Whether this CPython can be parked after its initialisation. A newer one starts cold, and the
# result says so.
PYTHON_IS_WARM = os.environ.get("SMOKE_PYTHON_IS_WARM", "1") == "1"
# The reason for which all programs start cold on this platform. Empty: there are warm starts.
COLD = os.environ.get("SMOKE_COLD", "")


def is_gone(pid: int) -> bool:
    """Whether the process has ended. It may be a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def eventually(condition: Callable[[], bool]) -> bool:
    """Waits until the condition holds."""
    deadline = time.monotonic() + WAIT_S
    while not (holds := condition()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return holds


def run_in_both_ways(argv: list[str], **options: object) -> list[sf.Result]:
    """The results of `run` and of `run_async`."""
    first = sf.run(argv, **options)  # type: ignore[arg-type]
    return [first, asyncio.run(sf.run_async(argv, **options))]  # type: ignore[arg-type]


class SmokeTest(unittest.TestCase):
    """A test that hangs prints the stacks of all threads, and ends the interpreter."""

    def setUp(self) -> None:
        """Starts the time limit, and remembers the descriptors."""
        faulthandler.dump_traceback_later(TEST_S, exit=True)
        self.addCleanup(faulthandler.cancel_dump_traceback_later)


class Package(SmokeTest):
    """The package itself."""

    def test_version_is_that_of_the_metadata(self) -> None:
        from importlib.metadata import version

        self.assertEqual(sf.__version__, version("spawnfd"))

    def test_package_has_its_types_and_every_public_name(self) -> None:
        folder = Path(str(sf.__file__)).parent
        self.assertTrue((folder / "py.typed").is_file())
        self.assertTrue((folder / "_spawnfd.pyi").is_file())
        for name in sf.__all__:
            self.assertTrue(hasattr(sf, name), name)


class Run(SmokeTest):
    """Captured runs, blocking and asynchronous."""

    def test_result_has_status_and_streams(self) -> None:
        for result in run_in_both_ways(["sh", "-c", "cat; echo err >&2; exit 3"], input="in\n"):
            self.assertEqual((result.code, result.stop), (3, "exited"))
            self.assertEqual((result.stdout, result.stderr), (b"in\n", b"err\n"))
            with self.assertRaises(sf.ExitError):
                result.check()

    def test_missing_program_is_an_error_with_errno(self) -> None:
        for call in (sf.run, lambda argv: asyncio.run(sf.run_async(argv))):
            with self.assertRaises(FileNotFoundError) as caught:
                call(["no-such-tool"])
            self.assertIsInstance(caught.exception, sf.SpawnError)
            self.assertEqual(caught.exception.errno, errno.ENOENT)

    def test_timeout_kills_the_whole_tree(self) -> None:
        # The grandchild ignores SIGTERM, and keeps the pipe open.
        script = "(trap '' TERM; echo $BASHPID; while :; do sleep 60; done) & wait"
        for result in run_in_both_ways(["bash", "-c", script], timeout=1, grace=0.1):
            self.assertEqual(result.stop, "timeout")
            self.assertEqual({leftover.fate for leftover in result.leftovers}, {"killed"})
            pid = int(result.stdout_head)
            self.assertTrue(eventually(partial(is_gone, pid)), f"process {pid} is alive")

    def test_output_is_capped(self) -> None:
        for result in run_in_both_ways(["seq", "1000000"], keep=(8, 8)):
            self.assertEqual((result.code, result.stdout_tail), (0, b"1000000\n"))
            self.assertEqual(result.omitted["stdout"].bytes, 6_888_880)
        for result in run_in_both_ways(["yes"], output_limit=1 << 20):
            self.assertEqual(result.stop, "output_limit")

    def test_program_gets_no_other_descriptor(self) -> None:
        with open("/dev/null") as extra:
            os.set_inheritable(extra.fileno(), True)
            # The shell of busybox would execute a last `ls` itself.
            for result in run_in_both_ways(["sh", "-c", "ls /proc/$$/fd; true"]):
                self.assertEqual(result.text.split(), ["0", "1", "2"])

    def test_sixteen_runs_at_once(self) -> None:
        async def all_runs() -> list[sf.Result]:
            return await asyncio.gather(*(sf.run_async(["echo", str(i)]) for i in range(16)))

        self.assertEqual(
            [result.text for result in asyncio.run(all_runs())], [f"{i}\n" for i in range(16)]
        )


@unittest.skipUnless(sf.portable, "the package has its native part")
class Portable(SmokeTest):
    """What the wheel without a native part does in another way."""

    def test_result_says_how_the_program_was_started(self) -> None:
        for result in run_in_both_ways(["true"]):
            self.assertEqual((result.started, result.tree), ("portable", "group"))
            self.assertFalse(result.tree_complete)

    def test_timeout_kills_the_process_group(self) -> None:
        # The grandchild ignores SIGTERM, and keeps the pipe open.
        script = "(trap '' TERM; echo $BASHPID; while :; do sleep 60; done) & wait"
        for result in run_in_both_ways(["bash", "-c", script], timeout=1, grace=0.1):
            self.assertEqual(result.stop, "timeout")
            pid = int(result.stdout_head)
            self.assertTrue(eventually(partial(is_gone, pid)), f"process {pid} is alive")

    def test_what_is_missing_says_why(self) -> None:
        uses: list[Callable[[], object]] = [
            lambda: sf.Template("true"),
            sf.Warm,
            sf.install,
            lambda: sf.run(["true"], tree="guard"),
        ]
        for use in uses:
            with self.assertRaises(sf.Unsupported):
                use()


class Templates(SmokeTest):
    """Templates of executables."""

    def test_template_starts_its_program(self) -> None:
        template = sf.Template("sh")
        self.assertEqual(template.run(["-c", "echo $0 $1", "a", "b"]).text, "a b\n")
        self.assertEqual(asyncio.run(template.run_async(["-c", "exit 5"])).code, 5)
        with template.spawn(["-c", "exit 6"]) as child:
            self.assertEqual(child.wait(), 6)

    def test_changed_executable_is_stale(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            tool = Path(folder, "tool")
            tool.write_text("#!/bin/sh\necho old\n")
            tool.chmod(0o755)
            template = sf.Template(str(tool))
            self.assertEqual(template.run([]).text, "old\n")
            other = Path(folder, "other")
            other.write_text("#!/bin/sh\necho other\n")
            other.chmod(0o755)
            other.rename(tool)
            with self.assertRaises(sf.StaleTemplate):
                template.run([])


class Jobs(SmokeTest):
    """Jobs: programs that run while the caller does other work."""

    SCRIPT = "read line; echo got $line; echo err >&2; sleep 600 & echo $!; wait"

    def test_job_streams_and_ends_its_tree(self) -> None:
        with sf.start_sync(["bash", "-c", self.SCRIPT], stdin="stream") as job:
            job.write(b"word\n")
            seen: list[str] = []
            for event in job.events(lines=True):
                if event.stream == "stdout":
                    seen.append(event.text.strip())
                if len(seen) == 2:
                    break
        self.assertEqual(seen[0], "got word")
        self.assertTrue(eventually(partial(is_gone, int(seen[1]))), "the grandchild is alive")

    def test_asynchronous_job_streams_and_ends_its_tree(self) -> None:
        async def run() -> list[str]:
            seen: list[str] = []
            async with sf.start(["bash", "-c", self.SCRIPT], stdin="stream") as job:
                await job.write(b"word\n")
                async for event in job.events(lines=True):
                    if event.stream == "stdout":
                        seen.append(event.text.strip())
                    if len(seen) == 2:
                        break
            return seen

        seen = asyncio.run(run())
        self.assertEqual(seen[0], "got word")
        self.assertTrue(eventually(partial(is_gone, int(seen[1]))), "the grandchild is alive")

    def test_session_keeps_the_state_of_its_shell(self) -> None:
        async def run() -> str:
            async with sf.Session("bash", cwd="/") as session:
                await session.run("cd usr && export X=1")
                return (await session.run("echo $PWD $X")).text

        self.assertEqual(asyncio.run(run()), "/usr 1\n")


class Warm(SmokeTest):
    """Warm starts."""

    def check(self, program: str, argv: list[str], expected: str, *, is_warm: bool) -> None:
        """Starts the program from a reserve, in both ways."""

        async def run_async(warm: sf.Warm) -> sf.Result:
            return await warm.run_async(argv)

        starts: list[Callable[[sf.Warm], sf.Result]] = [
            lambda warm: warm.run(argv),
            lambda warm: asyncio.run(run_async(warm)),
        ]
        with sf.Warm() as warm:
            warm.add(program)
            for start in starts:
                deadline = time.monotonic() + WAIT_S
                while True:
                    if is_warm and not COLD:
                        self.assertTrue(warm.fill(WAIT_S), warm.stats())
                    result = start(warm)
                    # A parked process that does not begin within half a second is given up.
                    if result.started != "cold: slow" or time.monotonic() > deadline:
                        break
                self.assertEqual((result.code, result.text), (0, expected))
                if COLD:
                    self.assertEqual(result.started, f"cold: {COLD}")
                elif is_warm:
                    self.assertEqual(result.started, "reserve")
                else:
                    self.assertRegex(result.started, "^cold: ")

    def test_bash(self) -> None:
        self.check("bash", ["bash", "-c", "echo hello"], "hello\n", is_warm=True)

    def test_this_python(self) -> None:
        code = "import sys; print(sys.argv[1])"
        self.check(
            sys.executable, [sys.executable, "-c", code, "hello"], "hello\n", is_warm=PYTHON_IS_WARM
        )


class Replacement(SmokeTest):
    """`install()` replaces subprocess and asyncio."""

    def test_subprocess_and_asyncio_start_by_spawnfd(self) -> None:
        import subprocess

        async def communicate() -> bytes:
            process = await asyncio.create_subprocess_exec("echo", "two", stdout=subprocess.PIPE)
            return (await process.communicate())[0]

        sf.install()
        try:
            before = sf.stats().made
            self.assertEqual(
                subprocess.run(["echo", "one"], stdout=subprocess.PIPE).stdout, b"one\n"
            )
            self.assertEqual(asyncio.run(communicate()), b"two\n")
            self.assertGreaterEqual(sf.stats().made, before + 2)
        finally:
            sf.uninstall()


if __name__ == "__main__":
    unittest.main()
