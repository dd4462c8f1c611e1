# SPDX-License-Identifier: MIT OR Apache-2.0
"""What is generated from the table of options for Node: the types of the options."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from options import Option, fill, first_paragraph, of, without_links
from parts import Part

PATH = "bindings/node/lib/options.ts"
PORTABLE = "bindings/node/lib/portable/options.ts"

TYPES = {
    "actions": "readonly Action[] | null",
    "env": "Env | Readonly<Record<string, string | undefined>> | null",
    "limits": "Limits",
    "limiter": "Limiter",
    "sandbox": "Sandbox",
    "spill": "Spill",
    "warm": "Warm",
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
# The interfaces: their bases, and the calls that all accept their options.
INTERFACES: list[tuple[str, list[str], set[str], str]] = [
    ("SupervisedOptions", [], {"run", "start", "command"}, "The options of supervised programs."),
    ("ProgramOptions", [], {"spawn", "run", "start"}, "The options of all programs."),
    ("RunOptions", ["ProgramOptions", "SupervisedOptions"], {"run"}, "The options of run()."),
    ("StartOptions", ["ProgramOptions", "SupervisedOptions"], {"start"}, "The options of start()."),
    ("SpawnOptions", ["ProgramOptions"], {"spawn"}, "The options of spawn()."),
    ("SessionOptions", [], {"session"}, "The options of a Session."),
    ("CommandOptions", ["SupervisedOptions"], {"command"}, "The options of a session's run()."),
]

HEAD = """// SPDX-License-Identifier: MIT OR Apache-2.0
// scripts/generate writes this file.

import type { Action } from './action';
import type { Env } from './env';
import type { Limiter } from './limiter';
import type { Sandbox } from './sandbox';
import type { Warm } from './warm';
"""


def camel_case(name: str) -> str:
    return re.sub(r"_(\w)", lambda match: match[1].upper(), name)


def node_type(option: Option) -> str:
    own = TYPES.get(option["name"])
    if own:
        return own if "null" in own else f"{own} | null"
    if option["kind"] in ("Word", "Stream"):
        name = " | ".join(f"'{word}'" for word, _ in option["words"])
        name += " | number" if takes_descriptor(option) else ""
    else:
        name = KINDS[option["kind"]]
    return f"{name} | null" if option["optional"] else name


def takes_descriptor(option: Option) -> bool:
    return option["kind"] == "Stream" and bool({"spawn", "run", "start"} & set(option["calls"]))


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
    if takes_descriptor(option):
        text += "\n- A number: a descriptor of this process."
    default = node_default(option)
    if default is not None:
        text += f"\n@defaultValue {default}"
    # A value of `stop` is no name of an option.
    text = re.sub(r"(?<!is then )`(\w+)`", lambda name: f"`{spelled.get(name[1], name[1])}`", text)
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
    inherited: dict[str, list[Option]] = {}
    for name, bases, calls, about in INTERFACES:
        known = [each for base in bases for each in inherited[base]]
        listed = [each for each in own(options, calls) if each not in known]
        inherited[name] = known + listed
        extends = f" extends {', '.join(bases)}" if bases else ""
        text += interface(f"{name}{extends}", about, listed, options)
    for prefix, name, about in [
        ("limits.", "Limits", "Limits of the resources of a process tree."),
        ("spill.", "Spill", "A file that gets all of the output if memory does not keep it."),
    ]:
        fields = [each for each in options if each["name"].startswith(prefix)]
        text += interface(name, about, fields, options, prefix)
    return text


PORTABLE_HEAD = """// SPDX-License-Identifier: MIT OR Apache-2.0
// scripts/generate writes this file.

/** An option of run() or start(). The default of a duration is in milliseconds. */
export interface OptionSpec {
  readonly name: string;
  readonly kind: string;
  readonly calls: readonly string[];
  /** Whether null is a value. */
  readonly optional: boolean;
  readonly default: unknown;
  /** The words that are values. */
  readonly words: readonly string[];
}
"""


def portable(tables: dict[str, Any]) -> str:
    """Returns the tables of the implementation without a native half."""
    text = f"{PORTABLE_HEAD}\nexport const OPTIONS: readonly OptionSpec[] = [\n"
    for each in tables["options"]:
        calls = [call for call in each["calls"] if call in ("run", "start")]
        if calls:
            default = each["default"]
            if each["kind"] == "Duration" and default is not None:
                default *= 1000
            spec = {
                "name": camel_case(each["name"]),
                "kind": each["kind"],
                "calls": calls,
                "optional": each["optional"],
                "default": default,
                "words": [word for word, _ in each["words"]],
            }
            text += f"  {literal(spec)},\n"
    text += "];\n\n/** The variables of Env.noninteractive(). null removes one. */\n"
    text += "export const NONINTERACTIVE: readonly (readonly [string, string | null])[] = [\n"
    text += "".join(f"  {literal(pair)},\n" for pair in tables["noninteractive"])
    return f"{text}];\n"


def literal(value: Any) -> str:
    """Returns a value as JavaScript writes it."""
    if isinstance(value, dict):
        fields = ", ".join(f"{name}: {literal(field)}" for name, field in value.items())
        return f"{{ {fields} }}"
    if isinstance(value, list):
        return f"[{', '.join(literal(each) for each in value)}]"
    if isinstance(value, str):
        return f"'{value}'"
    if isinstance(value, float):
        return f"{value:g}"
    return json.dumps(value)


def own(options: list[Option], calls: set[str]) -> list[Option]:
    """Returns the options that all of the calls accept."""
    accepted = [of(options, call) for call in sorted(calls)]
    return [each for each in accepted[0] if all(each in others for others in accepted)]


def parts(tables: dict[str, Any]) -> Iterator[Part]:
    """Returns what is generated from the tables."""
    yield Part(PATH, None, text(tables))
    yield Part(PORTABLE, None, portable(tables))
