#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Runs some suites in a virtual machine (guest) with another kernel: the suites that need cgroup controllers, and those
# that depend on the kernel's age.
#
#   tests/run-guest.sh CACHE [RELEASE...]      (default: bookworm, which has Linux 6.1; bullseye has 5.10; or a kernel image)
#
# Tests of cgroups run as root and as an unprivileged user with a delegated cgroup, the others only as root
# (in-guest.sh). The guest is 20 times slower, so tests that give a program little time do not run (most of complaints).
# SPAWNFD_SUITES: another selection, for both users; `binary=part` runs the tests whose names contain the part.
# SPAWNFD_GUEST_TIME: the time limit of each kernel, in seconds.
# The script uses the caller's toolchain and CARGO_TARGET_DIR.
set -eu
cd "$(dirname "$0")/.."
cache=$1
shift
groups=${SPAWNFD_SUITES:-tree=trees:: tree=guard:: job=jobs:: job=limits:: job=limiter:: spawn=a_cgroup spawn=blocking::terminals_and_cgroups
    job=a_fork_bomb_reaches_the_pids_limit_in_a_cgroup}
others=${SPAWNFD_SUITES:-spawn=errors:: spawn=fallbacks:: spawn=killed:: spawn=asynchronous:: tools=oracle:: job=run:: spawn=snapshot::
    spawn=thread_authority::}

temporary=$(mktemp -d "${TMPDIR:-/tmp}/spawnfd-guest.XXXXXX")
trap 'rm -rf "$temporary"' EXIT
built=$(tests/built.py -p spawnfd-tests)
target=$(dirname "$(dirname "$(echo "$built" | head -n 1)")")
root=$temporary/root
mkdir -p "$root/suites"
of() { # binary=part, including the launchers that `make test` leaves out
    for suite; do
        echo "$built" | sed -nE "s|.*/${suite%=*}-[0-9a-f]*\$|& ${suite#*=} --include-ignored --skip on_purpose|p"
    done
}
# shellcheck disable=SC2086 # lists
of $groups >"$root/suites/user.list"
# shellcheck disable=SC2086
of $groups $others | sort -u >"$root/suites/root.list"
# The programs that the suites and their shell scripts call.
packages="bash coreutils dash findutils grep mawk mount perl-base procps sed util-linux util-linux-extra"
# shellcheck disable=SC2086 # a list
tools=$(dpkg -L $packages | grep -E '/bin/|/sbin/|/perl' | while read -r file; do [ ! -f "$file" ] || echo "$file"; done)
# shellcheck disable=SC2046,SC2086 # lists
kernel/qemu/stage.sh "$root" $tools $(cut -d " " -f 1 "$root/suites/root.list") "$target"/spawnfd-oracle "$target"/spawnfd-fds "$target"/spawnfd-confine
[ -e "$root/bin/awk" ] || ln -s mawk "$root/bin/awk"
cp tests/in-guest.sh tests/run-binaries.sh "$target/spawnfd-confine" "$root/suites"

failed=0
for release in ${*:-bookworm}; do
    echo "== $release"
    [ -f "$release" ] && kernel=$release || kernel=$(kernel/qemu/debian-kernel.sh "$release" "$cache")
    {
        kernel/qemu/boot.sh --time "${SPAWNFD_GUEST_TIME:-3600}" --memory 2048 "$kernel" "$root" /suites/in-guest.sh /suites root user ||
            echo $? >"$temporary/failed"
    } | tee "$temporary/output" | grep --line-buffered -v '\] SKIP '
    [ ! -e "$temporary/failed" ] || failed=1
    skips=$(sed -n "s/^\[\([a-z]*\)\] SKIP /[$(basename "$release"), \1] SKIP /p" "$temporary/output")
    echo "$skips" | sed 's/::[a-z_0-9]* / /' | sort -u | cut -c1-150 | sed 's/^/    /'
    [ -z "${SPAWNFD_SKIPS:-}" ] || echo "$skips" >>"$SPAWNFD_SKIPS"
done
exit $failed
