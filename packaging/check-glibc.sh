#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Fails if a program or shared library needs a symbol of a glibc newer than 2.28, or another library than glibc's. Also
# checks the shared objects that the file embeds, which warm starts load into other programs.
#
#   packaging/check-glibc.sh FILE...
set -eu
floor=2.28
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

check() { # file
    others=$(objdump -p "$1" | sed -n 's/^ *NEEDED *//p' |
        grep -Evx 'lib(c|m)\.so\.6|libdl\.so\.2|libutil\.so\.1|libpthread\.so\.0|librt\.so\.1|ld-linux-(x86-64\.so\.2|aarch64\.so\.1)' || :)
    if [ -n "$others" ]; then
        echo "check-glibc: $1 needs $others" >&2
        exit 1
    fi
    # The versions of the symbols that the file defines do not count.
    newest=$(objdump -T "$1" | sed -n 's/.*\*UND\*.*GLIBC_\([0-9.]*\).*/\1/p' | sort -V | tail -n 1)
    if [ -z "$newest" ]; then
        echo "check-glibc: $1: no symbols of glibc" >&2
        exit 1
    fi
    if [ "$(printf '%s\n' "$newest" "$floor" | sort -V | tail -n 1)" != "$floor" ]; then
        echo "check-glibc: $1 needs glibc $newest, newer than $floor:" >&2
        objdump -T "$1" | grep "\*UND\*.*GLIBC_$newest" >&2
        exit 1
    fi
}

for file; do
    check "$file"
    images=$(/usr/bin/python3 "$(dirname "$0")/images.py" "$file" "$scratch")
    for image in $images; do
        check "$image"
    done
done
