# For newcomers:  make demo, make test, make bench

export PATH := $(HOME)/.cargo/bin:$(PATH)
# Programs that read from the terminal get end of file instead.
SHELL := /bin/sh

TARGET := $(or $(CARGO_TARGET_DIR),target)
IRONVERBS := $(TARGET)/release/ironverbs
CARGO := cargo
ROUNDS ?= 5
# Seconds that each fuzz target runs in `make fuzz`.
FUZZ_SECONDS ?= 60
# Seconds of random verbs calls; `make test-all` runs them for one minute.
VERBS_SECONDS ?= 60

# Number of programs killed in each test of `make kill-test`, and stopped in `make stop-test`.
KILLS ?= 1000
STOPS ?= 1000
# Duration of `make torture` in seconds.
SECONDS ?= 600
# Random seed of these three.
SEED ?= 1
# Cases of each test in `make properties`.
CASES ?= 20000

# Scenarios of `make test-guest`, by words in their names; default: all.
GUEST ?=
# Number of pods in `make test-cni`.
CNI_ROUNDS ?= 1000
# Clients of `make test-clients`, by name; default: all.
CLIENTS ?=

# `make laboratory`: how many seconds of seeds to run and the first seed, or the single seed to repeat.
LAB_SECONDS ?= 60
LAB_FIRST ?= 1
LAB_SEED ?=

.PHONY: driver-costs deb image test-deb static test-targets miri properties lint mutants kill-test stop-test torture laboratory all demo build test test-all test-rust test-userlands test-guest test-fresh test-clients bench fuzz fuzz-verbs doctor deps-demo deps-test deps-all deps-linux deps-kubernetes test-cni test-linux test-kubernetes clean

all: build

deps-demo:
	scripts/install-deps.sh demo

deps-test:
	scripts/install-deps.sh test

# Programs that `make test-all` needs in addition.
deps-all: deps-linux
	scripts/install-deps.sh all

# Programs for tests/places/linux/: user-mode Linux and third-party programs. Tests of programs that cannot be built here are skipped.
deps-linux:
	scripts/install-deps.sh linux
	timeout 3000 scripts/linux-kernel.sh build || [ $$? = 3 ]
	timeout 1800 scripts/go-programs.sh build cni || [ $$? = 3 ]

# Programs that tests/places/kubernetes/ needs in addition.
deps-kubernetes:
	scripts/install-deps.sh linux
	scripts/install-deps.sh kubernetes
	timeout 3000 scripts/linux-kernel.sh build
	timeout 1800 scripts/go-programs.sh build cni
	timeout 5400 scripts/go-programs.sh build kubernetes

build:
	timeout 3000 $(CARGO) build --release --locked -p ironverbs-cli -p ironverbs-provider -p ironverbs-loader -p ironverbs-time

# One static binary that runs on any machine: bringup, vf and doctor for users with a card (docs/with-a-card.md).
static:
	CARGO="$(CARGO)" timeout 3000 scripts/targets.sh static

# A Debian package of the tree: target/deb/ironverbs_VERSION_ARCHITECTURE.deb.
deb: build
	timeout 1200 $(CARGO) build --release --locked -p ironverbs-cli --example manual
	timeout 300 scripts/deb.sh pack

demo: deps-demo
	$(MAKE) --no-print-directory build
	timeout 120 $(IRONVERBS) demo

doctor: build
	$(IRONVERBS) doctor

# For newcomers, and for every commit: 12 minutes from scratch on two cores. scripts/test.sh lists the parts.
test:
	@CARGO="$(CARGO)" scripts/test.sh

# All other tests, in parts: an hour on two cores. `scripts/test.sh PART..` runs some of them.
test-all: deps-all
	@CARGO="$(CARGO)" scripts/test.sh all

# Breaks the product in the ways that tests/mutants.toml lists, and reports which test catches each.
mutants: deps-test
	timeout 5400 scripts/mutants.py

# Formatting, clippy, rustdoc and links between pages; `.ci/run` runs this together with `make test`.
lint:
	CARGO="$(CARGO)" scripts/lint.sh

# Every test that cargo knows, including those of `make test-all`.
test-rust: deps-all
	CARGO="$(CARGO)" scripts/test.sh build tests rest

# Kills programs with SIGKILL under full load, at random instants, KILLS times; also part of `make test`.
kill-test: deps-test
	scripts/test.sh build
	IRONVERBS_KILLS=$(KILLS) IRONVERBS_SEED=$(SEED) timeout 7200 $(CARGO) test --profile quick --locked -p ironverbs-tests --test node -- \
		--nocapture --test-threads 1 kill::

