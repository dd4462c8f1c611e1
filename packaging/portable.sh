#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Builds the Python wheel for platforms without a native part: the wheel of wheels.sh, without its native part.
#
#   packaging/portable.sh OUT
#
# OUT has the wheel of wheels.sh. pip prefers that one where both fit, because its tag is more specific.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
out=$(cd "$1" && pwd)
venv=$("$root/packaging/setup.sh")
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$root/Cargo.toml" | head -n 1)
wheel=$out/spawnfd-$version-py3-none-any.whl

fail() {
    echo "portable: $*" >&2
    exit 1
}

native=$(echo "$out/spawnfd-$version"-cp310-abi3-manylinux*_x86_64.whl)
[ -f "$native" ] || fail "$out has no wheel of version $version: run packaging/wheels.sh first"
rm -f "$out"/spawnfd-*-py3-none-any.whl
scratch=$root/build/portable
rm -rf "$scratch"
mkdir -p "$scratch"
"$venv/bin/python" -m wheel unpack --dest "$scratch" "$native" >/dev/null
package=$scratch/spawnfd-$version
rm "$package/spawnfd/_spawnfd.abi3.so"
tags=$package/spawnfd-$version.dist-info/WHEEL
sed -i -e 's/^Root-Is-Purelib: .*/Root-Is-Purelib: true/' -e '/^Tag: /d' -e '/^$/d' "$tags"
echo "Tag: py3-none-any" >>"$tags"
# All files have the same time, the first that a zip file can have. So two builds make the same file.
SOURCE_DATE_EPOCH=315532800 "$venv/bin/python" -m wheel pack --dest "$out" "$package" >/dev/null
rm -rf "$scratch"

[ -f "$wheel" ] || fail "unexpected name: $(echo "$out"/spawnfd-*-none-*.whl)"
files=$("$venv/bin/python" -m zipfile -l "$wheel" | awk 'NR > 1 { print $1 }')
info=spawnfd-$version.dist-info
for file in spawnfd/py.typed spawnfd/_spawnfd.pyi spawnfd/_portable/__init__.py "$info/METADATA" \
    "$info/licenses/LICENSE-APACHE" "$info/licenses/LICENSE-MIT"; do
    echo "$files" | grep -qxF "$file" || fail "$(basename "$wheel") has no $file"
done
built=$(echo "$files" | grep -E '\.(so|pyc|pyd|dylib)$' || :)
[ -z "$built" ] || fail "$(basename "$wheel") has built files: $built"
others=$(echo "$files" | grep -vE '^spawnfd(-[0-9.]+\.dist-info)?/' || :)
[ -z "$others" ] || fail "$(basename "$wheel") has files outside the package: $others"
# Python imports the package from the zip file.
found=$(env -u SPAWNFD_PORTABLE "$venv/bin/python" -I -c "import sys; sys.path.insert(0, '$wheel')
import spawnfd; print(spawnfd.__version__, spawnfd.portable)")
[ "$found" = "$version True" ] || fail "$(basename "$wheel") has version and engine: $found"
echo "py3-none-any: $wheel"
