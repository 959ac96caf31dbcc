"""The entry points, for whatever library the arrays come from."""

from __future__ import annotations

import operator
from typing import Any, Literal, Optional, Union, overload

from . import _native
from ._describe import Describer
from ._kinds import kind_of
from ._native import Flag
from ._types import Array, ArrayT, PagedPool

try:
    import torch

    from . import _torch
except ImportError:  # torch is found at run time; without it NumPy, CuPy and JAX arrays are served
    torch = None  # type: ignore[assignment]


# Plain numbers: they are passed to the compiled module with every call.
_CONTRACT = int(Flag.CONTRACT)
_BATCH_INVARIANT = int(Flag.BATCH_INVARIANT)
_CHECK_VALUES = int(Flag.CHECK_VALUES)


def _is_torch(q: Any) -> bool:
    return torch is not None and isinstance(q, torch.Tensor)


def _kind(q: Any) -> str:
    kind = kind_of(q)
    if kind is None:
        raise TypeError(f"q must be a torch.Tensor or a NumPy, CuPy or JAX array, got {type(q).__name__}")
    return kind


def _prefill(flags: int, inputs: tuple[Any, ...], outputs: tuple[Any, Any, Any], workspace: Any) -> tuple[Any, Any, Any]:
    if _is_torch(inputs[0]):
        return _torch.prefill(flags, inputs, outputs, workspace)
    from . import _arrays

    return _arrays.prefill(_kind(inputs[0]), flags, inputs, outputs, workspace)


def _decode(
    flags: int, inputs: tuple[Any, ...], out: Any, lse: Any, wants_lse: bool, d_v: int, second: Any, workspace: Any
) -> tuple[Any, Any]:
    pool = (None, None, None, None) if second is None else (*second, None)[:4]
    if _is_torch(inputs[0]):
        return _torch.decode(flags, inputs, out, lse, wants_lse, d_v, pool, workspace)
    from . import _arrays

    return _arrays.decode(_kind(inputs[0]), flags, inputs, out, lse, wants_lse, d_v, pool, workspace)


def sparse_mla_q8kv8_prefill_fwd(
    q: ArrayT,
    kv: ArrayT,
    indices: ArrayT,
    sm_scale: float,
    q_scale: ArrayT,
    kv_scale: ArrayT,
    d_v: int = 512,
    attn_sink: Optional[ArrayT] = None,
    topk_length: Optional[ArrayT] = None,
    *,
    out: Optional[ArrayT] = None,
    max_logits: Optional[ArrayT] = None,
    lse: Optional[ArrayT] = None,
) -> tuple[ArrayT, ArrayT, ArrayT]:
    """Sparse MLA prefill on a Q8KV8 cache: SGLang's function of this name, argument for argument.

    S = (q * q_scale) . (kv * kv_scale) * sm_scale over the tokens that a row's indices name; out = softmax(S) V with
    V the first 512 values of the same kv rows. docs/math.md has the formulas, docs/contract.md every condition.

    Args:
        q: [s_q, h_q, d_qk] float8_e4m3fn on CUDA; h_q a multiple of 64, d_qk 512 or 576.
        kv: [s_kv, 1, d_qk] float8_e4m3fn.
        indices: [s_q, 1, topk] int32, topk a multiple of 128; -1, or anything outside [0, s_kv), is "no token".
        sm_scale: multiplies the logits, which are then in nats.
        q_scale, kv_scale: one float32 value each, on q's device.
        d_v: 512.
        attn_sink: [h_q] float32, joins the softmax's denominator as exp(attn_sink[h]); needs topk_length.
        topk_length: [s_q] int32, how many of a row's indices count, from the first.
        out, max_logits, lse: buffers to write into; made where they are None.

    Returns:
        out [s_q, h_q, 512] bfloat16; max_logits and lse [s_q, h_q] float32. lse is the natural log of the sum of
        exp(S), sink not included. A row without tokens gives 0, -inf and +inf.

    Raises:
        ValueError: a broken rule; the message is the contract's, the fix rides along as a note.
        RuntimeError: the device cannot run it, or CUDA reports an error.

    >>> import torch, sparse_mla
    >>> q = torch.zeros(2, 48, 576).to(torch.float8_e4m3fn)
    >>> kv = torch.zeros(300, 1, 576).to(torch.float8_e4m3fn)
    >>> indices = torch.zeros(2, 1, 128, dtype=torch.int32)
    >>> try:
    ...     sparse_mla.sparse_mla_q8kv8_prefill_fwd(q, kv, indices, 0.04, torch.ones(1), torch.ones(1))
    ... except ValueError as error:
    ...     print(error, *error.__notes__, sep="\\n")
    q must be a CUDA tensor
    meaning: q: expected a CUDA device, got cpu
    fix: move it to the GPU: q.cuda(); prefill() takes CPU tensors
    more: sparse-mla explain prefill-q-cuda
    """
    return _prefill(
        _CONTRACT,
        (q, kv, indices, float(sm_scale), q_scale, kv_scale, operator.index(d_v), attn_sink, topk_length),
        (out, max_logits, lse),
        None,
    )


