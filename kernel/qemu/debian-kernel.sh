#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# Prints the path of a Debian release's kernel. If CACHE lacks that kernel, the script downloads the package with apt,
# which checks its signature, and unpacks the package without installing it.
#
#   kernel/qemu/debian-kernel.sh RELEASE CACHE
#
# RELEASE  bookworm (Linux 6.1) or bullseye (5.10)
# CACHE    a directory that keeps one file for each release and version. To get a newer version, remove the old file.
set -eu
release=$1
cache=$2
package=linux-image-cloud-amd64

found=$(find "$cache" -name "vmlinuz-$release-*" 2>/dev/null | sort -V | tail -n 1)
if [ -z "$found" ]; then
    mkdir -p "$cache"
    scratch=$(mktemp -d "$cache/XXXXXX")
    trap 'rm -rf "$scratch"' EXIT
    mkdir -p "$scratch/lists/partial" "$scratch/archives/partial"
    keys=signed-by=/usr/share/keyrings/debian-archive-keyring.gpg
    printf '%s\n' "deb [$keys] http://deb.debian.org/debian $release main" \
        "deb [$keys] http://deb.debian.org/debian-security $release-security main" >"$scratch/sources"
    # apt uses this machine's network settings, but its own sources, package lists and caches.
    apt="-qq -o Dir::Etc::SourceList=$scratch/sources -o Dir::Etc::SourceParts=- -o Dir::State::Lists=$scratch/lists
        -o Dir::State::Status=/dev/null -o Dir::Cache=$scratch -o APT::Sandbox::User= -o Acquire::Languages=none"
    # shellcheck disable=SC2086 # words
    {
        apt-get $apt update >&2
        image=$(apt-cache $apt depends $package | sed -n 's/^ *Depends: //p')
        (cd "$scratch" && apt-get $apt download "$image" >&2)
    }
    dpkg-deb -x "$scratch"/linux-image-*.deb "$scratch/unpacked"
    image=$(ls "$scratch"/unpacked/boot/vmlinuz-*)
    version=$(dpkg-deb -f "$scratch"/linux-image-*.deb Version)
    found=$cache/vmlinuz-$release-$version
    mv "$image" "$found"
fi
echo "$found"
