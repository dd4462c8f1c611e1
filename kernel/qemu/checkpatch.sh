#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# Runs the kernel's checkpatch --strict on every patch. Ignores the message types that checkpatch-exceptions lists.
#
#   kernel/qemu/checkpatch.sh SCRIPTS PATCHES       (SCRIPTS: scripts/ in a directory that build.sh prints)
set -eu
scripts=$1
patches=$2
# Each line of checkpatch-exceptions begins with a message type, as checkpatch --show-types prints it. A reason follows.
exceptions=$(sed -n 's/^\([A-Z_]\{1,\}\)\>.*/\1/p' "$(dirname "$0")/checkpatch-exceptions" | paste -sd, -)
status=0
for patch in "$patches"/*.patch; do
    case ${patch##*/} in 0000-*) continue ;; esac
    # checkpatch would check a file that git tracks as a source file. It therefore reads the patch from standard input.
    perl "$scripts/checkpatch.pl" --strict --no-tree --show-types --no-summary --quiet ${exceptions:+--ignore "$exceptions"} - <"$patch" ||
        { status=1 && echo "checkpatch: of $patch"; }
done
[ $status = 0 ] && echo "checkpatch: clean${exceptions:+, but for $exceptions}"
exit $status
