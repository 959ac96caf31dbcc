"""Host time of one call, argument checks included: the entry points in a tight loop.

On CUDA tensors the calls are real, and the stream is drained between batches so that its queue never fills. Without a
GPU the general API is called with no rows, so that nothing but the host's work is left. Prints JSON.

  python3 bench/python/host_time.py [--calls 2000]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import torch

import sparse_mla
from sparse_mla import _native

BATCH = 100


def prefill_arguments(device: str, rows: int) -> dict[str, object]:
    f8 = torch.float8_e4m3fn
    return {
        "q": torch.randn(rows, 64, 576, device=device).to(f8),
        "kv": torch.randn(4096, 1, 576, device=device).to(f8),
        "indices": torch.randint(0, 4096, (rows, 1, 128), dtype=torch.int32, device=device),
        "sm_scale": 0.04,
        "q_scale": torch.ones(1, device=device),
        "kv_scale": torch.ones(1, device=device),
        "attn_sink": torch.zeros(64, device=device),
        "topk_length": torch.full((rows,), 128, dtype=torch.int32, device=device),
    }


def decode_arguments(device: str, rows: int) -> dict[str, object]:
    return {
        "q": torch.randn(rows, 16, 512, device=device).bfloat16(),
        "unified_kv": torch.randn(4096, 512, device=device).to(torch.float8_e4m3fn),
        "kv_indices": torch.randint(0, 4096, (rows * 64,), dtype=torch.int32, device=device),
        "kv_indptr": torch.arange(0, rows * 64 + 1, 64, dtype=torch.int32, device=device),
        "attn_sink": torch.zeros(16, device=device),
        "softmax_scale": 0.04,
        "kv_scales": torch.ones(4096, 8, device=device),
    }


def microseconds(call, calls: int, drain) -> dict[str, float]:
    """Median and spread over batches of `BATCH` calls."""
    for _ in range(BATCH):
        call()
    drain()
    times = []
    for _ in range(max(1, calls // BATCH)):
        start = time.perf_counter()
        for _ in range(BATCH):
            call()
        times.append((time.perf_counter() - start) / BATCH * 1e6)
        drain()
    return {"median_us": round(statistics.median(times), 2), "min_us": round(min(times), 2), "max_us": round(max(times), 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=2000)
    calls = parser.parse_args().calls
    on_cuda = torch.cuda.is_available()
    device, rows = ("cuda", 1) if on_cuda else ("cpu", 0)
    drain = torch.cuda.synchronize if on_cuda else lambda: None
    prefill, decode = prefill_arguments(device, rows), decode_arguments(device, rows)
    entry_points = (
        (sparse_mla.sparse_mla_q8kv8_prefill_fwd, prefill),
        (sparse_mla.sparse_attn_v4_paged_decode, decode),
    )
    if not on_cuda:
        entry_points = ((sparse_mla.prefill, prefill), (sparse_mla.decode, decode))
    report: dict[str, object] = {
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if on_cuda else "cpu, no rows",
        "calls": calls,
    }
    for function, arguments in entry_points:
        report[function.__name__] = microseconds(lambda f=function, a=arguments: f(**a), calls, drain)
    q = prefill["q"]
    report["parts"] = {
        "three new tensors": microseconds(
            lambda: (
                q.new_empty((rows, 64, 512), dtype=torch.bfloat16),
                q.new_empty((rows, 64), dtype=torch.float32),
                q.new_empty((rows, 64), dtype=torch.float32),
            ),
            calls,
            drain,
        ),
        "a native call without arguments": microseconds(lambda: _native._take_violation(), calls, drain),
    }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
