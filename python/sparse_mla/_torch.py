"""The calls on torch tensors: straight into the compiled module where that is possible, through registered custom ops
where torch has to see the call (torch.compile, fake tensors, dispatch modes, tensor subclasses).

torch is found at run time. A stream is never an argument: the compiled module asks torch for the current one each time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import _native
from ._describe import Describer
from ._native import Flag

_PLAIN = (Tensor, torch.nn.Parameter)
_is_compiling = torch.compiler.is_compiling
_CONTRACT = int(Flag.CONTRACT)
# How many TorchDispatchModes are active; torch has no public name for the question.
_active_dispatch_modes = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)


def _is_direct(q: Tensor) -> bool:
    """True where nobody but the kernel has to see the call."""
    return type(q) in _PLAIN and not _active_dispatch_modes()


def _written(*outputs: Tensor | None) -> None:
    """Tells autograd that the caller's own buffers have new content."""
    for output in outputs:
        if isinstance(output, Tensor) and not output.is_inference():
            torch.autograd.graph.increment_version(output)


def last_dim_dense(scales: Any) -> Any:
    """kv_scales as kernels read them: a last dimension with gaps is copied."""
    if isinstance(scales, Tensor) and scales.dim() == 2 and scales.stride(1) != 1:
        return scales.contiguous()
    return scales


# ---- the registered ops --------------------------------------------------------------------------------------------

_PREFILL_ARGUMENTS = (
    "Tensor q, Tensor kv, Tensor indices, float sm_scale, Tensor? q_scale, Tensor? kv_scale, int d_v, "
    "Tensor? attn_sink, Tensor? topk_length, Tensor(a!) out, Tensor(b!) max_logits, Tensor(c!) lse"
)
_DECODE_ARGUMENTS = (
    "Tensor q, Tensor unified_kv, Tensor kv_indices, Tensor kv_indptr, Tensor? attn_sink, float softmax_scale, "
    "Tensor? kv_scales, Tensor(a!) out"
)
_SECOND_POOL = "Tensor? second_kv, Tensor? second_indices, Tensor? second_indptr, Tensor? second_scales"


@torch.library.custom_op(
    "sparse_mla::sparse_mla_q8kv8_prefill_fwd",
    mutates_args=("out", "max_logits", "lse"),
    schema=f"({_PREFILL_ARGUMENTS}) -> ()",
)
def _prefill_fwd_op(*arguments: Any) -> None:
    _native_prefill(_CONTRACT, *arguments)


@torch.library.custom_op(
    "sparse_mla::prefill",
    mutates_args=("out", "max_logits", "lse"),
    schema=f"({_PREFILL_ARGUMENTS}, int flags) -> ()",
)
def _prefill_op(*arguments: Any) -> None:
    _native_prefill(arguments[-1], *arguments[:-1])


@torch.library.custom_op(
    "sparse_mla::sparse_attn_v4_paged_decode",
    mutates_args=("out",),
    schema=f"({_DECODE_ARGUMENTS}) -> ()",
)
def _paged_decode_op(*arguments: Any) -> None:
    _native_decode(_CONTRACT, *arguments)


@torch.library.custom_op(
    "sparse_mla::decode",
    mutates_args=("out", "lse"),
    schema=f"({_DECODE_ARGUMENTS}, Tensor(b!)? lse, int d_v, {_SECOND_POOL}, int flags) -> ()",
)
def _decode_op(*arguments: Any) -> None:
    _native_decode(arguments[-1], *arguments[:-1])


@_prefill_fwd_op.register_fake
@_prefill_op.register_fake
@_paged_decode_op.register_fake
@_decode_op.register_fake
def _writes_only(*arguments: Any) -> None:
    """All results are buffers that the caller made, so there is no shape to work out."""


# ---- native calls --------------------------------------------------------------------------------------------------


def _native_prefill(*arguments: Any) -> None:
    try:
        missing = _native.prefill(*arguments)
        if missing:
            _native.prefill(*arguments, _workspace(missing, arguments[1]))
    except (ValueError, RuntimeError) as error:
        _native.reraise(error)


def _native_decode(*arguments: Any) -> None:
    try:
        missing = _native.decode(*arguments)
        if missing:
            padding = (None,) * (15 - len(arguments))
            _native.decode(*arguments, *padding, _workspace(missing, arguments[1]))
    except (ValueError, RuntimeError) as error:
        _native.reraise(error)


def _workspace(size: int, q: Tensor) -> Tensor:
    """For torch versions whose allocator the compiled module cannot reach."""
    return torch.empty(size, dtype=torch.uint8, device=q.device)


def _enforce_without_memory(check: Any, flags: int, arguments: tuple[Any, ...]) -> None:
    """The contract for tensors that have metadata only: fake and meta tensors, whose shapes must be plain numbers."""
    describe = Describer()
    described = [value if isinstance(value, (int, float)) else describe(value) for value in arguments]
    violations = check(flags | int(Flag.DEVICE_RULES), *described)
    if violations:
        _native.raise_violation(violations[0])


