#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Fails if a program or shared library needs a symbol of a glibc newer than 2.28, or another library than glibc's.
#
#   packaging/check-glibc.sh FILE...
set -eu
floor=2.28

for file in "$@"; do
    others=$(objdump -p "$file" | sed -n 's/^ *NEEDED *//p' |
        grep -Evx 'lib(c|m)\.so\.6|libdl\.so\.2|libutil\.so\.1|libpthread\.so\.0|librt\.so\.1|ld-linux-(x86-64\.so\.2|aarch64\.so\.1)' || :)
    if [ -n "$others" ]; then
        echo "check-glibc: $file needs $others" >&2
        exit 1
    fi
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
