# SPDX-License-Identifier: MIT OR Apache-2.0
# Everything a person or CI does here. `make help` lists it.

PYTHON  ?= /usr/bin/python3
VENV    := build/venv
PY      := $(VENV)/bin/python
# Root's stands where the unprivileged user of the confined tests can read it.
CACHE   ?= $(if $(filter 0,$(shell id -u)),/var/cache,$(or $(XDG_CACHE_HOME),$(HOME)/.cache))/spawnfd
# The cargo that set-up chose, if the cargo of PATH is missing or too old (scripts/setup-rust.sh).
export PATH := $(CURDIR)/build/rust:$(PATH)
# Builds of the same dependencies by the same compiler share a cache outside the tree; without one all is built anew.
# Not expanded at once, because set-up may install the compiler in this run. $(shell) of make before 4.4 has another PATH.
KEY      = $(shell { cat Cargo.lock; PATH='$(PATH)' rustc -V; } 2>/dev/null | sha256sum | cut -c1-16)
export CARGO_TARGET_DIR ?= $(CACHE)/target-$(KEY)
export PIP_DISABLE_PIP_VERSION_CHECK = 1
# Of the suites in guests; tests/run.py has a file of its own.
SKIPS   := $(CURDIR)/build/skips-guest.txt
export SPAWNFD_PYTHON := $(CURDIR)/$(PY)
# The Node that set-up chose for the Node package, if that of PATH is missing or too old (scripts/setup-node.sh).
WITH_NODE := PATH=$(CURDIR)/build/node/bin:$(PATH)

# What programs find of themselves, and what goes wrong, when the kernel starts them: emulated, so not what takes thousands of rounds.
KERNEL_SUITES := spawn=kernel:: spawn=validation:: spawn=errors:: spawn=stale:: spawn=::clone3
# Limits by a cgroup's controllers, and runs in cgroups of their own: what `make test` skips where there are none.
CGROUP_SUITES := job=limits:: job=jobs::a_run_in_a_cgroup spawn=blocking::terminals_and_cgroups job=a_fork_bomb_reaches_the_pids_limit_in_a_cgroup

.DEFAULT_GOAL := help
.PHONY: help setup python node demo test test-all test-rust test-docker test-examples test-python test-node test-parked build-tests test-guest test-aarch64 test-kernel test-kernel-series test-kernel-library kernel-shell soak lint format \
        capi install packages test-packages test-bare docs bench-launch bench-snapshot bench-agent bench-job bench-node bench-warm bench-remote bench-kernel bench-count bench-posix bench-package bench-compare clean

help: ## List the tasks.
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 18

setup: $(VENV)/.ready ## Install what is missing on this machine (Debian packages as root, Python packages in build/venv).

$(VENV)/.ready: Cargo.toml scripts/setup.sh scripts/setup-rust.sh scripts/rust-toolchain.toml scripts/requirements.txt bindings/python/requirements-dev.txt bench/requirements.txt \
    examples/requirements.txt docs/site/requirements.txt
	scripts/setup.sh "$(PYTHON)" "$(VENV)"
	@touch $@

python: setup ## Build the Python package into build/venv.
	VIRTUAL_ENV=$(CURDIR)/$(VENV) $(VENV)/bin/maturin develop --quiet --release --manifest-path bindings/python/Cargo.toml

node: setup bindings/node/node_modules/.ready ## Build the Node package into bindings/node/dist.
	cargo build --quiet --release -p spawnfd-node
	cd bindings/node && rm -rf dist && $(WITH_NODE) node_modules/.bin/tsc
	cp $(CARGO_TARGET_DIR)/release/libspawnfd_node.so bindings/node/dist/spawnfd.node

bindings/node/node_modules/.ready: scripts/setup-node.sh bindings/node/package.json bindings/node/package-lock.json
	scripts/setup-node.sh $(CACHE)
	cd bindings/node && $(WITH_NODE) npm ci --silent --no-audit --no-fund --ignore-scripts
	@touch $@

bench/node/node_modules/.ready: bindings/node/node_modules/.ready bench/node/package.json bench/node/package-lock.json
	cd bench/node && $(WITH_NODE) npm ci --silent --no-audit --no-fund
	@touch $@

capi: setup ## Build the C library into build/capi: libspawnfd.so, libspawnfd.a, libspawnfd-spawn.so.
	scripts/build-capi.sh build/capi

install: capi ## Install the C library, its header, pkg-config file and man pages (PREFIX=/usr/local, DESTDIR=).
	scripts/install-capi.sh build/capi "$(DESTDIR)" "$(or $(PREFIX),/usr/local)"

