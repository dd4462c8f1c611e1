# SPDX-License-Identifier: MIT OR Apache-2.0
# Installs the wheel in a root of root.sh, uses it, and removes it again. /packages has the wheels and smoke.py.
set -eu
/bin/busybox --install -s /bin
export HOME=/root PATH=/usr/local/bin:/bin UV_OFFLINE=1 UV_NO_CACHE=1 PYTHONDONTWRITEBYTECODE=1
python=/usr/local/bin/python3.13
uv pip install --python $python --no-index --find-links /packages spawnfd
SMOKE_COLD="needs glibc" $python /packages/smoke.py
$python -m spawnfd.demo --seconds 1 >/dev/null
uv pip uninstall --python $python spawnfd
left=$(find /usr/local -name '*spawnfd*')
[ -z "$left" ] || {
    echo "smoke: files are left: $left" >&2
    exit 1
}
