#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Builds the Python packages: the source distribution, and from it the wheel for CPython 3.10 and later.
#
#   packaging/wheels.sh OUT
#
# There is no wheel for free-threaded CPython: PyO3 needs version 3.14 for it, and neither Debian nor PyPI has such an
# interpreter to test with.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$1"
out=$(cd "$1" && pwd)
venv=$("$root/packaging/setup.sh")

fail() {
    echo "wheels: $*" >&2
    exit 1
}

rm -f "$out"/spawnfd-*.whl "$out"/spawnfd-*.tar.gz
"$venv/bin/maturin" sdist --manifest-path "$root/bindings/python/Cargo.toml" --out "$out"
sdist=$(echo "$out"/spawnfd-*.tar.gz)

# Build the wheel from the sdist alone. Cargo compares times, and all files of the sdist have the same: -m sets new ones.
scratch=$root/build/sdist
rm -rf "$scratch"
mkdir -p "$scratch"
tar -xzmf "$sdist" -C "$scratch"
cd "$scratch"/spawnfd-*
for file in README.md LICENSE-APACHE LICENSE-MIT PKG-INFO Cargo.lock python/spawnfd/py.typed backend/spawnfd_build.py; do
    [ -f "$file" ] || fail "$(basename "$sdist") has no $file"
done
built=$(find . -name '*.so' -o -name '*.pyc' -o -name target -o -name build -type d)
[ -z "$built" ] || fail "$(basename "$sdist") has built files: $built"

# zig links with the symbols of glibc 2.28. It only links: the tests cover the objects of spawnfd-parked as the C
# compiler of this machine builds them. The names of source files have no path of this machine.
RUSTFLAGS="--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=cargo" \
    CC_x86_64_unknown_linux_gnu=${CC:-cc} PATH="$venv/bin:$PATH" "$venv/bin/maturin" build --quiet --release --zig \
    --compatibility manylinux_2_28 --auditwheel check --interpreter python3 --out "$out"
cd "$out"
rm -rf "$scratch"

wheel=$(echo "$out"/spawnfd-*.whl)
# auditwheel breaks its lines at any word.
tag=$("$venv/bin/auditwheel" show "$wheel" | tr '\n' ' ' | sed -n 's/.*following platform tag: *"\([^"]*\)".*/\1/p')
case $tag in
manylinux_2_?_x86_64 | manylinux_2_1?_x86_64 | manylinux_2_2[0-8]_x86_64) ;;
*) fail "auditwheel gives $(basename "$wheel") the tag ${tag:-none}, manylinux_2_28_x86_64 or lower is needed" ;;
esac
case $wheel in
*-cp310-abi3-manylinux*_x86_64.whl) ;;
*) fail "unexpected name: $wheel" ;;
esac
# Packages of other tools install into the same directories.
others=$("$venv/bin/python" -m zipfile -l "$wheel" | awk 'NR > 1 && $1 !~ /^spawnfd(-[0-9.]+\.dist-info)?\// { print $1 }')
[ -z "$others" ] || fail "$(basename "$wheel") has files outside the package: $others"
echo "$tag: $wheel"
echo "$sdist"
