#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Uses the static command that `make packages` built, in a root with nothing but busybox, and in the oldest Debian that
# the mirror has. The command for arm64 runs in a root with busybox, in a guest. Needs root.
#
#   packaging/test-static.sh PACKAGES
#
# CACHE: the directory of the roots, /var/cache/spawnfd by default.
set -eu
cd "$(dirname "$0")/.."
packages=$(realpath "$1")
cache=${CACHE:-/var/cache/spawnfd}
. packaging/scratch.sh
packaging/setup-roots.sh
scripts/setup-guest.sh

# A root that has only busybox, the command and the checks.
bare_root() { # processor in Debian's words, in the kernel's words, directory, packages of the root...
    architecture=$1 processor=$2 directory=$3
    shift 3
    from=$(packaging/root.sh --unpack "$architecture" "$cache/roots" trixie "$@")
    mkdir -p "$directory/bin" "$directory/proc" "$directory/dev" "$directory/tmp"
    cp "$from/usr/bin/busybox" "$directory/bin"
    for name in sh sleep setsid kill cat grep rm; do
        ln -s busybox "$directory/bin/$name"
    done
    mknod -m 666 "$directory/dev/null" c 1 3
    cp packaging/static/smoke.sh "$directory"
    install -m 755 "$packages/spawnfd-$version-linux-$processor" "$directory/spawnfd"
}

bare_root amd64 x86_64 "$scratch/bare" busybox-static
unshare --mount --pid --fork --kill-child --net sh -euc 'mount -t proc proc "$1/proc"
    exec chroot "$1" /bin/busybox env -i PATH=/bin VERSION="$2" /bin/sh smoke.sh' sh "$scratch/bare" "$version" ||
    fail "busybox on x86-64"
echo "test-static: busybox on x86-64: passed"

root=$(packaging/root.sh "$cache/roots" bullseye gcc libc6-dev make pkg-config python3)
mkdir "$scratch/work"
cp packaging/static/smoke.sh "$scratch/work"
install -m 755 "$packages/spawnfd-$version-linux-x86_64" "$scratch/work/spawnfd"
packaging/in-root.sh --bind "$scratch/work" /mnt/work "$root" sh -euc \
    "cp -r /mnt/work /root/work && cd /root/work && VERSION=$version sh smoke.sh" || fail "Debian 11"
echo "test-static: Debian 11: passed"

mkdir "$scratch/arm64"
# The packages of the guest of test-npm.sh, so that both use one root.
arm64="linux-image-arm64 bash busybox-static coreutils dash libstdc++6 musl"
# shellcheck disable=SC2086 # names without spaces
bare_root arm64 aarch64 "$scratch/arm64/bare" $arm64
packaging/in-arm64.sh "$from" "$scratch/arm64" "
    busybox mount -t proc proc bare/proc
    busybox chroot bare /bin/busybox env -i PATH=/bin VERSION=$version /bin/sh smoke.sh
    busybox umount bare/proc" || fail "busybox on arm64"
echo "test-static: busybox on arm64: passed"
