#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Builds the npm packages: spawnfd, which has the JavaScript, and one package for each target, which has its native half.
# The first lists the others as optional dependencies, so that a package manager installs the one for its machine.
#
#   packaging/npm.sh OUT
set -eu
cd "$(dirname "$0")/.."
mkdir -p "$1"
out=$(cd "$1" && pwd)
: "${CARGO_TARGET_DIR:=$(pwd)/target}"
export CARGO_TARGET_DIR
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
tools=$(packaging/setup.sh)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
rm -f "$out"/spawnfd-*.tgz

skip() { # target, reason
    echo "npm: no package @spawnfd/$1: $2"
}

# Packs a directory that has its package.json, with the licences.
pack() { # directory
    cp LICENSE-APACHE LICENSE-MIT "$1"
    (cd "$1" && npm pack --silent --ignore-scripts --pack-destination "$out")
}

# Writes package.json, from that of the repository. The expression of jq adds what is different.
manifest() { # directory, expression, arguments of jq...
    directory=$1 expression=$2
    shift 2
    jq --arg version "$version" "$@" "del(.devDependencies) | $expression | .files += [\"LICENSE-APACHE\", \"LICENSE-MIT\"]" \
        bindings/node/package.json >"$directory/package.json"
}

# The native half of one target.
native() { # target, processor in Node's words, libc, description, file
    directory=$scratch/$1
    mkdir "$directory"
    install -m 644 "$5" "$directory/spawnfd.node"
    strip --strip-unneeded "$directory/spawnfd.node"
    # shellcheck disable=SC2016 # jq replaces the variables
    manifest "$directory" '{name: "@spawnfd/\($target)", version: $version,
        description: "The native half of the package spawnfd for \($description).",
        license, repository, engines, os: ["linux"], cpu: [$cpu], libc: [$libc], main: "spawnfd.node",
        files: ["spawnfd.node"]}' --arg target "$1" --arg cpu "$2" --arg libc "$3" --arg description "$4"
    echo "Install the package [spawnfd](https://www.npmjs.com/package/spawnfd), which depends on this one." \
        >"$directory/README.md"
    pack "$directory"
    built="$built @spawnfd/$1"
}

built=
# zig links with the symbols of glibc 2.28, and CC compiles the C code that the addon embeds: see debian.sh.
export RUSTFLAGS="--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=cargo"
CC_x86_64_unknown_linux_gnu=${CC:-cc} PATH=$tools/bin:$PATH cargo zigbuild --quiet --release --locked -p spawnfd-node \
    --target x86_64-unknown-linux-gnu.2.28
addon=$CARGO_TARGET_DIR/x86_64-unknown-linux-gnu/release/libspawnfd_node.so
packaging/check-glibc.sh "$addon"
native linux-x64-gnu x64 glibc "Linux on x86-64 with glibc 2.28 or later" "$addon"
skip linux-arm64-gnu "spawnfd-sys has no functions for aarch64"
skip linux-arm64-musl "spawnfd-sys has no functions for aarch64"
skip linux-x64-musl "spawnfd-parked needs dlinfo(RTLD_DI_SERINFO), which musl does not have"

# The JavaScript.
directory=$scratch/spawnfd
mkdir "$directory"
(cd bindings/node && node_modules/.bin/tsc --outDir "$directory/dist" --declarationDir "$directory/types")
# shellcheck disable=SC2016 # jq replaces the variables
manifest "$directory" '.optionalDependencies = ($built | ltrimstr(" ") | split(" ") | map({(.): $version}) | add)' \
    --arg built "$built"
cp bindings/node/README.md "$directory"
pack "$directory"
