# ringtune: `make help` lists the targets. Every target sets up what it needs; nothing has to be installed before.

SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules
# Where it is set, every process of a test compiles ringtune's Python files anew, and pytest all tests.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# In the environment itself, so that deleting it is enough to begin anew.
STAMPS := $(VENV)/.stamps
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
# A warning of a user's compiler is none of ours, one in CI is.
WERROR := $(if $(filter true 1,$(CI)),--config-settings=cmake.define.RINGTUNE_WERROR=ON)
PIP := $(BIN)/python -m pip -qq --disable-pip-version-check
# cmake and ninja come as wheels with the [dev] extra.
CMAKE := PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/cmake
CTEST := $(BIN)/ctest --verbose --timeout 300 --no-tests=error

NATIVE_SOURCES := $(shell find native -name '*.cc' -o -name '*.h' -o -name '*.cu' -o -name CMakeLists.txt)
NATIVE_TESTS := $(shell find tests/native -name '*.cc' -o -name '*.h' 2>/dev/null)
GPU_KERNELS := $(wildcard core/gpu/cuda/*)
# Arguments for pytest, e.g. make test PYTEST_ARGS="-k launch"
PYTEST_ARGS ?=
# The tests wait more than they compute. One worker for each core; files stay whole, in the order of tests/conftest.py.
PYTEST_WORKERS ?= $(shell n=$(JOBS); echo $$((n < 8 ? n : 8)))
PYTEST := $(BIN)/python -m pytest -q -n $(PYTEST_WORKERS) --dist loadfile --no-loadscope-reorder
# What `make bench` measures, e.g. make bench BENCH_ARGS="resnet -np 1,2 --model resnet18"
BENCH_ARGS ?= resnet -np 1,2 --model resnet50 --batch-size 8

.PHONY: help
help: ## List the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# ---- set-up --------------------------------------------------------------------------------------------------------

.PHONY: setup
setup: $(STAMPS)/install ## Create .venv with ringtune (editable) and all tools; system packages too where it may

$(STAMPS)/system: .ci/setup
	@mkdir -p $(STAMPS)
	@.ci/setup "$(PYTHON)"
	@touch $@

# What builds native code alone, so that CI begins with it while the rest is installed.
$(STAMPS)/cmake: constraints.txt | $(STAMPS)/system
	@test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
	@$(PIP) install -c constraints.txt cmake ninja
	@touch $@

# The dependencies without ringtune itself: pip reads them from pyproject.toml, so they stand in one place only.
$(STAMPS)/venv: pyproject.toml constraints.txt | $(STAMPS)/cmake
	@echo "setup: installing the Python packages into $(VENV) (some minutes the first time)"
	@$(PIP) install -c constraints.txt "packaging" "tomli; python_version < '3.11'"
	@$(BIN)/python .ci/requirements.py dev >$(STAMPS)/requirements.txt
	@$(PIP) install -c constraints.txt -r $(STAMPS)/requirements.txt
	@touch $@

$(STAMPS)/install: $(STAMPS)/venv $(NATIVE_SOURCES)
	@echo "setup: building ringtune"
	@$(PIP) install --no-deps --no-build-isolation $(WERROR) -e .
	@touch $@

.PHONY: typing
typing: $(STAMPS)/install ## Link tree build/typing/ringtune, for type checkers and editors
	@.ci/link-tree "$(BIN)/python"

# ---- use -----------------------------------------------------------------------------------------------------------

.PHONY: demo dashboard bench bench-peers walk docs wheel
demo: setup ## Train, tune and measure on 2 ranks; leaves runs/demo with trace and report.html
	@$(BIN)/python -m ringtune.benchmarks.demo --out runs/demo

dashboard: setup ## Serve the dashboard over runs/ on this machine
	@$(BIN)/ringtune dashboard runs

bench: setup ## Scaling benchmark (BENCH_ARGS="resnet -np 1,2 --model resnet18 ...")
	@$(BIN)/ringtune bench $(BENCH_ARGS)

bench-peers: ## Install the MPI peers of `ringtune bench` into build/peers/
	@.ci/bench-peers "$(PYTHON)"

walk: setup ## Make the walk of timeline/README.md anew: two short jobs, their analyses, pictures
	@$(BIN)/python -m ringtune.benchmarks.walk

# The packages of the documentation are no part of `make setup`.
$(STAMPS)/docs: pyproject.toml constraints.txt | $(STAMPS)/venv
	@echo "docs: installing the Python packages"
	@$(BIN)/python .ci/requirements.py docs >$(STAMPS)/docs.txt
	@$(PIP) install -c constraints.txt -r $(STAMPS)/docs.txt
	@touch $@

docs: $(STAMPS)/install $(STAMPS)/docs ## Build guides and API reference into build/docs; a warning is an error
	@$(BIN)/python .ci/docs/stage.py
	@$(BIN)/sphinx-build -q -W --keep-going -j $(JOBS) -c .ci/docs build/docs-source build/docs
	@echo "docs: build/docs/index.html"

wheel: $(STAMPS)/venv ## Build a wheel into dist/
	@$(PIP) wheel --no-deps --no-build-isolation -w dist .
	@ls dist/*.whl

# ---- tests ---------------------------------------------------------------------------------------------------------

# build FOLDER,CMAKE OPTIONS,TARGET. FOLDER may be a link: under another name everything would be compiled again.
define build
$(CMAKE) -S native -B "$$(readlink -f $(1))" -G Ninja $(2) >$(1).log 2>&1 \
  && $(CMAKE) --build $(1) -j $(JOBS) --target $(3) >>$(1).log 2>&1 || { tail -60 $(1).log >&2; exit 1; }
endef

# run_native FOLDER: runs the native tests built there and says how many passed, or what failed - once more at the end
define run_native
$(CTEST) --test-dir $(1) -j $(JOBS) --quiet --output-log $(1).txt \
  || { grep -avE '^test |^[0-9]+: (Test|Working|Environment|Running main| GTEST_)|Start +[0-9]|PASSED|Passed +[0-9.]+ sec' \
       $(1).txt >&2; grep -aE -A6 ': Failure$$|FAILED  \]' $(1).txt >&2; exit 1; }; \
awk '/PASSED/ { for (i = 1; i < NF; i++) if ($$(i + 1) ~ /^tests?\./) n += $$i } END { print n, "native tests passed" }' $(1).txt
endef

# In the folder in which `pip install` has built the extension module and so its libraries.
build/native-tests.stamp: $(STAMPS)/install $(NATIVE_TESTS) $(GPU_KERNELS)
	@echo "building the native tests"
	@[ -L build/native-tests ] || rm -rf build/native-tests
	@ln -sfn "$$(basename "$$(ls -td build/cp*/ | head -1)")" build/native-tests
	@$(call build,build/native-tests,-DRINGTUNE_TESTS=ON,ringtune_tests)
	@touch $@

