#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Runs every test binary of the core and the command as Docker would, and as an unprivileged user; prints how each of them ended.
#
#   tests/run-confined.sh [docker] [user] [both]     (default: docker user)
#
# docker  spawnfd-confine --docker            Docker's default seccomp profile and capabilities; as root also in a pid namespace whose
#                                             session leader, like that of `docker exec`, is outside
# user    spawnfd-confine --user 65534        needs root
# both    spawnfd-confine --docker --user 65534
#
# The binaries come from `cargo test --no-run --message-format=json`. CARGO_TARGET_DIR and the toolchain are the caller's; the
# confined user has to be able to read the target directory. SPAWNFD_QUICK=1 cuts stress tests short.
set -eu
cd "$(dirname "$0")/.."
user=65534

binaries=$(cargo test -q -p spawnfd-sys -p spawnfd-child -p spawnfd-guard -p spawnfd -p spawnfd-cli -p spawnfd-tests --no-run --message-format=json |
    python3 -c '
import json, sys
for line in sys.stdin:
    if line.startswith("{"):
        item = json.loads(line)
        if item.get("executable") and item.get("profile", {}).get("test"):
            print(item["executable"])')
target=$(dirname "$(dirname "$(echo "$binaries" | head -n 1)")")
confine=$target/spawnfd-confine

temporary=$(mktemp -d "${TMPDIR:-/tmp}/spawnfd-confined.XXXXXX")
trap 'rm -rf "$temporary"' EXIT
chmod 1777 "$temporary"

failed=0
for way in ${*:-docker user}; do
    case $way in
    docker) options=--docker ;;
    user) options="--user $user" ;;
    both) options="--docker --user $user" ;;
    *) echo "unknown: $way" >&2 && exit 2 ;;
    esac
    namespace=
    [ "$way" = user ] || [ "$(id -u)" != 0 ] || namespace="unshare --pid --fork --kill-child --mount-proc"
    echo "== $way: $namespace spawnfd-confine $options"
    skips=$temporary/skips.$way
    : >"$skips" && chmod 666 "$skips"
    # no_panic builds, which is no confined user's business.
    # shellcheck disable=SC2086
    echo "$binaries" | grep -v /no_panic- |
        TMPDIR=$temporary SPAWNFD_SKIPS=$skips HOME=$temporary $namespace tests/run-binaries.sh "$confine" $options -- || failed=1
    sed 's/::[a-z_0-9]* / /' "$skips" | sort -u | cut -c1-150 | sed 's/^/    /'
    [ -z "${SPAWNFD_SKIPS:-}" ] || sed "s/^/[$way] /" "$skips" >>"$SPAWNFD_SKIPS"
done
exit $failed
