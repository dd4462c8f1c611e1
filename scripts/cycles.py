#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Finds import cycles: scripts/cycles.py DIRECTORY...

A directory with Rust files is a crate, or a module below its src. The nodes are the modules
directly below, each with its child modules. The root is not a node: a name that the root
re-exports counts as its module's. Code under #[cfg(test)] does not count.

A directory with __init__.py is a Python package. Its nodes are the files; a stub counts if there
is no source. All imports count, also those inside functions and under `if TYPE_CHECKING:`. An
import of a submodule does not count as an import of its package.

In a directory whose folders have C files, the nodes are these folders. A folder uses another if it
names a function spawnfd_* that the other defines, or includes a header of the other.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

# For each node, the nodes that it uses, with the first file and line of each use.
Graph = dict[str, dict[str, tuple[Path, int]]]

IGNORED = re.compile(
    r"""//[^\n]*|/\*.*?\*/|\br(#*)".*?"\1|"(?:\\.|[^"\\])*"|'(?:\\.[^']*|[^'\\\n])'""", re.DOTALL
)
CFG_TEST = re.compile(r"#\[cfg\((?:all\()?test\b[^\]]*\]")
MODULE = re.compile(r"\bmod\s+(\w+)\s*\{")
USE = re.compile(r"\buse\s+([^;]+);")
USE_TOKEN = re.compile(r"\bas\s+(\w+)|[\w*]+|[{},]")
PATH = re.compile(r"\b(?:crate|self|super)(?:::\w+)+")
# A C function with its body. Functions that several files share have this prefix.
C_FUNCTION = re.compile(r"^(?!static\b)\w[\w *]*\b(spawnfd_\w+)\([^;{]*\)\s*\{", re.MULTILINE)
C_USE = re.compile(r"(?<!enum )(?<!struct )\b(spawnfd_\w+)")
C_INCLUDE = re.compile(r'^#include "(?:[^"]*/)?([^"/]+)"', re.MULTILINE)


def blanked(text: str) -> str:
    """Replaces code by spaces. Line numbers stay the same."""
    return re.sub(r"[^\n]", " ", text)


def block_end(text: str, start: int) -> int:
    """The end of the block that opens at the first brace after `start`."""
    depth = 0
    for brace in re.compile(r"[{}]").finditer(text, start):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return brace.end()
    return len(text)


def product_code(text: str) -> str:
    """Rust source without comments, literals and items that are compiled for tests only."""
    text = IGNORED.sub(lambda match: blanked(match[0]), text)
    while attribute := CFG_TEST.search(text):
        item = re.compile(r"[;{]|\Z").search(text, attribute.end())
        start = item.start() if item else 0
        end = block_end(text, start) if text[start:].startswith("{") else start + 1
        text = text[: attribute.start()] + blanked(text[attribute.start() : end]) + text[end:]
    return text


def use_paths(tree: str) -> Iterator[tuple[list[str], str, int]]:
    """The paths of a use tree: segments, the name that the path binds, and the offset."""
    prefixes: list[list[str]] = [[]]
    path: list[str] = []
    name, offset = "", 0
    for token in USE_TOKEN.finditer(f"{tree},"):
        if token[1]:
            name = token[1]
        elif token[0] == "{":
            prefixes.append(path.copy())
            name = ""
        elif token[0] in ",}":
            if name:
                yield path, name, offset
            if token[0] == "}":
                prefixes.pop()
            path, name = prefixes[-1].copy(), ""
        else:
            if token[0] != "self" or not path:
                path.append(token[0])
            name, offset = path[-1], token.start()


def paths(code: str) -> Iterator[tuple[list[str], str, int]]:
    """The paths in use trees, and other paths that begin with `crate`, `self` or `super`."""
    for use in USE.finditer(code):
        for path, name, offset in use_paths(use[1]):
            yield path, name, use.start(1) + offset
    for match in PATH.finditer(USE.sub(lambda use: blanked(use[0]), code)):
        yield match[0].split("::"), "", match.start()


def absolute(module: tuple[str, ...], path: list[str], above: tuple[str, ...] = ()) -> list[str]:
    """The path from the root, whose module is `above`. Empty for a path outside the root.

    A path without `crate`, `self` or `super` is unchanged.
    """
    names = [segment for segment in path if segment not in ("crate", "self", "super")]
    if path[0] == "crate":
        depth = len(above)
        return names[depth:] if tuple(names[:depth]) == above else []
    ups = path.count("super")
    if ups or path[0] == "self":
        return [*module[: len(module) - ups], *names] if ups <= len(module) else []
    return path


