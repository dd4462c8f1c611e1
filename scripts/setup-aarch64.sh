#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Installs what builds for aarch64 need, beside what setup.sh installs: a C compiler and libc from Debian, and Rust's
# standard library from rustup. Exits with status 1 if it cannot.
set -eu
target=aarch64-unknown-linux-gnu
missing=
command -v aarch64-linux-gnu-gcc >/dev/null 2>&1 || missing="$missing gcc-aarch64-linux-gnu"
[ -e /usr/aarch64-linux-gnu/lib/libc.a ] || missing="$missing libc6-dev-arm64-cross"
# shellcheck disable=SC2086 # a list of packages
[ -z "$missing" ] || "$(dirname "$0")/install-packages.sh" setup-aarch64 $missing
if ! ls "$(rustc --print target-libdir --target $target)"/libstd-*.rlib >/dev/null 2>&1; then
    if ! command -v rustup >/dev/null 2>&1; then
        echo "setup-aarch64: this Rust has no standard library for $target, and there is no rustup that could add it" >&2
        exit 1
    fi
    rustup --quiet target add $target
fi
