#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# Builds kernels from Debian's linux-source-6.12 with this project's patches. Prints a directory for each kernel.
#
#   kernel/qemu/build.sh [--patches DIR] [--setup] CACHE CONFIG...
#
# CACHE      a directory that keeps built kernels and ccache's objects. Builds a kernel only if CACHE has none
#            with the same source, patches, configuration, compiler and build.sh.
# CONFIG     names of config/*.config, joined by + and merged in this order on top of tinyconfig: `base`, `base+debug`
# --patches  the directory of the patches, applied in order; default kernel/patches. If it has none: Debian's kernel
# --setup    only installs missing Debian packages, among them the kernel source
#
# A printed directory holds bzImage, System.map, config, the exported headers (include/), kselftest's harness (tools/),
# and checkpatch (scripts/).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
patches=$here/../patches setup=
while :; do
    case ${1:-} in
    --patches) patches=$2 && shift 2 ;;
    --setup) setup=1 && shift ;;
    *) break ;;
    esac
done
[ $# -ge 1 ] || { sed -n '3,14s/^# \{0,1\}//p' "$0" >&2 && exit 2; }
cache=$1
shift
package=linux-source-6.12
source=/usr/src/$package.tar.xz

missing=
need() { # COMMAND-OR-FILE PACKAGE: adds PACKAGE to $missing if COMMAND-OR-FILE is missing
    command -v "$1" >/dev/null 2>&1 || [ -e "$1" ] || missing="$missing $2"
}
need "$source" $package
need cc build-essential
need flex flex
need bison bison
need bc bc
need xz xz-utils
need ccache ccache
need perl perl
need cpio cpio
need patch patch
need flock util-linux
need /usr/include/gelf.h libelf-dev
if [ -n "$missing" ]; then
    if [ "$(id -u)" != 0 ]; then
        echo "build: missing$missing: install them (apt-get install --no-install-recommends$missing), or run this as root" >&2
        exit 1
    fi
    export DEBIAN_FRONTEND=noninteractive
    # shellcheck disable=SC2086 # a list of packages
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends $missing; } >&2
fi
[ -z "$setup" ] || exit 0

mkdir -p "$cache"
cache=$(cd "$cache" && pwd)
series=$(find "$patches" -maxdepth 1 -name '*.patch' ! -name '0000-*' 2>/dev/null | sort)
# shellcheck disable=SC2086 # a list of files
common=$({ sha256sum <"$source" && cat $series /dev/null "$0" && cc --version && ld --version; } | sha256sum)
place() { # CONFIG: prints the directory of its kernel in the cache
    files=$(echo "$1" | tr + '\n' | sed "s|.*|$here/config/&.config|")
    # shellcheck disable=SC2086
    key=$({ echo "$common" && cat $files; } | sha256sum | cut -c 1-16)
    echo "$cache/$1-$key"
}

# Unpacks and patches the kernel source in $tree. Does nothing if $tree exists.
unpack() {
    [ ! -e "$tree" ] || return 0
    mkdir "$tree"
    # Leave out large groups of files that no CONFIG compiles. Keep their Kconfig files and Makefiles for kbuild.
    tar -xf "$source" -C "$tree" --strip-components=1 --exclude='*/arch/*/boot/dts/*' --exclude='*/Documentation/devicetree/*' \
        --exclude='*/tools/perf/pmu-events/*' --exclude='*/sound/*.[ch]' --exclude='*/tools/testing/selftests/*/*' \
        $(printf -- '--exclude=*/drivers/%s/*.[ch] ' gpu 'net/*' media infiniband staging iio)
    for file in $series; do
        patch -d "$tree" -p1 --quiet --forward --fuzz=0 <"$file" >&2 || { echo "build: $file does not apply" >&2 && exit 1; }
    done
}

