# `make demo`, `make quick`, `make test`, `make check`, `make docs`, `make bench`, `make experiments`, `make reliability`,
# `make mutants`.
# Each sets up .venv if it is missing or older than pyproject.toml, constraints.txt or locks/dev.txt.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
READY := $(VENV)/.ready
SPHINX := $(VENV)/.sphinx
PIP = $(VENV)/bin/python -m pip --disable-pip-version-check --quiet
# One file each in experiments/; the last needs Multi30k in $REGARD_DATA.
EXPERIMENTS := bottleneck scaling positions sequential memory distance heads $(if $(REGARD_DATA),translation)
# With bytecode, whatever the environment says: tests start many processes, and each would compile the package.
PYTEST = env -u PYTHONDONTWRITEBYTECODE $(VENV)/bin/python -m pytest -q --randomly-seed=$(ORDER)
PARALLEL := -n auto --maxprocesses 8 --dist worksteal
# The order of the tests: another one for each commit, so that a failure can be repeated. ORDER=7 chooses one.
ORDER ?= $(shell printf '%d' 0x$$(git rev-parse --short=7 HEAD 2>/dev/null || echo 1))

# Fast tests of every package, about 60 s of processor time; `make test` runs all tests.
QUICK := $(addprefix tests/, core data/test_text.py data/test_batching.py model/test_build.py model/test_positions.py \
	kernels/test_rnn.py generation/engines/test_static_decoder.py generation/test_ensemble.py training/test_losses.py \
	checkpoint/test_store.py word_vectors/test_vector_files.py evaluation/test_caption_metrics.py \
	interpret/test_output_attention.py inference/test_markup.py inference/test_score.py inference/test_stream.py \
	views/test_figures.py test_package.py::test_importing_loads_nothing_heavy \
	test_package.py::test_the_architecture_page_names_every_module test_package.py::test_links_in_the_docs_exist)

.PHONY: demo quick test slow alone reliability mutants check density format docs bench experiments lock dist engine-wheel \
	reproducible licences audit clean

demo: $(READY)
	$(VENV)/bin/regard demo

quick: check
	$(PYTEST) -m "not slow" $(PARALLEL) $(QUICK)

test: $(READY)
	$(PYTEST) -m "not slow" $(PARALLEL)

slow: $(READY)
	$(PYTEST) -m slow $(PARALLEL)

# Every file of tests in a process of its own: none may need what another one has imported or made.
alone: $(READY)
	$(VENV)/bin/python tools/alone.py --order $(ORDER)

# Every promise of docs/reliability.md, with its slow tests: "98 of 98 hold". RELIABILITY="F2 N11" checks some.
reliability: $(READY)
	PYTHONPATH=tests $(VENV)/bin/python -m reliability.promises --check $(PARALLEL) $(RELIABILITY)

# Small faults planted in every package, one at a time: how many do tests catch? docs/mutants.md
mutants: $(READY)
	$(VENV)/bin/python tools/mutants.py --count $(or $(COUNT),100) --seed $(or $(SEED),1)

check: $(READY)
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(VENV)/bin/python tools/density.py

# After a change that made statements simpler: no file may become denser again.
density: $(READY)
	$(VENV)/bin/python tools/density.py --write

format: $(READY)
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

# The site, strictly, with every picture whose sources have changed; ALL=1 draws all of them anew.
docs: $(SPHINX)
	$(VENV)/bin/python tests/support/write_module_tables.py
	$(VENV)/bin/python -m regard.recipe.reference > docs/recipe.md
	PYTHONPATH=tests $(VENV)/bin/python -m reliability.promises
	for page in cli http api; do $(VENV)/bin/python docs/tools/$${page}_reference.py > docs/$$page.md || exit 1; done
	$(VENV)/bin/python docs/tools/package_map.py > docs/packages.svg
	$(VENV)/bin/python docs/tools/gallery.py $(if $(ALL),--all)
	$(VENV)/bin/python docs/tools/page_pictures.py $(if $(ALL),--all)
	$(VENV)/bin/python -m sphinx -W --keep-going -q -b html -d build/doctrees docs build/site
	@echo "The site is in build/site/index.html"

bench: $(READY)
	$(VENV)/bin/python benchmarks/attention.py

experiments: $(READY)
	for each in $(EXPERIMENTS); do $(VENV)/bin/python experiments/$$each.py || exit 1; done

lock: $(READY)
	$(VENV)/bin/python tools/lock.py

# All packages by their hashes, and none is built here. PyTorch comes next, by its version alone: its builds for CPUs and
# for CUDA share a version, and pip's settings choose one (such as PIP_EXTRA_INDEX_URL). Its other dependencies are there.
$(READY): pyproject.toml constraints.txt locks/dev.txt
	@echo "Setting up $(VENV) (once; a minute or two) ..."
	@"$(PYTHON)" -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Regard needs Python 3.11 or newer: make PYTHON=/path/to/python3.11")'
	@"$(PYTHON)" -m venv --clear $(VENV)
	@$(PIP) install --require-hashes --only-binary :all: --no-deps --requirement locks/dev.txt
	@$(PIP) install --constraint constraints.txt --only-binary :all: torch
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@$(PIP) check
	@touch $(READY)
	@echo "Ready."

# The packages of the site, beside those of development.
$(SPHINX): $(READY)
	@PIP_CONSTRAINT=constraints.txt $(PIP) install --editable '.[dev,docs]'
	@touch $(SPHINX)

dist: $(READY)
	$(VENV)/bin/python -m hatchling build -t sdist -t wheel -d dist

engine-wheel: $(READY)
	REGARD_ENGINE=native $(VENV)/bin/python -m hatchling build -t wheel -d dist

# Two builds, in different folders, must have the same bytes.
reproducible: $(READY)
	$(PYTEST) tests/release/test_wheel.py -k two_builds_are_equal

licences: $(READY)
	$(VENV)/bin/python tools/licences.py

# Known vulnerabilities of the pinned versions. Asks a service on the network, which is why no other target needs it.
audit: $(READY)
	$(VENV)/bin/python tools/vulnerabilities.py
	$(VENV)/bin/python -m venv $(VENV)/audit
	$(VENV)/audit/bin/python -m pip install --quiet pip-audit
	$(VENV)/audit/bin/pip-audit --no-deps --disable-pip --require-hashes --requirement locks/dev.txt --requirement locks/extras.txt

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
