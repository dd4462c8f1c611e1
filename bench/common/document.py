# SPDX-License-Identifier: MIT OR Apache-2.0
"""The file that a suite leaves in build/bench."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write(document: Mapping[str, Any], path: Path) -> None:
    """Writes the JSON in one step, so that a reader never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    draft.replace(path)
