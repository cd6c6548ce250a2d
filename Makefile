# Everything on a fresh machine: `make demo`, `make test`, `make lint`, `make docs`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
LAB    := $(VENV)/.installed-lab
ALL    := $(VENV)/.installed-all
EXTRAS := lab,dist,ray,lightning,transformers,accelerate,skorch,compress,dev

.PHONY: demo test lint format docs clean

demo: $(LAB)
	$(BIN)/aliceopt study --out out/study --overwrite

# Two workers with one thread each use two cores better than one worker with two threads.
test: $(ALL)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal $(PYTEST_ARGS)

lint: $(ALL)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(ALL)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(ALL)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# One environment, two stamps: the demo needs the lab alone, everything else also the frameworks
# that Alice is tested in. Reinstalls only when the declared dependencies change.
$(LAB): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[lab]'
	touch $@

$(ALL): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[$(EXTRAS)]'
	touch $(LAB) $@

clean:
	rm -rf $(VENV) out site .pytest_cache .mypy_cache .ruff_cache .hypothesis