def sparse_attn_v4_paged_decode(
    q: ArrayT,
    unified_kv: ArrayT,
    kv_indices: ArrayT,
    kv_indptr: ArrayT,
    attn_sink: ArrayT,
    softmax_scale: float,
    kv_scales: Optional[ArrayT] = None,
) -> ArrayT:
    """Paged sparse decode over one pool of rows: SGLang's function of this name, argument for argument.

    Args:
        q: [N, H, D] bfloat16 or float16 on CUDA.
        unified_kv: [total_pages, D], q's dtype, or float8_e4m3fn with kv_scales.
        kv_indices: [total_indices] int32, the tokens' slot lists, one after the other.
        kv_indptr: [N + 1] int32; token t owns kv_indices[kv_indptr[t]:kv_indptr[t + 1]].
        attn_sink: [H] float32, joins the softmax's denominator as exp(attn_sink[h]); -inf is "no sink".
        softmax_scale: multiplies the logits, which are then in nats.
        kv_scales: [total_pages, D / 64] float32: the factor of each 64 values of a row.

    Returns:
        out [N, H, D] in q's dtype. A token without slots gives 0.

    Raises:
        RuntimeError: a broken rule, with the contract's message and the fix as a note; or the device cannot run it.

    >>> import torch, sparse_mla
    >>> try:
    ...     sparse_mla.sparse_attn_v4_paged_decode(
    ...         torch.zeros(1, 8, 512, dtype=torch.bfloat16), torch.zeros(64, 512, dtype=torch.bfloat16),
    ...         torch.zeros(3, dtype=torch.int32), torch.tensor([0, 3], dtype=torch.int32), torch.zeros(8), 0.04)
    ... except RuntimeError as error:
    ...     print(error)
    sparse_attn_v4_paged_decode requires CUDA tensors
    """
    inputs = (q, unified_kv, kv_indices, kv_indptr, attn_sink, float(softmax_scale), kv_scales)
    if _is_torch(q):
        from_torch: ArrayT = _torch.decode_contract(inputs)
        return from_torch
    out: ArrayT = _decode(_CONTRACT, inputs, None, None, False, 0, None, None)[0]
    return out


def _general_flags(batch_invariant: bool, check_values: bool) -> int:
    return (_BATCH_INVARIANT if batch_invariant else 0) | (_CHECK_VALUES if check_values else 0)


