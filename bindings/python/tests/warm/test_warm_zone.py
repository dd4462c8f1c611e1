# SPDX-License-Identifier: MIT OR Apache-2.0
"""A parked CPython applies the time zone of the start, if it differs from that of parking."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import spawnfd as sf
from patience import TIMEOUT_S
from warm_support import FILL_S, Mode, each_mode, in_mount_namespace, parked

PYTHON = "/usr/bin/python3"
CODE = "import time; print(time.tzname, time.timezone, time.strftime('%Z %H', time.localtime(0)))"
ZONES = Path("/usr/share/zoneinfo")
NONE = {"PATH": "/usr/bin:/bin"}

needs_zones = pytest.mark.skipif(
    not Path(PYTHON).exists() or not (ZONES / "Asia/Tokyo").exists(),
    reason="needs Debian's python3 and tzdata",
)


@needs_zones
@each_mode
@pytest.mark.parametrize("before", ["", "UTC", "Asia/Tokyo", ":America/New_York", "X-3", "no/such"])
def test_time_zone_variables(mode: Mode, before: str) -> None:
    env = NONE | ({"TZ": before} if before else {})
    with parked(PYTHON, mode, env=env) as warm:
        others = [NONE | {"TZ": "Asia/Tokyo"}, NONE | {"TZ": ""}, NONE, env | {"TZDIR": "/etc"}]
        for given in [env, *others]:
            result = warm.run([PYTHON, "-c", CODE], env=given, timeout=TIMEOUT_S)
            assert warm.fill(FILL_S)
            cold = sf.run([PYTHON, "-c", CODE], env=given, timeout=TIMEOUT_S)
            assert (result.code, result.stdout) == (0, cold.stdout)
            assert result.started == ("cold: variable" if "TZDIR" in given else mode)


# This owner runs in a new mount namespace. /etc/localtime changes after parking.
OWNER = """
import json, subprocess, sys
import spawnfd as sf
from warm_support import Warm
mode, python, code, zone = sys.argv[1:]
env = {"PATH": "/usr/bin:/bin"}
with Warm(mode=mode) as warm:
    warm.add(python, env=env)
    assert warm.fill(timeout=60)
    subprocess.run(["mount", "--bind", zone, "/etc/localtime"], check=True)
    result = warm.run([python, "-c", code], env=env, timeout=60)
    cold = sf.run([python, "-c", code], env=env, timeout=60)
    print(json.dumps([result.started, result.text, cold.text]))
"""


@needs_zones
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
@pytest.mark.skipif(not Path("/etc/localtime").exists(), reason="no /etc/localtime")
@each_mode
def test_time_zone_of_the_machine(mode: Mode) -> None:
    zone = str(ZONES / "Asia/Tokyo")
    started, warm, cold = in_mount_namespace(OWNER, mode, PYTHON, CODE, zone)
    assert started == mode
    assert warm == cold
    assert "JST" in warm
