# Two commands on a fresh machine: `make serve` and `make test`. Nothing is needed but Python 3.11 and make.
# Each verb makes or updates .venv by itself; stamps make the second call instant (settings: see install.sh).

export PYTHON TORCH TORCH_INDEX DESIST_GPU

PY := .venv/bin/python
DESIST := .venv/bin/desist
ARGS ?=

.PHONY: serve demo test test-all lint format type bench study reasoner builtin clean

serve: .venv/.stamp-serve  ## the proxy on the built-in reasoner, http://127.0.0.1:8100
	$(DESIST) serve $(ARGS)

demo: .venv/.stamp-serve  ## one problem live, then full against stopped runs
	$(DESIST) demo $(ARGS)

test: .venv/.stamp-dev  ## all tests but those that take minutes each
	$(PY) -m pytest -q -m "not extended" $(ARGS)

test-all: .venv/.stamp-all  ## these too
	$(PY) -m pytest -q $(ARGS)

lint: .venv/.stamp-dev  ## what CI's style tests check
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

format: .venv/.stamp-dev
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .

bench: .venv/.stamp-serve  ## what desist costs, as ratios measured in one run
	$(DESIST) bench $(ARGS)

study: .venv/.stamp-serve  ## the measurements that the README reports (about 40 minutes on two cores)
	$(PY) -m benchmarks.headline $(ARGS)

reasoner: .venv/.stamp-serve  ## train the built-in reasoner anew (about an hour on two cores; resumable)
	$(PY) -m desist.data.reasoner.train $(ARGS)

builtin: .venv/.stamp-serve  ## collect, train and certify the built-in probe anew
	$(PY) -m benchmarks.builtin $(ARGS)

.venv/.stamp-serve: pyproject.toml install.sh
	./install.sh serve
	@touch $@

.venv/.stamp-dev: pyproject.toml install.sh
	./install.sh dev
	@touch $@ .venv/.stamp-serve

.venv/.stamp-all: pyproject.toml install.sh
	./install.sh all
	@touch $@ .venv/.stamp-dev .venv/.stamp-serve

clean:
	rm -rf .venv build dist out src/*.egg-info .pytest_cache .mypy_cache .ruff_cache
