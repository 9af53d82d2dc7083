# Everything installs into .venv/ of this checkout.  Needed: Python 3.10 or newer, a C++ compiler, make.
#
#   PYTHON=python3.12 make test                    another interpreter for a new .venv
#   CMAKE_ARGS="-DGGML_CUDA=on" make chat          a GPU build of llama.cpp (README.md: GPU)
#   make test ARGS="-k tree -x"                    ARGS goes to the program that is run

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
LLAMA := $(shell sed -n 's/.*"\(llama-cpp-python==[^"]*\)".*/\1/p' pyproject.toml)
NATIVE_FILES := $(shell find native -type f \( -name '*.cpp' -o -name '*.h' -o -name '*.inl' \) 2>/dev/null)
NATIVE_BUILD := pyproject.toml $(wildcard CMakeLists.txt) $(NATIVE_FILES) \
	$(shell find native -name CMakeLists.txt 2>/dev/null)
ARGS ?=

# An editable installation knows modules by their files: where one has come, gone or moved, it is done again.
MODULES_STAMP := $(VENV)/.modules-$(firstword $(shell find dyspec_edge -name '*.py' | LC_ALL=C sort | cksum))

# pip's cache does not know about CMAKE_ARGS, so each new value gets a build and a stamp of its own.
ifneq ($(strip $(CMAKE_ARGS)),)
LLAMA_STAMP := $(VENV)/.llama-$(firstword $(shell printf '%s' "$$CMAKE_ARGS" | cksum))
export CMAKE_ARGS
endif

BUILD_SANITIZED = $(BIN)/cmake -S . -B build/native-sanitize -G Ninja \
		-DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja \
		-DCMAKE_BUILD_TYPE=Debug -DDYSPEC_TESTS=ON -DDYSPEC_SANITIZE=ON -DDYSPEC_WERROR=ON && \
	$(BIN)/cmake --build build/native-sanitize
SANITIZED_TESTS := $(addprefix tests/,decode/test_backend.py decode/test_cache.py decode/test_draft.py \
	decode/test_loop.py decode/test_ranking.py decode/test_sampling.py native/ test_engine.py)

.PHONY: help install chat test lint format native-test sanitize-test cross-test package-test bench clean

help:
	@echo "make chat         talk to the default pair of models (fetched on first use)"
	@echo "make test         the tests: offline, no model files needed"
	@echo "make lint         ruff, mypy, clang-format"
	@echo "make format       apply ruff's and clang-format's formatting"
	@echo "make native-test  the C++ tests of native/, plain and with sanitizers, and random trees"
	@echo "make sanitize-test  whole decoders over tiny models on a native part with sanitizers"
	@echo "make cross-test   the C++ tests built for other systems, and run where that can be emulated"
	@echo "make package-test sdist and wheel, built, installed outside the checkout and tried there"
	@echo "make bench        the benchmarks (benchmarks/README.md)"
	@echo "make install      only fill .venv/"

install: $(STAMP)

chat: $(STAMP)
	@$(BIN)/dyspec-edge chat --pair qwen2.5-coder $(ARGS)

test: $(STAMP)
	$(BIN)/python -m pytest $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy dyspec_edge tests $(wildcard benchmarks)
	$(if $(NATIVE_FILES),$(BIN)/clang-format --dry-run --Werror $(NATIVE_FILES))

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(if $(NATIVE_FILES),$(BIN)/clang-format -i $(NATIVE_FILES))

native-test: $(STAMP)
	$(BIN)/cmake -S . -B build/native-test -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja \
		-DCMAKE_BUILD_TYPE=Release -DDYSPEC_TESTS=ON -DDYSPEC_WERROR=ON
	$(BIN)/cmake --build build/native-test
	$(BIN)/ctest --test-dir build/native-test --output-on-failure
	$(BUILD_SANITIZED)
	$(BIN)/ctest --test-dir build/native-sanitize --output-on-failure

# Memory of numpy and llama.cpp that the native part reads and writes is watched as well.
sanitize-test: $(STAMP)
	$(BUILD_SANITIZED)
	LD_PRELOAD="$$($${CXX:-c++} -print-file-name=libasan.so) $$($${CXX:-c++} -print-file-name=libstdc++.so)" \
		ASAN_OPTIONS=detect_leaks=0 DYSPEC_LIBRARY=$(abspath build/native-sanitize/native/libdyspec.so) \
		$(BIN)/python -m pytest $(SANITIZED_TESTS) $(ARGS)

cross-test: $(STAMP)
	@PATH="$(abspath $(BIN)):$$PATH" sh native/cross_test.sh $(ARGS)

package-test: $(STAMP)
	@sh native/package_test.sh $(abspath $(BIN))/python $(ARGS)

bench: $(STAMP)
	$(BIN)/python -m benchmarks $(ARGS)

clean:
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
		echo "error: $(PYTHON) is missing or older than 3.10; name another: PYTHON=python3.12 make"; exit 1; }
	@command -v "$${CXX:-c++}" >/dev/null || command -v g++ >/dev/null || command -v clang++ >/dev/null || { \
		echo "error: no C++ compiler; Debian, Ubuntu: apt install build-essential; macOS: xcode-select --install"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo "error: $(PYTHON) cannot make a virtual environment; Debian, Ubuntu: apt install python3-venv"; exit 1; }
	@$(BIN)/python -m pip install --quiet --upgrade pip

# Flags that keep llama.cpp from crashing where compiler and processor do not get on.
WITH_FLAGS = flags="$$(sh native/amx_flags.sh)"; \
	export CFLAGS="$$CFLAGS $$flags" CXXFLAGS="$$CXXFLAGS $$flags"
REBUILD_LLAMA = $(BIN)/python -m pip install --force-reinstall --no-deps --no-cache-dir \
	--no-binary llama-cpp-python $(LLAMA)
HAS_AMX = import llama_cpp, sys; sys.exit(b"AMX_INT8 = 1" not in llama_cpp.llama_print_system_info())

$(MODULES_STAMP): | $(BIN)/python
	@rm -f $(VENV)/.modules-* && touch $@

$(LLAMA_STAMP): | $(BIN)/python
	@echo "Building $(LLAMA) with CMAKE_ARGS=$(CMAKE_ARGS): this takes minutes."
	@$(WITH_FLAGS); $(REBUILD_LLAMA)
	@rm -f $(VENV)/.llama-* && touch $@

# The second pip is for a copy in pip's cache that was built without the flags.
$(STAMP): $(NATIVE_BUILD) $(LLAMA_STAMP) $(MODULES_STAMP) | $(BIN)/python
	@$(BIN)/python -m pip show --quiet llama-cpp-python 2>/dev/null || \
		echo "First install: llama.cpp is compiled, about 8 minutes on 2 cores; later runs are quick."
	@$(WITH_FLAGS); $(BIN)/python -m pip install -e '.[dev]' && \
		if [ -n "$$flags" ] && $(BIN)/python -c '$(HAS_AMX)' 2>/dev/null; then $(REBUILD_LLAMA); fi
	@touch $@
