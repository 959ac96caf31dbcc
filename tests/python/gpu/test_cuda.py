"""On the card: numerics, streams, graphs, compile, devices, arrays, host time. Skipped where there is no SM90 device."""

import time

import numpy as np
import pytest
import torch

import sparse_mla
from cases import assert_close, decode_call, decode_reference, float64, prefill_call, prefill_reference

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9, reason="no SM90 device"
)

PREFILL_BOUNDS = {(576, 2048): 1.70e-2, (512, 1024): 1.90e-2, (512, 512): 2.08e-2}
DECODE_BOUND = 3e-3


def on_cuda(call):
    return {name: value.cuda() if isinstance(value, torch.Tensor) else value for name, value in call.items()}


def contract_prefill(d_qk=576, topk=2048, **changes):
    """A call that keeps contract part A, with indices that are all valid."""
    call = prefill_call(s_q=2, s_kv=4096, h_q=64, d_qk=d_qk, topk=topk, **changes)
    random = np.random.default_rng(5)
    call["indices"] = torch.from_numpy(np.stack([random.permutation(4096)[:topk] for _ in range(2)]).astype(np.int32))[:, None]
    call["kv"] = torch.from_numpy(random.standard_normal((4096, 1, d_qk)).astype(np.float32)).to(torch.float8_e4m3fn)
    return call


def poisoned(call):
    s_q, h_q, _ = call["q"].shape
    return {
        "out": torch.full((s_q, h_q, 512), float("nan"), device="cuda").bfloat16(),
        "max_logits": torch.full((s_q, h_q), float("nan"), device="cuda"),
        "lse": torch.full((s_q, h_q), float("nan"), device="cuda"),
    }


@pytest.mark.parametrize("d_qk, topk", PREFILL_BOUNDS)
@pytest.mark.parametrize("sink", [False, True])
def test_prefill_numerics(d_qk, topk, sink):
    call = contract_prefill(d_qk, topk, sink=sink, lengths=sink)
    expected = prefill_reference(call)
    on_card = on_cuda(call)
    out, max_logits, lse = sparse_mla.sparse_mla_q8kv8_prefill_fwd(**on_card, **poisoned(on_card))
    assert_close(out, expected[0], PREFILL_BOUNDS[d_qk, topk] * (1.5 if sink else 1))  # short rows round fewer P
    for given, wanted in ((max_logits, expected[1]), (lse, expected[2])):
        finite = np.isfinite(wanted)
        # The fp8 tensor core's accumulator: 3e-3 of the largest logit (contract part C).
        largest = np.abs(expected[1][np.isfinite(expected[1])]).max()
        assert np.abs(float64(given)[finite] - wanted[finite]).max() < 3e-3 * max(1.0, largest)
        np.testing.assert_array_equal(float64(given)[~finite], wanted[~finite])


@pytest.mark.parametrize("heads", [1, 8, 16, 64, 128])
@pytest.mark.parametrize("fp8, dtype", [(True, torch.bfloat16), (False, torch.bfloat16), (True, torch.float16)])
def test_decode_numerics(heads, fp8, dtype):
    call = decode_call(lengths=(0, 640, 3, 129), pages=2000, h=heads, fp8=fp8, dtype=dtype)
    expected, expected_lse = decode_reference(call)
    on_card = on_cuda(call)
    out = sparse_mla.sparse_attn_v4_paged_decode(**on_card)
    assert_close(out, expected, DECODE_BOUND)
    again, lse = sparse_mla.decode(**on_card, return_lse=True)
    assert torch.equal(again, out)
    assert_close(lse, expected_lse, 1e-3)


def test_the_general_api_on_the_card():
    call = prefill_call(s_q=5, h_q=16, topk=100, sink=True)
    out, _, _ = sparse_mla.prefill(**on_cuda(call))
    assert_close(out, prefill_reference(call)[0], 3.5e-2)


def test_the_current_stream_is_used():
    call = on_cuda(contract_prefill())
    expected = sparse_mla.sparse_mla_q8kv8_prefill_fwd(**call)[0]
    stream = torch.cuda.Stream()
    outs = [torch.zeros_like(expected) for _ in range(20)]
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)  # about a tenth of a second
        result = sparse_mla.sparse_mla_q8kv8_prefill_fwd(**call, out=outs[0])[0]
    assert not stream.query()  # it waits behind the sleep, so it is on that stream
    stream.synchronize()
    assert torch.equal(result, expected)
    other = torch.cuda.Stream()
    for out in outs:
        with torch.cuda.stream(stream if out is outs[0] else other):
            sparse_mla.sparse_mla_q8kv8_prefill_fwd(**call, out=out)
    torch.cuda.synchronize()
    assert all(torch.equal(out, expected) for out in outs)


@pytest.mark.parametrize("which", ["prefill", "decode"])
def test_graph_capture_and_replay(which):
    if which == "prefill":
        call = on_cuda(contract_prefill(lengths=True, sink=True))
        run, lengths = sparse_mla.sparse_mla_q8kv8_prefill_fwd, call["topk_length"]
    else:
        call = on_cuda(decode_call(lengths=(300, 200, 40), pages=1000, h=16))
        run, lengths = sparse_mla.sparse_attn_v4_paged_decode, call["kv_indptr"]
    first = lambda result: result[0] if isinstance(result, tuple) else result
    first(run(**call))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = first(run(**call))
    for change in (0, 1):
        if change:  # other lengths in the same memory
            lengths.copy_(torch.tensor([5, 2000] if which == "prefill" else [0, 10, 20, 540], dtype=torch.int32))
        captured.zero_()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(captured, first(run(**call)))


