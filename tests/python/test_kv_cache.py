"""sparse_mla.kv_cache: what goes in comes out, and into the entry points. The arithmetic itself: tests/kv/."""

import pytest
import torch

import sparse_mla
from cases import assert_close, decode_reference, prefill_reference
from sparse_mla.kv_cache import KvCache, inspect, to_e4m3fn

I32 = torch.int32
FORMATS = ["q8kv8_576", "q8kv8_512", "unified_bf16", "unified_fp16", "unified_fp8_1x64", "v32_656", "v4_584"]
BOUND = {"unified_bf16": 3e-3, "unified_fp16": 5e-4}


@pytest.mark.parametrize("format", FORMATS)
def test_append_and_dequantise(format):
    cache = KvCache(format, 100, page_size=7)
    rows = torch.randn(5, cache.width)
    cache.append(rows, torch.tensor([90, -1, 3, 64, 3], dtype=I32))
    back = cache.dequantise(torch.tensor([[90, 3, 64, -1]], dtype=I32), dtype=torch.float32)
    wanted = torch.stack([rows[0], rows[4], rows[3], torch.zeros(cache.width)])  # of slot 3's two rows the last
    assert_close(back, wanted.double().numpy(), BOUND.get(format, 3.5e-2))
    assert cache.dequantise().shape == (cache.rows, cache.width) and cache.rows >= 100
    assert cache.dequantise().dtype == torch.bfloat16


def test_bytes_are_torchs_own_rounding():
    cache = KvCache("q8kv8_512", 64)
    rows = torch.randn(64, 512, dtype=torch.bfloat16) * 40
    cache.append(rows)
    assert torch.equal(cache.data.view(torch.uint8), rows.to(torch.float8_e4m3fn).view(torch.uint8))


def test_prefill_on_a_gathered_cache():
    pool = KvCache("v32_656", 300)
    rows = torch.randn(300, 576)
    pool.append(rows)
    indices = torch.randint(0, 300, (2, 1, 50), dtype=I32)
    indices[0, 0, 10] = -1
    workspace = KvCache("q8kv8_576", 100)
    remapped = pool.gather(indices, workspace)
    assert (remapped[0, 0, 10] == -1) and remapped.dtype == I32 and remapped.shape == indices.shape
    q = torch.randn(2, 4, 576).to(torch.float8_e4m3fn)
    out, _, _ = sparse_mla.prefill(q, indices=remapped, sm_scale=0.04, **workspace.prefill_arguments())
    wanted = prefill_reference({"q": q, "kv": rows.unsqueeze(1), "indices": indices, "sm_scale": 0.04})[0]
    assert_close(out, wanted, 6e-2)  # two roundings to e4m3


def test_decode_on_a_converted_cache():
    rows = torch.randn(60, 512)
    plain = KvCache("unified_bf16", 60)
    plain.append(rows)
    cache = plain.convert(KvCache("unified_fp8_1x64", 60))
    call = {
        "q": torch.randn(1, 3, 512).bfloat16(),
        "kv_indices": torch.arange(60, dtype=I32),
        "kv_indptr": torch.tensor([0, 60], dtype=I32),
        "attn_sink": None,
        "softmax_scale": 0.05,
    }
    out = sparse_mla.decode(**call, **cache.decode_arguments())
    assert_close(out, decode_reference({**call, "unified_kv": rows, "kv_scales": None})[0], 6e-2)


def test_a_slice_of_a_pool():
    pool = torch.zeros(50, 640, dtype=torch.bfloat16)
    view = KvCache.over("unified_bf16", pool[10:, 64:576])
    view.append(torch.ones(1, 512), torch.tensor([2], dtype=I32))
    assert pool[12, 64:576].eq(1).all() and pool.sum() == 512


def test_refusals():
    cache = KvCache("q8kv8_576", 10)
    with pytest.raises(ValueError) as raised:
        cache.append(torch.randn(2, 512))
    assert raised.value.__notes__
    with pytest.raises(ValueError):
        cache.append(torch.randn(1, 576), torch.tensor([10], dtype=I32))  # past the end, on the CPU
    assert not cache.data.view(torch.uint8).any()
    with pytest.raises(ValueError, match='unknown KV cache format "q4"'):
        KvCache("q4", 10)
    with pytest.raises(ValueError, match='unknown scaling "max"'):
        cache.append(torch.randn(1, 576), scaling="max")
    with pytest.raises(ValueError, match="decode does not read q8kv8_576 rows"):
        cache.decode_arguments()
    with pytest.raises(ValueError, match="prefill does not read v32_656 rows"):
        KvCache("v32_656", 4).prefill_arguments()


def test_inspect_and_other_floats():
    possible = {verdict.format for verdict in inspect(torch.zeros(4, 1, 576).to(torch.float8_e4m3fn)) if verdict.possible}
    assert "q8kv8_576" in possible and "unified_bf16" not in possible
    verdicts = inspect(torch.zeros(4, 576).to(torch.float8_e4m3fnuz))
    assert [verdict.format for verdict in verdicts] == FORMATS
    assert all(verdict.objections for verdict in verdicts if verdict.format.startswith("q8kv8"))
    codes = torch.arange(256, dtype=torch.uint8)
    finite = codes.view(torch.float8_e4m3fnuz)[(codes != 0x80) & (codes & 0x7F != 0x7F)]
    assert torch.equal(to_e4m3fn(finite, 0.5).view(torch.uint8), finite.view(torch.uint8))
