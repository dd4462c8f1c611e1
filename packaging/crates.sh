#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Packages the published crates into OUT, and builds each one from its package alone. Needs cargo 1.90 or later.
#
#   packaging/crates.sh OUT
set -eu
out=$1
needed=1.90
if ! { echo "$needed" && cargo --version | cut -d ' ' -f 2; } | sort -C -V; then
    echo "crates: cargo $needed or later is needed, this is $(cargo --version)" >&2
    exit 1
fi
: "${CARGO_TARGET_DIR:=$(pwd)/target}"
export CARGO_TARGET_DIR

# In the order in which they depend on each other, which is the order of publishing.
published="spawnfd-sys spawnfd-child spawnfd-guard spawnfd-parked spawnfd spawnfd-remote spawnfd-cli"
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
packages=
for crate in $published; do
    packages="$packages -p $crate"
done

# cargo unpacks each package and builds it, also from a tree with changes. The packages of the other crates replace those of the registry.
# shellcheck disable=SC2086 # a list of options
cargo publish --quiet --dry-run --allow-dirty --locked $packages
# The dry run leaves no files behind that have a documented place.
# shellcheck disable=SC2086
cargo package --quiet --no-verify --allow-dirty --locked $packages
mkdir -p "$out"
for crate in $published; do
    install -m 644 "$CARGO_TARGET_DIR/package/$crate-$version.crate" "$out"
done
scripts/check-crates.py "$out"/*.crate
