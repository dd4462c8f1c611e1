# SPDX-License-Identifier: MIT OR Apache-2.0
"""Chromium without a window, by the DevTools protocol over two pipes."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import spawnfd as sf
from spawnfd.actions import Descriptor

# scripts/setup.sh has the same names.
NAMES = ["chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"]


def find() -> str | None:
    """Returns the path of a Chromium, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Page:
    """A page. Its methods fail with an AssertionError if the browser reports an error."""

    def __init__(self, commands: BinaryIO, answers: BinaryIO) -> None:
        self._commands, self._answers, self._last = commands, answers, 0
        self._session: dict[str, str] = {}

    def call(self, method: str, **params: object) -> Any:
        """Calls a method of the protocol, and returns its result."""
        self._last += 1
        command = {"id": self._last, "method": method, "params": params, **self._session}
        self._commands.write(json.dumps(command).encode() + b"\0")
        self._commands.flush()
        while True:
            message = b""
            while not message.endswith(b"\0"):
                byte = self._answers.read(1)
                assert byte, "the browser has ended"
                message += byte
            answer = json.loads(message[:-1])
            if answer.get("id") == self._last:
                assert "error" not in answer, answer["error"]
                return answer["result"]

    def open(self, url: str) -> None:
        self.target = self.call("Target.createTarget", url=url)["targetId"]
        attached = self.call("Target.attachToTarget", targetId=self.target, flatten=True)
        self._session = {"sessionId": attached["sessionId"]}

    def evaluate(self, expression: str) -> Any:
        """Evaluates JavaScript in the page. The value of an exception is None."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        return None if "exceptionDetails" in result else result["result"].get("value")

    def until(self, expression: str, timeout: float = 60) -> Any:
        """Waits until a JavaScript expression is true, and returns its value."""
        deadline = time.monotonic() + timeout
        while not (value := self.evaluate(expression)):
            assert time.monotonic() < deadline, f"not within {timeout} s: {expression}"
            time.sleep(0.02)
        return value

    def type(self, line: str) -> None:
        """Types a line into the focused element, with Enter."""
        self.call("Input.insertText", text=line)
        for kind in ["keyDown", "keyUp"]:
            key = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"}
            self.call("Input.dispatchKeyEvent", type=kind, **key)

    def resize(self, width: int, height: int) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)

    def close(self) -> None:
        self._session = {}
        self.call("Target.closeTarget", targetId=self.target)


@contextmanager
def page(url: str, profile: Path) -> Generator[Page]:
    """Opens a page in a new browser with an empty profile."""
    program = find()
    assert program is not None
    (commands_end, commands), (answers, answers_end) = os.pipe(), os.pipe()
    # Root has no sandbox of Chromium's; the page comes from the test itself.
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
    ]
    browser = sf.start_sync(
        [program, *flags, f"--user-data-dir={profile}", "--remote-debugging-pipe"],
        actions=[Descriptor(commands_end, 3), Descriptor(answers_end, 4)],
        keep=(0, 4000),
    )
    os.close(commands_end)
    os.close(answers_end)
    with browser, os.fdopen(commands, "wb") as writer, os.fdopen(answers, "rb") as reader:
        new = Page(writer, reader)
        new.open(url)
        yield new
