# SPDX-License-Identifier: MIT OR Apache-2.0
"""spawnfd.subprocess compared with the original: cases that CPython's own suites do not test."""

from __future__ import annotations

import fcntl
import os
import subprocess as original
import sys
import textwrap
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import spawnfd as sf
from patience import in_threads
from spawnfd import subprocess as ours
from subprocess_support import PYTHON, CountersSince, failure, run_script

root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
BOTH = [original, ours]


def test_public_names() -> None:
    assert set(original.__all__) <= set(ours.__all__)
    for name in original.__all__:
        mine, theirs = getattr(ours, name), getattr(original, name)
        if name == "Popen":
            assert issubclass(mine, theirs)
        elif callable(theirs) and not isinstance(theirs, type):
            assert mine is not theirs
            assert (mine.__doc__, mine.__name__) == (theirs.__doc__, theirs.__name__)
        else:
            assert mine is theirs


def test_every_function_uses_spawnfd() -> None:
    counted = CountersSince()
    assert ours.run(["echo", "a"], capture_output=True, text=True, check=True).stdout == "a\n"
    assert ours.call(["true"]) == 0
    assert ours.check_call(["true"]) == 0
    assert ours.check_output("echo b", shell=True) == b"b\n"
    assert ours.getoutput("echo c") == "c"
    assert ours.getstatusoutput("exit 3") == (3, "")
    with ours.Popen(["cat"], stdin=ours.PIPE, stdout=ours.PIPE, encoding="ascii") as process:
        assert process.communicate("d") == ("d", None)
    with pytest.raises(original.CalledProcessError):
        ours.run(["false"], check=True)
    with pytest.raises(original.TimeoutExpired):
        ours.run(["sleep", "60"], timeout=0.05)
    assert counted.get() == (9, {}, 0)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Files that a start may find in place of a program."""
    (tmp_path / "dir").mkdir()
    for name, text in [
        ("plain", "text"),
        ("empty", ""),
        ("word", "word\n"),
        ("no_interpreter", "#!/nonexistent/sh\n"),
        ("nothing_named", "#!\n"),
        ("script", '#!/bin/sh\necho "$0"\n'),
    ]:
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "plain").chmod(0o644)
    (tmp_path / "loop").symlink_to("loop")
    return tmp_path


@pytest.mark.parametrize(
    ("args", "options"),
    [
        (["nonexistent-program"], {}),
        (["/nonexistent/program"], {}),
        (["./nonexistent"], {}),
        ([b"/nonexistent/bytes"], {}),
        ([Path("/nonexistent/path")], {}),
        (Path("/nonexistent/path"), {}),
        (["x" * 5000], {}),
        (["/" + "x" * 300], {}),
        ([""], {}),
        (["/dev/null"], {}),
        (["{}/dir"], {}),
        (["{}/plain"], {}),
        (["{}/plain/below"], {}),
        (["{}/loop"], {}),
        (["{}/no_interpreter"], {}),
        (["{}/word"], {}),
        (["{}/empty"], {}),
        (["{}/nothing_named"], {}),
        (["plain"], {"env": {"PATH": "/nonexistent:{}:/bin"}}),
        (["plain"], {"env": {"PATH": "/dev/null/x"}}),
        (["dir"], {"env": {"PATH": "{}:{}/plain"}}),
        (["true"], {"env": {"PATH": ""}}),
        (["true"], {"cwd": "/nonexistent"}),
        (["true"], {"cwd": "/dev/null"}),
        (["true"], {"cwd": b"/nonexistent"}),
        (["true"], {"cwd": Path("/nonexistent")}),
        (["nonexistent"], {"cwd": "/nonexistent"}),
        (["nonexistent"], {"cwd": "/dev/null"}),
        (["nonexistent"], {"cwd": "/"}),
        (["./nonexistent"], {"cwd": "{}"}),
        (["./plain"], {"cwd": "{}"}),
        (["true"], {"executable": "/nonexistent/executable"}),
        (["true"], {"executable": b"nonexistent"}),
        ("true", {"shell": True, "executable": "/nonexistent/sh"}),
        (Path("true"), {"shell": True}),
        (["true"], {"pass_fds": [900]}),
        (["true"], {"pass_fds": [-1]}),
        (["nonexistent"], {"pass_fds": [900]}),
        (["true"], {"pass_fds": "x"}),
        (["true"], {"stdin": 900}),
        (["nonexistent"], {"stdout": 900}),
        (["true"], {"process_group": 1 << 30}),
        (["nonexistent"], {"process_group": 1 << 30}),
        (["true"], {"process_group": 0, "start_new_session": True}),
        (["true"], {"process_group": "x"}),
        (["true"], {"umask": 1 << 40}),
        (["true"], {"user": 1 << 64}),
        (["true"], {"user": -1}),
        (["true"], {"user": "nobody at all"}),
        (["true"], {"group": 1 << 64}),
        (["true"], {"extra_groups": [1 << 64]}),
        (["true"], {"extra_groups": [-1]}),
        (["true"], {"extra_groups": "root"}),
        (["true\0"], {}),
        (["true", "a\0"], {}),
        ([b"true\0"], {}),
        (["true"], {"cwd": "a\0"}),
        (["true"], {"executable": "a\0"}),
        (["true"], {"env": {"A=B": "x"}}),
        (["true"], {"env": {"A\0": "x"}}),
        (["true"], {"env": {"A": "x\0"}}),
        (["true"], {"env": {"A": 1}}),
        (["true"], {"env": {"PATH": "/bin", b"PATH": b"/usr/bin"}}),
        (["true"], {"env": 1}),
        ([], {}),
        ([1], {}),
        (["true", 1], {}),
        (["true", None], {}),
        (1, {}),
        (None, {}),
        (["true"], {"close_fds": False, "process_group": 1 << 30}),
        (["true"], {"bufsize": "x"}),
        (["true"], {"creationflags": 1}),
        (["true"], {"startupinfo": 1}),
        (["x" * (1 << 20)] * 9, {"executable": "/bin/true"}),
        (["./script"], {"cwd": "{}/dir"}),
        (["./empty"], {"cwd": "{}"}),
        (["./word"], {"cwd": "{}"}),
        (["./no_interpreter"], {"cwd": "{}"}),
        (["./nothing_named"], {"cwd": "{}"}),
        (["./loop"], {"cwd": "{}"}),
        (["./dir"], {"cwd": "{}"}),
        (["./script/x"], {"cwd": "{}"}),
        (["./script"], {"cwd": "{}/nowhere"}),
        (["./" + "x" * 300], {"cwd": "{}"}),
        (["./script", "x" * (1 << 20)], {"cwd": "{}"}),
        (["plain"], {"cwd": "{}", "env": {"PATH": "none::dir"}}),
        (["./x"], {"cwd": "{}/dir", "env": {}}),
        (["x"], {"env": {"PATH": ":relative"}}),
    ],
)
def test_errors_equal_the_originals(args: Any, options: dict[str, Any], files: Path) -> None:
    def fill(value: Any) -> Any:
        if isinstance(value, str):
            return value.replace("{}", str(files))
        if isinstance(value, list):
            return [fill(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
        if isinstance(value, dict):
            return {key: fill(item) for key, item in value.items()}  # pyright: ignore
        return value

    if "process_group" in options and sys.version_info < (3, 11):
        pytest.skip("process_group came with Python 3.11")
    counted = CountersSince()
    args, options = fill(args), fill(options)
    assert failure(ours, args, **options) == failure(original, args, **options)
    assert counted.get()[:2] == (0, {})


def test_path_search_skips_bad_programs(files: Path, tmp_path: Path) -> None:
    good = tmp_path / "good"
    good.mkdir()
    for name in ["plain", "no_interpreter", "dir", "word"]:
        (good / name).symlink_to("/bin/true")
        env = {"PATH": f"/nonexistent:{files}::{good}"}
        assert [module.call([name], env=env) for module in BOTH] == [0, 0]


def look(module: Any, *, code: str = "", **options: Any) -> str:
    """Returns a child's report: its descriptors, session, mask, ids, signals, directory."""
    report = """
        import os, sys, signal
        fds = [n for n in sorted(map(int, os.listdir("/proc/self/fd"))) if n < 1000]
        alive = [n for n in fds if os.path.exists(f"/proc/self/fd/{n}")]
        own = os.getpid()
        # glibc's posix_spawn leaves its internal signals 32 and 33 ignored.
        status = open("/proc/self/status").read().splitlines()
        for i, line in enumerate(status):
            if line.startswith("SigIgn"):
                status[i] = f"SigIgn {int(line.split()[1], 16) & ~(3 << 31):x}"
        keep = ("Umask", "Uid", "Gid", "Groups", "SigB", "SigI", "SigC", "Cap", "NoNew", "Seccomp:")
        print(alive, os.getsid(0) == own, os.getpgid(0) == own, os.getcwd(), sys.argv)
        print([line for line in status if line.startswith(keep)])
    """
    command = [PYTHON, "-S", "-c", textwrap.dedent(report) + code, "argument"]
    ended = module.run(command, stdout=original.PIPE, text=True, timeout=240, **options)
    assert ended.returncode == 0
    output: str = ended.stdout
    return output


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"close_fds": False},
        {"pass_fds": "inheritable, other"},
        {"pass_fds": "other"},
        {"pass_fds": "standard"},
        {"start_new_session": True},
        {"process_group": 0},
        {"umask": 0o027},
        {"umask": 0o10022},
        {"cwd": "/usr"},
        {"cwd": b".."},
        {"cwd": Path("/usr/..")},
        {"restore_signals": False},
        {"stdin": original.DEVNULL, "stderr": original.STDOUT},
        {"env": {"B": "2", "A": "1", b"C": b"\xff"}},
        # No version uses posix_spawn with a cwd. posix_spawn refuses an empty name.
        {"env": {"B": "2", "A": "1", "": "x"}, "cwd": "/"},
        {"executable": PYTHON, "close_fds": 1, "start_new_session": 0},
    ],
)
def test_children_equal_the_originals(options: dict[str, Any]) -> None:
    if "process_group" in options and sys.version_info < (3, 11):
        pytest.skip("process_group came with Python 3.11")
    inheritable, other = os.open("/", os.O_RDONLY), os.open("/usr", os.O_RDONLY)
    os.set_inheritable(inheritable, True)
    named = {
        "inheritable, other": [inheritable, other],
        "other": [other],
        "standard": [0, 1, other],
    }
    options = {**options}
    if "pass_fds" in options:
        options["pass_fds"] = named[options["pass_fds"]]
    code = 'print(open("/proc/self/environ", "rb").read())' if "env" in options else ""
    try:
        counted = CountersSince()
        assert look(ours, code=code, **options) == look(original, code=code, **options)
        assert counted.get() == (1, {}, 0)
        assert os.get_inheritable(inheritable)
        assert not os.get_inheritable(other)
    finally:
        os.close(inheritable)
        os.close(other)


