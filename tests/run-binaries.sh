#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Runs test binaries one after the other. Prints the outcome of each, and the output of each that fails.
#
#   tests/run-binaries.sh PREFIX... <BINARIES       (each line has a path and options; runs PREFIX... PATH OPTIONS)
#
# Exits with status 1 if a binary fails. SPAWNFD_SUITE_TIME is the time limit of each binary in seconds; by default
# there is no limit.
# The tests themselves read SPAWNFD_SKIPS and TMPDIR.
set -eu
output=${TMPDIR:-/tmp}/output.$$
trap 'rm -f "$output"' EXIT
failed=0
while read -r binary options; do
    begun=$(date +%s) status=0
    # shellcheck disable=SC2086 # $options is a list of words
    timeout --kill-after=5 "${SPAWNFD_SUITE_TIME:-0}" "$@" "$binary" $options >"$output" 2>&1 </dev/null || status=$?
    name=$(basename "$binary" | sed 's/-[0-9a-f]*$//')
    printf '%-18s %s\n' "$name" "$(grep -a '^test result' "$output" | tail -n 1)"
    if [ "$status" -ne 0 ]; then
        failed=1
        echo "    exit status $status after $(($(date +%s) - begun)) s"
        grep -aE '^test .* FAILED$|^    [a-z_:0-9]+$' "$output" | sort -u | sed 's/^/    /'
        grep -avE '^test .* (ok|ignored.*)$|^SKIP ' "$output" | head -n "${SPAWNFD_LINES:-60}" | sed 's/^/    | /'
    fi
done
exit $failed
