"""Calls for tests, and the same calls in plain float64 NumPy, written from docs/math.md alone."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import ml_dtypes
import numpy as np
import torch

FP8 = torch.float8_e4m3fn


@dataclass(frozen=True)
class PrefillShape:
    s_q: int = 3
    s_kv: int = 400
    h_q: int = 8
    d_qk: int = 576
    topk: int = 100
    d_v: int = 512
    scales: bool = True
    sink: bool = False
    lengths: bool = False
    seed: int = 1


def fp8_bytes(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.float32)).to(FP8)


def prefill_call(shape: PrefillShape = PrefillShape(), **changes: Any) -> dict[str, Any]:
    """Arguments of `prefill`. Some indices are holes or out of range, one row has none, rows that no index names are
    NaN."""
    shape = replace(shape, **changes)
    random = np.random.default_rng(shape.seed)
    indices = random.integers(0, max(shape.s_kv, 1), (shape.s_q, 1, shape.topk), dtype=np.int32)
    holes = random.random(indices.shape) < 0.2
    indices = np.where(holes, random.choice(np.array([-1, -(2**31), shape.s_kv, 2**31 - 1], np.int32), indices.shape), indices)
    if shape.s_q > 2:
        indices[1] = -1
    kv = random.standard_normal((shape.s_kv, 1, shape.d_qk))
    named = np.zeros(shape.s_kv, bool)
    named[indices[(indices >= 0) & (indices < shape.s_kv)]] = True
    kv[~named] = np.nan
    call: dict[str, Any] = {
        "q": fp8_bytes(random.standard_normal((shape.s_q, shape.h_q, shape.d_qk))),
        "kv": fp8_bytes(kv),
        "indices": torch.from_numpy(indices.astype(np.int32)),
        "sm_scale": shape.d_qk**-0.5,
        "d_v": shape.d_v,
    }
    if shape.scales:
        call["q_scale"] = torch.tensor([0.75])
        call["kv_scale"] = torch.tensor([1.5])
    if shape.sink:
        sink = random.standard_normal(shape.h_q).astype(np.float32) + 4
        sink[0] = -np.inf
        sink[-1] = np.inf
        call["attn_sink"] = torch.from_numpy(sink)
    if shape.lengths:
        call["topk_length"] = torch.from_numpy(random.integers(0, shape.topk + 1, shape.s_q, dtype=np.int32))
    return call


def float64(tensor: Any) -> np.ndarray:
    if isinstance(tensor, torch.Tensor):
        return tensor.detach().cpu().double().numpy()
    return np.asarray(tensor).astype(np.float64)


def attend(logits: np.ndarray, values: np.ndarray, sink: np.ndarray | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One row: logits [h, tokens], values [tokens, d_v] -> out [h, d_v], max_logits [h], lse [h]."""
    heads = logits.shape[0]
    if logits.shape[1] == 0:
        return np.zeros((heads, values.shape[1])), np.full(heads, -np.inf), np.full(heads, np.inf)
    largest = logits.max(axis=1)
    weights = np.exp(logits - largest[:, None])
    total = weights.sum(axis=1)
    with np.errstate(over="ignore"):
        denominator = total if sink is None else total + np.exp(sink - largest)
    return weights @ values / denominator[:, None], largest, largest + np.log(total)


