#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# Builds two kernels with the series, boots each in QEMU, and runs the selftests there. First checks the patches' style.
#
#   kernel/qemu/test-kernel.sh CACHE
#
# The plain kernel runs all tests except `faults`. The debug kernel has KASAN, lockdep, kmemleak and fault injection. It
# runs `faults`, the tests of code with the most risk of memory and locking errors, and `stress` for two minutes of
# guest time. It then scans for memory leaks. The kernels' messages are kept in build/kernel/*.log.
#
# Environment variables:
#
# SPAWNFD_TESTS    the tests that both kernels run, for example `exec events`
# SPAWNFD_KERNELS  the kernel to test: `plain` or `debug`
# SPAWNFD_PATCHES  a directory of patches that replaces kernel/patches
# SPAWNFD_SKIPS    a file to which the script appends the skipped tests
set -eu
cd "$(dirname "$0")/../.."
cache=$1
patches=${SPAWNFD_PATCHES:-kernel/patches}
everything="builder config actions confine filters places exec limits events before template heads ahead uring async compat stress"
ls "$patches"/*.patch >/dev/null 2>&1 || { echo "test-kernel: no patches in $patches" >&2 && exit 1; }

scratch=$(mktemp -d "${TMPDIR:-/tmp}/spawnfd-kernel.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM HUP
mkdir -p build/kernel
failed=0
for name in ${SPAWNFD_KERNELS:-plain debug}; do
    case $name in
    plain) config=base memory=1024 seconds=10 limit=2700 tests=$everything ;;
    # Each test that this list leaves out takes minutes on the debug kernel.
    debug) config=base+debug memory=3072 seconds=130 limit=5400 tests="builder config actions confine filters places limits before heads ahead uring async faults stress" ;;
    *) echo "test-kernel: no kernel $name" >&2 && exit 2 ;;
    esac
    kernel=$(kernel/qemu/build.sh --patches "$patches" "$cache" "$config")
    if [ ! -e "$scratch/style" ]; then
        touch "$scratch/style"
        kernel/qemu/checkpatch.sh "$kernel/scripts" "$patches" || failed=1
    fi
    root=$scratch/$name
    mkdir -p "$root"
    make -s -C kernel/selftests KERNEL="$kernel" OUT="$root/selftests"
    cp kernel/selftests/run.sh "$root/selftests"
    kernel/qemu/stage.sh "$root" /bin/sh /bin/cut /bin/sed /bin/grep /usr/bin/head /usr/bin/tail /bin/cat /usr/bin/mkdir /bin/sleep
    cat >"$root/selftests/all.sh" <<SCRIPT
#!/bin/sh
export SPAWN_STRESS_SECONDS=$seconds
/selftests/run.sh ${SPAWNFD_TESTS:-$tests}
status=\$?
leaks=/sys/kernel/debug/kmemleak
if [ -e \$leaks ]; then
    # kmemleak may report an object that the kernel will free after an RCU grace period. An object is a leak if
    # kmemleak still reports it after half a minute of scans.
    echo scan >\$leaks
    for again in 1 2 3 4 5; do
        sleep 6 && echo scan >\$leaks
        [ -n "\$(cat \$leaks)" ] || break
    done
    [ -z "\$(cat \$leaks)" ] || { echo "leaks:" && head -n 60 \$leaks && status=1; }
    echo "leaks: looked for"
fi
exit \$status
SCRIPT
    chmod +x "$root/selftests/all.sh"
    echo "== $name: $(basename "$kernel")"
    begun=$(date +%s)
    {
        kernel/qemu/boot.sh --time "$limit" --memory "$memory" --log "build/kernel/$name.log" "$kernel/bzImage" "$root" /selftests/all.sh ||
            echo $? >"$scratch/failed"
    } | tee "$scratch/output" | grep --line-buffered -v '\] SKIP '
    sed -n "s/^\[\([a-z]*\)\] SKIP /    SKIP [$name, \1] /p" "$scratch/output"
    [ -z "${SPAWNFD_SKIPS:-}" ] || sed -n "s/^\[\([a-z]*\)\] SKIP /[kernel $name, \1] SKIP /p" "$scratch/output" >>"$SPAWNFD_SKIPS"
    [ ! -e "$scratch/failed" ] || { failed=1 && rm "$scratch/failed"; }
    echo "== $name: $(($(date +%s) - begun)) s"
done
[ "$failed" = 0 ] || { echo "test-kernel: FAILED" && exit 1; }
echo "test-kernel: passed"
