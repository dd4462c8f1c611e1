# SPDX-License-Identifier: MIT OR Apache-2.0
"""What is generated from the table of options: Python signatures and docstrings, and a page."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from parts import Part

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "bindings/python/python/spawnfd"
PAGE = "docs/options.md"

Option = dict[str, Any]

GROUPS = {
    "program": "Program",
    "tree": "Time limit and process tree",
    "output": "Input and captured output",
    "limits": "Limits of the process tree",
    "session": "Sessions",
}

# The Python types of options that are objects or have types of their own, by call.
TYPES = {
    "cwd": {"session": "Arg | None", "command": "Arg | None", "": "Cwd | None"},
    "env": {"command": "Variables | None", "": "Environment | None"},
    "stdin": {
        "spawn": "SpawnStdio | None",
        "run": "RunStdin | None",
        "start": "StartStdin | None",
        "command": "CommandStdin | None",
    },
    "stdout": {"spawn": "SpawnStdio | None", "": "RunStdout | None"},
    "stderr": {
        "spawn": "SpawnStderr | None",
        "session": 'Literal["separate", "merge"] | int | None',
        "": "RunStderr | None",
    },
    "actions": {"": "Actions | None"},
    "arg0": {"": "Arg | None"},
    "sandbox": {"": "Sandbox | None"},
    "warm": {"": "Warm | None"},
    "limits": {"": "Limits | None"},
    "limiter": {"": "Limiter | None"},
    "spill": {"": "Spill | None"},
    "queue": {"": "bool | None"},
}
KINDS = {
    "Flag": "bool",
    "Count": "int",
    "Bytes": "int",
    "Number": "float",
    "Duration": "float",
    "Text": "str",
    "Data": "Input",
    "HeadTail": "Keep",
    "TerminalSize": "tuple[int, int]",
}
# Additions of the Python package to the documentation.
NOTES = {
    "cwd": {
        "session": "A path.",
        "command": "A path.",
        "": "A path, or the descriptor of an open directory.",
    },
    "env": {"command": "A mapping of names to values.", "": "An Env, or a mapping."},
    "input": {"": "Bytes-like, or a str encoded as UTF-8."},
    "stdin": {
        "run": '"null", "inherit", a descriptor or a file. subprocess.DEVNULL is "null".',
    },
    "stdout": {
        "run": '"capture", "null", "inherit", a descriptor or a file. subprocess.PIPE is '
        '"capture".',
    },
    "stderr": {
        "run": '"separate" (captured), "merge" (into stdout), "null", "inherit", a descriptor or a '
        'file. subprocess.PIPE is "separate", and subprocess.STDOUT is "merge".',
    },
    "terminal": {"": "A pair (rows, columns), or an os.terminal_size."},
    "keep": {"": 'A pair (head, tail), or "all".'},
    "spill": {"": "A Spill; see `spill_path` and `spilled` of the Result."},
    "limits": {"": "A Limits."},
    "limiter": {"": "A Limiter."},
    "actions": {"": "See spawnfd.actions."},
    "sandbox": {"": "A Sandbox."},
    "warm": {"": "A Warm."},
    "queue": {
        "": "None (default): False in a Session; in a SyncSession, True for commands of other "
        "threads.",
    },
}


def of(options: list[Option], call: str) -> list[Option]:
    """Returns the options of a call in the order of the groups, without the fields of objects."""
    own = [each for each in options if call in each["calls"] and "." not in each["name"]]
    return sorted(own, key=lambda each: list(GROUPS).index(each["group"]))


def by_call(table: dict[str, dict[str, str]], name: str, call: str) -> str | None:
    entry = table.get(name, {})
    return entry.get(call, entry.get(""))


def python_type(option: Option, call: str) -> str:
    own = by_call(TYPES, option["name"], call)
    if own:
        return own
    if option["kind"] == "Word":
        words = ", ".join(f'"{word}"' for word, _ in option["words"])
        name = f"Literal[{words}]"
    else:
        name = KINDS[option["kind"]]
    return f"{name} | None" if option["optional"] else name


def python_default(option: Option) -> str:
    value = option["default"]
    if option["name"] == "queue":
        return "None"
    if isinstance(value, str):
        return '"' + value.replace('"', '\\"') + '"'
    if isinstance(value, list):
        return f"({', '.join(f'{each:_}' for each in value)})"
    if isinstance(value, int) and not isinstance(value, bool) and value == 1 << 20:
        return "1 << 20"
    if option["kind"] == "Duration" and value is not None:
        return repr(float(value))
    return repr(value)


def parameters(options: list[Option], call: str, indent: str = "    ") -> str:
    """Returns the keyword parameters, one a line."""
    lines = []
    for option in of(options, call):
        lines.append(
            f"{indent}{option['name']}: {python_type(option, call)} = {python_default(option)},\n"
        )
    return "".join(lines)


def first_paragraph(doc: str) -> str:
    """Returns the first paragraph, on one line."""
    lines = textwrap.dedent(doc).strip().split("\n\n")[0]
    return " ".join(lines.split())


def without_links(doc: str) -> str:
    return re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", doc)


def fill(text: str, width: int, first: int = 0, others: int = 0) -> str:
    """Wraps a text, with an indentation of the first line and one of the others."""
    return textwrap.fill(
        text,
        width,
        initial_indent=" " * first,
        subsequent_indent=" " * others,
        break_on_hyphens=False,
        break_long_words=False,
    )


def python_doc(option: Option, call: str, indent: int) -> str:
    """Returns the documentation of an option as an entry of a docstring."""
    text = without_links(first_paragraph(option["doc"])).replace("\\", "\\\\")
    if option["kind"] == "Duration":
        text += " In seconds."
    note = by_call(NOTES, option["name"], call) or ""
    # The type of an object precedes its meaning.
    texts = [note, text] if note.startswith("A") else [text, note]
    about = " ".join([f"{option['name']}:", *texts]).rstrip()
    lines = [fill(about, 100, indent, indent + 4)]
    if option["kind"] == "Word":
        for word, doc in option["words"]:
            about = f'"{word}": {without_links(first_paragraph(doc))}'
            lines.append(fill(about, 100, indent + 4, indent + 4))
    return "\n".join(lines) + "\n"


SIGNATURES_HEAD = '''# SPDX-License-Identifier: MIT OR Apache-2.0
# scripts/generate writes this file.
"""The signatures of the functions that start programs.

