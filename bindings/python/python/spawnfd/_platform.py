# SPDX-License-Identifier: MIT OR Apache-2.0
"""Says whether spawnfd supports this interpreter. The build backend executes this file, too."""

from __future__ import annotations

import platform
import sys


def _found() -> str | None:
    """Names the property of this interpreter that spawnfd does not support, if there is one."""
    if sys.platform != "linux":
        return {"darwin": "macOS", "win32": "Windows"}.get(sys.platform, sys.platform)
    if platform.machine() not in ("x86_64", "aarch64"):
        return f"Linux {platform.machine()}"
    if sys.maxsize < 1 << 32:
        return "a 32-bit interpreter"
    if sys.implementation.name != "cpython":
        return platform.python_implementation()
    if "t" in getattr(sys, "abiflags", ""):
        return "a free-threaded CPython"
    return None


def unsupported() -> str | None:
    """Returns one sentence for a user whose interpreter spawnfd does not support, else None."""
    found = _found()
    if found is None:
        return None
    return (
        "spawnfd supports CPython 3.10 or later with the GIL, on Linux x86_64 or aarch64; "
        f"this is {found}"
    )


def explain_import_error(error: ImportError) -> ImportError:
    """Returns the error to raise if the native part cannot be imported."""
    if sentence := unsupported():
        return ImportError(sentence, name="spawnfd")
    if isinstance(error, ModuleNotFoundError) and error.name == "spawnfd._spawnfd":
        return ImportError(
            "spawnfd's native part is for another interpreter: install the package with pip, "
            "which builds or downloads the right one",
            name="spawnfd",
        )
    return error