@root
@pytest.mark.parametrize(
    "options",
    [
        {"user": 65534},
        {"group": 65534},
        {"user": 65534, "group": 65534, "extra_groups": [4, 5]},
        {"extra_groups": [7]},
        {"extra_groups": []},
        {"user": 65534, "extra_groups": []},
    ],
)
def test_ids_equal_the_originals(options: dict[str, Any]) -> None:
    counted = CountersSince()
    code = "print(os.getresuid(), os.getresgid(), os.getgroups())"
    command = ["/usr/bin/env", "python3", "-S", "-c", "import os; " + code]
    if original.run(command, capture_output=True, user=65534).returncode != 0:
        pytest.skip("user 65534 cannot run python3")
    outputs = [module.check_output(command, **options) for module in BOTH]
    assert outputs[0] == outputs[1]
    assert counted.get() == (1, {}, 0)


def test_descriptor_above_a_lowered_limit() -> None:
    out = run_script(
        """
        import resource
        os.dup2(os.open("/dev/null", os.O_RDONLY), 900)
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        for limits in (800, hard), (800, 800):
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            for module in subprocess, sf.subprocess:
                link = module.check_output(["readlink", "/proc/self/fd/900"], pass_fds=[900])
                assert link == b"/dev/null\\n", (limits, link)
        print(sf.stats().made, dict(sf.stats().passed))
        """
    )
    assert out == "1 {'refused': 1}\n"