# Stops programs under full load with SIGSTOP and continues them, STOPS times; also part of `make test`.
stop-test: deps-test
	scripts/test.sh build
	IRONVERBS_STOPS=$(STOPS) IRONVERBS_SEED=$(SEED) timeout 7200 $(CARGO) test --profile quick --locked -p ironverbs-tests --test node -- \
		--nocapture --test-threads 1 stop::

# Checks every byte, order and count on bad networks, in real time, for SECONDS; also part of `make test`.
torture: deps-test
	scripts/test.sh build
	IRONVERBS_TORTURE=$(SECONDS) IRONVERBS_SEED=$(SEED) timeout $$(($(SECONDS) + 900)) $(CARGO) test --profile quick --locked \
		-p ironverbs-tests --test node -- --nocapture torture::

# Interleaves, stops and kills programs step by step, driven by seeds; a minute of this is part of `make test-all`.
laboratory: deps-test
	IRONVERBS_SEED=$(LAB_SEED) IRONVERBS_LAB_SECONDS=$(LAB_SECONDS) IRONVERBS_LAB_FIRST=$(LAB_FIRST) \
		timeout $$(($(LAB_SECONDS) + 1200)) $(CARGO) test --profile quick --locked --workspace --test laboratory --features ironverbs-laboratory/laboratory \
		-- --nocapture --test-threads 1 whatever_is_stopped_or_killed_nobody_else_notices

# Brings a function up with the static binary, and tests the driver on aarch64 under qemu-user. Prints `skipped:` where one is unavailable.
test-targets: build
	CARGO="$(CARGO)" timeout 1500 scripts/targets.sh test-static
	CARGO="$(CARGO)" timeout 1500 scripts/targets.sh test-aarch64

# Tests with the rdma-core of Debian 12, 13 and sid, each in its own folder; needs root.
test-userlands: deps-all
	scripts/test.sh build userlands

# Debian guests under QEMU's emulation: the stock drivers on the model, ours on kernel VFIO, rxe on the wire.
test-guest: deps-all
	GUEST="$(GUEST)" scripts/test.sh build guest

# The stock driver on user-mode Linux, with everything it needs.
test-linux: deps-test deps-linux
	scripts/test.sh build linux

# Creates and deletes a pod CNI_ROUNDS times on user-mode Linux; `make test-all` runs a few rounds.
test-cni: deps-test deps-linux
	scripts/test.sh build
	IRONVERBS_CNI_ROUNDS=$(CNI_ROUNDS) timeout $$(($(CNI_ROUNDS) * 10 + 900)) $(CARGO) test --profile quick --locked -p ironverbs-tests \
		--test places -- --nocapture --test-threads 1 linux::cni

# Builds a container image of the package (packaging/image): target/image.tar. Needs root, podman or docker, and Debian's mirror.
image: deb deps-linux
	timeout 3000 scripts/image.sh $(TARGET)/image.tar

# Clusters of Linux nodes with a control plane, device plugins, multus and an operator; every fifth day `make test-all` has half of these
# tests. Needs root.
KUBERNETES ?= kubernetes::
test-kubernetes: deps-kubernetes deb
	timeout 3000 scripts/go-programs.sh build charts || [ $$? = 3 ]
	timeout 3000 $(CARGO) test --release --locked -p ironverbs-tests --test places -- $(KUBERNETES) --ignored --nocapture --test-threads 1

# `make demo` and `make test` on a bare Debian 12 and 13, with Debian's own Rust; needs root and 15 minutes for each.
test-fresh:
	scripts/fresh.sh

# Installs, uses, removes and purges the package on a bare Debian 12 and 13; needs root and a mirror.
test-deb: deb
	timeout 3600 scripts/deb.sh check

# Third-party programs on our devices, from Debian, PyPI and crates.io; part of `make test-all` only every fifth day, because there is much
# to install.
test-clients: build
	timeout 7200 scripts/clients.sh $(CLIENTS)

# Counts the driver's instructions per post and poll under valgrind, and derives their cost on a card; PROFILE is an output file.
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

# Random calls of the verbs interface; VERBS_SECONDS=3600 runs them for an hour.
fuzz-verbs:
	VERBS_SECONDS=$(VERBS_SECONDS) timeout $$(($(VERBS_SECONDS) + 300)) scripts/fuzz-verbs.sh

# The property tests from a random seed, CASES each; `make test` runs a few hundred cases each from a fixed seed.
properties:
	PROPTEST_CASES=$(CASES) timeout 3600 $(CARGO) test --profile quick --locked -p ironverbs-cm -p ironverbs-hwspec --test protocol --test formats
	PROPTEST_CASES=$(CASES) timeout 3600 $(CARGO) test --profile quick --locked -p ironverbs-tests --test model commands::properties

# The tests of hwspec and region that Miri can run; needs a nightly Rust with Miri.
miri:
	timeout 3000 scripts/miri.sh

clean:
	$(CARGO) clean
