# SPDX-License-Identifier: MIT OR Apache-2.0
"""Programs that cannot be parked, and how they are made."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from warm_support import need

PLAIN = '#include <stdio.h>\nint main(void) { puts("ran"); return 5; }\n'
DESCRIPTOR = """
#include <fcntl.h>
#include <stdio.h>
static int fd;
__attribute__((constructor)) static void early(void) { fd = open("/dev/null", O_RDONLY); }
int main(void) { printf("%d\\n", fcntl(fd, F_GETFD)); return 5; }
"""
THREAD = """
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
static int ready;
static void *run(void *unused) {
    __atomic_store_n(&ready, 1, __ATOMIC_SEQ_CST);
    pause();
    return unused;
}
__attribute__((constructor)) static void early(void) {
    pthread_t thread;
    pthread_create(&thread, 0, run, 0);
    while (!__atomic_load_n(&ready, __ATOMIC_SEQ_CST)) usleep(100);
}
int main(void) { puts("ran"); return 5; }
"""
CHILD = """
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
static pid_t child;
__attribute__((constructor)) static void early(void) {
    if ((child = fork()) == 0) { sleep(1); _exit(6); }
}
int main(void) {
    int status = 0;
    printf("%d\\n", waitpid(child, &status, 0) == child);
    return WEXITSTATUS(status);
}
"""
EXITS = """
#include <unistd.h>
__attribute__((constructor)) static void early(void) { _exit(write(1, "early\\n", 6)); }
int main(void) { return 5; }
"""
# An interpreter that is not glibc's: none at all.
NO_LIBC = """
static long call(long n, long a, long b, long c) {
    __asm__ volatile("syscall" : "+a"(n) : "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return n;
}
void _start(void) { call(1, 1, (long)"ran\\n", 4); call(60, 5, 0, 0); }
"""


def compiled(path: Path, source: str, *flags: str) -> Path:
    """Compiles C."""
    need("gcc")
    command = ["gcc", "-O1", "-x", "c", "-", "-o", str(path), *flags]
    subprocess.run(command, input=source.encode(), check=True)
    return path


def _privileged(path: Path, bit: int) -> Path:
    compiled(path, PLAIN).chmod(0o755 | bit)
    return path


def _capable(path: Path) -> Path:
    compiled(path, PLAIN)
    setcap = shutil.which("setcap", path=f"{os.environ.get('PATH', '')}:/sbin:/usr/sbin")
    if os.geteuid() != 0 or setcap is None:
        need("setcap as root")
    subprocess.run([str(setcap), "cap_net_raw+ep", str(path)], check=True)
    return path


def _script(path: Path) -> Path:
    path.write_text("#!/bin/sh\necho $0 $#\nexit 5\n")
    path.chmod(0o755)
    return path


@dataclass(frozen=True)
class Program:
    """How a program is made at a path, and why it is always started cold."""

    id: str
    make: Callable[[Path], Path]
    cold: str


PROGRAMS = (
    Program("static", lambda path: compiled(path, PLAIN, "-static"), "static"),
    Program("static-pie", lambda path: compiled(path, PLAIN, "-static-pie"), "static"),
    Program("no-libc", lambda path: compiled(path, NO_LIBC, "-nostdlib", "-static"), "static"),
    Program("setuid", lambda path: _privileged(path, stat.S_ISUID), "set"),
    Program("setgid", lambda path: _privileged(path, stat.S_ISGID), "set"),
    Program("capabilities", _capable, "capabilit"),
    Program("descriptor", lambda path: compiled(path, DESCRIPTOR), "descriptor"),
    Program("thread", lambda path: compiled(path, THREAD, "-pthread"), "thread"),
    Program("child", lambda path: compiled(path, CHILD), "child"),
    Program("exits", lambda path: compiled(path, EXITS), ""),
    Program("script", _script, "script"),
)