def prefill(
    q: ArrayT,
    kv: ArrayT,
    indices: ArrayT,
    sm_scale: float,
    q_scale: Optional[ArrayT] = None,
    kv_scale: Optional[ArrayT] = None,
    d_v: int = 512,
    attn_sink: Optional[ArrayT] = None,
    topk_length: Optional[ArrayT] = None,
    *,
    out: Optional[ArrayT] = None,
    max_logits: Optional[ArrayT] = None,
    lse: Optional[ArrayT] = None,
    batch_invariant: bool = False,
    check_values: bool = False,
    workspace: Optional[ArrayT] = None,
) -> tuple[ArrayT, ArrayT, ArrayT]:
    """sparse_mla_q8kv8_prefill_fwd with fewer conditions, on CPU and CUDA alike.

    Any h_q >= 1, any topk >= 1, any d_v up to d_qk, a sink without lengths, scales that are None (1), kv rows with
    gaps between them (pool views) as long as a row is contiguous and starts 16-byte aligned.

    Args:
        q, kv, indices, sm_scale, q_scale, kv_scale, attn_sink, topk_length, out, max_logits, lse: as there.
        d_v: how many leading values of a kv row are V.
        batch_invariant: a row's bits do not depend on which other rows are in the call.
        check_values: look at lengths, indices and scales as well; waits for the device, so not inside a captured
            graph. Always done for CPU tensors. SPARSE_MLA_CHECK=1 turns it on everywhere.
        workspace: at least prefill_workspace_bytes(...) bytes on q's device. Taken from torch's caching allocator
            where it is None. Under torch.compile leave it None.

    Returns:
        (out, max_logits, lse), as there, out with d_v values a head.

    Raises:
        ValueError, RuntimeError: as there.

    >>> import torch, sparse_mla
    >>> q = torch.ones(1, 2, 64).to(torch.float8_e4m3fn)
    >>> kv = torch.arange(3.0).view(3, 1, 1).expand(3, 1, 64).contiguous().to(torch.float8_e4m3fn)
    >>> indices = torch.tensor([[[0, 2, -1]]], dtype=torch.int32)
    >>> out, max_logits, lse = sparse_mla.prefill(q, kv, indices, sm_scale=0.0, d_v=4)
    >>> out[0, 0].tolist(), round(float(lse[0, 0].exp()), 3)
    ([1.0, 1.0, 1.0, 1.0], 2.0)
    """
    if workspace is not None and _is_torch(q) and torch.compiler.is_compiling():
        raise ValueError("workspace cannot be passed under torch.compile; leave it None")
    return _prefill(
        _general_flags(batch_invariant, check_values),
        (q, kv, indices, float(sm_scale), q_scale, kv_scale, operator.index(d_v), attn_sink, topk_length),
        (out, max_logits, lse),
        workspace,
    )


@overload
def decode(
    q: ArrayT,
    unified_kv: ArrayT,
    kv_indices: ArrayT,
    kv_indptr: ArrayT,
    attn_sink: Optional[ArrayT],
    softmax_scale: float,
    kv_scales: Optional[ArrayT] = ...,
    *,
    d_v: Optional[int] = ...,
    second_pool: Optional[PagedPool] = ...,
    out: Optional[ArrayT] = ...,
    lse: None = ...,
    return_lse: Literal[False] = ...,
    batch_invariant: bool = ...,
    check_values: bool = ...,
    workspace: Optional[ArrayT] = ...,
) -> ArrayT: ...
@overload
def decode(
    q: ArrayT,
    unified_kv: ArrayT,
    kv_indices: ArrayT,
    kv_indptr: ArrayT,
    attn_sink: Optional[ArrayT],
    softmax_scale: float,
    kv_scales: Optional[ArrayT] = ...,
    *,
    d_v: Optional[int] = ...,
    second_pool: Optional[PagedPool] = ...,
    out: Optional[ArrayT] = ...,
    lse: Optional[ArrayT] = ...,
    return_lse: Literal[True],
    batch_invariant: bool = ...,
    check_values: bool = ...,
    workspace: Optional[ArrayT] = ...,
) -> tuple[ArrayT, ArrayT]: ...
def decode(
    q: ArrayT,
    unified_kv: ArrayT,
    kv_indices: ArrayT,
    kv_indptr: ArrayT,
    attn_sink: Optional[ArrayT],
    softmax_scale: float,
    kv_scales: Optional[ArrayT] = None,
    *,
    d_v: Optional[int] = None,
    second_pool: Optional[PagedPool] = None,
    out: Optional[ArrayT] = None,
    lse: Optional[ArrayT] = None,
    return_lse: bool = False,
    batch_invariant: bool = False,
    check_values: bool = False,
    workspace: Optional[ArrayT] = None,
) -> Union[ArrayT, tuple[ArrayT, ArrayT]]:
    """sparse_attn_v4_paged_decode with fewer conditions, on CPU and CUDA alike.

    Args:
        q, unified_kv, kv_indices, kv_indptr, softmax_scale, kv_scales: as there.
        attn_sink: [H] float32, or None for no sink.
        d_v: how many leading values of a row are V; None is all D.
        second_pool: a second pool with its own lists, attended under the same softmax.
        out: [N, H, d_v] in q's dtype, to write into; made where it is None.
        lse: [N, H] float32 to write the natural log of the sum of exp(S) into, sink not included.
        return_lse: return (out, lse); lse is made where it is None.
        batch_invariant, check_values: as in prefill.
        workspace: at least decode_workspace_bytes(...) bytes on q's device; None takes torch's caching allocator.

    Returns:
        out, or (out, lse) with return_lse. A token without slots gives out 0 and lse +inf.

    Raises:
        RuntimeError: a broken rule, with the fix as a note; or the device cannot run it.

    >>> import torch, sparse_mla
    >>> pool = torch.arange(4.0, dtype=torch.bfloat16).view(4, 1).expand(4, 64).contiguous()
    >>> q = torch.zeros(2, 1, 64, dtype=torch.bfloat16)
    >>> slots, indptr = torch.tensor([1, 3, 0], dtype=torch.int32), torch.tensor([0, 2, 3], dtype=torch.int32)
    >>> sparse_mla.decode(q, pool, slots, indptr, None, 1.0, d_v=2).tolist()
    [[[2.0, 2.0]], [[0.0, 0.0]]]
    """
    if workspace is not None and _is_torch(q) and torch.compiler.is_compiling():
        raise ValueError("workspace cannot be passed under torch.compile; leave it None")
    result, result_lse = _decode(
        _general_flags(batch_invariant, check_values),
        (q, unified_kv, kv_indices, kv_indptr, attn_sink, float(softmax_scale), kv_scales),
        out,
        lse,
        return_lse,
        0 if d_v is None else operator.index(d_v),
        second_pool,
        workspace,
    )
    return (result, result_lse) if return_lse else result


