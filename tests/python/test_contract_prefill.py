"""docs/contract.md part A through Python, with fake CUDA tensors: metadata without a GPU."""

import pytest
import torch
from torch._subclasses import FakeTensorMode

import sparse_mla

FP8, F32, BF16, I32 = torch.float8_e4m3fn, torch.float32, torch.bfloat16, torch.int32


def cuda(*shape, dtype=F32, device="cuda:0"):
    return torch.empty(*shape, dtype=dtype, device=device)


def good_call():
    return {
        "q": cuda(2, 64, 576, dtype=FP8),
        "kv": cuda(300, 1, 576, dtype=FP8),
        "indices": cuda(2, 1, 128, dtype=I32),
        "sm_scale": 0.04,
        "q_scale": cuda(1),
        "kv_scale": cuda(1),
        "attn_sink": cuda(64),
        "topk_length": cuda(2, dtype=I32),
        "out": cuda(2, 64, 512, dtype=BF16),
        "max_logits": cuda(2, 64),
        "lse": cuda(2, 64),
    }


def gaps(*shape, dtype):
    """A tensor of this shape whose rows have a gap between them."""
    strides = [1]
    for size in [shape[-1] + 64, *reversed(shape[1:-1])]:
        strides.append(strides[-1] * size)
    return torch.empty_strided(shape, strides[::-1], dtype=dtype, device="cuda:0")


def strided(length, dtype):
    return torch.empty_strided((length,), (2,), dtype=dtype, device="cuda:0")


def aliased():
    memory = cuda(256)
    return {"max_logits": memory.as_strided((2, 64), (64, 1), 0), "lse": memory.as_strided((2, 64), (64, 1), 127)}