def test_argv0_of_shells() -> None:
    for module in BOTH:
        assert module.getoutput('echo "$0"') == "/bin/sh"
        run = module.run(["sh", "-c", "echo $0 $1", "zero", "one"], executable="/bin/sh", stdout=-1)
        assert run.stdout == b"zero one\n"
        run = module.run(["me", "-c", "echo $0"], executable="/bin/sh", stdout=-1)
        assert run.stdout == b"me\n"
        run = module.run(["echo $0 $1", "zero", "one"], shell=True, stdout=-1)
        assert run.stdout == b"zero one\n"


@pytest.mark.parametrize("close_fds", [True, False])
def test_empty_argument_list(close_fds: bool) -> None:
    """Whether CPython accepts an empty list depends on the system call that it uses."""
    outcomes: list[Any] = []
    for module in BOTH:
        try:
            outcomes.append(module.call([], executable="/bin/true", close_fds=close_fds))
        except ValueError as error:
            outcomes.append(error.args)
    assert outcomes[0] == outcomes[1]


def test_arguments_from_an_iterator() -> None:
    for module in BOTH:
        assert module.check_output(iter(["echo", "a", "b"])) == b"a b\n"
        assert module.check_output(iter(["echo", "a"]), preexec_fn=lambda: None) == b"a\n"


