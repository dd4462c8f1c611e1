#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Installs the wheel for x86_64 and musl that `make packages` built in a root like that of Alpine, uses it, and removes
# it again. All programs start cold. Needs root. test-arm64.sh does the same for arm64.
#
#   packaging/test-musl.sh PACKAGES
#
# CACHE: the directory of the roots, /var/cache/spawnfd by default.
set -eu
cd "$(dirname "$0")/.."
packages=$(realpath "$1")
cache=${CACHE:-/var/cache/spawnfd}
. packaging/scratch.sh
packaging/setup-roots.sh

debian=$(packaging/root.sh --unpack amd64 "$cache/roots" trixie musl busybox-static bash-static)
packaging/musl/root.sh "$debian" x86_64 "$cache" "$scratch/root"
mkdir "$scratch/root/packages"
cp "$packages"/spawnfd-*.whl packaging/smoke.py "$scratch/root/packages"
cp packaging/musl/smoke.sh "$scratch/root"
# shellcheck disable=SC2016 # the inner shell expands the variable
timeout 900 unshare --mount --pid --fork --kill-child --net sh -euc 'mount -t proc proc "$1/proc"
    exec chroot "$1" /bin/busybox env -i /bin/busybox sh /smoke.sh' sh "$scratch/root" || fail "x86_64 failed"
echo "test-musl: x86_64: passed"