No code calls these functions: `like()` shows their signatures for the functions of the package.
"""

from __future__ import annotations

from typing import Any, Literal, TypedDict

from spawnfd._options import (
    Actions,
    CommandStdin,
    Environment,
    RunStderr,
    RunStdin,
    RunStdout,
    SpawnStderr,
    SpawnStdio,
    StartStdin,
    Variables,
    Warm,
)
from spawnfd._spawnfd import Limiter, Sandbox
from spawnfd._types import Arg, Args, Cwd, Input, Keep, Limits, Spill
'''
FUNCTIONS = [
    ("run", "argv: Args", "run", ""),
    ("start", "argv: Args", "start", ""),
    ("spawn", "argv: Args", "spawn", ""),
    ("template_run", "args: Args = ()", "run", ""),
    ("template_start", "args: Args = ()", "start", ""),
    ("template_spawn", "args: Args = ()", "spawn", ""),
    ("command_run", "command: Arg", "command", "    yield_after: float | None = None,\n"),
    ("command_start", "command: Arg", "command", "    hold: bool = False,\n"),
    ("session", 'program: Any = "bash",\n    args: Args = ()', "session", ""),
]
PROGRAM = {"cwd", "env", "actions", "arg0", "sandbox", "warm"}
STREAMS = {"stdin", "stdout", "stderr"}
COMMAND = {"cwd", "env", "stdin", "window"}
# The name, the bases, the functions, a call that has the arguments, and those that the type lacks.
TYPED_DICTS: list[tuple[str, list[str], str, str, set[str]]] = [
    ("ProgramOptions", [], "spawn(), without the streams", "spawn", STREAMS),
    ("CapturedOptions", [], "all runs", "command", COMMAND),
    (
        "SupervisedOptions",
        ["CapturedOptions"],
        "run() and start(), without the program's",
        "run",
        {"stdin", *PROGRAM},
    ),
    ("SpawnOptions", ["ProgramOptions"], "spawn()", "spawn", set()),
    (
        "RunOptions",
        ["ProgramOptions", "SupervisedOptions"],
        "run(), for wrappers: `**options: Unpack[RunOptions]`",
        "run",
        set(),
    ),
    ("StartOptions", ["ProgramOptions", "SupervisedOptions"], "start()", "start", set()),
    (
        "CommonCommandOptions",
        ["CapturedOptions"],
        "a session's commands, without stdin",
        "command",
        {"stdin"},
    ),
    (
        "CommandOptions",
        ["CommonCommandOptions"],
        "run() and start() of a session",
        "command",
        set(),
    ),
    ("SideOptions", ["SupervisedOptions"], "side_command() of a session", "run", PROGRAM),
]


def signatures(options: list[Option]) -> str:
    text = SIGNATURES_HEAD
    fields: dict[str, set[str]] = {}
    for name, bases, what, call, without in TYPED_DICTS:
        fields[name] = {each["name"] for each in of(options, call)} - without
        own = fields[name].difference(*(fields[base] for base in bases))
        of_class = ", ".join(bases or ["TypedDict"])
        text += f"\n\nclass {name}({of_class}, total=False):\n"
        text += f'    """The keyword arguments of {what}."""\n\n'
        for each in of(options, call):
            if each["name"] in own:
                text += f"    {each['name']}: {python_type(each, call)}\n"
    for name, first, call, more in FUNCTIONS:
        listed = parameters(options, call)
        text += f"\n\ndef {name}(\n    {first},\n    *,\n{more}{listed}) -> None: ...\n"
    return text


# Functions whose docstrings list the options of a call.
DOCUMENTED = [("_run.py", "run", "run"), ("_session.py", "__init__", "session")]


def documented(text: str, function: str, options: list[Option], call: str) -> str:
    """Replaces the options in the section Args of a function's docstring."""
    listed = of(options, call)
    names = "|".join(each["name"] for each in listed)
    start = text.index(f"def {function}(")
    indent = " " * (4 + start - (text.rindex("\n", 0, start) + 1))
    args = text.index(f"{indent}Args:\n", start)
    first = re.compile(rf"^{indent}    (?:{names}): ", re.MULTILINE).search(text, args)
    assert first, function
    end = text.index("\n\n", first.start()) + 1
    entries = "".join(python_doc(each, call, len(indent) + 4) for each in listed)
    return text[: first.start()] + entries + text[end:]


