#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Installs the packages that `make packages` built in Debian 11, 12, 13 and sid, uses them, and removes them again.
# Needs root.
#
#   packaging/test.sh PACKAGES [SUITE...]
#
# Each suite has two roots (root.sh). The root without a compiler gets the Python package, by pip and by uv, in each
# CPython of the suite, and the command. The root with a compiler gets the C library. check_root.py has the checks. They
# run without a network, in a copy of the root. The last lines are the summary of each suite.
# CACHE: the directory of the roots, /var/cache/spawnfd by default.
set -u
cd "$(dirname "$0")/.." || exit
packages=$(realpath "$1") || exit
shift
[ $# -gt 0 ] || set -- bullseye bookworm trixie sid
packaging/setup-roots.sh || exit
cache=${CACHE:-/var/cache/spawnfd}
roots=$cache/roots
mkdir -p "$cache" || exit
# On the file system of the cache, so that mv is atomic.
scratch=$(mktemp -d "$cache/test.XXXXXX") || exit
running=
# shellcheck disable=SC2317 # the traps call it
stop() { # exit status
    # in-root.sh removes its copy of the root.
    [ -z "$running" ] || { kill "$running" 2>/dev/null; wait "$running"; }
    exit "$1"
}
trap 'rm -rf "$scratch"' EXIT
trap 'stop 129' HUP
trap 'stop 130' INT
trap 'stop 143' TERM

# The roots have no network, so they get uv's wheel as a file.
wheels=$cache/uv-$(sha256sum packaging/requirements-roots.txt | cut -c1-16)
if [ ! -d "$wheels" ]; then
    build/venv/bin/python -m pip download --quiet --no-deps --only-binary :all: --dest "$scratch/wheels" \
        --requirement packaging/requirements-roots.txt || exit
    # Another run may have been faster.
    mv -T "$scratch/wheels" "$wheels" 2>/dev/null || [ -d "$wheels" ] || exit
fi

make_root() { # kind
    if [ "$1" = library ]; then
        packaging/root.sh "$roots" "$suite" gcc libc6-dev make pkg-config python3
    else
        packaging/root.sh "$roots" "$suite" python3 '?name(^python3\.[0-9]+-venv$)' \
            bash-completion fish git make ripgrep zsh
    fi
}

# Runs a check in a copy of the root. In the background, so that a signal takes effect at once.
check() { # root, kind
    packaging/in-root.sh --bind "$PWD" /mnt/checkout --bind "$packages" /mnt/packages --bind "$wheels" /mnt/wheels "$1" \
        python3 /mnt/checkout/packaging/check_root.py "$2" /mnt/checkout /mnt/packages /mnt/wheels >"$scratch/passed" &
    running=$!
    wait $running
    status=$?
    running=
    return $status
}

failed=0
for suite; do
    line=
    for kind in python command library; do
        echo "test-packages: $suite: $kind"
        # A SIGTERM to this script alone waits for make_root.
        if root=$(make_root $kind) && check "$root" $kind; then
            line="${line:+$line, }$(cat "$scratch/passed")"
        else
            line="${line:+$line, }$kind FAILED"
            failed=1
        fi
    done
    echo "$suite: $line" >>"$scratch/summary"
done
echo
cat "$scratch/summary"
exit $failed
