# SPDX-License-Identifier: MIT OR Apache-2.0
"""A parked CPython skips only those parts of finalization that have no visible effect (adr/0017)."""

from __future__ import annotations

import resource
import shutil
import subprocess
import textwrap

import pytest
from calls import Call, Parked
from comparing import ENV

SEEN = """
    class Seen:
        def __init__(self, name):
            self.name = name
        def __del__(self):
            print("gone", self.name, flush=True)
"""

# Programs in which finalization of the interpreter has a visible effect.
PROGRAMS = {
    "a global": "one = Seen(1); two = Seen(2)",
    "a cycle": "one = Seen(1); one.itself = one",
    "attribute of a start-up class": "import os; os._Environ.seen = Seen(1)",
    "attribute of a start-up module": "import sys; sys.seen = Seen(1)",
    "in builtins": "import builtins; builtins.seen = Seen(1)",
    "without a dict": "class Small(Seen):\n    __slots__ = ()\none = Small(1)",
    "only a slot": """
        class Small:
            __slots__ = ()
            def __del__(self): print("gone", flush=True)
        one = [Small()]
    """,
    "__del__ added to a start-up class": """
        import os
        os._Environ.__del__ = lambda self: print("environment gone", flush=True)
    """,
    "__del__ of a metaclass": """
        class Meta(type):
            def __del__(self): print("class gone", flush=True)
        class Made(metaclass=Meta): pass
    """,
    "after collections": """
        one = Seen(1)
        kept = [[] for _ in range(60000)]
    """,
    "collected in full": """
        one = Seen(1)
        import gc
        gc.collect()
        del gc
    """,
    "a callback of gc": """
        import gc
        gc.callbacks.append(lambda phase, told: print(phase, flush=True))
        del gc
    """,
    "a generator": """
        def steps():
            try: yield 1
            finally: print("left", flush=True)
        going = steps(); next(going)
    """,
    "a coroutine": "async def f(): pass\nnever = f()",
    "an asynchronous generator": """
        async def steps():
            try: yield 1
            finally: print("left", flush=True)
        going = steps().asend(None)
        try: going.send(None)
        except StopIteration: pass
    """,
    "a weak reference": """
        import weakref
        class Thing: pass
        thing = Thing()
        seen = weakref.ref(thing, lambda gone: print("gone", flush=True))
    """,
    "a weak reference to print": """
        import weakref
        class Thing: pass
        thing = Thing()
        seen = weakref.ref(thing, print)
    """,
    "a proxy": """
        import weakref
        class Thing: pass
        thing = Thing()
        seen = weakref.proxy(thing, lambda gone: print("gone", flush=True))
    """,
    "weakref.finalize": """
        import weakref
        class Thing: pass
        thing = Thing()
        weakref.finalize(thing, print, "finalized")
    """,
    "a dictionary of weak values": """
        import weakref
        class Thing: pass
        thing = Thing()
        kept = weakref.WeakValueDictionary(a=thing)
    """,
    "an unflushed file": "file = open(name, 'w'); file.write('text')",
    "an unflushed file in a module": "import os; os.file = open(name, 'w'); os.file.write('text')",
    "a file over standard output": "import os\nfile = os.fdopen(1, 'w'); file.write('text')",
    "a buffer over standard output": "import sys, io\nio = io.TextIOWrapper(sys.stdout.buffer); io.write('text')",
    "standard output set to None": "import sys; print('text', end=''); sys.stdout = None",
    "standard output replaced": """
        import io, sys
        class Loud(io.StringIO):
            def flush(self): print("flushed", file=sys.__stderr__, flush=True)
        sys.stdout = Loud()
    """,
    "standard input replaced": "import sys; sys.stdin = open(name); print(sys.stdin.readline())",
    "standard output detached": "import sys; print('text'); kept = sys.stdout.detach()",
    "standard output is full": "import os; os.dup2(os.open('/dev/full', 1), 1); print('text')",
    "a directory being read": """
        import os, warnings
        warnings.simplefilter("always")
        reading = os.scandir("/"); next(reading)
    """,
    "a socket of the C module": """
        import _socket, warnings
        warnings.simplefilter("always")
        kept = _socket.socket()
    """,
    "an audit hook": "import sys; sys.addaudithook(lambda name, given: print(name, flush=True))",
    "a tracer": """
        import sys, weakref
        class Thing: pass
        thing = Thing()
        kept = weakref.WeakValueDictionary(a=thing)
        sys.setprofile(lambda frame, event, given: print(event, flush=True))
    """,
    "atexit": "import atexit; atexit.register(print, 'at exit')",
    "a thread": """
        import threading, time
        threading.Thread(target=lambda: (time.sleep(0.05), print("thread"))).start()
    """,
    "a daemon": """
        import threading
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    """,
    "threading._shutdown replaced": """
        import threading
        threading._shutdown = lambda: print("shutdown", flush=True)
    """,
    "an exported buffer": """
        class Lends:
            def __buffer__(self, flags): return memoryview(b"abc")
            def __release_buffer__(self, view): print("given back", flush=True)
        try: kept = memoryview(Lends())
        except TypeError: pass
    """,
    "an error": "one = Seen(1); 1/0",
    "an exit": "import sys; one = Seen(1); sys.exit(3)",
    "an exit with text": "import sys; one = Seen(1); sys.exit('words')",
    "KeyboardInterrupt": "one = Seen(1); raise KeyboardInterrupt",
    "a fork": """
        import os
        one = Seen(1)
        if os.fork():
            print(os.wait()[1], flush=True)
    """,
    "SIGINT reset to default": "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL); one = Seen(1)",
    "ctypes": """
        import ctypes
        ctypes.pythonapi.Py_AtExit(ctypes.cast(ctypes.CDLL(None).abort, ctypes.c_void_p))
    """,
    "sqlite": """
        try: import sqlite3
        except ImportError: pass
        else:
            kept = sqlite3.connect(name + "-database")
            kept.execute("create table if not exists t (a)"); kept.execute("insert into t values (1)")
    """,
    "a weak method with a callback": """
        import sys, weakref
        class Thing:
            def method(self): pass
        thing = Thing()
        sys.seen = weakref.WeakMethod(thing.method, print)
    """,
    "weak values under keys with a __hash__": """
        import os, sys, weakref
        def hashed(self, write):
            write(1, b"hashed ")
            return 3
        hashed = type(hashed)(hashed.__code__, {}, "hashed", (os.write,))
        Key = type("Key", (), {"__hash__": hashed})
        class Thing: pass
        thing = Thing()
        sys.kept = weakref.WeakValueDictionary()
        sys.kept[Key()] = thing
    """,
    "weak reference classes of a known name": """
        import sys, weakref
        class KeyedRef(weakref.ref): pass
        class Other(weakref.ref): __slots__ = ("key",)
        Other.__name__ = "KeyedRef"
        class Thing: pass
        thing = Thing()
        sys.seen = KeyedRef(thing, print), Other(thing, print)
    """,
    "a weak reference callback of no module": """
        import sys, weakref
        class Thing: pass
        thing = Thing()
        def forget(gone): pass
        forget.__module__ = 3
        sys.seen = weakref.ref(thing, forget)
    """,
    "a callback of gc imported by importlib": """
        import importlib, os
        gc = importlib.import_module("gc")
        gc.callbacks.append(lambda phase, told, write=os.write: write(1, phase.encode()))
    """,
    "a callback of gc created from its spec": """
        import importlib.util, os
        spec = importlib.util.find_spec("gc")
        gc = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(gc)
        gc.callbacks.append(lambda phase, told, write=os.write: write(1, phase.encode()))
    """,
    "flush of standard output replaced": """
        import os, sys
        sys.stdout.flush = lambda write=os.write: write(1, b"flushed")
    """,
    "close of standard output replaced": """
        import os, sys
        sys.stdout.close = lambda write=os.write: write(1, b"closed")
    """,
    "close of standard output's buffer replaced": """
        import os, sys
        sys.stdout.buffer.close = lambda write=os.write: write(1, b"closed")
    """,
    "close of standard input's file replaced": """
        import os, sys
        sys.stdin.buffer.raw.close = lambda write=os.write: write(1, b"closed")
    """,
    "SIGINT reset by a flush": """
        import functools, signal, sys
        sys.stderr.write("text")
        sys.stdout.flush = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    """,
    "file of standard output closed": "import sys; print('text'); sys.stdout.buffer.raw.close()",
    "buffer of standard output closed": "import sys; print('text'); sys.stdout.buffer.close()",
    "standard error is standard output": "import sys; sys.stderr = sys.stdout; sys.stderr.write('text')",
    "standard error is full": "import os, sys; os.dup2(os.open('/dev/full', 1), 2); sys.stderr.write('text')",
    "standard error is closed": "import os, sys; sys.stderr.write('text'); os.close(2)",
    "standard error without a reader": """
        import os, sys
        reading, writing = os.pipe()
        os.dup2(writing, 2); os.close(reading); sys.stderr.write("text")
    """,
    "standard error would block": """
        import os, sys
        reading, writing = os.pipe()
        os.set_blocking(writing, False); os.dup2(writing, 2)
        os.write(writing, b"a" * 65536); sys.stderr.write("text")
    """,
    "standard output is full, without a hook": """
        import os, sys
        del sys.unraisablehook
        os.dup2(os.open("/dev/full", 1), 1); print("text")
    """,
    "a signal handler with __del__": """
        import signal
        class Handler:
            def __call__(self, *given): pass
            def __del__(self): print("handler gone")
        signal.signal(signal.SIGHUP, Handler())
    """,
    "another file at descriptor 0": """
        import sys
        sys.stdin.detach()
        files = [open(name, "ab"), open(name, "ab", 0), open(name, "ab")]
        files[0].write(b"text"); files[2].write(b"text")
    """,
    "another file as standard output": "import sys; sys.stdout = sys.__stdout__ = open(name, 'w'); print('text')",
    "a hook that exits": """
        import sys
        def hook(*given): print("hook"); sys.exit(5)
        sys.excepthook = hook
        1/0
    """,
    "a fork at exit": """
        import atexit, os
        def copy():
            if os.fork(): print(os.wait()[1], flush=True)
            else: print("child", flush=True)
        atexit.register(copy)
    """,
    "SIGINT at exit": "import atexit, os; atexit.register(os.kill, os.getpid(), 2)",
    "a program started at exit": """
        import atexit, subprocess
        atexit.register(lambda: print(subprocess.run(["sh", "-c", "kill -INT $$"]).returncode))
    """,
    "sigaction": """
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        new = ctypes.create_string_buffer(152); old = ctypes.create_string_buffer(152)
        for number in (-1, 0, 1, 2, 9, 10, 19, 32, 33, 34, 64, 65, 1000):
            for given in ((None, None), (None, old), (new, old), (new, None), (new, new)):
                ctypes.set_errno(0)
                print(number, libc.sigaction(number, *given), ctypes.get_errno(), old.raw[:8] == bytes(8))
    """,
}
# Programs in which finalization of the interpreter has no visible effect. test_warm_python.py has
# more.
QUIET = {
    "large exit code": "import sys; sys.exit(2**40 + 7)",
    "exit()": "exit(3)",
    "exit from a deep stack": "import sys\nf = lambda n: f(n - 1) if n else sys.exit(3)\nf(500)",
    "unfinished lines": "import sys; sys.stderr.write('text'); print('text', end='')",
    "a handler": "import signal; signal.signal(signal.SIGINT, lambda *given: None)",
    "classes and cycles": """
        import collections, json, re
        class Node(collections.abc.Sized):
            def __len__(self): return 3
        node = Node(); node.self = node
        print(json.dumps({"a": [len(node)]}), re.sub("a", "b", "aa"))
    """,
    "an unfinished line": "print('text', end='')",
    "a fork": "import os, sys; sys.exit(4 if os.fork() == 0 else os.WEXITSTATUS(os.wait()[1]) + 1)",
}


