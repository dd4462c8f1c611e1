#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Builds the documentation site: build-docs.sh VENV SITE. Needs no network once everything is installed.
set -eu
bin=$(pwd)/$1/bin
site=$2

cargo build --quiet -p spawnfd-cli
# Only this crate: an earlier `make lint` may have left the documentation of others there.
rm -rf "$CARGO_TARGET_DIR/doc"
RUSTDOCFLAGS="-D warnings" cargo doc --quiet -p spawnfd --all-features --no-deps
# The theme's notice of its successor.
export NO_MKDOCS_2_WARNING=1
SPAWNFD_COMMAND=$CARGO_TARGET_DIR/debug/spawnfd "$bin/mkdocs" build --quiet --config-file docs/site/mkdocs.yml
cp -R "$CARGO_TARGET_DIR/doc" "$site/rust"
"$bin/python" docs/site/check_links.py "$site"
