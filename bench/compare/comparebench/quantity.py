# SPDX-License-Identifier: MIT OR Apache-2.0
"""The quantities that a suite can measure, and the form in which a suite offers them."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, Protocol

from common.errors import BenchError

Better = Literal["less", "more"]
# Measures a block of so many calls and returns its figure.
Measure = Callable[[int], float]


class Missing(BenchError):
    """This machine, or this build, cannot measure a quantity."""


@dataclass(frozen=True)
class Offer:
    """One id, and the quantity that stands behind it.

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
    """Measures quantities with the build that this code belongs to."""

    def offers(self) -> Sequence[Offer]:
        """All ids of the suite that have a time or a rate of ours."""
        ...

    def open(self, quantity: str) -> AbstractContextManager[Measure]:
        """Starts a fresh worker process for a quantity; raises Missing if that is impossible."""
        ...
