# SPDX-License-Identifier: MIT OR Apache-2.0
"""Connections into containers and over ssh.

Small programs stand in for docker and kubectl: they pass bytes on as those do. sshd is the real
one, on the loopback interface.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest
import spawnfd as sf
from conftest import make_script
from patience import TIMEOUT_S, eventually

# docker exec -i [--user USER] ID COMMAND...
DOCKER = """#!/bin/sh
while [ "$1" != box ]; do
    [ "$1" != --user ] || user="--unshare-user --uid $2 --gid $2"
    shift
done
shift
exec bwrap {options} $user --unshare-pid --die-with-parent "$@"
"""
# kubectl exec -i POD ... -- COMMAND...
KUBECTL = """#!/bin/sh
while [ "$1" != -- ]; do shift; done
shift
"$@"
# A connection that is lost closes late, and the exit code is lost with it.
sleep 0.3
exit 0
"""
READ_ONLY = "--ro-bind / / --dev /dev --proc /proc --tmpfs /tmp --setenv HOME /nonexistent"
NO_DIRECTORY = (
    "--ro-bind / / --dev-bind /dev/null /dev/null --proc /proc --setenv HOME /nonexistent"
)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that is searched for the transport first."""
    tools = tmp_path / "tools"
    tools.mkdir()
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.delenv("SPAWNFD_SERVER_DIR", raising=False)
    return tools


def docker(tools: Path, options: str) -> None:
    """Installs a stand-in for docker, whose container "box" has this file system."""
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        pytest.skip("needs bwrap")
    probe = subprocess.run([bwrap, *options.split(), "/bin/true"], capture_output=True, text=True)
    if probe.returncode:
        pytest.skip(f"bwrap cannot make a container here: {probe.stderr.strip()}")
    make_script(tools / "docker", DOCKER.format(options=options))


@pytest.mark.parametrize("user", [None, "1000"])
def test_a_container_with_a_read_only_root_gets_the_server(
    tools: Path, command: Path, tmp_path: Path, user: str | None
) -> None:
    docker(tools, READ_ONLY + " --unshare-net")
    with sf.Remote.docker("box", program=command, user=user) as box:
        result = box.run(sf.sh("id -u; ls -d /tmp/spawnfd-server-*; touch /file 2>&1"))
        number, directory, refused = result.text.splitlines()
        assert number == (user or str(os.geteuid()))
        assert directory.startswith("/tmp/spawnfd-server-")
        assert "Read-only file system" in refused
        with box.session_sync("bash") as session:
            session.run("cd /tmp")
            assert session.run("pwd").text == "/tmp\n"
        locked = tmp_path / "locked"
        locked.mkdir()
        (locked / "file").write_text("text")
        locked.chmod(0o555)
        box.put(tmp_path, "/tmp/copy")
        found = box.run(sf.sh("stat -c %a /tmp/copy/locked; cat /tmp/copy/locked/file")).check()
        assert found.text == "555\ntext"
        assert str(result.where).endswith("(docker)")


