# SPDX-License-Identifier: MIT OR Apache-2.0
"""scripts/setup-rust.sh installs the pinned toolchain if cargo is missing or too old."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# The programs that the script needs. The machine's own cargo and rustup must not be found.
TOOLS = [
    "chmod",
    "curl",
    "dirname",
    "ln",
    "mkdir",
    "mktemp",
    "rm",
    "sed",
    "sh",
    "sort",
    "tr",
    "uname",
]
CARGO = '#!/bin/sh\necho "cargo {version} (stand-in)"\n'
# Installs a cargo where rustup-init installs one, and reports its arguments.
RUSTUP_INIT = """#!/bin/sh
echo "$@" >"$HOME/arguments"
mkdir -p "$HOME/.cargo/bin"
printf '#!/bin/sh\\necho "cargo 1.95.0 (stand-in)"\\n' >"$HOME/.cargo/bin/cargo"
chmod +x "$HOME/.cargo/bin/cargo"
"""
RUSTUP = """#!/bin/sh
echo "$@" >>"$HOME/arguments"
[ "$2" != override ] || printf '#!/bin/sh\\necho cargo 1.95.0\\n' >"$(dirname "$0")/cargo"
"""


class Machine:
    """A checkout, a home and a PATH of their own."""

    def __init__(self, folder: Path) -> None:
        self.checkout, self.home, self.bin = folder / "checkout", folder / "home", folder / "bin"
        self.served = folder / "served"
        for path in (self.checkout / "scripts", self.home, self.bin):
            path.mkdir(parents=True)
        for name in ("Cargo.toml", "scripts/setup-rust.sh", "scripts/rust-toolchain.toml"):
            shutil.copy(ROOT / name, self.checkout / name)
        for name in TOOLS:
            found = shutil.which(name)
            assert found is not None
            (self.bin / name).symlink_to(found)

    def program(self, path: Path, script: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(script)
        path.chmod(0o755)

    def serve_rustup_init(self) -> None:
        name = f"dist/{os.uname().machine}-unknown-linux-gnu/rustup-init"
        self.program(self.served / name, RUSTUP_INIT)

    def set_up(self) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.checkout / "scripts/setup-rust.sh"],
            env={
                "PATH": str(self.bin),
                "HOME": str(self.home),
                "RUSTUP_UPDATE_ROOT": self.served.as_uri(),
            },
            capture_output=True,
            text=True,
            timeout=60,
        )

    def cargo_of_make(self) -> str:
        """The version of the cargo that the recipes of make find."""
        path = f"{self.checkout}/build/rust:{self.bin}"
        found = shutil.which("cargo", path=path)
        assert found is not None
        ran = subprocess.run(
            [found], env={"PATH": path}, capture_output=True, text=True, timeout=60
        )
        return ran.stdout.split()[1]

    def arguments(self) -> str:
        """The arguments of rustup or rustup-init, if one of them ran."""
        path = self.home / "arguments"
        return path.read_text() if path.exists() else ""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_missing_cargo_is_installed_by_rustup(machine: Machine) -> None:
    machine.serve_rustup_init()
    result = machine.set_up()
    assert (result.returncode, result.stderr) == (0, "")
    assert "cargo is missing: installing rustup and Rust 1.95.0" in result.stdout
    assert "--default-toolchain 1.95.0" in machine.arguments()
    assert "--component clippy,rustfmt" in machine.arguments()
    assert "--no-modify-path" in machine.arguments()
    assert machine.cargo_of_make() == "1.95.0"


def test_second_run_installs_nothing(machine: Machine) -> None:
    machine.serve_rustup_init()
    assert machine.set_up().returncode == 0
    (machine.home / "arguments").unlink()
    result = machine.set_up()
    assert (result.returncode, machine.arguments()) == (0, "")
    assert machine.cargo_of_make() == "1.95.0"


def test_old_cargo_stays_and_make_uses_the_new_one(machine: Machine) -> None:
    machine.program(machine.bin / "cargo", CARGO.format(version="1.85.1"))
    machine.serve_rustup_init()
    result = machine.set_up()
    assert result.returncode == 0
    assert "cargo 1.85.1 is older than 1.88: installing" in result.stdout
    assert machine.cargo_of_make() == "1.95.0"
    assert "1.85.1" in (machine.bin / "cargo").read_text()


@pytest.mark.parametrize("version", ["1.88.0", "1.97.0-nightly"])
def test_new_cargo_is_used(machine: Machine, version: str) -> None:
    machine.program(machine.bin / "cargo", CARGO.format(version=version))
    machine.serve_rustup_init()
    result = machine.set_up()
    assert (result.returncode, result.stdout, machine.arguments()) == (0, "", "")
    assert machine.cargo_of_make() == version


def test_rustup_with_an_old_toolchain_gets_the_pinned_one(machine: Machine) -> None:
    machine.program(machine.bin / "cargo", CARGO.format(version="1.70.0"))
    machine.program(machine.bin / "rustup", RUSTUP)
    result = machine.set_up()
    assert (result.returncode, result.stderr) == (0, "")
    assert machine.arguments().splitlines() == [
        "--quiet toolchain install --profile minimal --component clippy,rustfmt"
        " --no-self-update 1.95.0",
        "--quiet override set 1.95.0",
    ]
    assert machine.cargo_of_make() == "1.95.0"


def test_unreachable_rustup_says_what_to_install(machine: Machine) -> None:
    result = machine.set_up()
    assert result.returncode == 1
    assert "setup: cargo is missing, and rustup cannot be downloaded from file:" in result.stderr
    assert "install Rust 1.88 or newer (https://rustup.rs" in result.stderr
    assert not (machine.checkout / "build/rust").exists()
