#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Boots an arm64 Debian in QEMU, and runs commands there as root, without a network. Emulation of system calls alone
# would not do, because QEMU's has no vfork.
#
#   packaging/in-arm64.sh [--time SECONDS] [--kernel FLAVOUR] [--files DIRECTORY] [--count] ROOT DIRECTORY COMMANDS
#
# ROOT       a root with linux-image-arm64, busybox-static and bash (root.sh --unpack arm64). Its kernel has no modules.
# DIRECTORY  the guest has a copy of it, /work, as the working directory
# COMMANDS   a script for bash -e
# --time     the time limit of the guest, 900 seconds by default
# --kernel   arm64 by default; arm64-16k has pages of 16 KiB, and ROOT needs linux-image-arm64-16k for it
# --files    a directory whose files the guest has at the same paths
# --count    one CPU; the guest's clocks count its instructions, 16 at a time
set -eu
time=900 flavour=arm64 files=
machine="-smp 2" append=quiet
while :; do
    case $1 in
    --time) time=$2 ;;
    --kernel) flavour=$2 ;;
    --files) files=$2 ;;
    --count)
        machine="-smp 1 -accel tcg,thread=single -icount shift=0,sleep=off -rtc base=2020-01-01,clock=vm -seed 1"
        append="quiet norandmaps nokaslr nowatchdog mitigations=off"
        shift && continue
        ;;
    *) break ;;
    esac
    shift 2
done
root=$1
directory=$2
commands=$3
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

mkdir "$scratch/guest"
cp -a --reflink=auto "$directory" "$scratch/guest/work"
printf '%s\n' "$commands" >"$scratch/guest/commands"
cat >"$scratch/guest/init" <<'EOF'
#!/bin/busybox sh
export HOME=/root LANG=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin
for each in proc:/proc sysfs:/sys devtmpfs:/dev cgroup2:/sys/fs/cgroup; do
    busybox mount -t "${each%:*}" none "${each#*:}"
done
mkdir /dev/shm /dev/pts
busybox mount -t tmpfs none /dev/shm
busybox mount -t devpts -o ptmxmode=0666 none /dev/pts
# DIRECTORY of --files may have files in /tmp, so nothing is mounted there.
busybox mkdir -p /tmp
busybox chmod 1777 /dev/shm /tmp
busybox ln -s /proc/self/fd /dev/fd
for each in 0:stdin 1:stdout 2:stderr; do
    busybox ln -s "/proc/self/fd/${each%:*}" "/dev/${each#*:}"
done
# The limits that systemd sets.
ulimit -Hn 524288
cd /work
bash -e /commands
echo "in-arm64: exit status $?"
busybox poweroff -f
EOF
chmod +x "$scratch/guest/init"
archive() { # directory
    (cd "$1" && find . \( -path ./boot -o -path ./usr/lib/modules -o -path ./usr/share/doc -o -path ./usr/share/locale \) \
        -prune -o -print0 | cpio --quiet --null -o -H newc --owner=0:0)
}
# The kernel unpacks all archives.
{
    archive "$root"
    [ -z "$files" ] || archive "$files"
    archive "$scratch/guest"
} >"$scratch/initrd"
# The processor has all extensions that QEMU knows, such as signed return addresses. `pauth-impdef` makes these fast.
# shellcheck disable=SC2086 # a list of options
timeout "$time" qemu-system-aarch64 -M virt -cpu max,pauth-impdef=on $machine -m 4096 -net none -nographic -no-reboot \
    -kernel "$root"/boot/vmlinuz-*-"$flavour" -initrd "$scratch/initrd" \
    -append "console=ttyAMA0 panic=-1 $append" </dev/null |
    sed -u 's/\r//g' | tee "$scratch/console"
grep -qx 'in-arm64: exit status 0' "$scratch/console"