def test_compile_on_the_card_uses_the_stream_of_the_call():
    call = on_cuda(contract_prefill())
    names = ("q", "kv", "indices", "q_scale", "kv_scale")

    def block(q, kv, indices, q_scale, kv_scale):
        return sparse_mla.sparse_mla_q8kv8_prefill_fwd(q, kv, indices, 0.04, q_scale, kv_scale)[0] * 2

    arguments = [call[name] for name in names]
    expected = block(*arguments)
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(*arguments), expected)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        given = compiled(*arguments)
        assert not stream.query()
    stream.synchronize()
    assert torch.equal(given, expected)


def test_opcheck_of_the_contract_ops():
    tests = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    call = on_cuda(contract_prefill())
    out = poisoned(call)
    arguments = (*(call[n] for n in ("q", "kv", "indices", "sm_scale", "q_scale", "kv_scale", "d_v")), None, None, *out.values())
    torch.library.opcheck(torch.ops.sparse_mla.sparse_mla_q8kv8_prefill_fwd.default, arguments, test_utils=tests)
    paged = on_cuda(decode_call(h=16))
    arguments = (*paged.values(), torch.empty_like(paged["q"]))
    torch.library.opcheck(torch.ops.sparse_mla.sparse_attn_v4_paged_decode.default, arguments, test_utils=tests)


def test_values_are_checked_on_the_card_when_asked():
    call = on_cuda(contract_prefill(lengths=True))
    call["topk_length"][1] = 4096
    sparse_mla.sparse_mla_q8kv8_prefill_fwd(**call)  # clamped
    with pytest.raises(ValueError) as raised:
        sparse_mla.prefill(**call, check_values=True)
    assert str(raised.value) == "topk_length values must satisfy 0 <= topk_length <= topk (2048)"


def test_a_workspace_of_the_callers():
    call = on_cuda(decode_call(lengths=(3000, 5), pages=4000, h=16))
    tensors = [call[name] for name in ("q", "unified_kv", "kv_indices", "kv_indptr", "kv_scales")]
    size = sparse_mla.decode_workspace_bytes(*tensors)
    expected = sparse_mla.decode(**call)
    workspace = torch.empty(max(size, 1), dtype=torch.uint8, device="cuda")
    assert torch.equal(sparse_mla.decode(**call, workspace=workspace), expected)
    if size:
        with pytest.raises(ValueError, match="workspace"):
            sparse_mla.decode(**call, workspace=workspace[: size // 2])


def test_no_memory_grows_and_no_call_waits():
    call = on_cuda(contract_prefill())
    for _ in range(3):
        sparse_mla.sparse_mla_q8kv8_prefill_fwd(**call)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(200):
        sparse_mla.sparse_mla_q8kv8_prefill_fwd(**call)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda.set_sync_debug_mode("error")
        try:
            sparse_mla.sparse_mla_q8kv8_prefill_fwd(**call)
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("library", ["cupy", "jax"])
def test_arrays_of_other_libraries(library):
    module = pytest.importorskip(library)
    call = decode_call(fp8=False, dtype=torch.float16)
    expected = sparse_mla.decode(**on_cuda(call))
    convert = module.asarray if library == "cupy" else module.numpy.asarray
    arrays = {name: convert(value.numpy()) if isinstance(value, torch.Tensor) else value for name, value in call.items()}
    out = sparse_mla.decode(**arrays)
    assert type(out) is type(arrays["q"]) or isinstance(out, module.Array)
    host = module.asnumpy(out) if library == "cupy" else np.asarray(out)
    assert np.array_equal(host, expected.cpu().numpy())


def test_a_cache_on_the_card_holds_what_one_on_the_cpu_holds():
    rows = torch.randn(40, 576)
    slots = torch.randperm(100)[:40].to(torch.int32)
    indices = slots[torch.randint(0, 40, (2, 1, 30))]
    results = []
    for device in ("cpu", "cuda"):
        cache, workspace = sparse_mla.KvCache("v32_656", 100, device=device), sparse_mla.KvCache("q8kv8_576", 60, device=device)
        cache.append(rows.to(device), slots.to(device))
        remapped = cache.gather(indices.to(device), workspace)
        results.append((cache.data.cpu(), workspace.data.view(torch.uint8).cpu(), remapped.cpu()))
    assert all(torch.equal(a, b) for a, b in zip(*results))


@pytest.mark.parametrize("entry_point", ["prefill", "decode"])
def test_host_time(entry_point):
    """The goal is 12 us a call; the bound leaves room for a busy machine. bench/python/host_time.py prints the figure."""
    if entry_point == "prefill":
        call, run = on_cuda(contract_prefill(topk=128)), sparse_mla.sparse_mla_q8kv8_prefill_fwd
    else:
        call, run = on_cuda(decode_call(lengths=(64,), h=16)), sparse_mla.sparse_attn_v4_paged_decode
    best = float("inf")
    for _ in range(20):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(100):
            run(**call)
        best = min(best, (time.perf_counter() - start) / 100)
    assert best < 24e-6, f"{best * 1e6:.1f} us"
