# What a checkout can do. Needs python3 (3.11 or newer) with venv, git and make; everything else goes into .venv.
#
#   make quickstart    run the job of examples/quickstart
#   make test          run the whole test suite
#   make lint          ruff and mypy
#   make docs          write the tables of docs/ anew from the code
#   make bench-quick   the benchmarks, in their short form
#   make clean         remove what the above made
#
# PYTHON=python3.12 picks an interpreter, PYTEST_ARGS='-k local' goes to pytest.

PYTHON ?= python3
VENV := .venv
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check --quiet
PROJECTS := core/pyproject.toml $(wildcard rollout_*/pyproject.toml plugins/*/pyproject.toml)
PYTEST_ARGS ?=

.PHONY: help quickstart test lint docs bench-quick clean
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

help:
	@sed -n 's/^#   //p' Makefile

quickstart: $(VENV)/.installed
	$(VENV)/bin/rollout examples/quickstart/job.yaml

test: $(VENV)/.installed-dev
	$(VENV)/bin/python -m pytest -n auto --dist loadfile --timeout 300 $(PYTEST_ARGS)

lint: $(VENV)/.installed-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

docs: $(VENV)/.installed-dev
	$(VENV)/bin/python docs/generate.py

bench-quick: $(VENV)/.installed
	@status=0; for script in benchmarks/*.py; do echo "== $$script"; $(VENV)/bin/python $$script --quick || status=1; done; exit $$status

clean:
	rm -rf $(VENV) jobs .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Rollout needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# The stamps say what was installed: a second run starts at once, a changed list of dependencies is installed again.
$(VENV)/.installed: core/pyproject.toml | $(VENV)/bin/python
	$(PIP) install -e ./core
	@touch $@

$(VENV)/.installed-dev: requirements-dev.txt $(PROJECTS) | $(VENV)/bin/python
	$(PIP) install -r requirements-dev.txt
	@touch $@ $(VENV)/.installed
