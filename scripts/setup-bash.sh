#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Builds the versions of bash that Debian 12 does not have, from Debian's source archive. Prints the paths of the programs,
# with colons between them.
# Usage: setup-bash.sh CACHE_DIRECTORY
set -eu

# Builds one version, which has this checksum.
build() {
    version=$1 checksum=$2
    directory=$cache/bash-$version
    if [ ! -x "$directory/bash" ]; then
        work=$(mktemp -d)
        trap 'rm -rf "$work"' EXIT
        source=http://deb.debian.org/debian/pool/main/b/bash/bash_$version.orig.tar.xz
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
        rm -rf "$work"
    fi
}

cache=$1
build 5.1 d5eeee4f953c09826409d572e2e8996a2140d67eb8f382ce1f3a9d23883ad696
build 5.2.37 370704c9c859f4060b7df19055e43bb9b5fa09d887699cf6ba87885c5485d36a
build 5.3 a70de6bb41f5e192534a5a1836b1d7fad9a8d4818a6e1506d70f38441552c17a
echo "$cache/bash-5.1/bash:$cache/bash-5.2.37/bash:$cache/bash-5.3/bash"
