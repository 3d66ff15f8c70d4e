# Every target sets up what it needs and can be called again. `make` alone lists them.
# Written for GNU make 3.81 (macOS) and later.

PYTHON  ?= python3
PROFILE ?= quick
PAPER   ?= all
JOBS    ?=
DATA    ?=
SETS    ?=

VENV  := .venv
PY    := $(VENV)/bin/python
READY := $(VENV)/.ready
BENCH := benchmarks/.packages
BOOK  := docs/.packages
SLURM := tests/slurm/.packages

# Notebooks work in a folder of their own, so folders are made absolute here; with blanks in them, and of ~, too.
empty :=
blank := $(empty) $(empty)
absolute = $(subst |,$(blank),$(abspath $(patsubst ~/%,$(subst $(blank),|,$(HOME))/%,$(subst $(blank),|,$(1)))))
$(foreach name,FU_DATA FU_RUNS FU_FIGURES,$(if $($(name)),$(eval export $(name) := $$(call absolute,$$($(name))))))

SETTINGS := $(if $(DATA),FU_DATA="$(call absolute,$(DATA))") $(if $(JOBS),FU_JOBS="$(JOBS)")

.DEFAULT_GOAL := help
.PHONY: help setup reproduce plan figures test test-slurm notebooks data lab lint bench book clean distclean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo "  Variables: PROFILE=$(PROFILE) (quick, laptop, workstation, paper)  PAPER=$(PAPER) (puf, hf_kcu, ...)"
	@echo "             JOBS=$(JOBS) (processes; all cores)  DATA=$(DATA) (folder of the data caches; data/)"

setup: $(READY) ## Make .venv with the pinned packages (once; again when they change)

# The stamp comes last, so that an interrupted installation is done again.
$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; \
	  ok = (3, 11) <= v < (3, 14); \
	  ok or sys.exit("fu_core needs Python 3.11, 3.12 or 3.13, but $(PYTHON) is %d.%d; call make PYTHON=python3.12" % v[:2])'
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --require-hashes -r requirements.lock
	$(PY) -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

reproduce: $(READY) ## Make all figures and tables (PROFILE, PAPER, JOBS, DATA)
	$(SETTINGS) $(PY) -m fu_papers --profile $(PROFILE) --paper $(PAPER)

plan: $(READY) ## List what reproduce would do: runs, disk, hours on this device (PROFILE, PAPER)
	$(SETTINGS) $(PY) -m fu_papers --profile $(PROFILE) --paper $(PAPER) --dry-run

figures: $(READY) ## Draw them again from the committed records, computing nothing
	$(SETTINGS) $(PY) -m fu_papers --profile $(PROFILE) --paper $(PAPER) --figures-only

# What small nets compute is no faster with more threads, and many times slower beside other work.
ONE_THREAD := OMP_NUM_THREADS=$(or $(OMP_NUM_THREADS),1)

# One thread each: the test processes share the cores, and sums keep their order. What takes longest begins (tests/conftest.py).
# Papers' notebooks are drawn from the committed records; that notebooks compute from nothing is tested in tests/notebooks.
TEST := OMP_NUM_THREADS=1 FU_FIGURES="$(CURDIR)/runs/test-figures" $(PY) -m pytest --durations=25 -n $(or $(JOBS),auto) --dist loadscope --no-loadscope-reorder
NOTEBOOKS := $(wildcard notebooks/*.ipynb)
OF_PAPERS := $(wildcard notebooks/0[1-9]_*.ipynb)

test: $(READY) ## Run the tests and check the notebooks' tagged cells (JOBS)
	$(TEST) $(if $(OF_PAPERS),-p tests.drawn_from_records --nbval-lax --nbval-current-env --nbval-cell-timeout=600 $(OF_PAPERS)) tests

test-slurm: $(READY) $(SLURM)/.ready ## Run docs/cluster.md's recipe on a Slurm of two nodes, set up for it (Linux, root)
	OMP_NUM_THREADS=1 PYTHONPATH="$(CURDIR):$(CURDIR)/$(SLURM)" $(PY) -m tests.slurm.cluster $(PY) -m pytest -n 0 tests/slurm

$(SLURM)/.ready: tests/slurm/requirements.txt $(READY)
	$(PY) -m pip install --quiet --no-deps --require-hashes --target $(SLURM) --upgrade -r tests/slurm/requirements.txt
	@touch $@

notebooks: $(READY) ## Run the notebooks in place at their defaults, to commit them with their figures
	$(ONE_THREAD) $(SETTINGS) $(PY) -m jupyter nbconvert --to notebook --execute --inplace \
	  --ExecutePreprocessor.record_timing=False $(NOTEBOOKS)

data: $(READY) ## Download SETS="mnist adult ..." into DATA; without SETS, list them
	$(SETTINGS) $(PY) -m fu_core.data $(SETS)

# From here and not from notebooks/: links to docs/ and to claims lead out of that folder, and what is outside opens nowhere.
lab: $(READY) ## Open the notebooks in JupyterLab
	$(ONE_THREAD) $(SETTINGS) $(PY) -m jupyterlab --LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb

lint: $(READY) ## Check style and types
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(PY) -m mypy

bench: $(READY) $(BENCH)/.ready ## Measure rounds against a plain loop, Flower and pfl; write benchmarks/rounds.csv
	$(SETTINGS) $(PY) benchmarks/bench_rounds.py

# pfl wants an older dp-accounting than our tests do, so it lives in a folder that only its own process looks into.
$(BENCH)/.ready: benchmarks/requirements.txt $(READY)
	$(PY) -m pip install --quiet --no-deps --require-hashes --target $(BENCH) --upgrade -r benchmarks/requirements.txt
	@touch $@

book: $(READY) $(BOOK)/.ready ## Make a site of the notebooks, with slides, documents and docstrings (PROFILE)
	rm -rf build/book
	$(PY) docs/make_book.py build/book/pages $(PROFILE)
	PYTHONPATH=$(BOOK) $(PY) -m sphinx -q -W --keep-going -b html -c docs build/book/pages build/book/site
	$(PY) docs/make_slides.py build/book/site/slides $(PROFILE)
	@echo "open build/book/site/index.html"

# In a folder of its own, like the benchmark's: no other command is to wait for it.
$(BOOK)/.ready: requirements-book.lock $(READY)
	$(PY) -m pip install --quiet --no-deps --require-hashes --target $(BOOK) --upgrade -r requirements-book.lock
	@touch $@

clean: ## Remove working state and caches; figures, data and .venv stay
	rm -rf runs build .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean ## The same, and .venv, too
	rm -rf $(VENV) $(BENCH) $(BOOK) $(SLURM)
