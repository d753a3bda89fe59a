# Both targets set up all they need in .venv; the second call skips the installation.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
ARGS   ?=
# What has a compiled form is tested in torch's own operations too.
WITHOUT_NUMBA := $(addprefix tests/unit/test_,sequences.py stepping.py losses.py ppo.py spaces.py \
	asymmetric.py gate.py stored_states.py rnn_class.py encoder.py maskable.py) \
	tests/equivalence

.PHONY: demo test lint format clean

# Train memory against no memory on FlickeringCartPole and show who keeps the pole up.
demo: $(VENV)/.demo
	$(BIN)/python scripts/compare.py --out results/demo $(ARGS)

# Linters, types and all tests that are not marked slow; those that touch compiled loops twice.
test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 $(ARGS)
	NUMBA_DISABLE_JIT=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 $(WITHOUT_NUMBA) $(ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[compare]'
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
