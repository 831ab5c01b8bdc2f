# Every target works in a fresh clone: it makes .venv first. `make` alone lists the targets.
SHELL         := /bin/bash
.SHELLFLAGS   := -euo pipefail -c
.DEFAULT_GOAL := help
PYTHON        ?= python3
VENV          := $(CURDIR)/.venv
PY            := $(VENV)/bin/python
NB            ?= nbs tutorials
WHICH         :=
LESSON        ?= $(firstword $(wildcard tutorials/01_*.ipynb) tutorials)
CHROMIUM      := command -v chromium chromium-browser google-chrome
export PATH            := $(VENV)/bin:$(PATH)
export TIMEFORMAT      := took %0lR

# -- environment: .core holds what the package needs, .installed also JupyterLab, the test tools and Sphinx, .scale also TRL; what is imported is compiled when it is

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or newer is needed; name one: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

.venv/.core: pyproject.toml constraints.txt | .venv/bin/python
	$(PY) -m pip install --quiet --no-compile -c constraints.txt -e .
	@touch $@

.venv/.installed: pyproject.toml constraints.txt | .venv/bin/python
	$(PY) -m pip install --quiet --no-compile -c constraints.txt -e '.[lab,dev,docs]'
	@touch .venv/.core $@

.venv/.scale: pyproject.toml constraints.txt | .venv/.installed
	$(PY) -m pip install --quiet --no-compile -c constraints.txt -e '.[lab,dev,docs,scale,envs]'
	@touch $@

.PHONY: help demo lab test test-all checks in-step lint types test-notebooks test-wheel test-browser mutants fuzz bench readme docs notebooks stubs pins clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# -- use

demo: .venv/.core ## train a tiny language model by reinforcement learning, here and now
	rl4llm demo

lab: .venv/.installed ## open JupyterLab on the first lesson
	jupyter lab --ServerApp.root_dir=. $(LESSON)

bench: .venv/.scale ## speed and memory beside TRL, generate and plain autograd (a quarter of an hour on a quiet machine)
	python -m benchmarks

# -- write

notebooks: export TQDM_DISABLE = 1
notebooks: .venv/.installed ## execute notebooks and store their outputs: make notebooks NB=nbs/core/12_settings_file.ipynb
	nbdev-export && python nbs/_stubs.py
	find $(NB) -name '*.ipynb' -not -path '*/[_.]*' -print0 | sort -z | xargs -0 jupyter nbconvert --to notebook --execute --inplace \
	  --ExecutePreprocessor.timeout=3600 --ExecutePreprocessor.record_timing=False
	find $(NB) -name '*.ipynb' -not -path '*/[_.]*' -print0 | xargs -0 python nbs/_pictures.py
	for nb in $(NB); do nbdev-clean --fname $$nb; done

stubs: .venv/.installed ## write rl4llm/ from the notebooks, and the stubs that tell editors its names
	nbdev-export && python nbs/_stubs.py

readme: .venv/.installed ## write README.md from nbs/index.ipynb
	python nbs/_readme.py

docs: .venv/.installed ## the site in build/site/html, from the stored outputs of the notebooks (under 5 minutes)
	python nbs/_site/build.py

pins: .venv/.installed ## write constraints.txt from the present .venv
	{ sed '/^[^#]/,$$d' constraints.txt; pip freeze --exclude-editable | sed 's/+.*//'; } > .venv/pins && mv .venv/pins constraints.txt

# -- check: two workers, so one thread each

test test-all test-notebooks test-wheel test-browser mutants fuzz notebooks: export OMP_NUM_THREADS ?= 1

test: .venv/.scale checks test-notebooks ## what a change must pass: export in step, lint, types, the notebooks it reaches, the fast tests (aim: 15 minutes on 2 cores; 15 to 25 at present)
	time python -m pytest -n 2 --dist loadgroup --durations=10 --turn
	@$(CHROMIUM) > /dev/null || echo 'No Chromium here: the widgets were not tried in a browser (`make test-browser` skips, `make test-all` asks for it).'

test-all: export REQUIRE_BROWSER = 1
test-all: WHICH = --all
test-all: LONG ?= --long-in-turn
test-all: .venv/.scale checks test-notebooks ## the same with every notebook, the slow, wheel and browser tests (aim: 60 minutes); with nothing in turn: make test-all LONG=
	time python -m pytest -n 2 --dist loadgroup --durations=20 -m '' $(LONG)

checks: .venv/.installed
	@$(MAKE) --no-print-directory -j 2 in-step lint types

in-step: .venv/.installed ## are notebooks clean, and is rl4llm/ what they export?
	rm -rf .venv/step && mkdir .venv/step && cp -r pyproject.toml nbs tutorials rl4llm .venv/step
	cd .venv/step && nbdev-clean --fname nbs && nbdev-clean --fname tutorials && nbdev-export && python nbs/_stubs.py
	for d in nbs tutorials rl4llm; do \
	  diff -rq -x __pycache__ -x .ipynb_checkpoints $$d .venv/step/$$d || \
	  { echo "$$d/ is not in step with its notebooks: run nbdev-clean --fname $$d and make stubs, and look at the change."; exit 1; }; done

lint: .venv/.installed ## do the clean folders keep the rules of the house?
	python tests/lint.py

types: .venv/.installed ## do the public names have the types that their users expect?
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 pyright --pythonpath $(PY)

test-notebooks: .venv/.scale ## execute what a change can reach, one fifth of the rest and the lessons: make test-notebooks WHICH=--all
	time python tests/select_notebooks.py --run $(WHICH)

test-wheel: .venv/.installed ## build the wheel, install it in an empty environment, run the demo there
	time python -m pytest -m wheel

test-browser: .venv/.installed ## widgets and the first lesson in JupyterLab, in headless Chromium
	time python -m pytest -m browser -rs

mutants: .venv/.installed ## would the checks notice? plant some 5,000 small faults, one at a time (under an hour on 2 cores)
	time python tests/mutants.py

fuzz: .venv/.installed ## are hostile texts judged rightly, and in linear time? a million of them
	time python tests/fuzz.py --count 1000000 --seed 0 --store

clean: ## remove the environment, builds and caches; keeps runs/
	rm -rf .venv build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
