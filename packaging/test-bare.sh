#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Runs `make demo` in a minimal Debian 12 and 13 that has only make, git and a network: set-up installs all the rest.
# Needs root, and a Rust toolchain on this machine.
#
#   packaging/test-bare.sh [SUITE...]
#
# FULL=1: `make test`, too. REAL=1: rustup comes from its server, and not from the stand-in. The stand-in is a script in
# place of rustup-init. It installs links to the toolchain of this machine.
# CACHE: the directory of the roots, /var/cache/spawnfd by default.
#
# The script tests the commit of HEAD, in a clone of its own.
set -u
cd "$(dirname "$0")/.." || exit
[ $# -gt 0 ] || set -- bookworm trixie
packaging/setup-roots.sh || exit
roots=${CACHE:-/var/cache/spawnfd}/roots
commit=$(git rev-parse HEAD) || exit
repository=$(git rev-parse --path-format=absolute --git-common-dir) || exit
toolchain=$(rustc --print sysroot) || exit
limit=3600
targets=demo
[ -z "${FULL:-}" ] || targets="demo test"

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
stand_in=$scratch/dist/$(uname -m)-unknown-linux-gnu/rustup-init
mkdir -p "$(dirname "$stand_in")"
cat >"$stand_in" <<'END'
#!/bin/sh
set -eu
echo "stand-in for rustup-init: $*"
bin=${CARGO_HOME:-$HOME/.cargo}/bin
mkdir -p "$bin"
ln -s /mnt/toolchain/bin/* "$bin"
END
chmod +x "$stand_in"

# In a root of the suite, with a clone of the repository as working directory. By --foreground, in-root.sh stays in the
# process group that gets Ctrl-C.
inside() { # script
    root=$(packaging/root.sh "$roots" "$suite" ca-certificates git make) &&
        timeout --foreground $limit packaging/in-root.sh --network --bind "$repository" /mnt/repository \
            --bind "$scratch" /mnt/rustup --bind "$toolchain" /mnt/toolchain "$root" sh -euc "
                git clone --quiet /mnt/repository /root/spawnfd
                cd /root/spawnfd
                git checkout --quiet $commit
                export RUSTUP_UPDATE_ROOT=file:///mnt/rustup
                $1" 2>&1 | tee "$scratch/output" | sed -u "s/^/$suite: /" >&2
}
expect() { # what the output must have
    if ! grep -qF "$1" "$scratch/output"; then
        echo "test-bare: $suite: $case: the output lacks: $1"
        failed=1
    fi
}

failed=0
for suite; do
    case="no toolchain"
    real=
    [ -z "${REAL:-}" ] || real="unset RUSTUP_UPDATE_ROOT"
    inside "$real
        make $targets
        echo make $targets: passed"
    expect "setup: cargo is missing: installing rustup and Rust"
    [ -n "$real" ] || expect "stand-in for rustup-init: -y"
    expect "make $targets: passed"

    case="toolchain in PATH"
    inside "ln -s /mnt/toolchain/bin/* /usr/local/bin
        make setup
        [ ! -e build/rust ] && [ ! -e /root/.cargo/bin ] && echo nothing was installed"
    expect "nothing was installed"

    case="rustup unreachable"
    inside "export RUSTUP_UPDATE_ROOT=file:///nonexistent
        ! make setup || echo set-up passed
        [ ! -e build/venv ] && echo set-up stopped"
    expect "setup: cargo is missing, and rustup cannot be downloaded from file:///nonexistent"
    expect "setup: install Rust"
    expect "set-up stopped"
done
[ $failed = 1 ] || echo "test-bare: $*: ok"
exit $failed
