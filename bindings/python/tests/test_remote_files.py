# SPDX-License-Identifier: MIT OR Apache-2.0
"""Files and directories that a connection copies."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import sys
import threading
from collections.abc import Generator
from pathlib import Path

import anyio
import pytest
import spawnfd as sf
from conftest import RunLoop
from patience import TIMEOUT_S, eventually

# Sparse, so that it costs no disk space. Copying it would take minutes.
HUGE = 1 << 40


@pytest.fixture
def box(command: Path) -> Generator[sf.Remote]:
    with sf.Remote.local(server=command) as box:
        yield box


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A directory with a file, an executable script and a link."""
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "sub" / "data").write_bytes(bytes(range(256)) * 5000)
    (tree / "script").write_text("#!/bin/sh\necho ran\n")
    (tree / "script").chmod(0o750)
    (tree / "link").symlink_to("sub/data")
    return tree


def huge(tmp_path: Path) -> Path:
    path = tmp_path / "huge"
    with path.open("wb") as file:
        file.truncate(HUGE)
    return path


def assert_same(copy: Path, tree: Path) -> None:
    assert (copy / "sub" / "data").read_bytes() == (tree / "sub" / "data").read_bytes()
    assert (copy / "link").readlink() == Path("sub/data")
    assert (copy / "script").stat().st_mode == (tree / "script").stat().st_mode


def test_directories_and_files_go_both_ways(box: sf.Remote, tree: Path, tmp_path: Path) -> None:
    there, back = tmp_path / "there", tmp_path / "back"
    box.put(tree, there)
    assert box.run([there / "script"]).text == "ran\n"
    box.get(str(there), str(back))
    assert_same(back, tree)
    (there / "script").write_text("old")
    box.put(tree / "script", there / "script")
    assert (there / "script").read_text() == "#!/bin/sh\necho ran\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back", "there", "tree"]


def test_directories_go_both_ways_on_each_loop(
    run_loop: RunLoop, command: Path, tree: Path, tmp_path: Path
) -> None:
    async def main() -> None:
        async with sf.Remote.local(server=command) as box:
            await box.put_async(tree, tmp_path / "there", timeout=TIMEOUT_S)
            await box.get_async(tmp_path / "there", tmp_path / "back", max_bytes=10 << 20)

    run_loop(main)
    assert_same(tmp_path / "back", tree)


def test_transfers_at_once_to_one_target_do_not_mix(
    command: Path, tree: Path, tmp_path: Path
) -> None:
    target = tmp_path / "target"

    async def main() -> None:
        async with sf.Remote.local(server=command) as box, anyio.create_task_group() as group:
            for _ in range(8):
                group.start_soon(box.get_async, tree / "sub" / "data", target)
                group.start_soon(box.put_async, tree / "sub" / "data", target)

    asyncio.run(main())
    assert target.read_bytes() == (tree / "sub" / "data").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["target", "tree"]


@pytest.mark.parametrize(
    ("call", "source", "target", "options", "number", "words"),
    [
        ("put", "missing", "new", {}, errno.ENOENT, "missing: "),
        ("get", "missing", "new", {}, errno.EIO, "missing: "),
        ("put", "tree", "missing/new", {}, errno.EIO, "missing/new: "),
        ("put", "tree", "new", {"max_bytes": 5000}, errno.EFBIG, "larger than its limit"),
        ("get", "tree", "new", {"max_bytes": 5000}, errno.EFBIG, "larger than its limit"),
        ("put", "huge", "new", {"timeout": 0.3}, errno.ETIMEDOUT, "new: "),
        ("get", "huge", "new", {"timeout": 0.3}, errno.ETIMEDOUT, "huge: "),
    ],
)
def test_failures_name_the_file_and_leave_no_part_of_one(
    box: sf.Remote,
    tree: Path,
    tmp_path: Path,
    call: str,
    source: str,
    target: str,
    options: dict[str, float],
    number: int,
    words: str,
) -> None:
    if source == "huge":
        huge(tmp_path)
    with pytest.raises(sf.SpawnError, match=words) as caught:
        getattr(box, call)(tmp_path / source, tmp_path / target, **options)
    assert caught.value.errno == number
    expected = {"tree", source} - {"missing"}
    if target == "new" and source == "tree":
        # The directory is there, without the file that was cut.
        expected.add("new")
        assert not (tmp_path / "new" / "sub" / "data").exists()
    assert eventually(lambda: {path.name for path in tmp_path.iterdir()} == expected)
    assert box.run(["true"]).ok


