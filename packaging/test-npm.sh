#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Installs the npm packages that `make packages` built into a project, without the registry, and uses them in the oldest
# Node, the newest Node and Bun.
#
#   packaging/test-npm.sh PACKAGES
#
# packaging/npm/package-lock.json has the versions of the runtimes.
# CACHE: the directory that keeps the runtimes, /var/cache/spawnfd by default.
set -eu
cd "$(dirname "$0")/.."
packages=$(realpath "$1")
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
main=$packages/spawnfd-$version.tgz
native=$packages/spawnfd-linux-x64-gnu-$version.tgz
cache=${CACHE:-/var/cache/spawnfd}
mkdir -p "$cache"
scratch=$(mktemp -d "$cache/npm.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

fail() {
    echo "test-npm: $*" >&2
    exit 1
}

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
[ -f "$native" ] || fail "there is no $native"
for package in "$packages"/spawnfd-linux-*.tgz; do
    contents "$package" 'spawnfd\.node'
    name=@spawnfd/$(basename "$package" "-$version.tgz" | sed 's/^spawnfd-//')
    tar -xzOf "$main" package/package.json | jq -e --arg name "$name" --arg version "$version" \
        '.optionalDependencies[$name] == $version' >/dev/null || fail "spawnfd does not depend on $name"
    case $name in
    @spawnfd/linux-x64-gnu) ;;
    *) fail "$name is not tested" ;;
    esac
done

install_packages() { # directory, arguments of npm...
    project=$1
    shift
    mkdir "$project"
    echo '{"private": true}' >"$project/package.json"
    (cd "$project" && npm install --silent --no-audit --no-fund --offline --cache "$scratch/cache" "$@")
}
install_packages "$scratch/project" "$main" "$native"
cp packaging/npm/smoke.mjs "$scratch/project"
for runtime in node-oldest node-newest bun; do
    program=$runtimes/node_modules/$runtime/bin/${runtime%%-*}
    (cd "$scratch/project" && timeout 120 "$program" smoke.mjs "$version") || fail "$runtime failed"
    echo "test-npm: $runtime $("$program" --version): passed"
done

# Without the native half, the error is one sentence that names the missing package.
install_packages "$scratch/bare" --omit=optional "$main"
message=$(cd "$scratch/bare" && node -e 'try { require("spawnfd"); } catch (error) { console.log(error.message); }')
case $message in
*"install the package @spawnfd/linux-x64-gnu"*) ;;
*) fail "without a native half: $message" ;;
esac
