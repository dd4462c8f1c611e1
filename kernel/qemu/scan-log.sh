#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# Prints what in a kernel's messages tells of a fault in the kernel, with the lines after it; exit status 1 if there is any.
#
#   kernel/qemu/scan-log.sh FILE
set -eu
faults='WARNING:|BUG:|\bBUG at|Oops|Kernel panic|general protection fault|KASAN|KCSAN|UBSAN|INFO: task .* blocked|possible circular locking|possible recursive locking|possible irq lock inversion|inconsistent lock state|inconsistent .* usage|bad unlock balance|lock held when returning|suspicious RCU usage|BUG kmalloc|unreferenced object|refcount_t:|list_(add|del) corruption|sleeping function called'
if grep -nE -A 30 "$faults" "$1"; then
    echo "scan-log: the kernel complains, see above" >&2
    exit 1
fi
