# SPDX-License-Identifier: MIT OR Apache-2.0
"""scripts/cycles.py finds import cycles of Rust crates, Python packages and folders of C."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "scripts" / "cycles.py"


def cycles(root: Path, files: dict[str, str]) -> list[str]:
    """Returns the lines that the script prints for these files, without the count."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    command = [sys.executable, str(SCRIPT), str(root)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    *lines, last = ended.stdout.splitlines()
    found = sum(not line.startswith(" ") for line in lines)
    assert last == f"cycles: {found} in {root}"
    assert (ended.returncode, ended.stderr) == (1 if found else 0, "")
    return [line.strip().replace(f"{root}/", "") for line in lines]


@pytest.mark.parametrize(
    "use",
    [
        "use crate::b::B;",
        "use super::b::B;",
        "pub(crate) use crate::{c::C, b::{self, B as Other}};",
        "use crate::B;",
        "fn f() { crate::b::f(); }",
        "mod inner { fn f() -> super::super::b::B { } }",
        "#[cfg(test)] mod tests { use crate::c::C; } fn f<'a>(_: &'a str) { super::b::f('\\'') }",
    ],
)
def test_rust_cycle_is_found(tmp_path: Path, use: str) -> None:
    root = "mod a; mod b; mod c; pub use b::B; pub use c::*;"
    files = {"lib.rs": root, "a.rs": f"// A.\n{use}\n", "b/mod.rs": "mod d;", "c.rs": ""}
    files["b/d.rs"] = "use super::super::a::{\n    A,\n};\n"
    assert cycles(tmp_path, files) == [
        "import cycle: a -> b -> a",
        "a.rs:2: a uses b",
        "b/d.rs:2: b uses a",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "use std::b::B;",
        "use self::b::B;",
        "// use crate::b::B;\n/* crate::b::f() */",
        'const TEXT: &str = "use crate::b;"; const RAW: &str = r#"" crate::b::f "#;',
        "#[cfg(test)]\nmod tests { mod more {} use crate::b::B; }",
        "#[cfg(test)]\nuse crate::b::{B, f};",
        "#[cfg(all(test, unix))]\nfn f() { crate::b::f() }",
        "mod b { fn f() {} } mod inner { use super::b::f; }",
    ],
)
def test_rust_code_without_a_cycle(tmp_path: Path, text: str) -> None:
    files = {"lib.rs": "mod a; mod b;", "a.rs": text, "b.rs": "use crate::a::A;"}
    files["a/tests.rs"] = "use crate::b::B;"
    assert cycles(tmp_path, files) == []


def test_module_and_its_child_are_one_node(tmp_path: Path) -> None:
    files = {"lib.rs": "mod a; use a::A;", "a.rs": "mod b; use self::b::B;"}
    assert cycles(tmp_path, {**files, "a/b.rs": "use super::A; use crate::a::A;"}) == []


@pytest.mark.parametrize(
    ("use", "found"),
    [
        ("use super::b::B;", True),
        ("use crate::outer::b::B;", True),
        ("use crate::b::B;", False),
        ("use super::super::b::B;", False),
    ],
)
def test_cycle_of_the_files_of_a_module(tmp_path: Path, use: str, found: bool) -> None:
    files = {"mod.rs": "mod a; mod b;", "a.rs": use, "b.rs": "use super::a::A;"}
    assert bool(cycles(tmp_path / "src" / "outer", files)) == found


C_FILES = {
    "low/low.h": "void spawnfd_low(void);\nvoid spawnfd_high(void);\nenum spawnfd_kind { A };\n",
    "low/low.c": '#include "low.h"\nvoid spawnfd_low(void)\n{\n}\n',
    "high/high.c": "void spawnfd_high(void)\n{\n\tspawnfd_low();\n}\n"
    "bool spawnfd_kind(int number)\n{\n}\n",
}


def test_c_cycle_by_a_declaration_is_found(tmp_path: Path) -> None:
    assert cycles(tmp_path, C_FILES) == [
        "import cycle: high -> low -> high",
        "high/high.c:3: high uses low",
        "low/low.h:2: low uses high",
    ]


def test_c_cycle_by_an_include_is_found(tmp_path: Path) -> None:
    files = {"low/low.h": '#include "../high/high.h"\n', "high/high.h": '#include "low.h"\n'}
    assert len(cycles(tmp_path, {**files, "low/low.c": ""})) == 3


def test_c_comments_and_tags_do_not_count(tmp_path: Path) -> None:
    text = "/* spawnfd_high() */\nenum spawnfd_kind { A };\nvoid spawnfd_low(void);\n"
    assert cycles(tmp_path, {**C_FILES, "low/low.h": text}) == []


@pytest.mark.parametrize(
    "text",
    [
        "from pack.b import B",
        "from .b import B",
        "from . import b",
        "import pack.b",
        "def f():\n    from pack import b",
        "if TYPE_CHECKING:\n    import pack.b as b",
    ],
)
def test_python_cycle_is_found(tmp_path: Path, text: str) -> None:
    files = {
        "__init__.py": "from pack import a",
        "a.py": text,
        "b.py": "import os\nimport pack.c.d",
    }
    files |= {"c/__init__.py": "", "c/d.py": "from ..a import A\n"}
    line = text.count("\n") + 1
    assert cycles(tmp_path / "pack", files) == [
        "import cycle: pack.a -> pack.b -> pack.c.d -> pack.a",
        f"a.py:{line}: pack.a uses pack.b",
        "b.py:2: pack.b uses pack.c.d",
        "c/d.py:1: pack.c.d uses pack.a",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "import b",
        "from other.pack import b",
    ],
)
def test_python_code_without_a_cycle(tmp_path: Path, text: str) -> None:
    files = {"__init__.py": "from pack import a, b", "a.py": text, "b.py": "from pack.a import A"}
    assert cycles(tmp_path / "pack", files) == []


def test_import_of_a_package_name_depends_on_its_init(tmp_path: Path) -> None:
    files = {"__init__.py": "from pack import a", "a.py": "from pack import name"}
    assert cycles(tmp_path / "pack", files)[0] == "import cycle: pack -> pack.a -> pack"


def test_stub_counts_without_a_source(tmp_path: Path) -> None:
    files = {"__init__.py": "", "a.py": "from pack import b", "b.pyi": "from pack.a import A"}
    assert cycles(tmp_path / "pack", files)[0] == "import cycle: pack.a -> pack.b -> pack.a"
    assert cycles(tmp_path / "pack", {"b.py": ""}) == []


def test_each_cycle_is_printed_once(tmp_path: Path) -> None:
    files = {"lib.rs": "", "a.rs": "use crate::b; use crate::c;", "b.rs": "use crate::a;"}
    found = cycles(tmp_path, {**files, "c.rs": "use crate::a;"})
    assert [line for line in found if line.startswith("import")] == [
        "import cycle: a -> b -> a",
        "import cycle: a -> c -> a",
    ]


def test_other_directory_is_an_error(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    why = f"cycles: {tmp_path}: no Rust crate, Python package or folders of C\n"
    assert (ended.returncode, ended.stderr) == (1, why)
