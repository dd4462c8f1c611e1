# SPDX-License-Identifier: MIT OR Apache-2.0
"""Every action: the plan that it results in, and its errors."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import spawnfd as sf
from spawnfd import _spawnfd
from spawnfd import actions as act

root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def evaluate(expression: str, *actions: act.Action, **options: Any) -> Any:
    """Returns the value of the expression in a Python child that the actions have prepared."""
    code = f"import json, os; print(json.dumps({expression}))"
    # Not sys.executable: another user may be unable to reach it, for example below /root.
    result = sf.run(["/usr/bin/python3", "-c", code], actions=actions, **options)
    return json.loads(result.check().stdout)


def status(field: str, *actions: act.Action) -> str:
    """Returns the value of a line in the child's /proc/self/status."""
    result = sf.run(["grep", f"^{field}:", "/proc/self/status"], actions=actions)
    return result.check().text.partition(":")[2].strip()


CASES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[3] / "tests" / "data" / "actions.json").read_text()
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["python"])
def test_each_class_results_in_its_plan(case: dict[str, Any]) -> None:
    # tests/suite/spawn tests the effect of a plan.
    action: act.Action = eval(case["python"], act.__dict__)
    ids = {"EUID": str(os.geteuid()), "EGID": str(os.getegid())}
    expected = [
        re.sub("EUID|EGID", lambda name: ids[name[0]], line)
        for line in case.get("python_plan", case["plan"])
    ]
    assert _spawnfd.printed_actions([action]) == expected


def test_cases_have_every_class() -> None:
    named = {case["python"].partition("(")[0] for case in CASES}
    assert named == {action.__name__ for action in act.Action.__subclasses__()}


