# SPDX-License-Identifier: MIT OR Apache-2.0
"""Reads presets.toml, and resolves tool names to absolute paths of executables."""

import os
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import BenchError

PRESETS_FILE = Path(__file__).resolve().parent / "presets.toml"
ELF_MAGIC = b"\x7fELF"
PIN_KINDS = ("pinned", "sorted", "local")


@dataclass(frozen=True)
class Preset:
    """One call: its command line, and the pinned properties of its answer."""

    name: str
    argv: tuple[str, ...]
    pin: str
    code: int
    size: int | None
    sha256: str | None


@dataclass(frozen=True)
class WorkspacePins:
    """The expected properties of the generated workspace."""

    seed: int
    epoch: int
    files: int
    bytes: int
    sha256: str
    commit: str


@dataclass(frozen=True)
class Definitions:
    """The content of presets.toml."""

    workspace: WorkspacePins
    environment: Mapping[str, str]
    tools: Mapping[str, tuple[str, ...]]
    sets: Mapping[str, tuple[str, ...]]
    presets: Mapping[str, Preset]

    def members(self, set_name: str) -> tuple[str, ...]:
        """Returns the presets of a set. The name of a preset means a set of one."""
        if set_name in self.sets:
            return self.sets[set_name]
        if set_name in self.presets:
            return (set_name,)
        raise BenchError(f"no set and no preset is called {set_name!r}")


def load(path: Path = PRESETS_FILE) -> Definitions:
    """Reads the definitions. Tool names in argv are not resolved."""
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    presets: dict[str, Preset] = {}
    for entry in data["preset"]:
        if entry["stdout"] not in PIN_KINDS:
            raise BenchError(f"{path.name}: preset {entry['name']}: stdout = {entry['stdout']!r}")
        presets[entry["name"]] = Preset(
            name=entry["name"],
            argv=tuple(entry["argv"]),
            pin=entry["stdout"],
            code=entry.get("code", 0),
            size=entry.get("size"),
            sha256=entry.get("sha256"),
        )
    definitions = Definitions(
        workspace=WorkspacePins(**data["workspace"]),
        environment=dict(data["environment"]),
        tools={name: tuple(names) for name, names in data["tools"].items()},
        sets={name: tuple(members) for name, members in data["sets"].items()},
        presets=presets,
    )
    for set_name, members in definitions.sets.items():
        unknown = [member for member in members if member not in presets]
        if unknown:
            raise BenchError(f"{path.name}: set {set_name} names unknown presets {unknown}")
    return definitions


def is_elf(path: Path) -> bool:
    """Returns whether the file is an ELF program, and not a script."""
    try:
        with path.open("rb") as file:
            return file.read(4) == ELF_MAGIC
    except OSError:
        return False


def find_tool(names: Iterable[str], search: Iterable[str]) -> Path | None:
    """Returns the first executable ELF file with one of these names.

    Skips shims of version managers.
    """
    directories = [entry for path in search for entry in path.split(os.pathsep) if entry]
    for name in names:
        for directory in directories:
            candidate = Path(directory) / name
            if candidate.is_absolute() and os.access(candidate, os.X_OK) and is_elf(candidate):
                return candidate
    return None


def resolve_tools(definitions: Definitions, overrides: Mapping[str, str]) -> dict[str, str]:
    """Returns a path for each tool: from the overrides, the calls' PATH, or the caller's PATH."""
    search = [definitions.environment["PATH"], os.environ.get("PATH", "")]
    paths: dict[str, str] = {}
    for tool, names in definitions.tools.items():
        if tool in overrides:
            chosen: Path | None = Path(overrides[tool])
            if not (chosen and chosen.is_absolute() and is_elf(chosen)):
                raise BenchError(
                    f"--tool {tool}={overrides[tool]}: not an absolute path of a program"
                )
        else:
            chosen = find_tool(names, search)
        if chosen is None:
            raise BenchError(
                f"no program {' or '.join(names)} found (scripts and shims do not count); "
                f"install it or name it: --tool {tool}=/path"
            )
        paths[tool] = str(chosen)
    return paths


def resolve_argv(argv: Sequence[str], tools: Mapping[str, str]) -> tuple[str, ...]:
    """Returns argv with tool names replaced by paths: the first word, and names in braces."""
    words = [tools.get(argv[0], argv[0]), *argv[1:]]
    for tool, path in tools.items():
        words = [word.replace("{" + tool + "}", path) for word in words]
    return tuple(words)
