#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Runs the essential tests of the Python package as in Docker: with Docker's default seccomp profile and capabilities,
# and as root also in a pid namespace. Tests the package that is installed for PYTHON. Passes further arguments to
# pytest.
#
#   tests/run-confined-python.sh PYTHON [ARGUMENT...]
set -eu
python=$(realpath --no-symlinks "$1") && shift
cd "$(dirname "$0")/.."
# As in `make build-tests`: another selection has other features, and cargo would build all again.
cargo test -q --workspace --exclude spawnfd-python --no-run
confine=$(realpath "${CARGO_TARGET_DIR:-target}")/debug/spawnfd-confine
cd bindings/python

skips=$(mktemp "${TMPDIR:-/tmp}/spawnfd-confined.XXXXXX")
trap 'rm -f "$skips"' EXIT
namespace=
# In the pid namespace a shell is pid 1, and reaps orphans.
[ "$(id -u)" != 0 ] || namespace="unshare --pid --fork --kill-child --mount-proc"
failed=0
# shellcheck disable=SC2016,SC2086 # $namespace is a list of words; the inner shell expands "$@"
SPAWNFD_SKIPS=$skips $namespace sh -c '"$@"; exit $?' sh "$confine" --docker -- "$python" -m pytest -q -p no:cacheprovider "$@" \
    tests/test_actions.py tests/test_cases.py tests/test_child.py tests/test_options.py tests/test_run.py tests/test_terminal.py || failed=1
[ -z "${SPAWNFD_SKIPS:-}" ] || sed 's/^SKIP /SKIP [docker] /' "$skips" >>"$SPAWNFD_SKIPS"
exit $failed
