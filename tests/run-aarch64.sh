#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Cross-builds the library, the command, the C library, the Python package and their suites for aarch64, and runs the
# suites in an emulated arm64 machine (guest): with pages of 4 KiB, and some of them with pages of 16 KiB. Debian has no
# kernel with pages of 64 KiB. Needs root.
#
# Tests of cgroups also run as an unprivileged user with a delegated cgroup (in-guest.sh). The guest is more than 20
# times slower than this machine, so it runs a selection.
# SPAWNFD_SUITES: another selection, for all kernels; `binary=part` runs the tests whose names contain the part.
# SPAWNFD_PYTEST: the arguments of pytest in the guest.
# SPAWNFD_KERNELS: arm64 and arm64-16k, or one of them.
# SPAWNFD_GUEST_TIME: the time limit of each guest, in seconds.
# SPAWNFD_PYTHON: an interpreter with pip, that of build/venv by default.
# CACHE: the directory that keeps the root of the guest, /var/cache/spawnfd by default.
set -eu
cd "$(dirname "$0")/.."
here=$(pwd)
cache=${CACHE:-/var/cache/spawnfd}
target=aarch64-unknown-linux-gnu
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
# The guest has everything in memory.
export CARGO_PROFILE_DEV_DEBUG=0
groups=${SPAWNFD_SUITES:-tree=trees:: job=limits::}
others=${SPAWNFD_SUITES:-tools= authority= warm= posix= spawn=state:: spawn=hygiene:: spawn=actions:: spawn=errors::
    spawn=authority:: spawn=fork:: spawn=killed:: spawn=snapshot:: job=jobs:: job=run:: tree=guard:: tree=owner::
    session=start:: session=state:: session=ending:: remote= command=posix_spawn:: command=warm command=serve::}
small=${SPAWNFD_SUITES:-tools=oracle:: spawn=state:: spawn=hygiene:: spawn=shared:: tree=guard:: warm=zygote::
    warm=executors:: posix=own::}
python_tests=${SPAWNFD_PYTEST-tests/test_platform.py tests/test_run.py tests/test_template.py tests/test_session.py
    tests/test_subprocess.py tests/warm/test_warm_fronts.py tests/warm/test_warm_programs.py}

