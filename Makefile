# Two commands for a newcomer: make demo, make test.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

SECONDS_EACH ?= 10

.PHONY: demo test full lint slow fuzz audit licences clean

demo: $(STAMP)  ## merge, diagnose and repair three experts of a real model (under ten minutes)
	$(BIN)/surgekit run demo/recipe.yaml --out runs/demo

full: $(STAMP)  ## every method on every text, three seeds (about an hour)
	$(BIN)/surgekit run demo/full.yaml --out runs/full

test: $(STAMP)  ## what CI runs, less the linters
	$(BIN)/python -m pytest -m "not slow"

slow: $(STAMP)  ## the tests that take minutes
	$(BIN)/python -m pytest -m slow

fuzz: $(STAMP)  ## each reader of files for some seconds, guided by coverage (Linux, Python 3.11)
	$(BIN)/python -m pip install --quiet --group fuzz
	for name in adapter states recipe prompts merge gguf checkpoint lora; do \
	  $(BIN)/python fuzz/run.py $$name $(SECONDS_EACH) || exit 1; done

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

audit:  ## known vulnerabilities of the pinned versions (needs the network; see tools/audit.py)
	[ -x .audit/bin/pip-audit ] || { $(PYTHON) -m venv .audit && .audit/bin/pip install --quiet pip-audit==2.10.1; }
	$(PYTHON) tools/audit.py --pip-audit .audit/bin/pip-audit

licences: $(STAMP)  ## write docs/dependencies.md
	$(BIN)/python tools/licences.py

$(STAMP): pyproject.toml constraints.txt tools/install.sh
	PYTHON=$(PYTHON) bash tools/install.sh $(VENV)
	touch $@

clean:
	rm -rf $(VENV) .audit runs