# contract id, the arguments that break the rule, the whole message. Called inside FakeTensorMode.
RULES = [
    ("A1", lambda: {"q": cuda(2, 576, dtype=FP8)}, "q must have shape (s_q, h_q, d_qk), got (2, 576)"),
    ("A2", lambda: {"kv": cuda(300, 576, dtype=FP8)}, "kv must have shape (s_kv, h_kv, d_qk), got (300, 576)"),
    ("A3", lambda: {"indices": cuda(5, dtype=I32)}, "indices must have shape (s_q, h_kv, topk), got (5,)"),
    ("A4", lambda: {"q": cuda(2, 64, 576, dtype=FP8, device="cpu")}, "q must be a CUDA tensor"),
    ("A5", lambda: {"kv": cuda(300, 1, 576, dtype=FP8, device="cpu")}, "kv must be a CUDA tensor"),
    ("A6", lambda: {"indices": cuda(2, 1, 128, dtype=I32, device="cpu")}, "indices must be a CUDA tensor"),
    ("A7", lambda: {"kv": cuda(300, 1, 576, dtype=FP8, device="cuda:1")}, "kv must be on q's device cuda:0, got cuda:1"),
    (
        "A8",
        lambda: {"indices": cuda(2, 1, 128, dtype=I32, device="cuda:1")},
        "indices must be on q's device cuda:0, got cuda:1",
    ),
    ("A9", lambda: {"q": cuda(2, 64, 576, dtype=BF16)}, "q must be torch.float8_e4m3fn, got torch.bfloat16"),
    (
        "A10",
        lambda: {"kv": cuda(300, 1, 576, dtype=torch.float8_e4m3fnuz)},
        "kv must be torch.float8_e4m3fn, got torch.float8_e4m3fnuz",
    ),
    ("A10", lambda: {"kv": cuda(300, 1, 576, dtype=torch.float8_e5m2)}, "kv must be torch.float8_e4m3fn, got torch.float8_e5m2"),
    ("A11", lambda: {"q": gaps(2, 64, 576, dtype=FP8)}, "q must be contiguous"),
    ("A12", lambda: {"kv": gaps(300, 1, 576, dtype=FP8)}, "kv must be contiguous"),
    ("A13", lambda: {"indices": gaps(2, 1, 128, dtype=I32)}, "indices must be contiguous"),
    ("A14", lambda: {"kv": cuda(300, 1, 512, dtype=FP8)}, "kv d_qk must match q d_qk=576, got 512"),
    (
        "A15",
        lambda: {"q": cuda(2, 16, 576, dtype=FP8)},
        "sparse_mla_q8kv8_prefill_fwd requires h_q padded to a positive multiple of 64, got 16",
    ),
    (
        "A15",
        lambda: {"q": cuda(2, 0, 576, dtype=FP8)},
        "sparse_mla_q8kv8_prefill_fwd requires h_q padded to a positive multiple of 64, got 0",
    ),
    ("A16", lambda: {"kv": cuda(300, 8, 576, dtype=FP8)}, "sparse_mla_q8kv8_prefill_fwd requires h_kv=1, got 8"),
    (
        "A17",
        lambda: {"q": cuda(2, 64, 640, dtype=FP8), "kv": cuda(300, 1, 640, dtype=FP8)},
        "sparse_mla_q8kv8_prefill_fwd supports d_qk=512/576, got 640",
    ),
    ("A18", lambda: {"indices": cuda(3, 1, 128, dtype=I32)}, "indices must have shape (2, 1, topk), got (3, 1, 128)"),
    ("A19", lambda: {"indices": cuda(2, 1, 128, dtype=torch.int64)}, "indices must be int32, got torch.int64"),
    (
        "A20",
        lambda: {"indices": cuda(2, 1, 100, dtype=I32)},
        "Q8KV8 sparse-prefill topk width must be a positive multiple of 128, got 100",
    ),
    (
        "A21",
        lambda: {"topk_length": cuda(2, dtype=torch.int64)},
        "topk_length must be int32 with shape (2,), got (2,)/torch.int64",
    ),
    ("A21", lambda: {"topk_length": cuda(3, dtype=I32)}, "topk_length must be int32 with shape (2,), got (3,)/torch.int32"),
    ("A22", lambda: {"topk_length": cuda(2, dtype=I32, device="cpu")}, "topk_length must be a CUDA tensor"),
    (
        "A23",
        lambda: {"topk_length": cuda(2, dtype=I32, device="cuda:1")},
        "topk_length must be on q's device cuda:0, got cuda:1",
    ),
    ("A24", lambda: {"topk_length": strided(2, I32)}, "topk_length must be contiguous"),
    ("A26", lambda: {"d_v": 448, "out": None}, "sparse_mla_q8kv8_prefill_fwd only supports d_v=512, got 448"),
    ("A27", lambda: {"topk_length": None}, "attn_sink requires topk_length to be provided as well"),
    ("A28", lambda: {"attn_sink": cuda(64, dtype=BF16)}, "attn_sink must be float32 with shape (64,), got (64,)/torch.bfloat16"),
    ("A28", lambda: {"attn_sink": cuda(1, 64)}, "attn_sink must be float32 with shape (64,), got (1, 64)/torch.float32"),
    ("A29", lambda: {"attn_sink": cuda(64, device="cpu")}, "attn_sink must be a CUDA tensor"),
    ("A30", lambda: {"attn_sink": cuda(64, device="cuda:1")}, "attn_sink must be on q's device cuda:0, got cuda:1"),
    ("A31", lambda: {"attn_sink": strided(64, F32)}, "attn_sink must be contiguous"),
    *(
        (rule, change, message)
        for name in ("q_scale", "kv_scale")
        for rule, change, message in (
            ("A32", lambda name=name: {name: 1.0}, f"{name} must be a torch.Tensor"),
            ("A32", lambda name=name: {name: None}, f"{name} must be a torch.Tensor"),
            ("A33", lambda name=name: {name: cuda(1, device="cpu")}, f"{name} must be a CUDA tensor"),
            ("A34", lambda name=name: {name: cuda(1, device="cuda:1")}, f"{name} must be on q's device cuda:0, got cuda:1"),
            ("A35", lambda name=name: {name: cuda(1, dtype=BF16)}, f"{name} must be float32, got torch.bfloat16"),
            ("A36", lambda name=name: {name: cuda(2, 3)}, f"{name} must be a scalar tensor, got shape (2, 3)"),
        )
    ),
    *(
        (rule, change, message)
        for name, shape, dtype in (("out", (2, 64, 512), BF16), ("max_logits", (2, 64), F32), ("lse", (2, 64), F32))
        for rule, change, message in (
            ("A38", lambda name=name, dtype=dtype: {name: cuda(7, dtype=dtype)}, f"{name} must have shape {shape}, got (7,)"),
            (
                "A39",
                lambda name=name, shape=shape: {name: cuda(*shape, dtype=torch.float16)},
                f"{name} must have dtype {dtype}, got torch.float16",
            ),
            (
                "A40",
                lambda name=name, shape=shape, dtype=dtype: {name: cuda(*shape, dtype=dtype, device="cuda:1")},
                f"{name} must be on device cuda:0, got cuda:1",
            ),
            (
                "A41",
                lambda name=name, shape=shape, dtype=dtype: {name: gaps(*shape, dtype=dtype)},
                f"{name} must be contiguous",
            ),
        )
    ),
    ("A42", aliased, "out, max_logits and lse must not alias each other"),
]


