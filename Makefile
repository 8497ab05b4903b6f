# Everything that is gpusched's runs in .venv, which is made on first use. Versions come from constraints.txt, packages
# from wherever this machine's pip is set up to find them.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# Tools that tests do not need have environments of their own on top of the first: linters and types, the site, and
# large libraries whose integrations are tested.
CHECK     := .venv-check
DOCS      := .venv-docs
LIBRARIES := .venv-libraries
# Hundreds of interpreters start in the tests: each would compile gpusched anew where this is set, as on some build machines.
export PYTHONDONTWRITEBYTECODE :=
# Most tests wait for processes, so a few run side by side, on any machine.
BESIDE := -n 4 --dist worksteal
# pip compiles the 12,000 files of the libraries one after the other (40 s); COMPILE does so on all cores.
PIP     := -m pip --disable-pip-version-check install -qq --no-compile -c constraints.txt
COMPILE := $(BIN)/python -m compileall -q -j 0 -x '/tests?/' $(VENV)/lib
NEW_ENOUGH := 'import sys; sys.version_info >= (3, 11) or sys.exit("gpusched needs Python 3.11 or newer; name one: make demo PYTHON=python3.12")'
# An environment that sees this folder and the packages of .venv after its own.
ON_TOP = $(BIN)/python -m venv $(1) && \
	$(BIN)/python -c "import site; print('$(CURDIR)', *site.getsitepackages(), sep='\n')" > \
	"$$($(1)/bin/python -c 'import site; print(site.getsitepackages()[0])')/first.pth"

.DEFAULT_GOAL := help
.PHONY: help demo test check docs bench pictures torture clean pin test-gpu test-integrations test-slow-disk test-wheel

help: ## Say what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(STAMP) ## Search a small network on handwritten digits for a minute, live
	@$(BIN)/gpusched run recipes/digits.yaml $(ARGS)

test: $(STAMP) ## Run the tests (no GPU, no network, about five minutes)
	@$(BIN)/python -m pytest -q $(BESIDE)

test-slow-disk: $(STAMP) ## Run tests on a disk that takes 50 to 200 ms over each sync and rename (ONLY=tests/e2e: these)
	@mkdir -p build
	@cc -shared -fPIC -O1 -o build/slow_disk.so tests/slow_disk.c -ldl
	@LD_PRELOAD=$(CURDIR)/build/slow_disk.so $(BIN)/python -m pytest -q $(BESIDE) $(ONLY)

check: $(CHECK)/.installed ## Lint, formatting, types, and whether every import is declared
	@$(CHECK)/bin/ruff check --quiet
	@$(CHECK)/bin/ruff format --quiet --check
	@told=$$($(CHECK)/bin/deptry gpusched tests scripts recipes 2>&1) || { echo "$$told" | grep -v ^Assuming; exit 1; }
	@$(CHECK)/bin/mypy
	@! MYPYPATH=scripts $(CHECK)/bin/mypy --explicit-package-bases --exclude scripts/peers --no-warn-unused-ignores scripts \
		| grep -E '\[(attr-defined|call-arg)\]' # scripts have no types of their own, but call what is there

docs: $(DOCS)/.installed ## Build the documentation site in build/site; a broken link fails
	@NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --quiet && echo "build/site/index.html"