# A build beside this one would replace the linkers in the common cache of cargo-zigbuild.
packages: export CARGO_ZIGBUILD_CACHE_DIR := $(CURDIR)/build/zigbuild
packages: setup bindings/node/node_modules/.ready ## Build wheels, sdist, crates, Debian packages, npm packages and static commands into build/packages.
	rm -rf build/packages
	packaging/wheels.sh build/packages
	packaging/portable.sh build/packages
	packaging/crates.sh build/packages
	packaging/debian.sh build/packages
	packaging/static.sh build/packages
	$(WITH_NODE) packaging/npm.sh build/packages
	cd build/packages && sha256sum -- * >../SHA256SUMS && mv ../SHA256SUMS .
	@echo; echo "build/packages:"; du --apparent-size -h build/packages/*

test-packages: packages ## Install, use and remove the packages in roots of Debian 11, 12, 13 and sid, in one like Alpine's, and in an arm64 guest (as root); use those of npm in Node and Bun; use the static command with nothing but busybox.
	CACHE=$(CACHE) packaging/test.sh build/packages
	CACHE=$(CACHE) packaging/test-musl.sh build/packages
	CACHE=$(CACHE) packaging/test-arm64.sh build/packages
	CACHE=$(CACHE) packaging/test-static.sh build/packages
	CACHE=$(CACHE) $(WITH_NODE) packaging/test-npm.sh build/packages

test-bare: setup ## Run `make demo` in minimal roots of Debian 12 and 13, which set-up completes (as root; FULL=1: `make test`, too).
	CACHE=$(CACHE) packaging/test-bare.sh

docs: python capi ## Build the documentation site into build/site; check its links, and run the code of its pages.
	scripts/build-docs.sh $(VENV) build/site
	cargo test --quiet -p spawnfd --doc
	cargo test --quiet -p spawnfd --example quick
	cargo test --quiet -p spawnfd-cli --test command -- pages
	cargo test --quiet -p spawnfd-tests --test posix -- documents
	cd bindings/python && $(CURDIR)/$(PY) -m pytest -q tests/test_guides.py

demo: python ## Start real tools thousands of times, through templates and the platform's ways; table and report page.
	$(PY) bench/agent/run.py --demo

# run.py makes this first, once no other run uses the checkout.
build-tests: python capi node bench/node/node_modules/.ready
	cargo test --quiet --workspace --exclude spawnfd-python --no-run
	cargo test --quiet -p spawnfd --no-default-features --no-run

test: setup ## Run the tests, 7 to 15 minutes after the build; ends with what was skipped and why, and the times.
	$(PYTHON) tests/run.py test

test-all: setup ## Every test through every launcher and confinement, all rounds, all interpreters: more than an hour.
	CACHE=$(CACHE) SPAWNFD_BASHES=$$(scripts/setup-bash.sh $(CACHE)) $(PYTHON) tests/run.py all

test-rust: setup ## One part of `make test`; the others are test-docker, test-examples, test-python, test-node and test-parked.
test-docker test-examples test-python test-node test-parked: setup
test-rust test-docker test-examples test-python test-node test-parked:
	$(PYTHON) tests/run.py $(@:test-%=%)

test-guest: setup ## Suites under Linux 6.1 in QEMU: cgroups with their controllers, an older kernel (GUESTS=bullseye: 5.10).
	@mkdir -p build && rm -f $(SKIPS)
	scripts/setup-guest.sh
	SPAWNFD_SKIPS=$(SKIPS) tests/run-guest.sh $(CACHE)/kernel $(GUESTS)
	@echo; echo "Skipped:"; if [ -s $(SKIPS) ]; then sort -u $(SKIPS); else echo "  nothing"; fi

test-aarch64: setup ## Suites on an emulated arm64 machine in QEMU, with pages of 4 and of 16 KiB (as root).
	@mkdir -p build && rm -f $(SKIPS)
	CACHE=$(CACHE) SPAWNFD_SKIPS=$(SKIPS) tests/run-aarch64.sh
	@echo; echo "Skipped:"; if [ -s $(SKIPS) ]; then sort -u $(SKIPS); else echo "  nothing"; fi

test-kernel: test-kernel-series test-kernel-library ## The kernel series: its selftests, and the library's suites under it, in QEMU.

test-kernel-series: setup ## The kernel series, built plain and with KASAN and lockdep; its selftests in QEMU.
	@mkdir -p build && rm -f $(SKIPS)
	kernel/qemu/inputs.sh series >build/tested-series
	scripts/setup-guest.sh
	SPAWNFD_SKIPS=$(SKIPS) kernel/qemu/test-kernel.sh $(CACHE)/kernel
	mv build/tested-series kernel/tested-series
	@echo; echo "Skipped:"; if [ -s $(SKIPS) ]; then sort -u $(SKIPS); else echo "  nothing"; fi

test-kernel-library: setup ## The library's suites in QEMU under the kernel series; limits by cgroups under Linux 6.1.
	@mkdir -p build && rm -f $(SKIPS)
	kernel/qemu/inputs.sh library >build/tested-library
	scripts/setup-guest.sh
	SPAWNFD_SKIPS=$(SKIPS) SPAWNFD_SUITES="$(KERNEL_SUITES)" SPAWNFD_GUEST_TIME=7200 \
	    tests/run-guest.sh $(CACHE)/kernel $$(kernel/qemu/build.sh $(CACHE)/kernel base)/bzImage
	SPAWNFD_SKIPS=$(SKIPS) SPAWNFD_SUITES="$(CGROUP_SUITES)" tests/run-guest.sh $(CACHE)/kernel
	mv build/tested-library kernel/tested-library
	@echo; echo "Skipped:"; if [ -s $(SKIPS) ]; then sort -u $(SKIPS); else echo "  nothing"; fi

kernel-shell: setup ## A shell under the series' kernel in QEMU, with the spawnfd command and the selftests.
	scripts/setup-guest.sh
	cargo build --quiet --release -p spawnfd-cli
	kernel/qemu/shell.sh $(CACHE)/kernel $(CARGO_TARGET_DIR)/release/spawnfd

soak: setup ## 200,000 jobs of all kinds from several threads (JOBS=n for fewer or more); nothing may be left, memory stays flat. Then 10 minutes of random confinements and starts, and 10 minutes of SIGKILLs of sessions.
	SPAWNFD_SOAK=$(or $(JOBS),200000) cargo test --release -p spawnfd-tests --test soak
	SPAWNFD_FUZZ_SECONDS=600 cargo test --release -p spawnfd-tests --test authority -- fuzz
	SPAWNFD_SESSION_SECONDS=600 cargo test --release -p spawnfd-tests --test session -- soak

lint: python bindings/node/node_modules/.ready ## Check formatting, clippy, types, stubs, headers, and the dependencies' licences and sources.
	$(WITH_NODE) scripts/lint.sh $(VENV)

format: setup ## Format all sources.
	cargo fmt --all
	$(VENV)/bin/ruff format bindings/python
	$(VENV)/bin/ruff format bench
	git ls-files '*.c' '*.h' ':!include' | xargs -r $(VENV)/bin/clang-format -i

bench-launch: setup ## First instruction and whole life, by method and parent; build/bench/launch.json.
	cargo build --quiet --release -p spawnfd-bench
	$(PY) bench/native/run.py launch --program $(CARGO_TARGET_DIR)/release/bench-launch

bench-snapshot: setup ## Snapshots of a library, cold and cached; build/bench/snapshot.json.
	cargo build --quiet --release -p spawnfd-bench
	$(PY) bench/native/run.py snapshot --program $(CARGO_TARGET_DIR)/release/bench-launch

bench-agent: python ## The RFC's agent-tools preset, 6,144 calls (QUICK=1 for less); build/bench/agent.json and agent.html.
	$(PY) bench/agent/run.py

bench-job: python ## Captured runs, one and 16 in flight, against subprocess, asyncio and uvloop; build/bench/job.json.
	cargo build --quiet --release -p spawnfd-tests --bin spawnfd-confine
	cargo build --quiet --release -p spawnfd-bench
	$(PY) bench/job/run.py --confine $(CARGO_TARGET_DIR)/release/spawnfd-confine \
	    --native $(CARGO_TARGET_DIR)/release/bench-launch

bench-node: node bench/node/node_modules/.ready ## Captured runs from Node and Bun, against child_process and execa; build/bench/node.json.
	$(WITH_NODE) $(PY) bench/node/run.py --cache $(CACHE)/node

bench-warm: python ## Programs parked ahead: time of one call, calls per second, memory; build/bench/warm.json (and the report).
	$(PY) bench/warm/run.py
	$(PY) bench/agent/run.py --report-only

bench-remote: python $(VENV)/.ready-remote ## Runs through spawnfd serve: a pipe, ssh, a container; against local runs; build/bench/remote.json.
	cargo build --quiet --release -p spawnfd-cli
	$(PY) bench/remote/run.py --server $(CARGO_TARGET_DIR)/release/spawnfd

$(VENV)/.ready-remote: $(VENV)/.ready bench/remote/requirements.txt
	$(VENV)/bin/pip install --quiet --disable-pip-version-check -r bench/remote/requirements.txt
	@touch $@

bench-kernel: setup ## Starts under the series' kernel, counted in instructions, in QEMU; build/bench/kernel.json.
	scripts/setup-guest.sh
	$(PY) bench/kernel/run.py --cache $(CACHE)/kernel

bench-count: setup ## Instructions of a start on x86_64 and aarch64, counted in QEMU (as root); build/bench/count.json.
	$(PY) bench/count/run.py --cache $(CACHE)

bench-posix: capi ## posix_spawn of glibc 2.36 and 2.41 against ours, linked and preloaded; build/bench/posix.json.
	$(PY) bench/posix/run.py --libraries build/capi --cache $(CACHE)/glibc

bench-package: python ## The time of `import spawnfd`, against that of `import subprocess`, and the size of the wheel; build/bench/package.json.
	packaging/wheels.sh build/bench/wheels x86_64-unknown-linux-gnu
	$(PY) bench/package/run.py --wheels build/bench/wheels

bench-compare: setup ## This tree's times against those of BASE=commit, in one run (SUITES="launch job warm", IDS=patterns); build/bench/compare.json.
	@$(PY) bench/compare/run.py --base "$(BASE)" --suites "$(or $(SUITES),launch job warm)" --ids "$(IDS)" --cache $(CACHE)/compare

clean: ## Remove what was built here. The cache outside the tree stays: rm -rf $(CACHE)
	rm -rf build target
