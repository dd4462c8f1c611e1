#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# What run-guest.sh runs in the guest, as root: the suites as root and as an unprivileged user, each with cgroups of their own.
#
#   tests/in-guest.sh DIRECTORY WAY...
#
# DIRECTORY  root.list and user.list, which say what to run; spawnfd-confine; run-binaries.sh
# root       in a cgroup of root's
# user       as uid 65534, in a cgroup below one that is that user's, as systemd's Delegate=yes and DelegateSubgroup= make it
set -eu
here=$1
shift
user=65534
top=/sys/fs/cgroup
export SPAWNFD_AS_IS=1 SPAWNFD_SUITE_TIME=1200 SPAWNFD_SKIPS=/tmp/skips

uname -sr
for controller in memory pids cpu; do
    echo "+$controller" >$top/cgroup.subtree_control || echo "no controller $controller"
done

failed=0
for way; do
    group=$top/$way
    mkdir -p "$group/suites"
    sed 's/[a-z]\{1,\}/+&/g' "$group/cgroup.controllers" >"$group/cgroup.subtree_control"
    : >$SPAWNFD_SKIPS && chmod 666 $SPAWNFD_SKIPS
    prefix=
    if [ "$way" = user ]; then
        prefix="$here/spawnfd-confine --user $user --"
        for directory in "$group" "$group/suites"; do
            chown $user:$user "$directory"
            # What the kernel lists as safe to delegate.
            for file in $(cat /sys/kernel/cgroup/delegate); do
                [ ! -e "$directory/$file" ] || chown $user:$user "$directory/$file"
            done
        done
    fi
    echo "== $way"
    # shellcheck disable=SC2016,SC2086
    sh -c 'echo $$ >"$0/cgroup.procs" && exec "$@"' "$group/suites" "$here/run-binaries.sh" $prefix <"$here/$way.list" || failed=1
    left=$(find "$group" -mindepth 1 -type d ! -path "$group/suites")
    [ -z "$left" ] || { echo "    cgroups are left: $left" && failed=1; }
    sed "s/^/[$way] /" $SPAWNFD_SKIPS
done
exit $failed