def test_relative_paths(files: Path) -> None:
    (files / "link").symlink_to("/bin/echo")
    counted = CountersSince()
    for module in BOTH:
        assert module.check_output(["./link", "x"], cwd=files) == b"x\n"
        assert module.check_output(["x", "y"], executable="./link", cwd=str(files)) == b"y\n"
        env = {"PATH": f":{files.name}"}
        assert module.check_output(["link", "z"], cwd=files.parent, env=env) == b"z\n"
    assert counted.get() == (3, {}, 0)


def test_proc_self_paths() -> None:
    usr, echo = os.open("/usr", os.O_RDONLY), os.open("/bin/echo", os.O_RDONLY)
    high = fcntl.fcntl(usr, fcntl.F_DUPFD_CLOEXEC, 200)
    own = f"/proc/{os.getpid()}/fd/{high}"
    places = [f"/proc/self/fd/{usr}", f"//proc/./self/fd/{high}/bin/..", f"/dev/fd/{high}", own]
    places += ["/proc/thread-self/cwd", f"/proc/self/fd/{echo}"]
    table: list[tuple[Any, dict[str, Any]]] = [(["pwd", "-P"], {"cwd": each}) for each in places]
    table += [
        (["/proc/self/fd/0", "a"], {"stdin": echo}),
        (["/dev/stdin", "a"], {"stdin": echo}),
        ([f"/dev/fd/{echo}", "a"], {"pass_fds": [echo]}),
        ([f"/proc/self/fd/{echo}", "a"], {}),
        (["/proc/self/cwd/bin/echo", "a"], {"cwd": "/usr"}),
        (["echo", "a"], {"cwd": "/usr", "env": {"PATH": "/proc/thread-self/cwd/bin"}}),
        (["python", "-c", "print(1)"], {"executable": "/proc/self/exe"}),
    ]
    found = 0
    for args, options in table:
        try:
            outputs = [module.check_output(args, **options) for module in BOTH]
        except OSError:
            assert failure(ours, args, **options) == failure(original, args, **options)
        else:
            assert outputs[0] == outputs[1], (args, options)
            found += 1
    assert found == len(table) - 2
    for fd in usr, echo, high:
        os.close(fd)


@pytest.mark.parametrize("threads", [0, 1])
@pytest.mark.parametrize("refused", [(), (437,)], ids=["", "openat2"])
def test_links_to_proc_self_paths(tmp_path: Path, threads: int, refused: tuple[int, ...]) -> None:
    """A number in /proc/self/fd means the caller's descriptor, although the child has others."""
    run_script(
        """
        import threading
        threads, refused = eval(sys.argv[1])
        if refused: answer(refused, 0x50000 | 38)
        waiting = threading.Event()
        for _ in range(threads): threading.Thread(target=waiting.wait, daemon=True).start()
        os.symlink("/usr", "plain")
        os.symlink("/proc/self", "self")
        os.symlink("/proc/self/cwd/bin/echo", "echo")
        os.symlink("/dev/stdin", "stdin")
        echo = os.open("/bin/echo", os.O_RDONLY)
        fds = [os.open(each, os.O_RDONLY) for each in ("/usr", "/etc", "/var", "/")]
        table = [(["pwd", "-P"], {"cwd": "plain"}), (["pwd", "-P"], {"cwd": os.getcwd()})]
        for fd in fds:
            os.symlink(f"/proc/self/fd/{fd}", str(fd))
            others = [other for other in fds if other != fd]
            link = os.path.abspath(str(fd))
            for cwd in (str(fd), link, f"/../proc/self/fd/{fd}", f"self/fd/{fd}"):
                table.append((["pwd", "-P"], {"cwd": cwd, "pass_fds": others}))
        table.append((["pwd", "-P"], {"cwd": "stdin", "stdin": fds[0]}))
        if not refused:
            table.append(([os.path.abspath("stdin"), "a"], {"stdin": echo}))
            table.append(([os.path.abspath("echo"), "a"], {"cwd": "/usr"}))
        for module in (subprocess, sf.subprocess): module.check_call(["true"])
        for args, options in table:
            theirs = subprocess.check_output(args, **options)
            assert sf.subprocess.check_output(args, **options) == theirs, (args, options)
        # spawnfd leaves a start by a path to /proc/self to the original subprocess. If openat2 is
        # refused, it cannot detect such paths, and leaves all paths with links to the original.
        stats = sf.stats()
        assert (stats.made, stats.failed) == (2 if refused else 3, 0), stats
        os._exit(0)
        """,
        repr((threads, refused)),
        cwd=tmp_path,
    )


