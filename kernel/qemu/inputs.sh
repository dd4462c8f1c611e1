#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# Prints a hash of the files that `make test-kernel` tests: the kernel series, the library code that uses the series,
# and the test suites that run in the guest. If `make test-kernel` passes, it writes the hash to kernel/tested-inputs.
# .ci/run compares that file with the current hash.
set -eu
cd "$(dirname "$0")/../.."
git ls-files -z --cached --others --exclude-standard -- kernel ':!kernel/tested-inputs' \
    crates/spawnfd/src/launch/kernel.rs crates/spawnfd-sys/src/builder.rs crates/spawnfd-sys/src/spawn_abi.rs \
    tests/run-guest.sh tests/in-guest.sh tests/run-binaries.sh tests/src tests/suite/common \
    tests/suite/spawn tests/suite/job/jobs.rs tests/suite/job/limits.rs tests/suite/job/complaints |
    LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -d ' ' -f 1
