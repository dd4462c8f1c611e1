# SPDX-License-Identifier: MIT OR Apache-2.0
"""What is generated from the table of options for Node: the types of the options."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from options import Option, fill, first_paragraph, of, without_links
from parts import Part

PATH = "bindings/node/lib/options.ts"

TYPES = {
    "actions": "readonly Action[] | null",
    "env": "Env | Readonly<Record<string, string | undefined>> | null",
    "limits": "Limits",
    "limiter": "Limiter",
    "spill": "Spill",
}
KINDS = {
    "Flag": "boolean",
    "Count": "number",
    "Bytes": "number",
    "Number": "number",
    "Duration": "number",
    "Text": "string",
    "Path": "string | Uint8Array",
    "Data": "string | Uint8Array",
    "HeadTail": "readonly [head: number, tail: number] | 'all'",
    "TerminalSize": "{ rows: number; columns: number }",
}
# Options that the package does not have yet.
MISSING = {"sandbox", "warm"}

HEAD = """// SPDX-License-Identifier: MIT OR Apache-2.0
// scripts/generate writes this file.

import type { Action } from './action';
import type { Env } from './env';
import type { Limiter } from './limiter';
"""


def camel_case(name: str) -> str:
    return re.sub(r"_(\w)", lambda match: match[1].upper(), name)


def node_type(option: Option) -> str:
    own = TYPES.get(option["name"])
    if own:
        return own if "null" in own else f"{own} | null"
    if option["kind"] in ("Word", "Stream"):
        name = " | ".join(f"'{word}'" for word, _ in option["words"])
        name += " | number" if option["kind"] == "Stream" else ""
    else:
        name = KINDS[option["kind"]]
    return f"{name} | null" if option["optional"] else name


def node_default(option: Option) -> str | None:
    value = option["default"]
    if value is None:
        return None
    if option["kind"] == "Duration":
        return f"{value * 1000:g}"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f"`{value}`"
    if isinstance(value, list):
        return f"[{', '.join(str(each) for each in value)}]"
    return str(value)


def comment(option: Option, spelled: dict[str, str]) -> str:
    text = without_links(first_paragraph(option["doc"]))
    if option["kind"] == "Duration":
        text += " In milliseconds."
    for word, doc in option["words"]:
        text += f"\n- `{word}`: {without_links(first_paragraph(doc))}"
    if option["kind"] == "Stream":
        text += "\n- A number: a descriptor of this process."
    default = node_default(option)
    if default is not None:
        text += f"\n@defaultValue {default}"
    text = re.sub(r"`(\w+)`", lambda name: f"`{spelled.get(name[1], name[1])}`", text)
    lines = [line for part in text.split("\n") for line in fill(part, 110).split("\n")]
    if len(lines) == 1:
        return f"  /** {lines[0]} */\n"
    return "  /**\n" + "".join(f"   * {line}\n" for line in lines) + "   */\n"


def interface(
    name: str, about: str, options: list[Option], all_options: list[Option], prefix: str = ""
) -> str:
    spelled = {each["name"]: camel_case(each["name"]) for each in all_options}
    fields = ""
    for each in options:
        field = camel_case(each["name"].removeprefix(prefix))
        fields += f"{comment(each, spelled)}  {field}?: {node_type(each)};\n"
    return f"\n/** {about} */\nexport interface {name} {{\n{fields}}}\n"


def text(tables: dict[str, Any]) -> str:
    options: list[Option] = tables["options"]
    stops = "".join(f"\n  | '{stop}'" for stop in tables["stops"])
    text = f"{HEAD}\n/** Why a run ended. */\nexport type Stop ={stops};\n"
    for call, name, about in [
        ("run", "RunOptions", "The options of run() and runSync()."),
        ("start", "StartOptions", "The options of start()."),
        ("spawn", "SpawnOptions", "The options of spawn()."),
    ]:
        listed = [each for each in of(options, call) if each["name"] not in MISSING]
        text += interface(name, about, listed, options)
    for prefix, name, about in [
        ("limits.", "Limits", "Limits of the resources of a process tree."),
        ("spill.", "Spill", "A file that gets all of the output if memory does not keep it."),
    ]:
        fields = [each for each in options if each["name"].startswith(prefix)]
        text += interface(name, about, fields, options, prefix)
    return text


def parts(tables: dict[str, Any]) -> Iterator[Part]:
    """Returns what is generated from the tables."""
    yield Part(PATH, None, text(tables))
