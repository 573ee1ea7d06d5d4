# A newcomer types:  make demo, make test, make bench

export PATH := $(HOME)/.cargo/bin:$(PATH)
# Programs that wait for a terminal get the end of file instead.
SHELL := /bin/sh

TARGET := $(or $(CARGO_TARGET_DIR),target)
IRONVERBS := $(TARGET)/release/ironverbs
CARGO := cargo
ROUNDS ?= 5
# Seconds each fuzz target runs in `make fuzz`.
FUZZ_SECONDS ?= 60
# Seconds of random verbs calls, which `make test-all` takes a minute of.
VERBS_SECONDS ?= 60

# Programs that are killed in each test of `make kill-test`, and stopped in `make stop-test`.
KILLS ?= 1000
STOPS ?= 1000
# Seconds of `make torture`.
SECONDS ?= 600
# Where chance begins in these three.
SEED ?= 1
# Cases of each test in `make properties`.
CASES ?= 20000

# Scenarios of `make test-guest`, by words in their names; all without.
GUEST ?=
# Pods of `make test-cni`.
CNI_ROUNDS ?= 1000
# Clients of `make test-clients`, by name; all without.
CLIENTS ?=

# The laboratory: seconds of seeds, and the first of them; or the one to repeat.
LAB_SECONDS ?= 60
LAB_FIRST ?= 1
LAB_SEED ?=

.PHONY: driver-costs deb image test-deb static test-targets miri properties lint mutants kill-test stop-test torture laboratory all demo build test test-all test-rust test-userlands test-guest test-fresh test-clients bench fuzz fuzz-verbs doctor deps-demo deps-test deps-all deps-linux deps-kubernetes test-cni test-linux test-kubernetes clean

all: build

deps-demo:
	scripts/install-deps.sh demo

deps-test:
	scripts/install-deps.sh test

# Programs that `make test-all` runs beside that.
deps-all: deps-linux
	scripts/install-deps.sh all

# Programs of tests/places/linux/: a kernel that is a program, and programs by others. The tests of what cannot be had here are skipped.
deps-linux:
	scripts/install-deps.sh linux
	timeout 3000 scripts/linux-kernel.sh build || [ $$? = 3 ]
	timeout 1800 scripts/go-programs.sh build cni || [ $$? = 3 ]

# Programs that tests/places/kubernetes/ runs beside that.
deps-kubernetes:
	scripts/install-deps.sh linux
	scripts/install-deps.sh kubernetes
	timeout 3000 scripts/linux-kernel.sh build
	timeout 1800 scripts/go-programs.sh build cni
	timeout 5400 scripts/go-programs.sh build kubernetes

build:
	timeout 3000 $(CARGO) build --release --locked -p ironverbs -p ironverbs-provider -p ironverbs-loader -p ironverbs-time

# One binary that needs nothing of the machine it runs on: bringup, vf and doctor for somebody with a card (docs/with-a-card.md).
static:
	CARGO="$(CARGO)" timeout 3000 scripts/targets.sh static

# A Debian package of it: target/deb/ironverbs_VERSION_ARCHITECTURE.deb.
deb: build
	timeout 1200 $(CARGO) build --release --locked -p ironverbs --example manual
	timeout 300 scripts/deb.sh pack

demo: deps-demo
	$(MAKE) --no-print-directory build
	timeout 120 $(IRONVERBS) demo

doctor: build
	$(IRONVERBS) doctor

# For newcomers, and for every commit: 12 minutes from nothing on two cores. scripts/test.sh says what its parts are.
test:
	@CARGO="$(CARGO)" scripts/test.sh

# All the rest, in parts: an hour on two cores. `scripts/test.sh PART..` runs some of them.
test-all: deps-all
	@CARGO="$(CARGO)" scripts/test.sh all

# Breaks the product in the ways that tests/mutants.toml lists, and says which test catches each.
mutants: deps-test
	timeout 5400 scripts/mutants.py

# Formatting, clippy, rustdoc and links between pages; `.ci/run` does this beside `make test`.
lint:
	CARGO="$(CARGO)" scripts/lint.sh

# Every test cargo knows, those of `make test-all` among them.
test-rust: deps-all
	CARGO="$(CARGO)" scripts/test.sh build tests rest

# kill -9 of programs in full flow, at random instants, KILLS times; part of `make test` too.
kill-test: deps-test
	scripts/test.sh build
	IRONVERBS_KILLS=$(KILLS) IRONVERBS_SEED=$(SEED) timeout 7200 $(CARGO) test --profile quick --locked -p ironverbs-tests --test node -- \
		--nocapture --test-threads 1 kill::

# SIGSTOP of programs in full flow, and SIGCONT, STOPS times; part of `make test` too.
stop-test: deps-test
	scripts/test.sh build
	IRONVERBS_STOPS=$(STOPS) IRONVERBS_SEED=$(SEED) timeout 7200 $(CARGO) test --profile quick --locked -p ironverbs-tests --test node -- \
		--nocapture --test-threads 1 stop::

