#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Prints the path of a root directory: a minimal Debian with some packages. If CACHE lacks the root, mmdebstrap makes
# it, from the mirror that this machine's apt uses. Needs root.
#
#   packaging/root.sh [--unpack ARCHITECTURE] CACHE SUITE [PACKAGE...]
#
# --unpack unpacks only the packages and those that they need, for this architecture. No script of a package runs.
#
# SUITE    bullseye, bookworm, trixie or sid
# PACKAGE  a name or a pattern of apt, as '?name(^python3\.[0-9]+-venv$)'
# CACHE    keeps one directory for each suite and list of packages. To get newer packages, remove the directory.
#
# The root is shared. To change files, use a copy (in-root.sh).
set -eu
options=--variant=minbase
if [ "$1" = --unpack ]; then
    options="--variant=extract --architectures=$2"
    shift 2
fi
cache=$1
suite=$2
shift 2
if [ "$(id -u)" != 0 ]; then
    echo "root: a root directory of Debian needs root: run this as root" >&2
    exit 1
fi
key=$({ cat "$0"; printf '%s\n' "$options" "$suite" "$@"; } | sha256sum | cut -c1-16)
root=$cache/$suite-$key
if [ ! -d "$root" ]; then
    mkdir -p "$cache"
    scratch=$(mktemp -d "$cache/new.XXXXXX")
    trap 'rm -rf --one-file-system "$scratch"' EXIT
    trap 'exit 129' HUP
    trap 'exit 130' INT
    trap 'exit 143' TERM
    # shellcheck disable=SC2016 # apt-get replaces the variable
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Identifier: Packages' 'Label: Debian' 2>/dev/null | head -n 1)
    # The machine's settings of the network, such as a proxy. The root's own apt needs them, too.
    apt-config dump | grep '^Acquire::' >"$scratch/apt.conf" || true
    for package; do
        options="$options --include=$package"
    done
    # The patterns have no spaces.
    # shellcheck disable=SC2086
    mmdebstrap --quiet --format=directory --aptopt="$scratch/apt.conf" $options \
        "$suite" "$scratch/root" "${mirror:-http://deb.debian.org/debian}" >&2
    # Another run may have been faster.
    mv -T "$scratch/root" "$root" 2>/dev/null || [ -d "$root" ]
fi
echo "$root"
