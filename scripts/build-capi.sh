#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Builds the C library: libspawnfd.a, libspawnfd.so.0 and libspawnfd-spawn.so, in the directory of the first argument.
# SPAWNFD_LINKER links libspawnfd.so.0 instead of CC. libspawnfd-spawn.so needs no other linker: it runs on any glibc.
# For another processor than this machine's, CARGO_BUILD_TARGET, CC and OBJCOPY name it.
set -eu
out=$1
source=crates/spawnfd-capi/shared
built=${CARGO_TARGET_DIR:-target}${CARGO_BUILD_TARGET:+/$CARGO_BUILD_TARGET}
: "${CC:=cc}"
: "${SPAWNFD_LINKER:=$CC}"

mkdir -p "$out"
cargo build --quiet --release -p spawnfd-capi
cargo build --quiet --profile preload -p spawnfd-capi --no-default-features
install -m 644 "$built/release/libspawnfd_capi.a" "$out/libspawnfd.a"
# rustc's bitcode is three quarters of the library, names the source directory, and serves no linker of C.
"${OBJCOPY:-objcopy}" --remove-section=.llvmbc --remove-section=.llvmcmd "$out/libspawnfd.a"

# Links a static library whole, so that the version script and not the linker chooses the functions.
link() { # linker, output, version script, static library, further arguments
    linker=$1 output=$2 map=$3 archive=$4
    shift 4
    # shellcheck disable=SC2086 # CFLAGS and LDFLAGS are lists
    "$linker" -O2 -fPIC ${CFLAGS:-} -shared -static-libgcc -o "$output" "$@" -Wl,--version-script="$map" \
        -Wl,--gc-sections -Wl,-z,relro,-z,now -Wl,--no-undefined -Wl,-s \
        -Wl,--whole-archive "$archive" -Wl,--no-whole-archive -Wl,--as-needed -lm ${LDFLAGS:-}
}
# The library's threads, caches and helper processes outlive dlclose(3), so the library stays mapped.
link "$SPAWNFD_LINKER" "$out/libspawnfd.so.0" "$source/spawnfd.map" "$out/libspawnfd.a" -Wl,-soname,libspawnfd.so.0 \
    -Wl,-z,nodelete
ln -sf libspawnfd.so.0 "$out/libspawnfd.so"
"$CC" -E -P -x c -o "$out/preload.map" "$source/preload.map"
link "$CC" "$out/libspawnfd-spawn.so" "$out/preload.map" "$built/preload/libspawnfd_capi.a" "$source/preload.c" \
    -Wl,-soname,libspawnfd-spawn.so -Wl,--wrap=dlsym,--wrap=dlvsym
