# Needs Python 3.10+ with pip; each target installs what it uses into $(VENV).
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
# Most tests wait for processes, so more of them run at once than there are cores.
PYTEST_ARGS ?= -n 4 --dist loadfile --no-loadscope-reorder --ignore=tests/fire --ignore=tests/chaos
FIRE_ARGS ?= tests/fire tests/chaos
CHAOS_ARGS ?=
BENCH_ARGS ?= --systems celery,celery-redis,celery-sql,guarded,guarded-redis,limit,limit-least

.DEFAULT_GOAL := help
.PHONY: help demo test fire chaos bench check pyright docs clean

help:  ## Show this list.
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.demo  ## Run the example project on one real worker; KEEP=1 leaves it and Flower up.
	$(BIN)/python -m example_project.demo

test: $(VENV)/.test  ## Run the tests; servers that do not listen are started where their programs exist.
	$(BIN)/python -m pytest $(PYTEST_ARGS)

fire: $(VENV)/.test  ## Run the long tests that kill, freeze and flush servers and workers, one after the other.
	$(BIN)/python -m pytest $(FIRE_ARGS)

chaos: $(VENV)/.test  ## Kill, freeze and restart everything around real work; CHAOS_ARGS="--runs 1000 --broker redis".
	$(BIN)/python -m tests.chaos.run $(CHAOS_ARGS)

bench: .venv-bench/.done  ## Measure beside plain Celery; BENCH_ARGS="--rounds 3 --json out.json" or --list.
	.venv-bench/bin/python -m benchmarks $(BENCH_ARGS)

check: $(VENV)/.check  ## Check format, lint, types, import contracts and docs.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --strict celery_guard
	$(BIN)/lint-imports
	$(BIN)/sphinx-build -q -W docs docs/_build

pyright: $(VENV)/.test  ## Check by Pyright what users write, and what they get wrong.
	$(BIN)/python -m pip install -q --disable-pip-version-check basedpyright
	$(BIN)/basedpyright -p tests/typing --pythonpath $(BIN)/python

docs: $(VENV)/.docs  ## Build the documentation into docs/_build.
	$(BIN)/sphinx-build -W docs docs/_build

clean:  ## Remove the environment and everything built.
	rm -rf $(VENV) build dist docs/_build .coverage* .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

EXTRAS_demo = demo
EXTRAS_test = test
EXTRAS_check = dev,test,docs
EXTRAS_docs = docs

$(VENV)/.%: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[$(EXTRAS_$*)]'
	@touch $@

.venv-bench/.done: pyproject.toml benchmarks/requirements.txt
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/python -m pip install -q --disable-pip-version-check -e . -r benchmarks/requirements.txt
	@touch $@

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
