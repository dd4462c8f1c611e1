# SPDX-License-Identifier: MIT OR Apache-2.0
"""The warning that the portable engine is for development."""

from __future__ import annotations

import os
import sys
import warnings

from spawnfd._errors import PortableWarning

_TEXT = (
    "spawnfd runs without its native part, in pure Python over subprocess. This is for "
    "development: it is slower, and it controls the process group only. To turn this warning off, "
    "set SPAWNFD_PORTABLE_WARNING=0, or filter spawnfd.PortableWarning"
)

_is_issued = False


def warn_once() -> None:
    """Issues the warning at the first start of this process, in the name of its caller."""
    global _is_issued
    if _is_issued:
        return
    _is_issued = True
    if os.environ.get("SPAWNFD_PORTABLE_WARNING") != "0":
        warnings.warn(_TEXT, PortableWarning, stacklevel=_caller_level())


def _caller_level() -> int:
    """Returns the stack level of the first caller outside of this package."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name.partition(".")[0] != "spawnfd":
            return level
        frame, level = frame.f_back, level + 1
    return level
