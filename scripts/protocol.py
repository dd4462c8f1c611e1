#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Generates the warm protocol for Rust from the C header that defines it.

    scripts/protocol.py            writes the generated file
    scripts/protocol.py --check    fails if the generated file differs from the header

In both cases the C compiler checks every value, size and offset that this script has read.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HEADER = "crates/spawnfd-parked/common/protocol.h"
RUST = "crates/spawnfd-parked/src/protocol.rs"

PREFIX = "spawnfd_"
# Enums whose members Rust lists.
LISTED = {"park_field"}
# C type: bytes, Rust type.
TYPES = {
    f"{sign}int{bits}_t": (bits // 8, f"{sign or 'i'}{bits}")
    for bits in (8, 16, 32, 64)
    for sign in ("u", "")
}
COMMENT = r"/\*.*?\*/"
TOKEN = re.compile(
    rf"(?P<comment>{COMMENT})|(?P<directive>^\#[^\n]*)|(?P<word>\w+)"
    r"|(?P<char>'[^'\n]')|(?P<other>[{}\[\];,=])",
    re.DOTALL | re.MULTILINE,
)
DEFINE = re.compile(r"#define (\w+) (.+)")
TYPED = re.compile(r"\b(U?)INT(\d+)_C\(([^()]*)\)")
NUMBER = re.compile(r"\b(0x[0-9a-fA-F]+|\d+)[uU]?\b")


class Unsupported(Exception):
    """The header has a declaration outside the subset that this script reads."""


@dataclass
class Constant:
    name: str
    value: int | str
    # The Rust type: "usize" if the value has no C type of fixed width.
    rust: str
    doc: str


@dataclass
class Member:
    name: str
    value: int
    doc: str


@dataclass
class Enum:
    tag: str
    members: list[Member]
    # The Rust type of the fields with members of this enum.
    rust: str
    doc: str

    @property
    def prefix(self) -> str:
        words = [member.name.split("_") for member in self.members]
        return "_".join(os.path.commonprefix(words)) + "_"

    def short(self, member: Member) -> str:
        return member.name.removeprefix(self.prefix)

    @property
    def count(self) -> Member | None:
        return self.members[-1] if self.members[-1].name.endswith("_COUNT") else None

    @property
    def real(self) -> list[Member]:
        return self.members[:-1] if self.count else self.members


@dataclass
class Field:
    name: str
    type: str
    offset: int
    size: int
    doc: str


@dataclass
class Struct:
    tag: str
    fields: list[Field]
    # The array of structs that follows the other fields.
    tail: Field | None
    size: int
    doc: str


class Header:
    """The declarations of a header, in their order."""

    def __init__(self, text: str) -> None:
        self.items: list[Constant | Enum | Struct] = []
        self.values: dict[str, int | str] = {}
        self.tokens: list[tuple[str, str, int]] = []
        end = 0
        for found in TOKEN.finditer(text):
            if skipped := text[end : found.start()].strip():
                raise Unsupported(skipped)
            end = found.end()
            self.tokens.append(
                (found.lastgroup or "", found[0], text.count("\n", 0, found.start()))
            )
        self.doc: list[str] = []
        # The line of the last token that is not a comment.
        self.ended = -1
        self.last: Constant | Member | Field | None = None
        self.read()

    # --- tokens ---

    def skip_comments(self) -> None:
        """Takes comments. One on the line of the last declaration belongs to it.

        Any other comment belongs to the next declaration.
        """
        while self.tokens and self.tokens[0][0] == "comment":
            _, text, line = self.tokens.pop(0)
            lines = [re.sub(r"^\s*\* ?", "", part).rstrip() for part in text[2:-2].split("\n")]
            doc = " ".join(" ".join(lines).split())
            if doc.startswith("---"):
                continue
            if self.last and line == self.ended:
                self.last.doc = doc
            else:
                self.doc = [doc]

    def peek(self) -> str:
        self.skip_comments()
        return self.tokens[0][1] if self.tokens else ""

    def take(self, expected: str | None = None) -> str:
        self.skip_comments()
        if not self.tokens:
            raise Unsupported("the end of the file")
        _, text, line = self.tokens.pop(0)
        if expected is not None and text != expected:
            raise Unsupported(f"{text} on line {line + 1}, not {expected}")
        self.ended = line
        return text

    def take_doc(self) -> str:
        self.skip_comments()
        doc, self.doc = " ".join(self.doc), []
        return doc

    # --- declarations ---

    def read(self) -> None:
        while self.peek():
            if self.peek().startswith("#"):
                self.directive()
            else:
                doc = self.take_doc()
                word = self.take()
                if word not in ("enum", "struct"):
                    raise Unsupported(word)
                tag = self.take()
                self.take("{")
                (self.enum if word == "enum" else self.struct)(tag.removeprefix(PREFIX), doc)
                self.take("}")
                self.take(";")
                self.last = None
        for struct in self.items:
            for field in struct.fields if isinstance(struct, Struct) else ():
                if named := re.match(r"enum (\w+)", field.doc):
                    self.find(named[1].removeprefix(PREFIX)).rust = TYPES[field.type][1]

    def find(self, tag: str) -> Enum:
        for item in self.items:
            if isinstance(item, Enum) and item.tag == tag:
                return item
        raise Unsupported(f"a field has enum {tag}, which is not declared")

    def directive(self) -> None:
        doc = self.take_doc()
        text = re.sub(COMMENT, "", self.take()).strip()
        self.last = None
        if re.match(r"#(pragma|include)\b", text):
            self.doc = []
            return
        if not (found := DEFINE.fullmatch(text)):
            raise Unsupported(text)
        name, value = found[1], found[2].strip()
        types = {("u" if unsigned else "i") + bits for unsigned, bits, _ in TYPED.findall(value)}
        used = [
            item
            for item in self.items
            if isinstance(item, Constant) and re.search(rf"\b{item.name}\b", value)
        ]
        types |= {item.rust for item in used}
        if len(types) > 1:
            raise Unsupported(f"{text}: several types")
        result = self.evaluate(value)
        rust = "&str" if isinstance(result, str) else types.pop() if types else "usize"
        self.add(Constant(name, result, rust, doc))

    def add(self, constant: Constant) -> None:
        self.values[constant.name] = constant.value
        self.items.append(constant)
        self.last = constant

    def evaluate(self, text: str) -> int | str:
        if re.fullmatch(r'"[^"\\]*"', text):
            return text[1:-1]
        if re.fullmatch(r"'[^'\\]'", text):
            return ord(text[1])
        plain = NUMBER.sub(r"\1", TYPED.sub(r"(\3)", text))
        tree = ast.parse(plain, mode="eval")
        allowed = (
            ast.Expression,
            ast.BinOp,
            ast.UnaryOp,
            ast.operator,
            ast.unaryop,
            ast.Constant,
            ast.Name,
            ast.Load,
        )
        if not all(isinstance(node, allowed) for node in ast.walk(tree)):
            raise Unsupported(text)
        try:
            result = eval(compile(tree, HEADER, "eval"), {"__builtins__": {}}, dict(self.values))
        except NameError as error:
            raise Unsupported(text) from error
        return int(result)

    def enum(self, tag: str, doc: str) -> None:
        members: list[Member] = []
        while self.peek() != "}":
            own = self.take_doc()
            name = self.take()
            member = Member(name, members[-1].value + 1 if members else 0, own)
            members.append(member)
            self.last = member
            if self.peek() == "=":
                self.take("=")
                member.value = int(self.evaluate(self.take()))
            self.values[name] = member.value
            if self.peek() != "}":
                self.take(",")
        self.peek()
        self.items.append(Enum(tag, members, "u32", doc))

    def struct(self, tag: str, doc: str) -> None:
        fields: list[Field] = []
        tail: Field | None = None
        offset, alignment = 0, 1
        while self.peek() != "}":
            own = self.take_doc()
            if tail:
                raise Unsupported(f"struct {tag}: fields behind {tail.name}")
            kind = self.take()
            if kind == "struct":
                inner = self.take().removeprefix(PREFIX)
                of = next(
                    (item for item in self.items if isinstance(item, Struct) and item.tag == inner),
                    None,
                )
                if of is None or of.tail:
                    raise Unsupported(f"struct {tag}: struct {inner}")
                name = self.take()
                self.take("[")
                count = self.evaluate(self.take())
                self.take("]")
                aligned, size = (
                    max(TYPES[field.type][0] for field in of.fields),
                    of.size * int(count),
                )
                field = tail = Field(name, inner, offset, size, own)
            elif kind in TYPES:
                aligned = size = TYPES[kind][0]
                field = Field(self.take(), kind, offset, size, own)
                fields.append(field)
            else:
                raise Unsupported(f"struct {tag}: {kind}")
            if offset % aligned:
                raise Unsupported(f"struct {tag}: padding before {field.name}")
            offset, alignment = offset + size, max(alignment, aligned)
            self.take(";")
            self.last = field
        if offset % alignment:
            raise Unsupported(f"struct {tag}: padding at its end")
        self.items.append(Struct(tag, fields, tail, offset, doc))


# --- output ---------------------------------------------------------------------------------------


def camel(tag: str) -> str:
    return "".join(word.capitalize() for word in tag.lower().split("_"))


def plain(name: str) -> str:
    return name.removeprefix(PREFIX.upper())


def sentence(doc: str) -> str:
    """Capitalizes a comment and ends it with a period."""
    # Names at the beginning keep their case, as in "a: source" and "main()".
    begins_with_name = re.match(r"\w+(:|\()", doc)
    return doc and (doc[0] if begins_with_name else doc[0].upper()) + doc[1:] + (
        "" if doc.endswith(".") else "."
    )


def translated(doc: str) -> str:
    """Replaces C names in a comment by the names in the generated file."""
    doc = re.sub(r"\b(?:enum|struct) spawnfd_(\w+)", lambda found: f"`{camel(found[1])}`", doc)
    return re.sub(r"\bSPAWNFD_(\w+\*?)", r"`\1`", doc)


def rust_doc(doc: str, indent: str = "") -> list[str]:
    start = f"{indent}/// "
    return textwrap.wrap(
        sentence(translated(doc)),
        100,
        initial_indent=start,
        subsequent_indent=start,
        break_on_hyphens=False,
    )


def literal(constant: Constant) -> str:
    if isinstance(constant.value, str):
        return f'"{constant.value}"'
    return f"0x{constant.value:X}" if constant.value > 1 << 31 else str(constant.value)


def rust(header: Header) -> str:
    lines = [
        "// SPDX-License-Identifier: MIT OR Apache-2.0",
        "//! The protocol between an owner and a parked process.",
        "//!",
        f"//! Generated from `{HEADER.removeprefix('crates/spawnfd-parked/')}` by the repository's `protocol.py`. Do not edit.",
        "",
        "use zerocopy::{FromBytes, Immutable, IntoBytes};",
    ]
    before: object = None
    for item in header.items:
        grouped = isinstance(item, Constant) and isinstance(before, Constant) and not item.doc
        lines += [*([] if grouped else [""]), *rust_doc(item.doc)]
        before = item
        if isinstance(item, Constant):
            lines.append(f"pub const {plain(item.name)}: {item.rust} = {literal(item)};")
        elif isinstance(item, Enum):
            lines += rust_enum(item)
        else:
            lines += rust_struct(item)
    return "\n".join(lines) + "\n"


def rust_enum(item: Enum) -> list[str]:
    name = camel(item.tag)
    lines = [
        "#[derive(Clone, Copy, PartialEq, Eq, Debug)]",
        f"#[repr({item.rust})]",
        f"pub enum {name} {{",
    ]
    for member in item.real:
        lines += [
            *rust_doc(member.doc, "    "),
            f"    {camel(item.short(member))} = {member.value},",
        ]
    lines.append("}")
    if item.count:
        count = plain(item.count.name)
        lines += ["", f"/// The number of values of [`{name}`].", f"pub const {count}: usize = {item.count.value};"]
    if item.tag in LISTED:
        members = [f"{name}::{camel(item.short(member))}" for member in item.real]
        start = f"    pub const ALL: [{name}; {plain(item.count.name)}] ="
        line = f"{start} [{', '.join(members)}];"
        lines += ["", f"impl {name} {{", "    /// All values, in ascending order."]
        lines += (
            [line]
            if len(line) <= 120
            else [f"{start} [", *(f"        {member}," for member in members), "    ];"]
        )
        lines.append("}")
    return lines


# The derive of IntoBytes fails for a struct with padding.
DERIVED = "Clone, Copy, Default, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable"


def rust_struct(item: Struct) -> list[str]:
    name = camel(item.tag)
    every = [*item.fields, *([item.tail] if item.tail else [])]
    offsets = [
        line
        for field in every
        for line in (
            *(rust_doc(field.doc, "    ") if item.tail else ()),
            f"    pub const {field.name.upper()}: usize = {field.offset};",
        )
    ]
    if item.tail:
        size = ["    /// Bytes of the struct.", f"    pub const SIZE: usize = {item.size};"]
        # This struct is shared memory, which Rust accesses by offsets.
        title = "    // Offsets of the fields, in bytes."
        return [
            "#[derive(Debug)]",
            f"pub struct {name};",
            "",
            f"impl {name} {{",
            *size,
            "",
            title,
            *offsets,
            "}",
        ]
    lines = [f"#[derive({DERIVED})]", "#[repr(C)]", f"pub struct {name} {{"]
    for field in item.fields:
        lines += [*rust_doc(field.doc, "    "), f"    pub {field.name}: {TYPES[field.type][1]},"]
    return [*lines, "}"]


def assertions(header: Header) -> str:
    """C code that compiles only if the compiler agrees with this script about the header."""
    checks: list[str] = []
    for item in header.items:
        if isinstance(item, Constant):
            if isinstance(item.value, str):
                checks.append(f'__builtin_strcmp({item.name}, "{item.value}") == 0')
                continue
            checks.append(f"{item.name} == {item.value}{'u' if item.value > 0 else ''}")
            # C promotes smaller integer types to int, so only these types can be checked.
            if item.rust in ("u32", "i32", "u64", "i64"):
                kind = f"{'u' if item.rust[0] == 'u' else ''}int{item.rust[1:]}_t"
                checks.append(f"_Generic({item.name}, {kind}: 1, default: 0)")
        elif isinstance(item, Enum):
            checks += [f"{member.name} == {member.value}" for member in item.members]
        else:
            struct = f"struct {PREFIX}{item.tag}"
            checks.append(f"sizeof({struct}) == {item.size}")
            for field in [*item.fields, *([item.tail] if item.tail else [])]:
                checks.append(f"offsetof({struct}, {field.name}) == {field.offset}")
                checks.append(f"sizeof((({struct} *)0)->{field.name}) == {field.size}")
                if field.type in TYPES:
                    # sizeof does not distinguish signed from unsigned types.
                    checks.append(
                        f"_Generic((({struct} *)0)->{field.name}, {field.type}: 1, default: 0)"
                    )
    return "".join(f'_Static_assert({check}, "{HEADER}");\n' for check in checks)


def compile_assertions(path: Path, header: Header) -> str | None:
    source = f'#include "{path.resolve()}"\n#include <stddef.h>\n{assertions(header)}'
    compiler = os.environ.get("CC", "cc")
    command = [compiler, "-std=c11", "-Wall", "-Werror", "-fsyntax-only", "-x", "c", "-"]
    result = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
    return result.stderr if result.returncode else None


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--check",
        action="store_true",
        help="write nothing; fail if the generated file is out of date",
    )
    parser.add_argument(
        "--root", type=Path, default=ROOT, help="the source tree (default: the tree of this script)"
    )
    options = parser.parse_args(arguments)
    path = options.root / HEADER
    try:
        header = Header(path.read_text())
    except Unsupported as error:
        print(f"{HEADER}: unsupported: {error}", file=sys.stderr)
        return 1
    if refused := compile_assertions(path, header):
        print(f"{HEADER}: the C compiler reads it differently:\n{refused}", file=sys.stderr)
        return 1
    written, file = rust(header), options.root / RUST
    if file.exists() and file.read_text() == written:
        return 0
    if options.check:
        print(f"{RUST}: out of date; run scripts/protocol.py", file=sys.stderr)
        return 1
    file.write_text(written)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
