# SPDX-License-Identifier: MIT OR Apache-2.0
"""The result file of a suite in build/bench."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write(document: Mapping[str, Any], path: Path) -> None:
    """Writes the JSON, and renames it into place, so that no reader sees a partial file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    draft.replace(path)
