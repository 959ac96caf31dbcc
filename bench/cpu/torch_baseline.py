"""What a user would write instead on the CPU: gather, dequantise, two matmuls and a softmax, in PyTorch.

Prints one JSON object: per shape and dtype the seconds of the fastest and the median run, and the peak memory that a
call adds to what its inputs take.

  python3 torch_baseline.py [--threads 2] [--repeats 5]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

import torch

PREFILL = {"s_q": 64, "h_q": 128, "d_qk": 576, "d_v": 512, "topk": 2048, "s_kv": 8192}
DECODE = {"n": 32, "h": 128, "d": 512, "tokens": 640, "pages": 65536}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def prefill_inputs():
    generator = torch.Generator().manual_seed(1)
    normal = lambda *shape: torch.randn(*shape, generator=generator).to(torch.float8_e4m3fn)
    p = PREFILL
    indices = torch.stack([torch.randperm(p["s_kv"], generator=generator)[: p["topk"]] for _ in range(p["s_q"])])
    return normal(p["s_q"], p["h_q"], p["d_qk"]), normal(p["s_kv"], p["d_qk"]), indices


def prefill(q, kv, indices, dtype, scale=0.0417):
    s_q, topk = indices.shape
    keys = kv.view(torch.uint8).index_select(0, indices.flatten()).view(torch.float8_e4m3fn).to(dtype)
    keys = keys.view(s_q, topk, kv.shape[1])
    logits = torch.matmul(q.to(dtype), keys.transpose(1, 2)).mul_(scale)
    weights = torch.softmax(logits, dim=-1)
    return torch.matmul(weights, keys[:, :, : PREFILL["d_v"]]).to(torch.bfloat16)


def decode_inputs():
    generator = torch.Generator().manual_seed(2)
    p = DECODE
    q = torch.randn(p["n"], p["h"], p["d"], generator=generator).to(torch.bfloat16)
    kv = torch.randn(p["pages"], p["d"], generator=generator).to(torch.float8_e4m3fn)
    scales = torch.rand(p["pages"], p["d"] // 64, generator=generator) + 0.5
    indices = torch.randint(0, p["pages"], (p["n"], p["tokens"]), generator=generator)
    return q, kv, scales, indices


def decode(q, kv, scales, indices, dtype, scale=0.0442):
    n, tokens = indices.shape
    flat = indices.flatten()
    rows = kv.view(torch.uint8).index_select(0, flat).view(torch.float8_e4m3fn).to(dtype)
    rows = rows.view(-1, scales.shape[1], 64).mul_(scales.index_select(0, flat).to(dtype).unsqueeze(-1))
    rows = rows.view(n, tokens, kv.shape[1])
    logits = torch.matmul(q.to(dtype), rows.transpose(1, 2)).mul_(scale)
    return torch.matmul(torch.softmax(logits, dim=-1), rows).to(torch.bfloat16)


CALLS = {"prefill": (prefill_inputs, prefill), "decode": (decode_inputs, decode)}


def status_bytes(field):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(field + ":"))


def peak_extra_bytes(call):
    with open("/proc/self/clear_refs", "w") as clear:
        clear.write("5")  # the high-water mark starts anew
    before = status_bytes("VmRSS")
    call()
    return status_bytes("VmHWM") - before


def measure(entry_point, dtype_name, repeats):
    make_inputs, call = CALLS[entry_point]
    inputs = make_inputs()
    dtype = DTYPES[dtype_name]
    seconds = []
    with torch.inference_mode():
        call(*(tensor[:1] if tensor is inputs[0] or tensor is inputs[-1] else tensor for tensor in inputs), dtype)
        peak = peak_extra_bytes(lambda: call(*inputs, dtype))
        for _ in range(repeats):
            start = time.perf_counter()
            call(*inputs, dtype)
            seconds.append(time.perf_counter() - start)
    return {
        "entry_point": entry_point,
        "dtype": dtype_name,
        "seconds_best": min(seconds),
        "seconds_median": statistics.median(seconds),
        "peak_extra_bytes": peak,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--one", nargs=2, metavar=("ENTRY_POINT", "DTYPE"), help="measure one case in this process")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.one:
        print(json.dumps(measure(*arguments.one, arguments.repeats)))
        return
    results = []
    for entry_point in CALLS:
        for dtype_name in DTYPES:
            command = [sys.executable, __file__, "--threads", str(arguments.threads)]
            command += ["--repeats", str(arguments.repeats), "--one", entry_point, dtype_name]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            results.append(json.loads(done.stdout))
    print(json.dumps({"torch": torch.__version__, "threads": arguments.threads, "results": results}))


if __name__ == "__main__":
    main()
