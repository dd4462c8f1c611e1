#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# Boots a kernel in QEMU (emulated, so slow, and no KVM is needed), runs one command there, and ends as the command did.
#
#   kernel/qemu/boot.sh [--time SECONDS] [--memory MIB] [--append WORDS] [--log FILE] [--count] [--shell] KERNEL ROOT COMMAND [ARGUMENT...]
#
# KERNEL  a bzImage. It needs a serial console (8250), an initramfs, proc, sysfs and devtmpfs.
# ROOT    a directory with what the command needs (stage.sh fills one); becomes the root file system, in memory, owned by root
# COMMAND words without quotes; what is longer goes into a script in ROOT. Its output is this script's.
# --time  limit, 300 by default; --memory 1024 by default; --append: more words for the kernel's command line;
# --log   where the kernel's messages are kept
# --count the guest's clocks count instructions, of one CPU: the same run gives the same figures, and they are no time
# --shell the command has this terminal; --time 0: no limit
#
# exit status: the command's; 124 if the guest has not finished in time; 125 if it ended without saying how, or the
# kernel's messages tell of a fault in the kernel
set -eu
here=$(dirname "$0")
time=300 memory=1024 append='' log= count= shell=
while :; do
    case ${1:-} in
    --time) time=$2 ;;
    --memory) memory=$2 ;;
    --append) append=$2 ;;
    --log) log=$2 ;;
    --count) count=1 && shift && continue ;;
    --shell) shell=1 && shift && continue ;;
    *) break ;;
    esac
    shift 2
done
[ $# -ge 3 ] || { sed -n '3,17s/^# \{0,1\}//p' "$0" >&2 && exit 2; }
kernel=$1 root=$2
shift 2
case $* in *[\"\']*) echo "boot: no quotes in the command" >&2 && exit 2 ;; esac

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
log=${log:-$scratch/log}
mkdir "$scratch/init"
cc -O2 -Wall -Werror -static -o "$scratch/init/init" "$here/init.c"
# The kernel unpacks one archive after the other. Their order and times count as well.
for directory in "$root" "$scratch/init"; do
    [ -z "$count" ] || find "$directory" -exec touch -h -d @0 {} +
    (cd "$directory" && find . -print0 | LC_ALL=C sort -z | cpio --quiet --null --create --format=newc --owner=0:0 --reproducible)
done >"$scratch/initramfs"

# REP string instructions count each iteration, and random numbers are the same only without the CPU's.
if [ -n "$count" ]; then
    machine="-accel tcg,thread=single -icount shift=0,sleep=off -rtc base=2020-01-01,clock=vm -seed 1 -cpu max,la57=off,-erms,-fsrm,-rdrand,-rdseed -smp 1"
    append="norandmaps $append"
else
    machine="-accel tcg,thread=multi -cpu max,la57=off -smp 2"
fi
run() { # the command's port
    # shellcheck disable=SC2086 # options
    timeout --foreground --kill-after=5 "$time" qemu-system-x86_64 -nodefaults -display none -no-reboot -machine pc $machine -m "$memory" \
        -kernel "$kernel" -initrd "$scratch/initramfs" -append \
        "console=ttyS0 panic=-1 nokaslr nowatchdog random.trust_cpu=on mitigations=off $append -- ${shell:+shell }run $command" \
        -serial "file:$log" "$@" -serial "file:$scratch/answer" || echo $? >"$scratch/qemu"
}
status=0
command=$*
if [ -n "$shell" ]; then
    run -chardev stdio,id=terminal,signal=off -serial chardev:terminal
else
    run -serial stdio </dev/null | cat # QEMU makes its output non-blocking, also for whoever shares it.
fi

case $(cat "$scratch/qemu" 2>/dev/null) in
124 | 137) echo "boot: not finished in $time s; the kernel's last messages:" >&2 && tail -n 20 "$log" >&2 && exit 124 ;;
esac
status=$(sed -n 's/^exit //p' "$scratch/answer")
[ -n "$status" ] || { echo "boot: the guest ended early; the kernel's last messages:" >&2 && tail -n 40 "$log" >&2 && exit 125; }
"$here/scan-log.sh" "$log" || exit 125
exit "$status"
