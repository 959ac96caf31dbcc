import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import sparse_mla
from cases import FP8, prefill_call


def test_guards():
    cache = torch.zeros(6, 1, 576).to(FP8)
    assert sparse_mla.is_q8kv8_cache(cache) and sparse_mla.is_mla_kv(cache) and sparse_mla.kv_ready(cache)
    for wrong in (
        cache.to(torch.bfloat16),
        torch.zeros(6, 1, 576).to(torch.float8_e4m3fnuz),
        torch.zeros(6, 1, 576).to(torch.float8_e5m2),
        torch.zeros(6, 1, 640).to(FP8)[..., :576],
    ):
        assert not sparse_mla.is_q8kv8_cache(wrong) and not sparse_mla.kv_ready(wrong)
    for wrong in (cache.view(6, 576), torch.zeros(6, 8, 576).to(FP8), torch.zeros(6, 1, 640).to(FP8)):
        assert not sparse_mla.kv_ready(wrong)
    assert not sparse_mla.is_mla_kv(torch.zeros(6, 8, 576))


@pytest.mark.parametrize("heads, padded", [(1, 64), (63, 64), (64, 64), (65, 128), (0, 64)])
def test_pad_heads_and_back(heads, padded):
    q = torch.randn(2, heads, 8)
    wide = sparse_mla.pad_heads(q)
    assert wide.shape == (2, padded, 8) and not wide[:, heads:].any()
    assert torch.equal(sparse_mla.unpad_heads(wide, heads), q)
    assert (wide is q) == (heads == padded)
    assert sparse_mla.pad_heads(torch.randn(2, 16, 576).to(FP8)).dtype == FP8
    with pytest.raises(ValueError, match="h_q must be between 0 and 64, got 65"):
        sparse_mla.unpad_heads(torch.randn(2, 64, 8), 65)
    with pytest.raises(ValueError, match="multiple must be at least 1, got 0"):
        sparse_mla.pad_heads(q, 0)


@pytest.mark.parametrize("topk, padded", [(1, 128), (128, 128), (129, 256), (0, 128)])
def test_pad_topk(topk, padded):
    indices = torch.randint(0, 9, (3, 1, topk), dtype=torch.int32)
    wide = sparse_mla.pad_topk(indices)
    assert wide.shape == (3, 1, padded) and wide.dtype == torch.int32
    assert torch.equal(wide[..., :topk], indices) and (wide[..., topk:] == -1).all()


def test_padding_changes_no_result():
    call = prefill_call(h_q=5, topk=70, sink=True)
    expected = sparse_mla.prefill(**call)
    padded = {
        **call,
        "q": sparse_mla.pad_heads(call["q"]),
        "indices": sparse_mla.pad_topk(call["indices"]),
        "attn_sink": torch.cat([call["attn_sink"], torch.full((59,), float("-inf"))]),
        "topk_length": sparse_mla.topk_length_from_indices(call["indices"]),
    }
    for wide, narrow in zip(sparse_mla.prefill(**padded), expected):
        assert torch.equal(sparse_mla.unpad_heads(wide, 5), narrow)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.integers(-3, 5), min_size=7, max_size=7), min_size=1, max_size=5))
def test_topk_length_is_the_last_valid_position(rows):
    lengths = sparse_mla.topk_length_from_indices(torch.tensor(rows, dtype=torch.int32).unsqueeze(1))
    assert lengths.dtype == torch.int32
    assert lengths.tolist() == [max((i + 1 for i, slot in enumerate(row) if slot >= 0), default=0) for row in rows]


def test_topk_length_of_odd_shapes():
    assert sparse_mla.topk_length_from_indices(torch.zeros(3, 0, dtype=torch.int32)).tolist() == [0, 0, 0]
    assert sparse_mla.topk_length_from_indices(torch.zeros(0, 1, 4, dtype=torch.int32)).shape == (0,)
    with pytest.raises(ValueError, match=r"indices must have shape \(s_q, topk\) or \(s_q, 1, topk\), got \(2, 2, 4\)"):
        sparse_mla.topk_length_from_indices(torch.zeros(2, 2, 4, dtype=torch.int32))
