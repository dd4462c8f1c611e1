# SPDX-License-Identifier: MIT OR Apache-2.0
# Uses the static command. Runs in a shell of any root, as root, in a directory that has the file "spawnfd".
set -eu
umask 022

fail() {
    echo "smoke: $*" >&2
    exit 1
}
expect() { # what was expected, what was found
    [ "$1" = "$2" ] || fail "expected \"$1\", got \"$2\""
}

expect "spawnfd $VERSION" "$(./spawnfd --version)"

status=0
error=$(./spawnfd run --capture --timeout 1 -- sleep 5 2>&1) || status=$?
expect 124 $status
expect "spawnfd: the program timed out after 1 s (--timeout)" "$error"

status=0
output=$(./spawnfd run --capture -- sh -c 'echo out; exit 3') || status=$?
expect "out 3" "$output $status"

# The tree of the program ends with it, also a process with a session of its own.
./spawnfd run --capture --tree subreaper -- sh -c 'setsid sleep 987 & echo $! >pid'
! kill -0 "$(cat pid)" 2>/dev/null || fail "process $(cat pid) has survived"
rm pid

status=0
error=$(./spawnfd run -- no-such-program 2>&1) || status=$?
expect 127 $status
case $error in *"no-such-program: not found in PATH"*) ;; *) fail "unexpected error: $error" ;; esac

./spawnfd doctor >report || fail "doctor: $?"
grep -q "spawnfd     $VERSION: spawns with " report || fail "unexpected report: $(cat report)"
rm report
case $(./spawnfd warm explain -- sleep 0) in
"cold: needs glibc"*) ;;
*) fail "warm starts are not refused as they should be" ;;
esac
echo "smoke: passed"
