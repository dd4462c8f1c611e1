# SPDX-License-Identifier: MIT OR Apache-2.0
"""Python programs have the same outcome warm and cold, with every CPython found, in both modes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import zipfile
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from calls import DIRECTORY, Call, Parked, cold, ignoring, refusal
from comparing import ENV, differences, interpreters, write

HERE = Path(__file__).resolve().parent

# --- the start is warm ---------------------------------------------------------------------------


def test_fork_is_a_child_of_the_caller(python):
    call = Call([python, "-c", "import os; print(os.getppid())"], env=ENV)
    with Parked([python], ENV, fork=True) as parked:
        assert int(parked.run(call).stdout) == os.getpid()


@pytest.mark.parametrize("version", interpreters())
def test_version_is_installed(version):
    if not interpreters()[version]:
        pytest.skip(f"no CPython {version} on this machine")


# --- state that a program can read -------------------------------------------------------------------


FLAGS = [
    (),
    ("-I",),
    ("-E", "-s"),
    ("-u",),
    ("-S",),
    ("-O",),
    ("-W", "error"),
    ("-Xutf8=0",),
    ("-X", "dev"),
    ("-bb",),
]


@pytest.mark.parametrize("flags", FLAGS, ids="".join)
def test_state_of_a_script(same, flags):
    out = same(str(HERE / "state.py"), "a", "b c", flags=flags).stdout
    assert b"sys.argv" in out


@pytest.mark.parametrize(
    "how", ["-c", "-m", "-", "relative", "dot", "directory", "zip"]
)
def test_state_of_each_kind_of_program(same, tmp_path, how):
    text = (HERE / "state.py").read_text()
    write(tmp_path, "state.py", text)
    write(tmp_path, "folder/__main__.py", text)
    with zipfile.ZipFile(tmp_path / "packed.zip", "w") as file:
        file.writestr("__main__.py", text)
    words, stdin = {
        "-c": (["-c", text, "x", "-y"], b""),
        "-m": (["-m", "state", "x", "-c"], b""),
        "-": (["-", "x"], text.encode()),
        "relative": (["state.py", "x"], b""),
        "dot": (["./folder/../state.py"], b""),
        "directory": (["folder", "x"], b""),
        "zip": (["packed.zip", "x"], b""),
    }[how]
    same(*words, stdin=stdin, cwd=str(tmp_path))


def test_state_with_cwd_as_program(same, tmp_path):
    write(tmp_path, "__main__.py", (HERE / "state.py").read_text())
    same(".", cwd=str(tmp_path))


@pytest.mark.parametrize(
    "options",
    [
        {"stdin": None},
        {"stdout": None, "stderr": "pipe"},
        {"stdout": "file"},
        {"stderr": None},
        {"tty": True},
        {"ignored": (signal.SIGINT,)},
        {"ignored": (signal.SIGPIPE, signal.SIGHUP, signal.SIGXFSZ, signal.SIGRTMIN)},
    ],
    ids=str,
)
@pytest.mark.parametrize("flags", [(), ("-u",)], ids="".join)
def test_state_with_streams_and_signals(same, options, flags):
    same(str(HERE / "state.py"), flags=flags, **options)


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"LANG": "C"},
        {"LANG": "C", "LC_ALL": "C"},
        {"LANG": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
        {"LC_CTYPE": "C", "Z": "1"},
        {"PYTHONIOENCODING": "latin-1:replace"},
        {"PYTHONUNBUFFERED": "1"},
        {"PYTHONUTF8": "1", "PYTHONHASHSEED": "7"},
        {"PYTHONWARNINGS": "error::DeprecationWarning,ignore"},
        {"PYTHONPATH": "/nonexistent:/usr/share", "PYTHONDONTWRITEBYTECODE": "1"},
        {"PYTHONFAULTHANDLER": "1", "PYTHONTRACEMALLOC": "2"},
        {
            "PYTHONMALLOC": "malloc",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPYCACHEPREFIX": "/nonexistent/p",
            "PYTHONNOUSERSITE": "1",
        },
    ],
    ids=str,
)
def test_state_with_environments(same, env):
    same(str(HERE / "state.py"), env=env)


def test_state_with_other_variables_than_at_parking(same):
    env = {
        "B": "2",
        "HOME": "/nonexistent",
        "PATH": "/bin",
        "A": "x=y",
        "LANG": "C.UTF-8",
        "TZ": "Asia/Tokyo",
        "E": "",
    }
    same(str(HERE / "state.py"), env=env, parked_env=ENV)


def test_state_with_another_environment_without_a_locale(same):
    same(str(HERE / "state.py"), env={"B": "2"}, parked_env={"A": "1"})


# --- programs ----------------------------------------------------------------------------------------


PROGRAMS = {
    "print": "print('out'); import sys; print('err', file=sys.stderr)",
    "unicode": "import sys; print(ascii(sys.argv), 'ü€😀')",
    "surrogates": "import os, sys; print(ascii(sys.argv)); sys.stdout.buffer.write(os.fsencode(sys.argv[-1]))",
    "raise": "def f(x):\n    return 1 / x\nf(0)",
    "chained": "try:\n    {}['a']\nexcept KeyError:\n    raise ValueError('b')",
    "syntax": "x = (1,\nprint 2",
    "indentation": "  x = 1",
    "exit 0": "raise SystemExit",
    "exit 3": "import sys; sys.exit(3)",
    "exit text": "import sys; sys.exit('ended')",
    "exit -1": "import sys; sys.exit(-1)",
    "exit 256": "raise SystemExit(256)",
    "exit object": "raise SystemExit((1, 2))",
    "os._exit": "import os; print('lost'); os._exit(5)",
    "abort": "import os; os.abort()",
    "kill": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "keyboard": "raise KeyboardInterrupt",
    "sigint": "import os, signal; os.kill(os.getpid(), signal.SIGINT); print('after')",
    "atexit": "import atexit\nfor i in range(3): atexit.register(print, i)\nprint('body')",
    "atexit raises": "import atexit\natexit.register(lambda: 1 / 0)",
    "del at exit": "class A:\n    def __del__(self): print('del')\na = A()",
    "warnings": "import warnings; warnings.warn('w'); warnings.warn('d', DeprecationWarning); x = 1 is 1",
    "resource": "import warnings; warnings.simplefilter('always'); open('/dev/null')",
    "broken pipe": "import os, sys\nos.close(1)\nprint('x'); sys.stdout.flush()",
    "closed at exit": "import os\nprint('x')\nos.close(1)",
    "partial": "import sys; sys.stdout.write('no newline'); sys.stderr.write('e1'); sys.stdout.flush()",
    "reads": "import sys; print([line for line in sys.stdin]); print(sys.stdin.read())",
    "input": "print(input('? ')); print(input())",
    "environ": "import os; os.environ['N'] = 'v'; del os.environ['A']; os.system('echo $N-$A'); print(os.getenv('A'))",
    "subprocess": "import subprocess, sys\nprint(subprocess.run([sys.executable, '-c', 'import sys; print(sys.argv, sys.flags)', 'q'], stdout=-1).stdout)",
    "popen": "import os; print(os.popen('env | sort; echo $0').read())",
    "fork": "import os, sys\nsys.stdout.flush()\npid = os.fork()\nif not pid: print('child'); sys.exit(3)\nprint(os.waitpid(pid, 0)[1])",
    "threads": "import threading\nr = []\nts = [threading.Thread(target=r.append, args=(i,)) for i in range(20)]\n[t.start() for t in ts]\n[t.join() for t in ts]\nprint(sorted(r), threading.active_count())",
    "thread at exit": "import threading, time\nthreading.Thread(target=lambda: (time.sleep(.05), print('late'))).start()\nprint('main')",
    "daemon": "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
    "asyncio": "import asyncio\nasync def main():\n    p = await asyncio.create_subprocess_exec('echo', 'hi', stdout=-1)\n    print(await p.communicate(), p.returncode)\n    await asyncio.gather(*(asyncio.sleep(0.001) for _ in range(10)))\nasyncio.run(main())",
    "executor": "from concurrent.futures import ThreadPoolExecutor as T\nwith T(4) as t: print(list(t.map(abs, range(-3, 3))))",
    "alarm": "import signal, time\ncame = []\nsignal.signal(signal.SIGALRM, lambda *a: came.append(print('alarm')))\nsignal.setitimer(signal.ITIMER_REAL, .01)\nwhile not came: time.sleep(.001)",
    "encodings": "import codecs; print('ü'.encode('utf-16'), codecs.lookup('cp1252').name, 'x'.encode('idna'))",
    "imports": "import json, re, decimal, sqlite3, ctypes, ssl, zlib, hashlib, socket, datetime\nprint(json.dumps([1]), hashlib.sha256(b'').hexdigest(), ssl.OPENSSL_VERSION)",
    "interpreters": "import sys\ntry:\n    import _xxsubinterpreters as x\nexcept ImportError:\n    import _interpreters as x\ni = x.create(); x.run_string(i, 'import sys; print(sys.argv, sys.path, sys.flags, flush=True)')",
    "reload": "import importlib, os, site; importlib.reload(os); importlib.reload(site); print(os.environ['A'])",
    "recursion": "def f(): return f()\ntry: f()\nexcept RecursionError as e: print(e)",
    "inspect": "import inspect, sys, __main__; print(inspect.getmodule(lambda: 0), inspect.currentframe().f_code.co_filename, __name__)",
    "globals": "print(sorted(globals()), __name__, __builtins__)",
    "traceback": "import traceback, sys\ndef f(): traceback.print_stack(); raise RuntimeError('x' * 300)\nf()",
    "unraisable": "class A:\n    def __del__(self): 1 / 0\nA()",
    "excepthook": "import sys\nsys.excepthook = lambda *a: print('hook', a[1])\n1 / 0",
    "thread raises": "import threading\nt = threading.Thread(target=lambda: 1 / 0, name='t'); t.start(); t.join()",
    "group": "import sys\nif sys.version_info >= (3, 11): exec('raise ExceptionGroup(\"g\", [ValueError(1), TypeError(2)])')",
    "random": "import random, secrets, uuid\nrandom.seed(1); print(random.random()); secrets.token_hex(); uuid.uuid4()",
    "multi line": "if True:\n    print(1)\n\n\nprint(2)\n",
    "empty": "",
    "nul": "print('a\\0b')",
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("how", ["-c", "script"])
def test_program(same, tmp_path, name, how):
    text = PROGRAMS[name]
    words = ["-c", text] if how == "-c" else [write(tmp_path, "script ü.py", text)]
    same(
        *words,
        "ü",
        b"\xff\xfe",
        stdin=b"one\ntwo\nthree",
        cwd=str(tmp_path),
        flags=("-X", "dev") if name == "resource" else (),
    )


@pytest.mark.parametrize("name", ["raise", "syntax", "print", "exit 3", "reads", "unicode"])
def test_program_on_stdin(same, name):
    same("-", "x", stdin=PROGRAMS[name].encode() + b"\n")


@pytest.mark.parametrize(
    "name", ["print", "raise", "input", "sigint", "keyboard", "group", "partial"]
)
def test_program_on_a_terminal(same, name):
    same("-c", PROGRAMS[name], tty=True, stdin=b"typed\nagain\n", env={**ENV, "TERM": "xterm"})


@pytest.mark.parametrize(
    "flag", ["error", "ignore", "always::DeprecationWarning", "error::UserWarning:__main__"]
)
def test_warnings(same, flag):
    same("-c", PROGRAMS["warnings"], flags=("-W", flag))


@pytest.mark.parametrize(
    "words",
    [
        ["-m", "json.tool"],
        ["-m", "json.nothing"],
        ["-m", "nothing"],
        ["-m", "this"],
        ["-m", "site"],
        ["-m", "timeit", "-h"],
        ["-m", "compileall", "-q", "."],
        ["-m", "unittest", "-v", "case"],
        ["-m", "package", "x"],
        ["-m", "package.module"],
        ["-m", "package.fails"],
        ["-m", "zipfile", "-l", "packed.zip"],
        ["-m", "ast"],
        ["-m", "pdb", "-h"],
        ["-m", "py_compile", "bad.py"],
        ["missing.py"],
        ["empty"],
        ["bad.py"],
        ["folder"],
        ["packed.zip", "1"],
        ["bytes.pyc"],
        ["shebang.py", "-c", "x"],
        ["latin.py"],
        ["null.py"],
        ["bom.py"],
        ["spawns.py"],
        ["forks.py"],
        ["imports.py"],
        ["-c", "import package; print(package.__file__, package.__path__)"],
        ["-c", "import late"],
        ["-c", "", "x"],
        # The parked process executes the interpreter again, which reports the missing argument.
        ["-c"],
        ["-m"],
    ],
    ids=" ".join,
)
def test_files(same, python, tmp_path, words):
    write(
        tmp_path,
        "case.py",
        "import unittest\nclass T(unittest.TestCase):\n    def test_it(self): self.assertEqual(1, 1)\n",
    )
    write(tmp_path, "package/__init__.py", "import sys; print('init', __name__, sys.argv)")
    write(
        tmp_path,
        "package/__main__.py",
        "import sys; print(__package__, __spec__.name, sys.argv, sys.path[0], __file__)",
    )
    write(
        tmp_path, "package/module.py", "from . import __name__ as n; print(n, __name__, __file__)"
    )
    write(tmp_path, "package/fails.py", "def f():\n    raise OSError(2, 'x', 'y')\nf()")
    write(
        tmp_path,
        "folder/__main__.py",
        "import other; print(__file__, __name__, other.__file__)\n1/0",
    )
    write(tmp_path, "folder/other.py", "")
    write(tmp_path, "empty/x.py", "")
    write(tmp_path, "bad.py", "a = 1\nb = = 2\n")
    write(
        tmp_path,
        "imports.py",
        "import case, sys; print(case.__file__, case.__cached__, sys.path_importer_cache.keys())",
    )
    write(tmp_path, "shebang.py", "#!/bin/false\nimport sys; print(sys.argv, __file__)")
    (tmp_path / "latin.py").write_bytes(b"# coding: latin-1\nprint('\xfc')\n")
    (tmp_path / "null.py").write_bytes(b"print(1)\n\0print(2)\n")
    (tmp_path / "bom.py").write_bytes(b"\xef\xbb\xbfprint('bom')\n1/0\n")
    program = "import multiprocessing as m\ndef f(x): return x * x\nif __name__ == '__main__':\n    c = m.get_context('%s')\n"
    program += "    with c.Pool(2) as p: print(p.map(f, range(5)))\n    q = c.Queue(); w = c.Process(target=q.put, args=(1,)); w.start(); print(q.get()); w.join(); print(w.exitcode)\n"
    write(tmp_path, "spawns.py", program % "spawn")
    write(tmp_path, "forks.py", program % "fork")
    compiling = "import py_compile, sys; py_compile.compile('case.py', 'bytes.pyc', doraise=True)"
    subprocess.run([python, "-c", compiling], cwd=tmp_path, check=True, timeout=60)
    with zipfile.ZipFile(tmp_path / "packed.zip", "w") as file:
        file.writestr(
            "__main__.py",
            "import sys, inner\nprint(sys.argv, sys.path[0], __file__, inner.__file__)\ninner.f()",
        )
        file.writestr("inner.py", "def f():\n    raise ValueError('in a zip')\n")
    # The program is compiled first. Otherwise the first run would write bytecode and differ from
    # the second run.
    subprocess.run(
        [python, "-m", "compileall", "-q", "."], cwd=tmp_path, stdout=subprocess.DEVNULL, timeout=60
    )
    same(*words, cwd=str(tmp_path), stdin=b'{"a": [1, 2]}', env={**ENV, "PYTHONHASHSEED": "0"})


def test_interrupted_by_the_caller(same):
    # The program blocks SIGINT, so that the signal arrives exactly where the program unblocks it.
    program = "from signal import *; from time import *\npthread_sigmask(SIG_BLOCK, [SIGINT])\nprint('ready', flush=True)\n"
    program += "while not sigpending(): sleep(.001)\npthread_sigmask(SIG_UNBLOCK, [SIGINT])"
    finished = same("-c", program, interrupt=True)
    assert finished.code == -signal.SIGINT


def test_interrupt_is_ignored_if_the_caller_ignores_it(same):
    program = "import time\nprint('ready', flush=True)\ntime.sleep(.3); print('done')"
    assert same("-c", program, interrupt=True, ignored=(signal.SIGINT,)).code == 0


def test_signals_ignored_only_while_parking_are_reset(python):
    call = Call([python, str(HERE / "state.py")], env=ENV)
    with ignoring((signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGHUP)):
        parked = Parked([python], ENV)
    with parked:
        assert differences(cold(call), parked.run(call)) == []


def test_stdin_that_is_a_directory(python):
    """CPython refuses a directory as stdin.

    The parked process therefore executes the interpreter again.
    """
    call = Call([python, "-c", "print()"], env=ENV, stdin=DIRECTORY)
    with Parked([python], ENV) as parked:
        assert differences(cold(call), parked.run(call)) == []


@pytest.mark.parametrize("change", ["module", "directory", "preimported module", "pyvenv.cfg"])
def test_changed_file_makes_the_next_start_cold(python, tmp_path, change):
    """A file changes, or a module appears where imports have searched."""
    write(tmp_path, "lib/ahead.py", "")
    env = {**ENV, "PYTHONPATH": f"{tmp_path}/later:{tmp_path}/lib", "PYTHONDONTWRITEBYTECODE": "1"}
    call = Call([python, "-c", "import ahead, found; print('found')"], env=env)
    if change != "directory":
        write(tmp_path, "later/other.py", "")
    write(tmp_path, "lib/found.py", "")
    # Because of the delay, no process is parked anew before the start that finds the change.
    with Parked([python], env, preimport=["ahead"], delay=600) as parked:
        assert parked.run(call).stdout == b"found\n"
        assert parked.fill()
        if change == "pyvenv.cfg":
            (Path(python).parents[1] / "pyvenv.cfg").touch()
        elif change == "preimported module":
            write(tmp_path, "lib/ahead.py", "print('new', end=' ')")
        else:
            write(tmp_path, "later/found.py", "print('new', end=' ')")
        finished = parked.run_cold(call, "stale")
    assert finished.stdout == (b"found\n" if change == "pyvenv.cfg" else b"new found\n")


def test_preimported_modules(same):
    program = "import logging, json; logging.warning('w'); print(json.dumps(1)); import sys; print(sys.argv)"
    program += "; import os, threading; print(threading.main_thread().native_id == os.getpid())"
    same("-c", program, preimport=["logging", "json", "asyncio", "unittest"])


# libc describes its field for the thread id to debuggers: libthread_db of glibc.
THREAD_ID = """
import ctypes, threading
libc = ctypes.CDLL(None)
libc.pthread_self.restype = ctypes.c_ulong
size, count, offset = (ctypes.c_uint32 * 3).in_dll(libc, "_thread_db_pthread_tid")
print(ctypes.c_int32.from_address(libc.pthread_self() + offset).value == threading.get_native_id())
"""


def test_libc_has_the_id_of_the_thread(same):
    assert same("-c", THREAD_ID).stdout == b"True\n"


def test_random_numbers_of_forks_differ(python):
    call = Call([python, "-c", "import random; print(random.random())"], env=ENV)
    with Parked([python], ENV, fork=True, preimport=["random"]) as parked:
        assert len({parked.run(call).stdout for _ in range(4)}) == 4


GENERATOR = "import random\ngenerator = random.Random()\n"
RESEEDS = "import os\nos.register_at_fork(after_in_child=generator.seed)\n"


@pytest.mark.parametrize(
    ("module", "program", "different"),
    [
        (GENERATOR, "import ahead", 1),
        (GENERATOR + RESEEDS, "import ahead", 4),
        (GENERATOR, "import ahead; ahead.generator.seed()", 4),
    ],
    ids=["kept", "reseeded after a fork", "reseeded by the program"],
)
def test_random_generator_of_a_preimported_module(python, tmp_path, module, program, different):
    """All forks start with the generator's state at the fork.

    Each reserve process (itself the program) has its own state.
    """
    write(tmp_path, "ahead.py", module)
    env = {**ENV, "PYTHONPATH": str(tmp_path)}
    call = Call([python, "-c", program + "; print(ahead.generator.random())"], env=env)
    with Parked([python], env, fork=True, preimport=["ahead"]) as parked:
        assert len({parked.run(call).stdout for _ in range(4)}) == different
    found = set()
    for _ in range(4):
        with Parked([python], env, preimport=["ahead"]) as parked:
            found.add(parked.run(call).stdout)
    assert len(found) == 4


# --- interpreters that do not park ------------------------------------------------------------------


# A relative path. No process may create it while it parks.
NOWHERE = "spawnfd-nowhere"
# Flags, variables and start-up code, by the reason that the interpreter reports; … is a variable part.
REFUSALS = [
    ("a flag that makes the interpreter exit", ["-V"], {}, ""),
    ("a flag that makes the interpreter exit", ["-h"], {}, ""),
    ("a flag that makes the interpreter exit", ["--bad"], {}, ""),
    ("args has more than flags", ["-"], {}, ""),
    ("interactive mode", ["-i"], {}, ""),
    ("interactive mode", [], {"PYTHONINSPECT": "1"}, ""),
    ("[fF]ailed to *encoding*", [], {"PYTHONHOME": "/nonexistent"}, ""),
    ("a relative path to bytecode", ["-X", f"pycache_prefix={NOWHERE}"], {}, ""),
    ("a relative path to bytecode", [], {"PYTHONPYCACHEPREFIX": NOWHERE}, ""),
    ("a relative path in PYTHONPATH", [], {"PYTHONPATH": "relative"}, ""),
    ("a relative path in sys.path", [], {}, "import sys; sys.path.append('here')"),
    ("a module from a relative path: …", [], {}, "import json; json.__spec__.origin = 'x'"),
    ("start-up code reads the whole environment", [], {}, "import os; dict(os.environ)"),
    (
        "start-up code changes much of the environment",
        [],
        {},
        "import os\nfor i in range(200): os.environ[f'A{i}'] = '1'",
    ),
    ("start-up code replaces sys.…", [], {}, "import sys; sys.stdout = open('/dev/null', 'w')"),
    ("start-up code writes: hello…", [], {}, "import sys; print('hello')"),
    ("start-up code writes: oh", [], {}, "import sys; sys.stderr.write('oh')"),
    ("start-up code writes: …", ["-v"], {}, ""),
    ("start-up code writes: …", ["-X", "importtime"], {}, ""),
    ("threads", [], {}, "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()"),
    ("descriptors", [], {}, "import os; os.open('/dev/null', 0)"),
]


@pytest.mark.parametrize(("why", "flags", "env", "code"), REFUSALS, ids=lambda one: str(one)[:40])
def test_interpreter_reports_why_it_does_not_park(python, tmp_path, why, flags, env, code):
    env = {**ENV, **env}
    if code:
        write(tmp_path, "sitecustomize.py", code)
        env["PYTHONPATH"] = str(tmp_path)
    assert fnmatchcase(refusal([python, *flags], env), why.replace("…", "*"))
    assert not Path("/", NOWHERE).exists()


def test_interpreter_must_have_an_absolute_path(python):
    env = {**ENV, "PATH": f"bin:{Path(python).parent}"}
    assert refusal(["python"], env) == "a relative path to the interpreter"


def test_missing_module_cannot_be_imported_ahead(python):
    assert refusal([python], ENV, preimport=["nowhere"]) == "cannot import nowhere"


def test_other_program_is_not_parked_as_python(tmp_path):
    program = shutil.copy("/bin/true", tmp_path / "python3")
    assert refusal([program], ENV) == "not CPython 3.8 to 3.14"


def test_start_up_code_that_changes_the_environment(python):
    (packages,) = Path(python).parents[1].glob("lib/python3*/site-packages")
    file = packages / "test.pth"
    file.write_text(
        "import os; os.environ['SET'] = os.environ.get('READ', 'no'); os.environ.pop('GONE', None)\n"
    )
    env = {**ENV, "GONE": "1", "SET": "before"}
    call = Call([python, str(HERE / "state.py")], env=env)
    try:
        with Parked([python], env) as parked:
            assert differences(cold(call), parked.run(call)) == []
            for name in ("SET", "READ", "GONE"):
                assert parked.explain(call, **{name: "other"}) == "cold: variable"
    finally:
        file.unlink()


# --- variables on which a parked process depends -------------------------------------------------


def test_variables_read_before_parking_must_be_equal(python):
    call = Call([python, "-c", ""], env=ENV)
    with Parked([python], ENV) as parked:
        for name in ("PYTHONPATH", "PYTHONHOME", "LC_ALL", "LANG", "HOME", "PYTHONUSERBASE"):
            assert parked.explain(call, **{name: "/other"}) == "cold: variable", name
        for name in ("PATH", "A", "TZ", "PWD"):
            assert parked.explain(call, **{name: "/other"}) == "reserve", name


def test_path_must_be_equal_for_a_name_without_a_slash(python):
    env = {**ENV, "PATH": str(Path(python).parent)}
    call = Call(["python", str(HERE / "state.py")], env=env)
    with Parked(["python"], env) as parked:
        assert parked.explain(call, PATH=f"{env['PATH']}:/other") == "cold: variable"
        assert differences(cold(call), parked.run(call)) == []
