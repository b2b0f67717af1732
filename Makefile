# The interface for people and CI. Needs make and Python 3.11 or newer; demo and test need neither Docker,
# nor a Redis server, nor root. `make PYTHON=python3.13 test` picks another interpreter.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

# redis-7.0=/usr/bin/redis-server,redis-8.2=/opt/redis -> redis-7.0 or redis-8.2
comma := ,
SERVERS := $(subst $(comma), ,$(IWL_TEST_SERVERS))
NAMED := $(subst @, or ,$(subst $() ,@,$(foreach server,$(SERVERS),$(firstword $(subst =, ,$(server))))))

# Tests see none of the user's own settings; IWL_TEST_* (servers to test against) pass.
CLEAN_ENV := env $(addprefix -u ,$(filter-out IWL_TEST_%,$(filter IWL_%,$(.VARIABLES))))
# Type checking runs what pip installed: no version check, no download.
PYRIGHT := env -u PYRIGHT_PYTHON_FORCE_VERSION -u PYRIGHT_PYTHON_PYLANCE_VERSION \
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo faults up test lint types format unit matrix model simulate prove endure compose-test vllm-test bench bench-vllm clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# ---------------------------------------------------------------- the lab

demo: $(VENV)/.lab ## Run the whole system here: 80 jobs, one worker killed, a report
	@$(BIN)/iwl demo $(ARGS)

faults: $(VENV)/.lab ## Break everything that can break, and account for every job (ARGS="kill-worker")
	@$(BIN)/iwl faults $(ARGS)

up: $(VENV)/.lab ## Run the whole system until Ctrl-C (ARGS="--workers 4 --port 8080")
	@$(BIN)/iwl up $(ARGS)

# ---------------------------------------------------------------- checks

test: lint types unit ## Lint, types, then every test with branch coverage

lint: $(VENV)/.dev ## Check style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev ## Check types, strictly
	$(PYRIGHT)

unit: $(VENV)/.dev ## Run the tests alone (ARGS="-k lease -x")
	$(CLEAN_ENV) $(BIN)/python -m pytest --cov --cov-report=term $(ARGS)

format: $(VENV)/.dev ## Rewrite the code in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

matrix: $(VENV)/.dev ## Run what depends on the server against IWL_TEST_SERVERS=NAME=PATH,...
	@test -n "$(NAMED)" || { echo "name servers: make matrix IWL_TEST_SERVERS=redis-7.0=/usr/bin/redis-server" >&2; exit 2; }
	IWL_TEST_SERVERS="$(IWL_TEST_SERVERS)" $(CLEAN_ENV) $(BIN)/python -m pytest -k "$(NAMED)" $(ARGS)

model: $(VENV)/.dev ## Compare the store with a model of the lifecycle, as long as you like (EXAMPLES=5000)
	MODEL_EXAMPLES=$(or $(EXAMPLES),1000) $(CLEAN_ENV) $(BIN)/python -m pytest tests/model/test_model.py $(ARGS)

simulate: $(VENV)/.dev ## Run the whole system in virtual time, through seeded faults (ARGS="--seeds 500")
	$(CLEAN_ENV) $(BIN)/python -m tests.simulation $(ARGS)

prove: $(VENV)/.dev ## Kill a process at every command of every scenario (ARGS="worker after finish"), in minutes
	IWL_TEST_SERVERS="$(IWL_TEST_SERVERS)" $(CLEAN_ENV) $(BIN)/python -m tests.chaos.prove $(ARGS)

endure: $(VENV)/.dev ## Kill workers under 100,000 jobs, 200 times, in minutes (ARGS="--jobs 10000 --kills 20")
	$(CLEAN_ENV) $(BIN)/python -m tests.endurance $(ARGS)

compose-test: $(VENV)/.dev ## Run the Docker Compose stack through crashes, restarts and scaling, in minutes
	@$(BIN)/python -m tests.compose

vllm-test: $(VENV)/.dev ## Run the whole lab against the vLLM in IWL_TEST_VLLM_URL, through its deaths and hangs
	@$(CLEAN_ENV) $(BIN)/python -m pytest -m vllm tests/vllm $(ARGS)

bench: $(VENV)/.dev ## Measure drain, submit, latency and the 80-job burst of this stack
	$(CLEAN_ENV) $(BIN)/python -m bench $(ARGS)

bench-vllm: $(VENV)/.dev ## Compare straight to vLLM with through the queue (ARGS="--url http://...:8000/v1")
	@$(CLEAN_ENV) $(BIN)/python -m bench.vllm $(and $(IWL_TEST_VLLM_URL),--url $(IWL_TEST_VLLM_URL)) $(ARGS)

clean: ## Remove the virtual environment and every cache
	rm -rf $(VENV) build dist htmlcov *.egg-info .coverage .coverage.* .hypothesis .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# ---------------------------------------------------------------- environment

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed: make PYTHON=python3.13 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# A stamp is newer than what it was installed from. The demo needs the smaller set only.
$(VENV)/.lab: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable '.[lab]'
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable '.[lab,dev]'
	@touch $@ $(VENV)/.lab
