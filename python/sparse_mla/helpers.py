"""What people otherwise write by hand around a call: guards on caches, padding, lengths. For torch tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

_HEAD_BLOCK = 64
_TOPK_BLOCK = 128


def is_q8kv8_cache(kv: Tensor) -> bool:
    """True for a cache in the format that the Q8KV8 prefill reads: float8_e4m3fn, without gaps.

    >>> import torch
    >>> is_q8kv8_cache(torch.zeros(4, 1, 576).to(torch.float8_e4m3fn)), is_q8kv8_cache(torch.zeros(4, 1, 576))
    (True, False)
    """
    import torch

    return kv.dtype == torch.float8_e4m3fn and kv.is_contiguous()


def is_mla_kv(kv: Tensor) -> bool:
    """True for [s_kv, 1, d_qk]: the one latent head that MLA shares between all query heads.

    >>> import torch
    >>> is_mla_kv(torch.zeros(4, 1, 576)), is_mla_kv(torch.zeros(4, 8, 576)), is_mla_kv(torch.zeros(4, 576))
    (True, False, False)
    """
    return kv.dim() == 3 and kv.shape[1] == 1


def kv_ready(kv: Tensor) -> bool:
    """True where kv can go into sparse_mla_q8kv8_prefill_fwd as it is, the device aside: a Q8KV8 cache of one latent
    head with 512 or 576 values.

    >>> import torch
    >>> pool = torch.zeros(4, 1, 640).to(torch.float8_e4m3fn)
    >>> kv_ready(pool[..., :576].contiguous()), kv_ready(pool[..., :576]), kv_ready(pool)
    (True, False, False)
    """
    return is_q8kv8_cache(kv) and is_mla_kv(kv) and kv.shape[2] in (512, 576)


def pad_heads(q: Tensor, multiple: int = _HEAD_BLOCK) -> Tensor:
    """q with its head count rounded up to a multiple, the new heads zero; q itself where nothing is missing.

    Args:
        q: [s_q, h_q, d_qk], any dtype. Any tensor whose dimension 1 is the heads will do, attn_sink excepted.
        multiple: 64 is what sparse_mla_q8kv8_prefill_fwd asks for. `prefill` needs no padding.

    Returns:
        [s_q, ceil(h_q / multiple) * multiple, d_qk]. `unpad_heads` undoes it on the results.

    >>> import torch
    >>> pad_heads(torch.ones(2, 16, 576)).shape, pad_heads(torch.ones(2, 64, 576)).shape
    (torch.Size([2, 64, 576]), torch.Size([2, 64, 576]))
    """
    _require_positive(multiple)
    missing = -q.shape[1] % multiple if q.shape[1] else multiple
    if missing == 0:
        return q
    padded = q.new_zeros((q.shape[0], q.shape[1] + missing, *q.shape[2:]))
    padded[:, : q.shape[1]] = q
    return padded


def unpad_heads(padded: Tensor, h_q: int) -> Tensor:
    """The first h_q heads of out, max_logits or lse: a view.

    >>> import torch
    >>> unpad_heads(torch.ones(2, 64, 512), 16).shape
    torch.Size([2, 16, 512])
    """
    if not 0 <= h_q <= padded.shape[1]:
        raise ValueError(f"h_q must be between 0 and {padded.shape[1]}, got {h_q}")
    return padded[:, :h_q]


def pad_topk(indices: Tensor, multiple: int = _TOPK_BLOCK) -> Tensor:
    """indices with its width rounded up to a multiple by -1, "no token"; indices itself where nothing is missing.

    Args:
        indices: [..., topk] int32.
        multiple: 128 is what sparse_mla_q8kv8_prefill_fwd asks for. `prefill` needs no padding.

    >>> import torch
    >>> pad_topk(torch.zeros(2, 1, 100, dtype=torch.int32))[0, 0, 98:102].tolist()
    [0, 0, -1, -1]
    """
    _require_positive(multiple)
    topk = indices.shape[-1]
    missing = -topk % multiple if topk else multiple
    if missing == 0:
        return indices
    padded = indices.new_full((*indices.shape[:-1], topk + missing), -1)
    padded[..., :topk] = indices
    return padded


def topk_length_from_indices(indices: Tensor) -> Tensor:
    """How many leading slots of each row matter: the position of the last non-negative index, plus 1.

    Args:
        indices: [s_q, topk] or [s_q, 1, topk], any integer dtype; negative is "no token".

    Returns:
        [s_q] int32 on the device of `indices`, made there: no host synchronisation.

    >>> import torch
    >>> topk_length_from_indices(torch.tensor([[[5, -1, 7, -1]], [[-1, -1, -1, -1]]])).tolist()
    [3, 0]
    """
    import torch

    if indices.dim() == 3 and indices.shape[1] == 1:
        indices = indices[:, 0]
    if indices.dim() != 2:
        raise ValueError(f"indices must have shape (s_q, topk) or (s_q, 1, topk), got {tuple(indices.shape)}")
    if indices.shape[1] == 0:
        return torch.zeros(indices.shape[0], dtype=torch.int32, device=indices.device)
    positions = torch.arange(1, indices.shape[1] + 1, dtype=torch.int32, device=indices.device)
    return torch.where(indices >= 0, positions, 0).amax(dim=1).to(torch.int32)


def _require_positive(multiple: int) -> None:
    if multiple < 1:
        raise ValueError(f"multiple must be at least 1, got {multiple}")
