#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Builds the Python packages: the source distribution, and from it the wheels for CPython 3.10 and later, one for each
# target.
#
#   packaging/wheels.sh OUT [TARGET...]
#
# TARGET: one of the targets below, in the words of Rust. Without it, the script builds all wheels.
#
# There is no wheel for free-threaded CPython: PyO3 needs version 3.14 for it, and neither Debian nor PyPI has such an
# interpreter to test with.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$1"
out=$(cd "$1" && pwd)
shift
[ $# -gt 0 ] || set -- x86_64-unknown-linux-gnu aarch64-unknown-linux-gnu x86_64-unknown-linux-musl \
    aarch64-unknown-linux-musl
venv=$("$root/packaging/setup.sh")
most=$((4 << 20))

fail() {
    echo "wheels: $*" >&2
    exit 1
}

rm -f "$out"/spawnfd-*linux_*.whl "$out"/spawnfd-*.tar.gz
"$venv/bin/maturin" sdist --manifest-path "$root/bindings/python/Cargo.toml" --out "$out"
sdist=$(echo "$out"/spawnfd-*.tar.gz)

# Build the wheels from the sdist alone. Cargo compares times, and all files of the sdist have the same: -m sets new
# ones.
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

# zig links: it has glibc 2.28 and musl for both processors. It compiles nothing, because the tests cover the objects of
# spawnfd-parked as the C compilers of Debian build them.
export CC_x86_64_unknown_linux_gnu="${CC:-cc}" CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc
# The names of source files have no path of this machine.
remap="--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=cargo"
build() { # target, platform
    "$root/packaging/setup.sh" "$1" >/dev/null
    case $1 in aarch64-*-gnu) "$root/scripts/setup-aarch64.sh" ;; esac
    PATH="$venv/bin:$PATH" "$venv/bin/maturin" build --quiet --release --zig --target "$1" \
        --compatibility "$2" --auditwheel check --interpreter python3 --out "$out"
}
for target; do
    case $target in
    *-gnu) RUSTFLAGS=$remap build "$target" manylinux_2_28 ;;
    # rustc links musl into the extension module, and makes no shared library, unless this option says that CPython has
    # musl.
    *-musl) RUSTFLAGS="$remap -C target-feature=-crt-static" build "$target" musllinux_1_2 ;;
    *) fail "unknown target: $target" ;;
    esac
done
cd "$out"
rm -rf "$scratch"

check() { # target
    processor=${1%%-*}
    case $1 in
    *-gnu) platform=manylinux_2_28_$processor ;;
    *) platform=musllinux_1_2_$processor ;;
    esac
    wheel=$(echo "$out"/spawnfd-*-cp310-abi3-"$platform".whl)
    [ -f "$wheel" ] || fail "no wheel has the name $wheel"
    # Packages of other tools install into the same directories.
    others=$("$venv/bin/python" -m zipfile -l "$wheel" |
        awk 'NR > 1 && $1 !~ /^spawnfd(-[0-9.]+\.dist-info)?\// { print $1 }')
    [ -z "$others" ] || fail "$(basename "$wheel") has files outside the package: $others"
    size=$(stat -c %s "$wheel")
    [ "$size" -le $most ] || fail "$(basename "$wheel") has $size bytes, at most $most are permitted"
    "$venv/bin/python" -m zipfile -e "$wheel" "$scratch"
    module=$scratch/spawnfd/_spawnfd.abi3.so
    case $1 in
    *-gnu)
        # auditwheel breaks its lines at any word.
        tag=$("$venv/bin/auditwheel" show "$wheel" | tr '\n' ' ' |
            sed -n 's/.*following platform tag: *"\([^"]*\)".*/\1/p')
        case $tag in
        manylinux_2_?_"$processor" | manylinux_2_1?_"$processor" | manylinux_2_2[0-8]_"$processor") ;;
        *) fail "auditwheel gives $(basename "$wheel") the tag ${tag:-none}, $platform or lower is needed" ;;
        esac
        # The objects that the extension module embeds need no more than the module itself.
        "$root/packaging/check-glibc.sh" "$module"
        ;;
    *)
        # auditwheel would read the libc.so of glibc, which is a text.
        needed=$(readelf -d "$module" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
        [ "$needed" = libc.so ] || fail "$(basename "$wheel") needs $needed, and not only musl's libc.so"
        ;;
    esac
    rm -rf "$scratch"
    echo "$wheel: $size bytes"
}
for target; do
    check "$target"
done
echo "$sdist"
