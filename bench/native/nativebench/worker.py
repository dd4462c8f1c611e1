# SPDX-License-Identifier: MIT OR Apache-2.0
"""The driver's side of a worker in Rust. bench/native/src/worker/protocol.rs has the messages."""

import json
import subprocess
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.definitions import UNFILTERED
from common.errors import BenchError
from common.pipe import EofWorker

DEFINITIONS_FILE = Path(__file__).resolve().parents[1] / "definitions.toml"
Definitions = Mapping[str, Any]


@dataclass(frozen=True)
class Key:
    """One series of samples, in the terms of definitions.toml."""

    suite: str
    method: str
    filter: str = UNFILTERED
    parent: str = "none"
    program: str = "static"
    search: bool = False


@dataclass(frozen=True)
class Ratio:
    """The definition of a ratio of two series."""

    id: str
    meaning: str
    over: Key
    under: Key
    statistic: str = "median"


def load() -> Definitions:
    """Reads definitions.toml. The ratios become a list of Ratio."""
    data = tomllib.loads(DEFINITIONS_FILE.read_text(encoding="utf-8"))
    data["ratio"] = [
        Ratio(**{**entry, "over": Key(**entry["over"]), "under": Key(**entry["under"])})
        for entry in data["ratio"]
    ]
    return data


def install(program: Path, folder: Path) -> None:
    """Writes the small programs that the methods start into a folder."""
    subprocess.run([str(program), "--install", str(folder)], check=True, timeout=60)


def program_path(definitions: Definitions, name: str, programs: Path) -> str:
    """Returns the path of a program. "@static" is the program without libc."""
    path: str = definitions["programs"][name]
    return str(programs / "first-instruction") if path == "@static" else path


class Native(EofWorker):
    """A parent process in the state that definitions.toml describes. It measures on request."""

    def __init__(
        self,
        definitions: Definitions,
        program: Path,
        programs: Path,
        parent: str,
        filter_name: str,
        methods: Sequence[str],
    ) -> None:
        state = next(entry for entry in definitions["parent"] if entry["name"] == parent)
        spec = {
            "parent": {key: value for key, value in state.items() if key != "search"},
            "filter": filter_name,
            "methods": methods,
            "programs": str(programs),
        }
        environment = definitions["environment"]
        path = ":".join([*environment["search_path"], str(programs)])
        super().__init__(
            f"worker {parent} under filter {filter_name}",
            [str(program), "--worker", json.dumps(spec)],
            {**environment["variables"], "PATH": path},
        )
        self.receive("Done")

    def receive(self, key: str) -> dict[str, Any]:
        """Reads the next reply. Raises BenchError if it reports a failure."""
        line = self.receive_line()
        reply = {line: None} if isinstance(line, str) else line
        if "Failed" in reply:
            raise BenchError(f"{self.what}: {reply['Failed']}")
        if key not in reply:
            raise BenchError(f"{self.what}: expected {key}, got {reply}")
        return reply

    def check_descriptors(self, only_stdio: Sequence[str]) -> None:
        """Checks that children get no other descriptors, with those methods from any parent."""
        self.send(CheckDescriptors={"promising": only_stdio})
        self.receive("Done")

    def samples(
        self, kind: str, program: str, turns: Sequence[Mapping[str, Any]], **more: Any
    ) -> tuple[dict[str, list[float]], float | None]:
        """Returns the us of each method, and the share of the CPUs that busy threads used."""
        self.send(**{kind: {"program": program, "turns": turns, **more}})
        block = self.receive("Samples")["Samples"]
        taken = {name: [ns / 1e3 for ns in samples] for name, samples in block["taken"].items()}
        return taken, block["busy_share"]

    def rate(self, program: str, method: str, threads: int, calls: int) -> float:
        """Returns the spawns per second of several threads."""
        terms = {"program": program, "method": method, "threads": threads, "calls": calls}
        self.send(Parallel=terms)
        return float(self.receive("Rate")["Rate"])
