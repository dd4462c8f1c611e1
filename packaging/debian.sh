#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Builds the Debian packages spawnfd (the command), libspawnfd0 (the C library) and libspawnfd-dev (its header, static
# library, pkg-config file and manual pages) for amd64 and arm64 into OUT. They run on Debian 11 and later.
#
#   packaging/debian.sh OUT
set -eu
out=$1
: "${CARGO_TARGET_DIR:=$(pwd)/target}"
export CARGO_TARGET_DIR
# check-glibc.sh checks this. dpkg-shlibdeps would ask for the glibc 2.34 that moved the symbols of libdl and libpthread.
glibc="libc6 (>= 2.28)"
maintainer="The spawnfd authors <spawnfd@users.noreply.github.com>"
# Two builds of one commit are equal.
if [ -z "${SOURCE_DATE_EPOCH:-}" ]; then
    SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
fi
export SOURCE_DATE_EPOCH

. packaging/scratch.sh

# The names of source files have no path of this machine.
export RUSTFLAGS="--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=cargo"
# zig only links: these compile the C code that the command and the library embed.
export CC_x86_64_unknown_linux_gnu="${CC:-cc}" CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc
scripts/setup-aarch64.sh
mkdir -p "$out"

package() { # name, section, Depends, Multi-Arch; the description on standard input
    root=$tree/$1
    documents=$root/usr/share/doc/$1
    mkdir -p "$documents" "$root/DEBIAN"
    install -m 644 packaging/debian/copyright "$documents"
    {
        printf 'spawnfd (%s) unstable; urgency=medium\n\n' "$version"
        printf '  * All changes:\n    https://github.com/spawnfd/spawnfd/blob/v%s/CHANGELOG.md\n\n' "$version"
        printf ' -- %s  %s\n' "$maintainer" "$(LC_ALL=C date -u -R -d "@$SOURCE_DATE_EPOCH")"
    } >"$documents/changelog"
    find "$root/usr/share/man" "$documents/changelog" -type f -exec gzip -9n {} + 2>/dev/null || :
    {
        printf 'Package: %s\nSource: spawnfd\nVersion: %s\nArchitecture: %s\n' "$1" "$version" "$architecture"
        printf 'Maintainer: %s\nInstalled-Size: %s\n' "$maintainer" "$(du -k -s --apparent-size "$root/usr" | cut -f 1)"
        printf 'Depends: %s\nSection: %s\nPriority: optional\n%s' "$3" "$2" "${4:+Multi-Arch: $4
}"
        printf 'Homepage: https://github.com/spawnfd/spawnfd\nDescription: '
        cat
    } >"$root/DEBIAN/control"
    (cd "$root" && find usr -type f -exec md5sum {} + | LC_ALL=C sort -k 2 >DEBIAN/md5sums)
    chmod -R u=rwX,go=rX "$root"
    if grep -rlF "$(pwd)" "$root" >&2; then
        fail "the files above contain the path of the checkout"
    fi
    file=$out/${1}_${version}_$architecture.deb
    dpkg-deb --root-owner-group -Zxz --build "$root" "$file" >/dev/null

    sed -n "s/^$1 //p" packaging/debian/contents | sed "s/TRIPLET/$triplet/" >"$scratch/wanted"
    dpkg-deb --fsys-tarfile "$file" | tar -t | grep -v '/$' | LC_ALL=C sort >"$scratch/found"
    if ! diff -u "$scratch/wanted" "$scratch/found" >&2; then
        fail "$file has other files than packaging/debian/contents lists"
    fi
    if command -v lintian >/dev/null 2>&1; then
        lintian --allow-root --fail-on error,warning "$file"
    fi
}

# The triplet is the prefix of Debian's tools for an architecture: gcc, binutils.
packages() { # architecture of Debian, processor, C compiler
    architecture=$1
    triplet=$2-linux-gnu
    target=$2-unknown-linux-gnu
    libraries=lib/$triplet
    tree=$scratch/$architecture
    tools=$(packaging/setup.sh "$target")
    PATH=$tools/bin:$PATH cargo zigbuild --quiet --release --locked -p spawnfd-cli --target "$target.2.28"
    CC=$3 OBJCOPY=$triplet-objcopy SPAWNFD_LINKER=$(pwd)/packaging/zig-cc ZIG_PROCESSOR=$2 \
        CARGO_BUILD_TARGET=$target scripts/build-capi.sh "$tree/capi"
    packaging/check-glibc.sh "$CARGO_TARGET_DIR/$target/release/spawnfd" "$tree/capi/libspawnfd.so.0" \
        "$tree/capi/libspawnfd-spawn.so"

    # The command, its manual page and its completions, which the command for this machine prints.
    command=$tree/spawnfd
    install -D -m 755 "$CARGO_TARGET_DIR/$target/release/spawnfd" "$command/usr/bin/spawnfd"
    "$triplet-strip" "$command/usr/bin/spawnfd"
    share=$command/usr/share
    mkdir -p "$share/man/man1" "$share/bash-completion/completions" "$share/zsh/vendor-completions" \
        "$share/fish/vendor_completions.d"
    native=$CARGO_TARGET_DIR/x86_64-unknown-linux-gnu/release/spawnfd
    "$native" man >"$share/man/man1/spawnfd.1"
    "$native" completions bash >"$share/bash-completion/completions/spawnfd"
    "$native" completions zsh >"$share/zsh/vendor-completions/_spawnfd"
    "$native" completions fish >"$share/fish/vendor_completions.d/spawnfd.fish"

    # The C library: the runtime package gets the shared libraries out of the installed files.
    development=$tree/libspawnfd-dev
    runtime=$tree/libspawnfd0
    scripts/install-capi.sh "$tree/capi" "$development" /usr "$libraries"
    "$triplet-strip" --strip-debug --enable-deterministic-archives "$development/usr/$libraries/libspawnfd.a"
    mkdir -p "$runtime/usr/$libraries" "$runtime/usr/share/lintian/overrides" "$runtime/DEBIAN"
    mv "$development/usr/$libraries/libspawnfd.so.0" "$development/usr/$libraries/libspawnfd-spawn.so" \
        "$runtime/usr/$libraries"
    chmod 644 "$runtime/usr/$libraries"/*
    cp packaging/debian/libspawnfd0.lintian-overrides "$runtime/usr/share/lintian/overrides/libspawnfd0"
    echo "activate-noawait ldconfig" >"$runtime/DEBIAN/triggers"
    echo "libspawnfd 0 libspawnfd0 (>= $version)" >"$runtime/DEBIAN/shlibs"

    package spawnfd utils "$glibc" foreign <<EOF
start and supervise programs
 spawnfd runs a program with time limits, resource limits, bounded output and
 sandboxes. A timeout ends the whole process tree of the program, and no file
 descriptor leaks into the program. The command also reports which features of
 the kernel a machine offers.
EOF
    package libspawnfd0 libs "$glibc" same <<EOF
runs and jobs, posix_spawn, and spawn templates
 This library runs programs with time limits, captured output and control of
 their process trees. It also has faster posix_spawn functions, templates for
 many starts of one executable, and a builder of processes with pidfds. Programs link with it, or
 preload libspawnfd-spawn.so.
EOF
    package libspawnfd-dev libdevel "libspawnfd0 (= $version), libc6-dev" same <<EOF
runs and jobs, posix_spawn, and spawn templates (development files)
 This package has the header, the static library, the pkg-config file and the
 manual pages of libspawnfd.
EOF
}

packages amd64 x86_64 "$CC_x86_64_unknown_linux_gnu"
packages arm64 aarch64 "$CC_aarch64_unknown_linux_gnu"