# GoogleTest is no wheel: without it the native tests are left out, with CI=true they fail.
HAVE_GTEST := $(wildcard /usr/include/gtest/gtest.h /usr/local/include/gtest/gtest.h)

.PHONY: test test-native test-python test-slow test-long test-sanitize build-sanitize
test: setup test-native test-python ## All tests but the slow and the long ones, 14 minutes on 2 cores once built

ifeq ($(HAVE_GTEST)$(filter true 1,$(CI)),)
test-native:
	@echo "native tests: SKIPPED, GoogleTest is missing (Debian: apt-get install libgtest-dev)"
else
test-native: build/native-tests.stamp ## Native tests
	@echo "native tests"
	@$(call run_native,build/native-tests)
endif

test-python: $(STAMPS)/install ## Python tests (PYTEST_ARGS="-k launch")
	@echo "python tests"
	@$(PYTEST) -m "not long and not slow" $(PYTEST_ARGS)

test-slow: $(STAMPS)/install ## Tests marked slow: whole jobs as users start them, pages in a browser
	@echo "slow python tests"
	@$(PYTEST) -m "slow and not long" --ignore=tests/engines $(PYTEST_ARGS)

ifneq ($(HAVE_GTEST),)
test-long: build/native-tests.stamp
endif
test-long: $(STAMPS)/install build/module-address.stamp ## Only the tests marked long, and a minute of fuzzing the wire format
	@if [ -x build/native-tests/ringtune_wire_fuzz ]; then \
	  build/native-tests/ringtune_wire_fuzz tests/native/fuzz/corpus 60; fi
	@$(BIN)/python -m pytest -q -m long $(PYTEST_ARGS)

# Optimised little, for compiling takes longer than the tests: with -O1 UBSan makes GCC take four times as long.
sanitized = -DRINGTUNE_SANITIZE=$(1) -DCMAKE_BUILD_TYPE=RelWithDebInfo \
  -DCMAKE_CXX_FLAGS_RELWITHDEBINFO=$(if $(findstring undefined,$(1)),-O0,-O1)

# The extension module for jobs under ASan (tests/jobs/test_address_sanitizer.py).
build/module-address.stamp: $(NATIVE_SOURCES) | $(STAMPS)/venv
	@echo "building the extension module with ASan"
	@mkdir -p build
	@$(call build,build/module-address,-DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python $(call sanitized,address),all)
	@touch $@

