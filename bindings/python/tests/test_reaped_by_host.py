# SPDX-License-Identifier: MIT OR Apache-2.0
"""Programs that the host reaps itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# While run() is in a signal handler, another thread reaps the program, and starts a second program
# with the same pid. The first program exits only once the handler runs, so run() cannot reap it.
REAPS = """
import os, signal, sys, threading
import spawnfd as sf

fifo, worker, there = sys.argv[1], 0, threading.Event()


def reap():
    global worker
    while True:
        try:
            pid, _ = os.waitpid(-1, 0)
            break
        except ChildProcessError:
            pass
    with open("/proc/sys/kernel/ns_last_pid", "w") as last:
        last.write(str(pid - 1))
    worker = os.posix_spawn("/bin/sleep", ["sleep", "1000"], {}, setsid=True)
    assert worker == pid, "the pid is taken"
    there.set()


def handler(*_):
    with open(fifo, "w") as go:
        go.write("\\n")
    there.wait(40)


signal.signal(signal.SIGUSR1, handler)
threading.Thread(target=reap, daemon=True).start()
result = sf.run(["sh", "-c", "kill -USR1 $PPID; read go <$0; exit 3", fifo])
assert there.is_set(), result
assert os.waitpid(worker, os.WNOHANG) == (0, 0), "the worker was killed"
print(result.leftovers, os.getsid(worker) == worker)
os.kill(worker, signal.SIGKILL)
os.waitpid(worker, 0)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="makes a pid namespace")
def test_a_program_that_reuses_the_pid_is_not_killed(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    argv = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    ended = subprocess.run(
        [*argv, sys.executable, "-c", REAPS, str(fifo)], capture_output=True, text=True, timeout=100
    )
    assert (ended.stdout, ended.returncode) == ("[] True\n", 0), ended
