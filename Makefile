# Two commands for a newcomer: make demo, make test.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: demo test full lint slow clean

demo: $(STAMP)  ## merge, diagnose and repair three experts of a real model (under ten minutes)
	$(BIN)/surgekit run demo/recipe.yaml --out runs/demo

full: $(STAMP)  ## every method on every text, three seeds (about an hour)
	$(BIN)/surgekit run demo/full.yaml --out runs/full

test: $(STAMP)  ## what CI runs, less the linters
	$(BIN)/python -m pytest -m "not slow"

slow: $(STAMP)  ## the tests that take minutes
	$(BIN)/python -m pytest -m slow

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

$(STAMP): pyproject.toml constraints.txt tools/install.sh
	PYTHON=$(PYTHON) bash tools/install.sh $(VENV)
	touch $@

clean:
	rm -rf $(VENV) runs
