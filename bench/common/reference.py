# SPDX-License-Identifier: MIT OR Apache-2.0
"""The right answer of each call, from a run by subprocess that is checked against the pins."""

import hashlib
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .errors import BenchError
from .presets import Definitions, Preset, resolve_argv


@dataclass(frozen=True)
class Reference:
    """One call with its right answer.

    Attributes:
        text: The call as a command of a shell, which finds the tool by its name.
    """

    name: str
    argv: tuple[str, ...]
    code: int
    stdout: bytes
    stderr: bytes
    text: str = ""

    def difference(self, code: int, stdout: bytes, stderr: bytes) -> str | None:
        """Returns None if the answer is right, else a description of the difference."""
        if code != self.code:
            return f"exit code {code}, expected {self.code}; stderr {_excerpt(stderr)}"
        for stream, got, expected in (
            ("stdout", stdout, self.stdout),
            ("stderr", stderr, self.stderr),
        ):
            if got != expected:
                return f"{stream} differs: {_first_difference(got, expected)}"
        return None

    def in_shell(self, shell: str) -> "Reference":
        """Returns the same call as `SHELL -c TEXT`."""
        return replace(self, argv=(shell, "-c", self.text))

    def plain(self) -> dict[str, Any]:
        """Returns the reference as JSON values, for a worker."""
        return {
            "name": self.name,
            "argv": list(self.argv),
            "code": self.code,
            "stdout": self.stdout.decode("latin-1"),
            "stderr": self.stderr.decode("latin-1"),
        }

    @classmethod
    def from_plain(cls, entry: Mapping[str, Any]) -> "Reference":
        """Creates a reference from the result of plain()."""
        return cls(
            name=entry["name"],
            argv=tuple(entry["argv"]),
            code=entry["code"],
            stdout=entry["stdout"].encode("latin-1"),
            stderr=entry["stderr"].encode("latin-1"),
        )


def _excerpt(data: bytes) -> str:
    return repr(data[:120]) + ("..." if len(data) > 120 else "")


def _first_difference(got: bytes, expected: bytes) -> str:
    place = next(
        (index for index, (a, b) in enumerate(zip(got, expected, strict=False)) if a != b),
        min(len(got), len(expected)),
    )
    return (
        f"{len(got)} bytes, expected {len(expected)}, first difference at byte {place}: "
        f"got {_excerpt(got[place:])}, expected {_excerpt(expected[place:])}"
    )


def pinned_form(preset: Preset, stdout: bytes) -> bytes:
    """Returns stdout in the form that the pin hashes."""
    if preset.pin == "sorted":
        return b"".join(sorted(stdout.splitlines(keepends=True)))
    return stdout


def pins_of(preset: Preset, stdout: bytes) -> tuple[int, str]:
    """Returns size and sha256 for presets.toml."""
    form = pinned_form(preset, stdout)
    return len(form), hashlib.sha256(form).hexdigest()


def answer(argv: Sequence[str], cwd: Path, env: Mapping[str, str]) -> tuple[int, bytes, bytes]:
    """Returns the answer of a run by subprocess."""
    done = subprocess.run(
        argv, cwd=cwd, env=dict(env), stdin=subprocess.DEVNULL, capture_output=True, timeout=60
    )
    return done.returncode, done.stdout, done.stderr


def take(
    name: str, argv: tuple[str, ...], cwd: Path, env: Mapping[str, str], text: str = ""
) -> Reference:
    """Returns a call with its answer by subprocess. Raises BenchError if two runs differ."""
    found = Reference(name, argv, *answer(argv, cwd, env), text)
    if again := found.difference(*answer(argv, cwd, env)):
        raise BenchError(f"{name}: two runs have different answers: {again}")
    return found


def make_references(
    definitions: Definitions,
    tools: Mapping[str, str],
    cwd: Path,
    env: Mapping[str, str],
) -> dict[str, Reference]:
    """Runs every preset twice. The answers must equal each other and match the pins."""
    references: dict[str, Reference] = {}
    for preset in definitions.presets.values():
        argv = resolve_argv(preset.argv, tools)
        text = shlex.join([preset.argv[0], *argv[1:]])
        reference = take(preset.name, argv, cwd, env, text)
        _check_pin(preset, reference)
        references[preset.name] = reference
    return references


def _check_pin(preset: Preset, reference: Reference) -> None:
    if reference.code != preset.code or reference.stderr:
        raise BenchError(
            f"preset {preset.name}: exit code {reference.code} (pinned {preset.code}), "
            f"stderr {_excerpt(reference.stderr)}"
        )
    if preset.pin == "local":
        if not reference.stdout:
            raise BenchError(f"preset {preset.name} printed nothing")
        return
    found = pins_of(preset, reference.stdout)
    if found != (preset.size, preset.sha256):
        raise BenchError(
            f"preset {preset.name}: stdout is {found[0]} bytes, sha256 {found[1]}; pinned are "
            f"{preset.size} bytes, {preset.sha256}; it printed {_excerpt(reference.stdout)}"
        )