@pytest.mark.parametrize("rule, change, message", RULES, ids=[f"{rule[0]}-{i}" for i, rule in enumerate(RULES)])
def test_each_rule_raises_its_message_to_the_letter(rule, change, message):
    with FakeTensorMode():
        call = {**good_call(), **change()}
        with pytest.raises(ValueError) as raised:
            sparse_mla.sparse_mla_q8kv8_prefill_fwd(**call)
        violations = sparse_mla.check("sparse_mla_q8kv8_prefill_fwd", **call)
    assert type(raised.value) is ValueError
    assert str(raised.value) == message
    assert violations[0].message == message
    # Where q's or kv's own size is wrong, what is measured by it may be wrong too; nothing else is reported.
    assert len(violations) == 1 or rule in ("A15", "A16")
    assert raised.value.violation == violations[0]
    notes = raised.value.__notes__
    assert [note.split(":")[0] for note in notes] == ["meaning", "fix", "more"]
    assert violations[0].fix in notes[1] and notes[2].endswith(violations[0].slug)
    (entry,) = (entry for entry in sparse_mla.rules() if entry.slug == violations[0].slug)
    assert entry.error_class == "ValueError" and entry.entry_point == "sparse_mla_q8kv8_prefill_fwd"


def test_a_good_call_passes_and_gets_its_shapes():
    with FakeTensorMode():
        call = good_call()
        assert sparse_mla.check("sparse_mla_q8kv8_prefill_fwd", **call) == []
        given = sparse_mla.sparse_mla_q8kv8_prefill_fwd(**call)
        assert [a is b for a, b in zip(given, (call["out"], call["max_logits"], call["lse"]))] == [True] * 3
        for name in ("out", "max_logits", "lse"):
            del call[name]
        out, max_logits, lse = sparse_mla.sparse_mla_q8kv8_prefill_fwd(**call)
    assert (out.shape, out.dtype, out.device.type) == ((2, 64, 512), BF16, "cuda")
    assert (max_logits.shape, max_logits.dtype) == (lse.shape, lse.dtype) == ((2, 64), F32)


def test_arguments_in_order_and_keyword_only_outputs():
    with FakeTensorMode():
        c = good_call()
        positional = [c[k] for k in ("q", "kv", "indices", "sm_scale", "q_scale", "kv_scale")]
        sparse_mla.sparse_mla_q8kv8_prefill_fwd(*positional, 512, c["attn_sink"], c["topk_length"])
        with pytest.raises(TypeError):
            sparse_mla.sparse_mla_q8kv8_prefill_fwd(*positional, 512, c["attn_sink"], c["topk_length"], c["out"])


@pytest.mark.parametrize("first, second", [(a, b) for i, a in enumerate(RULES[:24]) for b in RULES[i + 1 : i + 6]])
def test_of_two_broken_rules_the_first_is_raised(first, second):
    with FakeTensorMode():
        changes = {**second[1](), **first[1]()}
        if len(changes) != len(first[1]()) + len(second[1]()):
            pytest.skip("both rules are about the same argument")
        call = {**good_call(), **changes}
        messages = [violation.message for violation in sparse_mla.check("sparse_mla_q8kv8_prefill_fwd", **call)]
        with pytest.raises(ValueError) as raised:
            sparse_mla.sparse_mla_q8kv8_prefill_fwd(**call)
    assert str(raised.value) == messages[0]
    # A rule that another one makes unjudgeable is not reported; those that are keep the contract's order.
    order = [entry.slug for entry in sparse_mla.rules()]
    with FakeTensorMode():
        slugs = [violation.slug for violation in sparse_mla.check("sparse_mla_q8kv8_prefill_fwd", **call)]
    assert slugs == sorted(slugs, key=order.index)


