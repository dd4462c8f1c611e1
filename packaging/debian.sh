#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Builds the Debian packages spawnfd (the command), libspawnfd0 (the C library) and libspawnfd-dev (its header, static
# library, pkg-config file and manual pages) into OUT. They run on Debian 11 and later.
#
#   packaging/debian.sh OUT
set -eu
out=$1
: "${CARGO_TARGET_DIR:=$(pwd)/target}"
export CARGO_TARGET_DIR
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
target=x86_64-unknown-linux-gnu
# check-glibc.sh checks this. dpkg-shlibdeps would ask for the glibc 2.34 that moved the symbols of libdl and libpthread.
glibc="libc6 (>= 2.28)"
libraries=lib/x86_64-linux-gnu
maintainer="The spawnfd authors <spawnfd@users.noreply.github.com>"
# Two builds of one commit are equal.
if [ -z "${SOURCE_DATE_EPOCH:-}" ]; then
    SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
fi
export SOURCE_DATE_EPOCH

tools=$(packaging/setup.sh)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# The names of source files have no path of this machine.
export RUSTFLAGS="--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=cargo"
# zig only links: CC compiles the C code that the command embeds.
export CC_x86_64_unknown_linux_gnu="${CC:-cc}"
PATH=$tools/bin:$PATH cargo zigbuild --quiet --release --locked -p spawnfd-cli --target "$target.2.28"
SPAWNFD_LINKER=$(pwd)/packaging/zig-cc scripts/build-capi.sh "$scratch/capi"
packaging/check-glibc.sh "$CARGO_TARGET_DIR/$target/release/spawnfd" "$scratch/capi/libspawnfd.so.0" \
    "$scratch/capi/libspawnfd-spawn.so"

# The command, its manual page and its completions.
command=$scratch/spawnfd
install -D -s -m 755 "$CARGO_TARGET_DIR/$target/release/spawnfd" "$command/usr/bin/spawnfd"
share=$command/usr/share
mkdir -p "$share/man/man1" "$share/bash-completion/completions" "$share/zsh/vendor-completions" \
    "$share/fish/vendor_completions.d"
"$command/usr/bin/spawnfd" man >"$share/man/man1/spawnfd.1"
"$command/usr/bin/spawnfd" completions bash >"$share/bash-completion/completions/spawnfd"
"$command/usr/bin/spawnfd" completions zsh >"$share/zsh/vendor-completions/_spawnfd"
"$command/usr/bin/spawnfd" completions fish >"$share/fish/vendor_completions.d/spawnfd.fish"

# The C library: the runtime package gets the shared libraries out of the installed files.
development=$scratch/libspawnfd-dev
runtime=$scratch/libspawnfd0
scripts/install-capi.sh "$scratch/capi" "$development" /usr "$libraries"
strip --strip-debug --enable-deterministic-archives "$development/usr/$libraries/libspawnfd.a"
mkdir -p "$runtime/usr/$libraries" "$runtime/usr/share/lintian/overrides" "$runtime/DEBIAN"
mv "$development/usr/$libraries/libspawnfd.so.0" "$development/usr/$libraries/libspawnfd-spawn.so" \
    "$runtime/usr/$libraries"
chmod 644 "$runtime/usr/$libraries"/*
cp packaging/debian/libspawnfd0.lintian-overrides "$runtime/usr/share/lintian/overrides/libspawnfd0"
echo "activate-noawait ldconfig" >"$runtime/DEBIAN/triggers"
echo "libspawnfd 0 libspawnfd0 (>= $version)" >"$runtime/DEBIAN/shlibs"

package() { # name, section, Depends, Multi-Arch; the description on standard input
    root=$scratch/$1
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
        printf 'Package: %s\nSource: spawnfd\nVersion: %s\nArchitecture: amd64\n' "$1" "$version"
        printf 'Maintainer: %s\nInstalled-Size: %s\n' "$maintainer" "$(du -k -s --apparent-size "$root/usr" | cut -f 1)"
        printf 'Depends: %s\nSection: %s\nPriority: optional\n%s' "$3" "$2" "${4:+Multi-Arch: $4
}"
        printf 'Homepage: https://github.com/spawnfd/spawnfd\nDescription: '
        cat
    } >"$root/DEBIAN/control"
    (cd "$root" && find usr -type f -exec md5sum {} + | LC_ALL=C sort -k 2 >DEBIAN/md5sums)
    chmod -R u=rwX,go=rX "$root"
    if grep -rlF "$(pwd)" "$root" >&2; then
        echo "debian.sh: the files above contain the path of the checkout" >&2
        exit 1
    fi
    file=$out/${1}_${version}_amd64.deb
    dpkg-deb --root-owner-group -Zxz --build "$root" "$file" >/dev/null

    sed -n "s/^$1 //p" packaging/debian/contents >"$scratch/wanted"
    dpkg-deb --fsys-tarfile "$file" | tar -t | grep -v '/$' | LC_ALL=C sort >"$scratch/found"
    if ! diff -u "$scratch/wanted" "$scratch/found" >&2; then
        echo "debian.sh: $file has other files than packaging/debian/contents lists" >&2
        exit 1
    fi
}

mkdir -p "$out"
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
if command -v lintian >/dev/null 2>&1; then
    for name in spawnfd libspawnfd0 libspawnfd-dev; do
        lintian --allow-root --fail-on error,warning "$out/${name}_${version}_amd64.deb"
    done
fi
