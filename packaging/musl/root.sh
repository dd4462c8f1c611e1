#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Makes a root like that of Alpine: musl's loader, busybox, a static bash, CPython 3.13 linked to musl, and uv. The
# first command in the root must be `/bin/busybox --install -s /bin`.
#
#   packaging/musl/root.sh DEBIAN PROCESSOR CACHE DIRECTORY
#
# DEBIAN     a root with musl, busybox-static and bash-static for the processor (root.sh --unpack)
# PROCESSOR  x86_64 or aarch64
# CACHE      keeps CPython and uv
set -eu
debian=$1
processor=$2
cache=$3
directory=$4
cd "$(dirname "$0")/../.."

key=$(cat packaging/musl/root.sh packaging/musl/libz.c packaging/musl/requirements.txt packaging/requirements-roots.txt |
    sha256sum | cut -c1-16)
python=$cache/musl-python-$key-$processor
if [ ! -d "$python" ]; then
    scratch=$(mktemp -d "$cache/musl.XXXXXX")
    trap 'rm -rf "$scratch"' EXIT
    trap 'exit 129' HUP
    trap 'exit 130' INT
    trap 'exit 143' TERM
    tools=$(packaging/setup.sh)
    unpack() { # file of requirements, options of pip...
        requirements=$1
        shift
        "$tools/bin/python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
            --platform "musllinux_1_2_$processor" --platform "musllinux_1_1_$processor" "$@" --dest "$scratch/wheels" \
            -r "$requirements"
        "$tools/bin/python" -m zipfile -e "$scratch"/wheels/*.whl "$scratch/wheel"
        rm -r "$scratch/wheels"
    }
    unpack packaging/musl/requirements.txt --require-hashes
    unpack packaging/requirements-roots.txt
    mkdir "$scratch/python"
    # CPython without its other packages.
    tar -xf "$scratch"/wheel/ai/backend/krunner/alpine/krunner-env.*.tar.xz -C "$scratch/python" \
        --exclude 'lib/python3.13/site-packages/*' --wildcards './bin/python3.13' './lib/libpython3.13.so.1.0' \
        './lib/python3.13'
    install -m 755 "$scratch"/wheel/uv-*.data/scripts/uv "$scratch/python/bin"
    # The package lacks the libraries of Alpine that CPython's modules need.
    compiler=${CC:-cc}
    if [ "$processor" = aarch64 ]; then
        scripts/setup-aarch64.sh
        compiler=aarch64-linux-gnu-gcc
    fi
    "$compiler" -O2 -fPIC -nostdlib -shared -Wl,-soname,libz.so.1 -o "$scratch/python/lib/libz.so.1" packaging/musl/libz.c
    # Another run may have been faster.
    mv -T "$scratch/python" "$python" 2>/dev/null || [ -d "$python" ]
fi

mkdir -p "$directory/usr/local"
(cd "$directory" && mkdir bin dev etc lib proc root tmp)
echo "root:x:0:0:root:/root:/bin/sh" >"$directory/etc/passwd"
cp "$debian/usr/bin/busybox" "$directory/bin"
cp "$debian/usr/bin/bash-static" "$directory/bin/bash"
cp "$debian/usr/lib/ld-musl-$processor.so.1" "$directory/lib"
cp -a "$python/." "$directory/usr/local"
mknod -m 666 "$directory/dev/null" c 1 3
mknod -m 666 "$directory/dev/zero" c 1 5
mknod -m 666 "$directory/dev/urandom" c 1 9