scratch=$(mktemp -d "${TMPDIR:-/tmp}/spawnfd-aarch64.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
packaging/setup-roots.sh
scripts/setup-guest.sh
scripts/setup-aarch64.sh
# The kernels, the programs that the suites and their shell scripts call, a C compiler and CPython.
root=$(packaging/root.sh --unpack arm64 "$cache/roots" trixie linux-image-arm64 linux-image-arm64-16k bash \
    busybox-static coreutils dash findutils gcc git grep libc-bin libc6-dev make mawk mount perl-base procps python3 \
    ripgrep sed util-linux util-linux-extra)

built=$(tests/built.py --with-programs --target $target -p spawnfd-tests -p spawnfd-cli)

# The guest has the repository and the programs at the same paths.
files=$scratch/files
mkdir -p "$files$here"
git ls-files -z tests bindings/python crates docs include man scripts Cargo.toml Makefile |
    cpio --quiet --null -pd "$files$here" 2>/dev/null
for file in $built; do
    mkdir -p "$files$(dirname "$file")"
    aarch64-linux-gnu-strip --strip-debug -o "$files$file" "$file"
done
CARGO_BUILD_TARGET=$target CC=aarch64-linux-gnu-gcc OBJCOPY=aarch64-linux-gnu-objcopy \
    scripts/build-capi.sh "$files$here/build/capi"
if [ -n "$python_tests" ]; then
    # As maturin does, so that nothing links libpython.
    PYO3_BUILD_EXTENSION_MODULE=1 cargo build --quiet --release --target $target -p spawnfd-python
    install -m 755 "${CARGO_TARGET_DIR:-target}/$target/release/lib_spawnfd.so" \
        "$files$here/bindings/python/python/spawnfd/_spawnfd.abi3.so"
    version=$(basename "$(readlink "$root/usr/bin/python3")")
    wanted=$(grep -E '^(anyio|hypothesis|pytest|pytest-timeout|trio|uvloop)==' bindings/python/requirements-dev.txt)
    packages=$cache/aarch64-$version-$(echo "$wanted" | sha256sum | cut -c1-16)
    if [ ! -d "$packages" ]; then
        # shellcheck disable=SC2086 # a list
        "${SPAWNFD_PYTHON:-build/venv/bin/python}" -m pip install --quiet --disable-pip-version-check \
            --target "$scratch/packages" --only-binary :all: --platform manylinux_2_28_aarch64 \
            --platform manylinux2014_aarch64 --python-version "${version#python}" $wanted
        # Another run may have been faster.
        mv -T "$scratch/packages" "$packages" 2>/dev/null || [ -d "$packages" ]
    fi
    mkdir -p "$files/usr/lib/python3"
    cp -r "$packages" "$files/usr/lib/python3/dist-packages"
fi
# No script of a package has run in the root, so these files are missing there.
mkdir -p "$files/etc" "$files/usr/bin"
cp -L /etc/passwd /etc/group /etc/nsswitch.conf "$files/etc"
ln -s mawk "$files/usr/bin/awk"
ln -s gcc "$files/usr/bin/cc"

of() { # binary=part, with the launchers of `make test`
    for suite; do
        echo "$built" | sed -nE "s|.*/${suite%%=*}-[0-9a-f]*\$|& ${suite#*=} --skip on_purpose|p"
    done
}
run() { # kernel, groups, others
    echo "== $1"
    rm -rf "$scratch/work"
    mkdir -p "$scratch/work/suites"
    # shellcheck disable=SC2086 # lists
    of $2 >"$scratch/work/suites/user.list"
    # shellcheck disable=SC2086
    of $2 $3 | sort -u >"$scratch/work/suites/root.list"
    cp tests/in-guest.sh tests/run-binaries.sh "$(echo "$built" | grep '/spawnfd-confine$')" "$scratch/work/suites"
    accounts=root
    [ -z "$2" ] || accounts="root user"
    {
        packaging/in-arm64.sh --time "${SPAWNFD_GUEST_TIME:-5400}" --kernel "$1" --files "$files" "$root" \
            "$scratch/work" "
            status=0
            grep -m 1 KernelPageSize /proc/self/smaps
            export SPAWNFD_SLOWNESS=5
            suites/in-guest.sh suites $accounts || status=1
            $4
            exit \$status" || echo 1 >"$scratch/failed"
    } | tee "$scratch/output" | grep --line-buffered -v '\] SKIP '
    skips=$(sed -n "s/^\[\([a-z]*\)\] SKIP /[$1, \1] SKIP /p" "$scratch/output")
    echo "$skips" | sed 's/::[a-z_0-9]* / /' | sort -u | cut -c1-150 | sed 's/^/    /'
    [ -z "${SPAWNFD_SKIPS:-}" ] || echo "$skips" >>"$SPAWNFD_SKIPS"
}
python=
if [ -n "$python_tests" ]; then
    # shellcheck disable=SC2086 # a list
    python="
        cd $here/bindings/python
        export PYTHONPATH=$here/bindings/python/python PYTHONDONTWRITEBYTECODE=1
        python3 -m pytest -q -rs -p no:cacheprovider -o timeout=600 $(echo $python_tests) </dev/null || status=1"
fi
for kernel in ${SPAWNFD_KERNELS:-arm64 arm64-16k}; do
    case $kernel in
    arm64) run "$kernel" "$groups" "$others" "$python" ;;
    *) run "$kernel" "" "$small" "" ;;
    esac
done
[ ! -e "$scratch/failed" ]
