# Every target sets up what it needs: a fresh Debian machine with Python 3.10+ is enough.
.PHONY: demo test quick check bench clean
SHELL := /bin/bash
PYTHON ?= python3

.venv/ready: pyproject.toml scripts/setup
	PYTHON=$(PYTHON) scripts/setup

# A tour on this machine: plans and checks, ending with what to look at.
demo: .venv/ready
	.venv/bin/stoker demo

# Everything: style, types, all tests.
test: check
	.venv/bin/python -m pytest

# The fast part, for your own loop.
quick: .venv/ready
	.venv/bin/python -m pytest -m "not slow"

check: .venv/ready
	scripts/check

# Start-up times, written to benchmarks/.
bench: .venv/ready
	.venv/bin/python benchmarks/startup.py

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache
