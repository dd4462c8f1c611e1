#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Installs the tools that build the packages into a venv, unless the venv already has them. Prints the venv's path.
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
printf '%s\n' "$venv"
