#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Checks that the documentation of each public type of the crate `spawnfd` has an example.

A type is public if it is declared in a public module, or if a public module re-exports its name.
The check reads the source and does not expand macros.
"""

import re
import sys
from pathlib import Path

SOURCE = Path("crates/spawnfd/src")
MODULE = re.compile(r"^pub mod (\w+)(?:;| \{(.*?)^\})", re.MULTILINE | re.DOTALL)
REEXPORT = re.compile(
    r"((?:^ *(?:///|#\[).*\n)*)^ *pub use ([\w:]+?)(?:::\{([^}]*)\}|::(\w+));", re.MULTILINE
)
# A type of another crate has its example at the re-export.
OTHER_CRATES = ("spawnfd_child", "spawnfd_sys")
TYPE = re.compile(r"((?:^ *(?:///|#\[).*\n)+)^ *pub (?:struct|enum) (\w+)", re.MULTILINE)


def source_of(module: str) -> Path:
    """Returns the file of a module of the crate's root."""
    file = SOURCE / f"{module}.rs"
    return file if file.exists() else SOURCE / module / "mod.rs"


def main() -> int:
    """Prints one line per problem. The exit status is 1 if there are any."""
    problems = []
    types: set[tuple[Path, str]] = set()
    root = (SOURCE / "lib.rs").read_text()
    # Each public module: its file, the folder of its submodules, and its text.
    modules = [(SOURCE / "lib.rs", SOURCE, MODULE.sub("", root))]
    for module, inline in MODULE.findall(root):
        if module != "internal":
            file = SOURCE / "lib.rs" if inline else source_of(module)
            modules.append((file, SOURCE / module, inline or file.read_text()))
    for file, folder, text in modules:
        types |= {(file, name) for _, name in TYPE.findall(text)}
        for docs, path, list_of_names, name in REEXPORT.findall(text):
            names = {each.strip() for each in (list_of_names or name).split(",")}
            names = {name for name in names if name[:1].isupper() and not name.isupper()}
            if path.startswith(OTHER_CRATES):
                missing = sorted(names) if "```" not in docs else []
                problems += [f"{file}: the re-export of {name} has no example" for name in missing]
                continue
            base = SOURCE if path.startswith("crate::") else folder
            source = base / path.removeprefix("crate::").replace("::", "/")
            file_of_name = source.with_suffix(".rs")
            source = file_of_name if file_of_name.exists() else source / "mod.rs"
            types |= {(source, name) for name in names}
    for file in sorted({file for file, _ in types}):
        for docs, name in TYPE.findall(file.read_text()):
            if (file, name) in types and "```" not in docs:
                problems.append(f"{file}: the documentation of {name} has no example")
    print("\n".join(problems) or "check-examples: 0 problems")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
