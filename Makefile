# Everything starts here: `make demo`, `make test`, `make check`, `make bench`, `make experiments`.
# Each sets up .venv by itself when it is missing or older than the files it is made from.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
READY := $(VENV)/.ready
# One file each in experiments/; the last needs Multi30k, which lies in $REGARD_DATA.
EXPERIMENTS := bottleneck scaling positions sequential memory distance heads $(if $(REGARD_DATA),translation)
TOGETHER := -n auto --maxprocesses 8 --dist worksteal  # tests, on every core

.PHONY: demo test slow check format bench experiments clean

demo: $(READY)
	$(VENV)/bin/regard demo

test: $(READY)
	$(VENV)/bin/python -m pytest -q -m "not slow" $(TOGETHER)

slow: $(READY)
	$(VENV)/bin/python -m pytest -q -m slow $(TOGETHER)

check: $(READY)
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

format: $(READY)
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

bench: $(READY)
	$(VENV)/bin/python benchmarks/attention.py

experiments: $(READY)
	for each in $(EXPERIMENTS); do $(VENV)/bin/python experiments/$$each.py || exit 1; done

$(READY): pyproject.toml constraints.txt
	@echo "Setting up $(VENV) (once; a minute or two) ..."
	@"$(PYTHON)" -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Regard needs Python 3.11 or newer: make PYTHON=/path/to/python3.11")'
	@"$(PYTHON)" -m venv --clear $(VENV)
	@PIP_CONSTRAINT=constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 $(VENV)/bin/python -m pip install --quiet --editable '.[dev]'
	@touch $(READY)
	@echo "Ready."

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
