# Two commands do everything on a fresh machine: make quickstart, make test.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
export OMP_NUM_THREADS ?= 1
# Tests start hundreds of interpreters; none of them shall compile every module anew.
unexport PYTHONDONTWRITEBYTECODE
# A third of the time the tests wait, for leases, silences and time-outs: four workers keep two
# cores busy. Who has more: make test WORKERS=8.
WORKERS ?= 4
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help quickstart test suite test-fast check test-slow test-compat durations test-gpu lint types bench campaign docs fuzz mutate release clean system-packages

help:  ## Show this text
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 20

# A stamp is newer than what it was made from, so a second run needs no network.
# An editable install compiles the guard's kernel in place, where there is a compiler.
KERNEL := hatch_build.py tools/kernel.py securetrain/guard/sketch_kernel.c
# An environment that could not be finished has an interpreter, and no pip.
$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) is not Python 3.11 or newer: install python3 and python3-venv, or set PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
	  { echo "cannot make a virtual environment: install python3-venv (Debian, Ubuntu) or set PYTHON=" >&2; exit 1; }

$(VENV)/.run: pyproject.toml constraints.txt $(KERNEL) | $(BIN)/pip
	@echo "installing securetrain and torch into $(VENV) (once) ..."
	@$(PIP) -e '.[train,report]'
	@touch $@

# All in one go: a second installation would resolve everything again. A third of what is installed
# is ever imported: whoever imports it first compiles it, on all cores.
$(VENV)/.dev: pyproject.toml constraints.txt $(KERNEL) | $(BIN)/pip
	@echo "installing securetrain, torch, the test and lint tools into $(VENV) (once) ..."
	@$(PIP) --no-compile -e '.[train,report,dev]'
	@touch $(VENV)/.run $@

$(VENV)/.frameworks: $(VENV)/.dev
	@echo "installing the frameworks that the slow tests start into $(VENV) (once) ..."
	@$(PIP) -e '.[train,report,dev,frameworks]'
	@touch $@

$(VENV)/.docs: $(VENV)/.run
	@$(PIP) -e '.[docs]'
	@touch $@

quickstart: $(VENV)/.run  ## Train a model under a policy, verify it, attack it (about two minutes)
	@$(BIN)/securetrain quickstart

system-packages: $(BIN)/pip
	@$(BIN)/python tools/system_packages.py

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/lint-imports
	$(BIN)/python -m tools.gates
	$(BIN)/python -m tests.flaky

types: $(VENV)/.dev
	$(BIN)/mypy

# Packages are fetched while it lints, and types are checked while tests wait for each other.
test: $(VENV)/.dev  ## Lint, type-check, check the layers, run all tests
	@$(MAKE) --no-print-directory -j3 types suite

suite: $(VENV)/.dev system-packages lint
	@$(BIN)/python -m tests.collection
	$(PYTEST) --flaky tests/flaky.json -m "not gpu and not many and not compat"

test-fast: $(VENV)/.dev  ## Every test of less than 50 ms, without processes (under two minutes)
	$(BIN)/python -m pytest -n auto --dist worksteal -q --fast

check: $(VENV)/.dev  ## The fast tests of a room and of what imports it: make check ROOM=guard
	@$(BIN)/python -m tools.gates.check $(ROOM)

test-slow: $(VENV)/.frameworks  ## What make test leaves out: eight ranks and more, other frameworks, long campaigns
	$(BIN)/python -m pytest -m "many and not compat"

# The tables are written whatever came of it: what was not shown must not stand there.
test-compat: $(VENV)/.dev  ## Other frameworks, each in its environment (.compat/); rewrites the tables of versions
	@status=0; $(BIN)/python -m tools.frameworks $(if $(ONLY),--only $(ONLY)) || status=1; \
	  $(BIN)/python tools/compatibility.py && exit $$status

durations: $(VENV)/.dev  ## Keep what files and tests need (tests/durations.json): test-fast follows from it
	$(PYTEST) -m "not gpu and not many and not compat" -q --keep-durations

test-gpu: $(VENV)/.dev  ## The tests that need a GPU
	$(BIN)/python -m pytest -m gpu

campaign: $(VENV)/.dev  ## Many random cases of one attack: make campaign NAME=kills COUNT=200
	$(BIN)/python tools/campaign.py $(NAME) $(if $(COUNT),--count $(COUNT)) $(if $(SEED),--seed $(SEED))

release: $(VENV)/.dev  ## Build, try, describe and sign a release: make release KEY=release.pem
	$(BIN)/python -m tools.release $(if $(KEY),--key $(KEY)) $(if $(KEYLESS),--keyless) $(if $(EXTRAS),--extras $(EXTRAS)) $(if $(LEAVE_OUT),--leave-out $(LEAVE_OUT)) $(if $(JOBS),--jobs $(JOBS)) $(if $(OUT),--out $(OUT))

bench: $(VENV)/.dev  ## Ours and the reference side by side; prints ratios
	$(BIN)/python benchmarks/run.py

docs: $(VENV)/.docs  ## Build the documentation into site/
	$(BIN)/python tools/reference.py
	$(BIN)/python tools/house.py
	$(BIN)/mkdocs build --strict

fuzz: $(VENV)/.dev  ## Mutate inputs of every parser (FUZZ_INPUTS=100000 a parser)
	$(BIN)/python -m tools.fuzz

mutate: $(VENV)/.dev  ## Remove security checks one by one; every removal must fail a test
	$(BIN)/python tools/mutate.py

clean:  ## Remove everything that was built here
	rm -f securetrain/guard/libsketch.so
	rm -rf $(VENV) .compat site build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