@pytest.mark.parametrize("call", ["put", "get"])
@pytest.mark.parametrize("options", [{"timeout": 0.5}, {"max_bytes": 50_000_000}, {}], ids=str)
def test_a_directory_that_is_cut_leaves_the_files_that_were_there(
    command: Path, tmp_path: Path, call: str, options: dict[str, float]
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    for directory in (source, target):
        (directory / "sub").mkdir(parents=True)
    huge(source / "sub")
    (target / "sub" / "huge").write_text("old")
    box = sf.Remote.local(server=command).connect()
    # Without an option, the connection is lost.
    timer = threading.Timer(TIMEOUT_S if options else 0.5, box.close)
    timer.start()
    with pytest.raises(sf.SpawnError, match=str(tmp_path)):
        getattr(box, call)(source, target, **options)
    timer.cancel()
    timer.join()
    box.close()
    assert (target / "sub" / "huge").read_text() == "old"
    assert eventually(lambda: [path.name for path in (target / "sub").iterdir()] == ["huge"])


@pytest.mark.parametrize("call", ["put_async", "get_async"])
def test_a_cancelled_transfer_ends(
    run_loop: RunLoop, command: Path, tmp_path: Path, call: str
) -> None:
    source = huge(tmp_path)

    async def main() -> None:
        async with sf.Remote.local(server=command) as box:
            with anyio.move_on_after(0.3) as scope:
                await getattr(box, call)(source, tmp_path / "new")
            assert scope.cancelled_caught
            assert (await box.run_async(["true"])).ok

    run_loop(main)
    assert eventually(lambda: [path.name for path in tmp_path.iterdir()] == ["huge"])


@pytest.mark.parametrize("call", ["put", "get"])
def test_ctrl_c_ends_a_transfer(box: sf.Remote, tmp_path: Path, call: str) -> None:
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        getattr(box, call)(huge(tmp_path), tmp_path / "new")
    timer.join()
    assert eventually(lambda: [path.name for path in tmp_path.iterdir()] == ["huge"])
    assert box.run(["true"]).ok


@pytest.mark.parametrize("call", ["put", "get"])
def test_a_lost_connection_ends_a_transfer(command: Path, tmp_path: Path, call: str) -> None:
    box = sf.Remote.local(server=command).connect()
    timer = threading.Timer(0.3, box.close)
    timer.start()
    with pytest.raises(sf.SpawnError, match=r"huge|new") as caught:
        getattr(box, call)(huge(tmp_path), tmp_path / "new")
    assert caught.value.errno == errno.ENOTCONN
    timer.join()
    assert eventually(lambda: [path.name for path in tmp_path.iterdir()] == ["huge"])


def test_wrong_arguments_are_named(box: sf.Remote, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="source"):
        box.put(3, tmp_path)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="timeout"):
        box.get(tmp_path, tmp_path, timeout=-1)
    with pytest.raises((TypeError, OverflowError), match="max_bytes"):
        box.put(tmp_path, tmp_path, max_bytes=-1)


def test_doctor_reports_the_other_machine(box: sf.Remote) -> None:
    found = box.doctor()
    assert found["machine"]["kernel"] == os.uname().release
    assert {"name", "available", "if_missing"} <= set(found["features"][0])

    async def main() -> None:
        assert (await box.doctor_async())["library"] == found["library"]

    asyncio.run(main())


def test_doctor_needs_the_command(tmp_path: Path) -> None:
    serve = "from spawnfd import _spawnfd; _spawnfd.serve()"
    with sf.Remote.command([sys.executable, "-I", "-c", serve]) as box:
        for call in (box.doctor, lambda: box.put(tmp_path, "/tmp/copy")):
            with pytest.raises(sf.SpawnError) as caught:
                call()
            assert caught.value.errno == errno.EOPNOTSUPP
