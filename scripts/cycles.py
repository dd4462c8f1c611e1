#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Finds import cycles: scripts/cycles.py DIRECTORY...

Without __init__.py a directory is a Rust crate. Its nodes are the top-level modules, each with its
child modules. The root is not a node: a name that the root re-exports counts as its module's.
Code under #[cfg(test)] does not count.

A directory with __init__.py is a Python package. Its nodes are the files; a stub counts if there
is no source. Imports inside functions count. Imports under `if TYPE_CHECKING:` do not. An import of
a submodule does not count as an import of its package.
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


def absolute(module: tuple[str, ...], path: list[str]) -> list[str]:
    """The path from the crate's root. A path without `crate`, `self` or `super` is unchanged."""
    if path[0] == "crate":
        return path[1:]
    ups = path.count("super")
    if ups or path[0] == "self":
        names = [segment for segment in path if segment not in ("self", "super")]
        return [*module[: max(0, len(module) - ups)], *names]
    return path


def rust(root: Path) -> Graph:
    """The graph of a crate's top-level modules."""
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
            first = (absolute((), path) or [""])[0]
            if name and first in graph:
                origins.setdefault(name, first)
    for file, (module, code) in sources.items():
        inner = [(m.start(), block_end(code, m.start()), m[1]) for m in MODULE.finditer(code)]
        for path, _, offset in paths(code) if module else ():
            if path[0] not in ("crate", "self", "super"):
                continue
            here = (*module, *(name for start, end, name in inner if start < offset < end))
            used = origins.get((absolute(here, path) or [""])[0], module[0])
            if used != module[0]:
                graph[module[0]].setdefault(used, (file, code.count("\n", 0, offset) + 1))
    return graph


def imports(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """The imports at and below a node, except imports for type checkers."""
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        yield node
    children = ast.iter_child_nodes(node)
    if isinstance(node, ast.If) and ast.unparse(node.test).split(".")[-1] == "TYPE_CHECKING":
        children = iter(node.orelse)
    for child in children:
        yield from imports(child)


def python(root: Path) -> Graph:
    """The graph of a package's files."""
    files: dict[str, Path] = {}
    for file in [*root.rglob("*.pyi"), *root.rglob("*.py")]:
        parts = (root.resolve().name, *file.relative_to(root).with_suffix("").parts)
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    graph: Graph = {name: {} for name in sorted(files)}
    for name, uses in graph.items():
        own = name.split(".") + ["__init__"] * (files[name].stem == "__init__")
        for node in imports(ast.parse(files[name].read_text())):
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
        graph = python(root) if (root / "__init__.py").exists() else rust(root)
        if not graph:
            sys.exit(f"cycles: {root}: neither a Rust crate nor a Python package")
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
