#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Installs what root.sh and in-root.sh need, beside what scripts/setup.sh installs: Debian packages where tools are
# missing.
set -eu
missing=
need() { # command, package
    command -v "$1" >/dev/null 2>&1 || missing="$missing $2"
}
need mmdebstrap mmdebstrap
need unshare util-linux
need mount mount
if [ "$(id -u)" != 0 ]; then
    echo "setup-roots: root directories of Debian need root: run this as root" >&2
    exit 1
fi
# shellcheck disable=SC2086 # a list of packages
[ -z "$missing" ] || "$(dirname "$0")/../scripts/install-packages.sh" setup-roots $missing
