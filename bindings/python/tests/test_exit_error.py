# SPDX-License-Identifier: MIT OR Apache-2.0
"""The message of ExitError: the command, how it ended, and the end of its standard error."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import spawnfd as sf


def message(script: str, **options: Any) -> str:
    """Runs a shell script that fails; returns the message after the command."""
    line = sf.sh(script)
    result = sf.run(line, **options)
    with pytest.raises(sf.ExitError) as caught:
        result.check()
    assert caught.value.result is result
    text = str(caught.value)
    assert text.startswith(f"{line} ")
    return text.removeprefix(f"{line} ")


def test_exit_status() -> None:
    assert message("exit 2") == "exited with status 2"


def test_one_line_of_stderr() -> None:
    assert message("echo out; echo why >&2; exit 3") == "exited with status 3; stderr: why"


def test_lines_of_stderr() -> None:
    assert message("printf 'a\\n\\nb\\n\\n' >&2; exit 1") == "exited with status 1; stderr:\na\n\nb"


def test_ten_lines_at_most() -> None:
    ten = "\n".join(str(number) for number in range(1, 11))
    assert message("seq 10 >&2; exit 1") == f"exited with status 1; stderr:\n{ten}"
    last = "\n".join(str(number) for number in range(21, 31))
    assert message("seq 30 >&2; exit 1") == f"exited with status 1; last lines of stderr:\n{last}"


def test_two_kibibytes_at_most() -> None:
    wide = "for i in 1 2 3 4; do printf '%0600d\\n' $i; done >&2; exit 1"
    lines = [f"{number:0600d}" for number in (2, 3, 4)]
    assert message(wide).split(":\n")[1].split("\n") == lines
    # The script prints one long line. The limit cuts it within a character of two bytes.
    long = (
        "i=0; while [ $i -lt 1500 ]; do printf '\\303\\251'; i=$((i + 1)); done >&2; printf x >&2"
    )
    accented = "\u00e9" * 1023
    expected = f"exited with status 1; last lines of stderr: ...{accented}x"
    assert message(f"{long}; exit 1") == expected


def test_omitted_output_is_not_called_complete() -> None:
    text = message("seq 100 >&2; exit 1", keep=(0, 4))
    assert text == "exited with status 1; last lines of stderr: 100"
    text = message("seq 100 >&2; exit 1", keep=(4, 0), marker=None)
    assert text == "exited with status 1; last lines of stderr:\n1\n2"
    assert message("echo 1 >&2; exit 1", keep=(0, 0)) == "exited with status 1"


def test_the_marker_is_not_a_line_of_the_program() -> None:
    def lines(keep: tuple[int, int], **options: Any) -> str:
        text = message("seq 100 >&2; exit 1", keep=keep, **options)
        return text.removeprefix("exited with status 1; last lines of stderr:\n").replace("\n", "|")

    assert lines((4, 34)) == "91|92|93|94|95|96|97|98|99|100"
    assert lines((4, 10)) == "1|2|[… 278 bytes omitted …]|98|99|100"
    assert lines((4, 10), marker="-- cut --") == "1|2|-- cut --|98|99|100"
    assert lines((4, 10), marker=None) == "1|2|98|99|100"
    assert lines((4, 0)) == "1|2|[… 288 bytes omitted …]"
    text = message("seq 100; exit 1", keep=(4, 10), stderr="merge")
    assert text.endswith("; last lines of output:\n1\n2\n[… 278 bytes omitted …]\n98\n99\n100")
    # The omission splits characters.
    assert message("printf aééz >&2; exit 1", keep=(2, 2)).endswith(
        ":\na\n[… 2 bytes omitted …]\nz"
    )


def test_invalid_bytes_are_replaced() -> None:
    text = message("printf 'a\\377b\\n' >&2; exit 1")
    assert text == "exited with status 1; stderr: a\ufffdb"


def test_a_progress_bar_shows_its_last_state() -> None:
    text = message("printf '10%%\\r90%%\\r\\nfailed\\r\\n' >&2; exit 1")
    assert text == "exited with status 1; stderr:\n90%\nfailed"


def test_merged_output() -> None:
    both = "echo out; echo why >&2; exit 1"
    assert message(both, stderr="merge") == "exited with status 1; output:\nout\nwhy"
    assert message(both, terminal=(24, 80)) == "exited with status 1; output:\nout\nwhy"
    assert message(both, stderr="null") == "exited with status 1"


def test_signal() -> None:
    assert message("kill -SEGV $$") == "was killed by SIGSEGV"
    assert message("kill -40 $$") == "was killed by signal 40"


def test_timeout() -> None:
    assert message("sleep 60", timeout=0.2) == "timed out after 0.2 s and was killed by SIGTERM"
    polite = "trap 'exit 0' TERM; : ready; while :; do sleep 0.01; done 2>/dev/null"
    text = message(polite, timeout=1)
    assert text.startswith("timed out after 1 s and exited with status 0")


def test_output_limit() -> None:
    text = message("yes", output_limit=1000)
    assert text == "exceeded its output limit of 1000 bytes and was killed by SIGTERM"


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
