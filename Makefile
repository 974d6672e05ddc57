# make train   SFT warm-up, then GRPO on random arithmetic, then report.html     (SMOKE=1: the same at toy size)
# make agent   a tiny model learns to use a calculator over several turns, then report.html
# make preferences   reward against KL of DPO, IPO, KTO, SimPO, SPPO, PPO, GRPO on stories: a table and a picture
# make rlhf    samples, reward models and PPO on them: the gold reward under its proxy, alone and as an ensemble
# make ablations   papers' claims, checked: tables, charts and verdicts in runs/ablations; what is finished is skipped
# make control-levels   ten seeds of CartPole, Acrobot, MountainCar, Pendulum and Breakout beside the published returns
# make docs    the documentation site, from docs/pages, docstrings and configs, into build/site; warnings are errors
# make test    every test, the slow ones too
# make plan-check   the TPU compiler, without a TPU: memory and bytes sent of a GRPO step and a rollout, held to the stored
# make mutants mechanical faults in the objectives and what feeds them: the share that tests notice, every survivor
# Each makes its own virtual environment in .venv first; datasets are prepared once, under ~/.cache/rl_jax.

PYTHON ?= python3
VENV ?= .venv
VENV_TPU ?= .venv-tpu
# Workers of the tests, 2 GB each: one per core, from 2 to 4.
JOBS ?= $(shell cores=$$(nproc 2>/dev/null || echo 2); [ $$cores -gt 4 ] && cores=4; [ $$cores -lt 2 ] && cores=2; echo $$cores)
MESH ?= seeds:2

ifdef SMOKE
CONFIG := configs/tasks/arithmetic.py:smoke
RUN := runs/smoke
AGENT := configs/agents.py:calculator,smoke
AGENT_RUN := runs/smoke_agent
FRONTIER := configs/preferences/frontier.py:smoke
FRONTIER_RUN := runs/smoke_frontier
ABLATIONS := --smoke
LEVELS := --smoke
else
CONFIG := configs/tasks/arithmetic.py
RUN := runs/arithmetic
AGENT := configs/agents.py:calculator
AGENT_RUN := runs/agent
FRONTIER := configs/preferences/frontier.py
FRONTIER_RUN := runs/frontier
ABLATIONS :=
LEVELS :=
endif

PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check

.PHONY: docs train agent preferences rlhf ablations control-levels test mutants plan-check lint clean install install-dev
.DELETE_ON_ERROR:

train: $(VENV)/.installed
	$(PY) -m experiments.grpo --config=$(CONFIG) --workdir=$(RUN)
	$(PY) -m experiments.report $(RUN)

agent: $(VENV)/.installed
	$(PY) -m experiments.agents --config=$(AGENT) --workdir=$(AGENT_RUN)
	$(PY) -m experiments.report $(AGENT_RUN)

# Under 20 minutes on 2 cores; arms that are finished are not run again.
preferences: $(VENV)/.installed
	$(PY) -m experiments.frontier --config=$(FRONTIER) --workdir=$(FRONTIER_RUN)

# Five reward models with seeds of their own; PPO on the first one, then on the worst of five. What is complete is skipped.
RLHF := configs/preferences/rlhf.py
rlhf: $(VENV)/.installed
	test -e runs/rlhf_candidates/final.json || $(PY) -m experiments.best_of_n --config=$(RLHF):candidates
	for seed in 0 1 2 3 4; do \
	  $(PY) -m experiments.reward_model --config=$(RLHF):reward_model --config.seed=$$seed \
	    --workdir=runs/rlhf_reward_model_$$seed || exit 1; \
	done
	$(PY) -m experiments.ppo --config=$(RLHF)
	$(PY) -m experiments.ppo --config=$(RLHF):ensemble
	$(PY) -m experiments.tools.over_optimization runs/rlhf_ppo runs/rlhf_ppo_ensemble

# Each in a process of its own; one that fails is named at the end, and the others go on.
ablations: $(VENV)/.installed
	$(PY) -m experiments.ablation --all $(ABLATIONS)

# Half an hour on 2 cores; environments that are finished are not run again. On one accelerator: MESH=
control-levels: $(VENV)/.installed-control
	$(PY) -m experiments.tools.control_levels $(LEVELS) --config.mesh=$(MESH)

# loadfile keeps a file's fixtures and compiled functions in one process,
# and tests/conftest.py puts the files with slow tests first.
test: $(VENV)/.installed-dev
	$(PY) -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder --durations=15 $(PYTEST_ARGS)

# Hours for all of it; stopped, it goes on where it was. MUTANTS_ARGS="rl_jax/losses/kl.py" or "--sample 50": a part.
mutants: $(VENV)/.installed-dev
	$(PY) -m tests.mutate --jobs $(JOBS) $(MUTANTS_ARGS)

# In a virtual environment of its own: where libtpu is, jax looks for a TPU.
plan-check: $(VENV_TPU)/.installed-tpu
	$(VENV_TPU)/bin/python -m experiments.plan --check=experiments/plan/plans/ci.json

$(VENV_TPU)/.installed-tpu: requirements.txt pyproject.toml
	$(MAKE) install VENV=$(VENV_TPU) EXTRAS=[tpu]
	touch $@

# Read it with: python3 -m http.server --directory build/site (opened from a disk, the pages have no search).
# The variable silences a notice about the next version of MkDocs, which the ranges in requirements-docs.txt leave out.
docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --config-file docs/mkdocs.yml

lint: $(VENV)/.installed-dev
	$(VENV)/bin/ruff check .

install: $(VENV)/.installed

install-dev: $(VENV)/.installed-dev

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "$(PYTHON) is older than Python 3.11: name a newer one, as in  make PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: requirements.txt pyproject.toml | $(VENV)/bin/python
	$(PIP) install -e '.$(EXTRAS)'
	touch $@

$(VENV)/.installed-control: $(VENV)/.installed
	$(PIP) install -e '.[control]'
	touch $@

$(VENV)/.installed-docs: requirements-docs.txt $(VENV)/.installed
	$(PIP) install -r requirements.txt -r requirements-docs.txt
	touch $@

$(VENV)/.installed-dev: requirements-dev.txt requirements-docs.txt requirements-environments.txt requirements-oracles.txt \
		requirements-oracles-trl-0.28.txt $(VENV)/.installed
	$(PIP) install -r requirements.txt -r requirements-dev.txt
	$(PIP) check
	rm -rf $(VENV)/environments $(VENV)/oracles $(VENV)/oracles-trl-0.28
	$(PIP) install --no-deps --target $(VENV)/environments -r requirements-environments.txt
	$(PIP) install --no-deps --target $(VENV)/oracles -r requirements-oracles.txt
	$(PIP) install --no-deps --target $(VENV)/oracles-trl-0.28 -r requirements-oracles-trl-0.28.txt
	touch $@

clean:
	rm -rf build *.egg-info .pytest_cache .ruff_cache $(VENV) $(VENV_TPU) runs/smoke runs/smoke_frontier \
		runs/ablations_smoke runs/smoke_control_levels
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
