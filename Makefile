# Every target sets up what it needs: a fresh Debian machine with Python 3.10+ is enough.
.PHONY: demo test quick check bench clean
SHELL := /bin/bash
PYTHON ?= python3

.venv/ready: pyproject.toml scripts/setup
	PYTHON=$(PYTHON) scripts/setup

# PyTorch, then what builds on it, then TensorFlow: environments apart from Stoker's own.
.venv-torch/torch-ready: scripts/setup-frameworks | .venv/ready
	PYTHON=$(PYTHON) scripts/setup-frameworks torch

.venv-torch/more-ready: .venv-torch/torch-ready
	PYTHON=$(PYTHON) scripts/setup-frameworks more

.venv-tf/tf-ready: scripts/setup-frameworks | .venv/ready
	PYTHON=$(PYTHON) scripts/setup-frameworks tf

# A tour on this machine: a real training under watch, plans and checks.
demo: .venv/ready .venv-torch/torch-ready
	scripts/setup-data
	.venv/bin/stoker demo --python .venv-torch/bin/python

# Everything: style, types, all tests, with every framework.
test: check .venv-torch/more-ready .venv-tf/tf-ready
	scripts/setup-data
	STOKER_TEST_ALL=1 .venv/bin/python -m pytest

# The fast part, for your own loop.
quick: .venv/ready .venv-torch/torch-ready
	.venv/bin/python -m pytest -m "not slow"

check: .venv/ready
	scripts/check

# Start-up times, written to benchmarks/.
bench: .venv/ready
	.venv/bin/python benchmarks/startup.py

clean:
	rm -rf .venv .venv-torch .venv-tf .mypy_cache .ruff_cache .pytest_cache