def _described(arguments: tuple[Any, ...]) -> list[Any]:
    describe = Describer()
    return [value if isinstance(value, (int, float)) else describe(value) for value in arguments]


def prefill_workspace_bytes(
    q: Array, kv: Array, indices: Array, d_v: int = 512, topk_length: Optional[Array] = None, *, batch_invariant: bool = False
) -> int:
    """Bytes of device memory that `prefill` needs for tensors of these shapes; 0 on the CPU.

    Depends on shapes only, so a buffer made once serves every replay of a captured graph.

    >>> import torch, sparse_mla
    >>> q, kv = torch.zeros(1, 2, 64).to(torch.float8_e4m3fn), torch.zeros(9, 1, 64).to(torch.float8_e4m3fn)
    >>> sparse_mla.prefill_workspace_bytes(q, kv, torch.zeros(1, 1, 3, dtype=torch.int32), d_v=64)
    0
    """
    arguments = (q, kv, indices, 1.0, None, None, d_v, None, topk_length, None, None, None)
    try:
        return int(_native.prefill_workspace_bytes(_general_flags(batch_invariant, False), *_described(arguments)))
    except (ValueError, RuntimeError) as error:
        _native.reraise(error)


def decode_workspace_bytes(
    q: Array,
    unified_kv: Array,
    kv_indices: Array,
    kv_indptr: Array,
    kv_scales: Optional[Array] = None,
    *,
    d_v: Optional[int] = None,
    second_pool: Optional[PagedPool] = None,
    batch_invariant: bool = False,
) -> int:
    """Bytes of device memory that `decode` needs for tensors of these shapes; 0 on the CPU. As prefill_workspace_bytes.

    >>> import torch, sparse_mla
    >>> pool = torch.zeros(4, 64, dtype=torch.bfloat16)
    >>> slots = torch.zeros(2, dtype=torch.int32)
    >>> sparse_mla.decode_workspace_bytes(torch.zeros(1, 1, 64, dtype=torch.bfloat16), pool, slots, slots)
    0
    """
    pool = (None, None, None, None) if second_pool is None else (*second_pool, None)[:4]
    arguments = (q, unified_kv, kv_indices, kv_indptr, None, 1.0, kv_scales, None, None, d_v or 0, *pool)
    try:
        return int(_native.decode_workspace_bytes(_general_flags(batch_invariant, False), *_described(arguments)))
    except (ValueError, RuntimeError) as error:
        _native.reraise(error)
