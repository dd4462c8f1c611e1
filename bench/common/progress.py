# SPDX-License-Identifier: MIT OR Apache-2.0
"""Progress output: a bar on a terminal, plain lines otherwise."""

from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bar

REFRESH_PER_S = 2  # more refreshes would use CPU time of the measured cores


class Progress:
    """Counts calls over all cells of a run. The total of the calls may be unknown."""

    def __init__(self, console: Console, total_calls: int | None, total_cells: int) -> None:
        self._console = console
        self._cells = total_cells
        self._cell = 0
        self._title = ""
        self._bar: Bar | None = None
        if console.is_terminal:
            self._bar = Bar(
                TextColumn("{task.description:<26}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("calls"),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                console=console,
                transient=True,
                refresh_per_second=REFRESH_PER_S,
            )
            self._task = self._bar.add_task("starting workers", total=total_calls)

    def __enter__(self) -> "Progress":
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar:
            self._bar.stop()

    def begin(self, title: str) -> None:
        """Starts a cell."""
        self._cell += 1
        self._title = title
        if self._bar:
            self._bar.update(self._task, description=title)

    def advance(self, calls: int) -> None:
        """Counts calls."""
        if self._bar:
            self._bar.update(self._task, advance=calls)

    def end(self, summary: str) -> None:
        """Ends the cell."""
        if not self._bar:
            self._console.print(
                f"[{self._cell}/{self._cells}] {self._title}: {summary}",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )
