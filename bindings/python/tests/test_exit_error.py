# SPDX-License-Identifier: MIT OR Apache-2.0
"""The message of ExitError, besides the cases of test_cases.py."""

from __future__ import annotations

import copy
import pickle

import pytest
import spawnfd as sf


def test_cancelled() -> None:
    with sf.start_sync(["sleep", "60"]) as job:
        result = job.stop(grace=1000)
    with pytest.raises(sf.ExitError, match=r"\] was cancelled and was killed by SIGTERM$"):
        result.check()


def test_a_long_command_is_shortened() -> None:
    result = sf.run(["false", "x" * 10_000])
    with pytest.raises(sf.ExitError) as caught:
        result.check()
    assert len(str(caught.value)) < 600
    assert str(caught.value).endswith("xxx...] exited with status 1")


def test_the_message_of_a_copy_is_the_same() -> None:
    results = [
        sf.run(["sleep", "60"], timeout=0.05),
        sf.run(["yes"], output_limit=5),
        sf.run(sf.sh("echo out; exit 1"), stderr="merge"),
    ]
    for result in results:
        with pytest.raises(sf.ExitError) as caught:
            result.check()
        for again in (copy.copy(caught.value), pickle.loads(pickle.dumps(caught.value))):
            assert str(again) == str(caught.value)
