"""torch's side: custom ops, tracing, modes, autograd's bookkeeping."""

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import sparse_mla
from cases import decode_call, prefill_call

OPS = torch.ops.sparse_mla


def prefill_op_arguments(**changes):
    call = prefill_call(s_q=2, s_kv=50, h_q=4, d_qk=64, topk=8, d_v=64, **changes)
    names = ("q", "kv", "indices", "sm_scale", "q_scale", "kv_scale", "d_v", "attn_sink", "topk_length")
    outputs = (torch.empty(2, 4, 64, dtype=torch.bfloat16), torch.empty(2, 4), torch.empty(2, 4))
    return (*(call.get(name) for name in names), *outputs)


def decode_op_arguments(**changes):
    call = decode_call(lengths=(3, 5), pages=20, h=4, d=64, **changes)
    names = ("q", "unified_kv", "kv_indices", "kv_indptr", "attn_sink", "softmax_scale", "kv_scales")
    return (*(call.get(name) for name in names), torch.empty(2, 4, 64, dtype=call["q"].dtype))


def opcheck(op, arguments):
    """torch.library.opcheck. Its test_schema compares arguments by arithmetic that torch lacks for float8, so there the
    same question, "is only written what is declared so", is asked of the bytes."""
    has_float8 = any(isinstance(value, torch.Tensor) and value.dtype == torch.float8_e4m3fn for value in arguments)
    if not has_float8:
        torch.library.opcheck(op, arguments)
        return
    torch.library.opcheck(op, arguments, test_utils=("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"))
    before = [value.clone() if isinstance(value, torch.Tensor) else value for value in arguments]
    op(*arguments)
    for declared, old, new in zip(op._schema.arguments, before, arguments):
        if isinstance(old, torch.Tensor) and not (declared.alias_info and declared.alias_info.is_write):
            assert torch.equal(old.view(torch.uint8), new.view(torch.uint8)), declared.name


@pytest.mark.parametrize("changes", [{}, {"sink": True, "lengths": True}, {"scales": False}], ids=str)
def test_opcheck_prefill(changes):
    opcheck(OPS.prefill.default, (*prefill_op_arguments(**changes), 0))


@pytest.mark.parametrize("changes", [{}, {"fp8": False, "sink": False}], ids=str)
def test_opcheck_decode(changes):
    none = (None,) * 4
    opcheck(OPS.decode.default, (*decode_op_arguments(**changes), torch.empty(2, 4), 0, *none, 0))
    opcheck(OPS.decode.default, (*decode_op_arguments(**changes), None, 0, *none, 0))


@pytest.mark.parametrize("name, arguments", [("sparse_mla_q8kv8_prefill_fwd", 12), ("sparse_attn_v4_paged_decode", 8)])
def test_the_contract_ops_declare_what_they_write(name, arguments):
    """opcheck runs the op, and these take CUDA tensors only; tests/python/gpu runs it on them."""
    schema = getattr(OPS, name).default._schema
    assert len(schema.arguments) == arguments
    written = [argument.name for argument in schema.arguments if argument.alias_info and argument.alias_info.is_write]
    assert written == (["out", "max_logits", "lse"] if arguments == 12 else ["out"])
    assert not schema.returns
    call, error = (
        (prefill_op_arguments(), "q must be a CUDA tensor")
        if arguments == 12
        else (decode_op_arguments(), "sparse_attn_v4_paged_decode requires CUDA tensors")
    )
    with pytest.raises((ValueError, RuntimeError)) as raised:
        getattr(OPS, name)(*call)
    assert str(raised.value) == error


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_compile_fullgraph(backend):
    call = prefill_call(h_q=8, sink=True, lengths=True)

    def block(q, kv, indices, q_scale, kv_scale, attn_sink, topk_length):
        out, max_logits, lse = sparse_mla.prefill(
            q, kv, indices, 0.05, q_scale, kv_scale, attn_sink=attn_sink, topk_length=topk_length
        )
        return out, max_logits, lse

    arguments = [call[k] for k in ("q", "kv", "indices", "q_scale", "kv_scale", "attn_sink", "topk_length")]
    expected = block(*arguments)
    compiled = torch.compile(block, fullgraph=True, backend=backend)
    for _ in range(2):
        for given, wanted in zip(compiled(*arguments), expected):
            torch.testing.assert_close(given, wanted, rtol=0, atol=0)


