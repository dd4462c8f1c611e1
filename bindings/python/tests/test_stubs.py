# SPDX-License-Identifier: MIT OR Apache-2.0
"""The stubs of the native classes have the classes' docstrings. Editors read only the stubs."""

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
def test_stub_docstrings_equal_runtime_docstrings(node: ast.ClassDef) -> None:
    native = getattr(sf, node.name)
    assert words(ast.get_docstring(node)) == words(native.__doc__)
    stub_docs: dict[str, str | None] = {}
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and not method.name.startswith("__"):
            stub_docs[method.name] = stub_docs.get(method.name) or ast.get_docstring(method)
    for name, doc in stub_docs.items():
        assert doc, name
        assert words(doc) == words(getattr(native, name).__doc__), name


def test_stubs_cover_the_native_classes() -> None:
    named = {node.name for node in NATIVE}
    assert named == {"Chunk", "Env", "Event", "Limiter", "Result", "Sandbox", "Snapshot"}
