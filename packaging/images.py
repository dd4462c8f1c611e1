# SPDX-License-Identifier: MIT OR Apache-2.0
"""Extracts the shared objects that a program or library embeds: the objects of warm starts.

    python3 images.py FILE DIRECTORY

The script writes each object to DIRECTORY, and prints its path.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path

MAGIC = b"\x7fELF\x02\x01\x01"
SHARED_OBJECT = 3


def size_of(image: bytes) -> int:
    """The size of an ELF file whose last part is its section headers, as linkers write it."""
    (offset,) = struct.unpack_from("<Q", image, 0x28)
    length, count = struct.unpack_from("<2H", image, 0x3A)
    return int(offset + length * count)


def embedded(contents: bytes) -> list[bytes]:
    """The shared objects in a file, except for the file itself."""
    found = []
    start = contents.find(MAGIC, 1)
    while start > 0:
        image = contents[start:]
        # Code that recognises ELF files contains the magic number, too.
        if len(image) > 64 and struct.unpack_from("<H", image, 0x10)[0] == SHARED_OBJECT:
            found.append(image[: size_of(image)])
        start = contents.find(MAGIC, start + 1)
    return found


def main() -> None:
    """Writes the objects."""
    source, directory = map(Path, sys.argv[1:])
    for number, image in enumerate(embedded(source.read_bytes())):
        path = directory / f"{source.name}-image-{number}.so"
        path.write_bytes(image)
        print(path)


if __name__ == "__main__":
    main()
