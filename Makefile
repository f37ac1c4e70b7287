# Everything runs in a virtual environment of its own, .venv, made with plain venv and pip.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
# Each process runs whole files; tests of one group run in one process: the small model is loaded
# once. tests/conftest.py says how many processes there are.
PARALLEL := --numprocesses auto --dist loadgroup
# Each process of the tests would compile all modules, and their assertions, once more.
unexport PYTHONDONTWRITEBYTECODE
# The type checkers look for packages beside the python that is found first.
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: help chat test test-all test-pythons test-lowest test-ray test-clients test-vllm check format contracts prose messages api everyday clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

chat: $(VENV)/chat.stamp  ## talk to a model in the terminal, e.g. make chat ARGS="--model openai:gpt-5-mini"
	@$(BIN)/anabranch chat $(ARGS)

test: $(VENV)/dev.stamp  ## run the tests, in two processes for each core, at most eight
	$(BIN)/python -m pytest $(PARALLEL) -m 'not checkers' $(ARGS)

test-all: $(VENV)/dev.stamp  ## run the long tests too, and more examples, from a new seed
	ANABRANCH_LONG=1 ANABRANCH_SEED=$${ANABRANCH_SEED:-$$(date +%j%H%M)} \
	    $(BIN)/python -m pytest $(PARALLEL) $(ARGS)

test-pythons: $(VENV)/dev.stamp  ## run the core tests on every CPython from 3.11 up on this machine
	$(BIN)/python tests/pythons.py $(ARGS)

test-lowest: $(VENV)/dev.stamp  ## run the core tests with the lowest anyio and pydantic allowed
	$(BIN)/python tests/pythons.py --lowest $(ARGS)

test-ray: $(VENV)/ray.stamp  ## run the tests on a Ray cluster of three nodes, on this machine
	ANABRANCH_RAY=1 $(BIN)/python -m pytest tests/cluster $(ARGS)

test-clients: $(VENV)/dev.stamp  ## run the clients of others, for Python and Node, against what is served
	tests/clients/run.sh $(ARGS)

test-vllm:  ## run the suite of the real vLLM engine, in an environment of its own (4 GB)
	tests/vllm_engine/run.sh $(ARGS)

check: $(VENV)/dev.stamp  ## check format, lint, types and the import contract
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q -m checkers tests/project

format: $(VENV)/dev.stamp  ## format the code
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

contracts: $(VENV)/dev.stamp  ## print the tests of each promise in docs/contracts.md
	PYTHONPATH=tests $(BIN)/python -m support.contracts

prose: $(VENV)/dev.stamp  ## count phrases that are hard to read; ARGS=FOLDER lists them
	PYTHONPATH=tests $(BIN)/python -m support.prose $(ARGS)

messages: $(VENV)/dev.stamp  ## print the texts that users see, and store them for the test
	PYTHONPATH=tests $(BIN)/python -m support.message_texts

api: $(VENV)/dev.stamp  ## print what is new in the public API, and store it for the test
	PYTHONPATH=tests $(BIN)/python -m support.public_api

everyday: $(VENV)/dev.stamp  ## write docs/everyday.md, with the environments of test-clients
	PYTHONPATH=tests $(BIN)/python -m support.everyday

clean:  ## remove the virtual environments and all that was built
	rm -rf $(VENV) .venv-* build dist *.egg-info .*_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "Python 3.11 or later is needed: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --upgrade 'pip>=25.1'

$(VENV)/chat.stamp: pyproject.toml | $(BIN)/python
	@echo "installing anabranch and what the chat needs into $(VENV) ..."
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -e '.[all]'
	@touch $@

$(VENV)/ray.stamp: $(VENV)/dev.stamp
	@echo "installing Ray into $(VENV) ..."
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -e '.[all,ray]'
	@touch $@

$(VENV)/dev.stamp: pyproject.toml | $(BIN)/python
	@echo "installing anabranch and what its tests need into $(VENV) ..."
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -e '.[all]' --group dev
	@touch $@
