#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# Prints each message in a kernel's log that reports a fault in the kernel, and the 30 lines after it. The exit status
# is 1 if there is such a message.
#
#   kernel/qemu/scan-log.sh FILE
set -eu
faults='WARNING:|BUG:|\bBUG at|Oops|Kernel panic|general protection fault|KASAN|KCSAN|UBSAN|INFO: task .* blocked|possible circular locking|possible recursive locking|possible irq lock inversion|inconsistent lock state|inconsistent .* usage|bad unlock balance|lock held when returning|suspicious RCU usage|BUG kmalloc|unreferenced object|refcount_t:|list_(add|del) corruption|sleeping function called'
if grep -nE -A 30 "$faults" "$1"; then
    echo "scan-log: the kernel complains, see above" >&2
    exit 1
fi
