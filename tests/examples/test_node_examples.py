# SPDX-License-Identifier: MIT OR Apache-2.0
"""The examples for Node: the compiler accepts them with --strict, and they do what they should.

The tests are skipped if the Node package is not built (`make node`), and the test of the terminal
also without a Chromium.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import browser
import pytest
import spawnfd as sf

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples/node"
PACKAGE = ROOT / "bindings/node"
SERVER = ROOT / "examples/mcp_server.py"
PATH = f"{ROOT / 'build/node/bin'}:{os.environ['PATH']}"
TIMEOUT_S = 120

pytestmark = [
    pytest.mark.timeout(2 * TIMEOUT_S),
    pytest.mark.skipif(
        not (PACKAGE / "dist/spawnfd.node").exists(),
        reason="the Node package is not built: make node",
    ),
]

EXECUTOR_OUTPUT = """\
answers: hello
fails: oops | [exit code 3]
hangs: working | [stopped: timeout]
leaves a process: done
writes much: 1 | ... | 100000
takes long: compiling | [command 1 is still running]
nothing new: [command 1 is still running]
is stopped: [stopped: cancelled]
ends later: begun | [command 2 is still running]
has ended: finished | [exit code 4]
"""


def node() -> str:
    program = shutil.which("node", path=PATH)
    assert program is not None
    return program


def wait_for_end(pid: int) -> None:
    """Waits until a process has ended, or is a zombie. The test's timeout bounds the wait."""
    try:
        while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.01)
    except (FileNotFoundError, ProcessLookupError):
        pass


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiles the examples, in a directory that has the packages they import."""
    directory = tmp_path_factory.mktemp("node")
    for source in [*EXAMPLES.glob("*.ts"), EXAMPLES / "package.json"]:
        shutil.copy(source, directory)
    wanted = json.loads((EXAMPLES / "package.json").read_text())["dependencies"]
    pinned = json.loads((PACKAGE / "package.json").read_text())["devDependencies"]
    for name in [*wanted, "@types/node"]:
        link = directory / "node_modules" / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(PACKAGE if name == "spawnfd" else PACKAGE / "node_modules" / name)
        assert name in ("spawnfd", "@types/node") or wanted[name] == pinned[name]
    # Node strips types that can be erased, so it also runs the sources.
    options = ["--strict", "--erasableSyntaxOnly", "--skipLibCheck", "--types", "node"]
    options += ["--target", "es2022", "--lib", "es2023,esnext.disposable", "--module", "nodenext"]
    sources = [path.name for path in directory.glob("*.ts")]
    compiler = str(PACKAGE / "node_modules/typescript/bin/tsc")
    result = sf.run(
        [node(), compiler, *options, *sources], cwd=directory, stderr="merge", timeout=TIMEOUT_S
    )
    assert (result.code, result.text) == (0, "")
    return directory


def test_tool_executor_prints_its_output(compiled: Path) -> None:
    result = sf.run([node(), "tool-executor.js"], cwd=compiled, timeout=TIMEOUT_S)
    assert (result.code, result.stderr_text, result.leftovers) == (0, "", [])
    lines = result.text.splitlines(keepends=True)
    assert lines.pop(2).startswith("is missing: [not started: no-such-tool: not found in PATH")
    assert "".join(lines) == EXECUTOR_OUTPUT


def test_mcp_client_calls_tools(compiled: Path, tmp_path: Path) -> None:
    calls = [
        "exec " + json.dumps({"argv": ["echo", "hello"]}),
        "shell " + json.dumps({"command": "sleep 600 & echo $! >pid; exit 3"}),
    ]
    result = sf.run(
        [node(), "mcp-client.js", sys.executable, str(SERVER), str(tmp_path)],
        cwd=compiled,
        input="\n".join(calls),
        timeout=TIMEOUT_S,
    )
    assert (result.code, result.stderr_text, result.leftovers) == (0, "", [])
    tools, echo, shell, end = result.text.splitlines()
    assert (tools, end) == ("tools: exec, shell", "server: exited, code 0")
    assert json.loads(echo.removeprefix("exec: "))["stdout"] == "hello\n"
    assert json.loads(shell.removeprefix("shell: "))["shell_code"] == 3
    wait_for_end(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize(
    ("server", "error", "end"),
    [
        (["no-such-server"], "no-such-server: not found in PATH", "not started, code undefined"),
        (["sh", "-c", "echo sorry >&2; exit 4"], "sorry", "exited, code 4"),
    ],
)
def test_mcp_client_reports_a_server_that_fails(
    compiled: Path, server: list[str], error: str, end: str
) -> None:
    result = sf.run([node(), "mcp-client.js", *server], cwd=compiled, timeout=TIMEOUT_S)
    assert (result.code, result.text) == (1, f"server: {end}\n")
    assert error in result.stderr_text


SCREEN = """(() => {
    const { active } = terminal.buffer;
    const line = (_, row) => active.getLine(row).translateToString(true);
    return Array.from({ length: active.length }, line).join('\\n');
})()"""


@pytest.mark.skipif(browser.find() is None, reason="there is no Chromium")
def test_terminal_in_chromium(compiled: Path, tmp_path: Path) -> None:
    env = sf.Env.inherit().set("PS1", "$ ").set("ENV", "")
    command = [node(), "browser-terminal.js", "/bin/sh"]

    async def main() -> None:
        async with sf.start(command, cwd=compiled, env=env) as server:
            found = await server.wait_for("\n", timeout=TIMEOUT_S)
            assert found, (await server.result()).stderr_text
            url = server.read(since=0).text.strip()
            await asyncio.to_thread(use, url)
            # The page is closed, so its shell has ended. The server has not.
            with pytest.raises(urllib.error.HTTPError, match="403"):
                urllib.request.urlopen(url.partition("?")[0], timeout=TIMEOUT_S)

    def use(url: str) -> None:
        with browser.page(url, tmp_path / "profile") as page:
            page.until(f"{SCREEN}.includes('$ ')")
            page.type("echo shell $$ é $((6 * 7))")
            page.until(f"/^shell \\d+ é 42$/m.test({SCREEN})")
            pid = int(page.evaluate(f"/^shell (\\d+)/m.exec({SCREEN})[1]"))
            for width, height in [(1000, 700), (500, 300)]:
                columns = page.evaluate("terminal.cols")
                page.resize(width, height)
                page.until(f"terminal.cols != {columns}")
                page.type("stty size")
                page.until(f"{SCREEN}.includes(terminal.rows + ' ' + terminal.cols)")
            page.type("seq 20000; echo 'the' end")
            page.until(f"/^20000\\nthe end$/m.test({SCREEN})")
            page.close()
            wait_for_end(pid)

    asyncio.run(main())


def test_terminal_reports_the_end_of_its_program(compiled: Path) -> None:
    async def main() -> None:
        command = [node(), "browser-terminal.js", "sh", "-c", "stty size; exit 5"]
        async with sf.start(command, cwd=compiled) as server:
            assert await server.wait_for("\n", timeout=TIMEOUT_S)
            page, secret = server.read(since=0).text.strip().split("?")
            url = f"{page}output?{secret}&id=a&rows=10&columns=20"
            events = await asyncio.to_thread(lambda: urllib.request.urlopen(url).read().decode())
            # "10 20\r\n" in base64
            assert events == "data: MTAgMjANCg==\n\nevent: end\ndata: exit code 5\n\n"

    asyncio.run(main())
