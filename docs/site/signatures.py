# SPDX-License-Identifier: MIT OR Apache-2.0
"""Extension of griffe: signatures do not show `**unknown`, as at run time."""

from __future__ import annotations

from typing import Any

import griffe


class HideUnknown(griffe.Extension):
    """Removes the parameter that takes options which do not exist."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Is called for each function that griffe has read."""
        if "unknown" in func.parameters:
            del func.parameters["unknown"]
