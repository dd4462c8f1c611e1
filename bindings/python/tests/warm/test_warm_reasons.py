# SPDX-License-Identifier: MIT OR Apache-2.0
"""The source, docs/warm-reference.md and the tests name the same reasons for a cold start."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[4]
CORE = ROOT / "crates/spawnfd/src"
PARKED = ROOT / "crates/spawnfd-parked"
# Comments, characters and strings of Rust and C. Only the last group matters: plain strings, not
# byte strings or C strings.
TOKEN = re.compile(
    r"""//[^\n]*|/\*.*?\*/|'(?:\\.|[^'\\])'|[bcL]"(?:\\.|[^"\\])*"|"((?:\\.|[^"\\])*)\"""",
    re.DOTALL,
)
# The Rust code before and after a reason.
GIVEN = (
    (r"\b(Err|Refused|Unusable|Permanent|Temporary|ok_or|then_some|map_or)\(\s*", ""),
    (r"\brecord_missing_resource\(", ""),
    (r"\b(Permanent|Temporary)\(format!\(\s*", ""),
    (r"(=|return) Some\(|return |\|_\| |const [A-Z_]+: &str = ", ""),
    (r"\{\s+", "}"),
    # These strings are in tables of compared state.
    (r"\(", ", self."),
    (r'\("[A-Z]\w+", ', "),"),
)
# These strings are not reasons: failed system calls, paths, and the outcome of an explanation.
NO_REASON = re.compile(r".*\(\).*|\{call\}: \{\}|/proc/self/.*|glibc-hwcaps|would start")


def strings(text: str) -> Iterator[tuple[str, str, str]]:
    """Yields the strings of Rust or C source, each with the text before and after it."""
    for found in TOKEN.finditer(text):
        if found[1]:
            yield text[: found.start()], found[1], text[found.end() :]


def reasons_in_rust() -> set[str]:
    """Returns the reasons in the Rust source."""
    found: set[str] = set()
    # The generated protocol is left out: its strings are names of variables.
    # reasons.rs explains the reasons of the other files.
    warm = [path for path in (CORE / "warm").glob("*.rs") if path.name != "reasons.rs"]
    authority = [CORE / f"host/authority/{name}.rs" for name in ("mod", "full", "reach")]
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
    # This reason replaces all further ones once a process has too many.
    found.add(re.findall(r"return \"(\w+)\"", (CORE / "child/mod.rs").read_text())[0])
    command = (CORE / "command/parkable.rs").read_text()
    for name in ("needs_calling_thread", "needs_exec", "open_streams"):
        body = command.partition(f"fn {name}(")[2].partition("\n    }")[0]
        assert body, name
        found |= {text for _, text, _ in strings(body)}
    return found


def reasons_in_parked_code() -> set[str]:
    """Returns the reasons in the C objects and the Python adapter. … replaces a variable part."""
    found: set[str] = set()
    reported = re.compile(
        r"(spawnfd_cannot_park\([^;\"]*|return [\w\s?:]*|checked\([^;]*\), |\bwhy\[\] = "
        r"|snprintf\(why, sizeof\(why\), )\Z"
    )
    for path in PARKED.rglob("*.c"):
        for before, text, _ in strings(path.read_text()):
            if reported.search(before[-120:]):
                found.add(re.sub(r"(: |%s)$", lambda end: end[1].replace("%s", "") + "…", text))
    adapter = (PARKED / "python/adapter.py").read_text()
    for text, rest, more in re.findall(r'(?:return|why =) "([^"%]*)(%[^"]*)?"( \+)?', adapter):
        found.add(text + ("…" if rest or more else ""))
    return found


def reasons_in_docs() -> set[str]:
    """Returns the reasons in docs/warm-reference.md, without failed system calls."""
    text = (ROOT / "docs/warm-reference.md").read_text().partition("## When a start is cold")[2]
    rows = [line.split("|")[1] for line in text.partition("\n## ")[0].splitlines() if "|" in line]
    return {one for one in re.findall(r"`([^`]+)`", "".join(rows)) if not NO_REASON.fullmatch(one)}


def test_docs_name_every_reason() -> None:
    source = reasons_in_rust() | reasons_in_parked_code()
    # This assertion shows that the patterns above still match the source.
    assert {"stale", "cgroup", "group ids", "entry point outside libc", "cannot import …"} < source
    assert sorted(reasons_in_docs() ^ source) == []


# Reasons that no test produces, and the reason why.
UNTESTED = {
    "/proc": "own_proc keeps its descriptors: /proc would have to disappear later",
    "/proc cannot be read": "the owner could read it just before it parked the program",
    "unknown": "needs 512 different reasons before it",
    "status": "the lines of /proc/self/status stay the same while a kernel runs",
    "speculation": "only on processors that have such a flaw",
    "cpuset": "needs memory of several nodes",
    "security label": "needs a security module that labels processes",
    "exec label": "needs a security module that labels processes",
    "… changed": "needs a change at the moment a sandbox starts",
    "madvise": "every kernel supports MADV_DONTFORK and the other values used",
    "getrandom": "every kernel has it",
    "no pipe for start-up output": "three more descriptors were available just before",
    "adapter": "the interpreter would have to fail on a few lines of code",
    "the interpreter's initialisation failed": "CPython itself reports what failed",
    "development mode of 3.8": "needs that CPython",
    "unknown build of CPython": "needs such a build",
    **dict.fromkeys(
        (
            *("libuv", "no access to Node's JavaScript", "not a Node.js with an inspector"),
            *("not recognised as Node.js", "the memory map", "the copies of the arguments"),
            *("too many copies of the arguments", "the process title"),
            *("the saved state of the standard descriptors", "the random number generator"),
            *("too many random number generators", "too many timestamps", "too many times"),
        ),
        "needs a Node.js that is built differently",
    ),
}


def reasons_in_tests() -> set[str]:
    """Returns the reasons that a test of warm starts contains as a whole string."""
    files = [*Path(__file__).parent.glob("*.py"), *(ROOT / "tests/warm").rglob("*.py")]
    files += [ROOT / f"tests/suite/warm/{name}.rs" for name in ("zygote", "confined", "resources")]
    text = "".join(path.read_text() for path in files if path != Path(__file__))

    def is_named(reason: str) -> bool:
        # A test has some text in place of the variable part.
        varies = re.escape(reason).replace("…", "[^'\"]*")
        return re.search(rf"""["'> ](cold: )?{varies}(\\n)?["']""", text) is not None

    return {reason for reason in reasons_in_docs() if is_named(reason)}


def test_each_reason_is_tested() -> None:
    assert sorted(reasons_in_docs() - reasons_in_tests() - UNTESTED.keys()) == []
