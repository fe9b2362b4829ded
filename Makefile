# Every command of this project. `make demo` and `make test` set themselves up.
# On a machine that would fetch a CUDA build of torch, add a CPU index:
#   make install PIP_ARGS='--extra-index-url https://download.pytorch.org/whl/cpu'

.DEFAULT_GOAL := help
.PHONY: help install demo test check format proto proto-lint typing bench clean

CANDIDATES := python3 python3.11 python3.12 python3.13 python3.14
PYTHON ?= $(firstword $(foreach p,$(CANDIDATES),$(shell \
	$(p) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $(p))))
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP_ARGS ?=

help: ## Show this list.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(STAMP) ## Create .venv with everything the commands below need.

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed; set PYTHON=..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) \
		-c constraints.txt -e '.[train,bench,dev]'
	@touch $@

demo: $(STAMP) ## Start a server with the embedded model and prune real passages through it.
	@$(BIN)/secateur demo

test: $(STAMP) ## Run the tests.
	$(BIN)/python -m pytest

check: $(STAMP) typing proto-lint ## Lint, types, contract, Dockerfile, stale stubs.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/hadolint Dockerfile
	$(BIN)/python -m pytest -q tests/test_proto.py

format: $(STAMP) ## Format the code and apply safe fixes.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

proto: $(STAMP) ## Regenerate src/secateur/v1 from proto/.
	$(BIN)/python proto/generate.py

proto-lint: $(STAMP) ## Lint the contract with buf, offline.
	@mkdir -p build
	$(BIN)/python proto/generate.py --image build/proto.binpb
	$(BIN)/buf lint build/proto.binpb --config buf.yaml

typing: ## Show the folders as one package to type checkers and editors (.typing/).
	@rm -rf .typing && mkdir -p .typing/secateur
	@cd .typing/secateur && ln -s ../../src/secateur/* ../../model ../../server ../../training .

bench: $(STAMP) ## Measure speed: make bench ARGS='--data FILE'.
	$(BIN)/python benchmarks/speed.py $(ARGS)

clean: ## Remove everything that the commands above made.
	rm -rf $(VENV) .typing build dist *.egg-info .*_cache .hypothesis
