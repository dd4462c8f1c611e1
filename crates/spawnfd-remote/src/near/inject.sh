# SPDX-License-Identifier: MIT OR Apache-2.0
# Runs the server on the other side, and asks for its program first if it is not there. Written for any POSIX shell,
# with as few other programs as possible. inject.rs fills in the list of programs: `machine hash size`, one a line.
fail() { echo "spawnfd-fail $1"; exit 125; }
machine=$(uname -m) || fail "there is no uname(1)"
hash= size=
while read -r m h s; do
    [ "$m" != "$machine" ] || { hash=$h size=$s; }
done <<'LIST'
@LIST@
LIST
[ -n "$hash" ] || fail "no server program for the processor $machine"
umask 077
tried= sent=
for base in "${SPAWNFD_SERVER_DIR:-}" /tmp /var/tmp /dev/shm "${HOME:-}/.cache" "${HOME:-}" /run; do
    case $base in /*) ;; *) continue ;; esac
    dir=$base/spawnfd-server-$hash
    # A directory of another user, or a link, may have another program.
    mkdir -m 700 "$dir" 2>/dev/null
    if [ -L "$dir" ] || ! [ -d "$dir" ] || ! [ -O "$dir" ] || ! [ -w "$dir" ]; then
        tried="$tried $base (not writable);"
        continue
    fi
    file=$dir/spawnfd
    if ! [ -x "$file" ]; then
        new=$dir/new.$$
        if [ -n "$sent" ]; then
            cat "$sent" >"$new" 2>/dev/null || { rm -f "$new"; tried="$tried $base (no room);"; continue; }
        else
            echo "spawnfd-send $machine"
            head -c "$size" >"$new" 2>/dev/null || { rm -f "$new"; fail "cannot write to $base, or there is no head(1)"; }
        fi
        chmod 700 "$new" || fail "there is no chmod(1)"
        # Another connection may have been faster.
        mv -f "$new" "$file" || fail "there is no mv(1)"
    fi
    sent=$file
    if "$file" --version >/dev/null 2>&1; then
        exec "$file" serve
    fi
    tried="$tried $base (cannot execute a file there);"
done
fail "no directory for the server program:$tried set SPAWNFD_SERVER_DIR"
