# SPDX-License-Identifier: MIT OR Apache-2.0
"""The build backend: maturin, after a check of the platform.

Without the check, `pip install` on an unsupported platform would end with the errors of a compiler.
"""

import runpy
from pathlib import Path

_PLATFORM = Path(__file__).parents[1] / "python/spawnfd/_platform.py"

# SystemExit makes pip and uv show only this sentence, not a traceback.
if _problem := runpy.run_path(str(_PLATFORM))["unsupported"]():
    raise SystemExit(_problem)

from maturin import *  # noqa: E402, F403
