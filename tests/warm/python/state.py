# SPDX-License-Identifier: MIT OR Apache-2.0
"""Prints all state by which a Python program can tell how it was started, one item per line."""

import sys

modules = list(sys.modules)
import __main__

main = {
    name: value if isinstance(value, (str, type(None))) else type(value).__name__
    for name, value in vars(__main__).items()
}
import gc
import os
import posix
import signal
import time
import warnings


def say(name, value):
    print("%s = %r" % (name, value))


say("modules", modules)
say("main", sorted((name, value) for name, value in main.items() if name != "main"))
for name in (
    "argv orig_argv path flags executable _base_executable prefix exec_prefix base_prefix base_exec_prefix "
    "warnoptions _xoptions dont_write_bytecode pycache_prefix platlibdir version _framework ps1 __interactivehook__ "
    "stdlib_dir_ _stdlib_dir float_repr_style hash_info thread_info int_info byteorder maxsize"
).split():
    value = getattr(sys, name, "absent")
    say("sys." + name, getattr(value, "__name__", value))
say(
    "importers",
    sorted((path, type(finder).__name__) for path, finder in sys.path_importer_cache.items()),
)
say(
    "hooks",
    [
        [getattr(hook, "__name__", type(hook).__name__) for hook in hooks]
        for hooks in (sys.path_hooks, sys.meta_path)
    ],
)
say("environ", list(os.environ.items()))
say(
    "environ is",
    [
        type(os.environ._data).__name__,
        os.environ._data is posix.environ,
        os.environb._data is posix.environ,
    ],
)
say("posix.environ", list(posix.environ.items()))
for name in ("stdin", "stdout", "stderr"):
    stream = getattr(sys, name)
    say(name, stream is getattr(sys, "__%s__" % name))
    if stream is None:
        continue
    buffer = stream.buffer
    raw = getattr(buffer, "raw", buffer)
    say(
        name,
        [
            stream.encoding,
            stream.errors,
            stream.line_buffering,
            stream.write_through,
            stream.mode,
            stream.name,
        ]
        + [
            stream.newlines,
            stream.isatty(),
            stream.seekable(),
            stream.closed,
            repr(stream),
            sorted(vars(stream).items()),
        ]
        + [
            repr(buffer),
            repr(raw),
            raw.closefd,
            raw.mode,
            raw._blksize,
            raw.seekable(),
            raw.readable(),
            raw.writable(),
        ]
        + [sorted(raw.__dict__.items()), buffer.seekable() and buffer.tell()],
    )
for number in range(1, signal.NSIG):
    handler = signal.getsignal(number)
    say("signal %d" % number, getattr(handler, "__name__", handler))
with open("/proc/self/status") as status:
    for line in status:
        name, _, value = line.partition(":")
        if name in ("SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt"):
            # posix_spawn leaves libc's internal signals 32 and 33 ignored, so they are left out.
            say(name, int(value, 16) & ~(3 << 31))
say(
    "descriptors",
    sorted(
        (int(fd), os.get_inheritable(int(fd)))
        for fd in os.listdir("/proc/self/fd")
        if os.path.exists("/proc/self/fd/" + fd)
    ),
)
with open("/proc/self/cmdline", "rb") as file:
    say("cmdline", file.read())
with open("/proc/self/environ", "rb") as file:
    say("kernel's environ", file.read())
say("cwd", os.getcwd())
say(
    "time",
    [
        time.tzname,
        time.timezone,
        time.altzone,
        time.daylight,
        time.strftime("%Z", time.localtime(0)),
    ],
)
say(
    "encodings",
    [sys.getdefaultencoding(), sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()],
)
say(
    "gc",
    [
        gc.isenabled(),
        gc.get_threshold(),
        gc.get_freeze_count(),
        gc.get_debug(),
        len(gc.garbage),
        gc.callbacks,
    ],
)
say("limits", [sys.getrecursionlimit(), sys.getswitchinterval(), sys.gettrace(), sys.getprofile()])
# Without duplicates: the OrderedDict in Python, which that in C replaces, stays here until the next
# garbage collection.
say("subclasses of dict", list(dict.fromkeys(one.__name__ for one in dict.__subclasses__())))
say("filters", [str(one) for one in warnings.filters])
say("builtins", sorted(vars(__builtins__)))
import locale
import threading

say("locale", [locale.setlocale(locale.LC_ALL), locale.getpreferredencoding(False)])
say(
    "thread",
    [
        threading.current_thread().name,
        threading.active_count(),
        threading.get_native_id() == os.getpid(),
    ],
)
say("thread's id", threading.main_thread().ident == threading.get_ident())
say(
    "foreign objects",
    [
        repr(one)
        for one in gc.get_objects()
        if "spawnfd" in str(getattr(one, "__code__", "")).replace(__file__, "")
    ],
)
try:
    import ctypes
except ImportError:
    pass
else:
    count, words = ctypes.c_int(), ctypes.POINTER(ctypes.c_wchar_p)()
    ctypes.pythonapi.Py_GetArgcArgv(ctypes.byref(count), ctypes.byref(words))
    say("original arguments", words[: count.value])
if "site" in sys.modules:
    site = sys.modules["site"]
    say("site", [site.ENABLE_USER_SITE, site.USER_SITE, site.USER_BASE, site.PREFIXES])
