# SPDX-License-Identifier: MIT OR Apache-2.0
"""What is generated from the table of actions for Node: a function for each action."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

from node import camel_case
from parts import Part

PATH = "bindings/node/lib/actions.ts"
TYPES = {
    "Path": "string | Uint8Array",
    "Ids": "readonly number[]",
    "Cpus": "readonly number[]",
    "Signals": "readonly number[]",
    "Filter": "Uint8Array",
}
HEAD = """// SPDX-License-Identifier: MIT OR Apache-2.0
// scripts/generate writes this file.

import { Action } from './action';
"""

Argument = dict[str, Any]


def node_type(argument: Argument) -> str:
    own = TYPES.get(argument["kind"].partition("(")[0], "number")
    return f"{own} | null" if argument["accepts_none"] else own


def default(argument: Argument) -> str:
    return "null" if argument["default"] == "None" else str(argument["default"])


# Python's words in the documentation.
WORDS = {
    "None": "null",
    "os.open()": "open(2)",
    "`os.SCHED_*`": "SCHED_*",
    "`resource.RLIMIT_*`": "RLIMIT_*",
}


def comment(doc: str) -> str:
    for word, own in WORDS.items():
        doc = doc.replace(word, own)
    paragraphs = [" ".join(paragraph.split()) for paragraph in doc.strip().split("\n\n")]
    lines = [line for each in paragraphs for line in (*textwrap.wrap(each, 116), "")][:-1]
    if len(lines) == 1:
        return f"/** {lines[0]} */\n"
    return "/**\n" + "".join(f" * {line}".rstrip() + "\n" for line in lines) + " */\n"


def function(row: dict[str, Any]) -> str:
    """Returns a function. Two optional arguments or more are the properties of an object."""
    required = [each for each in row["arguments"] if each["default"] is None]
    optional = [each for each in row["arguments"] if each["default"] is not None]
    given = [f"{each['name']}: {node_type(each)}" for each in required]
    if len(optional) == 1:
        given += [f"{each['name']}: {node_type(each)} = {default(each)}" for each in optional]
    elif optional:
        names = ", ".join(f"{each['name']} = {default(each)}" for each in optional)
        types = "; ".join(f"{each['name']}?: {node_type(each)}" for each in optional)
        given.append(f"{{ {names} }}: {{ {types} }} = {{}}")
    values = ", ".join(each["name"] for each in row["arguments"])
    values = f"{{ {values} }}" if values else "{}"
    listed = ", ".join(given)
    name = camel_case(row["name"])
    if len(listed) > 80:
        listed = "\n  " + ",\n  ".join(given) + ",\n"
    head = f"export function {name}({listed}): Action {{\n"
    return f"\n{comment(row['doc'])}{head}  return new Action('{row['name']}', {values});\n}}\n"


def parts(tables: dict[str, Any]) -> Iterator[Part]:
    """Returns what is generated from the tables."""
    rows = [row for row in tables["actions"] if row["doc"]]
    yield Part(PATH, None, HEAD + "".join(map(function, rows)))
