# SPDX-License-Identifier: MIT OR Apache-2.0
"""Builds two versions of the project into directories that do not need their sources."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from common.command import output
from common.errors import BenchError

ROOT = Path(__file__).resolve().parents[3]
SERVER = Path("bench/compare/comparebench/serve.py")
PROGRAM = "bench-launch"


@dataclass(frozen=True)
class Commit:
    """A commit to build, and its tree."""

    name: str
    commit: str
    tree: str


def _git(*arguments: str) -> str:
    return output("git", *arguments, cwd=ROOT, stderr=subprocess.STDOUT).strip()


def find(name: str) -> Commit:
    """Finds a commit. Raises BenchError if no commit has this name."""
    try:
        commit = _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    except BenchError:
        raise BenchError(f"BASE={name}: no such commit") from None
    return Commit(name, commit, _git("rev-parse", f"{commit}^{{tree}}"))


def work_name() -> str:
    """Returns a name for the working tree."""
    return f"working tree at {_git('describe', '--always', '--dirty')}"


def _run(what: str, command: list[str], source: Path, target: Path | None) -> None:
    environment = dict(os.environ)
    if target is not None:
        environment["CARGO_TARGET_DIR"] = str(target)
    null, both = subprocess.DEVNULL, subprocess.STDOUT
    try:
        output(*command, cwd=source, env=environment, stdin=null, stderr=both)
    except BenchError as error:
        raise BenchError(f"{what} does not build: {error}") from None


def _build(what: str, source: Path, target: Path | None, into: Path) -> None:
    """Creates `into` with bench/, site/ (the Python package) and the native program."""
    into.mkdir(parents=True)
    cargo = ["cargo", "build", "--release", "-p", "spawnfd-bench", "--bin", PROGRAM]
    _run(what, cargo, source, target)
    where = target or Path(os.environ.get("CARGO_TARGET_DIR", source / "target"))
    shutil.copy2(source / where / "release" / PROGRAM, into / PROGRAM)
    maturin = [str(Path(sys.executable).with_name("maturin")), "build", "--release"]
    wheels = into / "wheels"
    manifest = "bindings/python/Cargo.toml"
    options = ["--manifest-path", manifest, "--auditwheel", "skip", "--out", str(wheels)]
    _run(what, [*maturin, "--interpreter", sys.executable, *options], source, target)
    for wheel in wheels.iterdir():
        zipfile.ZipFile(wheel).extractall(into / "site")
    shutil.rmtree(wheels)
    _copy_bench(source, into)


def _copy_bench(source: Path, into: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__", ".*_cache")
    shutil.copytree(source / "bench", into / "bench", ignore=ignored)


def _export(commit: Commit, into: Path) -> None:
    archive = into / "archive.tar"
    _git("archive", "--format=tar", f"--output={archive}", commit.commit)
    with tarfile.open(archive) as tar:
        tar.extractall(into)
    archive.unlink()


def _bench_hash() -> str:
    digest = hashlib.sha256()
    for name in _git("ls-files", "--cached", "--others", "--exclude-standard", "bench").split("\n"):
        if (ROOT / name).is_file():
            digest.update(name.encode() + b"\0" + (ROOT / name).read_bytes())
    return digest.hexdigest()[:16]


def _base(commit: Commit, cache: Path) -> Path:
    """Returns the build of a commit, from the cache if possible.

    A commit without comparebench/serve.py is measured by the working tree's benchmarks, which must
    compile against its crates.
    """
    old = not _git("ls-tree", "--name-only", commit.commit, "--", str(SERVER))
    built = cache / (f"{commit.tree}-{_bench_hash()}" if old else commit.tree)
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if built.exists():
            return built
        source = cache / "source" / built.name
        draft = cache / "draft"
        for left in (source, draft):
            shutil.rmtree(left, ignore_errors=True)
        source.mkdir(parents=True)
        _export(commit, source)
        if old:
            shutil.rmtree(source / "bench")
            _copy_bench(ROOT, source)
        what = f"BASE={commit.name}" + (
            " is too old: it has no comparebench, and with the working tree's benchmarks it"
            if old
            else ""
        )
        _build(what, source, cache / "target", draft)
        shutil.rmtree(source)
        draft.rename(built)
    return built


@dataclass(frozen=True)
class Sides:
    """The directories of the two builds during measurements. Their paths have equal length."""

    base: Path
    work: Path


def build(commit: Commit, cache: Path, stage: Path) -> Sides:
    """Builds both at once, because the last steps of a build use one thread."""
    sides = Sides(stage / "base", stage / "work")
    with ThreadPoolExecutor() as pool:
        base = pool.submit(_base, commit, cache)
        work = pool.submit(_build, "the working tree", ROOT, None, sides.work)
        work.result()
        shutil.copytree(base.result(), sides.base)
    return sides


def server(side: Path, scratch: Path, suites: list[str]) -> tuple[list[str], dict[str, str]]:
    """Returns the command and the environment of a build's server."""
    bench = side / "bench"
    suites_of_bench = (bench / name for name in ("compare", "job", "warm", "native"))
    paths = [bench, *suites_of_bench, side / "site"]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "PYTHONSAFEPATH": "1",
    }
    command = [sys.executable, "-m", "comparebench.serve", "--program", str(side / PROGRAM)]
    return [*command, "--scratch", str(scratch), *suites], environment
