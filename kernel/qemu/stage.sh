#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# Copies programs of this machine, and the shared libraries that they load, into a directory. The directory becomes a
# guest's root file system.
#
#   kernel/qemu/stage.sh ROOT FILE...
#
# Each file has the same path in the guest as on this machine, and no debug information. If ROOT already has files, the
# script copies only newer ones.
set -eu
root=$1
shift
mkdir -p "$root/tmp" "$root/etc" "$root/dev" "$root/proc" "$root/sys" "$root/usr"
for directory in bin sbin lib lib64; do
    mkdir -p "$root/usr/$directory"
    [ -e "$root/$directory" ] || ln -s "usr/$directory" "$root/$directory"
done
cp -L /etc/passwd /etc/group /etc/nsswitch.conf /etc/ld.so.cache /etc/hostname "$root/etc"

libraries=$(for file; do ldd "$file" 2>/dev/null || true; done | grep -oE '/[^ ]+' | sort -u)
for file in "$@" $libraries; do
    [ "$file" -ot "$root$file" ] && continue
    mkdir -p "$root$(dirname "$file")"
    case $(head -c 4 "$file" | tr -d '\0') in
    ?ELF) strip --strip-debug -o "$root$file" "$file" ;;
    *) cp -L "$file" "$root$file" ;;
    esac
done
