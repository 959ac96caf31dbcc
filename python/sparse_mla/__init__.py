"""Sparse MLA attention with an FP8 KV cache, for Hopper GPUs and CPUs.

Entry points (SGLang's names, signatures and messages):
    sparse_mla_q8kv8_prefill_fwd, sparse_attn_v4_paged_decode
The same math with fewer conditions:
    prefill, decode, prefill_workspace_bytes, decode_workspace_bytes, PagedPool
Before the call:
    check, is_q8kv8_cache, is_mla_kv, kv_ready, pad_heads, unpad_heads, pad_topk, topk_length_from_indices
The cache:
    KvCache; sparse_mla.kv_cache.inspect, sparse_mla.kv_cache.to_e4m3fn
In engines:
    sparse_mla.integrations.sglang
"""

from ._attention import (
    decode,
    decode_workspace_bytes,
    prefill,
    prefill_workspace_bytes,
    sparse_attn_v4_paged_decode,
    sparse_mla_q8kv8_prefill_fwd,
)
from ._check import check
from ._native import Rule, Violation, cuda_unavailable_reason, rules
from ._types import Array, PagedPool
from .helpers import (
    is_mla_kv,
    is_q8kv8_cache,
    kv_ready,
    pad_heads,
    pad_topk,
    topk_length_from_indices,
    unpad_heads,
)
from .kv_cache import KvCache, KvVerdict

__version__ = "0.1.0"

__all__ = [
    "Array",
    "KvCache",
    "KvVerdict",
    "PagedPool",
    "Rule",
    "Violation",
    "check",
    "cuda_unavailable_reason",
    "decode",
    "decode_workspace_bytes",
    "is_mla_kv",
    "is_q8kv8_cache",
    "kv_ready",
    "pad_heads",
    "pad_topk",
    "prefill",
    "prefill_workspace_bytes",
    "rules",
    "sparse_attn_v4_paged_decode",
    "sparse_mla_q8kv8_prefill_fwd",
    "topk_length_from_indices",
    "unpad_heads",
]
