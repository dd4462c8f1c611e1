#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Builds the command as one static file for each processor. It runs in any Linux root, and starts all programs cold.
#
#   packaging/static.sh OUT
set -eu
cd "$(dirname "$0")/.."
mkdir -p "$1"
out=$(cd "$1" && pwd)
: "${CARGO_TARGET_DIR:=$(pwd)/target}"
export CARGO_TARGET_DIR
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
most=$((6 << 20))
rm -f "$out"/spawnfd-*-linux-x86_64 "$out"/spawnfd-*-linux-aarch64

fail() {
    echo "static: $*" >&2
    exit 1
}

for processor in x86_64 aarch64; do
    target=$processor-unknown-linux-musl
    file=$out/spawnfd-$version-linux-$processor
    tools=$(packaging/setup.sh $target)
    # The names of source files have no path of this machine.
    RUSTFLAGS="--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=cargo -C target-feature=+crt-static" \
        PATH=$tools/bin:$PATH "$tools/bin/cargo-zigbuild" rustc --quiet --release --locked -p spawnfd-cli \
        --bin spawnfd --target $target -- -C strip=symbols
    install -m 755 "$CARGO_TARGET_DIR/$target/release/spawnfd" "$file"
    needed=$(readelf -d "$file" | grep NEEDED || :)
    [ -z "$needed" ] || fail "$(basename "$file") is not static: $needed"
    ! readelf -l "$file" | grep -q INTERP || fail "$(basename "$file") needs a loader"
    size=$(stat -c %s "$file")
    [ "$size" -le $most ] || fail "$(basename "$file") has $size bytes, at most $most are permitted"
    echo "$file: $size bytes"
done