TYPE_NAMES = {
    "Flag": "flag",
    "Count": "whole number",
    "Bytes": "bytes",
    "Number": "number",
    "Duration": "duration",
    "Text": "text",
    "Path": "path",
    "Data": "bytes of data",
    "HeadTail": "two numbers of bytes, or `all`",
    "TerminalSize": "rows and columns",
    "Object": "object",
}


def page_default(option: Option) -> str:
    value = option["default"]
    if value is None:
        return "none"
    if option["kind"] == "Duration":
        return f"{value * 1000:g} ms" if value < 1 else f"{value:g} s"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return " and ".join(f"{each:,}" for each in value)
    if isinstance(value, int):
        return f"{value >> 20} MiB" if value % (1 << 20) == 0 and value else f"{value:,}"
    return f"`{value}`"


PAGE_HEAD = """# Options

Reference, for callers of any front: every option of a run, a job, a session and a command of a
session. An option has the same name in Python and in `spawnfd shell`. In Node the name is in
camelCase, and the flag of `spawnfd run` has dashes. `scripts/generate` writes this page from the
table in the library.

The calls: `spawn` starts a program, `run` runs a program to its end, `start` starts a job,
`session` opens a session, and `command` runs or starts a command in a session. In Node a duration
is a number of milliseconds. On the command line a duration is a number of seconds, or a number with
`ms`, `s`, `m` or `h`, and a number of bytes may have `K`, `M`, `G` or `T` (powers of 1024).
"""


def page(options: list[Option]) -> str:
    text = PAGE_HEAD
    for group, title in GROUPS.items():
        text += f"\n## {title}\n"
        for option in options:
            if option["group"] != group or not option["calls"]:
                continue
            kind = TYPE_NAMES.get(option["kind"], "word")
            if option["kind"] == "Stream":
                kind = "word, or a descriptor"
            elif option["name"] == "arg0":
                kind = "text"
            calls = ", ".join(f"`{each}`" for each in option["calls"])
            shared = [each for each in options if each["name"] == option["name"] and each["calls"]]
            *most, last = option["calls"]
            where = f" of {', '.join(most)}{' and ' if most else ''}{last}" if shared[1:] else ""
            text += f"\n### `{option['name']}`{where}\n\n"
            text += f"Calls: {calls}. Type: {kind}. Default: {page_default(option)}.\n\n"
            text += fill(without_links(first_paragraph(option["doc"])), 120) + "\n"
            if option["words"]:
                text += "\n"
            for word, doc in option["words"]:
                text += fill(f"- `{word}`: {without_links(first_paragraph(doc))}", 120, 0, 2) + "\n"
    return text


def parts(tables: dict[str, Any]) -> Iterator[Part]:
    """Returns what is generated from the tables."""
    options: list[Option] = tables["options"]
    yield Part(f"{PACKAGE}/_signatures.py", None, signatures(options))
    for file, function, call in DOCUMENTED:
        path = f"{PACKAGE}/{file}"
        yield Part(path, None, documented((ROOT / path).read_text(), function, options, call))
    yield Part(PAGE, None, page(options))
    words = "".join(f'    "{stop}",\n' for stop in tables["stops"])
    yield Part(f"{PACKAGE}/_types.py", "stops", f"Stop: TypeAlias = Literal[\n{words}]\n")
