# SPDX-License-Identifier: MIT OR Apache-2.0
"""run(), start() and spawn() as methods."""

from __future__ import annotations

from typing import Any

from spawnfd import _signatures, _spawnfd
from spawnfd._child import Child
from spawnfd._job import Job, SyncJob
from spawnfd._loop import complete
from spawnfd._options import method_like
from spawnfd._spawnfd import Result
from spawnfd._start import Starting
from spawnfd._types import Args, NotPickled


class StartMethods(NotPickled):
    """The functions that start a program, as methods of a TemplateCache or a Warm."""

    __slots__ = ()
    # The native object.
    _core: Any

    @method_like(_signatures.run)
    def run(self, argv: Args, **options: Any) -> Result:
        """Runs a program like spawnfd.run(), through this cache or Warm."""
        return _spawnfd.run(self._core, argv, options)

    @method_like(_signatures.run)
    async def run_async(self, argv: Args, **options: Any) -> Result:
        """The awaitable form of run(); it does nothing until it is awaited."""
        return await complete(self._core, argv, options)

    @method_like(_signatures.start)
    def start(self, argv: Args, **options: Any) -> Starting:
        """Starts a job through this cache or Warm: start() when awaited, start_sync() at once."""
        return Starting(Job._start(self._core, argv, options))

    @method_like(_signatures.start)
    def start_sync(self, argv: Args, **options: Any) -> SyncJob:
        """The blocking form of start()."""
        return SyncJob._start(self._core, argv, options)

    @method_like(_signatures.spawn)
    def spawn(self, argv: Args, **options: Any) -> Child:
        """Starts a program like spawnfd.spawn(), through this cache or Warm."""
        return Child._spawn(self._core, argv, options)


class TemplateMethods(NotPickled):
    """The functions that start a program, as methods of its Template."""

    __slots__ = ()
    # The native object.
    _core: Any

    @method_like(_signatures.template_run)
    def run(self, args: Args = (), **options: Any) -> Result:
        """Runs the program to its end, like spawnfd.run(); `args` does not include argv[0].

        Raises:
            StaleTemplate: The executable differs from the recorded one.
            SpawnError, TypeError, ValueError: In the same cases as spawnfd.run().
        """
        return _spawnfd.run(self._core, args, options)

    @method_like(_signatures.template_run)
    async def run_async(self, args: Args = (), **options: Any) -> Result:
        """The awaitable form of run(); it does nothing until it is awaited."""
        return await complete(self._core, args, options)

    @method_like(_signatures.template_start)
    def start(self, args: Args = (), **options: Any) -> Starting:
        """Starts the program as a job: start() when awaited, start_sync() at once.

        `args` does not include argv[0]. See spawnfd.start().

        Raises:
            StaleTemplate: The executable differs from the recorded one.
            SpawnError, TypeError, ValueError: In the same cases as spawnfd.start().
        """
        return Starting(Job._start(self._core, args, options))

    @method_like(_signatures.template_start)
    def start_sync(self, args: Args = (), **options: Any) -> SyncJob:
        """The blocking form of start()."""
        return SyncJob._start(self._core, args, options)

    @method_like(_signatures.template_spawn)
    def spawn(self, args: Args = (), **options: Any) -> Child:
        """Starts the program, like spawnfd.spawn(); `args` does not include argv[0].

        Raises:
            StaleTemplate: The executable differs from the recorded one.
            SpawnError, TypeError, ValueError: In the same cases as spawnfd.spawn().
        """
        return Child._spawn(self._core, args, options)


for _class in (StartMethods, TemplateMethods):
    _class.run_async.__doc__ = _class.run.__doc__
    _class.start_sync.__doc__ = _class.start.__doc__
