# Everything is set up in .venv by pip; the stamp decides when to do it again.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
SOURCES := pyproject.toml constraints.txt CMakeLists.txt $(shell find src/prunus/native -name '*.cpp' -o -name '*.h')
KEY := $(shell ($(PYTHON) --version; cat $(SOURCES) 2>/dev/null) | sha256sum | cut -c1-16)
CXX_FILES := $(shell find src/prunus/native tests -name '*.cpp' -o -name '*.h')
DATA := $(wildcard ../shared/data)
export PRUNUS_DATA ?= $(abspath $(DATA))
export OMP_NUM_THREADS ?= 1

.PHONY: help setup test-setup demo test check docs wheel prove bench sanitize clean

help:
	@echo "make demo    prune a small network end to end (under two minutes after set-up)"
	@echo "make test    all tests, reduced counts"
	@echo "make check   format, lint, types, import rules"
	@echo "make docs    the guide and the reference as a site in site/ that opens from disk"
	@echo "make wheel   a source package and a wheel in dist/, tried without a compiler"
	@echo "make prove   full counts; results go to docs/evidence"
	@echo "make sanitize  the kernels under address and undefined-behaviour sanitizers"
	@echo "make bench   ratios against named peers; results go to docs/evidence"

setup:
	@PYTHON=$(PYTHON) sh tools/setup.sh $(VENV) $(KEY) run

test-setup:
	@PYTHON=$(PYTHON) sh tools/setup.sh $(VENV) $(KEY) test

demo: setup
	@PATH="$(abspath $(BIN)):$$PATH" sh tools/demo.sh

test: test-setup check
	$(BIN)/python -m pytest -n 2 --dist worksteal tests

check: test-setup
	$(BIN)/ruff format --check -q src tests benchmarks tools
	$(BIN)/ruff check -q src tests benchmarks tools
	$(BIN)/clang-format --dry-run --Werror $(CXX_FILES)
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

docs: test-setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict -q
	@echo "open site/index.html"

wheel: test-setup
	sh tools/wheel.sh $(BIN)/python dist

prove: test-setup
	PRUNUS_PROVE=1 $(BIN)/python -m pytest -m prove tests
	$(BIN)/python -m tools.mutation

bench: test-setup
	$(BIN)/python -m benchmarks

sanitize: test-setup
	sh tests/native/sanitize.sh sanitize 300

clean:
	rm -rf build dist site $(VENV)