def test_a_container_without_tar_and_with_few_programs_gets_the_server(
    tools: Path, command: Path, tmp_path: Path
) -> None:
    few = tmp_path / "few"
    few.mkdir()
    for name in ("sh", "uname", "mkdir", "head", "chmod", "mv"):
        (few / name).symlink_to(str(shutil.which(name)))
    docker(tools, f"{READ_ONLY} --ro-bind {few} {few} --setenv PATH {few}")
    with sf.Remote.docker("box", program=command) as box:
        assert box.run(sf.sh("command -v tar || echo none")).text == "none\n"
        (tmp_path / "data").write_text("text")
        box.put(tmp_path / "data", "/tmp/data")
        box.get("/tmp/data", tmp_path / "back")
        assert (tmp_path / "back").read_text() == "text"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (NO_DIRECTORY, r"no directory for the server program: .*/tmp \(not writable\)"),
        (READ_ONLY + " --setenv PATH /nonexistent", "execvp sh: No such file"),
    ],
)
def test_a_container_that_cannot_run_the_server_says_why(
    tools: Path, command: Path, options: str, words: str
) -> None:
    docker(tools, options)
    with pytest.raises(sf.SpawnError, match=words), sf.Remote.docker("box", program=command):
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount a file system")
def test_directories_without_execution_are_reported(tools: Path, command: Path) -> None:
    paths = ("/tmp", "/var/tmp", "/dev/shm", "/run")
    mounts = "; ".join(f"mount -t tmpfs -o noexec none {path}" for path in paths)
    inner = f'{mounts}; HOME=/proc; exec "$@"'
    script = f"#!/bin/sh\nshift 3\nexec unshare -m sh -c '{inner}' sh \"$@\"\n"
    shutil.copy(command, tools / "program")
    make_script(tools / "docker", script)
    expected = r"no directory for the server program: /tmp \(cannot execute a file there\)"
    with pytest.raises(sf.SpawnError, match=expected):
        sf.Remote.docker("box", program=tools / "program").connect()


def test_a_lost_connection_of_kubectl_is_no_success(tools: Path, command: Path) -> None:
    make_script(tools / "kubectl", KUBECTL)
    with sf.Remote.kubectl("pod", namespace="space", program=command) as box:
        assert box.run(sf.sh("exit 3")).code == 3
        server = int(box.run(sf.sh("echo $PPID"), tree="group").text)
        with box.start_sync(sf.sh("echo; sleep 1000")) as job:
            assert job.wait_for("\n", TIMEOUT_S)
            os.kill(server, signal.SIGKILL)
            result = job.result()
        assert (result.stop, result.code, result.ok) == ("lost", None, False)


@pytest.mark.parametrize(
    "script",
    [
        "echo 'sh: 1: spawnfd: not found' >&2; exit 127",
        "echo 'exec: \"spawnfd\": executable file not found in $PATH' >&2; exit 1",
    ],
)
def test_the_error_of_a_missing_server_names_the_argument_that_copies_it(
    tools: Path, command: Path, script: str
) -> None:
    make_script(tools / "docker", f"#!/bin/sh\n{script}\n")
    box = sf.Remote.docker("box")
    for _ in range(2):
        with pytest.raises(sf.SpawnError, match=r"not found.*; program= copies the server there"):
            box.run(["true"])
    with pytest.raises(sf.SpawnError, match="not found") as caught:
        sf.Remote.docker("box", program=command).connect()
    assert "program=" not in str(caught.value)


