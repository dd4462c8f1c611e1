# SPDX-License-Identifier: MIT OR Apache-2.0
"""Templates, and the cache of templates."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from spawnfd import _spawnfd
from spawnfd._methods import StartMethods, TemplateMethods
from spawnfd._options import ParkOptions
from spawnfd._types import Arg, Fd
from spawnfd._warm import Warm, as_warm

if TYPE_CHECKING:
    from spawnfd._warm import _Mode


class Template(TemplateMethods):
    """A pinned executable: spawns start exactly the recorded file, or raise StaleTemplate.

    A template records the file's identity, size, mode, owner and times, and its creator's
    credentials. Every spawn compares them again right before exec. A template does not prevent
    changes of the file. It keeps one descriptor open, two for a script, until it is collected.

    For a script (`#!`) the template pins the interpreter, too. The interpreter opens the script by
    its path after the check, so the guarantee is weaker for scripts.

    A template is immutable, so copy.copy() returns the same object. It cannot be pickled, as it
    does not convey the right to execute the file. Pass the path, and create a template where it is
    used.
    """

    __slots__ = ("_core", "_warm")
    _core: _spawnfd.Template
    _warm: Warm | None
    _reason = (
        "it does not convey the right to execute the file; "
        "pass the path, and create a template where it is used"
    )

    def __copy__(self) -> Template:  # type: ignore[override]
        return self

    def __deepcopy__(self, memo: object) -> Template:  # type: ignore[override]
        return self

    def __init__(
        self,
        program: Arg,
        *,
        path: str | bytes | None = None,
        warm: Warm | _Mode | ParkOptions | None = None,
    ) -> None:
        """Records a program, given by an absolute path or by a name that is searched once.

        Args:
            program: "/usr/bin/rg", or "rg". A template created from a name becomes stale if an
                earlier directory of the search gets a program of that name.
            path: The directories to search, in the format of PATH; this process's PATH if None.
                Relative and empty parts start at this process's current directory.
            warm: A Warm whose parked processes start the program; the template adds itself to the
                Warm if necessary. "reserve", "fork" or "auto": a Warm of its own in that mode,
                which ends with the template. A dict of Warm.add()'s keyword arguments, such as
                {"depth": 4, "preimport": ["json"]}: a Warm of its own with these settings.

        Raises:
            SpawnError: FileNotFoundError: the program does not exist. PermissionError: it may not
                be executed. ValueError: it is a relative path.
            TypeError, ValueError: An argument is invalid; the message names it.
        """
        self._core = _spawnfd.Template(program, path)
        if isinstance(warm, dict):
            self._warm = Warm()
            self._warm.add(self, **warm)
        else:
            self._warm = None if warm is None else as_warm(warm)
        if self._warm is not None:
            # The options of a dict say which processes to park.
            adds = not isinstance(warm, dict)
            self._core = self._warm._core.template(self._core, adds)

    @classmethod
    def _of(cls, core: _spawnfd.Template, warm: Warm | None = None) -> Template:
        template = object.__new__(cls)
        template._core = core
        template._warm = warm
        return template

    @classmethod
    def from_fd(cls, fd: Fd) -> Template:
        """Records the executable of an open descriptor (O_PATH is enough); keeps a duplicate.

        The template has no name: argv[0] is empty unless the call passes `arg0`.

        Raises:
            SpawnError: EACCES: the file may not be executed. EINVAL: it is a script. EBADF: the
                descriptor is not open.
            TypeError, ValueError: `fd` is not a descriptor.
        """
        return cls._of(_spawnfd.Template.from_fd(fd))

    def by_descriptor(self) -> Template:
        """Returns a template of the same file that executes strictly by descriptor.

        Other templates execute by path, and another file can replace the path between the last
        check and exec, a window of one system call. This template has no such window. In the
        program AT_EXECFN is /dev/fd/N, and before Linux 6.14 the process's name (comm) is a number.
        Starts from this template are never warm.

        Raises:
            SpawnError: EINVAL: it is a script, which its interpreter could not open.
        """
        return self._of(self._core.by_descriptor())

    def revalidate(self) -> None:
        """Compares the executable and the credentials with the recorded ones, as each spawn does.

        Raises:
            StaleTemplate: The file was replaced or has changed.
            SpawnError: EACCES: the credentials differ from the creator's.
        """
        self._core.revalidate()

    @property
    def path(self) -> str | None:
        """The absolute path; None for a template created from a descriptor."""
        return self._core.path

    @property
    def name(self) -> str:
        """The name that the template was created with, which is the default argv[0]."""
        return self._core.name

    @property
    def warm(self) -> Warm | None:
        """The Warm whose parked processes start the program, or None."""
        return self._warm

    @property
    def interpreters(self) -> list[str]:
        """The interpreters of a script, outermost last; empty for a binary."""
        return self._core.interpreters

    def __repr__(self) -> str:
        where = "" if self.path in (None, self.name) else f", found as {self.path!r}"
        return f"<spawnfd.Template({self.name!r}{where})>"


class CacheStats(NamedTuple):
    """Counters of a TemplateCache.

    Attributes:
        hits: Templates found in the cache and used.
        misses: Templates created because the cache did not have them.
        renewed: Templates created again because they had become stale.
        evicted: Templates dropped because the cache was full or the file had been removed.
        entries: Templates in the cache now.
    """

    hits: int
    misses: int
    renewed: int
    evicted: int
    entries: int


class TemplateCache(StartMethods):
    """A cache that creates templates on demand and renews stale ones.

    The least recently used template is evicted first. A start through a cache does not fail as
    stale: if the executable has changed, the cache creates its template again. spawnfd.run() and
    the like use the process-wide cache, TemplateCache.shared().

    A template keeps its files open, so their file system stays busy until the template is evicted
    or clear() is called. The template of a removed file stays until the next miss of the cache.
    """

    __slots__ = ("_core", "_warm")
    _core: _spawnfd.TemplateCache
    _warm: Warm | None

    def __init__(self, capacity: int = 64, *, warm: Warm | _Mode | None = None) -> None:
        """Creates an empty cache.

        Args:
            capacity: The number of templates, at least one; at most an eighth of RLIMIT_NOFILE.
            warm: A Warm that keeps the cache's programs warm from their first start on, also after
                a template was renewed: an upgrade of a program costs one cold start. "reserve",
                "fork" or "auto": a Warm of its own in that mode, which ends with the cache. At most
                `capacity` programs are kept this way, in addition to those added to the Warm.

        Raises:
            TypeError, ValueError: An argument is invalid; the message names it.
        """
        self._warm = None if warm is None else as_warm(warm)
        make = _spawnfd.TemplateCache if self._warm is None else self._warm._core.cache
        self._core = make(capacity)

    @classmethod
    def shared(cls) -> TemplateCache:
        """Returns the process-wide cache."""
        cache = object.__new__(cls)
        cache._core = _spawnfd.TemplateCache.shared()
        cache._warm = None
        return cache

    def get(self, program: Arg, *, path: str | bytes | None = None) -> Template:
        """Returns the template of a program, equal to Template(program, path=path).

        Raises:
            SpawnError: In the same cases as Template(). Failures are not cached.
        """
        return Template._of(self._core.get(program, path), self._warm)

    @property
    def warm(self) -> Warm | None:
        """The Warm that keeps the cache's programs warm, or None."""
        return self._warm

    def clear(self) -> None:
        """Drops all templates and closes their descriptors; running programs are not affected."""
        self._core.clear()

    def stats(self) -> CacheStats:
        """Returns the counters and the number of templates in the cache."""
        return CacheStats(*self._core.stats())

    def __repr__(self) -> str:
        return f"<spawnfd.TemplateCache {self.stats()}>"
