# Needs Python 3.11, 3.12 or 3.13, Java 17 or later, and make. Everything else is fetched by `make setup`.
# make demo     see it work
# make test     prove that it works

UV_VERSION := 0.13.7
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3 python; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' >/dev/null 2>&1 && echo $$p && break; \
	done)
JAVA := $(if $(JAVA_HOME),$(JAVA_HOME)/bin/java,java)
JAVA_MAJOR_MIN := 17
RECORDS ?= 1000000
TRIES ?= 20
SEEDS ?= 2000
CHAOS_SECONDS ?= 600
# Five files at a time: most tests wait for Kafka or Spark. They share a broker, and each has Sparks of its own.
# tests/conftest.py orders them; pytest-xdist would begin with the files that have the most tests.
TESTS_AT_ONCE ?= -n 5 --dist loadfile --no-loadscope-reorder

# Tests need their files for seconds: they are in memory, if it has a few GB free.
MEMORY_FOLDER := $(shell [ "$$(df --output=avail /dev/shm 2>/dev/null | tail -n 1)" -gt 4000000 ] 2>/dev/null && echo /dev/shm)
IN_MEMORY := $(if $(MEMORY_FOLDER),TMPDIR=$(MEMORY_FOLDER))

SUDO := $(if $(filter 0,$(shell id -u)),,sudo )env DEBIAN_FRONTEND=noninteractive
# Besides the default, `make test` tries this release of Spark; `make spark` takes another.
VERSION ?= 3.5.6

VENV := .venv
BIN := $(VENV)/bin
ARCHIVES := $(VENV)/spark.jsa $(VENV)/broker.jsa
LOCKED := $(shell cat requirements.lock pyproject.toml | cksum | tr ' ' '-')
PACKAGES := $(VENV)/.packages-$(LOCKED)
DEV_PACKAGES := $(VENV)/.dev-$(shell cat requirements-dev.lock pyproject.toml | cksum | tr ' ' '-')
STAMP := $(VENV)/.set-up-$(LOCKED)

# Packages are hundreds of MB: on a terminal uv shows how far it is.
UV_INSTALL = $(BIN)/uv pip install $(shell [ -t 2 ] || echo --quiet) --python $(BIN)/python

COMPILE = $(BIN)/uv pip compile $(UPGRADE) --universal --python-version 3.11 --generate-hashes --no-header --quiet \
	pyproject.toml --extra console --extra hdfs

# $(call retry,COMMAND): package registries fail now and then; finished downloads are kept.
define retry
	@for pause in 2 5 10 20 0; do \
		$(1) && exit 0; \
		[ $$pause = 0 ] || { echo "setup: failed, trying again in $$pause s" >&2; sleep $$pause; }; \
	done; exit 1
endef

.DEFAULT_GOAL := help
.PHONY: help setup test browser check lint types compiled tests demo wheel docs screenshots dashboards bench hdfs spark cluster soak simulate chaos fmt lock clean require-python require-java

# Tests start many processes: what they import is compiled once, also where the environment forbids it.
unexport PYTHONDONTWRITEBYTECODE

help: ## show this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST)

setup: $(STAMP) ## what running needs, into .venv and .penstock; does nothing the second time

test: $(DEV_PACKAGES) ## all checks and all tests
	@# What needs no jars runs while they are fetched.
	@$(MAKE) --no-print-directory --jobs 4 setup $(ARCHIVES) browser lint compiled types .cache/spark-$(VERSION)/ready
	@$(MAKE) --no-print-directory --jobs 2 tests spark

check: lint types ## format, lint, import contracts, types; rewrites nothing

lint: $(DEV_PACKAGES)
	$(BIN)/ruff format --check src tests benchmarks docs
	$(BIN)/ruff check src tests benchmarks docs
	$(BIN)/lint-imports

types: $(DEV_PACKAGES)
	$(BIN)/mypy

# Pytest compiles tests in its own way: once here, and not in each of the processes that run them.
compiled: $(DEV_PACKAGES)
	@$(BIN)/pytest --collect-only -qq >/dev/null || true

