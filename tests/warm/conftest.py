# SPDX-License-Identifier: MIT OR Apache-2.0
"""Builds the preloaded object that parks CPython, and all other programs except Node.js."""

from __future__ import annotations

from pathlib import Path

import pytest
from owner import build


@pytest.fixture(scope="session")
def shim_without_threads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("shim") / "park.so", "common", "python", "node")
