#!/bin/sh
# The CPU benchmarks beside PyTorch: attention, then transfers of cache rows. Installs what it needs into .venv; prints
# the tables and writes the JSON records.
set -eu
cd "$(dirname "$0")/.."
sh packages/venv.sh
.venv/bin/python bench/cpu/compare_with_torch.py --program build/bench_cpu --out build/bench-cpu.json
exec .venv/bin/python bench/kv/compare_with_torch.py --program build/bench_kv --out build/bench-kv.json
