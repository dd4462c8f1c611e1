# SPDX-License-Identifier: MIT OR Apache-2.0
"""The module of Ray. Its types are partly unknown, so it counts as Any in this package."""

from __future__ import annotations

import importlib
from typing import Any

try:
    ray: Any = importlib.import_module("ray")
except ModuleNotFoundError as error:
    raise ImportError("spawnfd.ray needs Ray: pip install 'spawnfd[ray]'") from error
# Submodules that are used as attributes.
for _name in ("ray.exceptions", "ray.util.scheduling_strategies"):
    importlib.import_module(_name)
