#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# All checks that need no run of the code. Says what it runs; the first failure ends it.
set -eu
bin=$(pwd)/$1/bin

step() {
    echo "lint: $*"
    "$@"
}

step cargo fmt --all --check
step cargo clippy --workspace --all-targets --quiet -- -D warnings
RUSTDOCFLAGS="-D warnings" step cargo doc -p spawnfd -p spawnfd-child -p spawnfd-sys --no-deps --quiet
step "$bin/ruff" check bindings/python
step "$bin/ruff" format --check bindings/python
step "$bin/ruff" check bench/agent
step "$bin/ruff" format --check bench/agent
(cd bindings/python &&
    step "$bin/mypy" python &&
    step "$bin/pyright" --pythonpath "$bin/python" &&
    step "$bin/python" -m mypy.stubtest spawnfd --mypy-config-file pyproject.toml)
(cd bench/agent && step "$bin/mypy" --strict agentbench run.py)
git ls-files '*.c' '*.h' | xargs -r "$bin/clang-format" --dry-run -Werror
step scripts/check-tree.py
