# What a person types in this repository. `make` alone lists it.

CARGO ?= cargo
MILLPOND := target/release/millpond

# Debian packages that building and testing need, and a program or file of each that shows it is there.
PACKAGES := gcc:gcc make:make fio:fio libnbd-bin:nbdfuse nbd-client:nbd-client qemu-utils:qemu-io xfsprogs:mkfs.xfs \
            e2fsprogs:mkfs.ext4 fuse3:fusermount3 util-linux:losetup procps:ps iproute2:ip nftables:nft \
            etcd-server:etcd etcd-client:etcdctl prometheus:promtool openssl:openssl faketime:faketime \
            qemu-system-x86:qemu-system-x86_64 busybox-static:busybox cpio:cpio kmod:modprobe \
            python3-rados:/usr/share/doc/python3-rados/copyright python3-rbd:/usr/share/doc/python3-rbd/copyright \
            librbd-dev:/usr/include/rbd/librbd.h libvirt-daemon:libvirtd libvirt-clients:virsh tgt:tgtd libiscsi-bin:iscsi-test-cu \
            libvirt-daemon-driver-storage-rbd:/usr/share/doc/libvirt-daemon-driver-storage-rbd/copyright \
            tgt-rbd:/usr/share/doc/tgt-rbd/copyright qemu-block-extra:/usr/share/doc/qemu-block-extra/copyright

# Runs each test as a process of its own; `.config/nextest.toml` says how many at once, and which not beside others.
NEXTEST := 0.9.151
# Whether it fails or not, at its end stands what could not be tried here.
define TEST
	@mkdir -p target && rm -f target/left-out; \
	MILLPOND_TESTS_LEFT_OUT=$(CURDIR)/target/left-out \
	    $(CARGO) nextest run --cargo-profile quick --locked --workspace $(1); status=$$?; \
	if [ -s target/left-out ]; then echo; sort -u target/left-out; fi; exit $$status
endef
# Builds all programs, with what the tests build of them: by itself each has libraries with other features, built once more.
PROGRAMS := $(CARGO) build --profile quick --locked --workspace --bins --tests
LINT := $(CARGO) clippy --profile quick --locked --workspace --all-targets -- -D warnings

# Built once, from source: it takes a while.
DENY := 0.20.2

.PHONY: help deps test-deps build capi capi-install run check test test-rbd test-go-ceph nightly soak fuzz mutants deny bench bench-against bench-failover bench-encryption bench-large pictures fmt lint clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

deps: ## install what is missing of the programs that building and testing need
	@missing=""; \
	for entry in $(PACKAGES); do \
	    PATH="$$PATH:/usr/sbin:/sbin" command -v "$${entry#*:}" >/dev/null 2>&1 || [ -e "$${entry#*:}" ] || missing="$$missing $${entry%%:*}"; \
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

test-deps: deps
	@$(CARGO) nextest --version >/dev/null 2>&1 || \
	    CARGO_PROFILE_DEV_DEBUG=0 $(CARGO) install --locked --debug --version $(NEXTEST) \
	    --no-default-features --features default-no-update cargo-nextest

build: deps ## build the command, optimised
	$(CARGO) build --release --locked --package millpond

capi: deps ## build the library by which programs of Ceph's RBD use volumes, in target/rbd
	$(CARGO) build --profile library --locked --package capi
	mkdir -p target/rbd && install -m 644 target/library/libcapi.so target/rbd/librados.so.2 && ln -sf librados.so.2 target/rbd/librbd.so.1

# Beside the system's own libraries, where nothing finds it that is not told to: PREFIX and DESTDIR as usual.
capi-install: capi ## install that library in PREFIX/lib/millpond/rbd, beside the system's Ceph
	install -d $(DESTDIR)$(or $(PREFIX),/usr/local)/lib/millpond/rbd
	install -m 644 target/rbd/librados.so.2 $(DESTDIR)$(or $(PREFIX),/usr/local)/lib/millpond/rbd/
	ln -sf librados.so.2 $(DESTDIR)$(or $(PREFIX),/usr/local)/lib/millpond/rbd/librbd.so.1

run: build ## start a cluster in ./data, run the 10K challenge on it, show how to attach a client
	./$(MILLPOND) demo --dir ./data

