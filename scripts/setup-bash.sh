#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Builds bash 5.3, which Debian 12 does not have, from Debian's source archive. Prints the path of the program.
# Usage: setup-bash.sh CACHE_DIRECTORY
set -eu
version=5.3
checksum=a70de6bb41f5e192534a5a1836b1d7fad9a8d4818a6e1506d70f38441552c17a
source=http://deb.debian.org/debian/pool/main/b/bash/bash_$version.orig.tar.xz
directory=$1/bash-$version
if [ ! -x "$directory/bash" ]; then
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    # Python is a dependency of the tests in any case; curl and wget may be missing.
    python3 -c 'import sys, urllib.request; urllib.request.urlretrieve(*sys.argv[1:])' "$source" "$work/source"
    echo "$checksum  $work/source" | sha256sum --check --quiet
    tar -xJf "$work/source" -C "$work"
    (cd "$work/bash-$version" && ./configure --quiet --without-bash-malloc --disable-nls && make --silent -j2 CFLAGS="-O2 -w") >"$work/log" 2>&1 || {
        tail -20 "$work/log" >&2
        exit 1
    }
    mkdir -p "$directory"
    # The rename is atomic, if another run builds too.
    cp "$work/bash-$version/bash" "$directory/bash.$$"
    mv "$directory/bash.$$" "$directory/bash"
fi
echo "$directory/bash"
