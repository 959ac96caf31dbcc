#!/bin/sh
# The CPU benchmark beside PyTorch. Installs what it needs into .venv; prints the table and writes the JSON record.
set -eu
cd "$(dirname "$0")/.."
if [ ! -x .venv/bin/python ]; then python3 -m venv .venv; fi
.venv/bin/python -c 'import torch, numpy, ml_dtypes' 2>/dev/null || .venv/bin/pip install -q -r packages/python-bench.txt
exec .venv/bin/python bench/cpu/compare_with_torch.py --program build/bench_cpu --out build/bench-cpu.json
