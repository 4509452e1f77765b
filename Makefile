# flexd: `make` lists the targets.

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
GO      ?= go

# Static, and the same bytes from the same commit wherever it is built.
BUILD = CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -ldflags "-s -w -buildid= \
	-X main.version=$(VERSION) -X github.com/flexd/flexd/internal/flex.build=$(VERSION)"

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## bin/flexdriver and bin/flexd: static, reproducible, with a version
	$(BUILD) -o bin/flexdriver ./cmd/flexdriver
	$(BUILD) -o bin/flexd ./cmd/flexd

.PHONY: clean
clean: ## remove what build made
	rm -rf bin
