# make demo       train a translator and a chatbot (about two minutes) and show what they attend to
# make test       run the tests
# make test-long  run the tests that take minutes, or a part: make test-long PART=tests/faults
# make coverage   run the tests and print the lines and branches of regard/ that they miss
# make check      check style, types, imports between modules, and that no pickle is read
# make format     format the code
# make docs       write docs/recipes.md from the fields in regard/recipe/
# make images     train a small translator (about half a minute) and draw docs/images
# make bench      repeat the benchmarks that need no trained run; the records go to bench/results/
# make clean      remove .venv and caches, but not your runs
#
# Everything runs in .venv, which is created on first use with the versions in constraints.txt.
# To use another Python: make PYTHON=python3.12

PYTHON ?= python3
BIN := .venv/bin
TORCH := torch==2.13.0
PART ?= tests

NUMBERS := "ninety-one thousand six hundred and twenty-eight" "the first of October nineteen ninety-six"
PROMPTS := "Hello!" "How are you doing today?" "Are you a robot?" "Tell me another joke" "What is AI?" \
           "Do you like football?" "Can you eat?" "Have you read any books?" "I forgot my password" "Do you get angry?"

# Temporary files of the tests: in memory if there is room. A run of a few steps is synced to the
# disk fifty times, which takes longer than the steps.
MEMORY := $(shell [ -w /dev/shm ] && ! grep -q ' /dev/shm .*noexec' /proc/mounts && \
	[ "$$(df -Pk /dev/shm | awk 'NR == 2 {print $$4}')" -gt 4000000 ] && echo /dev/shm)
# Worker processes begin with half of the tests each, in order, and take over each other's last
# ones: what the tests of a file share is made once, and both end at the same time.
PYTEST := $(if $(MEMORY),PYTEST_DEBUG_TEMPROOT=$(MEMORY)) $(BIN)/python -m pytest -n 2 --dist worksteal -q

.PHONY: demo test test-long coverage check format docs images bench clean
.DEFAULT_GOAL := demo

demo: .venv/.installed
	@for run in runs/demo-translation runs/demo; do \
		[ ! -e $$run ] || mv -v $$run "$$run-before-$$(date +%Y%m%d-%H%M%S)"; done
	@printf '\n1. A translator learns English numbers and dates in German, from 9,000 made-up examples.\n\n'
	$(BIN)/regard train translate-alignment --out runs/demo-translation
	@printf '\nNumbers that it has never seen. Below each, its attention: a row for each German token,\n'
	@printf 'a column for each English one, dark where it attended when it wrote the token. German\n'
	@printf 'says "eight-and-twenty", so it attends to "eight" before "twenty".\n\n'
	$(BIN)/regard ask runs/demo-translation $(NUMBERS) --attend
	@printf '2. A chatbot memorises a thousand built-in sentences with their replies. It learns to repeat\n'
	@printf '   them, not to talk; `regard data list` names corpora that teach more.\n\n'
	$(BIN)/regard train chat-attention --set data.valid=0 --out runs/demo
	$(BIN)/regard ask runs/demo $(PROMPTS) --greedy
	@printf '\nWhich word of the question did it attend to?\n\n'
	$(BIN)/regard ask runs/demo "Do you like football?" --greedy --attend
	@printf '\nAll about both models is in two pages; open them in a browser:\n\n'
	@printf '    runs/demo-translation/report.html\n    runs/demo/report.html\n\n'
	@printf 'Then try:\n\n'
	@printf '    $(BIN)/regard chat runs/demo\n'
	@printf '    $(BIN)/regard attend runs/demo-translation "the third of May nineteen sixty-two"\n'
	@printf '    $(BIN)/regard evaluate runs/demo-translation\n\n'

test: .venv/.installed-dev
	$(PYTEST)

test-long: .venv/.installed-dev
	$(BIN)/python -m pytest -n 2 --dist worksteal -v -m long --timeout 3600 --durations=0 --durations-min=60 $(PART)

coverage: .venv/.installed-dev
	$(PYTEST) --cov=regard --cov-report=term-missing --timeout 600

check: .venv/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	@# Loading a pickle can run any code, so no module may load one.
	$(BIN)/python -m tests.no_pickle regard

format: .venv/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: .venv/.installed
	$(BIN)/python -m regard.recipe > docs/recipes.md

images: .venv/.installed
	$(BIN)/python -m bench.attention_picture

bench: .venv/.installed-dev
	for name in training_speed decoding_speed attention mmi cornell maclaurin memory sentiment blank pneumonia defaults fsdd serve checkpoints recovery scaling intervals pages; do $(BIN)/python -m bench.$$name || exit; done
	for corpus in dailydialog multi30k numbers; do $(BIN)/python -m bench.attending --corpus $$corpus --steps 500 || exit; done
	$(BIN)/python -m bench.dialogue variants --minutes 8 --only "turns 1" --only "turns 3" --only "turns 5"
	$(BIN)/python -m bench.preparation --peer-pairs 1000000 --check-resume

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache .coverage .coverage.*
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
