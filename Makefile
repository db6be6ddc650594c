# Every target sets up what it needs: a fresh Debian machine with Python 3.10+ is enough.
.PHONY: demo test quick check bench cluster clean
SHELL := /bin/bash
PYTHON ?= python3

# Made anew with the part that is written in C.
.venv/ready: pyproject.toml scripts/setup hatch_build.py $(wildcard src/stoker/watch/inside/_*.c src/stoker/data/_*.c src/stoker/data/*/_*.c src/stoker/data/*/*.h)
	PYTHON=$(PYTHON) scripts/setup

# PyTorch, then what builds on it, then TensorFlow: environments apart from Stoker's own.
.venv-torch/torch-ready: scripts/setup-frameworks | .venv/ready
	PYTHON=$(PYTHON) scripts/setup-frameworks torch

.venv-torch/more-ready: .venv-torch/torch-ready
	PYTHON=$(PYTHON) scripts/setup-frameworks more

.venv-tf/tf-ready: scripts/setup-frameworks | .venv/ready
	PYTHON=$(PYTHON) scripts/setup-frameworks tf

.venv-jax/jax-ready: scripts/setup-frameworks | .venv/ready
	PYTHON=$(PYTHON) scripts/setup-frameworks jax

# A tour on this machine: a real training under watch, plans and checks.
demo: .venv/ready .venv-torch/torch-ready
	scripts/setup-data
	.venv/bin/stoker demo --python .venv-torch/bin/python

# Everything: style, types, all tests, with every framework. Slow tests compare times: one by one.
test: check .venv-torch/more-ready .venv-tf/tf-ready .venv-jax/jax-ready
	scripts/setup-horovod torch || echo "the tests with Horovod and PyTorch are skipped"
	scripts/setup-horovod tf || echo "the tests with Horovod and TensorFlow are skipped"
	scripts/setup-objects
	scripts/setup-data
	scripts/setup-browser
	scripts/setup-slurm
	STOKER_TEST_ALL=1 .venv/bin/python -m pytest -n auto -m "not slow"
	STOKER_TEST_ALL=1 .venv/bin/python -m pytest -m slow -rs --durations=30

# The fast part, for your own loop.
quick: .venv/ready .venv-torch/torch-ready
	.venv/bin/python -m pytest -n auto -m "not slow"

check: .venv/ready
	scripts/check

# A shell on the login node of a small real Slurm on this machine; it ends with the shell.
cluster: .venv/ready .venv-torch/torch-ready
	scripts/setup-slurm
	.venv/bin/python tests/slurm shell

# Start-up times, written to benchmarks/.
bench: .venv/ready
	.venv/bin/python benchmarks/startup.py

clean:
	rm -rf .venv .venv-* .mypy_cache .ruff_cache .pytest_cache
