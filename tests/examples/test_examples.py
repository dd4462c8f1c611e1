# SPDX-License-Identifier: MIT OR Apache-2.0
"""Each example runs as a program, and prints what it should.

test_mcp_server.py tests the MCP server, and test_node_examples.py the examples for Node. The
examples of the C library are skipped without their compiler or interpreter.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import spawnfd as sf

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
LIBRARIES = Path(os.environ.get("SPAWNFD_CAPI", ROOT / "build/capi"))
TIMEOUT_S = 60
# A Go compiler without a cache compiles its runtime first.
BUILD_TIMEOUT_S = 300

pytestmark = pytest.mark.timeout(2 * TIMEOUT_S)

OUTPUT = {
    "tool_executor": """\
answers: hello
fails: oops | [exit code 3]
is missing: [not started: no-such-tool: not found in PATH (searched 2 directories)]
hangs: working | [stopped: timeout]
floods: y | ... | [stopped: output_limit]
writes much: 1 | ... | 100000
cancelled
""",
    "shell_session": """\
0 src
1 hello, world
timeout started shell exited: False
got yes
step 1
step 2
step 3
""",
    "autogen_executor": "CodeResult(exit_code=3, output='42\\n')\n",
    "langchain_tool": """\
hello
[code: 0, stop: exited]
[code: None, stop: timeout]
""",
    "evaluation_farm": "right: 4945\nwrong: 50\ntimeout: 5\n",
}

# The examples of the C library, with the same output in each language.
C_LIBRARY_OUTPUT = """\
1
2
[588,884 bytes omitted]
100000
stop: timeout, ok: 0, omitted: 588884 bytes
reason: timed out after 2 s
stdout: ready
stderr: got hello
code: 3
exited: /usr
exited: /usr
hello from /usr
timeout: /usr
42
"""


def run(name: str, *arguments: str) -> sf.Result:
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments]
    env = sf.Env.inherit().set("PATH", "/usr/bin:/bin")
    result = sf.run(command, cwd="/", env=env, timeout=TIMEOUT_S)
    assert (result.stop, result.stderr_text, result.leftovers) == ("exited", "", [])
    return result


@pytest.fixture
def example(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports the example that the test's parameter names."""
    monkeypatch.syspath_prepend(EXAMPLES)
    return pytest.importorskip(request.param)


@pytest.mark.parametrize("name", OUTPUT)
def test_script_prints_its_output(name: str) -> None:
    result = run(name)
    assert result.code == 0
    if name == "evaluation_farm":
        # The first line is the progress bar.
        bar, _, grades = result.text.partition("\n")
        assert ("5000/5000" in bar, grades) == (True, OUTPUT[name])
    else:
        assert result.text == OUTPUT[name]


def c_library_example(language: str, build: Path) -> list[str]:
    """Builds an example of the C library, and returns the command that runs it."""
    tool = {"c": "cc", "go": "go", "ruby": "ruby"}[language]
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed")
    if not (LIBRARIES / "libspawnfd.so.0").exists():
        pytest.skip("the C library is not built: make capi")
    include, link = f"-I{ROOT / 'include'}", [f"-L{LIBRARIES}", f"-Wl,-rpath,{LIBRARIES}"]
    program = str(build / "example")
    env = sf.Env.inherit()
    if language == "c":
        source = str(EXAMPLES / "c/run.c")
        warnings = ["-std=c99", "-Wall", "-Wextra", "-Werror"]
        command = [tool, *warnings, "-o", program, source, include, *link, "-lspawnfd"]
    elif language == "go":
        command = [tool, "build", "-o", program, str(EXAMPLES / "go/main.go")]
        env = env.set("CGO_ENABLED", "1").set("CGO_CFLAGS", include)
        env = env.set("CGO_LDFLAGS", " ".join(link)).set("GOCACHE", str(ROOT / "build/go"))
    else:
        return [tool, str(EXAMPLES / "ruby/run.rb"), str(LIBRARIES / "libspawnfd.so.0")]
    sf.run(command, cwd=build, env=env, timeout=BUILD_TIMEOUT_S).check()
    return [program]


@pytest.mark.timeout(2 * BUILD_TIMEOUT_S)
@pytest.mark.parametrize("language", ["c", "go", "ruby"])
def test_c_library_example_prints_its_output(language: str, tmp_path: Path) -> None:
    command = c_library_example(language, tmp_path)
    result = sf.run(command, cwd="/", timeout=TIMEOUT_S)
    assert (result.code, result.text, result.leftovers) == (0, C_LIBRARY_OUTPUT, [])
    assert result.stderr_text.startswith("started: ")


def test_each_example_is_tested() -> None:
    others = {"mcp_server", "run_tests"}
    assert {path.stem for path in EXAMPLES.glob("*.py")} == OUTPUT.keys() | others
    # test_node_examples.py has tests of these.
    node = {"tool-executor.ts", "mcp-client.ts", "browser-terminal.ts"}
    sources = {path.name for path in EXAMPLES.glob("*/*.*") if path.suffix != ".json"}
    assert sources == {"run.c", "main.go", "run.rb"} | node


def test_test_runner_reports_each_kind_of_test(tmp_path: Path) -> None:
    (tmp_path / "test_good.py").write_text("assert 1 + 1 == 2\n")
    (tmp_path / "test_bad.py").write_text("print('a reason')\nraise SystemExit(7)\n")
    (tmp_path / "test_hangs.sh").write_text("sleep 600 & sleep 600\n")
    # Fails until its second run.
    (tmp_path / "test_flaky.sh").write_text("test -e ran || { touch ran; exit 1; }\n")
    result = run("run_tests", str(tmp_path), "--timeout", "4")
    assert result.code == 1
    assert (
        result.text
        == """\
pass  test_good.py
flaky test_flaky.sh
FAIL  test_bad.py: exit code 7
a reason
FAIL  test_hangs.sh: timeout
"""
    )


@pytest.mark.parametrize("example", ["autogen_executor"], indirect=True)
def test_autogen_token_cancels_the_code(example: Any) -> None:
    from autogen_core import CancellationToken
    from autogen_core.code_executor import CodeBlock

    async def main() -> None:
        token = CancellationToken()
        async with example.SpawnfdCodeExecutor() as executor:
            block = CodeBlock(code="echo $$ >pid; exec sleep 600", language="sh")
            task = asyncio.ensure_future(executor.execute_code_blocks([block], token))
            pid_file = Path(executor._directory.name, "pid")
            while not (pid_file.exists() and pid_file.read_text().endswith("\n")):
                await asyncio.sleep(0.01)
            pid = int(pid_file.read_text())
            token.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert not Path(f"/proc/{pid}").exists()

    asyncio.run(main())


@pytest.mark.parametrize("example", ["autogen_executor"], indirect=True)
@pytest.mark.parametrize(
    ("timeout", "language", "code", "exit_code"),
    [
        (0.5, "Python", "import time; time.sleep(600)", 124),
        (TIMEOUT_S, "bash", "kill -9 $$", 137),
    ],
)
def test_autogen_exit_codes(
    example: Any, timeout: float, language: str, code: str, exit_code: int
) -> None:
    from autogen_core import CancellationToken
    from autogen_core.code_executor import CodeBlock

    async def main() -> None:
        async with example.SpawnfdCodeExecutor(timeout) as executor:
            block = CodeBlock(code=code, language=language)
            result = await executor.execute_code_blocks([block], CancellationToken())
            assert result.exit_code == exit_code

    asyncio.run(main())
