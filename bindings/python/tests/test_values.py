# SPDX-License-Identifier: MIT OR Apache-2.0
"""Limits and Spill behave like frozen dataclasses."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any

import pytest
import spawnfd as sf

VALUES: list[Any] = [sf.Limits(1 << 30, cpus=1.5), sf.Spill(100, persist=True)]


def test_repr_names_every_field() -> None:
    assert [repr(value) for value in VALUES] == [
        "Limits(memory=1073741824, pids=None, cpu_time=None, cpus=1.5, enforce='auto')",
        "Spill(max_bytes=100, dir=None, persist=True)",
    ]


def test_equal_values_have_equal_hashes() -> None:
    assert sf.Limits(pids=3) == sf.Limits(None, 3)
    assert hash(sf.Limits(pids=3)) == hash(sf.Limits(None, 3))
    assert len({sf.Limits(pids=3), sf.Limits(pids=4), sf.Spill(3), (None, 3)}) == 4
    assert sf.Spill(3) != (3, None, False)


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_value_is_immutable_and_copied_by_value(value: Any) -> None:
    name = value.__match_args__[0]
    with pytest.raises(AttributeError, match=f"cannot assign to field '{name}'"):
        setattr(value, name, 1)
    with pytest.raises(AttributeError, match=f"cannot delete field '{name}'"):
        delattr(value, name)
    with pytest.raises(AttributeError):
        value.no_such_field = 1
    assert pickle.loads(pickle.dumps(value)) == copy.deepcopy(value) == value
    changed, old = value.__replace__(**{name: 7}), getattr(value, name)
    assert getattr(changed, name) == 7
    assert changed.__replace__(**{name: old}) == value


def test_arguments_are_those_of_the_fields() -> None:
    for kind in (sf.Limits, sf.Spill):
        assert tuple(inspect.signature(kind).parameters) == kind.__match_args__
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'max_bytes'"):
        sf.Spill()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    match sf.Limits(1, 2):
        case sf.Limits(memory, pids, enforce="auto"):
            assert (memory, pids) == (1, 2)
        case _:
            pytest.fail("no match")