def _is_concrete(*values: Any) -> bool:
    return all(
        isinstance(size, int) for value in values if isinstance(value, Tensor) for size in (*value.shape, *value.stride())
    )


# ---- prefill -------------------------------------------------------------------------------------------------------


def _prefill_outputs(q: Any, d_v: int, out: Any, max_logits: Any, lse: Any) -> tuple[Any, Any, Any]:
    """The caller's buffers, and new ones where there are none. A q that is refused anyway gets none."""
    if q.dim() != 3 or not 0 <= d_v <= q.shape[2]:
        return out, max_logits, lse
    s_q, h_q, _ = q.shape
    device = q.device
    # Of torch's ways to make a tensor this one takes the least host time: 1.0 us, where new_empty takes 1.6.
    if out is None:
        out = torch.empty_strided((s_q, h_q, d_v), (h_q * d_v, d_v, 1), dtype=torch.bfloat16, device=device)
    if max_logits is None:
        max_logits = torch.empty_strided((s_q, h_q), (h_q, 1), dtype=torch.float32, device=device)
    if lse is None:
        lse = torch.empty_strided((s_q, h_q), (h_q, 1), dtype=torch.float32, device=device)
    return out, max_logits, lse


def prefill(flags: int, inputs: tuple[Any, ...], outputs: tuple[Any, Any, Any], workspace: Any) -> tuple[Any, Any, Any]:
    """`inputs` is (q, kv, indices, sm_scale, q_scale, kv_scale, d_v, attn_sink, topk_length)."""
    if _is_compiling():
        return _prefill_by_op(flags, inputs, outputs)
    q = inputs[0]
    if not _is_direct(q):
        if _is_concrete(*inputs, *outputs):
            _enforce_without_memory(_native.check_prefill, flags, (*inputs, *outputs))
        return _prefill_by_op(flags, inputs, outputs)
    results = _prefill_outputs(q, inputs[6], *outputs)
    if workspace is None:
        _native_prefill(flags, *inputs, *results)
    else:
        _native_prefill(flags, *inputs, *results, workspace)
    if outputs != (None, None, None):
        _written(*outputs)
    return results


def _prefill_by_op(flags: int, inputs: tuple[Any, ...], outputs: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
    results = _prefill_outputs(inputs[0], inputs[6], *outputs)
    if flags & _CONTRACT:
        torch.ops.sparse_mla.sparse_mla_q8kv8_prefill_fwd(*inputs, *results)
    else:
        torch.ops.sparse_mla.prefill(*inputs, *results, int(flags))
    return results


# ---- decode --------------------------------------------------------------------------------------------------------


def _decode_output(q: Any, d_v: int) -> Any:
    """[N, H, d_v] in q's dtype; None where q is refused anyway."""
    if q.dim() != 3:
        return None
    n, heads, width = q.shape
    width = d_v or width
    return torch.empty_strided((n, heads, width), (heads * width, width, 1), dtype=q.dtype, device=q.device)


def decode_contract(inputs: tuple[Any, ...]) -> Any:
    """`inputs` is (q, unified_kv, kv_indices, kv_indptr, attn_sink, softmax_scale, kv_scales)."""
    q = inputs[0]
    inputs = (*inputs[:6], last_dim_dense(inputs[6]))
    if not _is_compiling():
        if _is_direct(q):
            out = _decode_output(q, 0)
            _native_decode(_CONTRACT, *inputs, out)
            return out
        if _is_concrete(*inputs):
            _enforce_without_memory(_native.check_decode, _CONTRACT, inputs)
    out = _decode_output(q, 0)
    torch.ops.sparse_mla.sparse_attn_v4_paged_decode(*inputs, out)
    return out


def decode(
    flags: int, inputs: tuple[Any, ...], out: Any, lse: Any, wants_lse: bool, d_v: int, second: tuple[Any, ...], workspace: Any
) -> tuple[Any, Any]:
    """`inputs` as above; `second` is the second pool's (unified_kv, kv_indices, kv_indptr, kv_scales), or four None."""
    q = inputs[0]
    given = (out, lse)
    inputs = (*inputs[:6], last_dim_dense(inputs[6]))
    second = (*second[:3], last_dim_dense(second[3]))
    traced = _is_compiling()
    direct = not traced and _is_direct(q)
    if not traced and not direct and _is_concrete(*inputs, out, lse, *second):
        _enforce_without_memory(_native.check_decode, flags, (*inputs, out, lse, d_v, *second))
    if q.dim() == 3 and 0 <= d_v <= q.shape[2]:
        if out is None:
            out = _decode_output(q, d_v)
        if lse is None and wants_lse:
            lse = q.new_empty(q.shape[:2], dtype=torch.float32)
    if not direct:
        torch.ops.sparse_mla.decode(*inputs, out, lse, d_v, *second, int(flags))
        return out, lse
    _native_decode(flags, *inputs, out, lse, d_v, *second, *(() if workspace is None else (workspace,)))
    if given != (None, None):
        _written(*given)
    return out, lse
