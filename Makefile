# Needs make and Python 3.11 or newer; everything else is installed into .venv, at the versions of constraints.txt.
#   make demo    set-up, then the main job on the bundled model and made-up scans
#   make test    set-up, then every check
#   make docs    set-up, then the documentation in site/, to open in a browser

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# The first Python that is new enough; `make setup PYTHON=/path/to/python` names another.
PYTHON ?= $(shell for python in python3.11 python3 python3.13 python3.12; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$python; break; }; done)

.PHONY: setup demo docs test lint clean

setup: $(STAMP)

# PIP_CONSTRAINT holds for what is installed, PIP_BUILD_CONSTRAINT (older pips: PIP_CONSTRAINT) for the tools that build it.
$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "scantune needs Python 3.11 or newer: install it, or name it: make PYTHON=..."; exit 1; }
	@echo "Installing scantune and what it needs into $(VENV); the first time takes a few minutes."
	$(PYTHON) -m venv $(VENV)
	PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

demo: setup
	$(BIN)/scantune demo --out demo

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "Open site/index.html in a browser."

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	$(BIN)/python -m pytest -n 2 --cov --cov-report=term-missing:skip-covered

clean:
	rm -rf $(VENV) build dist demo site src/scantune.egg-info .coverage .coverage.* .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
