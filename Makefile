# Every target works first on a fresh machine with Go and make: scripts/need.sh installs the rest with the system's own
# package manager when it may, and prints the exact command when it may not.

SHELL := /bin/sh
.DEFAULT_GOAL := build
.PHONY: build demo test test-all bench bench-growth bench-go check fuzz test-cgroup2 test-microvm dist clean

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
# What is delivered is static and does not say where it was built.
GOBUILD := CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=$(VERSION)"
ARCHES := amd64
# Tests that need root may skip on a laptop. As root they are promised to run, so that a missing gate fails.
ROOT_TESTS := $(shell [ "$$(id -u)" = 0 ] && echo GLOVEBOX_TEST_ROOT=1)

# gVisor, at the version in go.mod. Its first build takes minutes, the next ones nothing: it does not change with ours.
RUNSC := CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags "-s -w"

## build: bin/glovebox and the programs it needs beside it
build:
	@mkdir -p bin
	$(GOBUILD) -o bin/ ./cmd/...
	$(RUNSC) -o bin/runsc gvisor.dev/gvisor/runsc

## demo: the sample task and a hostile program, in under a minute
demo: build
	@sh scripts/need.sh python mke2fs newuidmap
	@sh scripts/demo.sh

# What tests see is this machine, so that a result of an earlier day says nothing: -count=1. Attacks are judged by the clock too,
# so that they have the machine to themselves.
## test: everything that tells whether a change is good; .ci/run calls it
test: build
	@sh scripts/need.sh python node mke2fs newuidmap ip curl git
	@set -e; guest=$$(sh scripts/guestkernel.sh); [ -z "$$guest" ] || sh scripts/need.sh qemu busybox; \
	  set -x; export GLOVEBOX_TEST_MICROVM=$$guest; \
	  $(ROOT_TESTS) go test -count=1 -timeout 15m ./attack; \
	  $(ROOT_TESTS) go test -count=1 -timeout 15m $$(go list ./... | grep -v '^glovebox/attack$$')

## test-all: test, then again under the race detector with the long attacks, then each fuzz target for a while
test-all: test
	@sh scripts/need.sh cc pytests
	$(ROOT_TESTS) GLOVEBOX_TEST_LONG=1 CGO_ENABLED=1 go test -race -count=1 -timeout 60m ./...
	@sh scripts/fuzz.sh 20s

## test-cgroup2: control groups of version 2 and an ordinary user under systemd, for real, on an emulated machine (docs/cgroup2.md)
test-cgroup2:
	@sh scripts/cgroup2.sh

# test boots a few machines; this one for each promise, and the promises are many.
## test-microvm: all that every driver is held to, on emulated machines (docs/microvm.md)
test-microvm:
	@sh scripts/need.sh python mke2fs qemu busybox
	@set -e; guest=$$(sh scripts/guestkernel.sh); [ -n "$$guest" ] || { echo "no kernel for guests" >&2; exit 1; }; \
	  set -x; $(ROOT_TESTS) GLOVEBOX_TEST_MICROVM=$$guest GLOVEBOX_TEST_MICROVM_ALL=1 \
	  go test -count=1 -timeout 120m -v ./driver/microvm

## fuzz: each fuzz target for FUZZTIME
fuzz:
	@sh scripts/fuzz.sh $(or $(FUZZTIME),20s)

# What is compared with: bubblewrap, and a program that is worth having ready.
BENCH_NEEDS := python pandas node mke2fs newuidmap bwrap runc

## bench: what a run costs beside an unprotected interpreter, bubblewrap and containers; BENCH="--quick" measures less
bench: build
	@sh scripts/need.sh $(BENCH_NEEDS)
	bin/glovebox bench $(BENCH)

## bench-growth: how costs grow with live sandboxes, files, output and records
bench-growth: build
	@sh scripts/need.sh $(BENCH_NEEDS)
	bin/glovebox bench --growth $(BENCH)

## bench-go: the Go benchmarks of the parts
bench-go:
	go test -run '^$$' -bench . -benchtime 200ms ./...

## check: format, vet, and the rules of the repository
check:
	@out=$$(gofmt -l $$(git ls-files '*.go' 2>/dev/null || find . -name '*.go')); \
	  [ -z "$$out" ] || { echo "not formatted (run gofmt -w):"; echo "$$out"; exit 1; }
	go vet ./...
	GOARCH=arm64 CGO_ENABLED=0 go vet ./...
	go test -run Tidy .

## dist: one archive per architecture, with checksums, in dist/
dist:
	@rm -rf dist
	@set -e; for arch in $(ARCHES); do \
	  dir=dist/glovebox-$(VERSION)-linux-$$arch; mkdir -p $$dir/bin; \
	  GOOS=linux GOARCH=$$arch $(GOBUILD) -o $$dir/bin/ ./cmd/...; \
	  GOOS=linux GOARCH=$$arch $(RUNSC) -o $$dir/bin/runsc gvisor.dev/gvisor/runsc; \
	  for f in README.md LICENSE images; do [ ! -e $$f ] || cp -r $$f $$dir/; done; \
	  tar -C dist --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -cf - $${dir#dist/} | gzip -n9 > $$dir.tar.gz; \
	  rm -rf $$dir; \
	done
	@cd dist && sha256sum *.tar.gz > SHA256SUMS && cat SHA256SUMS

clean:
	rm -rf bin dist