# Adds fragments to a configuration. If several lines set the same option, the last line wins.
merge() { # .config, fragments
    cat "$@" | tac | awk '{ name = $0; sub(/^# CONFIG_/, "CONFIG_", name); sub(/[ =].*/, "", name) } name ~ /^CONFIG_/ && !seen[name]++' |
        tac >"$1.merged" && mv "$1.merged" "$1"
}

# Fails if a configuration lacks a line of the fragments.
check() { # .config, fragments
    result=$1
    shift
    cat "$@" | grep -E '^(CONFIG_|# CONFIG_.* is not set)' | while read -r line; do
        name=$(echo "$line" | grep -oE 'CONFIG_[A-Z0-9_]+')
        case $line in
        \#*) ! grep -q "^$name=" "$result" ;;
        *) grep -qxF "$line" "$result" ;;
        esac || { echo "not to be had with the rest of the configuration: $line" && exit 1; }
    done
}

# Builds the kernel of CONFIG, the first argument. Moves the complete result to the second, so that no directory in the
# cache is ever incomplete.
build() {
    object=$tree/build # Below the source, so that the compiler gets relative paths and ccache can reuse objects.
    entry=$tree.entry
    rm -rf "$object" "$entry"
    mkdir "$object" "$entry"
    fragments=$(echo "$1" | tr + '\n' | sed "s|.*|$here/config/&.config|")
    make="make -C $tree O=$object CC=ccache\ cc HOSTCC=ccache\ cc -j$(nproc)"
    {
        # shellcheck disable=SC2086 # a list of files
        eval "$make -s tinyconfig" && merge "$object/.config" $fragments && eval "$make -s olddefconfig" &&
            check "$object/.config" $fragments && eval "$make -s bzImage headers"
    } >"$tree.log" 2>&1 </dev/null || { echo "build: $1 does not build:" >&2 && tail -n 40 "$tree.log" >&2 && exit 1; }
    # Fail on compiler warnings, except one: KASAN makes some stack frames larger than the kernel's limit.
    ! grep -E '(warning|Warning):' "$tree.log" | grep -v 'Wframe-larger-than' >&2 || { echo "build: $1: warnings" >&2 && exit 1; }
    mkdir -p "$entry/tools" "$entry/scripts" "$entry/include"
    cp "$object/arch/x86/boot/bzImage" "$object/System.map" "$entry"
    cp "$object/.config" "$entry/config"
    (cd "$object/usr/include" && find . -name '*.h' -print0 | cpio --quiet -0 -pdm "$entry/include")
    cp "$tree"/tools/testing/selftests/kselftest.h "$tree"/tools/testing/selftests/kselftest_harness.h "$entry/tools"
    (cd "$tree/scripts" && cp checkpatch.pl spelling.txt const_structs.checkpatch "$entry/scripts")
    mv -T "$entry" "$2"
}

export CCACHE_DIR="$cache/ccache" CCACHE_MAXSIZE=1500M CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=time_macros
export KBUILD_BUILD_TIMESTAMP='2020-01-01 00:00:00 UTC' KBUILD_BUILD_USER=spawnfd KBUILD_BUILD_HOST=guest KBUILD_BUILD_VERSION=1
tree=${SPAWNFD_KERNEL_TREE:-$cache/tree} # Takes 2 GB during a build. Two caches must not share it.
find "$cache" -maxdepth 1 -name 'base*-????????????????' -mtime +30 -exec rm -rf {} +
for config; do
    where=$(place "$config")
    if [ ! -d "$where" ]; then
        # All builds of a cache share $tree, so a lock allows one at a time. Remove what an interrupted build has left.
        exec 9>"$cache/lock"
        flock 9
        if [ ! -d "$where" ]; then
            [ -n "${unpacked:-}" ] || rm -rf "$tree" "$tree.entry"
            trap 'rm -rf "$tree" "$tree.entry"' EXIT
            trap 'exit 130' INT TERM HUP
            unpack
            unpacked=1
            begun=$(date +%s)
            build "$config" "$where"
            echo "build: $config: $(($(date +%s) - begun)) s" >&2
        fi
    fi
    touch "$where"
    echo "$where"
done
