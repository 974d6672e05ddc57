# make train   SFT warm-up, then GRPO on random arithmetic, then report.html     (SMOKE=1: the same at toy size)
# make test    every test, the slow ones too
# make mutants mechanical faults in the objectives: the share that the fast tests notice, and every survivor
# Each makes its own virtual environment in .venv first; datasets are prepared once, under ~/.cache/rl_jax.

PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2

ifdef SMOKE
CONFIG := configs/arithmetic.py:smoke
RUN := runs/smoke
else
CONFIG := configs/arithmetic.py
RUN := runs/arithmetic
endif

PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check

.PHONY: train test mutants lint clean install install-dev
.DELETE_ON_ERROR:

train: $(VENV)/.installed
	$(PY) -m experiments.grpo --config=$(CONFIG) --workdir=$(RUN)
	$(PY) -m experiments.report $(RUN)

# A worker per core of a small machine; loadfile keeps a file's fixtures and compiled functions in one process,
# and tests/conftest.py puts the files with slow tests first.
test: $(VENV)/.installed-dev
	$(PY) -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder --durations=15 $(PYTEST_ARGS)

# Hours for all of it; stopped, it goes on where it was. MUTANTS_ARGS="rl_jax/losses/kl.py" or "--sample 50": a part.
mutants: $(VENV)/.installed-dev
	$(PY) -m tests.mutate --jobs $(JOBS) $(MUTANTS_ARGS)

lint: $(VENV)/.installed-dev
	$(VENV)/bin/ruff check .

install: $(VENV)/.installed

install-dev: $(VENV)/.installed-dev

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "$(PYTHON) is older than Python 3.11: name a newer one, as in  make PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: requirements.txt pyproject.toml | $(VENV)/bin/python
	$(PIP) install -e .
	touch $@

$(VENV)/.installed-dev: requirements-dev.txt requirements-oracles.txt $(VENV)/.installed
	$(PIP) install -r requirements.txt -r requirements-dev.txt
	$(PIP) check
	rm -rf $(VENV)/oracles
	$(PIP) install --no-deps --target $(VENV)/oracles -r requirements-oracles.txt
	touch $@

clean:
	rm -rf build *.egg-info .pytest_cache .ruff_cache $(VENV) runs/smoke
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
