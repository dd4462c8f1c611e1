# SPDX-License-Identifier: MIT OR Apache-2.0
"""The JavaScript runtimes: fetches them from the npm registry, and asks for their versions."""

import hashlib
import json
import os
import platform
import shutil
import tarfile
import tempfile
import tomllib
import urllib.request
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from common.command import output
from common.definitions import Method
from common.errors import BenchError

REGISTRY = "https://registry.npmjs.org"
MACHINE = "x86_64"
FETCH_S = 300
DESCRIBE = Path(__file__).resolve().parents[1] / "worker" / "describe.mjs"
# A method can need an export or a module of the package under test, or another package.
WARM = "Warm"
DROP_IN = "spawnfd/child_process"
EXECA = "execa"


@dataclass(frozen=True)
class Host:
    """A JavaScript runtime, from an archive of the npm registry or from PATH.

    Attributes:
        package: The name of the archive's package. Empty: the host is in PATH.
        program: The file in the archive, or the name in PATH.
        libuv: The oldest libuv with which the host is measured.
    """

    name: str
    title: str
    program: str
    package: str = ""
    version: str = ""
    sha256: str = ""
    libuv: str = ""


@dataclass(frozen=True)
class Found:
    """A host on this machine.

    Attributes:
        libuv: The version of its libuv. Empty: it has none.
        exports: The exports and modules of the package under test, and execa if it loads.
    """

    title: str
    program: str
    version: str
    libuv: str
    exports: frozenset[str]

    def plain(self) -> dict[str, str]:
        """Returns the facts for the result file."""
        facts = asdict(self)
        del facts["exports"]
        return facts


def load(path: Path) -> dict[str, Host]:
    """Reads the hosts of a definitions.toml."""
    entries = tomllib.loads(path.read_text(encoding="utf-8"))["host"]
    return {entry["name"]: Host(**entry) for entry in entries}


def _unpack(archive: Path, member: str, into: Path) -> None:
    """Writes a program of an archive to a file. The archive's own directory has any name."""
    with tarfile.open(archive) as files:
        for one in files:
            if one.isfile() and one.name.partition("/")[2] == member:
                source = files.extractfile(one)
                assert source is not None
                with source, into.open("wb") as target:
                    shutil.copyfileobj(source, target)
                into.chmod(0o755)
                return
    raise BenchError(f"{archive.name} has no {member}")


def fetch(host: Host, cache: Path) -> Path:
    """Returns the program of a host in the cache. Downloads the archive if the cache has none.

    Raises OSError if the registry cannot be reached, and BenchError for a wrong checksum.
    """
    base = f"{host.package.rpartition('/')[2]}-{host.version}"
    program = cache / base / host.program
    if program.exists():
        return program
    registry = os.environ.get("npm_config_registry", REGISTRY)  # noqa: SIM112 - npm's own spelling
    registry = registry.rstrip("/")
    url = f"{registry}/{host.package}/-/{base}.tgz"
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        archive = Path(scratch, f"{base}.tgz")
        with urllib.request.urlopen(url, timeout=FETCH_S) as answer, archive.open("wb") as file:
            shutil.copyfileobj(answer, file)
        with archive.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != host.sha256:
                raise BenchError(f"{url}: wrong checksum")
        partial = Path(scratch, "program")
        _unpack(archive, host.program, partial)
        program.parent.mkdir(parents=True, exist_ok=True)
        # The rename is atomic, if another run does the same.
        partial.replace(program)
    return program


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def find(host: Host, cache: Path, package: Path, named: Mapping[str, Path]) -> Found | str:
    """Returns a host on this machine, or the reason why it is not measured.

    `package` is the directory of the package under test. `named` has programs to use instead.
    """
    if host.name in named:
        program: str | None = str(named[host.name])
    elif not host.package:
        program = shutil.which(host.program)
    elif platform.machine() != MACHINE:
        return f"{host.package} is for {MACHINE}"
    else:
        try:
            program = str(fetch(host, cache))
        except OSError as error:
            return f"{host.package} {host.version} cannot be fetched: {error}"
    if program is None:
        return f"no {host.program} in PATH"
    facts: dict[str, Any] = json.loads(output(program, DESCRIBE, package))
    if host.libuv and _numbers(facts["libuv"])[:2] < _numbers(host.libuv):
        return (
            f"Node {facts['version']} has libuv {facts['libuv']}, which forks; "
            f"posix_spawn needs {host.libuv}"
        )
    exports = frozenset(facts["exports"])
    return Found(host.title, program, facts["version"], facts["libuv"], exports)


def missing(method: Method, exports: Collection[str]) -> str | None:
    """Returns the reason why a host cannot make calls by this method, or None."""
    if method.mode and WARM not in exports:
        return f"the package does not export {WARM}"
    if method.way == DROP_IN and DROP_IN not in exports:
        return f"the package has no {DROP_IN}"
    if method.way == EXECA and EXECA not in exports:
        return "execa supports only newer versions of the host"
    return None
