# `make help` lists the targets. Every target makes and repairs .venv first; nothing else on the machine is touched.
# Variables: PYTHON (3.11 or newer), ARGS (passed on), MODEL and ENGINE (for `make demo`).

ifndef PYTHON
PYTHON := $(shell for p in python3 python3.13 python3.12 python3.11; do \
  "$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$p"; break; }; done)
endif

BIN := .venv/bin
# Two test workers: a test may start processes of its own.
WORKERS ?= 2

# Unset stays unset: an empty variable is another thing.
ifdef MODEL
export MODEL
endif
ifdef ENGINE
export ENGINE
endif

.DEFAULT_GOAL := help
.PHONY: help environment demo test check format lint types layers quick clean

help: ## list the targets
	@awk -F ': .*## ' '/^[a-z%-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

environment: ## make or repair .venv
	@test -n "$(PYTHON)" || { echo "posttrain: no Python 3.11 or newer found (python3 is: $$(python3 --version 2>&1)); \
	install one, or say make PYTHON=/path/to/python" >&2; exit 2; }
	@$(PYTHON) .ci/environment.py --model "$(MODEL)"

demo: environment ## from a base model to a served model, every step an event
	@$(BIN)/python -m assets.demo $(ARGS)

test: environment ## every test
	@$(BIN)/python -m pytest --numprocesses $(WORKERS) $(ARGS)

check: lint types layers quick ## the fast loop: style, types, layering, quick tests

lint: environment
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet . || { echo "posttrain: not formatted; run make format" >&2; exit 1; }

types: environment
	@$(BIN)/mypy --no-error-summary

layers: environment
	@answer=$$($(BIN)/lint-imports 2>&1) || { echo "$$answer" >&2; exit 1; }

# What costs no process, no disk and no model, and the shape of the code.
QUICK := $(patsubst %,tests/architecture/test_%.py,layering packaging shape) tests/verifiers/test_verdict.py \
  $(patsubst %,tests/ledger/test_%.py,canonical events log merkle rules tree_head)

quick: environment
	@$(BIN)/python -m pytest --quiet --numprocesses $(WORKERS) -m "not slow" $(QUICK) $(ARGS)

format: environment ## format the code and sort the imports
	@$(BIN)/ruff check --quiet --fix-only .
	@$(BIN)/ruff format --quiet .

# A benchmark is tests/benchmarks/NAME.py; it prints figures for people and, as its last line, one JSON object:
# {"bench": NAME, "ratios": {LABEL: NUMBER, …}, "figures": {…}}
bench-%: environment ## a benchmark: bench-startup, bench-ledger
	@$(BIN)/python -m tests.benchmarks.$(subst -,_,$*) $(ARGS)

# A campaign is tests/faults/campaign_NAME.py; it takes long, and its last line is one JSON object too.
campaign-%: environment ## a long fault campaign
	@$(BIN)/python -m tests.faults.campaign_$(subst -,_,$*) $(ARGS)

clean: ## remove .venv and caches; the ledger in .posttrain stays
	@rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis .make.lock build dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
