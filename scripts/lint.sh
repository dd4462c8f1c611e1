#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# The checks that do not run the code, and the unit tests with the oldest compiler. Prints each command. The first
# failure ends the script.
# test-kernel checks the kernel's headers, which come out of its build.
set -eu
bin=$(pwd)/$1/bin

step() {
    echo "lint: $*"
    "$@"
}

step cargo fmt --all --check
step cargo clippy --workspace --all-targets --quiet -- -D warnings
for features in "" tree warm; do
    step cargo clippy -p spawnfd --no-default-features --features "$features" --all-targets --quiet -- -D warnings
done
# The code of libspawnfd-spawn.so.
step cargo clippy -p spawnfd-capi --profile preload --no-default-features --quiet -- -D warnings
# Without features: at most 12 packages, the crate itself included, and no C compiler.
packages=$(cargo tree -p spawnfd --no-default-features -e normal,build --prefix none)
packages=$(echo "$packages" | cut -d " " -f 1 | sort -u)
if [ "$(echo "$packages" | wc -l)" -gt 12 ] || echo "$packages" | grep -qx cc; then
    printf 'lint: too many packages, or a C compiler, without features:\n%s\n' "$packages" >&2
    exit 1
fi
# The oldest compiler that the crates declare. Clippy's incompatible_msrv knows only std's functions.
oldest=$(sed -n 's/^rust-version = "\(.*\)"/\1.0/p' Cargo.toml)
if cargo "+$oldest" --version >/dev/null 2>&1; then
    step cargo "+$oldest" check --workspace --all-targets --all-features --quiet
    step cargo "+$oldest" check -p spawnfd --no-default-features --all-targets --quiet
    step cargo "+$oldest" test -p spawnfd --lib --quiet
else
    echo "lint: skipped: Rust $oldest is not installed (rustup toolchain install --profile minimal $oldest)"
fi
# The other processor. `make test-aarch64` runs the code.
if scripts/setup-aarch64.sh; then
    CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
        step cargo check --workspace --all-targets --target aarch64-unknown-linux-gnu --quiet
else
    echo "lint: skipped: the crates are not checked for aarch64"
fi
# Compares the API with the newest release. Building the tool takes minutes, so it is built when there is a release.
release=$(git tag --list 'v*' --sort=-version:refname | head -n 1)
if [ -n "$release" ]; then
    tools=$CARGO_TARGET_DIR/tools
    [ -x "$tools/bin/cargo-semver-checks" ] ||
        step cargo install --quiet --locked --root "$tools" --target-dir "$tools/build" cargo-semver-checks
    PATH=$tools/bin:$PATH step cargo semver-checks --package spawnfd --baseline-rev "$release"
else
    echo "lint: skipped: there is no release to compare the API with"
fi
# The guard's program, which cargo does not know: build.rs compiles it.
helper=crates/spawnfd-guard/src/helper.rs
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
step rustfmt --check --edition 2024 "$helper"
step clippy-driver --edition=2024 --crate-type=bin -Cpanic=abort --emit=metadata --out-dir "$scratch" -D warnings \
    -D clippy::all -D clippy::undocumented_unsafe_blocks "$helper"
RUSTDOCFLAGS="-D warnings" step cargo doc -p spawnfd -p spawnfd-child -p spawnfd-sys -p spawnfd-guard -p spawnfd-parked -p spawnfd-remote -p spawnfd-capi --all-features --no-deps --quiet
step "$bin/ruff" check bindings/python
step "$bin/ruff" format --check bindings/python
step "$bin/ruff" check bench
step "$bin/ruff" format --check bench
typed="$(echo scripts/check-*.py) scripts/cycles.py tests/run.py tests/built.py $(echo tests/test_*.py)"
step "$bin/ruff" check --config bench/ruff.toml $typed
step "$bin/ruff" format --check --config bench/ruff.toml $typed
MYPYPATH=docs/site step "$bin/mypy" --strict $typed
step "$bin/ruff" check packaging
step "$bin/ruff" format --check packaging
step "$bin/mypy" --strict packaging/check_root.py packaging/smoke.py packaging/images.py packaging/arm64/programs.py
# The oldest Python that the package supports.
step "$bin/ruff" check --config bench/ruff.toml --target-version py310 examples tests/examples
step "$bin/ruff" format --check --config bench/ruff.toml --target-version py310 examples tests/examples
step "$bin/mypy" --strict examples tests/examples
step "$bin/ruff" check --config bench/ruff.toml docs/site
step "$bin/ruff" format --check --config bench/ruff.toml docs/site
step "$bin/mypy" --strict docs/site
(cd bindings/python &&
    step "$bin/mypy" python &&
    step "$bin/pyright" --pythonpath "$bin/python" &&
    step "$bin/python" -m mypy.stubtest spawnfd._spawnfd spawnfd.asyncio spawnfd.subprocess --mypy-config-file pyproject.toml)
types=$(mktemp -d)
(cd bindings/node && step node_modules/.bin/tsc --emitDeclarationOnly --declarationDir "$types")
step diff -r bindings/node/types "$types"
rm -r "$types"
step "$bin/ruff" check --config bench/ruff.toml scripts/generate
step "$bin/ruff" format --check --config bench/ruff.toml scripts/generate
(cd scripts/generate && step "$bin/mypy" --strict ./*.py)
(cd bench/agent && MYPYPATH=.. step "$bin/mypy" --strict agentbench run.py)
(cd bench/compare && MYPYPATH=..:../job:../native:../warm step "$bin/mypy" --strict comparebench run.py)
(cd bench/job && MYPYPATH=.. step "$bin/mypy" --strict jobbench run.py)
(cd bench/warm && MYPYPATH=.. step "$bin/mypy" --strict warmbench run.py)
(cd bench/count && MYPYPATH=.. step "$bin/mypy" --strict run.py)
(cd bench/kernel && MYPYPATH=.. step "$bin/mypy" --strict run.py)
(cd bench/native && MYPYPATH=.. step "$bin/mypy" --strict nativebench run.py)
(cd bench/node && MYPYPATH=.. step "$bin/mypy" --strict nodebench run.py)
(cd bench/package && MYPYPATH=.. step "$bin/mypy" --strict run.py)
(cd bench/remote && MYPYPATH=.. step "$bin/mypy" --strict remotebench run.py)
(cd bench/posix && MYPYPATH=.. step "$bin/mypy" --strict posixbench run.py)
# cbindgen writes include/spawnfd.h.
git ls-files '*.c' '*.h' ':!include' | xargs -r "$bin/clang-format" --dry-run -Werror
# Checks each header by itself, with the options of the source files.
git ls-files 'crates/*.h' | xargs -rI{} cc -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -fsyntax-only -x c -include {} /dev/null
# Its advisories are left out: their database has to be fetched.
step "$bin/cargo-deny" --locked check licenses bans sources
step scripts/check-tree.py
step scripts/check-examples.py
step scripts/check-language.py
step scripts/cycles.py crates/*/src crates/*/src/*/ crates/spawnfd-parked bindings/*/src bindings/python/python/spawnfd \
    bindings/python/python/spawnfd/ray
step scripts/protocol.py --check
step "$bin/python" scripts/generate --check
