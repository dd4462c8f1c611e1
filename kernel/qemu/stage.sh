#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# Puts programs of this machine, with the libraries they load, into a directory that is to be a guest's root file system.
#
#   kernel/qemu/stage.sh ROOT FILE...
#
# Each stands there under the path it has here, without debug information; the directory may be used again.
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
