# `make demo` and `make test` do all set-up from a bare checkout: a virtual environment, torch, the package, the tools.

PYTHON ?= python3
TORCH ?= 2.13.0
JOBS ?= 2
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed-$(TORCH)
EQUIPPED := $(VENV)/equipped-$(TORCH)

.PHONY: demo test check format soak docs clean

demo: $(INSTALLED)
	$(BIN)/scale-cl demo

test: check
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(JOBS) --dist loadgroup --cov --cov-report=term

check: $(EQUIPPED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

soak: $(EQUIPPED)
	$(BIN)/pytest -m soak

docs: $(EQUIPPED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

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
	$(BIN)/python -m pip install --quiet torch==$(TORCH) -e '.[dev,docs,ray,mlflow,tensorboard,wandb,onnx,avalanche]'
	@touch $@
