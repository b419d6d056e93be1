# `make help` lists the commands.
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/pip install --disable-pip-version-check -c requirements/constraints.txt
STATE := .gpumon
TORCH := 2.13.0
WORKERS ?= 3
# Tests mostly wait for child processes, so there are more workers than cores.
PARALLEL = -n $(WORKERS) --dist worksteal
COMPILE := uv pip compile --quiet --universal --python-version 3.10 --no-annotate --no-header
PEERS := nvitop nvitop-exporter gpustat
DEPLOY := ansible-core helm-python-sdk kubernetes-validate cloudcoil.models.prometheus-operator \
	cloudcoil.models.keda

.DEFAULT_GOAL := help
.PHONY: help run test test-slow check generate captures bench pictures soak truth pages hardware lock build packages release clean

help: ## List the commands
	@sed -nE 's/^([a-z-]+):.*## (.*)/\1\t\2/p' Makefile | expand -t 11

run: .venv/.run ## Start the agent on 127.0.0.1:17400, on a simulated h100x8 where no NVIDIA driver loads (ARGS: more flags)
	@mkdir -p -m 0700 $(STATE)
	@exec $(BIN)/gpumon serve --simulate.fallback h100x8 \
	    --store.path $(STATE)/gpumon.db --web.token-file $(STATE)/token $(ARGS)

test: .venv/.test ## Run the quick tests, or the tests in ARGS (quick or slow)
	@scripts/debian.sh prometheus prometheus-alertmanager gcc docker-compose systemd-sysusers:systemd
	@$(BIN)/python -m compileall -q gpumon simulator/gpumon_sim # otherwise every child compiles it where Python writes no bytecode
	$(BIN)/pytest $(or $(ARGS),-m "not slow" $(PARALLEL))

test-slow: .venv/.test .venv/.peers .venv/.deploy .venv/.packages ## Run the slow tests: whole agents, browser, Prometheus, other clients, real deadlines
	@scripts/debian.sh prometheus prometheus-alertmanager chromium gcc docker-compose systemd-sysusers:systemd shellcheck mmdebstrap rpm man:man-db
	@$(BIN)/python -m compileall -q gpumon simulator/gpumon_sim
	$(BIN)/pytest $(or $(ARGS),-m slow $(PARALLEL))

check: .venv/.test .venv/.deploy ## Check format, lint, types, import layers, generated files and the Helm chart
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/mypy --python-version 3.10 gpumon simulator/gpumon_sim
	$(BIN)/lint-imports
	$(BIN)/python -W ignore::DeprecationWarning -m scripts.generate --check
	$(BIN)/pytest --quiet tests/deploy/test_chart.py

generate: .venv/.test ## Regenerate files from code: reference pages, alert rules, dashboards
	$(BIN)/python -W ignore::DeprecationWarning -m scripts.generate

captures: .venv/.test ## Record tests/captures/ from the simulation; takes two minutes
	$(BIN)/python -m scripts.record_captures

bench: .venv/.test ## Measure scrapes, polls, memory and start on simulated nodes, and the probe against a plain script
	$(BIN)/python -m benchmarks.agent $(ARGS)
	$(BIN)/python -m benchmarks.probe $(ARGS)

pictures: .venv/.test ## Draw the dashboards with a simulated fleet (docs/dashboards/), in 15 minutes (ARGS: --healthy --out FOLDER)
	@scripts/debian.sh prometheus prometheus-alertmanager chromium
	$(BIN)/python -W ignore::DeprecationWarning -m benchmarks.pictures $(ARGS)

soak: .venv/.test ## Run the agent with random faults, kills and pauses for 10 minutes (SOAK_MINUTES; ARGS: --seed N)
	$(BIN)/python -m benchmarks.soak $(ARGS)

truth: .venv/.test ## Measure how fast and reliably faults are detected (docs/truth.md); up to an hour (ARGS: --quick, --only NAME, --resume)
	$(BIN)/python -m benchmarks.truth $(ARGS)

