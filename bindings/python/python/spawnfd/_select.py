# SPDX-License-Identifier: MIT OR Apache-2.0
"""Chooses the engine: the native part (spawnfd._spawnfd), or the portable one in its place.

The package imports this module before all others.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

_PACKAGE = "spawnfd"
_NATIVE = "spawnfd._spawnfd"


def _has_native_file() -> bool:
    """Whether the package has a file of the native part, also one for another interpreter."""
    try:
        names = os.listdir(os.path.dirname(__file__))
    except OSError:
        # The package is not a directory, for example a zip file, which cannot have a native part.
        return False
    return any(name.startswith("_spawnfd.") and not name.endswith(".pyi") for name in names)


def _import_native() -> bool:
    """Imports the native part. Returns False if the package has none.

    Raises:
        ImportError: The package has a native part, which cannot be imported.
    """
    try:
        # A free-threaded CPython 3.13 or 3.14 loads the native part, but cannot run it.
        if "t" in getattr(sys, "abiflags", ""):
            raise ImportError("free-threaded CPython")
        import_module(_NATIVE)
    except ImportError as error:
        if not _has_native_file():
            return False
        from spawnfd._platform import explain_import_error

        raise explain_import_error(error) from None
    return True


def _use_portable() -> None:
    """Puts the portable engine in the place of the native part, and of what needs that part."""
    # The engine imports modules of the package, none of which imports the native part.
    from spawnfd import _portable
    from spawnfd._portable import missing

    package = sys.modules[_PACKAGE]
    placeholders = {name: missing.module(name) for name in ("asyncio", "subprocess")}
    for name, module in {"_spawnfd": _portable, **placeholders}.items():
        sys.modules[f"{_PACKAGE}.{name}"] = module
        setattr(package, name, module)
    for name in ("Stats", "install", "stats", "uninstall"):
        setattr(package, name, missing.function(name))


PORTABLE: bool = os.environ.get("SPAWNFD_PORTABLE") == "1" or not _import_native()
if PORTABLE:
    _use_portable()
