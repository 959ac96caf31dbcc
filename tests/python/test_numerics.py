"""The CPU backend through Python against float64."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import sparse_mla
from cases import (
    DecodeShape,
    PrefillShape,
    assert_close,
    decode_call,
    decode_reference,
    prefill_call,
    prefill_reference,
)

BOUND = 3e-3
LSE_BOUND = 1e-5


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"sink": True},
        {"sink": True, "lengths": True},
        {"d_qk": 512, "h_q": 128, "topk": 128},
        {"d_v": 64, "h_q": 1, "topk": 1},
        {"scales": False, "h_q": 17, "topk": 300},
        {"s_q": 1, "s_kv": 1},
    ],
    ids=str,
)
def test_prefill(changes):
    call = prefill_call(**changes)
    out, max_logits, lse = sparse_mla.prefill(**call)
    expected = prefill_reference(call)
    assert (out.dtype, max_logits.dtype, lse.dtype) == (torch.bfloat16, torch.float32, torch.float32)
    assert_close(out, expected[0], BOUND)
    assert_close(max_logits, expected[1], LSE_BOUND)
    assert_close(lse, expected[2], LSE_BOUND)


@settings(max_examples=40, deadline=None)
@given(
    st.builds(
        PrefillShape,
        s_q=st.integers(1, 5),
        s_kv=st.integers(1, 200),
        h_q=st.integers(1, 130),
        d_qk=st.sampled_from([64, 512, 576]),
        topk=st.integers(1, 300),
        d_v=st.just(64),
        scales=st.booleans(),
        sink=st.booleans(),
        lengths=st.booleans(),
        seed=st.integers(0, 10**6),
    )
)
def test_prefill_of_any_shape(shape):
    call = prefill_call(shape)
    expected = prefill_reference(call)
    out, max_logits, lse = sparse_mla.prefill(**call)
    assert_close(out, expected[0], BOUND)
    assert_close(max_logits, expected[1], LSE_BOUND)
    assert_close(lse, expected[2], LSE_BOUND)


def test_outputs_that_are_given_are_written_and_returned():
    call = prefill_call(sink=True)
    buffers = (torch.full((3, 8, 512), 7.0).bfloat16(), torch.full((3, 8), 7.0), torch.full((3, 8), 7.0))
    given_back = sparse_mla.prefill(**call, out=buffers[0], max_logits=buffers[1], lse=buffers[2])
    assert all(a is b for a, b in zip(given_back, buffers))
    fresh = sparse_mla.prefill(**call)
    assert all(torch.equal(a, b) for a, b in zip(buffers, fresh))


def test_empty_calls():
    call = prefill_call()
    call.update(q=call["q"][:0], indices=call["indices"][:0])
    out, max_logits, lse = sparse_mla.prefill(**call)
    assert (out.shape, max_logits.shape, lse.shape) == ((0, 8, 512), (0, 8), (0, 8))
    empty = decode_call(lengths=())
    assert sparse_mla.decode(**empty).shape == (0, 8, 512)


def test_rows_of_a_pool_with_gaps():
    call = prefill_call()
    pool = torch.full((400, 640), float("nan")).to(torch.float8_e4m3fn)
    pool[:, 16:592] = call["kv"][:, 0]
    wide = torch.zeros(3, 8, 640).to(torch.float8_e4m3fn)
    wide[..., :576] = call["q"]
    expected = sparse_mla.prefill(**call)[0]
    assert torch.equal(sparse_mla.prefill(**{**call, "kv": pool[:, 16:592].unsqueeze(1), "q": wide[..., :576]})[0], expected)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"fp8": False},
        {"fp8": False, "dtype": torch.float16},
        {"dtype": torch.float16, "h": 3},
        {"sink": False},
        {"h": 128, "d": 576, "lengths": (70, 0, 3)},
    ],
    ids=str,
)
def test_decode(changes):
    call = decode_call(**changes)
    out, lse = sparse_mla.decode(**call, return_lse=True)
    expected, expected_lse = decode_reference(call)
    assert out.dtype == call["q"].dtype
    assert_close(out, expected, BOUND)
    assert_close(lse, expected_lse, LSE_BOUND)


@settings(max_examples=30, deadline=None)
@given(
    st.builds(
        DecodeShape,
        lengths=st.lists(st.integers(0, 150), min_size=1, max_size=6).map(tuple),
        pages=st.integers(1, 200),
        h=st.integers(1, 128),
        d=st.sampled_from([64, 512, 576]),
        fp8=st.booleans(),
        dtype=st.sampled_from([torch.bfloat16, torch.float16]),
        sink=st.booleans(),
        seed=st.integers(0, 10**6),
    )
)
def test_decode_of_any_shape(shape):
    call = decode_call(shape)
    expected, expected_lse = decode_reference(call)
    out, lse = sparse_mla.decode(**call, return_lse=True)
    assert_close(out, expected, BOUND)
    assert_close(lse, expected_lse, LSE_BOUND)


def test_decode_of_two_pools_and_fewer_values():
    call = decode_call(lengths=(5, 0, 40))
    other = decode_call(lengths=(3, 0, 90), pages=50, seed=2)
    second = sparse_mla.PagedPool(other["unified_kv"], other["kv_indices"], other["kv_indptr"], other["kv_scales"])
    out, lse = sparse_mla.decode(**call, second_pool=second, d_v=448, return_lse=True)
    expected, expected_lse = decode_reference(call, 448, second)
    assert_close(out, expected, BOUND)
    assert_close(lse, expected_lse, LSE_BOUND)


def test_kv_scales_with_a_strided_last_dimension():
    call = decode_call()
    expected = sparse_mla.decode(**call)
    call["kv_scales"] = call["kv_scales"].t().contiguous().t()
    assert call["kv_scales"].stride() == (1, 300)
    assert torch.equal(sparse_mla.decode(**call), expected)


def test_a_sink_alone_changes_out_and_not_lse():
    call = prefill_call(sink=True)
    without = {name: value for name, value in call.items() if name != "attn_sink"}
    out, _, lse = sparse_mla.prefill(**call)
    plain, _, plain_lse = sparse_mla.prefill(**without)
    assert torch.equal(lse, plain_lse)
    assert torch.equal(out[:, 0], plain[:, 0])  # -inf is "no sink"
    assert not out[:, -1].any() and plain[0, -1].any()  # +inf takes everything


def test_repeats_are_equal_bit_for_bit():
    call = prefill_call(h_q=64, sink=True)
    first = sparse_mla.prefill(**call)
    for _ in range(5):
        assert all(torch.equal(a, b) for a, b in zip(first, sparse_mla.prefill(**call, batch_invariant=True)))


def test_the_reference_tells_wrong_results_apart():
    """Negative controls: what the bounds of these tests must not let through."""
    call = prefill_call(sink=True)
    expected = prefill_reference(call)[0]
    for wrong in (np.zeros_like(expected), prefill_reference({**call, "attn_sink": None})[0], expected * 1.01):
        with pytest.raises(AssertionError):
            assert_close(wrong, expected, BOUND)
