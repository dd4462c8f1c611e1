#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# Boots a kernel in QEMU, runs one command in the guest, and exits with its exit status. QEMU does not use KVM.
#
#   kernel/qemu/boot.sh [--time SECONDS] [--memory MIB] [--append WORDS] [--log FILE] [--count] [--shell] KERNEL ROOT COMMAND [ARGUMENT...]
#
# KERNEL   a bzImage with support for a serial console (8250), an initramfs, proc, sysfs and devtmpfs
# ROOT     a directory that stage.sh has filled. It becomes the guest's root file system, in memory, owned by root.
# COMMAND  words without quotes. Put longer commands into a script in ROOT. The script prints the command's output.
# --time   default 300; 0: no limit. --memory: default 1024. --append: more words for the kernel command line
# --log    the file for the kernel's messages
# --count  one CPU; the guest's clocks count its instructions. The same run gives the same figures, which are not times.
# --shell  the command gets this terminal
#
# Exit status: the command's; 124 if the guest exceeds the time limit; 125 if the guest ends without an exit status, or
# if the kernel's messages report a fault in the kernel.
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
# The initramfs is two archives, ROOT and init. With --count, the order and times of the files must not vary, because
# unpacking would then take a different number of instructions.
for directory in "$root" "$scratch/init"; do
    [ -z "$count" ] || find "$directory" -exec touch -h -d @0 {} +
    (cd "$directory" && find . -print0 | LC_ALL=C sort -z | cpio --quiet --null --create --format=newc --owner=0:0 --reproducible)
done >"$scratch/initramfs"

# With --count, the CPU has no ERMS and FSRM, because QEMU counts each iteration of a REP string instruction. It has no
# RDRAND and RDSEED, because random numbers must come from -seed.
if [ -n "$count" ]; then
    machine="-accel tcg,thread=single -icount shift=0,sleep=off -rtc base=2020-01-01,clock=vm -seed 1 -cpu max,la57=off,-erms,-fsrm,-rdrand,-rdseed -smp 1"
    append="norandmaps $append"
else
    machine="-accel tcg,thread=multi -cpu max,la57=off -smp 2"
fi
run() { # QEMU options for the serial port that carries the command's output
    # shellcheck disable=SC2086 # $machine is a list of options
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
    run -serial stdio </dev/null | cat # Without cat, QEMU would set O_NONBLOCK on an output that other processes share.
fi

case $(cat "$scratch/qemu" 2>/dev/null) in
124 | 137) echo "boot: not finished in $time s; the kernel's last messages:" >&2 && tail -n 20 "$log" >&2 && exit 124 ;;
esac
status=$(sed -n 's/^exit //p' "$scratch/answer")
[ -n "$status" ] || { echo "boot: the guest ended early; the kernel's last messages:" >&2 && tail -n 40 "$log" >&2 && exit 125; }
"$here/scan-log.sh" "$log" || exit 125
exit "$status"
