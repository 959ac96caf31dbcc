"""All broken rules of a call, without running it."""

from __future__ import annotations

from typing import Any, Callable, Mapping, Union

from . import _native
from ._attention import decode, prefill, sparse_attn_v4_paged_decode, sparse_mla_q8kv8_prefill_fwd
from ._describe import Describer
from ._native import Flag, Violation

_PREFILL = ("q", "kv", "indices", "sm_scale", "q_scale", "kv_scale", "d_v", "attn_sink", "topk_length")
_PREFILL_OUTPUTS = ("out", "max_logits", "lse")
_DECODE = ("q", "unified_kv", "kv_indices", "kv_indptr", "attn_sink", "softmax_scale", "kv_scales")
_NUMBERS = {"sm_scale": 1.0, "softmax_scale": 1.0, "d_v": 0}

EntryPoint = Union[str, Callable[..., Any]]


def check(
    entry_point: EntryPoint, *args: Any, check_values: bool = False, device_rules: bool = True, **kwargs: Any
) -> list[Violation]:
    """Every broken rule of a call, in the contract's order; an empty list is a good call.

    Args:
        entry_point: one of the four functions, or its name: "sparse_mla_q8kv8_prefill_fwd",
            "sparse_attn_v4_paged_decode", "prefill", "decode".
        *args, **kwargs: what that function would be called with. Tensors are looked at, never run, so fake and meta
            tensors will do.
        check_values: look at lengths, indptr and scales too; waits for the device.
        device_rules: False leaves out what is about devices: for a call that is bound for a GPU, looked at elsewhere.

    Returns:
        The violations, each with slug, message, argument, expected, got and the shortest fix.

    Raises:
        TypeError: the call itself cannot be made: an argument is missing or unknown, q, kv or a list is no tensor.

    >>> import torch, sparse_mla
    >>> kv = torch.zeros(300, 1, 576, dtype=torch.bfloat16, device="meta")
    >>> q = torch.zeros(2, 48, 576, device="meta").to(torch.float8_e4m3fn)
    >>> indices = torch.zeros(2, 1, 100, dtype=torch.int32, device="meta")
    >>> found = sparse_mla.check("prefill", q, kv, indices, 0.04, device_rules=False)
    >>> [violation.message for violation in found]
    ['kv must be torch.float8_e4m3fn, got torch.bfloat16']
    """
    name = entry_point if isinstance(entry_point, str) else entry_point.__name__
    if name not in _CHECKS:
        raise ValueError(f"unknown entry point {name!r}, expected one of {', '.join(_CHECKS)}")
    function, checker = _CHECKS[name]
    flags = Flag.DEVICE_RULES if device_rules else Flag(0)
    if function in (sparse_mla_q8kv8_prefill_fwd, sparse_attn_v4_paged_decode):
        flags |= Flag.CONTRACT
    if check_values:
        flags |= Flag.CHECK_VALUES
    return checker(flags, _bound(function, args, kwargs))


def _bound(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    import inspect

    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


def _described(arguments: Mapping[str, Any], names: tuple[str, ...], describe: Describer) -> list[Any]:
    values = []
    for name in names:
        value = arguments.get(name, _NUMBERS.get(name))
        values.append(value if name in _NUMBERS else describe(value))
    return values


def _call(checker: Callable[..., list[Violation]], arguments: list[Any]) -> list[Violation]:
    try:
        return checker(*arguments)
    except ValueError as error:  # "q: expected a tensor, got list"
        raise TypeError(str(error)) from None


def _check_prefill(flags: Flag, arguments: Mapping[str, Any]) -> list[Violation]:
    values = _described(arguments, _PREFILL + _PREFILL_OUTPUTS, Describer())
    return _call(_native.check_prefill, [flags, *values])


def _check_decode(flags: Flag, arguments: Mapping[str, Any]) -> list[Violation]:
    describe = Describer()
    values = _described(arguments, (*_DECODE, "out", "lse"), describe)
    second = arguments.get("second_pool")
    pool = (None,) * 4 if second is None else (*second, None)[:4]
    d_v = arguments.get("d_v") or 0
    return _call(_native.check_decode, [flags, *values, d_v, *(describe(value) for value in pool)])


_CHECKS: dict[str, tuple[Callable[..., Any], Callable[[Flag, Mapping[str, Any]], list[Violation]]]] = {
    "sparse_mla_q8kv8_prefill_fwd": (sparse_mla_q8kv8_prefill_fwd, _check_prefill),
    "sparse_attn_v4_paged_decode": (sparse_attn_v4_paged_decode, _check_decode),
    "prefill": (prefill, _check_prefill),
    "decode": (decode, _check_decode),
}
