# make demo    a shop with live background work on http://127.0.0.1:8000, all of it in this folder
# make test    the whole test suite on a PostgreSQL of its own, four at a time (WORKERS=0 for one); PYTEST_ARGS="-k lease -x"
#              passes options through
# make soak    random work and random faults for a minute, and an audit; SOAK=3600 for an hour, SEED=… for a schedule again
# make lint    style, types and layers
# make bench   speed, cost and growth beside what plain SQL reaches, 20 minutes; BENCH_ARGS="--quick" is a glance
# make mutants takes out each guard of the store and the leases in turn, and sees that a test fails; MUTANTS=fence picks some
#
# Needs make and a python3 (3.11 or newer) with its venv module, nothing else. `make clean` removes what they made.

PYTHON ?= python3
VENV ?= .venv
PYTEST_ARGS ?=
WORKERS ?= 4
BENCH_ARGS ?=
MUTANTS ?=
SOAK ?= 60
SEED ?=
export SOAK SEED

.PHONY: demo test soak mutants lint bench clean

demo: $(VENV)/demo.installed
	@exec $(VENV)/bin/python -m testproject.demo

# Not reordered: the files of faults, the slow ones, are among the first, so that none of them is left over at the end.
test: $(VENV)/test.installed
	$(VENV)/bin/python -m pytest --numprocesses=$(WORKERS) --dist=loadfile --no-loadscope-reorder $(PYTEST_ARGS)

soak: $(VENV)/test.installed
	@exec $(VENV)/bin/python -m tests.soak

lint: $(VENV)/dev.installed
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

bench: $(VENV)/demo.installed
	$(VENV)/bin/python manage.py dispatch_bench $(BENCH_ARGS)

mutants: $(VENV)/test.installed
	$(VENV)/bin/python -m tests.mutation $(MUTANTS)

clean:
	-test ! -x $(VENV)/bin/python || $(VENV)/bin/python -m testproject.postgres stop
	rm -rf $(VENV) .venvs .demo .pgdata sent_mail

# By a path, not by a module that looks for ours: each Python starts 20 ms sooner.
BY_PATH = --config-settings=editable_mode=compat

# One stamp a dependency group of pyproject.toml: installed once, and again when that file changes.
$(VENV)/%.installed: pyproject.toml $(VENV)/created
	@echo "Installing what $* needs into $(VENV)"
	@$(VENV)/bin/python -m pip install -qq --disable-pip-version-check --editable . $(BY_PATH) --group $*
	@touch $@

$(VENV)/created:
	@$(PYTHON) -m venv $(VENV)
	@$(VENV)/bin/python -m pip install -qq --disable-pip-version-check --upgrade "pip>=25.1"
	@touch $@
