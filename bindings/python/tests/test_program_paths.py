# SPDX-License-Identifier: MIT OR Apache-2.0
"""Programs given by a relative path, and paths that only a shell expands."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import spawnfd as sf
from conftest import make_script

Run = Callable[..., Any]


def run(argv: Any, **options: Any) -> str:
    return sf.run(argv, **options).check().text


def run_async(argv: Any, **options: Any) -> str:
    return asyncio.run(sf.run_async(argv, **options)).check().text


def start(argv: Any, **options: Any) -> str:
    with sf.start_sync(argv, **options) as job:
        return job.result().check().text


def spawn(argv: Any, **options: Any) -> str:
    with sf.spawn(argv, stdout="pipe", **options) as child:
        assert child.stdout is not None
        return child.stdout.read().decode()


def from_cache(argv: Any, **options: Any) -> str:
    return sf.TemplateCache().run(argv, **options).check().text


each_run = pytest.mark.parametrize("run", [run, run_async, start, spawn, from_cache])


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This process's directory, and `sub`: each has the programs `tool` and `bin/tool`."""
    monkeypatch.chdir(tmp_path)
    for name in ("here", "sub"):
        directory = tmp_path if name == "here" else tmp_path / name
        for path in (directory / "tool", directory / "bin" / "tool"):
            path.parent.mkdir(parents=True, exist_ok=True)
            make_script(path, f"#!/bin/sh\necho {name} $(basename $PWD)\n")
    return tmp_path


@each_run
@pytest.mark.parametrize("program", ["./tool", "bin/tool", Path("bin/tool"), b"sub/../tool"])
def test_relative_program_starts_at_this_process_directory(
    run: Run, program: Any, tree: Path
) -> None:
    assert run([program]) == f"here {tree.name}\n"
    (tree / "other").mkdir()
    os.chdir("other")
    assert run([os.path.join("..", os.fsdecode(program))]) == "here other\n"


@each_run
@pytest.mark.parametrize("program", ["./tool", "bin/tool"])
def test_relative_program_starts_at_cwd(run: Run, program: str, tree: Path) -> None:
    for cwd in ("sub", b"./sub", tree / "sub"):
        assert run([program], cwd=cwd) == "sub sub\n"
    assert run(["../tool"], cwd="sub") == "here sub\n"
    fd = os.open("sub", os.O_PATH)
    try:
        assert run([program], cwd=fd) == "sub sub\n"
        assert run([os.fspath(tree / "tool")], cwd=fd) == "here sub\n"
    finally:
        os.close(fd)


@each_run
def test_relative_program_keeps_its_name_as_argv0(run: Run, tree: Path) -> None:
    (tree / "sh").symlink_to("/bin/sh")
    fd = os.open(".", os.O_PATH)
    try:
        for options in ({}, {"cwd": tree}, {"cwd": fd}):
            assert run(["./sh", "-c", "echo $0"], **options) == "./sh\n"
            assert run(["./sh", "-c", "echo $0"], arg0="other", **options) == "other\n"
    finally:
        os.close(fd)
    assert sf.run(["./sh", "-c", ":"]).args == ["./sh", "-c", ":"]


@each_run
def test_name_without_a_slash_is_searched_in_path_only(run: Run, tree: Path) -> None:
    with pytest.raises(FileNotFoundError, match="not found in PATH"):
        run(["tool"], cwd="sub")


@each_run
def test_missing_relative_program(run: Run, tree: Path) -> None:
    (tree / "empty").mkdir()
    fd = os.open("empty", os.O_PATH)
    try:
        for cwd in ("empty", fd):
            with pytest.raises(FileNotFoundError) as caught:
                run(["./tool"], cwd=cwd)
            assert isinstance(caught.value, sf.SpawnError)
            assert (caught.value.stage, caught.value.filename) == ("template", "./tool")
            assert caught.value.message == f"no such program: {tree}/empty/tool"
    finally:
        os.close(fd)