def test_cpu_tensors_are_refused_by_name():
    q = torch.zeros(2, 64, 576).to(FP8)
    with pytest.raises(ValueError) as raised:
        sparse_mla.sparse_mla_q8kv8_prefill_fwd(
            q, q[:, :1].contiguous(), torch.zeros(2, 1, 128, dtype=I32), 1.0, torch.ones(1), torch.ones(1)
        )
    assert str(raised.value) == "q must be a CUDA tensor"


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.float64, torch.bool, torch.complex64, torch.uint16, torch.float8_e8m0fnu])
def test_every_torch_dtype_is_named(dtype):
    """On real tensors too, which cross as DLPack."""
    q = torch.zeros(2, 64, 576).to(dtype) if dtype != torch.float8_e8m0fnu else torch.ones(2, 64, 576).to(dtype)
    with pytest.raises(ValueError) as raised:
        sparse_mla.prefill(q, torch.zeros(9, 1, 576).to(FP8), torch.zeros(2, 1, 3, dtype=I32), 1.0)
    assert str(raised.value) == f"q must be torch.float8_e4m3fn, got {dtype}"


def test_values_are_checked_on_cpu_tensors():
    q, kv = torch.zeros(2, 4, 576).to(FP8), torch.zeros(9, 1, 576).to(FP8)
    with pytest.raises(ValueError) as raised:
        sparse_mla.prefill(q, kv, torch.zeros(2, 1, 5, dtype=I32), 1.0, topk_length=torch.tensor([3, 6], dtype=I32))
    assert str(raised.value) == "topk_length values must satisfy 0 <= topk_length <= topk (5)"
    assert "topk_length[1] is 6" in raised.value.__notes__[1]


def test_what_is_no_tensor_where_one_must_stand():
    with pytest.raises(TypeError, match="q must be a torch.Tensor or a NumPy, CuPy or JAX array, got list"):
        sparse_mla.prefill([1.0], None, None, 1.0)
    with pytest.raises(ValueError, match="kv: expected a tensor, got float"):
        sparse_mla.prefill(torch.zeros(2, 4, 576).to(FP8), 1.0, torch.zeros(2, 1, 5, dtype=I32), 1.0)
    with pytest.raises(TypeError, match="kv: expected a tensor, got float"):
        sparse_mla.check("prefill", torch.zeros(2, 4, 576).to(FP8), 1.0, torch.zeros(2, 1, 5, dtype=I32), 1.0)


@pytest.mark.parametrize("d_v", [-1, 0, 577, 10**15])
def test_a_value_width_out_of_range_allocates_nothing(d_v):
    q, kv = torch.zeros(2, 4, 576).to(FP8), torch.zeros(9, 1, 576).to(FP8)
    with pytest.raises(ValueError) as raised:
        sparse_mla.prefill(q, kv, torch.zeros(2, 1, 5, dtype=I32), 1.0, d_v=d_v)
    assert str(raised.value) == f"prefill requires d_v from 1 to d_qk=576, got {d_v}"
    with pytest.raises(ValueError, match="d_v: expected an int of 64 bits"):
        sparse_mla.prefill(q, kv, torch.zeros(2, 1, 5, dtype=I32), 1.0, d_v=2**70)


@pytest.mark.parametrize("name", ["attn_sink", "topk_length", "out", "max_logits", "lse", "q_scale", "kv_scale"])
@pytest.mark.parametrize("value, type_name", [(1, "int"), (0.5, "float"), ("x", "str"), ([1.0], "list"), (True, "bool")])
def test_what_is_no_tensor_is_refused_in_the_contracts_words(name, value, type_name):
    q, kv = torch.zeros(2, 4, 576).to(FP8), torch.zeros(9, 1, 576).to(FP8)
    with pytest.raises(ValueError) as raised:
        sparse_mla.prefill(q, kv, torch.zeros(2, 1, 5, dtype=I32), 1.0, **{name: value})
    assert str(raised.value) == f"{name} must be a torch.Tensor"
    assert raised.value.violation.got == type_name