def test_relative_scripts(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (files / "dir" / "script").write_text('#!/bin/sh\necho dir "$0" "$@"\n')
    (files / "dir" / "odd").write_text("#!bin/sh -e\necho odd $0\n")
    (files / "dir" / "nested").write_text("#!dir/odd\n")
    (files / "dir" / "bin").mkdir()
    (files / "dir" / "bin" / "sh").symlink_to("/bin/sh")
    for path in (files / "dir").iterdir():
        path.chmod(0o755)
    counted = CountersSince()

    def both(*args: Any, **options: Any) -> bytes:
        outputs = [module.check_output(*args, **options) for module in BOTH]
        assert outputs[0] == outputs[1]
        return outputs[1]

    assert both(["./script"], cwd=files) == b"./script\n"
    # A relative script path counts from the child's working directory.
    monkeypatch.chdir(files)
    assert both(["./script", "x"], cwd="dir") == b"dir ./script x\n"
    assert both(["x", "y"], executable="./script", cwd=b"dir") == b"dir ./script y\n"
    assert both(["dir/script"]) == b"dir dir/script\n"
    assert both(["script"], cwd="dir", env={"PATH": ":/bin"}) == b"dir script\n"
    assert both(["script"], env={"PATH": "none:dir:/bin"}) == b"dir dir/script\n"
    assert both("./script a", shell=True, cwd="dir") == b"dir ./script a\n"
    # A relative path of the interpreter counts from there too, even if the script's path is
    # absolute.
    assert both([files / "dir" / "odd"], cwd="/") == f"odd {files}/dir/odd\n".encode()
    assert both(["./odd"], cwd="dir") == b"odd ./odd\n"
    assert both([files / "script"], cwd="dir") == f"{files}/script\n".encode()
    # Each start looks the script up again.
    (files / "dir" / "script").unlink()
    (files / "dir" / "script").symlink_to("../script")
    assert both(["./script"], cwd="dir") == b"./script\n"
    assert counted.get() == (11, {}, 0)


def test_relative_path_in_a_removed_directory(tmp_path: Path) -> None:
    code = """
        os.chdir(sys.argv[1])
        os.rmdir(sys.argv[1])
        for module in (subprocess, sf.subprocess):
            try:
                module.Popen(["./x"])
            except FileNotFoundError as error:
                assert error.filename == "./x"
        assert sf.stats() == sf.subprocess.Stats(0, {}, 1), sf.stats()
    """
    (tmp_path / "gone").mkdir()
    run_script(code, str(tmp_path / "gone"))


def test_unsupported_options_use_the_original(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def reason(*args: Any, **options: Any) -> dict[str, int]:
        counted = CountersSince()
        ours.Popen(*args, **options).wait()
        made, passed, failed = counted.get()
        assert (made, failed) == (0, 0)
        return passed

    assert reason(["true"], preexec_fn=lambda: None) == {"preexec_fn": 1}
    fds = [os.dup(0) for _ in range(300)]
    assert reason(["true"], pass_fds=fds) == {"refused": 1}
    for fd in fds:
        os.close(fd)
    with monkeypatch.context() as patch:
        patch.setattr(original, "_USE_VFORK", False, raising=False)
        assert reason(["true"]) == {"patched": 1}
    if hasattr(original, "_fork_exec"):
        fork_exec: Any = getattr(original, "_fork_exec")  # noqa: B009 # in no stub
        calls: list[Any] = []

        def wrapper(*args: Any) -> Any:
            calls.append(args)
            return fork_exec(*args)

        with monkeypatch.context() as patch:
            patch.setattr(original, "_fork_exec", wrapper)
            assert reason(["true"]) == {"patched": 1}
        assert len(calls) == 1


def test_unknown_interpreter_uses_the_original(monkeypatch: pytest.MonkeyPatch) -> None:
    from spawnfd import _popen

    monkeypatch.setattr(_popen, "_SIGNATURE_IS_KNOWN", False)
    counted = CountersSince()
    assert ours.call(["true"]) == 0
    assert counted.get() == (0, {"interpreter": 1}, 0)


def test_starts_call_no_fork() -> None:
    run_script(
        """
        def forked(): raise SystemExit("forked")
        os.register_at_fork(before=forked)
        import _posixsubprocess
        def refuse(*args): raise SystemExit("called")
        _posixsubprocess.fork_exec = os.posix_spawn = os.fork = refuse
        assert sf.subprocess.run(["echo", "x"], capture_output=True).stdout == b"x\\n"
        assert sf.subprocess.run("exit 3", shell=True, close_fds=False).returncode == 3
        assert sf.stats().made == 2
        """
    )


def test_each_start_is_audited_once() -> None:
    output = run_script(
        """
        def hook(event, args):
            if event == "subprocess.Popen": print(*args, flush=True)
        sys.addaudithook(hook)
        sf.subprocess.call("exit 1", shell=True)
        sf.subprocess.call(("true", b"x"), cwd="/", env={"PATH": "/bin"})
        sf.subprocess.call(["true"], preexec_fn=lambda: None)
        for options in ({}, {"cwd": "/nonexistent"}):
            try: sf.subprocess.call(["nonexistent"], **options)
            except FileNotFoundError: pass
        # CPython's own code raises these errors, after the event.
        for options in ({"start_new_session": True}, {"preexec_fn": int}):
            try: sf.subprocess.call(["nonexistent"], **options)
            except FileNotFoundError: pass
            else: raise SystemExit("not raised")
        import asyncio
        async def main():
            process = await sf.asyncio.create_subprocess_exec("true", b"y")
            await process.wait()
            process = await asyncio.create_subprocess_exec("true", b"z")
            await process.wait()
        sf.install()
        subprocess.call(["true", "w"])
        asyncio.run(main())
        """
    )
    assert output.splitlines() == [
        "/bin/sh ['/bin/sh', '-c', 'exit 1'] None None",
        "true ['true', b'x'] / {'PATH': '/bin'}",
        "true ['true'] None None",
        "nonexistent ['nonexistent'] None None",
        "nonexistent ['nonexistent'] /nonexistent None",
        "nonexistent ['nonexistent'] None None",
        "nonexistent ['nonexistent'] None None",
        "true ['true', 'w'] None None",
        "true ['true', b'y'] None None",
        "true ['true', b'z'] None None",
    ]


@pytest.mark.parametrize("closed", [[0], [1], [2], [0, 1, 2], [0, 2]])
def test_host_without_standard_streams(closed: list[int], tmp_path: Path) -> None:
    """Descriptors that the core keeps must not get numbers 0 to 2: the host may open them."""
    output = tmp_path / "output"
    run_script(
        """
        closed = list(map(int, sys.argv[2:]))
        code = "import os; print([fd for fd in (0, 1, 2) if os.path.exists(f'/proc/self/fd/{fd}')])"
        for module in (subprocess, sf.subprocess):
            for fd in closed:
                os.close(fd)
            command = [sys.executable, "-S", "-c", code]
            piped = module.run(command, stdout=-1).stdout
            plain = module.run(["true"]).returncode
            os.dup2(os.open(sys.argv[1], os.O_RDWR | os.O_CREAT | os.O_APPEND), closed[-1])
            for fd in (0, 1, 2):
                try: os.fstat(fd)
                except OSError: os.dup2(closed[-1], fd)
            os.write(closed[-1], piped + b"%d\\n" % plain)
            # The streams belong to the host: the core's cache must not close them.
            sf.TemplateCache.shared().clear()
            for fd in (0, 1, 2):
                os.fstat(fd)
        assert sf.stats().made == 2 and not sf.stats().passed, sf.stats()
        """,
        str(output),
        *map(str, closed),
    )
    lines = output.read_text().splitlines()
    assert len(lines) == 4
    assert lines[:2] == lines[2:]


def test_many_threads_start_programs() -> None:
    counted = CountersSince()

    def work(number: int) -> None:
        for turn in range(25):
            text = f"{number} {turn}"
            assert ours.check_output(["echo", text], text=True) == f"{text}\n"

    in_threads(*(partial(work, number) for number in range(8)))
    assert counted.get() == (200, {}, 0)


def test_threads_of_a_host_without_stdin() -> None:
    """Only one thread at a time can keep descriptor 0 free.

    The other threads may use the original.
    """
    run_script(
        """
        import threading
        os.close(0)
        codes = []
        def work():
            for _ in range(20):
                sf.TemplateCache.shared().clear()
                codes.append(sf.subprocess.call(["true"]))
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        assert codes == [0] * 80, codes
        stats = sf.stats()
        assert stats.made > 0 and set(stats.passed) <= {"closed_stdio"}, stats
        assert os.open("/", os.O_RDONLY) == 0
        """
    )


@root
def test_root_without_cap_setgid() -> None:
    status = Path("/proc/self/status").read_text()
    bounding = next(line for line in status.splitlines() if line.startswith("CapBnd"))
    less = int(bounding.split()[1], 16) & ~(1 << 6)
    code = """
        import sys
        sys.path.append(sys.argv[1])
        import subprocess, spawnfd as sf
        command = ["/bin/sh", "-c", "id -u; id -G"]
        one = subprocess.check_output(command, user=65534)
        assert one == sf.subprocess.check_output(command, user=65534)
        print(dict(sf.stats().passed))
    """
    package = str(Path(sf.__file__).parent.parent)
    limit = sf.actions.Capabilities(less, less, 0, less, 0)
    result = sf.run([PYTHON, "-c", textwrap.dedent(code), package], actions=[limit])
    assert (result.stderr, result.text) == (b"", "{'groups': 1}\n")


def test_fork_counts_separately() -> None:
    run_script(
        """
        sf.subprocess.call(["true"])
        if (pid := os.fork()) == 0:
            assert sf.subprocess.call(["true"]) == 0
            os._exit(sf.stats().made)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 2
        assert sf.stats().made == 1
        """
    )


# Starts 40 programs, while a handler of SIGCHLD reaps all children. {call} waits for a program.
REAPED = """
import asyncio, signal
def reap(*_):
    try:
        while os.waitpid(-1, os.WNOHANG)[0]: pass
    except ChildProcessError: pass
signal.signal(signal.SIGCHLD, {handler})
async def wait_async(argv):
    process = await asyncio.create_subprocess_exec(*argv)
    return await process.wait()
def poll(argv):
    process = module.Popen(argv)
    while (code := process.poll()) is None: pass
    return code
sf.install()
for module in (sf.subprocess, subprocess):
    codes = [{call} for argv in [["sh", "-c", "exit 3"]] * 20]
    assert codes == [3] * 20, codes
"""


@pytest.mark.parametrize("handler", ["reap", "signal.SIG_IGN"])
@pytest.mark.parametrize(
    "call",
    [
        "module.call(argv)",
        "module.Popen(argv).wait(60)",
        "poll(argv)",
        "asyncio.run(wait_async(argv))",
    ],
)
def test_status_is_recovered_after_other_code_has_reaped(call: str, handler: str) -> None:
    if tuple(map(int, os.uname().release.split(".")[:2])) < (6, 15):
        pytest.skip("before Linux 6.15, a pidfd does not have the status of a reaped child")
    run_script(REAPED.format(call=call, handler=handler))


def test_pidfd_is_closed_once_the_status_is_known() -> None:
    process = ours.Popen(["true"])
    pidfds = {fd for fd in os.listdir("/proc/self/fd") if is_pidfd(fd)}
    assert process.wait() == 0
    assert len(pidfds - {fd for fd in os.listdir("/proc/self/fd") if is_pidfd(fd)}) == 1


def is_pidfd(fd: str) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{fd}") == "anon_inode:[pidfd]"
    except FileNotFoundError:
        return False
