# The commands of the project, each a script in scripts/. ARGS goes to the script: make test ARGS='-R tokenizer'
.PHONY: help setup build quickstart test test-all bench format lint sanitize fuzz dist
.DEFAULT_GOAL := help

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## install what tests and tools need as well: Debian packages, and Python packages in .venv
	@scripts/setup $(ARGS)

build: ## set up and build the program (Release) into build/; ARGS=all builds the tests too
	@scripts/build $(ARGS)

quickstart: ## set up, build, fetch a corpus, train a small model for three minutes; DEVICE=cuda: on a GPU
	@scripts/quickstart $(if $(DEVICE),--device $(DEVICE)) $(ARGS)

test: ## build and run the tests; ARGS='-R tokenizer' for some of them
	@scripts/test $(ARGS)

test-all: ## build and run every test, those too that take long
	@scripts/test --all $(ARGS)

bench: ## measure a training step side by side with PyTorch
	@scripts/bench $(ARGS)

format: ## format the C++ sources in place
	@scripts/format $(ARGS)

lint: ## check format, layers, shell scripts and clang-tidy's findings; ARGS=--changed for what you changed
	@scripts/lint $(ARGS)

sanitize: ## test under the address, undefined-behaviour and thread sanitizers; ARGS=thread for one of them
	@scripts/sanitize $(ARGS)

fuzz: ## run every fuzz target for a minute; ARGS='manifest run_log' for some of them
	@scripts/fuzz $(ARGS)

dist: ## pack the sources of the last commit into dist/copus-VERSION.tar.gz
	@scripts/dist
