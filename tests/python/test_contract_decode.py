"""docs/contract.md part B through Python, with fake CUDA tensors."""

import pytest
import torch
from torch._subclasses import FakeTensorMode

import sparse_mla

FP8, F32, F16, BF16, I32 = torch.float8_e4m3fn, torch.float32, torch.float16, torch.bfloat16, torch.int32


def cuda(*shape, dtype=F32, device="cuda:0"):
    return torch.empty(*shape, dtype=dtype, device=device)


def good_call(fp8=True):
    return {
        "q": cuda(3, 16, 512, dtype=BF16),
        "unified_kv": cuda(100, 512, dtype=FP8 if fp8 else BF16),
        "kv_indices": cuda(40, dtype=I32),
        "kv_indptr": cuda(4, dtype=I32),
        "attn_sink": cuda(16),
        "softmax_scale": 0.04,
        "kv_scales": cuda(100, 8) if fp8 else None,
    }


def strided(shape, strides, dtype):
    return torch.empty_strided(shape, strides, dtype=dtype, device="cuda:0")


# contract id, whether the pool is fp8, the arguments that break the rule, the whole message.
RULES = [
    ("B1", True, lambda: {"q": cuda(3, 16, 512, dtype=BF16, device="cpu")}, "sparse_attn_v4_paged_decode requires CUDA tensors"),
    ("B2", True, lambda: {"q": cuda(3, 16, 512)}, "sparse_attn_v4_paged_decode expects fp16/bf16 q, got torch.float32"),
    (
        "B3",
        True,
        lambda: {"unified_kv": cuda(100, 512, dtype=BF16)},
        "kv_scales supplied but unified_kv is torch.bfloat16, expected torch.float8_e4m3fn",
    ),
    (
        "B3",
        True,
        lambda: {"unified_kv": cuda(100, 512, dtype=torch.float8_e4m3fnuz)},
        "kv_scales supplied but unified_kv is torch.float8_e4m3fnuz, expected torch.float8_e4m3fn",
    ),
    ("B4", True, lambda: {"kv_scales": cuda(100, 8, dtype=BF16)}, "kv_scales must be fp32, got torch.bfloat16"),
    (
        "B5",
        False,
        lambda: {"q": cuda(3, 16, 80, dtype=BF16), "unified_kv": cuda(100, 80, dtype=BF16)},
        "D=80 must be divisible by GROUP_SIZE=64",
    ),
    ("B6", True, lambda: {"kv_scales": cuda(99, 8)}, "kv_scales shape (99, 8) does not match expected (100, 8)"),
    ("B6", True, lambda: {"kv_scales": cuda(100, 4)}, "kv_scales shape (100, 4) does not match expected (100, 8)"),
    (
        "B7",
        False,
        lambda: {"unified_kv": cuda(100, 512, dtype=F16)},
        "unified_kv dtype mismatch: kv=torch.float16, q=torch.bfloat16",
    ),
    (
        "B7",
        False,
        lambda: {"unified_kv": cuda(100, 512, dtype=FP8)},
        "unified_kv dtype mismatch: kv=torch.float8_e4m3fn, q=torch.bfloat16",
    ),
    ("B8", True, lambda: {"q": cuda(16, 512, dtype=BF16)}, "q must have shape (N, H, D), got (16, 512)"),
    ("B8", True, lambda: {"kv_indices": cuda(2, 20, dtype=I32)}, "kv_indices must have shape (total_indices,), got (2, 20)"),
    ("B8", True, lambda: {"kv_indptr": cuda(3, dtype=I32)}, "kv_indptr must have shape (4,), got (3,)"),
    ("B8", True, lambda: {"kv_indices": cuda(40, dtype=torch.int64)}, "kv_indices must be int32, got torch.int64"),
    ("B8", True, lambda: {"kv_indptr": cuda(4, dtype=torch.int64)}, "kv_indptr must be int32, got torch.int64"),
    (
        "B8",
        True,
        lambda: {"unified_kv": cuda(100, 512, dtype=FP8, device="cuda:1")},
        "unified_kv must be on q's device cuda:0, got cuda:1",
    ),
    (
        "B8",
        True,
        lambda: {"kv_indices": cuda(40, dtype=I32, device="cpu")},
        "kv_indices must be on q's device cuda:0, got cpu",
    ),
]