# Every byte, order and count on bad networks, in real time, for SECONDS; part of `make test` too.
torture: deps-test
	scripts/test.sh build
	IRONVERBS_TORTURE=$(SECONDS) IRONVERBS_SEED=$(SEED) timeout $$(($(SECONDS) + 900)) $(CARGO) test --profile quick --locked \
		-p ironverbs-tests --test node -- --nocapture torture::

# Programs interleaved, stopped and killed step by step by seeds; a minute of them is part of `make test-all`.
laboratory: deps-test
	IRONVERBS_SEED=$(LAB_SEED) IRONVERBS_LAB_SECONDS=$(LAB_SECONDS) IRONVERBS_LAB_FIRST=$(LAB_FIRST) \
		timeout $$(($(LAB_SECONDS) + 1200)) $(CARGO) test --profile quick --locked --workspace --test laboratory --features ironverbs-laboratory/laboratory \
		-- --nocapture --test-threads 1 whatever_is_stopped_or_killed_nobody_else_notices

# The static binary brings a function up; the driver on aarch64, under qemu-user. Says `skipped:` where one cannot be had.
test-targets: build
	CARGO="$(CARGO)" timeout 1500 scripts/targets.sh test-static
	CARGO="$(CARGO)" timeout 1500 scripts/targets.sh test-aarch64

# The rdma-core of Debian 12, 13 and sid, each in a folder of its own; needs root.
test-userlands: deps-all
	scripts/test.sh build userlands

# Debian guests under QEMU's emulation: the stock drivers on the model, ours on kernel VFIO, rxe on the wire.
test-guest: deps-all
	GUEST="$(GUEST)" scripts/test.sh build guest

# The stock driver on user-mode Linux, and what it needs.
test-linux: deps-test deps-linux
	scripts/test.sh build linux

# A pod comes and goes CNI_ROUNDS times on user-mode Linux; `make test-all` has a few of them.
test-cni: deps-test deps-linux
	scripts/test.sh build
	IRONVERBS_CNI_ROUNDS=$(CNI_ROUNDS) timeout $$(($(CNI_ROUNDS) * 10 + 900)) $(CARGO) test --profile quick --locked -p ironverbs-tests \
		--test places -- --nocapture --test-threads 1 linux::cni

# A container image of the package (packaging/image): target/image.tar. Needs root, podman or docker, and Debian's mirror.
image: deb deps-linux
	timeout 3000 scripts/image.sh $(TARGET)/image.tar

# Clusters of Linux nodes with a control plane, device plugins, multus and an operator; part of `make test-all` every fifth day. Needs root.
test-kubernetes: deps-kubernetes deb
	timeout 3000 scripts/go-programs.sh build charts || [ $$? = 3 ]
	timeout 3000 $(CARGO) test --release --locked -p ironverbs-tests --test places -- kubernetes:: --ignored --nocapture --test-threads 1

# `make demo` and `make test` on a bare Debian 12 and 13, with Debian's own Rust; needs root, and a quarter of an hour for each.
test-fresh:
	scripts/fresh.sh

# The package installed, used, removed and purged on a bare Debian 12 and 13; needs root, and a mirror.
test-deb: deb
	timeout 3600 scripts/deb.sh check

# Programs by others on our devices, from Debian, PyPI and crates.io; part of `make test-all` every fifth day, for they are much to install.
test-clients: build
	timeout 7200 scripts/clients.sh $(CLIENTS)

# Instructions of the driver's posts and polls under valgrind, and what they mean on a card; PROFILE is a file to write.
driver-costs: build
	timeout 1200 $(CARGO) build --release --locked -p ironverbs-driver --example costs
	CARGO_TARGET_DIR="$(TARGET)" timeout 600 scripts/driver-costs.sh $(PROFILE)

bench: deps-all
	$(MAKE) --no-print-directory build
	timeout 3000 $(IRONVERBS) bench --rounds $(ROUNDS)

fuzz: deps-test
	FUZZ_SECONDS=$(FUZZ_SECONDS) timeout 7200 scripts/fuzz.sh
	$(MAKE) --no-print-directory build
	$(MAKE) --no-print-directory fuzz-verbs

# Random calls of the verbs interface: VERBS_SECONDS=3600 for an hour.
fuzz-verbs:
	VERBS_SECONDS=$(VERBS_SECONDS) timeout $$(($(VERBS_SECONDS) + 300)) scripts/fuzz-verbs.sh

# The property tests from a seed of chance, CASES each; `make test` has a few hundred each from always the same seed.
properties:
	PROPTEST_CASES=$(CASES) timeout 3600 $(CARGO) test --profile quick --locked -p ironverbs-cm -p ironverbs-hwspec -p ironverbs-devmodel \
		--test protocol --test formats --test interface

# The tests of hwspec and region that Miri can run; needs a nightly Rust with it.
miri:
	timeout 3000 scripts/miri.sh

clean:
	$(CARGO) clean
