"""Transfers of cache rows on the CPU beside eager PyTorch, in one run: prints a table, writes the JSON of both.

  compare_with_torch.py --program build/bench_kv [--threads 2] [--repeats 5] [--rounds 2] [--rows 131072] [--out FILE]

The two sides take turns and each side's best run counts. The goal: at least 3 times torch's eager equivalent.
"""

import argparse
import datetime
import json
import os
import pathlib
import subprocess
import sys

GOAL = 3.0


def cpu_model():
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def run_json(command):
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--rows", type=int, default=131072)
    parser.add_argument("--out", help="where to write the JSON")
    arguments = parser.parse_args()
    common = [f"--{name}={getattr(arguments, name)}" for name in ("threads", "repeats", "rows")]
    spaced = [part for option in common for part in option.split("=")]
    best = {}
    load_before = os.getloadavg()[0]
    for _ in range(arguments.rounds):
        ours = run_json([arguments.program, *spaced])
        torch = run_json([sys.executable, str(pathlib.Path(__file__).with_name("torch_kv.py")), *spaced])
        for side, record in (("sparse_mla", ours), ("torch", torch)):
            for result in record["results"]:
                entry = best.setdefault(result["name"], {})
                seconds = result["seconds_best"]
                if side not in entry or seconds < entry[side]["seconds_best"]:
                    entry[side] = result
    record = {
        "date": datetime.date.today().isoformat(),
        "cpu": cpu_model(),
        "threads": arguments.threads,
        "load_before": load_before,
        "rows": arguments.rows,
        "torch": torch["torch"],
        "goal": GOAL,
        "results": [],
    }
    print(f"{'transfer':32} {'ours ms':>9} {'GB/s':>7} {'torch ms':>9} {'ratio':>6}")
    for name, entry in best.items():
        ratio = entry["torch"]["seconds_best"] / entry["sparse_mla"]["seconds_best"]
        record["results"].append({"name": name, "ratio": ratio, **entry})
        mine = entry["sparse_mla"]
        print(
            f"{name:32} {1e3 * mine['seconds_best']:9.1f} {1e-9 * mine['bytes_per_s']:7.2f}"
            f" {1e3 * entry['torch']['seconds_best']:9.1f} {ratio:6.1f}"
        )
    if arguments.out:
        pathlib.Path(arguments.out).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
