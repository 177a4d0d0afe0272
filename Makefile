# Everything on a machine that has only Python (3.10 or newer), pip and make:
#   make demo        make .venv, install, run the demo
#   make test        the same environment with the test extra: ruff, mypy, pytest with doctests
#   make bench       speed side by side with the alternatives: a quarter of an hour on two cores, writes results/; ARGS="--quick --out DIR" for a look
#   make docs        the documentation as a site, in site/; runs the tutorials; a warning is an error
#   make test-slow   what really kills, fuzzes, loads or opens a browser; installs the Debian packages it needs

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: bench demo docs test test-slow lint clean

demo: $(VENV)/installed
	$(BIN)/protodrift demo

test: $(VENV)/installed-test lint
	$(BIN)/python -m pytest -q --numprocesses=auto --maxprocesses=4

lint: $(VENV)/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test-slow: $(VENV)/installed-test
	$(BIN)/python tests/browser_setup.py
	$(BIN)/python -m pytest -q -m slow -rP tests

docs: $(VENV)/installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(VENV)/installed-bench
	$(BIN)/python -m benchmarks.run $(ARGS)

# A stamp is newer than pyproject.toml once its install has finished: a second make does not install again, an
# interrupted one starts over.
$(VENV)/installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable '.[report]'
	touch $@

$(VENV)/installed-test: $(VENV)/installed
	$(PIP) --editable '.[test]'
	touch $@

$(VENV)/installed-docs: $(VENV)/installed
	$(PIP) --editable '.[docs]'
	touch $@

# Avalanche, for comparison only. Without its dependencies first: they would replace torch. Where it cannot be had, the
# benchmark says so.
AVALANCHE := dill gdown gputil lightning-utilities matplotlib psutil qpsolvers tensorboard tqdm wandb
$(VENV)/installed-bench: $(VENV)/installed
	-$(PIP) --no-deps avalanche-lib pytorchcv torchmetrics torchvision && $(PIP) $(AVALANCHE)
	touch $@

clean:
	rm -rf $(VENV) build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis protodrift-demo
