# `make demo` and `make test` need only Python 3.11+, make and git.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO := runs/demo

.PHONY: demo test lint bench format install clean site

install: $(STAMP)

# The stamp makes a second run start at once; it is renewed when the dependencies change.
$(STAMP): pyproject.toml constraints.txt setup.py $(wildcard espalier/training/native/*.cpp espalier/training/native/*.h)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch setuptools wheel
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[dev]'
	touch $(STAMP)

demo: $(STAMP)
	rm -rf $(DEMO)
	$(BIN)/espalier run demo --jobs 2 --out $(DEMO) --report $(DEMO)/report.html

# Another apt may be at work: the option waits for dpkg's lock, but not for that of the lists, so update is tried again.
WAIT := -o DPkg::Lock::Timeout=600
APT_UPDATE = tries=0; \
	until said=$$(LC_ALL=C apt-get update $(WAIT) -qq 2>&1); do \
		case "$$said" in *lists/lock*) ;; *) echo "$$said" >&2; exit 1 ;; esac; \
		tries=$$((tries + 1)); [ $$tries -lt 120 ] || { echo "$$said" >&2; exit 1; }; sleep 5; \
	done

# The report is tested in a real browser. Playwright's own download is not used: any Chromium will do.
.PHONY: chromium
chromium:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		$(APT_UPDATE) && apt-get install $(WAIT) -y -qq --no-install-recommends chromium >/dev/null; \
	else \
		echo "The report's tests need Chromium: install it (Debian, Ubuntu: sudo apt-get install chromium)." >&2; exit 1; \
	fi

# A Flower client is tested with the real Flower, which wants other packages than we do: an environment of its own.
.PHONY: flower
flower: $(STAMP)
	@$(BIN)/python -m tests.fleet.flower_env >/dev/null

test: $(STAMP) chromium flower
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python benchmarks/shape.py

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

site: $(STAMP)
	$(BIN)/python -m sphinx -W -q -b html docs build/site
	@echo "open build/site/index.html"

# README's pictures, of the demo.
.PHONY: pictures
pictures: $(STAMP) chromium
	$(BIN)/python benchmarks/pictures.py

# A wheel, installed in a fresh environment and tried without a compiler.
.PHONY: wheel
wheel: $(STAMP)
	$(BIN)/python -m tests.wheel

bench: $(STAMP)
	$(BIN)/python benchmarks/renew.py

clean:
	rm -rf $(VENV) runs build *.egg-info