check: test-deps ## format, lint and unit tests: what to run after each change
	$(CARGO) fmt --all --check
	$(LINT)
	$(call TEST,--lib --bins)

test: test-deps ## format, lint, unit and property tests, conformance, end-to-end
	$(CARGO) fmt --all --check
	$(LINT)
	$(CARGO) test --profile quick --locked --workspace --doc --quiet
	$(call TEST)

# FILE is src/test/pybind/test_rbd.py of Ceph's branch pacific, which is not part of this project.
test-rbd: test-deps ## the tests that Ceph has for its own library's Python binding, on this one: FILE=PATH
	@[ -f "$(FILE)" ] || { echo "FILE names no file: it is src/test/pybind/test_rbd.py of Ceph's branch pacific" >&2; exit 2; }
	MILLPOND_TEST_RBD=$(abspath $(FILE)) $(CARGO) nextest run --cargo-profile quick --locked --workspace --run-ignored only \
	    -E 'binary(e2e) & test(/^rbd::the_tests_of_ceph/)'

# Go's modules are locked by crates/millpond/tests/e2e/go_ceph/go.sum.
test-go-ceph: PACKAGES += librbd-dev:/usr/include/rbd/librbd.h librados-dev:/usr/include/rados/librados.h
test-go-ceph: test-deps ## the tests that the Go library go-ceph has for images, on this cluster: Go 1.23 or later, and a way to its modules
	@command -v go >/dev/null || { echo "go is not installed: https://go.dev/dl has it (1.23 or later)" >&2; exit 2; }
	$(CARGO) nextest run --cargo-profile quick --locked --workspace --run-ignored only \
	    -E 'binary(e2e) & test(/^rbd::the_tests_of_go_ceph/)'

# TEST_RBD=FILE also runs the tests of Ceph's own library (see test-rbd).
# TIMES=N for other than ten rounds, HOSTILE_SECONDS=N for other than an hour.
nightly: PACKAGES += postgresql:pg_ctlcluster
nightly: test-deps ## what takes hours: make test many times over, an hour of a hostile tenant, databases, and 50,000 lives of simulated clusters
	for round in $$(seq $(or $(TIMES),10)); do $(MAKE) --no-print-directory test || exit 1; done
	MILLPOND_HOSTILE_SECONDS=$(or $(HOSTILE_SECONDS),3600) $(CARGO) nextest run --profile nightly --cargo-profile quick --locked \
	    --workspace -E 'binary(e2e) & test(/^hostile_tenant::/)'
	MILLPOND_SNAPSHOTTED_SECONDS=600 MILLPOND_DATABASE_SNAPSHOTS=50 $(CARGO) nextest run --profile nightly --cargo-profile quick --locked \
	    --workspace --run-ignored all --test-threads 1 -E 'binary(e2e) & test(/^(snapshotted|databases)::/)'
	$(if $(TEST_RBD),$(MAKE) --no-print-directory test-rbd FILE=$(TEST_RBD),@echo "not tested: Ceph's test_rbd.py, for TEST_RBD names no file")
	$(MAKE) --no-print-directory test-go-ceph
	$(PROGRAMS)
	./target/quick/sim --seeds 50000 --from $$(date +%s)000
	$(MAKE) --no-print-directory fuzz SECONDS=3600

soak: deps ## lives of simulated clusters from fresh seeds, for MINUTES
	$(PROGRAMS)
	./target/quick/sim --minutes $(or $(MINUTES),5) --from $$(date +%s)000

# TARGET=NAME for one of them; SECONDS for all together, or INPUTS for each; SEED; CAREFUL=1 where the process is ended;
# FILES="PATH ..." runs inputs again.
fuzz: deps ## feed what reads bytes of strangers, users and drives with bytes that nobody meant
	$(PROGRAMS)
	./target/quick/fuzz --seed $(or $(SEED),$$(date +%s)) $(if $(TARGET),--target $(TARGET)) \
	    $(if $(SECONDS),--seconds $(SECONDS)) $(if $(INPUTS),--inputs $(INPUTS)) $(if $(CAREFUL),--careful) $(FILES)

