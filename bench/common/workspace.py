# SPDX-License-Identifier: MIT OR Apache-2.0
"""Generates the tools' workspace: the same files, times and commit on every machine."""

import hashlib
import json
import os
import random
import subprocess
from dataclasses import dataclass
from pathlib import Path

from .errors import BenchError
from .presets import Definitions, WorkspacePins

PACKAGES = ("core", "store", "wire", "tools")
MODULES = 12
NOUNS = (
    "buffer",
    "cursor",
    "digest",
    "event",
    "frame",
    "handle",
    "index",
    "lease",
    "node",
    "token",
)
VERBS = ("append", "close", "decode", "fetch", "merge", "open", "parse", "reset", "split", "verify")
LEVELS = ("DEBUG", "INFO", "INFO", "INFO", "WARN", "ERROR")


@dataclass(frozen=True)
class Manifest:
    """The properties of a workspace. The commit alone represents .git."""

    files: int
    bytes: int
    sha256: str
    commit: str


class _Source:
    """Makes repeatable choices. Uses only random(), because Python guarantees its sequence."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def below(self, limit: int) -> int:
        return int(self._random.random() * limit)

    def pick(self, items: tuple[str, ...]) -> str:
        return items[self.below(len(items))]


def _module(source: _Source, package: str, number: int) -> str:
    lines = [f'"""{package}: part {number}, generated."""', "", "import json", "import os", ""]
    for _ in range(2):
        noun = source.pick(NOUNS)
        lines += ["", f"class {noun.title()}{source.below(90) + 10}:"]
        lines += [f'    """Keeps one {noun} of the {package} package."""', ""]
        for verb in sorted({source.pick(VERBS) for _ in range(4)}):
            argument = source.pick(NOUNS)
            lines.append(
                f"    def {verb}_{noun}(self, {argument}: int = {source.below(500)}) -> int:"
            )
            if source.below(5) == 0:
                lines.append(f"        # TODO: {verb} should not need the whole {argument}")
            lines.append(f"        total = {argument}")
            for step in range(2 + source.below(4)):
                lines.append(f"        total += (total * {source.below(97) + 3}) % {step + 7}")
            lines += [f'        return total + len(json.dumps({{"{noun}": total}}))', ""]
    return "\n".join(lines) + "\n"


def _contents(seed: int) -> dict[str, str]:
    source = _Source(seed)
    files: dict[str, str] = {}
    for package in PACKAGES:
        files[f"src/{package}/__init__.py"] = f'"""The {package} package."""\n'
        for number in range(MODULES):
            files[f"src/{package}/module_{number:02}.py"] = _module(source, package, number)
    for number, package in enumerate(PACKAGES):
        files[f"tests/test_{package}.py"] = (
            f"from src.{package} import module_{number:02}\n\n\n"
            f"def test_{package}() -> None:\n    assert module_{number:02}.__doc__\n"
        )
    files["pyproject.toml"] = '[project]\nname = "workspace"\nversion = "0.1.0"\n'
    files["README.md"] = "# A generated workspace\n\nNothing in it is used by anyone.\n"
    files[".gitignore"] = "__pycache__/\n*.pyc\n"
    files["samples/records.csv"] = "".join(
        f"{row},{source.pick(NOUNS)},{source.below(10_000)},{source.pick(LEVELS)}\n"
        for row in range(1_500)
    )
    files["samples/log.txt"] = "".join(
        f"2025-06-15T15:{row // 60 % 60:02}:{row % 60:02}Z {source.pick(LEVELS)} "
        f"{source.pick(NOUNS)}.{source.pick(VERBS)} took {source.below(900)} us\n"
        for row in range(2_000)
    )
    files["samples/notes.md"] = "# Notes\n\n" + "".join(
        f"- {source.pick(VERBS)} the {source.pick(NOUNS)} before the {source.pick(NOUNS)}\n"
        for _ in range(120)
    )
    items = [{"name": source.pick(NOUNS), "size": source.below(5_000)} for _ in range(200)]
    files["samples/data.json"] = json.dumps({"items": items}, indent=1) + "\n"
    return files


def _pending(files: dict[str, str]) -> dict[str, str]:
    """Returns the changes after the commit: three edits and a new file."""
    changed: dict[str, str] = {}
    for path in ("src/core/module_03.py", "src/wire/module_07.py"):
        changed[path] = files[path].replace("        total = ", "        total = 1 + ", 2)
    changed["README.md"] = files["README.md"] + "\nOne more line.\n"
    changed["src/tools/draft.py"] = '"""Not yet added."""\n'
    return changed


def _git(root: Path, *arguments: str, epoch: int, git: str) -> str:
    environment = {
        "PATH": os.defpath,
        "HOME": str(root.parent),
        "LANG": "C.UTF-8",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_AUTHOR_NAME": "Bench",
        "GIT_AUTHOR_EMAIL": "bench@example.invalid",
        "GIT_COMMITTER_NAME": "Bench",
        "GIT_COMMITTER_EMAIL": "bench@example.invalid",
        "GIT_AUTHOR_DATE": f"{epoch} +0000",
        "GIT_COMMITTER_DATE": f"{epoch} +0000",
    }
    done = subprocess.run(
        [git, *arguments], cwd=root, env=environment, stdin=subprocess.DEVNULL, capture_output=True
    )
    if done.returncode != 0:
        message = done.stderr.decode(errors="replace").strip()
        raise BenchError(f"git {' '.join(arguments)} failed in the workspace: {message}")
    return done.stdout.decode()


def _write(root: Path, files: dict[str, str], epoch: int) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o644)
        os.utime(path, (epoch, epoch))


def _settle_directories(root: Path, epoch: int) -> None:
    for directory, names, _ in os.walk(root, topdown=True):
        if ".git" in names:
            names.remove(".git")
        os.chmod(directory, 0o755)
    for directory, _, _ in os.walk(root, topdown=False):
        if ".git" not in Path(directory).relative_to(root).parts:
            os.utime(directory, (epoch, epoch))


def generate(root: Path, pins: WorkspacePins, git: str) -> Manifest:
    """Creates the workspace in `root`, which must not exist, and returns its manifest."""
    root.mkdir(mode=0o755)
    files = _contents(pins.seed)
    _write(root, files, pins.epoch)
    _git(root, "init", "--quiet", "--template=", "--initial-branch=main", epoch=pins.epoch, git=git)
    _git(root, "config", "gc.auto", "0", epoch=pins.epoch, git=git)
    _git(root, "add", "--all", epoch=pins.epoch, git=git)
    _git(root, "commit", "--quiet", "--message=start", epoch=pins.epoch, git=git)
    # The changed files are one second newer, so that git notices an edit that keeps a file's
    # length.
    _write(root, _pending(files), pins.epoch + 1)
    _settle_directories(root, pins.epoch)
    return describe(root, git)


def describe(root: Path, git: str) -> Manifest:
    """Counts and hashes a workspace: names, modes, sizes, mtimes and contents."""
    digest = hashlib.sha256()
    count = total = 0
    for path in sorted(root.rglob("*")):
        relative = path.relative_to(root)
        if relative.parts[0] == ".git":
            continue
        status = path.stat()
        kind = "d" if path.is_dir() else "f"
        digest.update(f"{kind} {relative} {status.st_mode:o} {int(status.st_mtime)}\0".encode())
        if kind == "f":
            content = path.read_bytes()
            digest.update(hashlib.sha256(content).digest())
            count += 1
            total += len(content)
    commit = _git(root, "rev-parse", "HEAD", epoch=0, git=git).strip()
    return Manifest(files=count, bytes=total, sha256=digest.hexdigest(), commit=commit)


def check(found: Manifest, pins: WorkspacePins) -> None:
    """Raises BenchError if the workspace differs from its pins."""
    expected = Manifest(pins.files, pins.bytes, pins.sha256, pins.commit)
    if found != expected:
        raise BenchError(f"the generated workspace differs: expected {expected}, found {found}")


def prepare(scratch: Path, definitions: Definitions, git: str) -> tuple[Path, dict[str, str]]:
    """Creates a workspace in `scratch`. Returns its path, and the calls' environment with a HOME.

    Raises BenchError if the workspace differs from its pins.
    """
    home = scratch / "home"
    home.mkdir()
    root = scratch / "workspace"
    found = generate(root, definitions.workspace, git)
    check(found, definitions.workspace)
    return root, {**definitions.environment, "HOME": str(home)}
