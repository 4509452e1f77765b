# flexd: `make` lists the targets.

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
BIN     ?= bin
GO      ?= go
export GO

# Static and reproducible. Children are started often: cli's manual generator would take a
# sixth of their start time.
BUILD = CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -tags urfave_cli_no_docs -ldflags "-s -w -buildid= \
	-X main.version=$(VERSION) -X github.com/flexd/flexd/internal/flexvolume.build=$(VERSION)"

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## bin/flexdriver and bin/flexd: static, reproducible, with a version
	$(BUILD) -o $(BIN)/flexdriver ./cmd/flexdriver
	$(BUILD) -o $(BIN)/flexd ./cmd/flexd

ARCH  ?= amd64 arm64
IMAGE ?= localhost/flexd:$(VERSION)

.PHONY: image
image: ## bin/image/flexd.tar: the container image of examples/kubernetes for ARCH, named IMAGE; without Docker
	@set -e; for arch in $(ARCH); do for program in cmd/flexd cmd/flexdriver packaging/container/setup; do \
		GOARCH=$$arch $(BUILD) -o $(BIN)/image/$$arch/ ./$$program; done; done
	@$(GO) run ./packaging/container/image -f packaging/container/Containerfile -t $(IMAGE) -o $(BIN)/image/flexd.tar -build-arg BIN=$(BIN) $(ARCH)
	@echo "$(BIN)/image/flexd.tar is $(IMAGE) for $(ARCH)"

.PHONY: demo
demo: build ## the calls of a pod's life on loop devices, with checks; as root, it installs missing tools on Debian
	@$(BUILD) -o $(BIN)/demo ./test/demo
	@scripts/test-tools demo || echo "The demonstration skips the parts that need them."
	@$(BIN)/demo -bin $(BIN) $(DEMO)

.PHONY: demo-lvm
demo-lvm: build ## the same on a real volume group, in a virtual machine (docs/vm.md); 40 s
	@$(BUILD) -o bin/demo ./test/demo
	@echo "A virtual machine with Debian's kernel boots. It is slow: a process takes 25 times as long to start as here."
	@[ ! -t 1 ] || columns=$$(tput cols); \
	scripts/vm -q -d 2 -s 4G -m 3072 -- bin/demo -columns "$${columns:-0}" /dev/vda /dev/vdb

.PHONY: demo-shared
demo-shared: build ## two nodes with one volume group, in virtual machines: a pod moves, a node dies; 3 min
	@$(BUILD) -o bin/demo-shared ./test/shared/demo
	@[ ! -t 1 ] || columns=$$(tput cols); \
	bin/demo-shared -columns "$${columns:-0}" -bin $(BIN)

.PHONY: test
test: ## the tests for CI, in the VM with a random half of the longest; as root, it installs missing tools on Debian
	@scripts/test

.PHONY: test-vm
test-vm: ## the tests on real LVM, in virtual machines with a stock kernel (docs/vm.md)
	@scripts/test-vm

.PHONY: test-kubelet
test-kubelet: build ## kubelet's own code calls flexdriver and flexd on loop devices; as root
	@scripts/test-kubelet

.PHONY: test-cluster
test-cluster: build ## a Kubernetes control plane and whole kubelets use flexdriver and flexd on loop devices; as root
	@scripts/test-cluster

.PHONY: test-node
test-node: ## a whole kubelet with containerd and pods, on real LVM in a virtual machine; as root
	@scripts/test-node

.PHONY: soak
soak: ## all cases of the sampled tests, with new seeds, until stopped or a test fails; as root
	@scripts/soak

.PHONY: soak-vm
soak-vm: ## test-vm with new seeds and all cases, until stopped or a test fails
	@scripts/soak-vm

.PHONY: fuzz
fuzz: ## each fuzz target for FUZZTIME (1m)
	@scripts/fuzz

.PHONY: bench
bench: build ## the promised ratios and limits, measured in one run; as root
	@$(BUILD) -o bin/bench-hello ./test/bench/hello
	@$(GO) run ./test/bench $(BENCH)

.PHONY: bench-vm
bench-vm: build ## the same on real LVM, in a virtual machine
	@$(BUILD) -o bin/bench ./test/bench
	@$(BUILD) -o bin/bench-floor ./test/bench/floor
	@scripts/vm -q -c 2 -m 3072 -t 600 -C "$$(scripts/vm.d/volumes)" -- bin/bench -vm $(BENCH)

.PHONY: lint
lint: ## gofmt, go vet, staticcheck and gosec
	@scripts/lint

.PHONY: vuln
vuln: ## compare dependencies with the Go vulnerability database, if it can be reached
	@scripts/vuln

.PHONY: packages
packages: ## dist/: deb, rpm and tar for amd64 and arm64, with an SPDX document and checksums (docs/packages.md)
	@VERSION=$(VERSION) scripts/packages

.PHONY: release
release: ## dist/VERSION: the packages of a clean commit, built twice and verified; VERSION=v0.1.0, as root
	@scripts/release "$(if $(filter command line environment,$(origin VERSION)),$(VERSION))"

.PHONY: clean
clean: ## remove the output of build and packages
	rm -rf bin dist
