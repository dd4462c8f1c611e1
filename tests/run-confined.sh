#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Runs test binaries as in Docker, as an unprivileged user, or both. Prints the outcome of each.
#
#   tests/run-confined.sh docker|user|both [BINARY...]     (default: every binary of the core, the command, the C library and the suites)
#
# docker  spawnfd-confine --docker            Docker's default seccomp profile and capabilities; as root also in a
#                                             pid namespace whose session leader is outside, as with `docker exec`
# user    spawnfd-confine --user 65534        needs root
# both    spawnfd-confine --docker --user 65534
#
# built.py builds the binaries, with the caller's toolchain and CARGO_TARGET_DIR.
# The confined user must be able to read the target directory. If SPAWNFD_FULL is set, the ignored tests run
# too, and therefore every launcher.
set -eu
cd "$(dirname "$0")/.."
user=65534
confinement=$1
shift

# The same packages as in `make build-tests`: another selection has other features, and cargo would build all again.
only=
for binary; do
    only="$only --only $binary"
done
# shellcheck disable=SC2086 # a list
binaries=$(tests/built.py $only --workspace --exclude spawnfd-python)
target=$(dirname "$(dirname "$(echo "$binaries" | head -n 1)")")
confine=$target/spawnfd-confine

temporary=$(mktemp -d "${TMPDIR:-/tmp}/spawnfd-confined.XXXXXX")
trap 'rm -rf "$temporary"' EXIT
chmod 1777 "$temporary"

case $confinement in
docker) options=--docker ;;
user) options="--user $user" ;;
both) options="--docker --user $user" ;;
*) echo "unknown: $confinement" >&2 && exit 2 ;;
esac
namespace=
[ "$confinement" = user ] || [ "$(id -u)" != 0 ] || namespace="unshare --pid --fork --kill-child --mount-proc"
# no_panic and header_is_current run cargo, whose files belong to another user.
arguments="--skip no_panic --skip header_is_current ${SPAWNFD_FULL:+--include-ignored --skip on_purpose}"
skips=$temporary/skips
: >"$skips" && chmod 666 "$skips"
# The caller's PATH may have directories that the user cannot search.
path=$PATH
[ "$confinement" = docker ] || path=/usr/local/bin:/usr/bin:/bin
# Stress tests run all their rounds only without confinement. In `make test`, they have run without one, too.
[ -n "${SPAWNFD_FULL:-}" ] && SPAWNFD_ROUNDS=20 || SPAWNFD_ROUNDS=200
export SPAWNFD_ROUNDS
unset SPAWNFD_FULL
failed=0
echo "== $confinement: $namespace spawnfd-confine $options"
# shellcheck disable=SC2086
echo "$binaries" | sed "s/\$/ $arguments/" |
    PATH=$path TMPDIR=$temporary SPAWNFD_AS_IS=1 SPAWNFD_SKIPS=$skips HOME=$temporary $namespace tests/run-binaries.sh "$confine" $options -- || failed=1
[ -z "${SPAWNFD_SKIPS:-}" ] || sed "s/^SKIP /SKIP [$confinement] /" "$skips" >>"$SPAWNFD_SKIPS"
exit $failed