# SAMPLE=N mutants are drawn by SEED, of all crates that have any or of CRATES="store pg"; each is to survive LIVES. JSON=FILE
# keeps results elsewhere than in target/mutants.
mutants: deps ## make small mistakes in the code, one at a time, and tell which of them no test notices
	$(CARGO) run --profile quick --locked --package mutants -- --sample $(or $(SAMPLE),120) --seed $(or $(SEED),1) \
	    $(if $(LIVES),--lives $(LIVES)) $(if $(WORKERS),--workers $(WORKERS)) $(foreach name,$(CRATES),--crate $(name)) \
	    $(if $(JSON),--json $(JSON))

deny: deps ## check licences and sources of what is linked and, where they can be fetched, advisories
	@$(CARGO) deny --version >/dev/null 2>&1 || \
	    CARGO_PROFILE_DEV_DEBUG=0 $(CARGO) install --locked --debug --version $(DENY) cargo-deny
	$(CARGO) deny --workspace --locked check licenses bans sources
	@if $(CARGO) deny --locked fetch db >/dev/null 2>&1; then \
	    $(CARGO) deny --workspace --locked check --disable-fetch advisories; \
	else \
	    echo "the database of advisories cannot be fetched from here, so advisories are not checked"; \
	fi

# JSON=FILE also writes the figures to FILE; CEPH_CONF=FILE also compares with that Ceph cluster, on its image rbd/test.
bench: deps ## compare a replicated volume with the raw drives under it (as root: it makes loop devices)
	$(CARGO) build --release --locked --package millpond --package lab
	./target/release/millpond-bench volume --millpond ./$(MILLPOND) $(if $(JSON),--json $(JSON)) $(if $(CEPH_CONF),--ceph-conf $(CEPH_CONF))

# JSON=FILE also writes the figures to FILE.
bench-failover: deps ## measure what clients notice when a node is lost (as root: it makes loop devices)
	$(CARGO) build --release --locked --package millpond --package lab
	./target/release/millpond-bench failover --millpond ./$(MILLPOND) $(if $(JSON),--json $(JSON))

# JSON=FILE also writes the figures to FILE.
bench-encryption: deps ## measure what encryption of a cluster's traffic costs (as root: it makes loop devices)
	$(CARGO) build --release --locked --package millpond --package lab
	./target/release/millpond-bench encryption --millpond ./$(MILLPOND) $(if $(JSON),--json $(JSON))

# JSON=FILE also writes the figures to FILE.
bench-large: deps ## measure watching 8,134 OSDs, and hosts that join and die (as root: it makes loop devices)
	$(CARGO) build --release --locked --package millpond --package lab
	./target/release/millpond-bench large-cluster --millpond ./$(MILLPOND) $(if $(JSON),--json $(JSON))

# ONLY="10k qos" takes those alone. QEMU is for a virtual machine as a layer.
pictures: PACKAGES += chromium:chromium qemu-system-x86:qemu-system-x86_64 busybox-static:busybox cpio:cpio kmod:modprobe
pictures: build ## run the lab's challenges, shortly, and take pictures of their reports (about an hour; the schedulers of one as root)
	bench/pictures.sh ./$(MILLPOND) $(or $(ONLY),10k 16-clients 100-volumes failover layers one-machine qos releases scale why-slow)

# BASE=COMMIT is built apart, in target/base. JSON=FILE also writes the figures to FILE. ONLY="write 256KiB" measures that alone.
bench-against: deps ## measure another commit's build and this one in turns (as root: it makes loop devices)
	@test -n "$(BASE)" || { echo "say which commit to compare with: make bench-against BASE=COMMIT" >&2; exit 1; }
	rm -rf target/base-source && git worktree prune && git worktree add --detach target/base-source $(BASE)
	cd target/base-source && CARGO_TARGET_DIR=../base $(CARGO) build --release --locked --package millpond
	git worktree remove --force target/base-source
	$(CARGO) build --release --locked --package millpond --package lab
	./target/release/millpond-bench against target/base/release/millpond --millpond ./$(MILLPOND) $(if $(JSON),--json $(JSON)) $(if $(ONLY),--only "$(ONLY)")

fmt: ## format the code
	$(CARGO) fmt --all

lint: ## lint
	$(LINT)

clean: ## remove what was built; ./data stays
	$(CARGO) clean