@each_run
def test_missing_directory_of_a_relative_program(run: Run, tree: Path) -> None:
    for cwd, number in (("none", errno.ENOENT), ("tool", errno.ENOTDIR), (1000, errno.EBADF)):
        errors: list[str] = []
        for program in ("./tool", "true"):
            with pytest.raises(sf.SpawnError) as caught:
                run([program], cwd=cwd)
            assert (caught.value.errno, caught.value.stage) == (number, "cwd")
            assert caught.value.filename == (cwd if isinstance(cwd, str) else None)
            errors.append(str(caught.value))
        # The error is the same as for any other program.
        assert errors[0] == errors[1]


def test_relative_program_of_a_removed_directory(tmp_path: Path) -> None:
    removed = tmp_path / "removed"
    removed.mkdir()
    before = os.open(".", os.O_PATH)
    try:
        os.chdir(removed)
        removed.rmdir()
        with pytest.raises(FileNotFoundError, match=r"\./tool: .*current directory"):
            sf.run(["./tool"])
        assert sf.run(["true"], cwd="/").ok
    finally:
        os.fchdir(before)
        os.close(before)


def test_template_refuses_a_relative_path(tree: Path) -> None:
    for create in (sf.Template, sf.TemplateCache().get):
        with pytest.raises(ValueError, match=r'pass .* os\.path\.abspath\("bin/tool"\)'):
            create("bin/tool")


@each_run
@pytest.mark.parametrize("path", ["~/bin/x", "~nobody/bin/x", "~/my dir/x", "~"])
def test_home_directory_is_not_expanded(run: Run, path: str, tree: Path) -> None:
    advice = f'; no shell expands "~"; pass os.path.expanduser("{path}")'
    for argv, options in (([path], {}), (["true"], {"cwd": path})):
        with pytest.raises(FileNotFoundError) as caught:
            run(argv, **options)
        assert isinstance(caught.value, sf.SpawnError)
        assert caught.value.message.endswith(advice)
        assert (caught.value.strerror or "").endswith(advice)
        assert caught.value.filename == path


def test_template_of_a_home_directory(tree: Path) -> None:
    with pytest.raises(ValueError, match=r'"~"; pass os\.path\.expanduser\("~/x"\)'):
        sf.Template("~/x")


@each_run
def test_directory_may_begin_with_a_tilde(run: Run, tree: Path) -> None:
    (tree / "sub").rename(tree / "~sub")
    assert run(["~sub/tool"]) == f"sub {tree.name}\n"
    assert run(["./tool"], cwd="~sub") == "sub ~sub\n"


@each_run
def test_relative_parts_of_path_start_at_cwd(run: Run, tree: Path) -> None:
    for path in (".", "", "/nonexistent:./"):
        env = {"PATH": path + os.pathsep + os.defpath}
        assert run(["tool"], env=env, cwd=tree) == f"here {tree.name}\n"
        assert run(["tool"], env=env) == f"here {tree.name}\n"
        assert run(["tool"], env=env, cwd="sub") == "sub sub\n"
        fd = os.open("sub", os.O_PATH)
        try:
            assert run(["tool"], env=env, cwd=fd) == "sub sub\n"
        finally:
            os.close(fd)
    assert run(["tool"], env={"PATH": "bin:" + os.defpath}, cwd="sub") == "sub sub\n"


@each_run
def test_relative_parts_of_this_process_path(
    run: Run, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "bin:" + os.environ["PATH"])
    assert run(["tool"], cwd="sub") == "sub sub\n"
    assert run(["tool"]) == f"here {tree.name}\n"


def test_template_and_warm_use_relative_parts_of_path(tree: Path) -> None:
    with sf.Warm(mode="reserve") as warm:
        template = sf.Template("tool", path="sub")
        assert template.path == os.fspath(tree / "sub" / "tool")
        assert template.run([]).check().text == f"sub {tree.name}\n"
        warm.add("tool", env={"PATH": "sub:" + os.defpath})
        result = warm.run(["tool"], env={"PATH": "sub:" + os.defpath})
        assert result.check().text == f"sub {tree.name}\n"
