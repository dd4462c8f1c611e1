#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# Boots the patched kernel with a shell in this terminal. The guest has common tools, the spawnfd command, and the
# selftests in /selftests.
#
#   kernel/qemu/shell.sh CACHE SPAWNFD
#
# SPAWNFD is the path of the built spawnfd command. The guest ends with the shell. Its file system is in memory, so
# changes to files are lost.
set -eu
cd "$(dirname "$0")/../.."
kernel=$(kernel/qemu/build.sh "$1" base)
root=$(mktemp -d "${TMPDIR:-/tmp}/spawnfd-kernel.XXXXXX")
trap 'rm -rf "$root"' EXIT
if [ -e "$kernel/include/linux/spawn.h" ]; then
    make -s -C kernel/selftests KERNEL="$kernel" OUT="$root/selftests"
    cp kernel/selftests/run.sh "$root/selftests"
fi
packages="bash coreutils dash findutils grep mawk mount procps sed util-linux"
# shellcheck disable=SC2046,SC2086 # lists
kernel/qemu/stage.sh "$root" $(dpkg -L $packages | grep -E '/bin/|/sbin/' | while read -r file; do [ ! -f "$file" ] || echo "$file"; done) \
    $(command -v strace git perl || true) "$2"
ln -sf "$2" "$root/usr/bin/spawnfd"
echo "kernel-shell: $(basename "$kernel"); emulated, so slow. \`exit\` ends it."
kernel/qemu/boot.sh --time 0 --memory 2048 --shell "$kernel/bzImage" "$root" /bin/bash -i
