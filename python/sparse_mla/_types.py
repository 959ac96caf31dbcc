"""Types that signatures share."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional, Protocol, TypeVar


class Array(Protocol):
    """What torch tensors and NumPy, CuPy and JAX arrays have in common."""

    @property
    def shape(self) -> Any: ...
    @property
    def dtype(self) -> Any: ...


ArrayT = TypeVar("ArrayT", bound=Array)


class PagedPool(NamedTuple):
    """One pool of rows and the slot lists into it, as `decode` takes a second one.

    Attributes:
        unified_kv: [total_pages, D], q's dtype, or float8_e4m3fn with kv_scales.
        kv_indices: [total_indices] int32, flat slot lists.
        kv_indptr: [N + 1] int32; token t owns kv_indices[kv_indptr[t]:kv_indptr[t + 1]].
        kv_scales: [total_pages, D / 64] float32, or None.
    """

    unified_kv: Array
    kv_indices: Array
    kv_indptr: Array
    kv_scales: Optional[Array] = None
