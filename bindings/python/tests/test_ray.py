# SPDX-License-Identifier: MIT OR Apache-2.0
"""Programs on the nodes of a Ray cluster: two nodes on this machine, and a third one that dies.

Each test runs a driver in a process of its own, because Ray leaves threads and descriptors.
"""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import sys
import textwrap
import uuid
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
import spawnfd as sf
from conftest import FULL, is_alive
from patience import TIMEOUT_S, eventually

if importlib.util.find_spec("ray") is None:
    pytest.skip("Ray is not installed for this interpreter", allow_module_level=True)

pytestmark = pytest.mark.timeout(300 * float(os.environ.get("SPAWNFD_SLOWNESS", "1")))

# A tree of four sleeping processes: the program, a child, a child in a session of its own, and a
# daemon in a session of its own, whose parent has ended.
TREE = """
(setsid sh -c 'sleep 9999.TAG1; :' & )
sh -c 'sleep 9999.TAG2; :' &
setsid sh -c 'sleep 9999.TAG3; :' &
sleep 9999.TAG4; :
"""
PRELUDE = """
import asyncio, os, signal, sys, threading, time
import ray
import spawnfd as sf
import spawnfd.ray as sr
from spawnfd.ray import NodeLost, NoNode, Pool, PoolClosed
from test_ray import TREE, sleepers

ADDRESS, TAG = sys.argv[1:]
TREE = ["sh", "-c", TREE.replace("TAG", TAG)]
ray.init(address=ADDRESS, log_to_driver=False, logging_level="ERROR")

def started(count):
    while len(sleepers(TAG)) < 4 * count:
        time.sleep(0.05)

def ended():
    while sleepers(TAG):
        time.sleep(0.05)

def worker_of(node):
    "The pid of the actor of a node."
    return ray.get(node.actor.__ray_call__.remote(lambda self: os.getpid()))

def outcomes(calls):
    "Runs functions in threads. Returns a list that gets a result or an exception of each."
    found = []
    def run(call):
        try:
            found.append(call())
        except Exception as error:
            found.append(error)
    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    return found, lambda: [thread.join() for thread in threads]
"""


def processes(is_wanted: Callable[[Path], bool]) -> list[int]:
    """The pids of the processes whose directory in /proc fits."""
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if is_wanted(path) and is_alive(int(path.name)):
                found.append(int(path.name))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found


def sleepers(tag: str) -> list[int]:
    """The pids of the sleeping programs of a test."""
    start = f"sleep\0009999.{tag}".encode()
    return processes(lambda path: (path / "cmdline").read_bytes().startswith(start))


class Cluster:
    """A running cluster, in a process with all daemons."""

    def __init__(self) -> None:
        self._marker = f"SPAWNFD_RAY_TEST={uuid.uuid4().hex}"
        name, value = self._marker.split("=")
        script = str(Path(__file__).with_name("ray_cluster.py"))
        env = sf.Env.inherit().set(name, value).set("RAY_agent_register_timeout_ms", "600000")
        self._job = sf.start_sync(
            [sys.executable, script], env=env, stdin="stream", stderr="merge", tree="group"
        )
        address = re.compile(r"^[0-9.]+:[0-9]+\n", re.MULTILINE)
        found = self._job.wait_for(address, 4 * TIMEOUT_S)
        assert found, self._job.read().text
        self.address = found.text.strip()

    def do(self, line: str) -> None:
        """Changes the nodes."""
        self._job.write(f"{line}\n")
        assert self._job.wait_for("done\n", 4 * TIMEOUT_S), self._job.read().text

    def daemons(self) -> list[int]:
        marker = self._marker.encode()
        return processes(lambda path: marker in (path / "environ").read_bytes().split(b"\0"))

    def close(self) -> None:
        """Ends the cluster. Fails if a process of it is left."""
        self._job.close_stdin()
        result = self._job.wait(2 * TIMEOUT_S) or self._job.stop()
        has_ended = eventually(lambda: not self.daemons())
        for pid in self.daemons():
            os.kill(pid, signal.SIGKILL)
        assert has_ended
        assert result.ok, result.text

    def driver(self, body: str, tag: str) -> sf.SyncJob:
        """Starts a driver with this code."""
        code = PRELUDE + textwrap.dedent(body)
        paths = os.pathsep.join(
            [str(Path(__file__).parent), str(Path(str(sf.__file__)).parents[1])]
        )
        return sf.start_sync(
            [sys.executable, "-u", "-c", code, self.address, tag],
            env=sf.Env.inherit().set("PYTHONPATH", paths),
            stderr="merge",
            tree="group",
            timeout=4 * TIMEOUT_S,
        )


