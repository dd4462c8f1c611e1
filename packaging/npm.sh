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
. packaging/scratch.sh
rm -f "$out"/spawnfd-*.tgz

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

# Builds the addon of one target, and packs it. The linker is zig, which has glibc 2.28 and musl for both processors.
native() { # target in Node's words, target of Rust, version of glibc, options of rustc, description
    directory=$scratch/$1
    mkdir "$directory"
    tools=$(packaging/setup.sh "$2")
    # The names of source files have no path of this machine.
    RUSTFLAGS="--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=cargo $4" PATH=$tools/bin:$PATH \
        "$tools/bin/cargo-zigbuild" rustc --quiet --release --locked -p spawnfd-node --target "$2$3" -- -C strip=symbols
    install -m 644 "$CARGO_TARGET_DIR/$2/release/libspawnfd_node.so" "$directory/spawnfd.node"
    cpu=${1#linux-} libc=glibc
    case $1 in
    *-gnu) packaging/check-glibc.sh "$directory/spawnfd.node" ;;
    *-musl)
        libc=musl
        needed=$(readelf -d "$directory/spawnfd.node" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
        [ "$needed" = libc.so ] || fail "the addon for $1 needs $needed, and not only musl's libc.so"
        ;;
    esac
    # shellcheck disable=SC2016 # jq replaces the variables
    manifest "$directory" '{name: "@spawnfd/\($target)", version: $version,
        description: "The native half of the package spawnfd for \($description).",
        license, repository, engines, os: ["linux"], cpu: [$cpu], libc: [$libc], main: "spawnfd.node",
        files: ["spawnfd.node"]}' --arg target "$1" --arg cpu "${cpu%-*}" --arg libc "$libc" --arg description "$5"
    echo "Install the package [spawnfd](https://www.npmjs.com/package/spawnfd), which depends on this one." \
        >"$directory/README.md"
    pack "$directory"
    built="$built @spawnfd/$1"
}

built=
scripts/setup-aarch64.sh
# CC compiles the C code that the addon embeds, because the tests cover what the compilers of Debian build.
export CC_x86_64_unknown_linux_gnu="${CC:-cc}" CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc
native linux-x64-gnu x86_64-unknown-linux-gnu .2.28 "" "Linux on x86-64 with glibc 2.28 or later"
native linux-arm64-gnu aarch64-unknown-linux-gnu .2.28 "" "Linux on arm64 with glibc 2.28 or later"
# rustc links musl into the addon, and makes no shared library, unless this option says that Node has musl.
native linux-x64-musl x86_64-unknown-linux-musl "" "-C target-feature=-crt-static" "Linux on x86-64 with musl"
native linux-arm64-musl aarch64-unknown-linux-musl "" "-C target-feature=-crt-static" "Linux on arm64 with musl"

# The JavaScript.
directory=$scratch/spawnfd
mkdir "$directory"
(cd bindings/node && node_modules/.bin/tsc --outDir "$directory/dist" --declarationDir "$directory/types")
# shellcheck disable=SC2016 # jq replaces the variables
manifest "$directory" '.optionalDependencies = ($built | ltrimstr(" ") | split(" ") | map({(.): $version}) | add)' \
    --arg built "$built"
cp bindings/node/README.md "$directory"
pack "$directory"
