# SPDX-License-Identifier: MIT OR Apache-2.0
"""A generated file, or a generated part of a file."""

from __future__ import annotations

from typing import NamedTuple


class Part(NamedTuple):
    """A text to write.

    Attributes:
        path: The file, relative to the repository.
        name: The name of the part, or None for the whole file.
        text: Whole lines.
    """

    path: str
    name: str | None
    text: str