# `make test-all` tries all ways to end.
WAYS_OF_WORKER = ["SIGTERM", "ray.kill", "block", "drop"] if FULL else []
WAYS_OF_DRIVER = ["exception", "SIGTERM"] if FULL else []


@pytest.fixture(scope="module")
def cluster() -> Generator[Cluster]:
    cluster = Cluster()
    try:
        yield cluster
    finally:
        cluster.close()


@pytest.fixture
def tag() -> Generator[str]:
    """A number that the programs of a test have in their argv; none of them survives the test."""
    tag = str(uuid.uuid4().int)[:12]
    yield tag
    try:
        assert eventually(lambda: not sleepers(tag)), sleepers(tag)
    finally:
        for pid in sleepers(tag):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def run(cluster: Cluster, tag: str) -> Callable[[str], None]:
    """Returns a function that runs a driver, which must succeed."""

    def run(body: str) -> None:
        with cluster.driver(body, tag) as job:
            result = job.result()
        assert result.ok, result.text

    return run


def test_import_of_the_package_does_not_import_ray() -> None:
    code = "import sys, spawnfd; sys.exit(any(name.startswith('ray') for name in sys.modules))"
    assert sf.run([sys.executable, "-c", code], timeout=TIMEOUT_S).ok


def test_run_map_and_placement(run: Callable[[str], None]) -> None:
    run("""
    with Pool() as pool:
        assert sorted(where.split()[0] for where in pool.nodes.values()) == ["alpha", "beta"]
        result = pool.run(["sh", "-c", "echo out; echo err >&2; exit 3"])
        assert (result.code, result.text, result.stderr_text) == (3, "out\\n", "err\\n")
        assert result.where in pool.nodes.values()
        beta = pool.run(["true"], node="beta")
        assert beta.where.startswith("beta (ray ")
        [id] = [id for id, where in pool.nodes.items() if where == beta.where]
        for place in ({"node": id}, {"placement": "tree:beta"}, {"placement": {"zone": "beta"}}):
            assert pool.run(["true"], **place).where == beta.where

        expected = [f"{number}\\n" for number in range(300)]
        commands = [["echo", str(number)] for number in range(300)]
        results = list(pool.map(commands))
        assert [result.text for result in results] == expected
        assert {result.where for result in results} == set(pool.nodes.values())
        found = [result.text for result in pool.map(iter(commands), ordered=False)]
        assert sorted(found) == sorted(expected)

        mixed = list(pool.map([["true"], ["no-such-program"]], return_exceptions=True))
        assert mixed[0].ok and isinstance(mixed[1], sf.SpawnError)
        try:
            list(pool.map([["true"], ["no-such-program"]]))
        except FileNotFoundError:
            pass
        else:
            raise AssertionError
    with Pool(placement="tree:alpha", slots=3) as pool:
        assert len(pool.nodes) == 1
        output = pool.run(["head", "-c", "5000000", "/dev/zero"], keep="all").stdout
        assert output == bytes(5000000)
    """)


def test_errors_are_the_local_ones(run: Callable[[str], None]) -> None:
    run("""
    def error_of(call, *args, **options):
        try:
            call(*args, **options)
        except Exception as error:
            return error
        raise AssertionError

    with Pool() as pool:
        local, remote = (error_of(run, ["no-such-program"]) for run in (sf.run, pool.run))
        assert type(local) is type(remote)
        assert (local.errno, local.filename, local.stage) == (
            remote.errno, remote.filename, remote.stage)
        assert type(error_of(pool.run, ["true"], node="gamma")) is NoNode
        assert "zone" in str(error_of(pool.run, ["true"], placement={"zone": "gamma"}))
        assert type(error_of(pool.run, ["true"], placement=1)) is TypeError
        for name, value in (("limiter", sf.Limiter(1)), ("timeout", -1), ("stdin", 0),
                            ("unknown", 1)):
            assert name in str(error_of(pool.run, ["true"], **{name: value})), name
        assert type(error_of(Pool, slots=0)) is ValueError
        # The actor serves further calls.
        assert pool.run(["true"], timeout=0.1 + 60).ok
        assert pool.run(["sleep", "1000"], timeout=0.1).stop == "timeout"
    assert type(error_of(pool.run, ["true"])) is PoolClosed
    """)


