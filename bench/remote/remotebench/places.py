# SPDX-License-Identifier: MIT OR Apache-2.0
"""The other sides: this machine behind a pipe, behind ssh, and in a container of runc.

A place has two commands: one leads to a server, and one runs a program by itself, as users do
without a server.
"""

import json
import os
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from common.errors import BenchError

# The name of the ssh host in the configuration file.
HOST = "bench"
START_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Place:
    """The other side of a connection.

    Attributes:
        server: The command that leads to a server.
        runner: The command in front of a program's arguments, which runs it there.
        joins: The runner passes its arguments to a shell, as one text.
    """

    server: list[str]
    runner: list[str]
    joins: bool = False

    def argv(self, argv: Sequence[str]) -> list[str]:
        """Returns the command that runs a program there, without a server."""
        return [*self.runner, shlex.join(argv)] if self.joins else [*self.runner, *argv]

    def plain(self) -> Mapping[str, Any]:
        """Returns the values for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Places:
    """The places of this machine by name, and the reasons why others are missing."""

    found: Mapping[str, Place]
    missing: Mapping[str, str]


@contextmanager
def open_places(scratch: Path, server: Path) -> Iterator[Places]:
    """Starts sshd and a container, and ends them after the block."""
    found = {"pipe": Place([str(server), "serve"], [])}
    missing: dict[str, str] = {}
    with ExitStack() as stack:
        for name, needs, open_place in (
            ("ssh", ("ssh", "sshd", "ssh-keygen"), _ssh),
            ("container", ("runc",), _container),
        ):
            if lacks := [program for program in needs if not _which(program)]:
                missing[name] = f"needs {', '.join(lacks)}"
            elif name == "container" and os.geteuid():
                missing[name] = "needs root"
            else:
                directory = scratch / name
                directory.mkdir()
                found |= stack.enter_context(open_place(directory, server))
        yield Places(found, missing)


def _which(program: str) -> str | None:
    own = Path(__file__).resolve().parents[3] / "build" / "sshd" / "usr" / "sbin"
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin:{own}"
    return shutil.which(program, path=path)


def _wait(what: str, process: "subprocess.Popen[bytes]", is_up: Any) -> None:
    until = time.monotonic() + START_TIMEOUT_S
    while not is_up():
        if process.poll() is not None or time.monotonic() > until:
            raise BenchError(f"{what} does not start")
        time.sleep(0.02)


@contextmanager
def _ssh(directory: Path, server: Path) -> Iterator[dict[str, Place]]:
    """An sshd on the loopback interface, with keys of its own. `master` shares one connection."""
    for key in ("host", "user"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(directory / key)], check=True
        )
    (directory / "authorized").write_bytes((directory / "user.pub").read_bytes())
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    of_server = {
        "ListenAddress": "127.0.0.1",
        "Port": port,
        "HostKey": directory / "host",
        "AuthorizedKeysFile": directory / "authorized",
        "StrictModes": "no",
        "UsePAM": "no",
        "PidFile": "none",
        "MaxSessions": 100,
    }
    of_client = {
        "HostName": "127.0.0.1",
        "Port": port,
        "IdentityFile": directory / "user",
        "IdentitiesOnly": "yes",
        "StrictHostKeyChecking": "no",
        "UserKnownHostsFile": "/dev/null",
        "LogLevel": "ERROR",
    }
    for name, options in (("sshd_config", of_server), ("ssh_config", of_client)):
        lines = [f"{key} {value}\n" for key, value in options.items()]
        head = [f"Host {HOST}\n"] if name == "ssh_config" else []
        (directory / name).write_text("".join(head + lines))
    if os.geteuid() == 0:
        # Where the package's service has never run, its directory does not exist.
        Path("/run/sshd").mkdir(exist_ok=True)
    sshd = [str(_which("sshd")), "-D", "-e", "-f", str(directory / "sshd_config")]
    control = directory / "control"
    client = ["ssh", "-T", "-F", str(directory / "ssh_config")]
    master = [*client, "-o", f"ControlPath={control}"]
    with ExitStack() as stack:
        stack.enter_context(_running(sshd))
        login = [*client, HOST, "true"]
        until = time.monotonic() + START_TIMEOUT_S
        while subprocess.run(login, stdin=subprocess.DEVNULL, capture_output=True).returncode:
            if time.monotonic() > until:
                raise BenchError("no login to the own sshd")
            time.sleep(0.1)
        process = stack.enter_context(_running([*master, "-N", "-M", HOST]))
        _wait("the ssh master connection", process, control.exists)
        serve = f"exec {shlex.quote(str(server))} serve"
        yield {
            "ssh": Place([*client, HOST, serve], [*client, HOST], joins=True),
            "master": Place([*master, HOST, serve], [*master, HOST], joins=True),
        }


@contextmanager
def _running(argv: Sequence[str]) -> Iterator["subprocess.Popen[bytes]"]:
    null = subprocess.DEVNULL
    with subprocess.Popen(argv, stdin=null, stdout=null, stderr=null) as process:
        try:
            yield process
        finally:
            process.terminate()


@contextmanager
def _container(directory: Path, server: Path) -> Iterator[dict[str, Place]]:
    """A container with the directories of this machine, and namespaces of its own."""
    bundle, state = directory / "bundle", directory / "state"
    (bundle / "rootfs").mkdir(parents=True)
    subprocess.run(["runc", "spec"], cwd=bundle, check=True)
    spec = json.loads((bundle / "config.json").read_text())
    spec["process"] |= {"terminal": False, "args": ["sleep", "infinity"]}
    spec["root"]["readonly"] = False
    # A cgroup would need its controllers, which a machine can lack.
    spec["linux"]["resources"] = {}
    spec["mounts"] = [mount for mount in spec["mounts"] if mount["type"] != "cgroup"]
    for entry in Path("/").iterdir():
        if entry.is_dir() and entry.name not in ("proc", "sys", "dev", "lost+found"):
            bind = {"destination": str(entry), "type": "bind", "source": str(entry)}
            spec["mounts"].append({**bind, "options": ["rbind", "rw"]})
    (bundle / "config.json").write_text(json.dumps(spec))
    runc = [str(_which("runc")), "--root", str(state)]
    container = f"spawnfd-bench-{os.getpid()}"
    null = subprocess.DEVNULL
    try:
        started = [*runc, "run", "--detach", "--bundle", str(bundle), container]
        subprocess.run(started, stdin=null, stdout=null, check=True, timeout=START_TIMEOUT_S)
        runner = [*runc, "exec", container]
        yield {"container": Place([*runner, str(server), "serve"], runner)}
    finally:
        subprocess.run([*runc, "delete", "--force", container], stdin=null, timeout=START_TIMEOUT_S)
