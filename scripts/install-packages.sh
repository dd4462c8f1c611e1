#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Installs Debian packages for a set-up script. An ordinary user gets an error that names the packages.
#
#   scripts/install-packages.sh SCRIPT PACKAGE...
set -eu
script=$1
shift
if [ "$(id -u)" != 0 ]; then
    echo "$script: missing $*: install them (apt-get install --no-install-recommends $*), or run this as root" >&2
    exit 1
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "$@" >/dev/null
