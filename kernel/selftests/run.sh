#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# Runs the selftests that are in the script's directory, inside a guest. Prints the failures, the skipped tests, a line
# for each test program, and a summary.
#
#   run.sh TEST...
#
# The exit status is 1 if a test failed or did not finish, or if every test was skipped.
here=${0%/*}
passed=0 failed=0 skipped=0 status=0 ran=0
for test; do
    begun=$(cut -d . -f 1 /proc/uptime)
    "$here/$test" >/tmp/output 2>&1 </dev/null
    ended=$?
    totals=$(grep '^# Totals:' /tmp/output)
    count() { # KIND (pass, fail, ...): its number in the harness's line `# Totals:`
        echo "$totals" | sed -n "s/.* $1:\([0-9]*\).*/\1/p"
    }
    grep -E '# SKIP' /tmp/output | sed "s/^ok [0-9]* /[$test] SKIP /; s/ # SKIP / /"
    echo "$test: ${totals:-no totals} $(($(cut -d . -f 1 /proc/uptime) - begun)) s of the guest"
    grep -E '[0-9]+ runs and kills|^# wrong:' /tmp/output
    if [ "$ended" -ne 0 ] && [ "$ended" -ne 4 ] || [ -z "$totals" ]; then
        status=1
        echo "$test: exit status $ended"
        grep -vE '^#  *(RUN|OK)|^ok ' /tmp/output | head -n "${SELFTEST_LINES:-150}" | sed 's/^/    | /'
        [ -n "$totals" ] || tail -n 5 /tmp/output | sed 's/^/    | /'
    fi
    # The tests `global.abi` check struct layouts. They pass on every kernel, so they do not count as a test that ran.
    ran=$((ran + $(grep '^ok' /tmp/output | grep -vcE '# SKIP| global\.abi')))
    passed=$((passed + $(count pass) + 0)) failed=$((failed + $(count fail) + $(count error) + 0)) skipped=$((skipped + $(count skip) + 0))
done
[ "$ran" -gt 0 ] || { status=1 && echo "not one test ran"; }
[ "$failed" -eq 0 ] || status=1
echo "selftests: $passed passed, $failed failed, $skipped skipped"
exit $status