def test_program_must_be_a_program(tools: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no program")
    with pytest.raises(sf.SpawnError, match=r"text is no program for x86_64 or aarch64"):
        sf.Remote.ssh("host", program=tmp_path / "text")
    with pytest.raises(sf.SpawnError, match=r"cannot read the server program .*missing"):
        sf.Remote.docker("box", program=[tmp_path / "missing"])


# ---- ssh ----


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Generator[list[str]]:
    """An sshd of this user on the loopback interface. Returns the options of ssh."""
    own = Path(__file__).parents[3] / "build" / "sshd" / "usr" / "sbin"
    path = f"{os.environ['PATH']}:/usr/sbin:{own}"
    server, keygen = (shutil.which(name, path=path) for name in ("sshd", "ssh-keygen"))
    if server is None or keygen is None or shutil.which("ssh") is None:
        pytest.skip("needs sshd, ssh and ssh-keygen")
    home = tmp_path_factory.mktemp("ssh")
    for key in ("host", "user"):
        argv = [keygen, "-q", "-t", "ed25519", "-N", "", "-f", str(home / key)]
        subprocess.run(argv, check=True)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    (home / "config").write_text(
        f"ListenAddress 127.0.0.1\nPort {port}\nHostKey {home}/host\nStrictModes no\nUsePAM no\n"
        f"AuthorizedKeysFile {home}/user.pub\nPidFile none\n"
    )
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    null = subprocess.DEVNULL
    process = subprocess.Popen(
        [server, "-D", "-e", "-f", str(home / "config")], stdin=null, stderr=null
    )
    options = ["-p", str(port), "-i", str(home / "user"), "-F", "none"]
    options += ["-o", "IdentitiesOnly=yes", "-o", "StrictHostKeyChecking=no"]
    options += ["-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR"]
    login = ["ssh", *options, "127.0.0.1", "true"]
    try:
        assert eventually(
            lambda: subprocess.run(login, stdin=null, capture_output=True).returncode == 0
        )
        yield options
    finally:
        process.terminate()
        process.wait()


@pytest.fixture
def home(tmp_path: Path) -> str:
    """The directory for servers on the other side."""
    directory = tmp_path / "servers"
    directory.mkdir()
    return str(directory)


def test_ssh_runs_programs_jobs_and_sessions(
    sshd: list[str], command: Path, tmp_path: Path
) -> None:
    with sf.Remote.ssh("127.0.0.1", server=str(command), options=sshd) as box:
        result = box.run(sf.sh("echo out; echo err >&2; exit 3"))
        assert (result.code, result.text, result.stderr_text) == (3, "out\n", "err\n")
        assert str(result.where).endswith("(ssh)")
        assert box.run(["sleep", "60"], timeout=0.05).stop == "timeout"
        with box.start_sync(["cat"], stdin="stream") as job:
            job.write("line\n")
            assert job.wait_for("line\n", TIMEOUT_S)
            job.close_stdin()
            assert job.result().ok
        with box.session_sync("bash") as session:
            session.run("cd / && export X=1")
            assert session.run("echo $PWD $X").text == "/ 1\n"
        (tmp_path / "data").write_bytes(bytes(3_000_000))
        box.put(tmp_path / "data", tmp_path / "there")
        box.get(tmp_path / "there", tmp_path / "back")
        assert (tmp_path / "back").read_bytes() == bytes(3_000_000)


def test_the_error_of_ssh_names_the_argument_that_copies_the_server(sshd: list[str]) -> None:
    with pytest.raises(sf.SpawnError, match=r"ssh .*127.*; program= copies the server there"):
        sf.Remote.ssh("127.0.0.1", server="no-such-server", options=sshd).connect()


def test_ssh_brings_the_server(sshd: list[str], command: Path, home: str) -> None:
    options = [*sshd, "-o", f"SetEnv=SPAWNFD_SERVER_DIR={home}"]
    with sf.Remote.ssh("127.0.0.1", program=[command], options=options) as box:
        assert box.run(["echo", "there"]).text == "there\n"


def test_a_killed_ssh_is_a_lost_connection(sshd: list[str], command: Path) -> None:
    with sf.Remote.ssh("127.0.0.1", server=str(command), options=sshd) as box:
        with box.start_sync(sf.sh("echo $$; sleep 1000")) as job:
            assert job.wait_for("\n", TIMEOUT_S)
            program = int(job.read().text)
            (ssh,) = (
                int(pid)
                for pid in os.listdir("/proc")
                if pid.isdigit() and is_own_ssh(int(pid), str(command))
            )
            os.kill(ssh, signal.SIGKILL)
            result = job.result()
        assert (result.stop, result.code, result.status_lost) == ("lost", None, True)
        assert eventually(lambda: not Path(f"/proc/{program}").exists())
        with pytest.raises(sf.SpawnError, match=r"connection is lost: ssh .*SIGKILL"):
            box.run(["true"])


def is_own_ssh(pid: int, server: str) -> bool:
    """Whether this is the transport of this process, and not sshd's or another test's."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    is_ssh = words[0] == b"ssh" and any(server.encode() in word for word in words)
    return is_ssh and f"PPid:\t{os.getpid()}\n" in status
