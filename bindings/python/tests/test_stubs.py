# SPDX-License-Identifier: MIT OR Apache-2.0
"""What an editor shows of the native classes, which it can only take from the stubs."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import spawnfd as sf
from spawnfd import _spawnfd

TREE = ast.parse(Path(sf.__file__).with_name("_spawnfd.pyi").read_text())
NATIVE = [
    node
    for node in TREE.body
    if isinstance(node, ast.ClassDef)
    and getattr(sf, node.name, None) is getattr(_spawnfd, node.name)
]


def words(doc: str | None) -> list[str]:
    return (doc or "").split()


@pytest.mark.parametrize("node", NATIVE, ids=lambda node: node.name)
def test_the_stubs_say_what_help_says(node: ast.ClassDef) -> None:
    native = getattr(sf, node.name)
    assert words(ast.get_docstring(node)) == words(native.__doc__)
    said: dict[str, str | None] = {}
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and not method.name.startswith("__"):
            said[method.name] = said.get(method.name) or ast.get_docstring(method)
    for name, doc in said.items():
        assert doc, name
        assert words(doc) == words(getattr(native, name).__doc__), name


def test_there_are_some() -> None:
    named = {node.name for node in NATIVE}
    assert named == {"Chunk", "Env", "Event", "Limiter", "Result", "Sandbox", "Snapshot"}
