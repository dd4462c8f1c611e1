#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Installs what booting kernels in QEMU needs, beside what setup.sh installs: Debian packages where tools are missing.
set -eu
missing=
need() { # command, package
    command -v "$1" >/dev/null 2>&1 || missing="$missing $2"
}
need qemu-system-x86_64 qemu-system-x86
need qemu-system-aarch64 qemu-system-arm
need cpio cpio
need strip binutils
need dpkg-deb dpkg
need perl perl-base
# shellcheck disable=SC2086 # a list of packages
[ -z "$missing" ] || "$(dirname "$0")/install-packages.sh" setup-guest $missing
