#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# run-guest.sh starts this script as root in its guest. The script runs the suites as root and as an unprivileged user,
# each in its own cgroups.
#
#   tests/in-guest.sh DIRECTORY ACCOUNT...
#
# DIRECTORY  has root.list and user.list (the binaries to run), spawnfd-confine and run-binaries.sh
# root       an ACCOUNT: root, in a cgroup that root owns
# user       an ACCOUNT: uid 65534, in a cgroup below one that this user owns, as with systemd's Delegate=yes and
#            DelegateSubgroup=
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
for account; do
    group=$top/$account
    mkdir -p "$group/suites"
    sed 's/[a-z]\{1,\}/+&/g' "$group/cgroup.controllers" >"$group/cgroup.subtree_control"
    : >$SPAWNFD_SKIPS && chmod 666 $SPAWNFD_SKIPS
    prefix=
    if [ "$account" = user ]; then
        prefix="$here/spawnfd-confine --user $user --"
        for directory in "$group" "$group/suites"; do
            chown $user:$user "$directory"
            # The kernel lists the files that are safe to delegate. The user must own them.
            for file in $(cat /sys/kernel/cgroup/delegate); do
                [ ! -e "$directory/$file" ] || chown $user:$user "$directory/$file"
            done
        done
    fi
    echo "== $account"
    # shellcheck disable=SC2016,SC2086
    sh -c 'echo $$ >"$0/cgroup.procs" && exec "$@"' "$group/suites" "$here/run-binaries.sh" $prefix <"$here/$account.list" || failed=1
    left=$(find "$group" -mindepth 1 -type d ! -path "$group/suites")
    [ -z "$left" ] || { echo "    cgroups are left: $left" && failed=1; }
    sed "s/^/[$account] /" $SPAWNFD_SKIPS
done
exit $failed
