#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Installs what building, testing and measuring need: Debian packages where tools are missing, Python packages into a venv.
set -eu
python=$1
venv=$2

missing=
need() { # command, package
    command -v "$1" >/dev/null 2>&1 || missing="$missing $2"
}
need cc build-essential
need make make
need git git
need rg ripgrep
need node nodejs
need awk mawk
need find findutils
need perl perl-base
need diff diffutils
need patch patch
need jq jq
need curl curl
[ -e /etc/ssl/certs/ca-certificates.crt ] || missing="$missing ca-certificates"
need ssh openssh-client
need bwrap bubblewrap
need strace strace
need ps procps
need pkg-config pkg-config
[ -d /usr/share/zoneinfo ] || missing="$missing tzdata"
# Root's business: a test makes a file system that has reflinks, and mounts it.
[ "$(id -u)" != 0 ] || need mkfs.xfs xfsprogs
# As root, a test gives a program a capability.
[ "$(id -u)" != 0 ] || need setcap libcap2-bin
[ -x "$python" ] || missing="$missing python3"
"$python" -c 'import ensurepip, venv' 2>/dev/null || missing="$missing python3-venv"

install() { # packages
    "$(dirname "$0")/install-packages.sh" setup "$@"
}

# Debian keeps most of CPython's own tests apart from it; pyenv does not.
has_own_tests() {
    for each in /usr/bin/python3 "${PYENV_ROOT:-${HOME:-}/.pyenv}"/versions/3.1[1-3].*/bin/python3; do
        ! "$each" -c 'import test.test_subprocess' 2>/dev/null || return 0
    done
    return 1
}

has_chromium() {
    for each in chromium-headless-shell chromium chromium-browser google-chrome; do
        ! command -v "$each" >/dev/null 2>&1 || return 0
    done
    return 1
}

# shellcheck disable=SC2086 # a list of packages
[ -z "$missing" ] || install $missing
# They are skipped where there are none.
if [ "$(id -u)" = 0 ] && [ -x /usr/bin/python3 ] && ! has_own_tests; then
    own_tests=$(/usr/bin/python3 -c 'import sys; print("libpython%d.%d-testsuite" % sys.version_info[:2])')
    install "$own_tests" || echo "setup: no $own_tests: CPython's own tests are skipped" >&2
fi
# Without a browser, the test of the terminal in the browser is skipped.
if [ "$(id -u)" = 0 ] && ! has_chromium; then
    install chromium-headless-shell || echo "setup: no Chromium: the test of the terminal in it is skipped" >&2
fi
# sshd without its service, which the package would start.
if ! [ -x /usr/sbin/sshd ] && ! [ -x build/sshd/usr/sbin/sshd ]; then
    mkdir -p build/sshd
    if ! (
        install libwrap0 && cd build/sshd && apt-get download -qq openssh-server &&
            dpkg -x openssh-server_*.deb . && rm openssh-server_*.deb
    ); then
        echo "setup: no sshd: the tests over ssh are skipped" >&2
    fi
fi
scripts/setup-rust.sh
# setup-rust.sh may have put a link to cargo there.
PATH=$(pwd)/build/rust:$PATH

# The oldest compiler that the crates declare, for `make lint`.
oldest=$(sed -n 's/^rust-version = "\(.*\)"/\1.0/p' Cargo.toml)
if command -v rustup >/dev/null 2>&1 && ! cargo "+$oldest" --version >/dev/null 2>&1; then
    rustup --quiet toolchain install --profile minimal --no-self-update "$oldest" ||
        echo "setup: no Rust $oldest: make lint does not check with it" >&2
fi

# An interrupted set-up leaves a venv without pip.
"$venv/bin/python" -m pip --version >/dev/null 2>&1 || "$python" -m venv --clear "$venv"
"$venv/bin/python" -m pip install --quiet -r bindings/python/requirements-dev.txt -r bench/requirements.txt \
    -r examples/requirements.txt -r docs/site/requirements.txt
"$venv/bin/python" -m pip install --quiet --no-deps --require-hashes -r scripts/requirements.txt
