# SPDX-License-Identifier: MIT OR Apache-2.0
"""Programs whose status the host takes itself."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# The host reaps the program while run() is in a handler, and gets its number for another program.
REAPS = """
import os, signal, sys, threading
import spawnfd as sf

worker, there = 0, threading.Event()


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
    assert worker == pid, "somebody else has the number"
    there.set()


signal.signal(signal.SIGUSR1, lambda *_: there.wait(40))
threading.Thread(target=reap, daemon=True).start()
result = sf.run(["sh", "-c", "kill -USR1 $PPID; exit 3"])
assert there.is_set(), result
assert os.waitpid(worker, os.WNOHANG) == (0, 0), "it is a stranger"
print(result.leftovers, os.getsid(worker) == worker)
os.kill(worker, signal.SIGKILL)
os.waitpid(worker, 0)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="makes a pid namespace")
def test_who_has_the_number_now_is_left_alone() -> None:
    argv = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    told = subprocess.run(
        [*argv, sys.executable, "-c", REAPS], capture_output=True, text=True, timeout=100
    )
    assert (told.stdout, told.returncode) == ("[] True\n", 0), told