def prefill_reference(call: dict[str, Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    q, kv = float64(call["q"]), float64(call["kv"])[:, 0]
    indices = np.asarray(call["indices"].cpu() if isinstance(call["indices"], torch.Tensor) else call["indices"])[:, 0]
    scale = call["sm_scale"]
    value_scale = 1.0
    if call.get("q_scale") is not None:
        scale *= float64(call["q_scale"]).item()
    if call.get("kv_scale") is not None:
        value_scale = float64(call["kv_scale"]).item()
    sink = None if call.get("attn_sink") is None else float64(call["attn_sink"])
    rows = []
    for row in range(q.shape[0]):
        slots = indices[row]
        if call.get("topk_length") is not None:
            slots = slots[: int(call["topk_length"][row])]
        slots = slots[(slots >= 0) & (slots < kv.shape[0])]
        tokens = kv[slots] * value_scale
        rows.append(attend(q[row] @ tokens.T * scale, tokens[:, : call.get("d_v", 512)], sink))
    stack = [np.stack(part) if part else np.zeros((0,)) for part in zip(*rows)] if rows else [np.zeros(0)] * 3
    return stack[0], stack[1], stack[2]


@dataclass(frozen=True)
class DecodeShape:
    lengths: tuple[int, ...] = (0, 5, 130, 1)
    pages: int = 300
    h: int = 8
    d: int = 512
    fp8: bool = True
    dtype: torch.dtype = torch.bfloat16
    sink: bool = True
    seed: int = 1
    extra: dict[str, Any] = field(default_factory=dict)


def decode_call(shape: DecodeShape = DecodeShape(), **changes: Any) -> dict[str, Any]:
    shape = replace(shape, **changes)
    random = np.random.default_rng(shape.seed)
    indptr = np.concatenate([[0], np.cumsum(shape.lengths)]).astype(np.int32)
    slots = random.integers(0, shape.pages, int(indptr[-1]), dtype=np.int32)
    rows = random.standard_normal((shape.pages, shape.d))
    named = np.zeros(shape.pages, bool)
    named[slots] = True
    rows[~named] = np.nan
    call: dict[str, Any] = {
        "q": torch.from_numpy(random.standard_normal((len(shape.lengths), shape.h, shape.d))).to(shape.dtype),
        "unified_kv": fp8_bytes(rows) if shape.fp8 else torch.from_numpy(rows).to(shape.dtype),
        "kv_indices": torch.from_numpy(slots),
        "kv_indptr": torch.from_numpy(indptr),
        "attn_sink": torch.from_numpy((random.standard_normal(shape.h) + 3).astype(np.float32)) if shape.sink else None,
        "softmax_scale": shape.d**-0.5,
    }
    if shape.fp8:
        scales = np.exp2(random.uniform(-3, 3, (shape.pages, shape.d // 64)))
        call["kv_scales"] = torch.from_numpy(scales.astype(np.float32))
    return call


def pool_rows(kv: Any, scales: Any) -> np.ndarray:
    rows = float64(kv)
    return rows if scales is None else rows * np.repeat(float64(scales), 64, axis=1)


def decode_reference(call: dict[str, Any], d_v: int | None = None, second: Any = None) -> tuple[np.ndarray, np.ndarray]:
    q = float64(call["q"])
    pools = [(call["unified_kv"], call["kv_indices"], call["kv_indptr"], call.get("kv_scales"))]
    if second is not None:
        pools.append(tuple(second))
    pools = [(pool_rows(kv, scales), float64(slots).astype(int), float64(indptr).astype(int)) for kv, slots, indptr, scales in pools]
    sink = None if call["attn_sink"] is None else float64(call["attn_sink"])
    outs, lses = [], []
    for token in range(q.shape[0]):
        rows = np.concatenate([kv[slots[indptr[token] : indptr[token + 1]]] for kv, slots, indptr in pools])
        out, _, lse = attend(q[token] @ rows.T * call["softmax_scale"], rows[:, : d_v or q.shape[2]], sink)
        outs.append(out)
        lses.append(lse)
    return np.stack(outs), np.stack(lses)


def assert_close(result: Any, expected: np.ndarray, bound: float) -> None:
    """||result - expected|| / ||expected|| within `bound`; infinities and NaN only where they are expected."""
    values = float64(result)
    assert values.shape == expected.shape
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(values[~finite], expected[~finite])
    assert np.isfinite(values[finite]).all()
    size = np.linalg.norm(expected[finite])
    error = np.linalg.norm(values[finite] - expected[finite])
    assert error <= bound * size, f"relative error {error / size:.2e}, bound {bound:.0e}"


def ml_array(tensor: torch.Tensor | None) -> np.ndarray | None:
    """The same values as a NumPy array, float8 and bfloat16 as ml_dtypes' types."""
    if tensor is None:
        return None
    names = {FP8: (torch.uint8, ml_dtypes.float8_e4m3fn), torch.bfloat16: (torch.int16, ml_dtypes.bfloat16)}
    if tensor.dtype in names:
        carrier, dtype = names[tensor.dtype]
        return tensor.contiguous().view(carrier).numpy().view(dtype)
    return tensor.numpy()
