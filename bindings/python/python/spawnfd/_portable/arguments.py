# SPDX-License-Identifier: MIT OR Apache-2.0
"""Checks and converts arguments, with errors that name the argument.

The texts of the errors are those of the native part (bindings/python/src/arguments.rs).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

# The largest number of bytes that the native part accepts.
_LARGEST = (1 << 64) - 1


def quoted(text: str) -> str:
    """Returns a text in double quotes, for an error."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped.replace(chr(0), chr(92) + "0")}"'


def one_of(words: Iterable[str]) -> str:
    return ", ".join(map(quoted, words))


def _type_of(value: Any) -> Any:
    """Returns the class of a value, without a type that depends on earlier checks."""
    return cast(Any, type(value))


def wrong_type(name: str, expected: str, value: Any) -> TypeError:
    """Returns the error for a value of another type."""
    return TypeError(f"{name}: expected {expected}, not {type(value).__qualname__}")


def os_string(value: Any, name: str, expected: str = "str, bytes or os.PathLike") -> str:
    """Converts a str, bytes or path to a str, as os.fsdecode() does. Refuses a null byte."""
    if not isinstance(value, (str, bytes)):
        method = getattr(_type_of(value), "__fspath__", None)
        if method is None:
            raise wrong_type(name, expected, value)
        value = method(value)
        if not isinstance(value, (str, bytes)):
            raise wrong_type(name, "__fspath__() to return str or bytes", value)
    try:
        encoded = os.fsencode(value)
    except UnicodeEncodeError as error:
        raise ValueError(f"{name}: {error}") from None
    if 0 in encoded:
        raise ValueError(f"{name}: embedded null byte")
    return os.fsdecode(encoded)


def os_strings(value: Any, name: str) -> list[str]:
    """Converts a sequence of arguments; refuses a single string."""
    expected = "a sequence of str, bytes or os.PathLike"
    if isinstance(value, (str, bytes)):
        kind = type(value).__qualname__
        if name == "argv":
            raise TypeError(
                "argv: expected a list of the program and its arguments, such as "
                f'["ls", "-l"], not {kind}; for a shell command line use spawnfd.sh({value!r})'
            )
        raise TypeError(
            f"{name}: expected {expected}, not {kind}; for a single item pass [{value!r}]"
        )
    if not isinstance(value, Sequence):
        raise wrong_type(name, expected, value)
    items: Sequence[Any] = cast(Any, value)
    return [os_string(item, f"{name}[{index}]") for index, item in enumerate(items)]


def integer(value: Any, name: str, most: int = _LARGEST) -> int:
    """Checks an int from 0 to `most`; refuses a bool."""
    if isinstance(value, bool) or not hasattr(_type_of(value), "__index__"):
        raise wrong_type(name, "int", value)
    number = int(value.__index__())
    if number < 0:
        raise ValueError(f"{name} must be >= 0, got {number}")
    if number > most:
        raise ValueError(f"{name}: {number} is out of range")
    return number


def signed(value: Any, name: str) -> int:
    """Checks an int of 32 bits; refuses a bool."""
    if isinstance(value, bool) or not hasattr(_type_of(value), "__index__"):
        raise wrong_type(name, "int", value)
    number = int(value.__index__())
    if not -(1 << 31) <= number < 1 << 31:
        raise ValueError(f"{name}: {number} is out of range")
    return number


def descriptor(value: Any, name: str) -> int:
    """Returns a descriptor number: an int, or the result of an object's fileno()."""
    if isinstance(value, int):
        number = signed(value, name)
    elif (method := getattr(value, "fileno", None)) is not None:
        try:
            given = method()
        except ValueError as error:
            raise ValueError(f"{name}: fileno() raised {type(error).__name__}: {error}") from None
        number = signed(given, f"{name}.fileno()")
    else:
        raise wrong_type(name, "a descriptor (int) or an object with fileno()", value)
    if number < 0:
        raise ValueError(f"{name}: a descriptor must be >= 0, got {number}")
    return number


def seconds(value: Any, name: str) -> float | None:
    """Checks a number of seconds. Returns None for None, and for infinity."""
    if value is None:
        return None
    if isinstance(value, bool) or not hasattr(_type_of(value), "__float__"):
        raise wrong_type(name, "seconds (float) or None", value)
    try:
        number = float(value)
    except OverflowError:
        # An int that is too large for a float.
        number = -math.inf if value < 0 else math.inf
    if not number >= 0:
        given = f"{number:g}".replace("nan", "NaN")
        raise ValueError(f"{name} must be >= 0, got {given}")
    return None if number > 1e18 else number


def data(value: Any, name: str) -> bytes:
    """Returns the bytes of a bytes-like object, or of a str as UTF-8."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"{name}: {error}") from None
    try:
        return memoryview(value).tobytes()
    except TypeError:
        expected = "bytes, bytearray, memoryview or str"
        raise wrong_type(name, expected, value) from None


def text(value: Any, name: str) -> str:
    """Checks a str that UTF-8 can encode."""
    if not isinstance(value, str):
        raise wrong_type(name, "str or None", value)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name}: {error}") from None
    return value


def boolean(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise wrong_type(name, "bool", value)
    return value


def word(value: Any, name: str, words: Sequence[str]) -> str:
    """Checks a keyword, such as "result"."""
    if not isinstance(value, str):
        raise wrong_type(name, f"one of {one_of(words)}", value)
    if value not in words:
        raise ValueError(f"{name} must be one of {one_of(words)}, got {shown(value)}")
    return value


def shown(value: str) -> str:
    """Returns a text in quotes, without characters that cannot be printed."""
    return quoted(value.encode(errors="replace").decode())


def variable(key: Any, value: Any, name: str) -> tuple[str, str]:
    """Converts one environment variable."""
    key = os_string(key, f"{name}: variable name")
    if not key or "=" in key:
        raise ValueError(
            f'{name}: {quoted(key)} is not a variable name: it must not be empty or contain "="'
        )
    return key, os_string(value, f"{name}[{key!r}]")


def variables(mapping: Mapping[Any, Any], name: str) -> dict[str, str]:
    """Converts a mapping of environment variables."""
    return dict(variable(key, value, name) for key, value in mapping.items())
