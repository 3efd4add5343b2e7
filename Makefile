# One environment (.venv) for everything: installed once, and again only when pyproject.toml changes.
PYTHON ?= python3
BIN := .venv/bin
unexport PYTHONDONTWRITEBYTECODE  # without caches, every command imports for ten seconds longer

.PHONY: quickstart test pytest lint docs publish-docs floors newest dist try-dist bench clean

quickstart: .venv/installed  ## the first run: a small ViT with TL-Align on the sample world, a few minutes
	@echo "Training a small ViT with TL-Align on the sample world: a few minutes on two cores ..."
	@$(BIN)/labelflow train quickstart --resume
	@echo "labelflow is in .venv: source .venv/bin/activate"

# One process more than there are cores, as some tests wait for others.
PYTEST := -m pytest --numprocesses $$(($$(getconf _NPROCESSORS_ONLN) + 1)) --dist worksteal
# Lint beside the tests: mypy keeps one core busy, and would leave the others idle.
test: .venv/installed  ## everything that CI checks
	@$(MAKE) --no-print-directory --jobs=2 lint pytest

pytest: .venv/installed
	@OMP_NUM_THREADS=1 $(BIN)/python $(PYTEST)

lint: .venv/installed
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

docs: .venv/installed  ## the documentation, in site/
	@NO_MKDOCS_2_WARNING=true $(BIN)/python -m mkdocs build --strict
	@echo "look at it: site/index.html (or, as you write: $(BIN)/python -m mkdocs serve)"

# With what the site needs and nothing else, as whoever publishes may write to the repository.
publish-docs:  ## the documentation of this version, on the branch gh-pages, beside earlier ones
	@$(PYTHON) -m venv --clear .venv-docs
	@.venv-docs/bin/python -m pip install --quiet --disable-pip-version-check uv
	@.venv-docs/bin/uv pip install --quiet --python .venv-docs --group docs
	@version=$$(sed -n 's/^__version__ = "\(.*\)\.[^.]*"$$/\1/p' src/labelflow/__init__.py) && \
		export NO_MKDOCS_2_WARNING=true PATH="$$PWD/.venv-docs/bin:$$PATH" && \
		mike deploy --push --update-aliases $$version latest && mike set-default --push latest

# Each package that pyproject.toml names, at the lowest version it admits; where others need a newer one, uv says so.
FLOORS := tests/adapters tests/data tests/engine tests/explore tests/formats tests/labels tests/tasks/detect \
	tests/robustness/test_corruptions.py tests/test_api.py tests/test_cli.py tests/test_commands_in_docs.py tests/test_examples.py tests/test_figures.py
floors: .venv/installed  ## the lowest versions of all that labelflow depends on, in .venv-floors, and tests of each
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python .venv-floors
	@sed -n 's/^    "\(.*\)>=\([0-9.]*\)".*/\1==\2/p' pyproject.toml > .venv-floors/floors.txt
	@$(BIN)/uv pip install --quiet --python .venv-floors --constraints .venv-floors/floors.txt \
		--editable '.[all]' pytest hypothesis httpx httpx2 ipykernel lightning pycocotools tensorboard
	@$(BIN)/uv pip list --python .venv-floors
	@OMP_NUM_THREADS=1 .venv-floors/bin/python -m pytest -W ignore::DeprecationWarning $(FLOORS)

newest: .venv/installed  ## the newest of everything, and pre-releases of timm, in .venv-newest, and all tests
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python .venv-newest
	@$(BIN)/uv pip install --quiet --python .venv-newest --upgrade --group dev --editable '.[all]' \
		'timm>=1.0.31.dev0'
	@$(BIN)/uv pip list --python .venv-newest
	@OMP_NUM_THREADS=1 .venv-newest/bin/python $(PYTEST)

dist:  ## wheel and sdist, in dist/, made by nothing but the build tools
	@rm -rf dist
	@$(PYTHON) -m venv --clear .venv-build
	@.venv-build/bin/python -m pip install --quiet --disable-pip-version-check build twine
	@.venv-build/bin/python -m build >/dev/null
	@.venv-build/bin/twine check --strict dist/*
	@ls -l dist

try-dist:  ## the wheel alone, in another folder: the quickstart, and what first users do
	@$(PYTHON) -m venv --clear .venv-dist
	@.venv-dist/bin/python -m pip install --quiet --disable-pip-version-check uv
	@.venv-dist/bin/uv pip install --quiet --python .venv-dist dist/*.whl
	@top=$$PWD && cd $$(mktemp -d) && $$top/.venv-dist/bin/labelflow train quickstart && \
		$$top/.venv-dist/bin/python $$top/tests/smoke.py

bench: .venv/installed  ## what alignment costs in a training step
	@$(BIN)/python benchmarks/step_overhead.py

.venv/installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "labelflow needs Python 3.11 or newer; try: make PYTHON=python3.12")'
	@echo "Setting up .venv (torch is a large download; this happens once) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --group dev --editable '.[all]'
	@touch $@

clean:
	rm -rf .venv .venv-* dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis
