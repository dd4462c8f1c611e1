# SPDX-License-Identifier: MIT OR Apache-2.0
"""The types by which a suite offers quantities and measures them."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, Protocol

from common.errors import BenchError

Better = Literal["less", "more"]
# Measures a block of this many calls, and returns its figure.
Measure = Callable[[int], float]


class Missing(BenchError):
    """This machine, or this build, cannot measure a quantity."""


@dataclass(frozen=True)
class Offer:
    """One id, and the quantity that it measures.

    Attributes:
        quantity: Ids with equal quantities are measured together.
        calls: The calls of one block.
    """

    id: str
    quantity: str
    unit: str
    better: Better
    calls: int


class Suite(Protocol):
    """Measures quantities of this code's own build."""

    def offers(self) -> Sequence[Offer]:
        """All ids of the suite that include a time or rate of ours."""
        ...

    def open(self, quantity: str) -> AbstractContextManager[Measure]:
        """Starts a new worker process for a quantity. Raises Missing if that is impossible."""
        ...
