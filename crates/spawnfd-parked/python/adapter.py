# SPDX-License-Identifier: MIT OR Apache-2.0
"""The Python half of the CPython adapter, for CPython 3.8 and later.

This code runs in a separate namespace, because a module would be visible in sys.modules. For the
same reason it imports only modules that every start-up imports. The C code calls `record` before
the import of site, `import_entry` if there is an entry point, `finish_recording` before the process
parks, and `resume` before the program.
"""

import sys

# Start-up would import this module next. So import it first, to keep the usual order in
# sys.modules.
import _frozen_importlib_external  # noqa: F401
import _imp
import _warnings
import posix

looked_up = set()  # names of environment variables, as bytes, and ALL
ENCODING, ERRORS = sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()
ALL = object()  # an element of looked_up: start-up code has enumerated the variables


def noting(method, note):
    """Returns a method of a collection that first calls `note` with the arguments of the method."""

    def noted(self, *arguments, **options):
        note(self, *arguments)
        return method(self, *arguments, **options)

    return noted


def note_key(variables, key, *_):
    looked_up.add(key)


def note_all(variables):
    looked_up.add(ALL)


# posix.environ during start-up: records the names of the variables that code looks up.
Recorder = type(
    "Recorder",
    (dict,),
    {
        "__slots__": (),
        **{
            name: noting(getattr(dict, name), note_key)
            for name in ("__getitem__", "__setitem__", "__delitem__", "__contains__", "get")
        },
        **{
            name: noting(getattr(dict, name), note_all)
            for name in ("__iter__", "keys", "values", "items")
        },
    },
)


def record():
    posix.environ = Recorder(posix.environ)


def note_use(used, *_):
    used.is_used = True


# A list that records its use in its attribute `is_used`.
UNRECORDED = ("__new__", "__init__", "__getattribute__", "__sizeof__", "__class_getitem__")
RecordedList = type(
    "RecordedList",
    (list,),
    {
        "is_used": False,
        **{
            name: noting(method, note_use)
            for name, method in vars(list).items()
            if callable(method) and name not in UNRECORDED
        },
    },
)


class Lookups:
    """A finder that finds no module. It records the names of top-level modules to import."""

    def __init__(self):
        self.names = set()

    def find_spec(self, name, path=None, target=None):
        if path is None:
            self.names.add(name)


class EntryPoint:
    """The import path while Python imports the modules of an entry point."""

    def __init__(self, directory):
        # With -I or -P, CPython searches neither the script's directory nor the working directory.
        self.has_first_path = not (getattr(sys.flags, "safe_path", False) or sys.flags.isolated)
        self.first_path = [directory] if self.has_first_path and directory else []
        self.path, self.lookups = list(sys.path), Lookups()
        sys.path[:0] = self.first_path
        sys.meta_path.insert(0, self.lookups)

    def finish(self):
        """Restores sys.path and sys.meta_path. Returns the reason not to park, or None."""
        if self.lookups in sys.meta_path:
            sys.meta_path.remove(self.lookups)
        # CPython inserts the first path again at the start. So further paths must be behind it.
        expected = self.first_path + self.path
        if sys.path[: len(expected)] != expected:
            return "start-up code changes sys.path"
        del sys.path[: len(self.first_path)]

    def modules(self):
        """The modules that imports would find in the first path if they existed there, as lines."""
        if not self.has_first_path:
            return b""
        return joined(
            name.encode(ENCODING, ERRORS)
            for name in self.lookups.names
            if name not in sys.builtin_module_names and not _imp.is_frozen(name)
        )


entry_point = None
entry_files = []


def import_entry(entry, directory):
    """Imports the modules that an entry point imports first. Returns the reason not to park, or None.

    `entry` is "-m " and the name of a module, or the path of a script. `directory` is the directory
    that the program searches first, or empty if it is not known.
    """
    global entry_point
    entry_point = EntryPoint(directory)
    original, recorded = sys.argv, RecordedList(sys.argv)
    sys.argv = recorded
    references = sys.getrefcount(recorded)
    try:
        why = import_for_module(entry[3:]) if entry.startswith("-m ") else import_for_script(entry)
    except BaseException as error:
        why = "cannot import the entry's modules: %s: %s" % (type(error).__name__, printable(error))
    if recorded.is_used or sys.argv is not recorded or sys.getrefcount(recorded) > references:
        return "start-up code reads sys.argv"
    sys.argv = original
    return why


def printable(text):
    """The text without the surrogates that stand for bytes that are not UTF-8."""
    return str(text).encode("utf-8", "backslashreplace").decode("utf-8")


def import_for_module(name):
    import runpy  # every start with -m imports this module

    name, spec, _ = runpy._get_module_details(name)
    if not spec.has_location or not hasattr(spec.loader, "source_to_code"):
        return "the entry is not a source file"
    was_imported = name in sys.modules
    namespace = {"__package__": spec.parent, "__spec__": spec, "__file__": spec.origin}
    execute_imports(spec.loader.get_data(spec.origin), spec.origin, namespace)
    # runpy warns if a module has been imported before it runs as the program.
    return "the entry imports itself" if name in sys.modules and not was_imported else None


