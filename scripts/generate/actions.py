# SPDX-License-Identifier: MIT OR Apache-2.0
"""What is generated from the table of actions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from parts import Part


def parts(tables: dict[str, Any]) -> Iterator[Part]:
    """Returns what is generated from the tables."""
    yield from ()
