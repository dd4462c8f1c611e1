#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Installs the packages for arm64 that `make packages` built in a guest, uses them, and removes them again: the Debian
# packages and the wheel for glibc in Debian, and the wheel for musl in a root like that of Alpine. Needs root.
#
#   packaging/test-arm64.sh PACKAGES
#
# CACHE: the directory of the roots, /var/cache/spawnfd by default.
set -eu
cd "$(dirname "$0")/.."
packages=$(realpath "$1")
cache=${CACHE:-/var/cache/spawnfd}
. packaging/scratch.sh
packaging/setup-roots.sh
scripts/setup-guest.sh
# The compiler for the programs of the C guide.
packaging/setup.sh aarch64-unknown-linux-gnu >/dev/null

root=$(packaging/root.sh --unpack arm64 "$cache/roots" trixie linux-image-arm64 bash bash-static busybox-static \
    coreutils dash diffutils dpkg findutils git grep libc-bin make musl procps python3 ripgrep sed tar)
work=$scratch/work
packaging/musl/root.sh "$root" aarch64 "$cache" "$work/musl"
cp packaging/musl/smoke.sh "$work/musl"
mkdir "$work/musl/packages" "$work/programs"
cp "$packages"/spawnfd-*.whl packaging/smoke.py "$work/musl/packages"
cp "$packages"/*_arm64.deb packaging/arm64/smoke.sh "$work"
for package in libspawnfd0 libspawnfd-dev; do
    dpkg-deb -x "$packages/${package}_${version}_arm64.deb" "$scratch/library"
done
/usr/bin/python3 packaging/arm64/programs.py "$scratch/library" "$work/programs"
cat >"$work/spawn.py" <<'EOF'
import os
os.waitpid(os.posix_spawn("/bin/echo", ["echo", "spawned"], os.environ), 0)
EOF
packaging/in-arm64.sh "$root" "$work" "sh smoke.sh $version" || fail "failed"
echo "test-arm64: passed"
