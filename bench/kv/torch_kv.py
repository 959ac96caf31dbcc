"""What a user would write in eager PyTorch for the transfers that bench_kv times; prints one JSON object.

  torch_kv.py [--threads 2] [--repeats 5] [--rows 131072]
"""

import argparse
import json
import os
import time

import torch

FP8 = torch.float8_e4m3fn
V4_PAGE = 64
V4_PAGE_BYTES = 37440


def quantise(values, group):
    """[n, d] in floats to codes [n, d] and scales [n, d / group]."""
    groups = values.float().view(values.shape[0], -1, group)
    scales = groups.abs().amax(-1, keepdim=True) / 448.0
    scales = torch.where(scales == 0, torch.ones_like(scales), scales)
    return (groups / scales).to(FP8).view(values.shape), scales.squeeze(-1)


def dequantise(codes, scales, group):
    return (codes.float().view(codes.shape[0], -1, group) * scales.unsqueeze(-1)).view(codes.shape)


def requantise(values, scale):
    return (values / scale).clamp_(-448.0, 448.0).to(FP8)


class Unified:
    width = 512

    def __init__(self, n):
        self.pool = torch.zeros(n, 512, dtype=torch.uint8)
        self.scales = torch.zeros(n, 8)

    def append(self, rows, slots):
        codes, scales = quantise(rows, 64)
        self.pool[slots] = codes.view(torch.uint8)
        self.scales[slots] = scales

    def read(self, slots=None):
        pool = self.pool if slots is None else self.pool.index_select(0, slots)
        scales = self.scales if slots is None else self.scales.index_select(0, slots)
        return dequantise(pool.view(FP8), scales, 64)


class V32:
    width = 576

    def __init__(self, n):
        self.pool = torch.zeros(n, 656, dtype=torch.uint8)

    def append(self, rows, slots):
        codes, scales = quantise(rows[:, :512], 128)
        parts = [codes.view(torch.uint8), scales.view(torch.uint8), rows[:, 512:].contiguous().view(torch.uint8)]
        self.pool[slots] = torch.cat(parts, dim=1)

    def read(self, slots=None):
        pool = self.pool if slots is None else self.pool.index_select(0, slots)
        front = dequantise(pool[:, :512].contiguous().view(FP8), pool[:, 512:528].contiguous().view(torch.float32), 128)
        return torch.cat([front, pool[:, 528:].contiguous().view(torch.bfloat16).float()], dim=1)


class V4:
    width = 512

    def __init__(self, n):
        self.pages = torch.zeros(n // V4_PAGE, V4_PAGE_BYTES, dtype=torch.uint8)
        self.values = self.pages[:, : V4_PAGE * 576].view(-1, V4_PAGE, 576)
        self.exponents = self.pages[:, V4_PAGE * 576 : V4_PAGE * 584].view(-1, V4_PAGE, 8)

    def append(self, rows, slots):
        groups = rows[:, :448].float().view(-1, 7, 64)
        amax = groups.abs().amax(-1, keepdim=True)
        exponents = torch.where(amax == 0, torch.zeros_like(amax), torch.ceil(torch.log2(amax / 448.0)))
        codes = (groups / torch.exp2(exponents)).to(FP8).view(-1, 448).view(torch.uint8)
        page, row = slots // V4_PAGE, slots % V4_PAGE
        self.values[page, row] = torch.cat([codes, rows[:, 448:].contiguous().view(torch.uint8)], dim=1)
        bytes_ = (exponents.squeeze(-1) + 127).to(torch.uint8)
        self.exponents[page, row] = torch.nn.functional.pad(bytes_, (0, 1))

    def read(self, slots=None):
        if slots is None:
            values, exponents = self.values.reshape(-1, 576), self.exponents.reshape(-1, 8)
        else:
            page, row = slots // V4_PAGE, slots % V4_PAGE
            values, exponents = self.values[page, row], self.exponents[page, row]
        scales = torch.exp2(exponents[:, :7].float() - 127)
        front = dequantise(values[:, :448].contiguous().view(FP8), scales, 64)
        return torch.cat([front, values[:, 448:].contiguous().view(torch.bfloat16).float()], dim=1)


CACHES = {"unified_fp8_1x64": Unified, "v32_656": V32, "v4_584": V4}


def gather(cache, slots, scale):
    keep = slots >= 0
    remapped = torch.where(keep, torch.arange(slots.numel(), dtype=torch.int32), -1)
    return requantise(cache.read(slots.clamp_min(0)), scale), remapped


def timed(name, repeats, work):
    seconds = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    seconds = sorted(seconds[1:])
    return {"name": name, "seconds_best": seconds[0], "seconds_median": seconds[len(seconds) // 2]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rows", type=int, default=131072)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    generator = torch.Generator().manual_seed(1)
    slots = torch.randperm(arguments.rows, generator=generator)
    results = []
    with torch.inference_mode():
        for name, kind in CACHES.items():
            rows = torch.randn(arguments.rows, kind.width, generator=generator).to(torch.bfloat16)
            cache = kind(arguments.rows)
            results.append(timed("append:" + name, arguments.repeats, lambda: cache.append(rows, slots)))
            results.append(timed("dequantise:" + name, arguments.repeats, lambda: cache.read().to(torch.bfloat16)))
            results.append(timed("gather:" + name, arguments.repeats, lambda: gather(cache, slots, 0.02)))
    print(json.dumps({"torch": torch.__version__, "threads": arguments.threads, "results": results}))


if __name__ == "__main__":
    main()