# The tests of the console use a real one, that of Debian and its children.
browser:
	$(call retry,{ command -v chromium && command -v chromedriver; } >/dev/null || { \
		echo "setup: Chromium for the tests of the console; 100 MB by apt-get" && $(SUDO) apt-get -qq update && \
		$(SUDO) apt-get -qq -y install --no-install-recommends chromium chromium-driver fonts-dejavu-core >/dev/null; })

tests: setup $(DEV_PACKAGES)
	@rm -f .pytest_cache/v/cache/lastfailed
	$(IN_MEMORY) $(BIN)/pytest $(TESTS_AT_ONCE); $(BIN)/python -m tests.run_again $$?

demo: setup ## a broker, a topic, a killed process, and the proof that every record is there once
	$(BIN)/penstock demo

bench: setup $(DEV_PACKAGES) ## side by side with Spark Structured Streaming (RECORDS=1000000)
	$(BIN)/python -m benchmarks ingest --records $(RECORDS) --json
	$(BIN)/python -m benchmarks startup --commits 10000 --json
	$(BIN)/python -m benchmarks fanout --records $(RECORDS) --json
	$(BIN)/python -m benchmarks rollup --records $(RECORDS) --json

wheel: $(DEV_PACKAGES) ## build the wheel, install it into a new environment, and run the demo from there (once 400 MB)
	rm -rf dist && $(BIN)/uv build --quiet --wheel --no-build-isolation --out-dir dist
	$(BIN)/uv venv --quiet --python $(BIN)/python dist/environment
	$(BIN)/uv pip install --quiet --python dist/environment/bin/python dist/*.whl
	cd dist && env -u PYTHONPATH PENSTOCK_HOME=$$PWD/home environment/bin/penstock demo --folder demo

hdfs: setup $(DEV_PACKAGES) ## the contracts of storage and of export commits, on a real HDFS (92 MB of jars, once)
	$(BIN)/python -m penstock.spark.jars hdfs
	$(BIN)/pytest -m hdfs tests/contract tests/integration

spark: setup .cache/spark-$(VERSION)/ready ## one job of each kind, killed and started again, on another Spark (VERSION=3.5.6)
	$(IN_MEMORY) .cache/spark-$(VERSION)/bin/python -m pytest tests/smoke -q --durations 0 -p no:cacheprovider

cluster: setup $(DEV_PACKAGES) ## a standalone cluster: executors with a packed Python, twenty rounds of kills (TRIES=20)
	PENSTOCK_TRIES=$(TRIES) $(BIN)/pytest tests/soak/test_cluster_soak.py -q --timeout 3000

soak: setup $(DEV_PACKAGES) ## 2 million events, a random walk of kills and losses (PENSTOCK_SEED=11), random tests 20 times as often (TRIES=20)
	$(BIN)/pytest tests/soak -q --timeout 3000 --ignore tests/soak/test_claims_chaos.py --ignore tests/soak/test_cluster_soak.py
	PENSTOCK_TRIES=$(TRIES) $(BIN)/pytest $(TESTS_AT_ONCE) -q --timeout 3000 tests/fault/test_wal_kill.py tests/scenarios tests/unit

simulate: setup $(DEV_PACKAGES) ## claims under 2,000 hostile schedules in virtual time (SEEDS=2000)
	PENSTOCK_SEEDS=$(SEEDS) $(BIN)/pytest -n auto tests/unit/claims/simulation -q --timeout 3000

chaos: setup $(DEV_PACKAGES) ## claims on a real broker: kills, pauses, joins and broker restarts (CHAOS_SECONDS=600)
	PENSTOCK_CHAOS_SECONDS=$(CHAOS_SECONDS) $(BIN)/pytest tests/soak/test_claims_chaos.py -q -s --timeout 3000

docs: $(DEV_PACKAGES) ## write the pages that are generated: docs/job-file.md and docs/metrics.md
	$(BIN)/python -m docs.job_file.generate
	$(BIN)/python -c "from penstock.watch.metrics import page; print(page(), end='')" > docs/metrics.md

screenshots: $(DEV_PACKAGES) browser ## make the pictures of README.md and docs/console.md
	$(BIN)/python -m docs.screenshots

# Without root: Debian's package is unpacked and not installed.
PROMTOOL = $(or $(shell command -v promtool),.penstock/prometheus/usr/bin/promtool)
dashboards: $(PROMTOOL) ## check and test deploy/prometheus with Prometheus' own promtool (20 MB, once)
	$(PROMTOOL) check rules deploy/prometheus/rules.yaml
	$(PROMTOOL) test rules deploy/prometheus/rules-test.yaml

.penstock/prometheus/usr/bin/promtool:
	@mkdir -p .penstock/prometheus
	cd .penstock/prometheus && apt-get download prometheus && dpkg -x prometheus_*.deb .

fmt: $(DEV_PACKAGES) ## rewrite the format and what lint can fix
	$(BIN)/ruff format src tests benchmarks docs
	$(BIN)/ruff check --fix src tests benchmarks docs

lock: $(PACKAGES) ## regenerate the locks from pyproject.toml (UPGRADE=--upgrade for newer versions)
	$(COMPILE) --extra lineage --group build --group dev -o requirements-dev.lock
	$(COMPILE) --group build --constraint requirements-dev.lock -o requirements.lock

clean: ## remove the virtual environment and caches; .penstock with jars and the data of the broker stays
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis \
		artifacts spark-warehouse metastore_db derby.log dist build .cache/spark-*

$(VENV)/spark.jsa: $(DEV_PACKAGES)
$(VENV)/broker.jsa: $(STAMP) $(DEV_PACKAGES)
$(ARCHIVES):
	$(BIN)/python -m tests.support.class_archive $@

$(PACKAGES): | require-python require-java
	@echo "setup: Python packages into $(VENV); PySpark alone has 400 MB"
	@[ -x $(BIN)/python ] && $(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	$(call retry,$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION))
	$(call retry,$(UV_INSTALL) --require-hashes -r requirements.lock)
	$(call retry,$(UV_INSTALL) --no-build-isolation --no-deps --editable .)
	@rm -f $(VENV)/.packages-* && touch $@

$(DEV_PACKAGES): $(PACKAGES)
	@echo "setup: packages of tests and checks into $(VENV)"
	$(call retry,$(UV_INSTALL) --require-hashes -r requirements-dev.lock)
	@rm -f $(VENV)/.dev-* && touch $@

# A virtual environment with this Spark only: everything else comes from the other one.
.cache/spark-%/ready: $(DEV_PACKAGES)
	@echo "setup: PySpark $* into .cache, 400 MB"
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python .cache/spark-$*
	$(call retry,$(BIN)/uv pip install --quiet --python .cache/spark-$*/bin/python pyspark==$*)
	@packages() { $$1/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))"; }; \
		echo "import site; site.addsitedir('$$(packages $(BIN)/..)')" > "$$(packages .cache/spark-$*)/penstock.pth"
	@touch $@

$(STAMP): $(PACKAGES)
	@echo "setup: jars of Delta and Kafka into $${PENSTOCK_HOME:-.penstock}, 100 MB"
	@$(BIN)/python -m penstock.spark.jars
	@rm -f $(VENV)/.set-up-* && touch $@
	@echo "setup: done, try $(BIN)/penstock --help"

require-python:
	@[ -n "$(PYTHON)" ] || { \
		echo "setup: Python 3.11 (or 3.12, 3.13) was not found: install it with its venv module, or name it: make PYTHON=/path/to/python3.11" >&2; \
		exit 1; }

require-java:
	@major=$$($(JAVA) -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1); \
	[ "$${major:-0}" -ge $(JAVA_MAJOR_MIN) ] || { \
		echo "setup: Java $(JAVA_MAJOR_MIN) or later is needed, $(JAVA) is $${major:-not there}:" \
			"install a Java $(JAVA_MAJOR_MIN) runtime and put it on PATH, or set JAVA_HOME to it" >&2; \
		exit 1; }
