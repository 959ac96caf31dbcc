"""Which array library a value belongs to, without importing any of them."""

from __future__ import annotations

import sys
from typing import Any

# (kind, module, type): asked only where the module has been imported already, as it has where its values exist.
_TYPES = (("torch", "torch", "Tensor"), ("numpy", "numpy", "ndarray"), ("cupy", "cupy", "ndarray"), ("jax", "jax", "Array"))


def kind_of(value: Any) -> str | None:
    """ "torch", "numpy", "cupy" or "jax"; None for what is no array."""
    for kind, module, type_name in _TYPES:
        loaded = sys.modules.get(module)
        if loaded is not None and isinstance(value, getattr(loaded, type_name, ())):
            return kind
    return None
