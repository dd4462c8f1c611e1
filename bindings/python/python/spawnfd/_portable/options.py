# SPDX-License-Identifier: MIT OR Apache-2.0
"""The keyword arguments of run() and start(): checks them, and refuses those not provided.

The texts of the errors are those of the native part (bindings/python/src/options.rs).
"""

from __future__ import annotations

from typing import Any, Literal, cast

from spawnfd._errors import Unsupported, make_error
from spawnfd._portable.arguments import (
    boolean,
    data,
    descriptor,
    integer,
    one_of,
    os_string,
    quoted,
    seconds,
    shown,
    text,
    word,
    wrong_type,
)
from spawnfd._portable.limiter import Limiter, Permit
from spawnfd._portable.record import keep_all
from spawnfd._types import Limits, Spill

Call = Literal["run", "start"]

_STREAMS: dict[tuple[str, Call], tuple[str, ...]] = {
    ("stdin", "run"): ("null", "inherit"),
    ("stdin", "start"): ("null", "inherit", "stream"),
    ("stdout", "run"): ("capture", "null", "inherit"),
    ("stdout", "start"): ("capture", "null", "inherit"),
    ("stderr", "run"): ("separate", "merge", "null", "inherit"),
    ("stderr", "start"): ("separate", "merge", "null", "inherit"),
}
_DEFAULT_STREAMS = {"stdin": "null", "stdout": "capture", "stderr": "separate"}
# The constants of subprocess by number, and the words that they stand for.
_CONSTANTS = {-1: "subprocess.PIPE", -2: "subprocess.STDOUT", -3: "subprocess.DEVNULL"}
_TREES = ("group", "guard", "subreaper", "cgroup", "pidns", "auto")
_LEFTOVERS = ("kill", "adopt", "detach")

# Why an option is not provided.
_UNSUPPORTED = {
    "actions": "actions are steps of the native part's child process before exec",
    "sandbox": "the native part starts the sandbox's command",
    "warm": "parked processes need the native part, on Linux",
    "limits": "limits need cgroups or rlimits of the native part, on Linux",
    "terminal": "the portable engine connects the program by pipes only",
    "spill": "the portable engine keeps output in memory only; see keep and output_limit",
}
_TREE_REASON = (
    "the portable engine controls the process group only, which does not end with this process "
    "if this process is killed"
)


def _options_of(call: Call) -> dict[str, Any]:
    """Returns the options of a call by name, with their defaults."""
    # This module imports the engine.
    from spawnfd import _signatures

    return (_signatures.run if call == "run" else _signatures.start).__kwdefaults__ or {}


class Options:
    """The options of a call. A time of None has no end."""

    def __init__(self, given: dict[str, Any], call: Call) -> None:
        self._call: Call = call
        self.cwd: Any = None
        self.env: Any = None
        self.arg0: str | None = None
        self.stdin: str | int = _DEFAULT_STREAMS["stdin"]
        self.stdout: str | int = _DEFAULT_STREAMS["stdout"]
        self.stderr: str | int = _DEFAULT_STREAMS["stderr"]
        self.timeout: float | None = None
        self.idle_timeout: float | None = None
        self.grace: float | None = 2.0
        self.drain: float | None = 0.1
        self.leftovers = "kill"
        self.permit: Permit | None = None
        self.input: bytes | None = None
        self.keep = (64_000, 64_000)
        self.marker: str | None = "[… {omitted} omitted …]"
        self.combined = False
        self.output_limit: int | None = None
        self.window = 1 << 20 if call == "start" else 0
        self.hold = False
        known = _options_of(call)
        for name, value in given.items():
            if name not in known:
                raise _unexpected(name, call)
            if value is not None or name == "marker":
                self._set(name, value)
        if self.input is not None and self.stdin != "null":
            raise ValueError("input: cannot be combined with stdin")

    def streams(self) -> dict[str, str | int]:
        return {"stdin": self.stdin, "stdout": self.stdout, "stderr": self.stderr}

    def _set(self, name: str, value: Any) -> None:
        if name in _DEFAULT_STREAMS:
            setattr(self, name, _stream(name, self._call, value))
        elif name in ("cwd", "env"):
            setattr(self, name, value)
        elif name in ("timeout", "idle_timeout", "grace", "drain"):
            setattr(self, name, seconds(value, name))
        elif name in ("combined", "hold"):
            setattr(self, name, boolean(value, name))
        elif name in ("output_limit", "window"):
            setattr(self, name, integer(value, name))
        elif name in _UNSUPPORTED:
            _refuse(name, value)
        else:
            getattr(self, f"_set_{name}")(value)

    def _set_arg0(self, value: Any) -> None:
        self.arg0 = os_string(value, "arg0")

    def _set_input(self, value: Any) -> None:
        self.input = data(value, "input")

    def _set_leftovers(self, value: Any) -> None:
        self.leftovers = word(value, "leftovers", _LEFTOVERS)

    def _set_limiter(self, value: Any) -> None:
        if not isinstance(value, Limiter):
            raise wrong_type("limiter", "spawnfd.Limiter or None", value)

    def _set_tree(self, value: Any) -> None:
        tree = word(value, "tree", _TREES)
        # "auto" asks for the most complete tier that is available.
        if tree not in ("group", "auto"):
            raise Unsupported(f'tree="{tree}"', _TREE_REASON)

    def _set_marker(self, value: Any) -> None:
        self.marker = None if value is None else text(value, "marker")
        if self.marker is not None and set(self.marker) & set("\n\r\0"):
            message = "the marker must not contain a line break or a NUL character"
            call = f"marker({quoted(self.marker)})"
            raise make_error(22, None, None, "validate", None, call, message)

    def _set_keep(self, value: Any) -> None:
        if isinstance(value, str):
            if value != "all":
                reason = 'must be two numbers of bytes, or "all"'
                raise ValueError(f"keep {reason}, got {shown(value)}")
            self.keep = keep_all()
        elif not isinstance(value, tuple) or len(pair := cast(Any, value)) != 2:
            expected = 'a tuple of two int (bytes of head and of tail), or "all"'
            raise wrong_type("keep", expected, value)
        else:
            head, tail = pair
            self.keep = integer(head, "keep[0]"), integer(tail, "keep[1]")