comma := ,
SANITIZERS := address,undefined thread
# Every n-th test over a table of values (dtypes, sizes, ranks, processors) is run under sanitizers, and all others.
SWEPT_PART ?= 1
# What has several threads. control and fusion are machines that one thread drives, device computes.
sanitized_folders = $(if $(filter thread,$(1)),-DRINGTUNE_TEST_FOLDERS="base;trace;merging;transport;collective;runtime;frameworks")

test-sanitize: build-sanitize ## Native tests under ASan+UBSan, and those with threads under TSan
	@for sanitizers in $(SANITIZERS); do \
	  folder=build/native-$${sanitizers%%,*}; echo "native tests: $$sanitizers"; \
	  export ASAN_OPTIONS=detect_stack_use_after_return=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1; \
	  export TSAN_OPTIONS=halt_on_error=1; $(call run_native,$$folder); \
	done

build-sanitize: $(STAMPS)/cmake
	@mkdir -p build
	@$(foreach sanitizers,$(SANITIZERS),echo "building the native tests: $(sanitizers)"; \
	  $(call build,build/native-$(firstword $(subst $(comma), ,$(sanitizers))),-DRINGTUNE_PYTHON=OFF -DRINGTUNE_TESTS=ON \
	    $(call sanitized,$(sanitizers)) $(call sanitized_folders,$(sanitizers)) \
	    -DRINGTUNE_SWEPT_PART=$(SWEPT_PART),ringtune_tests);)

# Environments in build/frameworks/, 0.3 to 1.6 GB each. FRAMEWORKS="jax ..." runs only those.
FRAMEWORKS ?=
.PHONY: test-frameworks
test-frameworks: $(STAMPS)/install ## Tests of JAX and other frameworks, each in an environment of its own (FRAMEWORKS="jax")
	@PYTEST_ARGS="$(PYTEST_ARGS)" .ci/test-frameworks "$(BIN)/python" $(FRAMEWORKS)

# ENGINES="cluster ..." runs only those; 2.5 GB each.
ENGINES ?=
.PHONY: test-engines
test-engines: $(STAMPS)/install ## Tests with Spark, Ray, Dask, Lightning and others, in environments of their own (ENGINES="cluster")
	@SUITE=engines PYTEST_ARGS="$(PYTEST_ARGS)" .ci/test-frameworks "$(BIN)/python" $(ENGINES)

# Without .venv: with what PYTHON has, so that a machine needs torch with CUDA and no package index.
.PHONY: test-gpu bench-gpu
test-gpu: ## Tests on this machine's GPU with the packages of PYTHON; leaves runs/gpu/tests.txt
	@.ci/test-gpu "$(PYTHON)" runs/gpu

bench-gpu: ## Measures tensors on this machine's GPU with the packages of PYTHON; leaves runs/gpu/bench.md and .json
	@.ci/bench-gpu "$(PYTHON)" runs/gpu

# ---- care ----------------------------------------------------------------------------------------------------------

.PHONY: lint lint-python lint-native format clean
lint: lint-python lint-native ## Formatting, ruff, mypy --strict, clang-format, clang-tidy (names)

lint-python: typing
	@echo "lint: ruff, mypy"
	@$(BIN)/ruff format --check --quiet . || { echo "lint: run 'make format'" >&2; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy --no-error-summary

lint-native: $(STAMPS)/venv
	@echo "lint: clang-format, clang-tidy"
	@$(BIN)/clang-format --dry-run -Werror $(NATIVE_SOURCES:%CMakeLists.txt=) $(NATIVE_TESTS)
	@mkdir -p build
	@$(CMAKE) -S native -B build/lint -G Ninja -DRINGTUNE_PYTHON=OFF -DCMAKE_EXPORT_COMPILE_COMMANDS=ON \
	  >build/lint.log 2>&1 || { cat build/lint.log >&2; exit 1; }
	@sed -n 's/^ *"file": "\(.*\)",\{0,1\}$$/\1/p' build/lint/compile_commands.json \
	  | xargs -n 2 -P $(JOBS) $(BIN)/clang-tidy -p build/lint --quiet 2>/dev/null

format: $(STAMPS)/venv ## Format everything
	@$(BIN)/ruff format --quiet . && $(BIN)/ruff check --quiet --fix . || true
	@$(BIN)/clang-format -i $(NATIVE_SOURCES:%CMakeLists.txt=) $(NATIVE_TESTS)

clean: ## Remove build/, dist/ and caches (.venv and runs/ stay)
	@rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -path ./$(VENV) -prune -o -name __pycache__ -type d -print0 | xargs -0 rm -rf
