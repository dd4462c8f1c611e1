# SPDX-License-Identifier: MIT OR Apache-2.0
"""What is generated from the table of actions: the Python classes, and the reference."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

from parts import Part

TYPES = {
    "Source": "Fd",
    "Cgroup": "Fd",
    "Namespace": "Fd",
    "Path": "Arg",
    "Ids": "Iterable[int]",
    "Cpus": "Iterable[int]",
    "Signals": "Iterable[int]",
    "Filter": "bytes",
}


def field(argument: dict[str, Any]) -> str:
    """Returns a field of a class."""
    annotation = TYPES.get(argument["kind"].partition("(")[0], "int")
    optional = " | None" if argument["accepts_none"] else ""
    default = "" if argument["default"] is None else f" = {argument['default']}"
    return f"    {argument['name']}: {annotation}{optional}{default}\n"


def docstring(doc: str) -> str:
    """Returns a docstring of one line, or of several paragraphs."""
    first, *others = [" ".join(paragraph.split()) for paragraph in doc.split("\n\n")]
    if not others:
        return f'    """{first}"""\n'
    lines = [
        line for other in others for line in ("", *textwrap.wrap(other, 96, break_on_hyphens=False))
    ]
    text = "".join(f"    {line}".rstrip() + "\n" for line in lines)
    return f'    """{first}\n{text}    """\n'


def classes(rows: list[dict[str, Any]]) -> str:
    """Returns the Python classes."""
    text = ""
    for row in rows:
        fields = "".join(map(field, row["arguments"]))
        text += "\n\n@dataclass(frozen=True, slots=True)\n"
        text += f"class {row['class']}(Action):\n" + docstring(row["doc"])
        text += f"\n{fields}" if fields else ""
    return text + "\n\n"


def table(rows: list[dict[str, Any]]) -> str:
    """Returns a table of the reference."""
    text = "\n| effect | Rust | Python | command line |\n|---|---|---|---|\n"
    for row in rows:
        python = f"`{row['class']}`" if row["doc"] else "`Open` with `dir`"
        text += f"| {row['effect']} | `{row['name']}` | {python} | `--{row['flag']}` |\n"
    return text + "\n"


def parts(tables: dict[str, Any]) -> Iterator[Part]:
    """Returns what is generated from the tables."""
    rows = tables["actions"]
    attributes = [row for row in rows if row["attribute"]]
    actions = [row for row in rows if not row["attribute"]]
    documented = [row for row in rows if row["doc"]]
    yield Part("bindings/python/python/spawnfd/actions.py", "classes", classes(documented))
    yield Part("docs/actions.md", "actions", table(actions))
    yield Part("docs/actions.md", "attributes", table(attributes))
