# SPDX-License-Identifier: MIT OR Apache-2.0
"""Reasons for a cold start: the source, docs/warm-reference.md and the tests agree on them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[4]
CORE = ROOT / "crates/spawnfd/src"
PARKED = ROOT / "crates/spawnfd-parked"
# Comments, characters and strings of Rust and C; the last one counts: no bytes, no C string.
TOKEN = re.compile(
    r"""//[^\n]*|/\*.*?\*/|'(?:\\.|[^'\\])'|[bcL]"(?:\\.|[^"\\])*"|"((?:\\.|[^"\\])*)\"""",
    re.DOTALL,
)
# What a reason stands behind in Rust, and what stands behind it.
GIVEN = (
    (r"\b(Err|Gone|Refused|Ever|Now|ok_or|then_some|lacked|map_or)\(\s*", ""),
    (r"\b(Ever|Now)\(format!\(\s*", ""),
    (r"(=|return) Some\(|return |\|_\| |const [A-Z_]+: &str = ", ""),
    (r"\{\s+", "}"),
    # Tables of what is compared.
    (r"\(", ", self."),
    (r'\("[A-Z]\w+", ', "),"),
)
# System calls that fail, and paths.
NO_REASON = re.compile(r".*\(\).*|\{call\}: \{\}|/proc/self/.*|glibc-hwcaps")


def strings(text: str) -> Iterator[tuple[str, str, str]]:
    """The strings of a file of Rust or C, with what stands before and behind each."""
    for found in TOKEN.finditer(text):
        if found[1]:
            yield text[: found.start()], found[1], text[found.end() :]


def of_the_owner() -> set[str]:
    """Those of Rust."""
    found: set[str] = set()
    # The protocol's strings are names of variables.
    warm = [path for path in (CORE / "warm").glob("*.rs")]
    authority = [CORE / f"host/authority/{name}.rs" for name in ("mod", "reach")]
    for path in [*warm, *authority, CORE / "host/inherited.rs"]:
        for before, text, behind in strings(path.read_text().partition("#[cfg(test)]")[0]):
            given = any(
                re.search(f"({one})\\Z", before[-60:]) and behind.lstrip().startswith(other)
                for one, other in GIVEN
            )
            if given and not NO_REASON.fullmatch(text):
                # Replace the placeholders of a format string.
                found.add(re.sub(r"\{\w+\}", "…", text))
    actions = (ROOT / "crates/spawnfd-child/src/action.rs").read_text()
    found |= set(re.findall(r"Parked::(?:BeforeExec|Never)\(\"([^\"]+)\"\)", actions))
    # A process keeps only so many different reasons.
    found.add(re.findall(r"return \"(\w+)\"", (CORE / "child.rs").read_text())[0])
    command = (CORE / "command/mod.rs").read_text()
    for name in ("needs_calling_thread", "needs_exec", "open_streams"):
        body = command.partition(f"fn {name}(")[2].partition("\n    }")[0]
        assert body, name
        found |= {text for _, text, _ in strings(body)}
    return found


def of_what_parks() -> set[str]:
    """Those of the objects, and of what they run in an interpreter; … stands for what varies."""
    found: set[str] = set()
    said = re.compile(
        r"(spawnfd_cannot_park\([^;\"]*|return [\w\s?:]*|checked\([^;]*\), |\bwhy\[\] = "
        r"|snprintf\(why, sizeof\(why\), )\Z"
    )
    for path in PARKED.rglob("*.c"):
        for before, text, _ in strings(path.read_text()):
            if said.search(before[-120:]):
                found.add(re.sub(r"(: |%s)$", lambda end: end[1].replace("%s", "") + "…", text))
    adapter = (PARKED / "python/adapter.py").read_text()
    refusal = adapter.partition("def refusal():")[2].partition("\ndef ")[0]
    for text, more in re.findall(r'return "([^"]*)"( \+)?', refusal):
        found.add(text + ("…" if more else ""))
    return found


def of_docs() -> set[str]:
    """The reasons in docs/warm-reference.md, without failed system calls."""
    text = (ROOT / "docs/warm-reference.md").read_text().partition("## When a start is cold")[2]
    rows = [line.split("|")[1] for line in text.partition("\n## ")[0].splitlines() if "|" in line]
    return {one for one in re.findall(r"`([^`]+)`", "".join(rows)) if not NO_REASON.fullmatch(one)}


def test_docs_name_every_reason() -> None:
    source = of_the_owner() | of_what_parks()
    # That these are found shows that what is looked for is still how it is written.
    assert {"stale", "cgroup", "group ids", "own entry", "cannot import …"} < source
    assert sorted(of_docs() ^ source) == []


# What no test makes happen, and why.
UNTESTED = {
    "/proc": "own_proc keeps what it has opened: the host would have to be without it later",
    "/proc cannot be read": "a program is parked where its owner could read it a moment before",
    "unknown": "512 different sentences come first",
    "status": "lines of /proc/self/status do not come or go while a kernel runs",
    "speculation": "only on processors that have such a flaw",
    "cpuset": "takes memory of several nodes",
    "security label": "takes a security module that labels processes",
    "exec label": "takes a security module that labels processes",
    "… changed": "takes a change in the moment in which a sandbox is started",
    "madvise": "every kernel has what is asked for (MADV_DONTFORK and the like)",
    "refused": "what is asked is sound: tests/warm/node and the fuzzer send what is not",
    "getrandom": "every kernel has it",
    "no pipe for what start-up code says": "three descriptors more were there before",
    "adapter": "the interpreter would have to be unable to run a few lines",
    "the interpreter's initialisation failed": "CPython says itself what has failed",
    "development mode of 3.8": "takes that CPython",
    "a build of CPython that is not known": "takes such a build",
    **dict.fromkeys(
        (
            *("libuv", "no way into its JavaScript", "not a Node.js with an inspector"),
            *("not the object for Node.js", "the memory's map", "the copies of its arguments"),
            *("too many copies of its arguments", "the process's title"),
            *("its notes of the standard descriptors", "its generator of random numbers"),
            *("too many generators of random numbers", "too many points in time"),
        ),
        "takes a Node.js that is built otherwise",
    ),
}


def of_tests() -> set[str]:
    """Whatever stands in a test of warm starts as a reason does: as a string of its own."""
    files = [*Path(__file__).parent.glob("*.py"), *(ROOT / "tests/warm").rglob("*.py")]
    files += [ROOT / f"tests/suite/warm/{name}.rs" for name in ("zygote", "confined")]
    text = "".join(path.read_text() for path in files if path != Path(__file__))

    def stands(reason: str) -> bool:
        # Something stands for what varies.
        varies = re.escape(reason).replace("…", "[^'\"]*")
        return re.search(rf"""["'> ](cold: )?{varies}(\\n)?["']""", text) is not None

    return {reason for reason in of_docs() if stands(reason)}


def test_every_reason_is_made_to_happen() -> None:
    assert sorted(of_docs() - of_tests() - UNTESTED.keys()) == []
