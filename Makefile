# make demo    train the default chatbot (about two minutes) and ask it ten things
# make test    the tests          make test-long   those that take minutes
# make check   style, types, layers, no pickle      make format   mend the style
# make bench   the figures of bench/                make clean    remove what make made, but not your runs
#
# Everything happens in .venv, which is made on first use from constraints.txt. Another Python: make PYTHON=python3.12

PYTHON ?= python3
BIN := .venv/bin
TORCH := torch==2.13.0

PROMPTS := "Hello!" "How are you doing today?" "Are you a robot?" "Tell me another joke" "What is AI?" \
           "Do you like football?" "Can you eat?" "Have you read any books?" "I forgot my password" "Do you get angry?"

.PHONY: demo test test-long check format bench docs clean
.DEFAULT_GOAL := demo

demo: .venv/.installed
	@[ ! -e runs/demo ] || mv -v runs/demo "runs/demo-before-$$(date +%Y%m%d-%H%M%S)"
	$(BIN)/regard train chat-attention --out runs/demo
	$(BIN)/regard ask runs/demo $(PROMPTS)

test: .venv/.installed-dev
	$(BIN)/python -m pytest -n 2 -q

test-long: .venv/.installed-dev
	$(BIN)/python -m pytest -n 2 -q -m long --timeout 3600

check: .venv/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	@# Whoever opens a pickle runs what is in it, so nothing here may open one.
	@! grep -rnE '^\s*(import|from) (pickle|cPickle|dill|cloudpickle|joblib|shelve)\b|(^|[^.a-z])torch\.(load|save)\(|allow_pickle *= *True' \
		--include='*.py' regard || { echo 'make check: no pickle in regard/, see the lines above' >&2; exit 1; }

format: .venv/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: .venv/.installed
	$(BIN)/python -m regard.recipe > docs/recipes.md

bench: .venv/.installed-dev
	for name in training_speed decoding_speed attention cure cornell maclaurin memory sentiment blank pneumonia defaults fsdd; do $(BIN)/python -m bench.$$name || exit; done

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "regard needs Python 3.11 or newer, $(PYTHON) is $$($(PYTHON) --version 2>&1); try make PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv .venv

.venv/.installed: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/pip install -c constraints.txt $(TORCH)
	$(BIN)/pip install -c constraints.txt -e .
	touch $@

.venv/.installed-dev: .venv/.installed
	$(BIN)/pip install -c constraints.txt -e '.[dev]'
	touch $@