def test_jobs_and_sessions(run: Callable[[str], None]) -> None:
    run("""
    ECHO = ["sh", "-c", "while read line; do echo got $line; done; echo end >&2"]
    with Pool() as pool:
        with pool.start_sync(ECHO, stdin="stream") as job:
            events = job.events(lines=True)
            for number in range(3):
                job.write(f"{number}\\n")
                assert next(events).text == f"got {number}\\n"
            assert job.wait(0) is None
            job.close_stdin()
            assert [(event.stream, event.text) for event in events] == [("stderr", "end\\n")]
            assert job.result().ok
            assert job.read().text == "got 0\\ngot 1\\ngot 2\\nend\\n"
        with pool.start_sync(["seq", "200000"]) as job:
            text = b"".join(event.bytes for event in job.events())
            assert text == b"".join(b"%d\\n" % number for number in range(1, 200001))
        with pool.start_sync(["sleep", "1000"]) as job:
            job.signal(signal.SIGTERM)
            assert job.result().signal == signal.SIGTERM
        with pool.session_sync("bash", node="beta") as session:
            assert session.run("cd /usr; X=1").ok
            assert session.run("pwd; echo $X").text == "/usr\\n1\\n"
            assert session.where.startswith("beta")
            job = session.run("sleep 1000", yield_after=0.1)
            assert [process.name for process in session.processes()] == ["sleep"]
            assert job.stop().stop == "cancelled"
            with session.start("echo a; echo b") as job:
                assert [event.text for event in job.events(lines=True)] == ["a\\n", "b\\n"]
        # Dropping a job ends its tree.
        job = pool.start_sync(TREE)
        started(1)
        del job
        ended()
    """)


def test_awaitable_forms_and_cancellation(run: Callable[[str], None]) -> None:
    run("""
    async def cancelled(call):
        task = asyncio.ensure_future(call)
        await asyncio.to_thread(started, 1)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            pass
        else:
            raise AssertionError
        assert not sleepers(TAG)

    async def consume(results):
        return [result async for result in results]

    async def main():
        async with Pool() as pool:
            assert (await pool.run_async(["echo", "a"])).text == "a\\n"
            results = await asyncio.gather(*[pool.run_async(["echo", "a"]) for _ in range(50)])
            assert all(result.ok for result in results)
            results = await consume(pool.map_async([["echo", str(n)] for n in range(50)]))
            assert [int(result.text) for result in results] == list(range(50))
            async with pool.start(["sh", "-c", "echo ready; exec sleep 1000"]) as job:
                assert (await job.wait_for("ready", 60)).text == "ready"
                assert await job.wait(0.01) is None
            assert not os.path.exists(f"/proc/{job.pid}")
            async with pool.session("bash") as session:
                assert (await session.run("echo hi")).text == "hi\\n"
            await cancelled(pool.run_async(TREE))
            task = asyncio.ensure_future(consume(pool.map_async([TREE, TREE])))
            await asyncio.to_thread(started, 2)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await asyncio.to_thread(ended)

    asyncio.run(main())
    # Ctrl-C during a blocking call.
    with Pool() as pool:
        threading.Thread(target=lambda: (started(1), os.kill(os.getpid(), signal.SIGINT))).start()
        try:
            pool.run(TREE)
        except KeyboardInterrupt:
            pass
        else:
            raise AssertionError
        assert not sleepers(TAG)
    """)


def test_back_pressure_limits_the_active_runs(run: Callable[[str], None], tmp_path: Path) -> None:
    run(f"""
    directory = {str(tmp_path)!r}
    script = f"echo > {{directory}}/$$; ls {{directory}} | wc -l; sleep 0.05; rm {{directory}}/$$"
    with Pool(slots=3, placement="tree:beta") as pool:
        counts = [int(result.text) for result in pool.map([["sh", "-c", script]] * 60)]
        assert max(counts) <= 3, counts
    """)


def test_pool_inside_tasks_and_actors(run: Callable[[str], None], tmp_path: Path) -> None:
    run(
        f"""
    MAY_DIE = {str(tmp_path / "may-die")!r}
    """
        + """
    @ray.remote(num_cpus=0)
    def passed(pool):
        return pool.run(["echo", "task"]).text

    @ray.remote(num_cpus=0)
    def own():
        with Pool(placement={"zone": "beta"}) as pool:
            return pool.run(["echo", "own"]).text

    @ray.remote(num_cpus=0)
    class Asynchronous:
        async def run(self, pool):
            return (await pool.run_async(["echo", "actor"])).text

    @ray.remote(num_cpus=0, max_retries=0)
    def dies(pool):
        def die():
            while not os.path.exists(MAY_DIE):
                time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGKILL)
        job = pool.start_sync(TREE)
        threading.Thread(target=die).start()
        pool.run(TREE)

    with Pool() as pool:
        assert ray.get(passed.remote(pool)) == "task\\n"
        assert ray.get(own.remote()) == "own\\n"
        assert ray.get(Asynchronous.remote().run.remote(pool)) == "actor\\n"
        # The programs of a caller end with it, also if the Pool belongs to another process.
        death = dies.remote(pool)
        started(2)
        open(MAY_DIE, "w").close()
        try:
            ray.get(death)
        except ray.exceptions.WorkerCrashedError:
            pass
        else:
            raise AssertionError
        ended()
        assert pool.run(["true"]).ok
    """
    )