def rust(root: Path) -> Graph:
    """The graph of the modules directly below a crate's root, or below a module."""
    parts = root.resolve().parts
    above = parts[len(parts) - parts[::-1].index("src") :] if "src" in parts else ()
    sources: dict[Path, tuple[tuple[str, ...], str]] = {}
    for file in sorted(root.rglob("*.rs")):
        parts = file.relative_to(root).with_suffix("").parts
        if "tests" not in parts and parts[0] != "bin":
            module = parts[:-1] if parts[-1] in ("lib", "main", "mod") else parts
            sources[file] = module, product_code(file.read_text())
    graph: Graph = {module[0]: {} for module, _ in sources.values() if module}
    # The module of each name in the root.
    origins = {name: name for name in graph}
    for module, code in sources.values():
        for path, name, _ in paths(code) if not module else ():
            first = (absolute((), path, above) or [""])[0]
            if name and first in graph:
                origins.setdefault(name, first)
    for file, (module, code) in sources.items():
        inner = [(m.start(), block_end(code, m.start()), m[1]) for m in MODULE.finditer(code)]
        for path, _, offset in paths(code) if module else ():
            if path[0] not in ("crate", "self", "super"):
                continue
            here = (*module, *(name for start, end, name in inner if start < offset < end))
            used = origins.get((absolute(here, path, above) or [""])[0], module[0])
            if used != module[0]:
                graph[module[0]].setdefault(used, (file, code.count("\n", 0, offset) + 1))
    return graph


def python(root: Path) -> Graph:
    """The graph of a package's files."""
    files: dict[str, Path] = {}
    for file in [*root.rglob("*.pyi"), *root.rglob("*.py")]:
        parts = (root.resolve().name, *file.relative_to(root).with_suffix("").parts)
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    graph: Graph = {name: {} for name in sorted(files)}
    for name, uses in graph.items():
        own = name.split(".") + ["__init__"] * (files[name].stem == "__init__")
        for node in ast.walk(ast.parse(files[name].read_text())):
            if not isinstance(node, (ast.Import, ast.ImportFrom)):
                continue
            base: list[str] = []
            if isinstance(node, ast.ImportFrom):
                base = own[: -node.level] if node.level else []
                base += node.module.split(".") if node.module else []
            for alias in node.names:
                used = ".".join([*base, alias.name])
                while used and used not in files:
                    used = used.rpartition(".")[0]
                if used and used != name:
                    uses.setdefault(used, (files[name], node.lineno))
    return graph


def c(root: Path) -> Graph:
    """The graph of folders with C files."""
    texts = {file: file.read_text() for file in sorted(root.glob("*/*.[ch]"))}
    codes = {file: IGNORED.sub(lambda match: blanked(match[0]), texts[file]) for file in texts}
    folders = {file.name: file.parent.name for file in texts}
    for file, code in codes.items():
        folders |= dict.fromkeys(C_FUNCTION.findall(code), file.parent.name)
    graph: Graph = {file.parent.name: {} for file in texts}
    for file, text in texts.items():
        here = file.parent.name
        matches = [*C_INCLUDE.finditer(text), *C_USE.finditer(codes[file])]
        for match in sorted(matches, key=re.Match.start):
            used = folders.get(match[1], here)
            if used != here:
                graph[here].setdefault(used, (file, text.count("\n", 0, match.start()) + 1))
    return graph


def graph_of(root: Path) -> Graph:
    """The graph of a directory of any kind."""
    if (root / "__init__.py").exists():
        return python(root)
    return c(root) if any(root.glob("*/*.c")) else rust(root)


def cycle_through(graph: Graph, start: str) -> list[str]:
    """A shortest cycle through a node, starting at its smallest node. Empty if there is none."""
    queue, seen = [[start]], {start}
    for path in queue:
        for used in graph[path[-1]]:
            if used == start:
                least = path.index(min(path))
                return path[least:] + path[:least]
            if used not in seen:
                seen.add(used)
                queue.append([*path, used])
    return []


def main(arguments: list[str]) -> int:
    """Prints a shortest cycle for each node on one. The exit status is 1 if there are any."""
    found = 0
    for root in map(Path, arguments):
        graph = graph_of(root)
        if not graph:
            sys.exit(f"cycles: {root}: no Rust crate, Python package or folders of C")
        cycles = {tuple(cycle_through(graph, node)) for node in graph} - {()}
        for cycle in sorted(cycles):
            print(f"import cycle: {' -> '.join([*cycle, cycle[0]])}")
            for node, used in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
                file, line = graph[node][used]
                print(f"    {file}:{line}: {node} uses {used}")
        found += len(cycles)
    print(f"cycles: {found} in {' '.join(arguments)}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
