# SPDX-License-Identifier: MIT OR Apache-2.0
"""A parked CPython leaves out of its end what nobody would see (adr/0017), and nothing else."""

from __future__ import annotations

import os
import resource
import textwrap

import pytest
from comparing import ENV
from starting import Call, Parked

SEEN = """
    class Seen:
        def __init__(self, name):
            self.name = name
        def __del__(self):
            print("gone", self.name, flush=True)
"""

# Programs whose end is seen, each in another way.
PROGRAMS = {
    "a global": "one = Seen(1); two = Seen(2)",
    "a cycle": "one = Seen(1); one.itself = one",
    "of a class of start-up": "import os; os._Environ.seen = Seen(1)",
    "of a module of start-up": "import sys; sys.seen = Seen(1)",
    "in builtins": "import builtins; builtins.seen = Seen(1)",
    "without a dict": "class Small(Seen):\n    __slots__ = ()\none = Small(1)",
    "only a slot": """
        class Small:
            __slots__ = ()
            def __del__(self): print("gone", flush=True)
        one = [Small()]
    """,
    "given later": """
        import os
        os._Environ.__del__ = lambda self: print("environment gone", flush=True)
    """,
    "of a metaclass": """
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
    "collections are told": """
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
    "an unflushed file elsewhere": "import os; os.file = open(name, 'w'); os.file.write('text')",
    "a file over standard output": "import os\nfile = os.fdopen(1, 'w'); file.write('text')",
    "a buffer over standard output": "import sys, io\nio = io.TextIOWrapper(sys.stdout.buffer); io.write('text')",
    "standard output put away": "import sys; print('text', end=''); sys.stdout = None",
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
    "a socket of C": """
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
    "its own shutdown": """
        import threading
        threading._shutdown = lambda: print("shutdown", flush=True)
    """,
    "a buffer lent": """
        class Lends:
            def __buffer__(self, flags): return memoryview(b"abc")
            def __release_buffer__(self, view): print("given back", flush=True)
        try: kept = memoryview(Lends())
        except TypeError: pass
    """,
    "an error": "one = Seen(1); 1/0",
    "an exit": "import sys; one = Seen(1); sys.exit(3)",
    "an exit with words": "import sys; one = Seen(1); sys.exit('words')",
    "interrupted": "one = Seen(1); raise KeyboardInterrupt",
    "a copy": """
        import os
        one = Seen(1)
        if os.fork():
            print(os.wait()[1], flush=True)
    """,
    "SIGINT let go": "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL); one = Seen(1)",
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
}
# And whose end is not.
QUIET = {
    "nothing": "pass",
    "an exit": "import sys; sys.exit(3)",
    "words": "import sys; sys.exit('words')",
    "large": "import sys; sys.exit(2**40 + 7)",
    "an error": "1/0",
    "interrupted": "raise KeyboardInterrupt",
    "classes and cycles": """
        import collections, json, re
        class Node(collections.abc.Sized):
            def __len__(self): return 3
        node = Node(); node.self = node
        print(json.dumps({"a": [len(node)]}), re.sub("a", "b", "aa"))
    """,
    "text without an end": "print('text', end='')",
    "a copy": "import os, sys; sys.exit(4 if os.fork() == 0 else os.WEXITSTATUS(os.wait()[1]) + 1)",
}


def text(program: str, tmp_path) -> str:
    return (
        textwrap.dedent(SEEN)
        + f"name = {str(tmp_path / 'file')!r}\n"
        + textwrap.dedent(program)
    )


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_what_is_seen_of_an_end_is_seen(same, tmp_path, program):
    file = tmp_path / "file"
    file.write_bytes(b"")
    same("-c", text(program, tmp_path), "x")


@pytest.mark.parametrize("program", QUIET.values(), ids=QUIET)
def test_an_end_of_which_nothing_is_seen(same, tmp_path, program):
    same("-c", textwrap.dedent(program))


@pytest.mark.parametrize(
    "flags", [("-X", "dev"), ("-Wd",), ("-X", "tracemalloc"), ("-u",)], ids="".join
)
def test_flags_that_have_the_end_talk(same, flags):
    finished = same("-c", "kept = open('/dev/null')", flags=flags)
    if flags == ("-Wd",):
        assert b"ResourceWarning" in finished.stderr


def test_objects_of_modules_imported_ahead_are_seen_to_go(same, tmp_path):
    (tmp_path / "ahead.py").write_text(textwrap.dedent(SEEN) + "kept = Seen('ahead')\n")
    env = {**ENV, "PYTHONPATH": str(tmp_path)}
    assert b"gone" in same("-c", "import ahead", env=env, preimport="ahead").stdout


def test_less_is_touched(shim, python):
    """It is left out at all: most pages that a fork copies are copied by its end."""

    def faults(parked: Parked, program: str) -> int:
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt
        assert os.waitstatus_to_exitcode(
            parked.run(Call([python, "-c", program], env=ENV)).status
        ) in (0, 3)
        return resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt - before

    going = "; steps = (i for i in [1]); next(steps)"
    with Parked(shim, python, [python], ENV, fork=True) as parked:
        for program in (
            "pass",
            "import sys; sys.exit(3)",
            "import json; json.dumps([])",
        ):
            taken_apart = faults(parked, program.replace("; sys.exit(3)", "") + going)
            assert faults(parked, program) < taken_apart - 60, program