pages: .venv/.test ## Count the notifications that leave Prometheus and Alertmanager for each fault (docs/pages.md); 20 minutes
	@scripts/debian.sh prometheus prometheus-alertmanager
	$(BIN)/python -m benchmarks.pages $(ARGS)

hardware: .venv/.test ## Measure the agent on the GPUs of this host, in 80 minutes, and write docs/hardware.md (ARGS: --simulate h100x8)
	$(BIN)/python -m benchmarks.hardware $(ARGS)

lock: .venv/.test .venv/.packages ## Pin the newest compatible versions
	$(BIN)/pip install --dry-run --ignore-installed --quiet --report .venv/lock.json -e '.[probe,dev,packages]' torch==$(TORCH)
	$(BIN)/$(COMPILE) --extra probe --no-emit-package torch --output-file .venv/universal.txt pyproject.toml
	$(BIN)/python -m scripts.lock .venv/lock.json .venv/universal.txt > requirements/constraints.txt
	$(BIN)/$(COMPILE) --extra nvsentinel --extra notifications --generate-hashes -c requirements/constraints.txt --output-file requirements/packages.txt pyproject.toml
	$(BIN)/pip install --dry-run --ignore-installed --quiet --report .venv/peers.json $(PEERS)
	$(BIN)/python -m scripts.lock .venv/peers.json > requirements/peers.txt
	$(BIN)/pip install --dry-run --ignore-installed --quiet --report .venv/deploy.json $(DEPLOY)
	$(BIN)/python -m scripts.lock .venv/deploy.json > requirements/deploy.txt

build: .venv/.test ## Build the wheels and source archives of the agent and of the simulator in dist/
	@trap 'rm -f gpumon/REVISION' EXIT; git rev-parse --short=12 HEAD > gpumon/REVISION && \
	    export SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) && $(BIN)/python -m build --no-isolation && \
	    $(BIN)/python -m build --no-isolation --outdir dist simulator

packages: build .venv/.packages ## Build a deb and an rpm for amd64 and arm64 in dist/ (ARGS: --arch amd64 --format deb --release 2)
	$(BIN)/python -m scripts.packages $(ARGS)

release: .venv/.packages .venv/.deploy ## Check, test and build all files of a release from its tag (ARGS: --tested)
	$(BIN)/python -m scripts.release $(ARGS)

clean: ## Delete what these commands created, but not the agent's state in .gpumon/
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

.venv/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	    { echo "gpumon needs Python 3.10 or later: set one, for example make PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	@touch $@

.venv/.run: .venv/.made pyproject.toml simulator/pyproject.toml requirements/constraints.txt
	$(INSTALL) setuptools
	$(INSTALL) --no-build-isolation -e '.[probe]' -e simulator
	@touch $@

# Other NVML clients, in their own environment so that their requirements do not limit the versions of gpumon.
.venv/.peers: .venv/.made requirements/peers.txt
	$(PYTHON) -m venv .venv/peers
	.venv/peers/bin/pip install --disable-pip-version-check --quiet -r requirements/peers.txt
	@touch $@

# Helm's library, schemas of Kubernetes and Ansible, for tests of deploy/.
.venv/.deploy: .venv/.made requirements/deploy.txt
	@if $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then set -x; $(PYTHON) -m venv .venv/deploy && \
	    .venv/deploy/bin/pip install --disable-pip-version-check --quiet -r requirements/deploy.txt; else \
	    echo "ansible-core needs Python 3.11 or later: the tests of the role and the chart are skipped" >&2; fi
	@touch $@

.venv/.packages: .venv/.test
	$(INSTALL) --no-build-isolation -e '.[packages]'
	@touch $@

.venv/.test: .venv/.run
	$(INSTALL) --no-build-isolation -e '.[probe,dev]'
	@touch $@
