"""Puts this package's entry points where SGLang looks for its own, and takes them back.

    import sparse_mla.integrations.sglang
    sparse_mla.integrations.sglang.install()

SGLang's modules keep their names; only the function behind each name changes, also in SGLang modules that have
imported the name already.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
from types import ModuleType
from typing import Any, Callable, NamedTuple

from .._attention import sparse_attn_v4_paged_decode, sparse_mla_q8kv8_prefill_fwd

# Our function, and the modules that have defined SGLang's function of that name, newest first.
_ENTRY_POINTS: tuple[tuple[Callable[..., Any], tuple[str, ...]], ...] = (
    (
        sparse_mla_q8kv8_prefill_fwd,
        (
            "sglang.kernels.ops.attention.sparse_mla_q8kv8_prefill_sm90",
            "sglang.jit_kernel.sparse_mla_q8kv8_prefill_sm90",
        ),
    ),
    (sparse_attn_v4_paged_decode, ("sglang.kernels.ops.attention.dsv4.unified_kv_kernels.paged_decode",)),
)


class _Replaced(NamedTuple):
    module: ModuleType
    name: str
    original: Any
    ours: Any


_replaced: list[_Replaced] = []
_lock = threading.Lock()


def install() -> list[str]:
    """Replaces SGLang's two functions by this package's.

    Returns:
        The places that changed, such as
        "sglang.kernels.ops.attention.sparse_mla_q8kv8_prefill_sm90.sparse_mla_q8kv8_prefill_fwd". Empty where they
        are in place already.

    Raises:
        ImportError: SGLang is not installed, or it is a version that has neither function.

    >>> install()  # doctest: +SKIP
    ['sglang.kernels.ops.attention.sparse_mla_q8kv8_prefill_sm90.sparse_mla_q8kv8_prefill_fwd', ...]
    """
    if "sglang" not in sys.modules and importlib.util.find_spec("sglang") is None:
        raise ImportError("sglang is not installed, so there is nothing to replace; pip install sglang, then install()")
    with _lock:
        before = len(_replaced)
        found = [_replace(ours, modules) for ours, modules in _ENTRY_POINTS]
        if not any(found):
            looked = ", ".join(module for _, modules in _ENTRY_POINTS for module in modules)
            raise ImportError(f"this sglang has neither entry point; looked in {looked}")
        return [f"{place.module.__name__}.{place.name}" for place in _replaced[before:]]


def uninstall() -> list[str]:
    """Puts SGLang's own functions back. Places that somebody else has changed since are left alone.

    Returns:
        The places that changed; empty where nothing was installed.
    """
    with _lock:
        changed = []
        while _replaced:
            place = _replaced.pop()
            if getattr(place.module, place.name, None) is place.ours:
                setattr(place.module, place.name, place.original)
                changed.append(f"{place.module.__name__}.{place.name}")
        return changed


def _replace(ours: Callable[..., Any], modules: tuple[str, ...]) -> bool:
    """True where SGLang has a function of that name, replaced now or earlier."""
    name = ours.__name__
    module = next(filter(None, map(_import_or_none, modules)), None)
    if module is None or not hasattr(module, name):
        return False
    original = getattr(module, name)
    if original is ours:
        return True
    for holder in _sglang_modules():
        if holder.__dict__.get(name) is original:
            _replaced.append(_Replaced(holder, name, original, ours))
            setattr(holder, name, ours)
    return True


def _import_or_none(name: str) -> ModuleType | None:
    """None where this version of SGLang has no such module; an import error from inside one is passed on."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            return None
        raise


def _sglang_modules() -> list[ModuleType]:
    return [
        module
        for name, module in list(sys.modules.items())
        if module is not None and (name == "sglang" or name.startswith("sglang."))
    ]
