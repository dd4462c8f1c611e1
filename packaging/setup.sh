#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Installs the tools that build the packages into a venv, unless the venv already has them. Prints the venv's path.
#
#   packaging/setup.sh [TARGET]
#
# TARGET: rustup also installs Rust's standard library for this target, unless the compiler already has it.
set -eu
python=/usr/bin/python3
root=$(cd "$(dirname "$0")/.." && pwd)
venv=$root/build/packaging-venv
ready=$venv/.ready

wanted=$(cat "$root/packaging/requirements.txt" "$root/bindings/python/requirements-dev.txt")
if [ "$(cat "$ready" 2>/dev/null)" != "$wanted" ]; then
    "$python" -m venv --clear "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r "$root/packaging/requirements.txt" >&2
    printf '%s\n' "$wanted" >"$ready"
fi

if [ $# -gt 0 ] && [ ! -d "$(rustc --print target-libdir --target "$1")" ] && ! rustup --quiet target add "$1" >&2; then
    echo "setup: Rust's standard library for $1 is missing, and rustup cannot install it" >&2
    exit 1
fi
printf '%s\n' "$venv"
