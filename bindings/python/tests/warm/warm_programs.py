# SPDX-License-Identifier: MIT OR Apache-2.0
"""Programs that cannot be parked, and functions that compile them."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from warm_support import require

PLAIN = '#include <stdio.h>\nint main(void) { puts("ran"); return 5; }\n'
# early() is the constructor of a library. main() calls late(), which prints what early() did.
DESCRIPTOR = """
#include <fcntl.h>
#include <stdio.h>
static int fd;
EARLY void early(void) { fd = open("/dev/null", O_RDONLY); }
int late(void) { printf("%d\\n", fcntl(fd, F_GETFD)); return 5; }
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
EARLY void early(void) {
    pthread_t thread;
    pthread_create(&thread, 0, run, 0);
    while (!__atomic_load_n(&ready, __ATOMIC_SEQ_CST)) usleep(100);
}
int late(void) { puts("ran"); return 5; }
"""
CHILD = """
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
static pid_t child;
EARLY void early(void) {
    if ((child = fork()) == 0) { usleep(300000); _exit(5); }
}
int late(void) {
    int status = 0;
    printf("%d\\n", waitpid(child, &status, 0) == child);
    return WEXITSTATUS(status);
}
"""
EXITS = """
#include <unistd.h>
EARLY void early(void) { _exit(write(1, "word\\n", 5)); }
int late(void) { return 6; }
"""
WRITES = """
#include <stdio.h>
#include <unistd.h>
EARLY void early(void) { if (write(STREAM, "early\\n", 6) != 6) _exit(1); }
int late(void) { puts("late"); return 5; }
"""
VARIABLE = """
#include <stdio.h>
#include <stdlib.h>
static const char *kept;
EARLY void early(void) { kept = getenv("KEPT"); }
int late(void) { printf("%s\\n", kept ? kept : "none"); return 5; }
"""
# This program reads more variable names than the parked process can report to its owner.
NAMES = """
#include <stdio.h>
#include <stdlib.h>
EARLY void early(void) {
    for (int i = 0; i < 2000; i++) {
        char name[100];
        sprintf(name, "NAME_%090d", i);
        if (getenv(name)) abort();
    }
}
int late(void) { puts("ran"); return 5; }
"""
ARGUMENTS = """
#include <stdio.h>
static int count;
static char **words;
EARLY void early(int argc, char **argv) { count = argc; words = argv; }
int late(void) { printf("%d %s\\n", count, words[count - 1]); return 5; }
"""
ENVIRONMENT_CHANGED = """
#include <stdio.h>
#include <stdlib.h>
EARLY void early(void) { setenv("ADDED", "1", 1); }
int late(void) { printf("%s\\n", getenv("ADDED")); return 5; }
"""
ERRNO = """
#include <errno.h>
#include <stdio.h>
int main(void) { printf("%d\\n", errno); return 5; }
"""
SAYS = """
#include <stdio.h>
EARLY void early(void) {}
int late(void) { puts(WORD); return 5; }
"""
# This program is linked to glibc, but does not call __libc_start_main. It writes to the file $RAN
# when it runs.
OWN_ENTRY = """
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>
__attribute__((force_align_arg_pointer)) void _start(void) {
    const char *path = getenv("RAN");
    int file = path ? open(path, O_WRONLY | O_CREAT | O_APPEND, 0600) : -1;
    if (write(file, ".", 1) < 0 && path) _exit(1);
    if (write(1, "ran\\n", 4) < 0) _exit(1);
    _exit(5);
}
"""
# early() runs before the constructors of libraries, and gets the arguments of the program.
PREINIT = """
#include <stdio.h>
#include <unistd.h>
static int count;
static char place[4096];
static void early(int argc) { count = argc; if (!getcwd(place, sizeof place)) _exit(1); }
__attribute__((section(".preinit_array"), used)) static void (*early_of_all)(int) = early;
int late(void) { printf("%d %s\\n", count, place); return 5; }
"""
PLUGIN = "int answer(void) { return 7; }\n"
# This program loads libraries from memory files, one at each number that the parking code may use.
LOADS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
int main(int argc, char **argv) {
    int file = argc > 1 ? open(argv[1], O_RDONLY) : -1;
    for (int i = 0; i < 60; i++) {
        char path[64];
        off_t from = 0;
        int memory = memfd_create("plugin", 0);
        sendfile(memory, file, &from, 1 << 20);
        sprintf(path, "/proc/self/fd/%d", memory);
        void *plugin = dlopen(path, RTLD_NOW);
        if (!plugin || !dlsym(plugin, "answer")) { puts(path); return 1; }
    }
    return 5;
}
"""
EARLY = ("-DEARLY=__attribute__((constructor)) static",)
MAIN = "int late(void); int main(void) { return late(); }\n"
# This program has no dynamic loader.
NO_LIBC = """
#ifdef __aarch64__
enum { WRITE = 64, EXIT = 93 };
static void call(long n, long a, long b, long c) {
    register long x8 __asm__("x8") = n, x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b, x2 __asm__("x2") = c;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
}
#else
enum { WRITE = 1, EXIT = 60 };
static void call(long n, long a, long b, long c) {
    __asm__ volatile("syscall" : "+a"(n) : "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
}
#endif
void _start(void) { call(WRITE, 1, (long)"ran\\n", 4); call(EXIT, 5, 0, 0); }
"""


