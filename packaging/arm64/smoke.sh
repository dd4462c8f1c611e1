# SPDX-License-Identifier: MIT OR Apache-2.0
# Runs in the guest of test-arm64.sh: installs the packages, uses them, and removes them again.
set -eu
version=$1
export PYTHONDONTWRITEBYTECODE=1 UV_OFFLINE=1 UV_NO_CACHE=1

fail() {
    echo "smoke: $*" >&2
    exit 1
}
nothing_left() {
    left=$(find /usr -name '*spawnfd*')
    [ -z "$left" ] || fail "files are left: $left"
}

# The root was unpacked, so dpkg does not know of libc6.
mkdir -p /var/lib/dpkg/updates /var/lib/dpkg/info /var/lib/dpkg/triggers /var/log
: >/var/lib/dpkg/status
dpkg --force-depends -i ./*.deb

[ "$(spawnfd --version)" = "spawnfd $version" ] || fail "spawnfd --version: $(spawnfd --version)"
status=0
spawnfd run --capture --timeout 1 -- sleep 600 || status=$?
[ $status = 124 ] || fail "the status after a timeout is $status"
spawnfd doctor >/dev/null || fail "doctor: $?"
for page in man1/spawnfd.1.gz man3/spawnfd_run.3.gz; do
    busybox gzip -dc "/usr/share/man/$page" | grep -q '^\.SH' || fail "$page is not a manual page"
done
echo "smoke: the command: passed"

for program in programs/*-dynamic programs/*-static; do
    "$program" >output || fail "$program: $?"
    cmp -s output "$program.expected" || fail "$program printed: $(cat output)"
done
# bash loads the library, and programs below it use its posix_spawn.
printf 'all:\n\t@/bin/echo made >made\n' >Makefile
library=$(find /usr/lib -name libspawnfd-spawn.so)
found=$(LD_PRELOAD=$library bash -c 'grep -c libspawnfd-spawn /proc/$$/maps; make && cat made') || fail "preload: $?"
case $found in
[1-9]*made) ;;
*) fail "below the preload: $found" ;;
esac
[ "$(LD_PRELOAD=$library python3 spawn.py)" = spawned ] || fail "posix_spawn of Python below the preload"
echo "smoke: the C library: passed"
dpkg --force-depends -P spawnfd libspawnfd-dev libspawnfd0
nothing_left

uv=musl/usr/local/bin/uv
$uv pip install --python /usr/bin/python3 --break-system-packages --no-index --find-links musl/packages spawnfd
python3 musl/packages/smoke.py
$uv pip uninstall --python /usr/bin/python3 --break-system-packages spawnfd
nothing_left
echo "smoke: the wheel for glibc: passed"

busybox mount -t proc proc musl/proc
busybox chroot musl /bin/busybox env -i /bin/busybox sh /smoke.sh
busybox umount musl/proc
echo "smoke: the wheel for musl: passed"
