#!/bin/sh
# The CPU benchmark beside PyTorch. Installs what it needs into .venv; prints the table and writes the JSON record.
set -eu
cd "$(dirname "$0")/.."
sh packages/venv.sh
exec .venv/bin/python bench/cpu/compare_with_torch.py --program build/bench_cpu --out build/bench-cpu.json
