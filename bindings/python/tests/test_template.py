# SPDX-License-Identifier: MIT OR Apache-2.0
"""Template and TemplateCache."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import spawnfd as sf
from subprocess_support import run_script


def test_template_by_name() -> None:
    named = sf.Template("echo")
    assert named.path == shutil.which("echo")
    assert named.run([b"y", Path("z")]).args == ["echo", "y", "z"]
    assert sf.Template("/bin/echo").run().args == ["/bin/echo"]
    assert "echo" in repr(named)
    named.revalidate()


NO_REGULAR_FILE: dict[str, Callable[[Path, int], object]] = {
    "path": lambda fifo, _: sf.Template(fifo),
    "descriptor": lambda _, reader: sf.Template.from_fd(reader),
    "run": lambda fifo, _: sf.run([fifo], timeout=20),
}


@pytest.mark.parametrize("way", NO_REGULAR_FILE)
def test_special_file_is_not_read(tmp_path: Path, way: str) -> None:
    """Reading a FIFO would block, and would take data of the application."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo, 0o755)
    reader, writer = os.pipe()
    try:
        os.write(writer, b"of the application")
        with pytest.raises(PermissionError):
            NO_REGULAR_FILE[way](fifo, reader)
        os.set_blocking(reader, False)
        assert os.read(reader, 100) == b"of the application"
    finally:
        os.close(reader)
        os.close(writer)


DESCRIPTOR_REPLACED = """
import shutil
path = sys.argv[1]
sf.run(["true"])
shutil.copy("/bin/true", path)
template = sf.Template(path)
os.closerange(3, 100)
pipes = [os.pipe() for _ in range(20)]
for reader, writer in pipes:
    os.write(writer, b"of the application")
    os.set_blocking(reader, False)
print(template.spawn([]).wait(20))
del template
assert all(os.read(reader, 100) == b"of the application" for reader, _ in pipes)
"""


def test_replaced_descriptor_is_not_read(tmp_path: Path) -> None:
    """The application has a pipe at the number of the template's descriptor."""
    assert run_script(DESCRIPTOR_REPLACED, str(tmp_path / "program")) == "0\n"


SAME_FILE_AT_THE_NUMBER = """
path = os.path.realpath("/bin/cat")
template = sf.Template(path)
os.closerange(3, 100)
files = [os.open(path, os.O_RDONLY) for _ in range(20)]
assert template.run(input=b"x").text == "x"
del template
print([os.read(file, 4) for file in files] == [b"\\x7fELF"] * 20)
"""


def test_same_file_opened_by_the_application_stays_open() -> None:
    assert run_script(SAME_FILE_AT_THE_NUMBER) == "True\n"


def test_spawn() -> None:
    with sf.Template("cat").spawn([], stdin="pipe", stdout="pipe") as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(b"x")
        child.stdin.close()
        assert child.stdout.read() == b"x"


def rewrite(path: Path) -> None:
    path.write_text("#!/bin/sh\necho two\n")


def test_stale(script: Path) -> None:
    template = sf.Template(script)
    assert template.run().text == "one\n"
    rewrite(script)
    for attempt in (template.run, template.spawn, template.revalidate):
        with pytest.raises(sf.StaleTemplate):
            attempt()


def test_script(script: Path) -> None:
    template = sf.Template(script)
    assert template.interpreters == ["/bin/sh"]
    with pytest.raises(ValueError, match="script"):
        template.by_descriptor()


def test_by_descriptor(tmp_path: Path) -> None:
    path = tmp_path / "tool"
    shutil.copy2("/bin/echo", path)
    template = sf.Template(path).by_descriptor()
    assert template.run(["x"]).text == "x\n"
    with path.open("rb") as file:
        by_fd = sf.Template.from_fd(file)
    assert by_fd.path is None
    assert by_fd.run(["y"], arg0="echo").text == "y\n"


def test_errors(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("x")
    with pytest.raises(FileNotFoundError) as missing:
        sf.Template("/no/such/program")
    assert missing.value.filename == "/no/such/program"
    with pytest.raises(TypeError, match="path"):
        sf.Template("echo", path=["/bin"])  # type: ignore[arg-type]
    with plain.open() as file, pytest.raises(PermissionError, match=r"template\(fd\) = -1 EACCES"):
        sf.Template.from_fd(file)
    with pytest.raises(ValueError, match=r"fd: .* got -1"):
        sf.Template.from_fd(-1)


def test_cache(script: Path) -> None:
    cache = sf.TemplateCache(2)
    # If a file is younger than the resolution of timestamps, the cache checks it before the start.
    time.sleep(0.1)
    assert cache.run([script]).text == "one\n"
    rewrite(script)
    assert cache.run([script]).text == "two\n"
    # The cache has renewed the template, because the child found the file stale.
    assert cache.stats() == sf.CacheStats(hits=1, misses=1, renewed=1, evicted=0, entries=0)
    assert cache.run([script]).text == "two\n"
    assert cache.stats() == sf.CacheStats(hits=1, misses=2, renewed=1, evicted=0, entries=1)
    assert cache.get("echo").name == "echo"
    assert cache.spawn(["true"]).wait() == 0
    assert cache.stats().evicted == 1
    cache.clear()
    assert cache.stats().entries == 0
    assert "entries=0" in repr(cache)
    with pytest.raises(ValueError, match="capacity"):
        sf.TemplateCache(-1)


def test_cache_closes_removed_programs(tmp_path: Path) -> None:
    def open_paths() -> list[str]:
        links = [f"/proc/self/fd/{each}" for each in os.listdir("/proc/self/fd")]
        targets = sorted(os.readlink(each) for each in links if os.path.lexists(each))
        return [os.path.relpath(each, tmp_path) for each in targets if str(tmp_path) in each]

    cache = sf.TemplateCache()
    for name in ("a", "b", "c"):
        shutil.copy("/bin/true", tmp_path / name)
        assert cache.run([tmp_path / name]).code == 0
    (tmp_path / "a").unlink()
    (tmp_path / "b").rename(tmp_path / "other")
    (tmp_path / "again").hardlink_to(tmp_path / "c")
    (tmp_path / "c").unlink()
    assert open_paths() == ["a (deleted)", "c (deleted)", "other"]
    assert cache.run(["true"]).code == 0
    assert open_paths() == ["c (deleted)", "other"], "a file with another name stays cached"
    assert (cache.stats().evicted, cache.stats().entries) == (1, 3)
    cache.clear()
    assert open_paths() == []


def test_run_uses_the_shared_cache() -> None:
    shared = sf.TemplateCache.shared()
    before = shared.stats()
    sf.run(["true"])
    sf.run(["true"])
    after = shared.stats()
    assert (after.misses - before.misses, after.hits - before.hits) == (1, 1)
