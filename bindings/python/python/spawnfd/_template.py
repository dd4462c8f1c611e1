# SPDX-License-Identifier: MIT OR Apache-2.0
"""Templates held by the caller."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from spawnfd import _spawnfd
from spawnfd._child import Child
from spawnfd._job import SyncJob
from spawnfd._loop import complete
from spawnfd._options import ParkOptions, RunOptions, SpawnOptions, StartOptions
from spawnfd._spawnfd import Result
from spawnfd._start import Starting
from spawnfd._types import Arg, Args, Fd, NotPickled
from spawnfd._warm import Warm, as_warm

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from spawnfd._warm import _Mode


class Template(NotPickled):
    """One executable, pinned: what is started from it is that file, unchanged, or StaleTemplate.

    It records the file's identity, size, mode, owner, times, and its creator's credentials; every
    spawn compares them again, right before exec. It keeps nobody from changing the file. It holds
    one descriptor, two for a script, until it is collected.

    For a script (`#!`) the interpreter is pinned too. It still opens the script by its path, after
    the check: there the promise is weaker.

    It does not change, so copy.copy() gives the same one. It cannot be pickled: a template is not
    authority that could be handed over. Pass the path, and make one where it is used.
    """

    __slots__ = ("_core", "_warm")
    _core: _spawnfd.Template
    _warm: Warm | None
    _instead = (
        "it is not authority that can be handed over; pass its path, and make one where it is used"
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
        """Records a program: an absolute path, or a name that is searched once.

        Args:
            program: "/usr/bin/rg", or "rg". A template made from a name is stale as soon as an
                earlier directory of the search has that name, too.
            path: The directories to search, as in PATH; this process's PATH if None.
            warm: A Warm to start it from, to which it is added unless it is already; "reserve" or
                "fork": one of its own, which ends with it; the same with a dict of what Warm.add()
                takes by keyword: {"depth": 4, "preimport": ["json"]}.

        Raises:
            SpawnError: There is no such program (then it is a FileNotFoundError), it may not be
                executed (PermissionError), or is given by a relative path (ValueError).
            TypeError, ValueError: An argument cannot be what it is; the message names it.
        """
        self._core = _spawnfd.Template(program, path)
        if isinstance(warm, dict):
            self._warm = Warm()
            self._warm.add(self, **warm)
        else:
            self._warm = None if warm is None else as_warm(warm)
        if self._warm is not None:
            self._core = self._warm._core.template(self._core)

    @classmethod
    def _of(cls, core: _spawnfd.Template, warm: Warm | None = None) -> Template:
        template = object.__new__(cls)
        template._core = core
        template._warm = warm
        return template

    @classmethod
    def from_fd(cls, fd: Fd) -> Template:
        """Records the executable behind an open descriptor (O_PATH is enough); keeps a duplicate.

        It has no name: argv[0] is empty, unless `arg0` of the call says what it is.

        Raises:
            SpawnError: EACCES: it may not be executed. EINVAL: a script. EBADF: not open.
        """
        return cls._of(_spawnfd.Template.from_fd(fd))

    def by_descriptor(self) -> Template:
        """The same template, executed strictly by descriptor.

        This closes the window of one system call between check and exec. AT_EXECFN is then
        /dev/fd/N, and before Linux 6.14 the task's name a number. It is never started warm.

        Raises:
            SpawnError: EINVAL: a script, which its interpreter could not open.
        """
        return self._of(self._core.by_descriptor())

    def revalidate(self) -> None:
        """Compares executable and credentials with what was recorded, as each spawn does.

        Raises:
            StaleTemplate: Another file, or a changed one.
            SpawnError: EACCES: the credentials are not the creator's.
        """
        self._core.revalidate()

    @property
    def path(self) -> str | None:
        """The absolute path; None for a template made from a descriptor."""
        return self._core.path

    @property
    def name(self) -> str:
        """The name it was made with, which is argv[0] by default."""
        return self._core.name

    @property
    def warm(self) -> Warm | None:
        """What it is started from."""
        return self._warm

    @property
    def interpreters(self) -> list[str]:
        """The interpreters of a script, outermost last; empty for a binary."""
        return self._core.interpreters

    def __repr__(self) -> str:
        where = "" if self.path in (None, self.name) else f", found as {self.path!r}"
        return f"<spawnfd.Template({self.name!r}{where})>"

    def run(self, args: Args = (), **options: Unpack[RunOptions]) -> Result:
        """Runs the program to its end; `args` without argv[0], all else as spawnfd.run().

        Raises:
            StaleTemplate: The executable is not the recorded one any more.
        """
        return _spawnfd.run(self._core, args, options)

    async def run_async(self, args: Args = (), **options: Unpack[RunOptions]) -> Result:
        """The awaitable run()."""
        return await complete(self._core, args, options)

    run_async.__doc__ = run.__doc__

    def start(self, args: Args = (), **options: Unpack[StartOptions]) -> Starting:
        """Starts the program as a job; `args` without argv[0], all else as spawnfd.start().

        Raises:
            StaleTemplate: The executable is not the recorded one any more.
        """
        return Starting(self._core, args, options)

    def start_sync(self, args: Args = (), **options: Unpack[StartOptions]) -> SyncJob:
        """The blocking start()."""
        return SyncJob._start(self._core, args, options)

    start_sync.__doc__ = start.__doc__

    def spawn(self, args: Args = (), **options: Unpack[SpawnOptions]) -> Child:
        """Starts the program; `args` without argv[0], all else as spawnfd.spawn().

        Raises:
            StaleTemplate: The executable is not the recorded one any more.
        """
        return Child._spawn(self._core, args, options)


class CacheStats(NamedTuple):
    """What a TemplateCache has done so far.

    Attributes:
        hits: Templates found and used.
        misses: Made, as they were not there.
        renewed: Made again, as they had become stale.
        evicted: Dropped for room, or as the file had been removed.
        entries: Held now.
    """

    hits: int
    misses: int
    renewed: int
    evicted: int
    entries: int


class TemplateCache(NotPickled):
    """Templates made on demand and made anew when stale; the least recently used leaves first.

    What is started through a cache never fails as stale: a changed executable costs one
    re-creation. spawnfd.run() and the like use the process-wide one, TemplateCache.shared().

    A template holds its files open. So a file system with one of them stays busy until the template
    leaves, or clear() is called. What has been removed takes up its room until the cache is next
    asked for what it does not have.
    """

    __slots__ = ("_core", "_warm")
    _core: _spawnfd.TemplateCache
    _warm: Warm | None

    def __init__(self, capacity: int = 64, *, warm: Warm | _Mode | None = None) -> None:
        """Makes an empty cache.

        Args:
            capacity: For how many templates, at least one; at most an eighth of RLIMIT_NOFILE.
            warm: A Warm in which its programs are kept from their first start on, also when they
                have been made anew: an upgrade costs one cold start. "reserve" or "fork": one of
                its own, which ends with it. At most `capacity` programs are kept so, beside those
                that were added to the Warm.

        Raises:
            TypeError, ValueError: An argument cannot be what it is; the message names it.
        """
        self._warm = None if warm is None else as_warm(warm)
        make = _spawnfd.TemplateCache if self._warm is None else self._warm._core.cache
        self._core = make(capacity)

    @classmethod
    def shared(cls) -> TemplateCache:
        """The process-wide cache."""
        cache = object.__new__(cls)
        cache._core = _spawnfd.TemplateCache.shared()
        cache._warm = None
        return cache

    def get(self, program: Arg, *, path: str | bytes | None = None) -> Template:
        """The template of a program, as Template(program, path=path) would make it.

        Raises:
            SpawnError: As Template. Failures are not cached.
        """
        return Template._of(self._core.get(program, path), self._warm)

    @property
    def warm(self) -> Warm | None:
        """Where its programs are kept warm."""
        return self._warm

    def clear(self) -> None:
        """Drops all templates, with their descriptors; programs under way are not affected."""
        self._core.clear()

    def stats(self) -> CacheStats:
        """The counters, and how many templates are held."""
        return CacheStats(*self._core.stats())

    def __repr__(self) -> str:
        return f"<spawnfd.TemplateCache {self.stats()}>"

    def run(self, argv: Args, **options: Unpack[RunOptions]) -> Result:
        """As spawnfd.run(), by a template of this cache."""
        return _spawnfd.run(self._core, argv, options)

    async def run_async(self, argv: Args, **options: Unpack[RunOptions]) -> Result:
        """The awaitable run()."""
        return await complete(self._core, argv, options)

    run_async.__doc__ = run.__doc__

    def start(self, argv: Args, **options: Unpack[StartOptions]) -> Starting:
        """As spawnfd.start(), by a template of this cache."""
        return Starting(self._core, argv, options)

    def start_sync(self, argv: Args, **options: Unpack[StartOptions]) -> SyncJob:
        """The blocking start()."""
        return SyncJob._start(self._core, argv, options)

    start_sync.__doc__ = start.__doc__

    def spawn(self, argv: Args, **options: Unpack[SpawnOptions]) -> Child:
        """As spawnfd.spawn(), by a template of this cache."""
        return Child._spawn(self._core, argv, options)
