#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Installs the C library that scripts/build-capi.sh built: libraries, header, pkg-config file and man pages.
#
#   scripts/install-capi.sh BUILT DESTDIR PREFIX [LIBDIR]
#
# LIBDIR  the directory of the libraries below PREFIX: lib, or for Debian lib/x86_64-linux-gnu
set -eu
built=$1
destination=$2
prefix=$3
libdir=${4:-lib}
root=$destination$prefix
libraries=$root/$libdir
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)

install -d "$libraries/pkgconfig" "$root/include" "$root/share/man/man2" "$root/share/man/man3"
install -m 755 "$built/libspawnfd.so.0" "$built/libspawnfd-spawn.so" "$libraries"
ln -sf libspawnfd.so.0 "$libraries/libspawnfd.so"
install -m 644 "$built/libspawnfd.a" "$libraries"
install -m 644 include/spawnfd.h "$root/include"
install -m 644 man/*.2 "$root/share/man/man2"
install -m 644 man/*.3 "$root/share/man/man3"
cat >"$libraries/pkgconfig/spawnfd.pc" <<EOF
prefix=$prefix
libdir=\${prefix}/$libdir
includedir=\${prefix}/include

Name: spawnfd
Description: runs and jobs, posix_spawn, spawn templates and the pidfd builder
Version: $version
Libs: -L\${libdir} -lspawnfd
Libs.private: -ldl -lm -lpthread
Cflags: -I\${includedir}
EOF