test-wheel: $(CHECK)/.installed ## Build what a release uploads (dist/), install it elsewhere, run the tutorial there
	@rm -rf dist && $(CHECK)/bin/python -m build --outdir dist . >/dev/null
	@elsewhere=$$(mktemp -d) && $(BIN)/python -m venv $$elsewhere && \
		$(BIN)/python -c "import site; print(*site.getsitepackages(), sep='\n')" > \
		"$$($$elsewhere/bin/python -c 'import site; print(site.getsitepackages()[0])')/dependencies.pth" && \
		$$elsewhere/bin/python $(PIP) --no-deps --force-reinstall dist/*.whl && \
		GPUSCHED_INSTALLED=$$elsewhere/bin/python $(BIN)/python -m pytest -q tests/test_tutorial.py && rm -r $$elsewhere

test-integrations: $(LIBRARIES)/.installed ## Run searches with Lightning, transformers, Optuna, MLflow, Ray and others (minutes)
	@$(LIBRARIES)/bin/python -m pytest -q $(BESIDE) -m "integrations and not slow" \
		tests/integrations tests/samplers tests/loggers tests/executors/cluster

test-gpu: $(STAMP) ## Run the tests that need an NVIDIA GPU, where there is one
	@$(BIN)/python -m pytest -q -m gpu

bench: $(STAMP) ## Measure launches, resizes and reports, as in docs/benchmarks.md
	@$(BIN)/python scripts/bench_launch.py
	@$(BIN)/python scripts/bench_resize.py
	@$(BIN)/python scripts/bench_reports.py

pictures: $(STAMP) ## Draw the dashboard's pictures in the documentation again, from a simulated search
	@$(BIN)/python scripts/export_screen.py --at 16 --columns 160 --rows 38
	@$(BIN)/python scripts/export_screen.py --at 16 --columns 80 --rows 24 --out docs/dashboard-80.svg

torture: $(STAMP) ## Run the long tests: kills, fuzzing (ONLY=sockets: those with this in their name)
	@$(BIN)/python -m pytest -q -s -m slow --timeout 3600 $(if $(ONLY),-k "$(ONLY)")

# PIP='-m pip install -qq' installs the newest versions; torch's and torchvision's are set by hand.
pin: $(CHECK)/.installed $(DOCS)/.installed $(LIBRARIES)/.installed ## Write what is installed into constraints.txt
	@{ echo "# Exact versions of everything, written by \`make pin\`. A release is tested with these;"; \
		echo "# pyproject.toml says what it may run with."; \
		for one in $(CHECK) $(DOCS) $(LIBRARIES); do $$one/bin/python -m pip freeze; done | \
		sed -n '/^gpusched==/d; s/^\([A-Za-z0-9._-]*==[^+]*\).*/\1/p' | tr 'A-Z_' 'a-z-' | sort -u; } > $(VENV)/pins
	@mv $(VENV)/pins constraints.txt

clean: ## Remove the environments, caches and build leftovers; keeps runs/
	@rm -rf $(VENV) $(CHECK) $(DOCS) $(LIBRARIES) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find gpusched tests scripts recipes -name __pycache__ -type d -prune -exec rm -rf {} +

# torch first and pinned exactly: left to a range, pip may prefer a newer build that brings gigabytes of GPU libraries
# onto a machine without a GPU. torchvision without its dependencies, for the same reason (only some recipes need it).
$(STAMP): pyproject.toml constraints.txt
	@echo "[1/4] virtual environment in $(VENV)"
	@test -x $(BIN)/pip || { $(PYTHON) -c $(NEW_ENOUGH) && $(PYTHON) -m venv $(VENV); } # pip lacks where python3-venv did
	@echo "[2/4] torch (the largest part; minutes on the first run)"
	@$(BIN)/python $(PIP) "$$(grep '^torch==' constraints.txt)"
	@echo "[3/4] gpusched and what its tests need"
	@$(BIN)/python $(PIP) -e ".[test]"
	@echo "[4/4] torchvision, for the image recipes"
	@$(BIN)/python $(PIP) --no-deps "$$(grep '^torchvision==' constraints.txt)"
	@$(COMPILE) >/dev/null || true # a file that is not Python of this version
	@touch $@

$(CHECK)/.installed: $(STAMP)
	@echo "[check] linters and types in $(CHECK)"
	@$(call ON_TOP,$(CHECK))
	@$(CHECK)/bin/python $(PIP) ruff mypy types-psutil deptry build
	@touch $@

$(DOCS)/.installed: $(STAMP)
	@echo "[docs] the site generator in $(DOCS)"
	@$(call ON_TOP,$(DOCS))
	@$(DOCS)/bin/python $(PIP) mkdocs-material "mkdocstrings[python]"
	@touch $@

$(LIBRARIES)/.installed: $(STAMP)
	@echo "[libraries] Lightning, transformers, Optuna, MLflow, TensorBoard, W&B, gymnasium and Ray in $(LIBRARIES)"
	@$(call ON_TOP,$(LIBRARIES))
	@$(LIBRARIES)/bin/python $(PIP) lightning "jsonargparse[signatures]" "transformers[torch]" optuna mlflow-skinny sqlalchemy alembic \
		tensorboard wandb "gymnasium[box2d]" ray cryptography
	@touch $@
