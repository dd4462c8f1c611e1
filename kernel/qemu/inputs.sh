#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# Prints a hash of what `make test-kernel` tests: the series, its launcher, and the suites that it boots.
# `make test-kernel` writes it to kernel/tested-inputs when it passes; .ci/run compares.
set -eu
cd "$(dirname "$0")/../.."
git ls-files -z --cached --others --exclude-standard -- kernel ':!kernel/tested-inputs' \
    crates/spawnfd/src/launch/kernel.rs crates/spawnfd-sys/src/builder.rs \
    tests/run-guest.sh tests/in-guest.sh tests/run-binaries.sh tests/src tests/suite/common \
    tests/suite/spawn tests/suite/job/jobs.rs tests/suite/job/limits.rs tests/suite/job/complaints |
    LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -d ' ' -f 1