def text(program: str, tmp_path) -> str:
    return textwrap.dedent(SEEN) + f"name = {str(tmp_path / 'file')!r}\n" + textwrap.dedent(program)


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_visible_finalization_is_done(same, tmp_path, program):
    file = tmp_path / "file"
    file.write_bytes(b"")
    same("-c", text(program, tmp_path), "x")


def test_buffered_files_are_flushed(python, tmp_path):
    file = tmp_path / "file"
    program = f"""
        import sys
        sys.stdin.detach()
        kept = [open({str(file)!r}, mode, size) for mode, size in (("ab", -1), ("ab", 0), ("ab", 99))]
        for one in kept: one.write(b"text")
    """
    with Parked([python], ENV, fork=True) as parked:
        parked.run(Call([python, "-c", textwrap.dedent(program)], env=ENV))
    assert file.read_bytes() == b"text" * 3


@pytest.mark.parametrize("program", QUIET.values(), ids=QUIET)
def test_exit_without_visible_finalization(same, tmp_path, program):
    same("-c", textwrap.dedent(program))


@pytest.mark.parametrize(
    "flags", [("-X", "dev"), ("-Wd",), ("-X", "tracemalloc"), ("-u",)], ids="".join
)
def test_flags_that_report_at_exit(same, flags):
    finished = same("-c", "kept = open('/dev/null')", flags=flags)
    if flags == ("-Wd",):
        assert b"ResourceWarning" in finished.stderr


