#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Finds a cargo that is new enough for this repository. If the cargo in PATH is missing or older than `rust-version` in
# Cargo.toml, the script says so, and installs the toolchain of rust-toolchain.toml by rustup into the user's directory.
#
# If PATH does not lead to the new cargo, the script makes the link build/rust to its directory. The Makefile puts
# build/rust first in PATH. The script changes no start-up file of a shell.
# RUSTUP_UPDATE_ROOT, CARGO_HOME and RUSTUP_HOME have the same meaning as for rustup.
set -eu
cd "$(dirname "$0")/.."
oldest=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
pinned=$(sed -n 's/^channel = "\(.*\)"/\1/p' scripts/rust-toolchain.toml)
components=$(sed -n 's/^components = \[\(.*\)\]/\1/p' scripts/rust-toolchain.toml | tr -d '" ')
cargo_home=${CARGO_HOME:-$HOME/.cargo}
# A release of rustup, and the SHA-256 of its rustup-init for x86_64.
rustup_release=1.28.2
rustup_sha256=20a06e644b0d9bd2fbdbfd52d42540bdde820ea7df86e92e533c073da0cdd43c

version() { # program
    "$1" --version 2>/dev/null | sed -n 's/^cargo \([0-9.]*\).*/\1/p'
}
is_new_enough() { # program
    found=$(version "$1")
    [ -n "$found" ] && printf '%s\n' "$oldest" "$found" | sort -C -V
}
give_up() { # reason
    echo "setup: $1" >&2
    echo "setup: install Rust $oldest or newer (https://rustup.rs, or a new package), and run this again" >&2
    exit 1
}
link() {
    mkdir -p build
    ln -sfn "$cargo_home/bin" build/rust
    echo "setup: make uses $cargo_home/bin/cargo; to use it yourself, add $cargo_home/bin to PATH"
}

rm -f build/rust
! is_new_enough cargo || exit 0
reason="cargo is missing"
[ -z "$found" ] || reason="cargo $found is older than $oldest"
if is_new_enough "$cargo_home/bin/cargo"; then
    link
    exit 0
fi

rustup=$(command -v rustup || command -v "$cargo_home/bin/rustup" || true)
if [ -n "$rustup" ]; then
    echo "setup: $reason: installing Rust $pinned for this checkout by $rustup"
    {
        "$rustup" --quiet toolchain install --profile minimal --component "$components" --no-self-update "$pinned" &&
            "$rustup" --quiet override set "$pinned"
    } || give_up "$reason, and rustup could not install Rust $pinned"
else
    echo "setup: $reason: installing rustup and Rust $pinned into $cargo_home and ${RUSTUP_HOME:-$HOME/.rustup}"
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    trap 'exit 129' HUP
    trap 'exit 130' INT
    trap 'exit 143' TERM
    file=x86_64-unknown-linux-gnu/rustup-init
    if [ -n "${RUSTUP_UPDATE_ROOT:-}" ]; then
        url=$RUSTUP_UPDATE_ROOT/dist/$file
    else
        url=https://static.rust-lang.org/rustup/archive/$rustup_release/$file
    fi
    curl --fail --silent --show-error --location --proto-redir =https --retry 3 --output "$scratch/rustup-init" "$url" ||
        give_up "$reason, and rustup cannot be downloaded from $url"
    # The owner of another server has chosen what it serves.
    [ -n "${RUSTUP_UPDATE_ROOT:-}" ] || echo "$rustup_sha256  $scratch/rustup-init" | sha256sum --check --quiet ||
        give_up "$reason, and $url does not have the expected SHA-256"
    chmod +x "$scratch/rustup-init"
    # Without the variable, rustup-init refuses to install beside an old cargo.
    RUSTUP_INIT_SKIP_PATH_CHECK=yes "$scratch/rustup-init" -y --quiet --no-modify-path --profile minimal \
        --component "$components" --default-toolchain "$pinned" ||
        give_up "$reason, and rustup could not install Rust $pinned"
fi
if ! is_new_enough cargo; then
    is_new_enough "$cargo_home/bin/cargo" ||
        give_up "$reason, and $cargo_home/bin/cargo is not a working cargo after the installation"
    link
fi
