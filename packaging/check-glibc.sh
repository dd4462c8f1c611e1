#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Fails if a program or shared library needs a symbol of a glibc newer than 2.28.
#
#   packaging/check-glibc.sh FILE...
set -eu
floor=2.28

for file in "$@"; do
    # The versions of the symbols that the file defines do not count.
    newest=$(objdump -T "$file" | sed -n 's/.*\*UND\*.*GLIBC_\([0-9.]*\).*/\1/p' | sort -V | tail -n 1)
    if [ -z "$newest" ]; then
        echo "check-glibc: $file: no symbols of glibc" >&2
        exit 1
    fi
    if [ "$(printf '%s\n' "$newest" "$floor" | sort -V | tail -n 1)" != "$floor" ]; then
        echo "check-glibc: $file needs glibc $newest, newer than $floor:" >&2
        objdump -T "$file" | grep "\*UND\*.*GLIBC_$newest" >&2
        exit 1
    fi
done
