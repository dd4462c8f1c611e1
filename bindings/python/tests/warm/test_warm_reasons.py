# SPDX-License-Identifier: MIT OR Apache-2.0
"""The code gives exactly the reasons for cold starts in cold_reason.rs, and tests produce them."""

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


def strings(text: str) -> Iterator[tuple[str, str, str]]:
    """Yields the strings of Rust or C source, each with the text before and after it."""
    for found in TOKEN.finditer(text):
        if found[1]:
            yield text[: found.start()], found[1], text[found.end() :]


def known_reasons() -> dict[str, str]:
    """Returns the texts of the reasons in cold_reason.rs, and their names. … is a variable part."""
    table = (CORE / "cold_reason.rs").read_text().partition("\ncold_reasons! {")[2]
    return {text: name for name, text in re.findall(r"(\w+) = \"([^\"]+)\"", table)}


def names_in_rust() -> set[str]:
    """Returns the names of the reasons that the Rust code gives."""
    files = (path for path in CORE.rglob("*.rs") if path.name not in ("cold_reason.rs", "tests.rs"))
    text = "".join(path.read_text().partition("#[cfg(test)]")[0] for path in files)
    return set(re.findall(r"\bColdReason::([A-Z]\w+)", text))


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


def test_the_code_gives_every_reason() -> None:
    reported = reasons_in_parked_code()
    # This assertion shows that the patterns above still match the source.
    assert {"entry point outside libc", "cannot import …"} < reported
    known, names = known_reasons(), names_in_rust()
    assert sorted(reported - known.keys()) == []
    # The decoder gives the text of a program that is none of the reasons.
    unused = {text for text, name in known.items() if name not in names} - reported - {"…"}
    assert sorted(unused) == []


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
    "needs glibc": "only in builds for musl",
    "Node.js needs x86_64": "only on other processors",
    "adapter": "the interpreter would have to fail on a few lines of code",
    "the interpreter's initialisation failed": "CPython itself reports what failed",
    "development mode of 3.8": "needs that CPython",
    "unknown build of CPython": "needs such a build",
    "free-threaded CPython": "needs such a build",
    **dict.fromkeys(
        (
            *("libuv", "not a Node.js with an inspector", "not recognised as Node.js"),
            *("the memory map", "the copies of the arguments", "the process title"),
            "too many copies of the arguments",
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

    return {reason for reason in known_reasons() if is_named(reason)}


def test_each_reason_is_tested() -> None:
    assert sorted(known_reasons().keys() - reasons_in_tests() - UNTESTED.keys()) == []