def test_descriptors(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("content")
    with path.open() as file:
        fd = file.fileno()
        assert evaluate(f"os.read({fd}, 9).decode()", act.Descriptor(file)) == "content"
        file.seek(0)
        given = [act.Descriptor(fd, to=7), act.Dup2(7, 9), act.Close(7)]
        assert evaluate("os.read(9, 9).decode()", *given) == "content"
        os.set_inheritable(fd, True)
        has = "sorted(os.listdir('/proc/self/fd'))"
        assert str(fd) not in evaluate(has)
        assert str(fd) in evaluate(has, act.InheritDescriptors())
    fd = os.open(tmp_path, os.O_PATH)
    try:
        assert evaluate("os.read(5, 9).decode()", act.Open("file", 5, dir=fd)) == "content"
        assert evaluate("os.getcwd()", act.Fchdir(fd)) == str(tmp_path)
    finally:
        os.close(fd)
    assert evaluate("os.getcwd()", act.Chdir("/"), cwd=tmp_path) == "/"


def test_signals() -> None:
    assert int(status("SigBlk", act.SignalMask([signal.SIGUSR1])), 16) == 1 << 9
    # CPython ignores SIGPIPE and SIGXFSZ.
    both = 1 << (signal.SIGPIPE - 1) | 1 << (signal.SIGXFSZ - 1)
    assert int(status("SigIgn"), 16) & both == 0
    assert int(status("SigIgn", act.InheritSignals()), 16) & both == both
    assert int(status("SigIgn", act.DefaultSignals([signal.SIGUSR1])), 16) & both == both
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        term = 1 << (signal.SIGTERM - 1)
        assert int(status("SigBlk"), 16) == 0
        assert int(status("SigBlk", act.InheritSignals()), 16) & term
        assert int(status("SigBlk", act.SignalMask([]), act.InheritSignals()), 16) & term
        ended = sf.run(["sleep", "60"], timeout=0.05, grace=30)
        assert (ended.stop, ended.signal) == ("timeout", signal.SIGTERM)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@root
@pytest.mark.parametrize("late", [act.Gid(4321), act.Groups([5]), act.GroupIds(effective=4321)])
def test_groups_after_a_change_from_root_are_invalid(late: act.Action) -> None:
    with pytest.raises(ValueError, match="put gid and groups before uid") as caught:
        sf.run(["true"], actions=[act.Uid(4321), late])
    assert isinstance(caught.value, sf.SpawnError)
    assert (caught.value.stage, caught.value.action) == ("action", 1)


FAILING = [
    (act.Chdir("/no/such/directory"), FileNotFoundError, "chdir"),
    (act.Open("/no/such/file", 5), FileNotFoundError, "open"),
    (act.Dup2(77, 5), OSError, "dup2"),
    (act.Umask(0o1000), ValueError, "umask"),
    (act.Nice(40), ValueError, "setpriority"),
    (act.Affinity([]), ValueError, "sched_setaffinity"),
    (act.Affinity([1001, 1000]), ValueError, "sched_setaffinity([1000, 1001])"),
    (act.Uid(2**32 - 1), ValueError, "setresuid"),
    (act.Gid(2**32 - 1), ValueError, "setresgid"),
]


@pytest.mark.parametrize(("failing", "expected", "call"), FAILING)
def test_error_carries_the_callers_index_of_the_action(
    failing: act.Action, expected: type[OSError], call: str
) -> None:
    # InheritSignals and SignalMask are attributes, not actions, in the core. A cwd given by
    # descriptor is an action in the core, but not in the caller's list. The index counts neither.
    before = [act.Umask(0o22), act.InheritSignals(), act.Umask(0o22), act.SignalMask([])]
    fd = os.open("/", os.O_PATH)
    try:
        for cwd in (None, "/", fd):
            with pytest.raises(expected) as caught:
                sf.run(["true"], actions=[*before, failing, act.Umask(0)], cwd=cwd)
            error = caught.value
            assert isinstance(error, sf.SpawnError)
            assert (error.stage, error.action) == ("action", 4)
            assert call in error.call
            assert str(error).startswith("actions[4]: ")
            assert f" [action 4: {error.call} = -1 E" in str(error)
    finally:
        os.close(fd)


def test_cwd_that_is_no_directory_is_an_error(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file:
        for cwd in (file.name, file.fileno()):
            with pytest.raises(NotADirectoryError) as caught:
                sf.run(["true"], cwd=cwd, actions=[act.Umask(0)])
            error = caught.value
            assert isinstance(error, sf.SpawnError)
            assert (error.stage, error.action) == ("cwd", None)


@pytest.mark.parametrize(
    ("action", "expected", "message"),
    [
        (act.Descriptor("x", 1), TypeError, r"actions\[0\]: Descriptor.source"),  # type: ignore[arg-type]
        (act.Descriptor(-1, 1), ValueError, r"actions\[0\]: Descriptor.source: .* got -1"),
        (act.Descriptor(0, "1"), TypeError, r"actions\[0\]: Descriptor.to"),  # type: ignore[arg-type]
        (act.Chdir(3), TypeError, r"Chdir.path"),  # type: ignore[arg-type]
        (act.Umask(-1), ValueError, r"Umask.mask"),
        (act.UserIds(saved=2**32 - 1), ValueError, r"UserIds.saved: 4294967295 is out of range"),
        (act.GroupIds(2**32 - 1), ValueError, r"GroupIds.real: 4294967295 is out of range"),
        (act.SignalMask([0]), ValueError, r"SignalMask.blocked: 0 is not a signal"),
        (act.SignalMask(3), TypeError, r"SignalMask.blocked"),  # type: ignore[arg-type]
        (act.ParentDeathSignal(99), ValueError, r"ParentDeathSignal.signal"),
        (act.Namespaces(0x10000000), ValueError, r"Namespaces.kinds.*user_namespace"),
        (act.Seccomp(b"1234567"), ValueError, r"Seccomp.filter"),
        (act.Seccomp(b""), ValueError, r"Seccomp.filter"),
        (act.Action(), TypeError, r"actions\[0\]: expected one of spawnfd.actions"),
    ],
)
def test_wrong_fields_are_refused(
    action: act.Action, expected: type[Exception], message: str
) -> None:
    with pytest.raises(expected, match=message):
        sf.run(["true"], actions=[action])


def test_at_most_256_actions() -> None:
    assert sf.run(["true"], actions=[act.Umask(0)] * 256).ok
    fd = os.open("/", os.O_PATH)
    try:
        limits = sf.Limits(cpu_time=5)
        assert sf.run(["true"], actions=[act.Umask(0)] * 256, cwd=fd, limits=limits).ok
    finally:
        os.close(fd)
    with pytest.raises(sf.SpawnError) as caught:
        sf.run(["true"], actions=[act.Umask(0)] * 257)
    assert caught.value.errno == 7


def test_actions_compare_by_value() -> None:
    assert act.Umask(1) == act.Umask(1) != act.Umask(2)
    assert act.Close(1) != act.Foreground(1)
    assert repr(act.Limit(1, None, 2)) == "Limit(resource=1, soft=None, hard=2)"