def test_objects_of_preimported_modules_are_finalized(same, tmp_path):
    (tmp_path / "ahead.py").write_text(textwrap.dedent(SEEN) + "kept = Seen('ahead')\n")
    env = {**ENV, "PYTHONPATH": str(tmp_path)}
    assert b"gone" in same("-c", "import ahead", env=env, preimport=["ahead"]).stdout


# A C module that writes when the interpreter frees it. It declares the fields of PyModuleDef up to
# m_free itself, because some interpreters lack Python.h.
MODULE_IN_C = """
#include <unistd.h>
struct definition {
    long references;
    void *base[4];
    const char *name, *documentation;
    long size;
    void *functions[4];
    void (*free)(void *);
};
void *PyModuleDef_Init(struct definition *);
static void tell(void *module) { (void)!write(1, "freed\\n", 6); }
static struct definition definition = {.references = 1, .name = NAME, .free = tell};
void *PyInit_(void) { return PyModuleDef_Init(&definition); }
"""


@pytest.mark.parametrize("name", ['""', '" _abc"', '"_abc _ast"', "0"])
def test_c_module_of_an_unknown_name_is_freed(same, tmp_path, name):
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    # The directory has the same name as the directory of the interpreter's own modules.
    (tmp_path / "lib-dynload").mkdir()
    library = tmp_path / "lib-dynload" / "module.so"
    command = ["cc", "-shared", "-fPIC", f"-DNAME={name}", "-x", "c", "-", "-o", str(library)]
    subprocess.run(command, input=MODULE_IN_C.encode(), check=True, timeout=60)
    program = f"""
        import _imp, sys
        from importlib.machinery import ModuleSpec
        spec = ModuleSpec("", None, origin={str(library)!r})
        sys.kept = _imp.create_dynamic(spec)
        _imp.exec_dynamic(sys.kept)
    """
    assert same("-c", textwrap.dedent(program)).stdout == b"freed\n"


def test_skipped_finalization_touches_fewer_pages(python):
    """Finalization makes a fork copy most of its pages, so skipping it is measurable."""

    def faults(parked: Parked, program: str) -> int:
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt
        assert parked.run(Call([python, "-c", program], env=ENV)).code in (0, 3)
        return resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt - before

    going = "; steps = (i for i in [1]); next(steps)"
    with Parked([python], ENV, fork=True) as parked:
        for program in (
            "pass",
            "import sys; sys.exit(3)",
            "import json; json.dumps([])",
        ):
            taken_apart = faults(parked, program.replace("; sys.exit(3)", "") + going)
            assert faults(parked, program) < taken_apart - 60, program
