# SPDX-License-Identifier: MIT OR Apache-2.0
"""Objects that can be pickled for other processes (multiprocessing), and objects that cannot."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any

import pytest
import spawnfd as sf
from conftest import make_script

LIMITS = sf.Limits(cpu_time=1, cpus=1, enforce="best-effort")
PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)
FIELDS = [
    name
    for name in dir(sf.Result)
    if not name.startswith("_") and not callable(getattr(sf.Result, name))
]


def fields(result: sf.Result) -> dict[str, Any]:
    return {name: getattr(result, name) for name in FIELDS} | {"repr": repr(result)}


def results(tmp_path: Path) -> list[sf.Result]:
    noise = "printf 'é%.0s' $(seq 400); printf 'ü%.0s' $(seq 400) >&2; exit 3"
    spill = sf.Spill(700, dir=tmp_path, persist=True)
    return [
        sf.run(["true"]),
        sf.run(sf.sh(noise), keep=(33, 35)),
        sf.run(sf.sh(noise), keep=(33, 35), combined=True),
        sf.run(sf.sh(noise), keep=(33, 35), combined=True, marker=None),
        sf.run(sf.sh(noise), keep=(10, 0), spill=spill, output_limit=1 << 20),
        sf.run(sf.sh(noise), keep=(10, 0), spill=sf.Spill(1 << 20, dir=tmp_path / "none")),
        sf.run(sf.sh("kill -9 $$"), input="x" * (1 << 20)),
        sf.run(sf.sh("echo $0 x; echo >&2; sleep 60"), timeout=0.1, tree="guard"),
        sf.run(sf.sh("sleep 60 & echo $!"), drain=0.01, leftovers="kill"),
        sf.run([b"echo", b"\xff\xfe"], output_limit=1),
        sf.run(["sh", "-c", "yes"], output_limit=1000),
        sf.run(sf.sh("while :; do :; done"), limits=LIMITS, tree="guard"),
    ]


def test_results_are_pickled(tmp_path: Path) -> None:
    seen: set[str] = set()
    for result in results(tmp_path):
        seen.add(result.stop)
        assert copy.copy(result) is result
        assert copy.deepcopy([result])[0] is result
        for protocol in PROTOCOLS:
            again: Any = pickle.loads(pickle.dumps(result, protocol))
            assert type(again) is sf.Result
            assert fields(again) == fields(result)
            assert fields(pickle.loads(pickle.dumps(again, protocol))) == fields(result)
    assert seen == {"exited", "timeout", "output_limit", "limit"}
    assert {"text", "spilled", "leftovers", "started", "tree", "args", "cpu"} <= set(FIELDS)
    assert {"output", "omitted", "stdout_head", "stderr_tail"} <= set(FIELDS)


def test_unpickled_result_does_not_own_the_spill_file(tmp_path: Path) -> None:
    result = sf.run(sf.sh("seq 1000"), keep=(10, 10), spill=sf.Spill(1 << 20, dir=tmp_path))
    path = Path(result.spill_path or "")
    again = pickle.loads(pickle.dumps(result))
    assert again.spill_path == str(path)
    del again
    assert path.exists()
    again = pickle.loads(pickle.dumps(result))
    del result
    assert not path.exists()
    assert again.spill_path == str(path)


def test_invalid_state_is_refused() -> None:
    restore, (state,) = sf.run(["true"]).__reduce__()
    for name, wrong, message in (
        ("stop", "tomorrow", "unknown variant `tomorrow`"),
        ("cuts", [(0, 5), (0, 0)], "another version"),
        ("started", "by magic", 'unknown start "by magic"'),
        ("stdout", 5, "another version"),
    ):
        with pytest.raises(ValueError, match=message):
            restore(state | {name: wrong})
    with pytest.raises(ValueError, match="wall"):
        restore({name: value for name, value in state.items() if name != "wall"})
    # Lengths that do not fit are read safely.
    cuts = [{"head": 5, "marker": 9, "omitted": 5}, state["cuts"][1]]
    assert restore(state | {"cuts": cuts}).stdout_head == b""


def errors(tmp_path: Path) -> list[Exception]:
    found: list[Exception] = []
    path = make_script(tmp_path / "tool", "#!/bin/sh\n")
    template = sf.Template(path)
    path.write_text("#!/bin/sh\nexit\n")
    calls: list[Any] = [
        template.run,
        lambda: sf.run(["no-such-program"]),
        lambda: sf.run(["true"], cwd="/etc/passwd"),
        lambda: sf.Template("./relative"),
        lambda: sf.run(["true"], actions=[sf.actions.Umask(0), sf.actions.Chdir("/no")]),
        lambda: sf.run(["false"]).check(),
        lambda: sf.run(["sleep", "9"], timeout=0.01).check(),
    ]
    for call in calls:
        with pytest.raises((sf.SpawnError, sf.ExitError)) as caught:
            call()
        found.append(caught.value)
    return found


def test_errors_are_pickled(tmp_path: Path) -> None:
    names = ["errno", "strerror", "filename", "stage", "action", "call"]
    found = errors(tmp_path)
    assert isinstance(found[0], sf.StaleTemplate)
    for error in found:
        copies: list[Any] = [copy.copy(error), copy.deepcopy(error)]
        copies += [pickle.loads(pickle.dumps(error, protocol)) for protocol in PROTOCOLS]
        for again in copies:
            assert again.__class__ is error.__class__
            assert (str(again), len(again.args)) == (str(error), len(error.args))
            if isinstance(error, sf.ExitError):
                assert fields(again.result) == fields(error.result)
            else:
                for name in names:
                    assert getattr(again, name) == getattr(error, name), name


def test_values_are_pickled() -> None:
    env = sf.Env.empty().set("A", "1").set(b"B\xff", b"\xfe").set("C", "")
    spill = sf.Spill(5, dir="/tmp", persist=True)
    values: list[Any] = [
        env,
        sf.Env.inherit(),
        spill,
        sf.Spilled(1, "failed", 28),
        sf.Leftover(1, "x", "killed"),
        sf.Omitted(1, 2),
        sf.OutputPiece("stdout", b"x", "x", 0),
        sf.stats(),
        sf.TemplateCache.shared().stats(),
        sf.actions.Limit(1, 2, None),
        sf.actions.Setsid(),
    ]
    for value in values:
        assert copy.deepcopy(value) == value
        for protocol in PROTOCOLS:
            again: Any = pickle.loads(pickle.dumps(value, protocol))
            assert again == value
            assert repr(again) == repr(value)
    assert pickle.loads(pickle.dumps(env)).items() == env.items()


def test_events_and_chunks_are_pickled() -> None:
    with sf.start_sync(sf.sh("printf 'a\\303'; sleep 0.1; printf '\\251\\n' >&2; echo x")) as job:
        values: list[Any] = [*job.events(), *job.events(lines=True), job.read()]
        values.append(pickle.loads(pickle.dumps(values[0])))
    assert {type(value) for value in values} == {sf.Event, sf.Chunk}
    for value in values:
        names = [name for name in dir(value) if not name.startswith("_")]
        assert {"bytes", "text", "lost"} <= set(names)
        for protocol in PROTOCOLS:
            again = pickle.loads(pickle.dumps(value, protocol))
            assert (type(again), repr(again)) == (type(value), repr(value))
            for name in names:
                assert getattr(again, name) == getattr(value, name)


def test_process_bound_objects_are_refused() -> None:
    template = sf.Template("true")
    assert copy.copy(template) is template
    assert copy.deepcopy({"tool": template})["tool"] is template
    with (
        sf.spawn(["cat"], stdin="pipe") as child,
        sf.start_sync(["true"]) as job,
    ):
        bound = [child, job, sf.TemplateCache.shared()]
        for value in bound:
            with pytest.raises(TypeError, match=f"a {type(value).__name__} cannot be copied: "):
                copy.copy(value)
        for value in [*bound, template]:
            refusal = f"a {type(value).__name__} cannot be pickled: it "
            for protocol in PROTOCOLS:
                with pytest.raises(TypeError, match=refusal):
                    pickle.dumps(value, protocol)
    with pytest.raises(TypeError, match="the right to execute the file; pass the path"):
        pickle.dumps(template)


def run_in_worker(code: int) -> sf.Result:
    return sf.run(sf.sh(f"echo {os.getpid()}; exit {code}"))


def fail_in_worker(_: int) -> sf.Result:
    return sf.run(["no-such-program"])


def check_in_worker(code: int) -> sf.Result:
    return run_in_worker(code).check()


@pytest.fixture
def stop_helpers() -> Iterator[None]:
    """Ends the helper processes that multiprocessing keeps for later use."""
    yield
    for module, name in ((forkserver, "_forkserver"), (resource_tracker, "_resource_tracker")):
        getattr(module, name)._stop()


@pytest.mark.usefixtures("stop_helpers")
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_process_pool_returns_results_and_errors(method: str) -> None:
    context = multiprocessing.get_context(method)
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        for code, result in enumerate(pool.map(run_in_worker, range(4))):
            assert result.code == code
            assert int(result.text) != os.getpid()
        with pytest.raises(FileNotFoundError) as missing:
            pool.submit(fail_in_worker, 0).result()
        assert isinstance(missing.value, sf.SpawnError)
        assert missing.value.stage == "template"
        with pytest.raises(sf.ExitError) as ended:
            pool.submit(check_in_worker, 7).result()
        assert ended.value.result.code == 7
