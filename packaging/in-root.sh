#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Runs a command as root in a copy of a root directory (root.sh), and then removes the copy.
#
#   packaging/in-root.sh [--network] [--bind SOURCE TARGET]... ROOT COMMAND [ARGUMENT...]
#
# --network  The command has the network of this machine, its resolver and certificates, and the settings of pip, cargo
#            and npm. Otherwise the command has no network.
# --bind     The command sees SOURCE at TARGET, read-only. The paths have no spaces.
#
# The command has namespaces of its own for mounts and processes, an empty /dev/shm, and /dev/null as standard input.
# When it ends, the kernel ends all its processes and removes all its mounts. It has a root of its own by pivot_root,
# because the kernel refuses user namespaces in a chroot.
set -eu
net=--net
binds=
while :; do
    case $1 in
    --network) net= ;;
    --bind)
        # Relative to the copy.
        binds="$binds $(realpath "$2") .$3"
        shift 2
        ;;
    *) break ;;
    esac
    shift
done
root=$1
shift
copy=$(mktemp -d "$(dirname "$root")/run.XXXXXX")
running=
# Process 1 of the namespace dies with its parent, and all processes of the namespace with process 1.
stop() { # exit status
    [ -z "$running" ] || kill -KILL "$running" 2>/dev/null || true
    exit "$1"
}
remove() {
    # A process may still have been writing.
    rm -rf --one-file-system "$copy" 2>/dev/null || { sleep 1 && rm -rf --one-file-system "$copy"; }
}
trap remove EXIT
trap 'stop 129' HUP
trap 'stop 130' INT
trap 'stop 143' TERM
cp -a --reflink=auto "$root/." "$copy"

# shellcheck disable=SC2016 # the inner shell expands the variables
set -- HOME=/root LANG=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    sh -c '"$@"; exit $?' sh "$@"
if [ -z "$net" ]; then
    cp -L --remove-destination /etc/resolv.conf "$copy/etc/resolv.conf"
    if [ -x "$copy/usr/sbin/update-ca-certificates" ] && [ -d /usr/local/share/ca-certificates ]; then
        cp -RL /usr/local/share/ca-certificates "$copy/usr/local/share/"
        chroot "$copy" update-ca-certificates >/dev/null 2>&1
    fi
    [ ! -f /etc/pip.conf ] || cp -L /etc/pip.conf "$copy/etc/pip.conf"
    for file in .config/pip/pip.conf .pip/pip.conf .cargo/config.toml .npmrc; do
        [ -f "${HOME:-/root}/$file" ] || continue
        mkdir -p "$copy/root/$(dirname "$file")"
        cp -L "${HOME:-/root}/$file" "$copy/root/$file"
    done
    # shellcheck disable=SC2013 # names of variables have no spaces
    for name in $(awk 'BEGIN {
        for (name in ENVIRON)
            if (name ~ /^[a-z]+_proxy$|^[A-Z]+_PROXY$/ ||
                name ~ /^PIP_(INDEX_URL|EXTRA_INDEX_URL|TRUSTED_HOST|CERT|TIMEOUT|DEFAULT_TIMEOUT)$/ ||
                name ~ /^(CARGO_HTTP|CARGO_NET|CARGO_REGISTRIES|CARGO_SOURCE|npm_config)_[A-Za-z0-9_]+$/ ||
                name ~ /^(SSL_CERT_(FILE|DIR)|CURL_CA_BUNDLE|REQUESTS_CA_BUNDLE|NODE_EXTRA_CA_CERTS|GIT_SSL_CAINFO)$/)
                print name
    }'); do
        eval "set -- \"$name=\$$name\" \"\$@\""
    done
fi

# The last shell is process 1: it reaps the processes that the command leaves.
# shellcheck disable=SC2016 # the inner shells expand the variables
inside='
    copy=$1
    binds=$2
    shift 2
    bind() { # source, target, ...
        while [ $# -gt 0 ]; do
            mkdir -p "$2"
            mount --bind "$1" "$2"
            mount -o remount,bind,ro "$2"
            shift 2
        done
    }
    mount --rbind "$copy" "$copy"
    cd "$copy"
    mount -t proc proc proc
    mount --rbind /dev dev
    mount -t tmpfs tmpfs dev/shm
    mount --rbind /sys sys
    bind $binds
    pivot_root . .
    umount -l .
    cd /
    exec env -i --default-signal=INT,QUIT "$@"
'
# shellcheck disable=SC2016,SC2086 # the last shell expands its arguments; the option is one word or none
unshare --mount --pid --fork --kill-child $net sh -euc "$inside" sh "$copy" "$binds" "$@" &
running=$!
# In the background, so that a signal takes effect at once. `wait` has the status of the command.
wait $running