def _refuse(name: str, value: Any) -> None:
    """Refuses an option that is not provided, unless its value asks for nothing."""
    from spawnfd._portable.missing import Sandbox, Warm

    classes: dict[str, tuple[type, str]] = {
        "limits": (Limits, "spawnfd.Limits or None"),
        "spill": (Spill, "spawnfd.Spill or None"),
        "sandbox": (Sandbox, "spawnfd.Sandbox or None"),
    }
    if name in classes and not isinstance(value, classes[name][0]):
        raise wrong_type(name, classes[name][1], value)
    if name == "warm" and not isinstance(getattr(value, "_core", None), Warm):
        raise wrong_type(name, "spawnfd.Warm or None", value)
    if name == "actions":
        try:
            value = list(value)
        except TypeError:
            raise wrong_type(name, "a sequence of spawnfd.actions", value) from None
        if not value:
            return
    if value == Limits():
        return
    raise Unsupported(name, _UNSUPPORTED[name])


def _stream(name: str, call: Call, value: Any) -> str | int:
    """Converts the argument for a standard stream to a word or a descriptor."""
    words = _STREAMS[name, call]
    all_words = one_of(words)
    given = value if isinstance(value, str) else _word_of(name, call, value)
    if given is None:
        is_constant = isinstance(value, int) and not isinstance(value, bool)
        if is_constant and value in _CONSTANTS:
            instead = _instead_of_pipe(name, call) if value == -1 else ""
            message = f"{name}: expected one of {all_words}, got {_CONSTANTS[value]}{instead}"
            raise ValueError(message)
        expected = f"{all_words}, a descriptor or a file"
        try:
            return descriptor(value, name)
        except ValueError as error:
            raise ValueError(f"{error}; expected {expected}") from None
        except TypeError:
            raise wrong_type(name, expected, value) from None
    if given in words:
        return given
    instead = ""
    if given == "pipe":
        instead = _instead_of_pipe(name, call)
    elif (name, given) == ("stderr", "stdout"):
        instead = '; to send it to stdout use "merge"'
    raise ValueError(f"{name}: expected one of {all_words}, got {shown(given)}{instead}")


def _word_of(name: str, call: Call, value: Any) -> str | None:
    """Returns the word that a constant of subprocess stands for."""
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    pipes = {"stdout": "capture", "stderr": "separate", "stdin": "stream"}
    if value == -3:
        return "null"
    if value == -2 and name == "stderr":
        return "merge"
    if value == -1 and not (name == "stdin" and call == "run"):
        return pipes[name]
    return None


def _instead_of_pipe(name: str, call: Call) -> str:
    if name != "stdin":
        return "; the stream is captured by default"
    if call == "run":
        return '; to pass data use input=, or start(stdin="stream")'
    return '; to write to the program use "stream"'


def _unexpected(name: str, call: Call) -> TypeError:
    """Returns the error for an unknown option; it names the equivalent of one of subprocess."""
    instead = {
        "capture_output": "both streams are captured by default",
        **dict.fromkeys(
            ("text", "encoding", "errors", "universal_newlines"), "Result.text is decoded as UTF-8"
        ),
        "check": "call check() of the Result",
        "shell": "for a shell command line pass spawnfd.sh(command) as argv",
        **dict.fromkeys(
            ("preexec_fn", "umask", "user", "group", "extra_groups", "process_group"),
            "see spawnfd.actions",
        ),
        "pass_fds": "use actions=[spawnfd.actions.Descriptor(fd)]",
        "close_fds": (
            "the program gets only the standard streams and the descriptors that actions pass"
        ),
        "start_new_session": "a supervised run always starts a new session",
        "executable": "argv[0] is the program to start, and arg0= sets the argv[0] that it sees",
    }.get(name)
    if instead is None and call == "run" and name in _options_of("start"):
        instead = "start() accepts it"
    advice = f"; {instead}" if instead else ""
    return TypeError(f"unexpected keyword argument {quoted(name)}{advice}")
