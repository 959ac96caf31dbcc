# Two commands do everything on a fresh Debian 12 or 13 machine: make demo, make test.
.PHONY: help deps build demo test bench docs fuzz sanitize python clean

help:
	@echo "make demo    build, then run prefill and decode on the best backend there is, against float64"
	@echo "make test    every test: units, command line, sanitizer build, fuzzers, Python"
	@echo "make python  build and test the Python package alone"
	@echo "make docs    the error catalogue as a web site, in build/site"
	@echo "make bench   CPU benchmark beside PyTorch"
	@echo "make fuzz    the fuzzers for ten minutes each"

deps:
	@sh packages/install.sh

.PHONY: configure
configure: deps
	@cmake --preset release >build-configure.log 2>&1 || { cat build-configure.log; exit 1; }
	@grep -hE 'CUDA backend|Python module' build-configure.log || true
	@rm -f build-configure.log

build: configure
	cmake --build --preset release

# The Python module is built where .venv is.
.PHONY: venv
venv: deps
	@sh packages/venv.sh

python: venv
	$(MAKE) --no-print-directory build
	.venv/bin/python -m pytest

demo: configure
	cmake --build --preset release --target sparse_mla_cli
	build/sparse-mla demo

test: venv
	$(MAKE) --no-print-directory build
	ctest --preset release
	.venv/bin/python -m pytest
	$(MAKE) --no-print-directory sanitize
	$(MAKE) --no-print-directory fuzz-short

sanitize: deps
	cmake --preset sanitize >/dev/null
	cmake --build --preset sanitize
	ctest --preset sanitize

.PHONY: fuzz-short
fuzz-short: deps
	cmake --preset fuzz >/dev/null
	cmake --build --preset fuzz
	ctest --preset fuzz

fuzz: deps
	cmake --preset fuzz >/dev/null
	cmake --build --preset fuzz
	for name in fuzz_check fuzz_safetensors; do \
	  build-fuzz/tests/$$name -max_total_time=600 -timeout=10 -rss_limit_mb=4096 -max_len=4096 \
	    -dict=tests/fuzz/json.dict build-fuzz/corpus/$$name tests/fuzz/seeds/$$name || exit 1; done

bench: build
	sh bench/run.sh

docs: build
	build/sparse-mla catalog build build/site
	@echo "open build/site/index.html, or: build/sparse-mla catalog serve"

clean:
	rm -rf build build-python build-sanitize build-fuzz
