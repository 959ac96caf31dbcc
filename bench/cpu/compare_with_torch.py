"""The CPU backend beside what a user would write in PyTorch, in one run: prints a table, writes the JSON of both.

  compare_with_torch.py --program build/bench_cpu [--threads 2] [--repeats 7] [--out FILE]

The two sides take turns (`--rounds`), and each side's best run counts, so that a busy moment of the machine does not
decide. The goal (in `goal`): 1.5 times the faster of torch's float32 and bfloat16, at a tenth of its peak extra memory.
"""

import argparse
import datetime
import json
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
PROBLEMS = {
    "prefill": "prefill:sq64:skv8192:hq128:dqk576:topk2048",
    "decode": "decode:n32:pages65536:h128:d512:tokens640:fp8",
}


def cpu_model():
    with open("/proc/cpuinfo") as lines:
        return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def run_json(command):
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def better(old, new):
    return new if old is None or new["seconds_best"] < old["seconds_best"] else old


def measure(arguments):
    common = ["--threads", str(arguments.threads), "--repeats", str(arguments.repeats)]
    ours, theirs, peak, head = {}, {}, 0.0, {}
    for _ in range(arguments.rounds):
        mine = run_json([arguments.program, *common, *PROBLEMS.values()])
        head = {"simd_target": mine["simd_target"]}
        peak = max(peak, mine["float32_fma_peak_gflops"])
        for entry_point, result in zip(PROBLEMS, mine["results"]):
            ours[entry_point] = better(ours.get(entry_point), result)
        torch = run_json([sys.executable, str(HERE / "torch_baseline.py"), *common])
        head["torch"] = torch["torch"]
        for result in torch["results"]:
            key = result["entry_point"], result["dtype"]
            theirs[key] = better(theirs.get(key), result)
    return ours, theirs, peak, head


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", help="where to write the JSON")
    arguments = parser.parse_args()

    load = os.getloadavg()[0]
    ours, theirs, peak, head = measure(arguments)
    report = {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
        "cpu": cpu_model(),
        "threads": arguments.threads,
        "load_average_before": load,
        **head,
        "float32_fma_peak_gflops": peak,
        "goal": {"speed_ratio": 1.5, "memory_ratio": 0.1},
        "shapes": [],
    }
    print(f"{report['cpu']}, {arguments.threads} threads, {head['simd_target']}, torch {head['torch']}")
    print(f"float32 multiply-add peak {peak:.0f} GFLOP/s, load average before the run {load:.1f}")
    row = "{:<10}{:<16}{:>9}{:>11}{:>9}{:>12}{:>10}"
    print(row.format("shape", "by", "ms", "GFLOP/s", "of peak", "extra MB", "error"))
    for entry_point, mine in ours.items():
        sides = {"sparse-mla": mine}
        sides |= {"torch " + dtype: result for (name, dtype), result in theirs.items() if name == entry_point}
        for by, side in sides.items():
            side["gflops"] = mine["flops"] / side["seconds_best"] / 1e9
            side["fraction_of_float32_fma_peak"] = side["gflops"] / peak
            error = f"{mine['error']['out_relative_norm']:.2e}" if side is mine else ""
            cells = (entry_point, by, f"{side['seconds_best'] * 1e3:.1f}", f"{side['gflops']:.0f}")
            print(row.format(*cells, f"{side['gflops'] / peak:.2f}", f"{side['peak_extra_bytes'] / 1e6:.1f}", error))
        fastest = min((s for by, s in sides.items() if by != "sparse-mla"), key=lambda s: s["seconds_best"])
        speed = fastest["seconds_best"] / mine["seconds_best"]
        memory = mine["peak_extra_bytes"] / fastest["peak_extra_bytes"]
        print(f"{'':<10}{speed:.2f} times as fast as torch {fastest['dtype']}, with {memory:.3f} of its extra memory")
        report["shapes"].append(
            {"problem": mine["problem"], "speed_ratio": speed, "memory_ratio": memory, "sides": sides}
        )
    if arguments.out:
        pathlib.Path(arguments.out).parent.mkdir(parents=True, exist_ok=True)
        pathlib.Path(arguments.out).write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
