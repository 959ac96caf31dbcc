"""Threads, processes, and nothing left behind."""

import concurrent.futures
import gc
import resource
import subprocess
import sys
import threading

import pytest
import torch

import sparse_mla
from cases import decode_call, prefill_call


def test_eight_threads_with_different_shapes():
    calls = [prefill_call(s_q=2 + i % 3, h_q=1 + 5 * i, topk=20 + i, s_kv=100, seed=i) for i in range(8)]
    expected = [sparse_mla.prefill(**call) for call in calls]
    start = threading.Barrier(8)

    def work(i):
        start.wait()
        for _ in range(25):
            results = sparse_mla.prefill(**calls[i])
            if not all(torch.equal(a, b) for a, b in zip(results, expected[i])):
                return f"thread {i} got another result"
            try:
                sparse_mla.prefill(calls[i]["q"], calls[i]["kv"], calls[i]["indices"][:, :, :0], 1.0)
            except ValueError as error:
                if error.violation.slug != "prefill-topk-positive":
                    return f"thread {i} got the violation of another call"
            else:
                return f"thread {i}: a bad call went through"
        return None

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(8))) == [None] * 8


def test_ten_thousand_calls_leave_nothing_behind():
    call = prefill_call(s_q=1, s_kv=4, h_q=1, d_qk=64, topk=2, d_v=64, sink=True)
    paged = decode_call(lengths=(2,), pages=4, h=1, d=64)
    tensors = [value for value in (*call.values(), *paged.values()) if isinstance(value, torch.Tensor)]

    def run(times):
        for _ in range(times):
            sparse_mla.prefill(**call)
            sparse_mla.decode(**paged)
            try:
                sparse_mla.prefill(**{**call, "d_v": 65})
            except ValueError:
                pass

    run(500)
    gc.collect()
    counts = [sys.getrefcount(tensor) for tensor in tensors]
    objects = len(gc.get_objects())
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run(10_000)
    gc.collect()
    assert [sys.getrefcount(tensor) for tensor in tensors] == counts
    assert len(gc.get_objects()) - objects < 100
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 4096  # KiB: under half a byte a call and tensor


_CHILDREN = """
import multiprocessing
import sys

import torch

import sparse_mla
from cases import prefill_call

torch.set_num_threads(1)  # torch's own thread pool does not survive a fork


def digest(call):
    return sparse_mla.prefill(**call)[0].view(torch.int16).tolist()


if __name__ == "__main__":
    call = prefill_call()
    expected = digest(call)
    with multiprocessing.get_context(sys.argv[1]).Pool(2) as pool:
        assert pool.map(digest, [call] * 4) == [expected] * 4
    print("children agree")
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_child_processes(method, tmp_path):
    """In a process of its own: what other tests have started must not be forked."""
    script = tmp_path / "children.py"
    script.write_text(_CHILDREN)
    done = subprocess.run([sys.executable, str(script), method], capture_output=True, text=True, timeout=120)
    assert done.stdout == "children agree\n", done.stderr


def test_one_native_call_and_one_allocation_an_output(monkeypatch):
    """What the host-time goal rests on: nothing is done twice."""
    from sparse_mla import _native

    counts = {"native": 0, "allocations": 0}

    def counted(name, function):
        def count(*args, **kwargs):
            counts[name] += 1
            return function(*args, **kwargs)

        return count

    monkeypatch.setattr(_native, "prefill", counted("native", _native.prefill))
    monkeypatch.setattr(_native, "decode", counted("native", _native.decode))
    for allocator in ("empty", "empty_strided", "empty_like", "zeros", "full"):
        monkeypatch.setattr(torch, allocator, counted("allocations", getattr(torch, allocator)))
    for allocator in ("new_empty", "new_zeros", "clone", "contiguous", "to"):
        monkeypatch.setattr(torch.Tensor, allocator, counted("allocations", getattr(torch.Tensor, allocator)))
    call, paged = prefill_call(), decode_call()
    counts.update(native=0, allocations=0)
    sparse_mla.prefill(**call)
    assert counts == {"native": 1, "allocations": 3}
    counts.update(native=0, allocations=0)
    sparse_mla.decode(**paged)
    assert counts == {"native": 1, "allocations": 1}
