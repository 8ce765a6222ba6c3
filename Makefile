# What a person types in this repository. `make` alone lists it.

CARGO ?= cargo
MILLPOND := target/release/millpond

# Debian packages that building and testing need, and a program of each that shows it is there.
PACKAGES := gcc:gcc make:make fio:fio libnbd-bin:nbdfuse qemu-utils:qemu-io xfsprogs:mkfs.xfs \
            e2fsprogs:mkfs.ext4 fuse3:fusermount3 util-linux:losetup procps:ps iproute2:ip nftables:nft \
            etcd-server:etcd etcd-client:etcdctl prometheus:promtool openssl:openssl faketime:faketime

TEST := $(CARGO) test --profile quick --locked --workspace --no-fail-fast
LINT := $(CARGO) clippy --profile quick --locked --workspace --all-targets -- -D warnings

.PHONY: help deps build run check test test-units test-programs test-hosts soak bench bench-failover bench-encryption bench-large fmt lint clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

deps: ## install what is missing of the programs that building and testing need
	@missing=""; \
	for entry in $(PACKAGES); do \
	    PATH="$$PATH:/usr/sbin:/sbin" command -v "$${entry#*:}" >/dev/null 2>&1 || missing="$$missing $${entry%%:*}"; \
	done; \
	if [ -n "$$missing" ]; then \
	    if [ "$$(id -u)" = 0 ]; then \
	        apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing; \
	    elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then \
	        sudo apt-get update -qq && sudo DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing; \
	    else \
	        echo "missing programs; install them as root with: apt-get install$$missing" >&2; exit 1; \
	    fi; \
	fi
	@command -v $(CARGO) >/dev/null 2>&1 || { \
	    echo "Rust is missing; install it as https://rustup.rs says, then try again." >&2; exit 1; }
	@$(CARGO) --version >/dev/null || { \
	    echo "This Rust toolchain is missing: $$(sed -n 's/^channel = //p' rust-toolchain.toml); install it with: rustup toolchain install" >&2; \
	    exit 1; }

build: deps ## build the command, optimised
	$(CARGO) build --release --locked --package millpond

run: build ## start a cluster in ./data, run the 10K challenge on it, show how to attach a client
	./$(MILLPOND) demo --dir ./data

check: deps ## format, lint and unit tests: what to run after each change
	$(CARGO) fmt --all --check
	$(LINT)
	$(TEST) --lib --bins

test: deps ## format, lint, unit and property tests, conformance, end-to-end
	$(CARGO) fmt --all --check
	$(LINT)
	$(TEST) --no-run
	$(MAKE) --no-print-directory --jobs=3 --output-sync=target test-units test-programs test-hosts

# The three parts of test: they mostly wait, for leases to end above all, so they run at the same time.
test-units: deps ## the part of test that needs no program: each crate's own tests
	$(TEST) --lib --bins
	$(TEST) --doc

test-programs: deps ## the part of test that has whole crates and the command before it
	$(TEST) --test '*' -- --skip many_hosts::

test-hosts: deps ## the part of test that has many hosts and an etcd (as root: it makes network namespaces)
	$(TEST) --test machines

soak: deps ## lives of simulated clusters from fresh seeds, for MINUTES
	$(CARGO) run --profile quick --locked --package sim -- --minutes $(or $(MINUTES),5) --from $$(date +%s)000

# JSON=FILE also writes the figures to FILE; CEPH_CONF=FILE also compares with that Ceph cluster, on its image rbd/test.
bench: deps ## compare a replicated volume with the raw drives under it (as root: it makes loop devices)
	$(CARGO) build --release --locked --package millpond --package lab
	./target/release/bench-suite --millpond ./$(MILLPOND) $(if $(JSON),--json $(JSON)) $(if $(CEPH_CONF),--ceph-conf $(CEPH_CONF))

# JSON=FILE also writes the figures to FILE.
bench-failover: deps ## measure what clients notice when a node is lost (as root: it makes loop devices)
	$(CARGO) build --release --locked --package millpond --package lab
	./target/release/bench-failover --millpond ./$(MILLPOND) $(if $(JSON),--json $(JSON))

# JSON=FILE also writes the figures to FILE.
bench-encryption: deps ## measure what encryption of a cluster's traffic costs (as root: it makes loop devices)
	$(CARGO) build --release --locked --package millpond --package lab
	./target/release/bench-encryption --millpond ./$(MILLPOND) $(if $(JSON),--json $(JSON))

# JSON=FILE also writes the figures to FILE.
bench-large: deps ## measure watching 8,134 OSDs, and hosts that join and die (as root: it makes loop devices)
	$(CARGO) build --release --locked --package millpond --package lab
	./target/release/bench-large-cluster --millpond ./$(MILLPOND) $(if $(JSON),--json $(JSON))

fmt: ## format the code
	$(CARGO) fmt --all

lint: ## lint, and check licences and advisories where cargo-deny is installed
	$(LINT)
	@if $(CARGO) deny --version >/dev/null 2>&1; then \
	    $(CARGO) deny --workspace check; \
	else \
	    echo "cargo-deny is not installed, so licences and advisories are not checked; get it with: cargo install --locked cargo-deny"; \
	fi

clean: ## remove what was built; ./data stays
	$(CARGO) clean
