# SPDX-License-Identifier: MIT OR Apache-2.0
"""The Python half of the CPython adapter, for CPython 3.8 and later.

This code runs in a separate namespace, because a module would be visible in sys.modules. For the
same reason it imports only modules that every start-up imports. The C code calls `record` before
the import of site, `finish_recording` before the process parks, and `resume` before the program.
"""

import sys

# Start-up would import this module next. So import it first, to keep the usual order in
# sys.modules.
import _frozen_importlib_external  # noqa: F401
import posix

looked_up = set()  # names of environment variables, as bytes, and ALL
ENCODING, ERRORS = sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()
ALL = object()  # an element of looked_up: start-up code has enumerated the variables


class Recorder(dict):
    """posix.environ during start-up: records the names of the variables that code looks up."""

    __slots__ = ()

    def __getitem__(self, key):
        looked_up.add(key)
        return dict.__getitem__(self, key)

    def __setitem__(self, key, value):
        looked_up.add(key)
        dict.__setitem__(self, key, value)

    def __delitem__(self, key):
        looked_up.add(key)
        dict.__delitem__(self, key)

    def __contains__(self, key):
        looked_up.add(key)
        return dict.__contains__(self, key)

    def get(self, key, default=None):
        looked_up.add(key)
        return dict.get(self, key, default)

    def __iter__(self):
        looked_up.add(ALL)
        return dict.__iter__(self)

    def keys(self):
        looked_up.add(ALL)
        return dict.keys(self)

    def values(self):
        looked_up.add(ALL)
        return dict.values(self)

    def items(self):
        looked_up.add(ALL)
        return dict.items(self)


def record():
    posix.environ = Recorder(posix.environ)


def refusal():
    """The reason why this interpreter cannot park, or None."""
    if sys.flags.interactive or sys.flags.inspect:
        return "interactive mode"
    if sys.version_info < (3, 9) and sys.flags.dev_mode:
        return "development mode of 3.8"  # its debug allocator aborts after a fork
    if ALL in looked_up:
        return "start-up code reads the whole environment"
    # site makes these paths absolute from the working directory of the parked process.
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
    """The paths on which start-up depended, as lines.

    A path need not exist. The path of a directory ends in "/".
    """
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


def finish_recording():
    """Ends the recording, and returns a tuple.

    The tuple has the reason not to park, or None; the names of the variables that start-up code
    looked up; the paths of files; the paths that did not exist; whether `resume` must run even if
    nothing has changed; and the argument `state` of `resume`.
    """
    why = refusal()
    names = joined(name for name in looked_up if isinstance(name, bytes))
    environment = dict.copy(posix.environ)
    posix.environ = environment
    os = sys.modules.get("os")
    if os is not None:
        os.environ._data = environment
        os.environb._data = environment
    # A directory that changed just before it was read may change again and keep its timestamp.
    recent = posix.stat("/proc/self").st_mtime - 3.0
    caches = [
        finder
        for finder in sys.path_importer_cache.values()
        if getattr(finder, "_path_mtime", -1) > recent
    ]
    dependencies = files()
    absent = [path for path, finder in sys.path_importer_cache.items() if finder is None]
    missing = joined(path.encode(ENCODING, ERRORS) for path in absent)
    # Delete these names, so that the program cannot find the objects through the garbage collector.
    for name in (
        *("Recorder", "looked_up", "ALL", "record"),
        *("refusal", "files", "joined", "finish_recording"),
    ):
        del globals()[name]
    if not why:
        sys.stdout.flush()
        sys.stderr.flush()
    needs_resume = bool(caches or "threading" in sys.modules)
    return why, names, dependencies, missing, needs_resume, (environment, caches, absent)


def reopen(name, fd):
    """Initialises a standard stream again for the file that `fd` refers to now."""
    stream = getattr(sys, name)
    try:
        posix.fstat(fd)
    except OSError:
        setattr(sys, name, None)
        setattr(sys, f"__{name}__", None)
        return
    # Keep the stream and its buffer, because modules may refer to them. But make a new FileIO,
    # because a FileIO caches whether its file is seekable.
    encoding, errors = stream.encoding, stream.errors
    write_through, line_buffering = stream.write_through, stream.line_buffering
    buffer = stream.buffer
    old = getattr(buffer, "raw", buffer)
    raw = type(old)(fd, old.mode, closefd=False)
    raw.name = f"<{name}>"
    if old is buffer:
        buffer = raw
    else:
        buffer.__init__(raw, raw._blksize)
    stream.__init__(
        buffer,
        encoding,
        errors,
        "\n",
        line_buffering or (not write_through and raw.isatty()),
        write_through,
    )


def resume(state, parts, new_environment, ignored):
    """Updates the state that start-up read from the process and that has changed since.

    `parts` has a bit for each changed part; resume.c names the bits. `new_environment` is the
    environment of the program. `ignored` has the numbers of the ignored signals.
    """
    environment, caches, absent = state
    if parts & 1:
        environment.clear()
        environment.update(new_environment)
    for finder in caches:
        finder._path_mtime = -1
    for path in absent:
        try:
            posix.stat(path)
        except OSError:
            continue
        sys.path_importer_cache.pop(path, None)
    if parts & 2 and "time" in sys.modules:
        sys.modules["time"].tzset()
    if "threading" in sys.modules:  # CPython does not update this thread id after a fork
        sys.modules["threading"].main_thread()._set_native_id()
    if parts & 4:
        set_handlers(ignored)
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        if parts & 8 << fd:
            reopen(name, fd)


def set_handlers(ignored):
    """Sets the handlers that CPython would have set at its start with these signals ignored."""
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
