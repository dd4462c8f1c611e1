#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# Runs the kernel's checkpatch --strict over the series; what checkpatch-exceptions beside this script names is left out.
#
#   kernel/qemu/checkpatch.sh SCRIPTS PATCHES       (SCRIPTS: scripts/ of what build.sh prints)
set -eu
scripts=$1
patches=$2
# A type in each line, as checkpatch calls it with --show-types; the rest of the line says why.
exceptions=$(sed -n 's/^\([A-Z_]\{1,\}\)\>.*/\1/p' "$(dirname "$0")/checkpatch-exceptions" | paste -sd, -)
status=0
for patch in "$patches"/*.patch; do
    case ${patch##*/} in 0000-*) continue ;; esac
    # By its name a file that git knows would be checked as a source.
    perl "$scripts/checkpatch.pl" --strict --no-tree --show-types --no-summary --quiet ${exceptions:+--ignore "$exceptions"} - <"$patch" ||
        { status=1 && echo "checkpatch: of $patch"; }
done
[ $status = 0 ] && echo "checkpatch: clean${exceptions:+, but for $exceptions}"
exit $status
