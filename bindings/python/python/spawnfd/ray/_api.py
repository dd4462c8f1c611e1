# SPDX-License-Identifier: MIT OR Apache-2.0
"""The module of Ray. Its types are partly unknown, so it counts as Any in this package."""

from __future__ import annotations

import importlib
from typing import Any

ray: Any = importlib.import_module("ray")
# Submodules that are used as attributes.
for _name in ("ray.exceptions", "ray.util.scheduling_strategies"):
    importlib.import_module(_name)
