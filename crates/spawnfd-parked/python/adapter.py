# SPDX-License-Identifier: MIT OR Apache-2.0
"""The half of the CPython adapter that is Python, for 3.8 on, in a namespace of its own.

It imports nothing that a start-up would not, as a module of its own would be seen in sys.modules.
`record` runs before site does, `settle` before the process parks, `resume` in the program.
"""

import sys

# Every start-up goes on with this import: so modules come in their usual order.
import _frozen_importlib_external  # noqa: F401
import posix

seen = set()  # names looked up, as bytes
ENCODING, ERRORS = sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()
ALL = object()  # in `seen`: somebody enumerated the variables


class Recorder(dict):
    """posix.environ for as long as start-up lasts: remembers what is looked at."""

    __slots__ = ()

    def __getitem__(self, key):
        seen.add(key)
        return dict.__getitem__(self, key)

    def __setitem__(self, key, value):
        seen.add(key)
        dict.__setitem__(self, key, value)

    def __delitem__(self, key):
        seen.add(key)
        dict.__delitem__(self, key)

    def __contains__(self, key):
        seen.add(key)
        return dict.__contains__(self, key)

    def get(self, key, default=None):
        seen.add(key)
        return dict.get(self, key, default)

    def __iter__(self):
        seen.add(ALL)
        return dict.__iter__(self)

    def keys(self):
        seen.add(ALL)
        return dict.keys(self)

    def values(self):
        seen.add(ALL)
        return dict.values(self)

    def items(self):
        seen.add(ALL)
        return dict.items(self)


def record():
    posix.environ = Recorder(posix.environ)


def refusal():
    """Why this interpreter must not be parked, or None."""
    if sys.flags.interactive or sys.flags.inspect:
        return "interactive mode"
    if sys.version_info < (3, 9) and sys.flags.dev_mode:
        return "development mode of 3.8"  # whose debug allocator aborts after any fork
    if ALL in seen:
        return "start-up code reads the whole environment"
    # site makes them absolute, from where the parked process stands.
    paths = b"" if sys.flags.ignore_environment else dict.get(posix.environ, b"PYTHONPATH", b"")
    if paths and not all(path.startswith(b"/") for path in paths.split(b":")):
        return "a relative path in PYTHONPATH"
    if any(not path.startswith("/") for path in sys.path if isinstance(path, str)):
        return "a relative path in sys.path"
    for module in list(sys.modules.values()):
        origin = getattr(getattr(module, "__spec__", None), "origin", None)
        if isinstance(origin, str) and getattr(module.__spec__, "has_location", False):
            if not origin.startswith("/"):
                return "a module from a relative path: " + origin
    for name in ("stdin", "stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None or stream is not getattr(sys, f"__{name}__") or stream.closed:
            return "start-up code replaces sys." + name
    return None


def files():
    """What start-up depended on, as lines: files, there or not; directories with "/" at the end."""
    found = set()
    for module in list(sys.modules.values()):
        spec = getattr(module, "__spec__", None)
        if getattr(spec, "has_location", False) and isinstance(spec.origin, str):
            found.add(spec.origin)
    directories = [path for path in sys.path if isinstance(path, str)]
    site = sys.modules.get("site")
    if site is not None:
        directories += site.getsitepackages()
        directories += [site.USER_SITE] if site.ENABLE_USER_SITE and site.USER_SITE else []
    for path in directories:
        try:
            names = posix.listdir(path)
        except OSError:
            found.add(path)
            continue
        found.add(path.rstrip("/") + "/")
        found.update(path.rstrip("/") + "/" + name for name in names if name.endswith(".pth"))
    if sys.executable:
        home = sys.executable.rpartition("/")[0]
        found.add(home + "/pyvenv.cfg")
        found.add(home.rpartition("/")[0] + "/pyvenv.cfg")
    return joined(path.encode(ENCODING, ERRORS) for path in found)


def joined(lines):
    return b"\n".join(sorted(line for line in lines if line and b"\n" not in line))


def settle():
    """Ends the recording.

    Why not to park, or None; names looked at; files; paths that were not there; whether `resume` is
    needed in any case; what it needs.
    """
    why = refusal()
    names = joined(name for name in seen if isinstance(name, bytes))
    environment = dict.copy(posix.environ)
    posix.environ = environment
    os = sys.modules.get("os")
    if os is not None:
        os.environ._data = environment
        os.environb._data = environment
    # A directory that changed just before it was read may change again and keep its timestamp.
    young = posix.stat("/proc/self").st_mtime - 3.0
    caches = [
        finder
        for finder in sys.path_importer_cache.values()
        if getattr(finder, "_path_mtime", -1) > young
    ]
    depends = files()
    absent = [path for path, finder in sys.path_importer_cache.items() if finder is None]
    missing = joined(path.encode(ENCODING, ERRORS) for path in absent)
    # The program is not to find anything of this among its objects.
    for name in ("Recorder", "seen", "ALL", "record", "refusal", "files", "joined", "settle"):
        del globals()[name]
    if not why:
        sys.stdout.flush()
        sys.stderr.flush()
    renews = bool(caches or "threading" in sys.modules)
    return why, names, depends, missing, renews, (environment, caches, absent)


def reopen(name, fd):
    """Has a standard stream say what it would, had it been made over what `fd` is now."""
    stream = getattr(sys, name)
    try:
        posix.fstat(fd)
    except OSError:
        setattr(sys, name, None)
        setattr(sys, f"__{name}__", None)
        return
    # These objects stay, for modules may hold them; but a FileIO keeps what it found of seeking.
    encoding, errors = stream.encoding, stream.errors
    through, always = stream.write_through, stream.line_buffering
    buffer = stream.buffer
    old = getattr(buffer, "raw", buffer)
    raw = type(old)(fd, old.mode, closefd=False)
    raw.name = f"<{name}>"
    if old is buffer:
        buffer = raw
    else:
        buffer.__init__(raw, raw._blksize)
    stream.__init__(
        buffer, encoding, errors, "\n", always or (not through and raw.isatty()), through
    )


def resume(state, what, fresh, ignored):
    """Renews of what start-up took from the process what has changed: bits of `what`, see resume.c.

    `fresh`: the environment. `ignored`: the numbers of the ignored signals.
    """
    environment, caches, absent = state
    if what & 1:
        environment.clear()
        environment.update(fresh)
    for finder in caches:
        finder._path_mtime = -1
    for path in absent:
        try:
            posix.stat(path)
        except OSError:
            continue
        sys.path_importer_cache.pop(path, None)
    if what & 2 and "time" in sys.modules:
        sys.modules["time"].tzset()
    if "threading" in sys.modules:  # imported ahead; not done after a fork
        sys.modules["threading"].main_thread()._set_native_id()
    if what & 4:
        signals(ignored)
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        if what & 8 << fd:
            reopen(name, fd)


def signals(ignored):
    """Has the interpreter's handlers be those that it would have had with just these ignored."""
    signal = sys.modules["_signal"]
    for number in range(1, signal.NSIG):
        handler = signal.getsignal(number)
        if number in ignored:
            if handler == signal.SIG_DFL or handler is signal.default_int_handler:
                signal.signal(number, signal.SIG_IGN)
        elif number == signal.SIGINT and handler in (signal.SIG_IGN, signal.default_int_handler):
            signal.signal(number, signal.default_int_handler)
        elif handler == signal.SIG_IGN and number not in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
