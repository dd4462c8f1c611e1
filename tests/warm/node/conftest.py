# SPDX-License-Identifier: MIT OR Apache-2.0
"""The tested versions of Node.js."""

from __future__ import annotations

import os
import shutil

import pytest
from versions import VERSIONS, fetch, major_version

INSTALLED = "installed"


@pytest.fixture(
    scope="session", params=VERSIONS if os.environ.get("SPAWNFD_FULL") else [INSTALLED]
)
def node(request: pytest.FixtureRequest) -> str:
    if request.param != INSTALLED:
        return fetch(request.param)
    found = shutil.which("node")
    is_supported = found and major_version(found) >= int(VERSIONS[0])
    return os.path.realpath(found) if is_supported else fetch("20")
