#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Boots an arm64 Debian in QEMU, and runs commands there as root, without a network. Emulation of system calls alone
# would not do, because QEMU's has no vfork.
#
#   packaging/in-arm64.sh ROOT DIRECTORY COMMANDS
#
# ROOT       a root with linux-image-arm64, busybox-static and bash (root.sh --unpack arm64). Its kernel has no modules.
# DIRECTORY  the guest has a copy of it, /work, as the working directory
# COMMANDS   a script for bash -e
set -eu
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
for each in proc:/proc sysfs:/sys devtmpfs:/dev tmpfs:/tmp; do
    busybox mount -t "${each%:*}" none "${each#*:}"
done
mkdir /dev/shm
busybox mount -t tmpfs none /dev/shm
busybox ln -s /proc/self/fd /dev/fd
cd /work
bash -e /commands
echo "in-arm64: exit status $?"
busybox poweroff -f
EOF
chmod +x "$scratch/guest/init"
# The kernel unpacks both archives.
{
    (cd "$root" && find . -path ./boot -prune -o -path ./usr/lib/modules -prune -o -print | cpio --quiet -o -H newc)
    (cd "$scratch/guest" && find . | cpio --quiet -o -H newc)
} >"$scratch/initrd"
timeout 900 qemu-system-aarch64 -M virt -cpu cortex-a72 -m 3072 -net none -nographic -no-reboot \
    -kernel "$root"/boot/vmlinuz-*-arm64 -initrd "$scratch/initrd" -append "console=ttyAMA0 panic=-1 quiet" </dev/null |
    tr -d '\r' | tee "$scratch/console"
grep -qx 'in-arm64: exit status 0' "$scratch/console"
