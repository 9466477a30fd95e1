# Every target prepares .venv itself; with nothing changed that costs a tenth of a second.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup lock newest programs test nightly minors results check lint types imports fast fuzz demo docs format clean

bin := .venv/bin
# Whatever the environment says: half of what it takes to collect the tests is to compile them.
export PYTHONDONTWRITEBYTECODE :=
# Checked where they exist.
python_trees := gateway lab engine_ext/turnpike_vllm $(foreach tree,demo tests benchmarks scripted_engine tools,$(if $(wildcard $(tree)/*.py $(tree)/*/*.py),$(tree)))
pytest_args ?=
# Tests that wait leave a core to another one's.
workers = $(shell echo $$(( ($$(nproc) * 3 + 1) / 2 )))
are_fast := not engine and not agents and not slow and not heavy and not nightly
demo_args ?=
results_args ?=

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup:  ## prepare .venv: the gateway, its tools, a real vLLM for the CPU, as requirements.lock has them
	@tools/setup.sh

lock: setup  ## renew requirements.lock
	@tools/lock.sh

newest: setup  ## the fast tests on the newest versions of all, and on the lowest that pyproject.toml allows (minutes)
	@tools/newest.sh -m "$(are_fast)" $(pytest_args)

programs: setup  ## fetch what tests use and pip does not have, where it is missing: Chromium, promtool, Redis, Envoy, Helm, kubectl
	@tools/programs.sh

test: setup programs  ## all tests but the nightly ones, against a real vLLM and real agents too (minutes)
	$(bin)/python -m tools.run_tests $(pytest_args)

nightly: setup programs minors  ## every agent and framework, with a backend that refuses or dies (many minutes); minors
	$(bin)/python -m pytest -m nightly $(pytest_args)

minors: setup  ## the engine plugin on vLLM's last eight minors: schedulers, and engines where a CPU can (an hour, 8 GB of disk)
	$(bin)/python -m tools.minors --engines

# The tests first: they take longest. What is told stays together, and one that fails does not hide the others.
check: setup  ## format, lint, types, import contracts, fast tests (under a minute, on two cores)
	@$(MAKE) --no-print-directory --keep-going --output-sync=target --jobs=2 fast types lint imports

lint: setup  ## format, lint, words that the project does without, long sentences
	$(bin)/ruff format --check .
	$(bin)/ruff check .
	$(bin)/python -m tools.words
	$(bin)/python -m tools.prose

types: setup  ## types alone
	$(bin)/mypy $(python_trees)

imports: setup  ## who may import whom, alone
	$(bin)/lint-imports --no-logo

fast: setup  ## the fast tests alone
	$(bin)/python -m pytest -q -n $(workers) --dist worksteal --hypothesis-profile=fast -m "$(are_fast)" $(pytest_args)

fuzz: setup  ## a million inputs for whatever reads what others send, on all cores (minutes)
	$(bin)/python -m tests.fuzz.runner

results: setup  ## missing runs of docs/design/results.md, and the page (hours, resumable); results_args="--quick": three drawn cells again
	$(bin)/python -m benchmarks.results $(results_args)

demo: setup  ## real agents and vLLM servers, with a load balancer and with the gateway: what changes
	$(bin)/python -m demo $(demo_args)

docs: setup  ## the documentation as a site, in build/docs; a link that leads nowhere is an error
	@$(bin)/python -c 'import material' 2>/dev/null || $(bin)/python -m uv pip install --quiet --python $(bin)/python --constraints requirements.lock --group docs
	$(bin)/python -m mkdocs --quiet build --strict --config-file tools/mkdocs.yml

format: setup  ## rewrite the sources as the formatter and the linter want them
	$(bin)/ruff check --fix-only --quiet .
	$(bin)/ruff format .

clean:  ## remove everything that can be made again
	rm -rf .venv .agents .cache .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis run build dist
	rm -rf -- *.egg-info engine_ext/*.egg-info engine_ext/build .coverage .coverage.*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
