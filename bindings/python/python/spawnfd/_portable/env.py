# SPDX-License-Identifier: MIT OR Apache-2.0
"""Env: the environment of a program."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from spawnfd._portable.arguments import os_string, os_strings, variable, variables, wrong_type

# None removes a variable.
_NONINTERACTIVE: dict[str, str | None] = {
    **dict.fromkeys(("PAGER", "GIT_PAGER", "MANPAGER", "SYSTEMD_PAGER"), "cat"),
    "GIT_TERMINAL_PROMPT": "0",
    **dict.fromkeys(("GIT_EDITOR", "EDITOR", "VISUAL"), "true"),
    "DEBIAN_FRONTEND": "noninteractive",
    "PIP_NO_INPUT": "1",
    "npm_config_yes": "true",
    "NO_COLOR": "1",
    "CLICOLOR": "0",
    "TERM": "dumb",
    "CI": "1",
    "FORCE_COLOR": None,
    "CLICOLOR_FORCE": None,
}


def _matcher(patterns: Iterable[str]) -> re.Pattern[str]:
    """Returns a regular expression for names that match one of `patterns`."""
    any_of = "|".join(
        # Several "*" match the same as one, which avoids a slow search.
        re.escape(re.sub(r"\*+", "*", pattern)).replace(r"\*", ".*").replace(r"\?", ".")
        for pattern in patterns
    )
    flags = re.DOTALL | (re.IGNORECASE if sys.platform == "win32" else 0)
    return re.compile(f"(?:{any_of})" if any_of else "(?!)", flags)


def _name(name: str) -> str:
    # Windows does not distinguish upper and lower case in names.
    return name.upper() if sys.platform == "win32" else name


class Env:
    """An immutable environment for spawns: inherited, removed and set variables.

    Every method returns a new Env and leaves the original unchanged.
    """

    __slots__ = ("_variables",)
    __module__ = "spawnfd"
    __hash__ = None  # type: ignore[assignment]
    _variables: dict[str, str]

    def __init__(self, *_args: object, **_options: object) -> None:
        raise TypeError(
            "an Env cannot be created directly; use Env.inherit(), Env.only() or Env.empty()"
        )

    @staticmethod
    def _of(variables: Mapping[str, str]) -> Env:
        env = object.__new__(Env)
        by_name = {_name(name): value for name, value in variables.items()}
        env._variables = dict(sorted(by_name.items(), key=lambda item: os.fsencode(item[0])))
        return env

    @staticmethod
    def inherit(*, deny: Any = None) -> Env:
        """Returns this process's environment without the variables that match `deny`."""
        patterns = [] if deny is None else os_strings(deny, "deny")
        return Env._of(os.environ)._without(patterns)

    @staticmethod
    def only(patterns: Any) -> Env:
        """Returns only those variables of this process that match one of `patterns`."""
        matches = _matcher(os_strings(patterns, "patterns")).fullmatch
        return Env._of({name: value for name, value in os.environ.items() if matches(name)})

    @staticmethod
    def empty() -> Env:
        """Returns an environment without variables."""
        return Env._of({})

    def set(self, name: Any, value: Any) -> Env:
        """Returns a copy with one variable set."""
        name, value = variable(name, value, "env")
        return Env._of({**self._variables, _name(name): value})

    def update(self, variables_: Any, /) -> Env:
        """Returns a copy with all variables of a mapping set."""
        if not isinstance(variables_, Mapping):
            raise wrong_type("variables", "a mapping of str", variables_)
        as_mapping: Mapping[Any, Any] = cast(Any, variables_)
        given = variables(as_mapping, "variables")
        return Env._of({**self._variables, **Env._of(given)._variables})

    def unset(self, *names: Any) -> Env:
        """Returns a copy without these variables. Absent names are ignored."""
        gone = set(map(_name, os_strings(names, "names")))
        kept = {name: value for name, value in self._variables.items() if name not in gone}
        return Env._of(kept)

    def deny(self, patterns: Any) -> Env:
        """Returns a copy without the variables that match one of `patterns`."""
        return self._without(os_strings(patterns, "patterns"))

    def _without(self, patterns: list[str]) -> Env:
        matches = _matcher(patterns).fullmatch
        kept = {name: value for name, value in self._variables.items() if not matches(name)}
        return Env._of(kept)

    def noninteractive(self) -> Env:
        """Returns a copy in which common tools do not prompt, page or colour their output."""
        changed: dict[str, str | None] = {**self._variables, **_NONINTERACTIVE}
        return Env._of({name: value for name, value in changed.items() if value is not None})

    def get(self, name: Any, default: Any = None) -> Any:
        """Returns the value of a variable, or `default` if it is not set."""
        return self._variables.get(_name(os_string(name, "name")), default)

    def keys(self) -> list[str]:
        """Returns the sorted names."""
        return list(self._variables)

    def values(self) -> list[str]:
        """Returns the values, in the order of the names."""
        return list(self._variables.values())

    def items(self) -> list[tuple[str, str]]:
        """Returns pairs of name and value, in the order of the names."""
        return list(self._variables.items())

    def __getitem__(self, name: Any) -> str:
        try:
            return self._variables[_name(os_string(name, "name"))]
        except KeyError:
            raise KeyError(name) from None

    def __contains__(self, name: object) -> bool:
        try:
            return _name(os_string(name, "name")) in self._variables
        except (TypeError, ValueError):
            return False

    def __len__(self) -> int:
        return len(self._variables)

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._variables))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Env) and self._variables == other._variables

    def __reduce__(self) -> tuple[Any, ...]:
        pairs = [(os.fsencode(name), os.fsencode(value)) for name, value in self.items()]
        return restore_env, (pairs,)

    def __repr__(self) -> str:
        return f"<spawnfd.Env of {len(self)} variables: {' '.join(self._variables)}>"


cast(Any, Mapping).register(Env)


def restore_env(pairs: list[tuple[bytes, bytes]]) -> Env:
    """Recreates an Env from its pickled variables."""
    return Env._of({os.fsdecode(name): os.fsdecode(value) for name, value in pairs})


def environment(value: Any) -> Env:
    """Returns the Env for an Env or a mapping; for None, this process's current environment."""
    if value is None:
        return Env._of(os.environ)
    if isinstance(value, Env):
        return value
    if not isinstance(value, Mapping):
        raise wrong_type("env", "spawnfd.Env, a mapping of str, or None", value)
    mapping: Mapping[Any, Any] = cast(Any, value)
    return Env._of(variables(mapping, "env"))
