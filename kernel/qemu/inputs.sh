#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# Prints a hash of the files that a part of `make test-kernel` tests.
#
#   kernel/qemu/inputs.sh series     the kernel series and its selftests (`make test-kernel-series`)
#   kernel/qemu/inputs.sh library    these, the library code that uses the series, and the test suites that run in the
#                                    guest (`make test-kernel-library`)
#
# A part that passes writes its hash to kernel/tested-PART. .ci/run compares that file with the current hash.
set -eu
cd "$(dirname "$0")/../.."
case ${1:-} in
series) library= ;;
library)
    library="crates/spawnfd/src/launch/kernel.rs crates/spawnfd-sys/src/builder.rs
        crates/spawnfd-sys/src/spawn_abi.rs tests/run-guest.sh tests/in-guest.sh tests/run-binaries.sh tests/src
        tests/suite/common tests/suite/spawn tests/suite/job/jobs.rs tests/suite/job/limits.rs
        tests/suite/job/complaints"
    ;;
*) sed -n '3,9s/^# \{0,1\}//p' "$0" >&2 && exit 2 ;;
esac
# shellcheck disable=SC2086 # a list
git ls-files -z --cached --others --exclude-standard \
    -- kernel ':!kernel/tested-*' ':!kernel/qemu/inputs.sh' ':!kernel/*.md' $library |
    LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -d ' ' -f 1
