# The front door. The build itself is meson.build; build/ is its folder.
BUILD ?= build
PREFIX ?= /usr/local
PYTHON := $(firstword $(wildcard /usr/bin/python3) python3)

.PHONY: build demo test bench install clean

build: $(BUILD)/build.ninja
	ninja -C $(BUILD)

$(BUILD)/build.ninja:
	deploy/install-deps.sh build
	meson setup $(BUILD) --prefix $(PREFIX)

# Simulate an acquisition, serve it, compare what every consumer got with the truth.
demo:
	deploy/install-deps.sh demo
	$(MAKE) --no-print-directory $(BUILD)/build.ninja
	ninja -C $(BUILD) programs
	$(PYTHON) deploy/demo.py --bin $(BUILD)

# Everything that runs without a GPU, as continuous integration does it.
test:
	deploy/install-deps.sh test
	tests/ci.sh

bench: build
	ninja -C $(BUILD) benches
	$(PYTHON) tests/bench/run.py --bin $(BUILD)

install: build
	meson configure $(BUILD) -Dprefix=$(PREFIX)
	meson install -C $(BUILD)

clean:
	rm -rf $(BUILD) build-clang build-asan build-tsan build-fuzz build-stage stage
