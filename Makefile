# One environment (.venv) for everything: installed once, and again only when pyproject.toml changes.
PYTHON ?= python3
BIN := .venv/bin
unexport PYTHONDONTWRITEBYTECODE  # without caches, every command imports for ten seconds longer

.PHONY: quickstart test lint docs bench clean

quickstart: .venv/installed  ## the first run: a small ViT with TL-Align on the sample world, a few minutes
	@echo "Training a small ViT with TL-Align on the sample world: a few minutes on two cores ..."
	@$(BIN)/labelflow train quickstart --resume

test: lint  ## everything that CI checks
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --dist worksteal

lint: .venv/installed
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

docs: .venv/installed  ## the documentation, in site/
	@NO_MKDOCS_2_WARNING=true $(BIN)/python -m mkdocs build --strict --quiet
	@echo "look at it: site/index.html (or, with its search: $(BIN)/python -m mkdocs serve)"

bench: .venv/installed  ## what alignment costs in a training step
	@$(BIN)/python benchmarks/step_overhead.py

.venv/installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "labelflow needs Python 3.11 or newer; try: make PYTHON=python3.12")'
	@echo "Setting up .venv (torch is a large download; this happens once) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --editable '.[dev]'
	@touch $@

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
