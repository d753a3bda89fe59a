# The targets set up all they need in .venv; the second call skips the installation.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
ARGS   ?=
# What has a compiled form is tested in torch's own operations too.
WITHOUT_NUMBA := tests/unit/recurrent tests/unit/ppo tests/unit/test_gate.py tests/equivalence

.PHONY: help demo test test-long test-demo mutate test-distributed lint format docs clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.demo ## train memory against no memory on FlickeringCartPole and show who keeps the pole up
	$(BIN)/python scripts/compare.py --out results/demo $(ARGS)

# Those that touch compiled loops run twice.
test: lint ## linters, types and all tests that are not marked slow or external
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 $(ARGS)
	NUMBA_DISABLE_JIT=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 $(WITHOUT_NUMBA) $(ARGS)

# Other cases each time; what fails prints a program that repeats it. LAW_CASES=N: so many of each.
test-long: $(VENV)/.dev ## the laws of tests/laws/ on more than 10,000 random cases
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 tests/laws --hypothesis-profile=long $(ARGS)

# Screenshots are left in build/demo/, to be looked at.
test-demo: $(VENV)/.browser ## install Chromium and drive the page docs/demo in it
	$(BIN)/python -m pytest -m external tests/unit/scripts/test_demo_in_browser.py $(ARGS)

# Which test runs what is found first, under coverage, which takes half an hour.
mutate: $(VENV)/.dev ## plant faults in the core, one by one, and see whether the tests notice
	$(BIN)/python scripts/mutate.py run $(ARGS)

# Each starts up to four processes of its own, so that they come one after the other.
test-distributed: $(VENV)/.dev ## trainings of several processes: equal bits, faults, killed and gone on with
	$(BIN)/python -m pytest -n 0 -m distributed tests/unit/distributed $(ARGS)

lint: $(VENV)/.dev ## what pre-commit runs: ruff's rules and format, mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev ## have ruff lay out the code and mend what it can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# -E: a page that was kept from the last build would not be warned of again.
docs: $(VENV)/.docs ## build the site of the documentation in build/site/; a warning is an error
	$(BIN)/python -m sphinx -q -W -E -b html -d build/doctrees docs build/site

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[compare,fast]'
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[dev]'
	@touch $@

# Debian's Chromium, or Playwright's where there is no apt or no right to use it.
$(VENV)/.browser: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[dev,browser]'
	command -v chromium chromium-browser google-chrome || apt-get install -y chromium || \
		$(BIN)/playwright install chromium
	@touch $@

$(VENV)/.docs: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[docs]'
	@touch $@

clean: ## take away the virtual environment and the caches of tools
	rm -rf $(VENV) .hypothesis .pytest_cache .mypy_cache .ruff_cache