def test_compile_decode_with_changing_shapes():
    def block(q, kv, indices, indptr, sink, scales):
        out, lse = sparse_mla.decode(q, kv, indices, indptr, sink, 0.05, scales, return_lse=True)
        return out + 1, lse

    compiled = torch.compile(block, fullgraph=True, backend="aot_eager", dynamic=True)
    for lengths in ((3, 5), (4, 0, 9), (1, 2, 3, 4)):
        call = decode_call(lengths=lengths)
        arguments = [call[k] for k in ("q", "unified_kv", "kv_indices", "kv_indptr", "attn_sink", "kv_scales")]
        for given, wanted in zip(compiled(*arguments), block(*arguments)):
            torch.testing.assert_close(given, wanted, rtol=0, atol=0)


def test_compile_with_the_callers_buffers():
    call = prefill_call()
    out = torch.zeros(3, 8, 512, dtype=torch.bfloat16)

    def block(q, kv, indices, q_scale, kv_scale, out):
        sparse_mla.prefill(q, kv, indices, 0.05, q_scale, kv_scale, out=out)
        return out * 2

    arguments = [call[k] for k in ("q", "kv", "indices", "q_scale", "kv_scale")]
    doubled = torch.compile(block, fullgraph=True, backend="aot_eager")(*arguments, out)
    assert torch.equal(out, sparse_mla.prefill(*arguments[:3], 0.05, *arguments[3:])[0])
    assert torch.equal(doubled, out * 2)


def test_errors_keep_their_text_under_compile():
    q, kv = torch.zeros(2, 4, 576).to(torch.float8_e4m3fn), torch.zeros(9, 1, 576, dtype=torch.bfloat16)
    compiled = torch.compile(lambda *a: sparse_mla.prefill(*a, 1.0), fullgraph=True, backend="aot_eager")
    with pytest.raises(ValueError) as raised:
        compiled(q, kv, torch.zeros(2, 1, 3, dtype=torch.int32))
    assert str(raised.value) == "kv must be torch.float8_e4m3fn, got torch.bfloat16"


class Recorder(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls.append(str(func))
        return func(*args, **(kwargs or {}))


def test_dispatch_modes_see_the_op():
    call = prefill_call()
    with Recorder() as recorder:
        out = sparse_mla.prefill(**call)[0]
    assert "sparse_mla.prefill.default" in recorder.calls
    assert torch.equal(out, sparse_mla.prefill(**call)[0])


def test_export_keeps_the_op():
    class Module(torch.nn.Module):
        def forward(self, q, kv, indices):
            return sparse_mla.prefill(q, kv, indices, 0.05)[0]

    call = prefill_call(scales=False)
    exported = torch.export.export(Module(), (call["q"], call["kv"], call["indices"]))
    assert any("sparse_mla.prefill" in str(node.target) for node in exported.graph.nodes)
    given = exported.module()(call["q"], call["kv"], call["indices"])
    assert torch.equal(given, sparse_mla.prefill(call["q"], call["kv"], call["indices"], 0.05)[0])


def test_meta_tensors_are_refused_by_name():
    q = torch.zeros(2, 4, 576, device="meta").to(torch.float8_e4m3fn)
    kv = torch.zeros(9, 1, 576, device="meta").to(torch.float8_e4m3fn)
    indices = torch.zeros(2, 1, 3, dtype=torch.int32, device="meta")
    violations = sparse_mla.check("prefill", q, kv, indices, 1.0)
    assert violations[0].message == "q must be a CPU or CUDA tensor, got meta"


def test_version_counters_of_given_buffers_move():
    call = prefill_call()
    out = torch.zeros(3, 8, 512, dtype=torch.bfloat16)
    before = out._version
    sparse_mla.prefill(**call, out=out)
    assert out._version > before
    with torch.inference_mode():
        sparse_mla.prefill(**call, out=torch.zeros(3, 8, 512, dtype=torch.bfloat16))


def test_a_query_that_requires_grad_is_served():
    call = decode_call()
    expected = sparse_mla.decode(**call)
    call["q"] = torch.nn.Parameter(call["q"])
    out = sparse_mla.decode(**call)
    assert torch.equal(out, expected) and not out.requires_grad


def test_fake_tensors_of_symbolic_shape_trace():
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    mode = FakeTensorMode(shape_env=ShapeEnv())
    call = decode_call()
    fake = {k: mode.from_tensor(v) if isinstance(v, torch.Tensor) else v for k, v in call.items()}
    with mode:
        assert sparse_mla.decode(**fake).shape[1:] == (8, 512)
