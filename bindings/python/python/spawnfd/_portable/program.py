# SPDX-License-Identifier: MIT OR Apache-2.0
"""Finds a program as execvp(3) does, and starts it by subprocess.Popen."""

from __future__ import annotations

import errno
import json
import os
from typing import TYPE_CHECKING, Any, cast

from spawnfd._errors import SpawnError, Unsupported, make_error
from spawnfd._portable import platforms
from spawnfd._portable.arguments import descriptor, os_string, os_strings
from spawnfd._portable.env import environment

if TYPE_CHECKING:
    import subprocess

    from spawnfd._portable.options import Options

_DESCRIPTORS = {"stdin": 0, "stdout": 1, "stderr": 2}


def _shown(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _error(number: int, stage: str, call: str, message: str, file: str | None = None) -> SpawnError:
    """Returns the error for a program or directory that the native part returns."""
    reason: str | None = None
    advice = _advice(stage, file) if number == errno.ENOENT and file is not None else None
    if advice is not None:
        message = f"{message}; {advice}"
        reason = f"No such file or directory; {advice}"
    return make_error(number, reason, file, stage, None, call, message)


def _advice(stage: str, file: str) -> str | None:
    """Returns advice for a path that only a shell expands, and for a command line."""
    if file.startswith("~"):
        return f'no shell expands "~"; pass os.path.expanduser({_shown(file)})'
    if stage != "cwd" and " " in file:
        return "each argument must be an item of argv"
    return None


class Command:
    """A program with its arguments, directory and environment.

    Attributes:
        name: The name of the program in the call.
        args: The argv of the program.
    """

    def __init__(self, argv: Any, options: Options) -> None:
        self.args = os_strings(argv, "argv")
        if not self.args:
            raise ValueError("argv: must not be empty; its first item names the program")
        self.name = self.args[0]
        if not self.name:
            raise ValueError("argv[0]: must not be empty; it names the program")
        self._env = environment(options.env)
        self._given_env = options.env is not None
        self._cwd = _directory(options.cwd)
        if options.arg0 is not None:
            self.args[0] = options.arg0

    def popen(self, options: Options, has_input: bool) -> subprocess.Popen[bytes]:
        """Starts the program.

        Raises:
            SpawnError: The program cannot be started.
        """
        import subprocess

        streams = _streams(options, has_input)
        cwd = self._existing_directory(options)
        path = self._find(cwd)
        try:
            popen: Any = subprocess.Popen(
                self.args,
                executable=path,
                bufsize=0,
                cwd=cwd,
                env=self._variables(),
                close_fds=True,
                **streams,
                **platforms.session_options(),
            )
        except OSError as error:
            raise self._start_error(error, path, cwd) from None
        return cast("subprocess.Popen[bytes]", popen)

    def _variables(self) -> Any:
        if platforms.IS_WINDOWS:
            return dict(self._env.items())
        return {os.fsencode(name): os.fsencode(value) for name, value in self._env.items()}

    def _start_error(self, error: OSError, path: str, cwd: str | None) -> SpawnError:
        number = error.errno or errno.EINVAL
        if cwd is not None and error.filename == cwd:
            return _directory_error(number, cwd)
        reason = os.strerror(number)
        message = f"cannot execute {path}: {reason}"
        call = f"execve({_shown(path)})"
        if number == errno.ENOENT and (interpreter := _interpreter(path)):
            message = f"{path}: bad interpreter: no such program: {interpreter}"
            return _error(number, "template", call, message, self.name)
        return _error(number, "exec", call, message, self.name)

    def _existing_directory(self, options: Options) -> str | None:
        """Returns the path of the working directory, which exists."""
        cwd = self._cwd
        if cwd is None:
            return None
        if isinstance(cwd, int):
            try:
                os.fstat(cwd)
            except OSError as error:
                message = f"descriptor {cwd} is not open"
                call = f"fchdir({cwd})"
                raise _error(error.errno or 0, "cwd", call, message) from None
            path = platforms.directory_path(cwd)
            if path is None:
                raise Unsupported("cwd as a descriptor", "this system has no path for a descriptor")
            return path
        try:
            if not os.path.isdir(cwd):
                # Raises the reason.
                os.stat(cwd)
                raise NotADirectoryError(errno.ENOTDIR, "")
        except OSError as error:
            raise _directory_error(error.errno or 0, cwd) from None
        return cwd

    def _find(self, cwd: str | None) -> str:
        """Returns the path of the program.

        Raises:
            SpawnError: There is no such program, or it may not be executed.
        """
        if platforms.IS_WINDOWS:
            return self._find_on_windows(cwd)
        if "/" in self.name:
            return self._check_path(_absolute(self.name, cwd, self.name))
        return self._search(cwd)

    def _find_on_windows(self, cwd: str | None) -> str:
        import shutil

        name = self.name
        if os.path.dirname(name):
            name = os.path.join(cwd or os.getcwd(), name)
        found = shutil.which(name, path=self._env.get("PATH"))
        if found is None:
            message = f"{self.name}: not found in PATH"
            call = f"search({_shown(self.name)})"
            raise _error(errno.ENOENT, "template", call, message, self.name)
        return found

    def _check_path(self, path: str) -> str:
        def failed(number: int, call: str, message: str) -> SpawnError:
            call = f"{call}({_shown(path)})"
            return _error(number, "template", call, message, self.name)

        try:
            mode = os.stat(path).st_mode
        except OSError as error:
            number = error.errno or errno.ENOENT
            message = {
                errno.ENOENT: f"no such program: {path}",
                errno.ENOTDIR: f"no such program: {path} (a parent is not a directory)",
                errno.EACCES: f"permission denied: {path}",
            }.get(number, f"cannot open {path}: {os.strerror(number)}")
            raise failed(number, "open", message) from None
        if os.path.isdir(path):
            raise failed(errno.EACCES, "execve", f"is a directory: {path}")
        if not os.access(path, os.X_OK):
            message = f"permission denied: {path} is not executable (mode {mode & 0o7777:04o})"
            raise failed(errno.EACCES, "execve", message)
        return path

    def _search(self, cwd: str | None) -> str:
        # The PATH of `env` if it has one, else that of this process.
        path: str = (
            self._env.get("PATH")
            if "PATH" in self._env
            else os.environ.get("PATH", "/bin:/usr/bin")
        )
        candidates: list[str] = []
        for part in path.split(":"):
            try:
                directory = part if part.startswith("/") else _absolute(part, cwd, self.name)
            except SpawnError:
                # The current directory has no path, so no relative path leads to a file.
                continue
            candidate = f"{directory}/{self.name}"
            if candidate not in candidates:
                candidates.append(candidate)
        call = f"search({_shown(self.name)}, PATH={_shown(path)})"
        for candidate in candidates:
            if os.path.isfile(candidate) and os.access(candidate, os.X_OK):
                return candidate
        for candidate in candidates:
            if os.path.exists(candidate) and not os.path.isdir(candidate):
                message = f"{self.name}: found in PATH, but permission denied: {candidate}"
                raise _error(errno.EACCES, "template", call, message, self.name)
        count = len(candidates)
        searched = f"searched {count} director{'y' if count == 1 else 'ies'}"
        if not count:
            searched = "the current directory has no path"
        message = f"{self.name}: not found in PATH ({searched})"
        raise _error(errno.ENOENT, "template", call, message, self.name)


def _interpreter(path: str) -> str | None:
    """Returns the interpreter that a script names in its first line."""
    try:
        with open(path, "rb") as script:
            line = script.readline(4096)
    except OSError:
        return None
    words = line.removeprefix(b"#!").split()
    return os.fsdecode(words[0]) if line.startswith(b"#!") and words else None


def _absolute(path: str, cwd: str | None, program: str) -> str:
    """Returns the absolute form of a path that starts at `cwd`, without its "." parts."""
    try:
        start = os.path.join(os.getcwd(), cwd or "")
    except OSError as error:
        if cwd is not None and os.path.isabs(cwd):
            start = cwd
        elif os.path.isabs(path):
            start = "/"
        else:
            message = f"{program}: the current directory has no path"
            call = "getcwd()"
            raise _error(error.errno or 0, "template", call, message, program) from None
    # normpath() would remove "..", which may lead elsewhere behind a symbolic link.
    parts = [part for part in os.path.join(start, path).split("/") if part not in ("", ".")]
    return "/" + "/".join(parts)


def _directory(cwd: Any) -> str | int | None:
    if cwd is None:
        return None
    if isinstance(cwd, int) and not isinstance(cwd, bool):
        return descriptor(cwd, "cwd")
    expected = "a path (str, bytes or os.PathLike) or a descriptor (int)"
    return os_string(cwd, "cwd", expected)


def _directory_error(number: int, cwd: str) -> SpawnError:
    message = {
        errno.ENOENT: f"no such working directory: {cwd}",
        errno.ENOTDIR: f"not a directory: {cwd}",
        errno.EACCES: f"permission denied: {cwd}",
    }.get(number, f"cannot change to the working directory {cwd}: {os.strerror(number)}")
    return _error(number, "cwd", f"chdir({_shown(cwd)})", message, cwd)


def _streams(options: Options, has_input: bool) -> dict[str, Any]:
    """Returns the arguments of Popen for the standard streams.

    Raises:
        SpawnError: A descriptor is not open.
    """
    import subprocess

    words = {
        "null": subprocess.DEVNULL,
        "stream": subprocess.PIPE,
        "capture": subprocess.PIPE,
        "separate": subprocess.PIPE,
        "merge": subprocess.STDOUT,
    }
    streams: dict[str, Any] = {}
    for name, given in options.streams().items():
        number = _DESCRIPTORS[name] if given == "inherit" else given
        if isinstance(number, str):
            streams[name] = words[number]
            continue
        try:
            os.fstat(number)
        except OSError as error:
            call = f"dup2({number}, {_DESCRIPTORS[name]})"
            message = f"descriptor {number} is not open"
            raise _error(error.errno or 0, name, call, message) from None
        streams[name] = number
    if has_input:
        streams["stdin"] = subprocess.PIPE
    return streams
