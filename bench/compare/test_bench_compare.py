# SPDX-License-Identifier: MIT OR Apache-2.0
"""Tests of the comparison's own code: `python -m pytest bench/compare`."""

import json
import math
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from rich.console import Console

from common import bars
from common.errors import BenchError
from common.pipe import Worker
from common.session import Row
from comparebench import build, cli, judge, measure, results
from comparebench.judge import Verdict
from comparebench.measure import Plan, Subject

pytestmark = pytest.mark.timeout(120)
FAST = Plan(passes=6, session_s=0, again_s=0, deadline_s=60)

# This server reports 100 us, times a factor for each id, with some noise.
FAKE = """
import json, random, sys
factors = json.loads(sys.argv[1])
chooser = random.Random(sys.argv[2])
def tell(**fields):
    print(json.dumps(fields), flush=True)
tell(protocol=int(sys.argv[3]), offers=[
    dict(id=id, quantity=id.rstrip("0123456789"), unit="us", better="less", calls=3)
    for id in factors])
factors = {id.rstrip("0123456789"): factor for id, factor in factors.items()}
for line in sys.stdin:
    order = json.loads(line)
    if order["do"] == "open":
        factor = factors[order["quantity"]]
        if factor is None:
            tell(opened=False, missing="no such program")
        else:
            tell(opened=True)
    elif order["do"] == "measure":
        assert order["calls"] == 3
        tell(figure=100 * factor * chooser.gauss(1, 0.002))
    elif order["do"] == "close":
        tell(closed=True)
    else:
        tell(finished=True)
        break
"""


def _normal(mean: float, deviation: float, count: int = 12, seed: int = 1) -> list[float]:
    chooser = random.Random(seed)
    return [chooser.gauss(mean, deviation) for _ in range(count)]


def _verdict(changes: list[float], judged: int = 25) -> Verdict:
    return judge.judge(changes, judged).verdict


# ---- statistics ----


@pytest.mark.parametrize(
    ("confidence", "freedom", "table"),
    [(0.95, 1, 12.706), (0.95, 2, 4.303), (0.95, 5, 2.571), (0.95, 10, 2.228), (0.998, 7, 4.785)],
)
def test_t_quantiles_agree_with_tables(confidence: float, freedom: int, table: float) -> None:
    assert judge.t_quantile(confidence, freedom) == pytest.approx(table, abs=1e-3)


def test_interval_contains_the_true_change_in_95_of_100_runs() -> None:
    runs = [judge.trimmed(_normal(0.01, 0.02, 10, seed), 0.95) for seed in range(2_000)]
    share = sum(found.low <= 0.01 <= found.high for found in runs) / len(runs)
    assert 0.93 < share < 0.97


def test_one_outlier_session_changes_little() -> None:
    quiet = _normal(0, 0.005)
    before, after = (judge.trimmed(values, 0.95) for values in (quiet, [*quiet[:-1], 2.0]))
    assert abs(after.value - before.value) < 0.005
    assert after.width < 2 * before.width


def test_too_few_sessions_are_refused() -> None:
    with pytest.raises(ValueError, match="3 sessions"):
        judge.trimmed([0.0] * 3, 0.95)


# ---- verdicts ----


def test_verdict_follows_the_change() -> None:
    assert _verdict(_normal(0.10, 0.01)) is Verdict.SLOWER
    assert _verdict(_normal(-0.10, 0.01)) is Verdict.FASTER
    assert _verdict(_normal(0.00, 0.01)) is Verdict.SAME
    assert _verdict(_normal(0.02, 0.005)) is Verdict.SAME
    assert _verdict(_normal(0.00, 0.20)) is Verdict.NOISY
    assert _verdict(_normal(0.05, 0.20)) is Verdict.NOISY


def test_more_ids_need_more_evidence() -> None:
    changes = [0.040, 0.042, 0.044, 0.048, 0.050, 0.054]
    assert _verdict(changes, 1) is Verdict.SLOWER
    assert _verdict(changes, 25) is Verdict.UNCLEAR


def test_false_alarms_are_rare_at_the_limit() -> None:
    limit = math.log1p(judge.LIMIT)
    runs = (
        [_verdict(_normal(limit, 0.01, 8, seed=25 * run + id_)) for id_ in range(25)]
        for run in range(200)
    )
    alarms = sum(Verdict.SLOWER in verdicts for verdicts in runs)
    assert alarms <= 0.05 * 200


def test_lower_rate_is_slower() -> None:
    sessions = [[(200.0, 100.0 + number)] * 2 for number in range(6)]
    rate = Subject(["x"], ("q", "q"), "1/s", "more", 1, True, sessions)
    (row,) = results.ratios_of(rate, {"x": {}}, 1)
    assert row["verdict"] == "slower"
    assert row["regression"]
    assert row["low"] < row["value"] < row["high"] < 1
    assert row["value"] == pytest.approx(0.51, abs=0.01)
    time_ = Subject(["x"], ("q", "q"), "us", "less", 1, True, sessions)
    assert results.ratios_of(time_, {"x": {}}, 1)[0]["verdict"] == "faster"