def import_for_script(path):
    with sys.modules["_io"].FileIO(path) as file:
        source = file.read()
    execute_imports(source, path, {"__package__": None, "__spec__": None, "__file__": path})


def execute_imports(source, path, namespace):
    """Executes the leading imports of a program in a separate namespace."""
    entry_files.append(path)
    # Each start parses the program again and emits the parser's warnings.
    _warnings.filters.insert(0, ("ignore", None, Warning, None, 0))
    forget_applied_filters()
    try:
        tree = parse(source, path)
    finally:
        del _warnings.filters[0]
        forget_applied_filters()
    tree.body = leading(tree.body)
    namespace.update(__builtins__=__builtins__, __name__="__main__", __spawnfd_stop=Stop)
    try:
        exec(compile(tree, path, "exec", 0, True), namespace)
    except (Stop, ImportError):
        pass  # after an ImportError the start repeats the import


def forget_applied_filters():
    """Makes the next warning read _warnings.filters again."""
    if sys.version_info < (3, 14):
        _warnings._filters_mutated()
        return
    _warnings._acquire_lock()
    try:
        _warnings._filters_mutated_lock_held()
    finally:
        _warnings._release_lock()


def parse(source, path="<spawnfd>"):
    return compile(source, path, "exec", 0x400, True)  # ast.PyCF_ONLY_AST


class Stop(BaseException):
    """Ends the execution of the imports."""


def leading(statements):
    """Returns the leading imports, and a statement that raises Stop if other statements follow.

    Statements without an effect may precede an import. A statement with an effect, such as a change
    of os.environ or sys.path, may affect the imports that follow. So it ends the list.
    """
    taken = []
    for statement in statements:
        kind = type(statement).__name__
        if kind in ("FunctionDef", "AsyncFunctionDef") and is_plain_function(statement):
            continue
        if kind == "If" and is_plain_test(statement.test):
            statement.body = leading(statement.body)
            statement.orelse = leading(statement.orelse)
        elif kind == "Try" and is_import_attempt(statement):
            statement.body = leading(statement.body)
            statement.orelse = leading(statement.orelse)
            for handler in statement.handlers:
                handler.body = leading(handler.body)
        elif kind not in ("Import", "ImportFrom", "Pass") and not is_plain_statement(statement):
            return taken + parse("raise __spawnfd_stop").body
        taken.append(statement)
    return taken or parse("pass").body * bool(statements)


def is_constant(node):
    kind = type(node).__name__
    return kind == "Constant" or kind in ("List", "Tuple") and all(map(is_constant, node.elts))


def is_plain_statement(statement):
    """Whether the statement is a docstring, or assigns a constant to a name."""
    kind = type(statement).__name__
    if kind == "Expr":
        return is_constant(statement.value)
    names = statement.targets if kind == "Assign" else [None]
    return all(hasattr(name, "id") for name in names) and is_constant(statement.value)


def is_plain_function(function):
    defaults = function.args.defaults + [one for one in function.args.kw_defaults if one]
    return not function.decorator_list and all(map(is_constant, defaults))


def dotted(node):
    """The name of a variable or of a module's attribute, such as "sys.platform"; else None."""
    if type(node).__name__ == "Attribute" and hasattr(node.value, "id"):
        return f"{node.value.id}.{node.attr}"
    return getattr(node, "id", None)


def is_plain_test(test):
    """Whether a condition depends only on the interpreter, and on how the program was started."""
    if type(test).__name__ == "Compare":
        known = ("__name__", "sys.version_info", "sys.platform", "os.name")
        return dotted(test.left) in known and all(map(is_constant, test.comparators))
    return dotted(test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def is_import_attempt(statement):
    """Whether a `try` handles only the failure of imports."""
    caught = []
    for handler in statement.handlers:
        caught += getattr(handler.type, "elts", [handler.type])
    known = ("ImportError", "ModuleNotFoundError")
    return not statement.finalbody and all(dotted(one) in known for one in caught)


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
                return "a module from a relative path: " + printable(origin)
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
    found.update(entry_files)
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
    looked up; the paths of files; the names of modules; the paths that did not exist; whether
    `resume` must run even if nothing has changed; and the argument `state` of `resume`.
    """
    why = (entry_point and entry_point.finish()) or refusal()
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
    modules = entry_point.modules() if entry_point else b""
    absent = [path for path, finder in sys.path_importer_cache.items() if finder is None]
    missing = joined(path.encode(ENCODING, ERRORS) for path in absent)
    # Delete all other names, so that the program cannot find the objects through the garbage
    # collector.
    for name in globals().keys() - {"__builtins__", "posix", "reopen", "resume", "set_handlers", "sys"}:
        del globals()[name]
    if not why:
        sys.stdout.flush()
        sys.stderr.flush()
    needs_resume = bool(caches or "threading" in sys.modules)
    state = environment, caches, absent
    return why, names, dependencies, modules, missing, needs_resume, state


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
