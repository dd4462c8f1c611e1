# SPDX-License-Identifier: MIT OR Apache-2.0
# For scripts of this directory, which source it with the root of the repository as the working directory: $scratch, a
# directory that the end of the script removes, also after a signal; $version, that of the packages; and fail().
# scratch_parent: where to make the directory, /tmp by default.

# shellcheck shell=sh disable=SC2034 # the scripts use the variables
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
scratch=$(mktemp -d "${scratch_parent:-${TMPDIR:-/tmp}}/spawnfd.XXXXXX")
trap 'rm -rf --one-file-system "$scratch"' EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

fail() {
    echo "$(basename "$0" .sh): $*" >&2
    exit 1
}
