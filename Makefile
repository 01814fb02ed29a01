# Everything from a fresh machine with only Python 3.11-3.13: `make run` starts an agent, `make test` checks.
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
	if command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null; \
	then echo $$p; break; fi; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: run test install clean

run: install
	$(BIN)/voxagent run

test: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/pytest

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@if [ -z "$(PYTHON)" ]; then \
		echo "voxagent needs Python 3.11, 3.12 or 3.13: install one, or run make with PYTHON=/path/to/python"; exit 1; fi
	@echo "installing into $(VENV) with $$($(PYTHON) --version) (a minute or two the first time)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]' 2>$(VENV)/pip.log \
		|| { tail -n 20 $(VENV)/pip.log; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps voxcpm==2.0.3 2>$(VENV)/pip.log \
		|| { tail -n 20 $(VENV)/pip.log; exit 1; }
	@touch $(STAMP)

clean:
	rm -rf $(VENV) out build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