@pytest.mark.parametrize("rule, fp8, change, message", RULES, ids=[f"{rule[0]}-{i}" for i, rule in enumerate(RULES)])
def test_each_rule_raises_its_message_to_the_letter(rule, fp8, change, message):
    with FakeTensorMode():
        call = {**good_call(fp8), **change()}
        with pytest.raises(RuntimeError) as raised:
            sparse_mla.sparse_attn_v4_paged_decode(**call)
        violations = sparse_mla.check("sparse_attn_v4_paged_decode", **call)
    assert type(raised.value) is RuntimeError
    assert str(raised.value) == message
    assert violations[0].message == message
    assert raised.value.__notes__ == list(violations[0].notes())
    (entry,) = (entry for entry in sparse_mla.rules() if entry.slug == violations[0].slug)
    assert entry.contract_id == rule and entry.error_class == "RuntimeError"


# Rules of this library's own (B8) whose wording is not the contract's: they refuse, and name the argument.
OWN = [
    ("attn_sink", lambda: {"attn_sink": cuda(17)}),
    ("attn_sink", lambda: {"attn_sink": cuda(16, dtype=BF16)}),
    ("attn_sink", lambda: {"attn_sink": None}),
    ("attn_sink", lambda: {"attn_sink": 0.5}),
    ("kv_scales", lambda: {"kv_scales": 0.5}),
    ("unified_kv", lambda: {"unified_kv": cuda(100, 1, 512, dtype=FP8)}),
    ("unified_kv", lambda: {"unified_kv": cuda(100, 576, dtype=FP8), "kv_scales": cuda(100, 9)}),
    ("unified_kv", lambda: {"unified_kv": strided((100, 512), (1, 100), FP8)}),
    ("q", lambda: {"q": strided((3, 16, 512), (16384, 1024, 2), BF16)}),
    ("kv_indptr", lambda: {"kv_indptr": strided((4,), (2,), I32)}),
]


@pytest.mark.parametrize("argument, change", OWN)
def test_own_rules_name_the_argument(argument, change):
    with FakeTensorMode():
        call = {**good_call(), **change()}
        violations = sparse_mla.check("sparse_attn_v4_paged_decode", **call)
        with pytest.raises(RuntimeError) as raised:
            sparse_mla.sparse_attn_v4_paged_decode(**call)
    assert violations[0].argument == argument
    assert str(raised.value) == violations[0].message and argument in str(raised.value)


@pytest.mark.parametrize("fp8, dtype", [(True, BF16), (False, BF16), (True, F16), (False, F16)])
def test_a_good_call_gets_its_shape(fp8, dtype):
    with FakeTensorMode():
        call = good_call(fp8)
        call["q"] = cuda(3, 16, 512, dtype=dtype)
        if not fp8:
            call["unified_kv"] = cuda(100, 512, dtype=dtype)
        out = sparse_mla.sparse_attn_v4_paged_decode(**call)
    assert (out.shape, out.dtype, out.device.type) == ((3, 16, 512), dtype, "cuda")


def test_strided_rows_and_strided_scales_break_no_rule():
    with FakeTensorMode():
        call = good_call()
        call["unified_kv"] = strided((100, 512), (1024, 1), FP8)
        call["q"] = strided((3, 16, 512), (20000, 640, 1), BF16)
        call["kv_scales"] = strided((100, 8), (1, 100), F32)
        assert sparse_mla.check("sparse_attn_v4_paged_decode", **call) == []


@pytest.mark.parametrize(
    "indptr, message",
    [
        ([0, 2, 1], "kv_indptr must not decrease, got 1 after 2 at [2]"),
        ([0, 2, 9], "kv_indptr values must satisfy 0 <= kv_indptr <= total_indices (3), got 9 at [2]"),
    ],
)
def test_values_are_checked_on_cpu_tensors(indptr, message):
    pool = torch.zeros(4, 64, dtype=BF16)
    with pytest.raises(RuntimeError) as raised:
        sparse_mla.decode(
            torch.zeros(2, 1, 64, dtype=BF16), pool, torch.zeros(3, dtype=I32), torch.tensor(indptr, dtype=I32), None, 1.0
        )
    assert str(raised.value) == message