# ---- runs ----


@contextmanager
def _servers(
    base: dict[str, float | None], new: dict[str, float | None], protocol: int = 1
) -> Iterator[dict[str, Worker]]:
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(
                Worker(
                    name,
                    [sys.executable, "-c", FAKE, json.dumps(factors), name, str(protocol)],
                    {},
                )
            )
            for name, factors in (("base", base), ("new", new))
        }


def _compare(
    base: dict[str, float | None], new: dict[str, float | None], patterns: tuple[str, ...] = ()
) -> Row:
    barred = {name: {} for name in ("same", "worse", "worse2", "lost", "gone")}
    with _servers(base, new) as servers:
        end = time.monotonic() + FAST.deadline_s
        found = measure.compare(servers, barred, patterns, FAST, 1, end, lambda text: None)
    return results.suite(*found, barred, {})


def test_fake_servers_end_to_end() -> None:
    base = {"same": 1.0, "worse": 1.0, "worse2": 1.0, "lost": 1.0, "gone": 1.0, "free": 1.0}
    new = {"same": 1.0, "worse": 1.1, "worse2": 1.1, "lost": None, "free": 1.1}
    document = _compare(base, new)
    ratios = {ratio["id"]: ratio for ratio in document["ratios"]}
    assert ratios.keys() == {"same", "worse", "worse2"}
    assert ratios["same"]["verdict"].startswith("same within")
    assert ratios["worse"]["verdict"] == "slower"
    assert ratios["worse"] == ratios["worse2"] | {"id": "worse"}
    assert 1.09 < ratios["worse"]["value"] < 1.11
    # Several ids of one quantity are judged only once.
    assert document["judged"] == 3
    assert document["left_out"] == {
        "gone": "only in the base build",
        "lost": "new: no such program",
    }
    assert results.regressions(document) == ["worse", "worse2", "lost"]
    results.show(Console(quiet=True), document)


def test_ids_without_a_bar_are_no_regression() -> None:
    document = _compare({"free": 1.0}, {"free": 2.0}, ("fr*",))
    assert document["ratios"][0]["verdict"] == "slower"
    assert results.regressions(document) == []


def test_blocks_alternate_between_the_builds() -> None:
    requested: list[int] = []

    class Fake(measure.Side):
        def __init__(self, number: int) -> None:
            self.number = number

        def measure(self, calls: int) -> float:
            requested.append(self.number)
            return 1.0 + self.number

    driver = measure.Driver(Fake(0), Fake(1), 1)
    subject = Subject(["x"], ("q", "q"), "us", "less", 1, True)
    assert driver._pairs(subject, (1, 0), 0) == [(1.0, 2.0)] * 2
    assert requested == [1, 0, 0, 1]


def test_other_protocol_version_is_refused() -> None:
    with (
        pytest.raises(BenchError, match="protocol 2"),
        _servers({"same": 1.0}, {"same": 1.0}, 2) as servers,
    ):
        measure.compare(servers, ["same"], (), FAST, 1, 0, lambda text: None)


def test_every_bar_of_the_suites_is_offered_except_tails_under_load_and_filtered_jobs(
    tmp_path: Path,
) -> None:
    command, environment = build.server(build.ROOT, tmp_path, list(cli.SUITES))
    with Worker("server", command, environment) as server:
        offers = {offer["id"]: offer for offer in server.receive("protocol")["offers"]}
    barred = {bar["id"] for bar in bars.load() if bar["id"].split(".")[0] in cli.SUITES}
    jobs_under_docker = {
        id_ for id_ in barred if id_.startswith("job.") and id_.endswith(".docker")
    }
    tails = {id_ for id_ in barred if id_.startswith("warm.p99.")}
    assert barred - tails - jobs_under_docker <= offers.keys()
    shared = ("launch.first_insn.ours_vs_vfork", "launch.first_insn.posix_spawn_vs_ours")
    assert len({offers[id_]["quantity"] for id_ in shared}) == 1
    assert offers["launch.parallel8_vs_vfork"]["better"] == "more"


def test_usage_errors_exit_with_2(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    common = ["--cache", str(tmp_path)]
    assert cli.main(["--base", "no-such-commit", *common]) == cli.ERROR
    assert "BASE=no-such-commit" in capfd.readouterr().err
    for wrong in (["--base", "HEAD", "--suites", "agent", *common], common):
        with pytest.raises(SystemExit, match="2"):
            cli.main(wrong)


def test_help_names_the_base_option() -> None:
    run = Path(cli.__file__).parents[1] / "run.py"
    done = subprocess.run([sys.executable, str(run), "--help"], capture_output=True, text=True)
    assert done.returncode == 0
    assert "--base COMMIT" in done.stdout
