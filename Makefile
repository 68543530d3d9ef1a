# `make demo`, `make quick` and `make test` set up everything from a bare checkout: a virtual environment, torch, the package, the tools.

PYTHON ?= python3
TORCH ?= 2.13.0
JOBS ?= 2
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed-$(TORCH)
EQUIPPED := $(VENV)/equipped-$(TORCH)
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -n $(JOBS)

.PHONY: demo quick test check lint types pytest coverage soak docs dist format clean

demo: $(INSTALLED)
	$(BIN)/scale-cl demo

# While working: lint, types and the core tests, about two minutes on two cores.
quick: check
	$(PYTEST) -m core

# What a change must pass: lint, types and all tests but the long ones of `make soak`. mypy, which has one process, runs
# beside the tests.
test: lint
	$(MAKE) --jobs=2 types pytest

check: lint types

lint: $(EQUIPPED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(EQUIPPED)
	$(BIN)/mypy

pytest: $(EQUIPPED)
	$(PYTEST)

# All tests with branch coverage; takes about a third longer than the tests alone.
coverage: $(EQUIPPED)
	$(PYTEST) --cov --cov-report=term

# The long tests; they record their counts in .soak/ and continue there. JOBS=1 runs them in one process.
soak: $(EQUIPPED)
	$(PYTEST) -m soak

docs: $(EQUIPPED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The sdist, and the wheel that is built from it, in dist/.
dist: $(EQUIPPED)
	rm -rf dist
	$(BIN)/python -m build --no-isolation

format: $(EQUIPPED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist .coverage .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# torch comes first and alone, so that TORCH can name any build of it (TORCH=2.13.0+cpu); the rest is told to leave it as it is.
$(INSTALLED): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "scale-cl needs Python 3.11 or later, $(PYTHON) is " + sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet torch==$(TORCH)
	$(BIN)/python -m pip install --quiet torch==$(TORCH) -e .
	@touch $@

# What the tests need beside the package: the tools, and every extra, because each is tested against the real thing.
$(EQUIPPED): $(INSTALLED)
	$(BIN)/python -m pip install --quiet torch==$(TORCH) -e '.[dev,docs,ray,mlflow,tensorboard,wandb,onnx,avalanche,drift]'
	@touch $@