@pytest.mark.parametrize("how", ["SIGKILL", "close", *WAYS_OF_WORKER])
def test_nothing_survives_the_actor(run: Callable[[str], None], how: str) -> None:
    run(f"""
    how = {how!r}
    pool = Pool(slots=8, placement="tree:beta").__enter__()
    [node] = pool._nodes.nodes.values()
    pid = worker_of(node)
    if how == "drop":
        calls = [node.actor.run.remote("", TREE, {{}}) for _ in range(4)]
        started(4)
        del pool
        ended()
        sys.exit()
    found, join = outcomes([lambda: pool.run(TREE)] * 4)
    started(4)
    if how in ("SIGKILL", "SIGTERM"):
        os.kill(pid, getattr(signal, how))
    elif how == "ray.kill":
        ray.kill(node.actor, no_restart=False)
    elif how == "close":
        pool.close()
    else:
        pool.__exit__()
    join()
    ended()
    if how == "block":
        assert [result.stop for result in found] == ["lost"] * 4, found
    else:
        kind = PoolClosed if how == "close" else NodeLost
        assert [type(error) for error in found] == [kind] * 4, found
        assert all("beta" in str(error) for error in found) or how == "close"
    if how not in ("close", "block"):
        # The actor starts again.
        assert pool.run(["true"]).ok
        pool.close()
    """)


def test_repeatable_run_survives_the_loss_of_its_node(cluster: Cluster, tag: str) -> None:
    cluster.do("gamma")
    body = """
    with Pool(slots=8) as pool:
        place = {"node": "gamma"}
        calls = [lambda: pool.run(TREE, node="gamma")] * 3
        # No other node has this name.
        calls += [lambda: pool.run(TREE, node="gamma", repeatable=True)]
        found, join = outcomes(calls)
        job = pool.start_sync(TREE, node="gamma")
        session = pool.session_sync("bash", node="gamma")
        assert session.run("true").ok
        # On gamma, the program does not end.
        raylet = pool.run(["printenv", "RAY_RAYLET_PID"], node="gamma").text.strip()
        script = f"[ $RAY_RAYLET_PID != {raylet} ] || exec sleep 9999.{TAG}5; echo there"
        commands = [sf.sh(script)] * 100
        mapped, join_map = outcomes([lambda: list(pool.map(commands, repeatable=True))])
        while len(sleepers(TAG + "4")) < 5 or not sleepers(TAG + "5"):
            time.sleep(0.05)
        print("started", flush=True)
        join()
        join_map()
        assert [type(error) for error in found[:3]] == [NodeLost] * 3, found
        assert all("gamma" in str(error) for error in found if isinstance(error, NodeLost))
        assert isinstance(found[3], (NodeLost, NoNode)), found
        assert [result.text for result in mapped[0]] == ["there\\n"] * 100, mapped
        for call in (job.result, lambda: session.run("true"), lambda: pool.run(["true"], **place)):
            try:
                call()
            except (NodeLost, NoNode) as error:
                print(error)
            else:
                raise AssertionError
        assert pool.run(["true"]).ok
        ended()
    """
    with cluster.driver(body, tag) as job:
        found = job.wait_for("started\n", 4 * TIMEOUT_S)
        assert found, job.read().text
        cluster.do("kill gamma")
        result = job.result()
    assert result.ok, result.text


@pytest.mark.parametrize("how", ["return", "SIGKILL", *WAYS_OF_DRIVER])
def test_nothing_survives_the_driver(cluster: Cluster, tag: str, how: str) -> None:
    body = f"""
    how = {how!r}
    pool = Pool(slots=8)
    calls = [threading.Thread(target=pool.run, args=(TREE,), daemon=True) for _ in range(4)]
    for call in calls:
        call.start()
    job = pool.start_sync(TREE)
    started(5)
    print("started")
    if how == "exception":
        raise RuntimeError("an error of the driver")
    if how.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, how))
        time.sleep(1000)
    """
    with cluster.driver(body, tag) as job:
        result = job.result()
        assert "started\n" in result.text, result.text
        # The fixture `tag` checks that no program is left.
        assert (how == "return") == result.ok, result.text