def compiled(path: Path, source: str, *flags: str) -> Path:
    """Compiles C source to the file `path`."""
    require("gcc")
    command = ["gcc", "-O1", "-x", "c", "-", "-o", str(path), *flags]
    subprocess.run(command, input=source.encode(), check=True)
    return path


def with_library(path: Path, source: str, *flags: str) -> Path:
    """Compiles a program whose library runs early(), before the program's own constructors."""
    library = path.with_name(f"lib{path.name}.so")
    compiled(library, source, *EARLY, "-shared", "-fPIC", *flags)
    return compiled(path, MAIN, f"-L{path.parent}", f"-l{path.name}", "-Wl,-rpath,$ORIGIN")


def with_constructor(path: Path, source: str, *flags: str) -> Path:
    """Compiles a program that runs early() as its own constructor."""
    return compiled(path, source + MAIN, *EARLY, *flags)


def _privileged(path: Path, bit: int) -> Path:
    compiled(path, PLAIN).chmod(0o755 | bit)
    return path


def _capable(path: Path) -> Path:
    compiled(path, PLAIN)
    setcap = shutil.which("setcap", path=f"{os.environ.get('PATH', '')}:/sbin:/usr/sbin")
    if os.geteuid() != 0 or setcap is None:
        require("setcap as root")
    subprocess.run([str(setcap), "cap_net_raw+ep", str(path)], check=True)
    return path


def _with_another_loader(path: Path) -> Path:
    """Compiles a program that uses a copy of glibc's loader under another name."""
    own = subprocess.run(["ldd", "/bin/sh"], capture_output=True, text=True, check=True).stdout
    (loader,) = (word for word in own.split() if "/ld-linux" in word)
    other = shutil.copy(loader, path.with_name("ld-other.so"))
    return compiled(path, PLAIN, f"-Wl,--dynamic-linker={other}")


def _script(path: Path) -> Path:
    path.write_text("#!/bin/sh\necho $0 $#\nexit 5\n")
    path.chmod(0o755)
    return path


@dataclass(frozen=True)
class Program:
    """A function that makes a program at a path, and the reason why its starts are always cold."""

    id: str
    make: Callable[[Path], Path]
    cold: str


WRITES_EARLY = "start-up code writes"
PROGRAMS = (
    Program("static", lambda path: compiled(path, PLAIN, "-static"), "static"),
    Program("static-pie", lambda path: compiled(path, PLAIN, "-static-pie"), "static"),
    Program("no-libc", lambda path: compiled(path, NO_LIBC, "-nostdlib", "-static"), "static"),
    Program("setuid", lambda path: _privileged(path, stat.S_ISUID), "setuid"),
    Program("setgid", lambda path: _privileged(path, stat.S_ISGID), "setuid"),
    Program("capabilities", _capable, "file capabilities"),
    Program("descriptor", lambda path: with_library(path, DESCRIPTOR), "descriptors"),
    Program("thread", lambda path: with_library(path, THREAD, "-pthread"), "threads"),
    Program("child", lambda path: with_library(path, CHILD), "children"),
    Program("exits", lambda path: with_library(path, EXITS), "not parked"),
    Program("writes-1", lambda path: with_library(path, WRITES, "-DSTREAM=1"), WRITES_EARLY),
    Program("writes-2", lambda path: with_library(path, WRITES, "-DSTREAM=2"), WRITES_EARLY),
    Program("script", _script, "script"),
    Program(
        "own-entry",
        lambda path: compiled(path, OWN_ENTRY, "-nostartfiles"),
        "entry point outside libc",
    ),
    Program("preinit", lambda path: compiled(path, PREINIT + MAIN), "preinit_array"),
    Program(
        "relative",
        lambda path: compiled(path, PLAIN, "-Wl,-rpath,lib"),
        "a relative RPATH or RUNPATH",
    ),
    Program("other-loader", _with_another_loader, "not glibc"),
    Program("names", lambda path: with_library(path, NAMES), "too many names"),
    Program(
        "environment",
        lambda path: with_library(path, ENVIRONMENT_CHANGED),
        "changed environment",
    ),
)

# The program's own constructors run after parking, in the process that becomes the program.
CONSTRUCTORS = {
    "descriptor": DESCRIPTOR,
    "thread": THREAD,
    "child": CHILD,
    "exits": EXITS,
    "variable": VARIABLE,
    "arguments": ARGUMENTS,
}
