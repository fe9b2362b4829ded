# Every command of this project. `make demo` and `make test` set themselves up.
# On a machine that would fetch a CUDA build of torch, add a CPU index:
#   make install PIP_ARGS='--extra-index-url https://download.pytorch.org/whl/cpu'

.DEFAULT_GOAL := help
.PHONY: help install demo demo-search test check format proto proto-lint typing bench soak chaos audit clean

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
		-c constraints.txt -e '.[milvus,embed,train,bench,dev]'
	@touch $@

demo: $(STAMP) ## Start a server with the embedded model and prune real passages through it.
	@$(BIN)/secateur demo

demo-search: $(STAMP) ## Index a small corpus in milvus-lite and ask it three questions.
	@$(BIN)/python examples/search_demo.py

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

bench: $(STAMP) ## Measure speed: make bench ARGS='--data FILE --record FILE'.
	@$(BIN)/secateur bench $(ARGS)

soak: $(STAMP) ## Put mixed load on a real server for long: make soak ARGS='--minutes 20'.
	$(BIN)/python benchmarks/soak.py $(ARGS)

chaos: $(STAMP) ## Kill a server under load, again and again: make chaos ARGS='--kills 5'.
	$(BIN)/python benchmarks/chaos.py $(ARGS)

audit: $(STAMP) ## Look up known vulnerabilities of the pinned dependencies (needs the network).
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt pip-audit
	$(BIN)/pip-audit -r constraints.txt --no-deps --disable-pip

clean: ## Remove everything that the commands above made.
	rm -rf $(VENV) .typing build dist *.egg-info .*_cache .hypothesis
