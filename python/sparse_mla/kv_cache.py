"""The KV cache on torch tensors: one place that allocates, quantises, converts, and knows what it holds.

Formats and their bytes: docs/kv-formats.md. Slots below 0 are skipped; of several rows for one slot the last wins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Optional, Union

from . import _native
from ._native import Flag

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Format = Literal[
    "q8kv8_576", "q8kv8_512", "unified_bf16", "unified_fp16", "unified_fp8_1x64", "v32_656", "v4_584"
]
Scaling = Literal["amax", "amax_power_of_two", "given"]


@dataclass(frozen=True)
class KvVerdict:
    """Whether a tensor could be a cache of one format.

    Attributes:
        format: the format's name.
        objections: what speaks against it; empty where nothing does.
    """

    format: str
    objections: tuple[str, ...]

    @property
    def possible(self) -> bool:
        return not self.objections


class KvCache:
    """Rows of one format with their scales, in torch tensors of its own or of yours.

    Attributes:
        format: the name of the format; whether the cache is quantised follows from it.
        data: q8kv8_*, unified_*: [rows, D] of the format's dtype. v32_656: [rows, 656] bytes. v4_584: [pages, bytes].
        scales: q8kv8_*: one float32; unified_fp8_1x64: [rows, D / 64] float32; else None.

    >>> import torch
    >>> cache = KvCache("q8kv8_576", rows=100)
    >>> cache.append(torch.ones(2, 576), slots=torch.tensor([7, 3], dtype=torch.int32))
    >>> cache.dequantise(torch.tensor([3, 4], dtype=torch.int32))[:, 0].tolist()
    [1.0, 0.0]
    """

    def __init__(
        self,
        format: Format,
        rows: int,
        *,
        width: int = 512,
        page_size: int = 64,
        device: Union[str, torch.device] = "cpu",
    ) -> None:
        """Allocates: all values 0, the scale of a q8kv8_* cache 1.

        Args:
            format: one of the seven names.
            rows: rows that the cache holds; v4_584 rounds them up to whole pages.
            width: D of a unified_* format; the others have their own.
            page_size: rows of a page of v4_584.
            device: where the memory is.
        """
        import torch

        layout = _layout(format, width, page_size)
        self.format: str = format
        self.width = layout.width
        self.page_size = page_size if layout.scale_place == "page_end" else 0
        dtype = getattr(torch, layout.values.split(".")[-1])
        if layout.scale_place == "page_end":
            shape, dtype = (-(-rows // page_size), layout.page_bytes), torch.uint8
        elif layout.scale_place == "row":
            shape, dtype = (rows, layout.row_bytes), torch.uint8
        else:
            shape = (rows, layout.width)
        self.data: Tensor = torch.zeros(shape, dtype=torch.uint8 if dtype.itemsize == 1 else dtype, device=device).view(dtype)
        self.scales: Optional[Tensor] = None
        if layout.scale_place == "cache":
            self.scales = torch.ones(1, dtype=torch.float32, device=device)
        elif layout.scale_place == "tensor":
            self.scales = torch.zeros((rows, layout.row_scales), dtype=torch.float32, device=device)

    @classmethod
    def over(cls, format: Format, data: Tensor, scales: Optional[Tensor] = None, *, page_size: int = 0) -> KvCache:
        """A cache over tensors that exist, such as a slice of an engine's pool; strides are kept, nothing is copied.

        >>> import torch
        >>> pool = torch.zeros(8, 640, dtype=torch.bfloat16)
        >>> KvCache.over("unified_bf16", pool[:, :576]).decode_arguments()["unified_kv"].stride()
        (640, 1)
        """
        layout = _layout(format, data.shape[-1] if data.dim() else 0, page_size)
        cache = cls.__new__(cls)
        cache.format, cache.data, cache.scales = format, data, scales
        cache.width, cache.page_size = layout.width, page_size
        return cache

    def _rows(self) -> tuple[Any, ...]:
        return (self.format, self.data, self.scales, self.page_size)

    def append(
        self,
        rows: Tensor,
        slots: Optional[Tensor] = None,
        *,
        first_row: int = 0,
        scaling: Optional[Scaling] = None,
        scales: Optional[Tensor] = None,
        check_values: bool = False,
    ) -> None:
        """Quantises rows and writes them to slots.

        Args:
            rows: [n, D] bfloat16, float16 or float32.
            slots: [n] int32 or int64, -1 is skipped; None is first_row, first_row + 1, ...
            scaling: "amax", "amax_power_of_two" or "given"; None is the format's default: a q8kv8_* cache keeps the
                scale that it has, v4_584 takes powers of two, the others the largest magnitude / 448.
            scales: [n, scales of a row] float32, with "given", for formats whose rows have scales.
            check_values: refuse slots past the end instead of skipping them; waits for the device. CPU: always.

        Raises:
            ValueError: a broken rule; nothing is written then.
        """
        _transfer((None, rows, None, 0), self._rows(), None, slots, first_row, None, scaling, scales, check_values)

    def dequantise(
        self, slots: Optional[Tensor] = None, *, dtype: Optional[torch.dtype] = None, out: Optional[Tensor] = None
    ) -> Tensor:
        """Rows as floats: out[i] = cache[slots[i]], or cache[i]. A slot of -1 leaves its row as it is (0 in a new one).

        Args:
            slots: int32 or int64 of any shape; None is all rows.
            dtype: bfloat16 (None), float16 or float32.
            out: [n, D] to write into.
        """
        import torch

        if out is None:
            count = self.rows if slots is None else slots.numel()
            out = torch.zeros((count, self.width), dtype=dtype or torch.bfloat16, device=self.data.device)
        _transfer(self._rows(), (None, out, None, 0), slots, None, 0, None, None, None, False)
        return out

    def convert(self, target: KvCache, *, scaling: Optional[Scaling] = None) -> KvCache:
        """Row by row into `target`, a cache of the same width; returns it. Equal formats are copied bit for bit."""
        _transfer(self._rows(), target._rows(), None, None, 0, None, scaling, None, False)
        return target

    def gather(self, indices: Tensor, workspace: KvCache, *, first_row: int = 0) -> Tensor:
        """The step before a Q8KV8 prefill, in one kernel: the rows that `indices` name, requantised into `workspace`.

        Args:
            indices: [s_q, 1, topk] int32; -1 stays -1 and its workspace row is not written.
            workspace: a q8kv8_* cache of at least first_row + indices.numel() rows, whose scale is used.

        Returns:
            indices of the same shape that name the rows in the workspace.
        """
        import torch

        remapped = torch.empty_like(indices, dtype=torch.int32)
        _transfer(self._rows(), workspace._rows(), indices, None, first_row, remapped, None, None, False)
        return remapped

    @property
    def rows(self) -> int:
        """Rows that the cache holds."""
        if self.page_size:
            return int(self.data.shape[0]) * self.page_size
        count = 1
        for size in self.data.shape[:-1]:
            count *= int(size)
        return count

    def prefill_arguments(self) -> dict[str, Tensor]:
        """kv and kv_scale, as the prefill entry points take them: prefill(q, indices=..., **cache.prefill_arguments()).

        Raises:
            ValueError: prefill does not read this format; convert or gather first.
        """
        if not self.format.startswith("q8kv8_") or self.scales is None:
            raise ValueError(f"prefill does not read {self.format} rows; convert or gather them into a q8kv8_* cache first")
        return {"kv": self.data.reshape(-1, 1, self.width), "kv_scale": self.scales}

    def decode_arguments(self) -> dict[str, Optional[Tensor]]:
        """unified_kv and kv_scales, as the decode entry points take them.

        Raises:
            ValueError: decode does not read this format; convert first.
        """
        if not self.format.startswith("unified_"):
            raise ValueError(f"decode does not read {self.format} rows; convert them into a unified_* cache first")
        return {"unified_kv": self.data, "kv_scales": self.scales}


def inspect(tensor: Tensor) -> list[KvVerdict]:
    """Which formats a raw tensor could be, and what speaks against each; by dtype, shape and strides alone.

    >>> import torch
    >>> [verdict.format for verdict in inspect(torch.zeros(4, 656, dtype=torch.uint8)) if verdict.possible]
    ['v32_656']
    """
    return [KvVerdict(str(texts[0]), tuple(str(text) for text in texts[1:])) for texts in _native.kv_inspect(tensor)]


def to_e4m3fn(tensor: Tensor, scale: float = 1.0) -> Tensor:
    """Every value of another 8-bit float divided by `scale`, as float8_e4m3fn; the cache's scales are then multiplied
    by `scale`. With 0.5 a float8_e4m3fnuz tensor keeps its codes.

    >>> import torch
    >>> to_e4m3fn(torch.ones(2).to(torch.float8_e5m2)).float().tolist()
    [1.0, 1.0]
    """
    import torch

    out = torch.empty(tensor.shape, dtype=torch.float8_e4m3fn, device=tensor.device)
    try:
        _native.kv_to_e4m3fn(tensor, out, float(scale))
    except (ValueError, RuntimeError) as error:
        _native.reraise(error)
    return out


@dataclass(frozen=True)
class _Layout:
    width: int
    row_bytes: int
    page_bytes: int
    row_scales: int
    scale_place: str
    values: str


def _layout(format: str, width: int, page_size: int) -> _Layout:
    try:
        width, row_bytes, page_bytes, row_scales, place, values = _native.kv_layout(format, width, max(page_size, 1))
    except (ValueError, RuntimeError) as error:
        _native.reraise(error)
    return _Layout(int(width), int(row_bytes), int(page_bytes), int(row_scales), str(place), str(values))


def _transfer(
    source: tuple[Any, ...],
    target: tuple[Any, ...],
    source_slots: Any,
    target_slots: Any,
    first_row: int,
    remapped: Any,
    scaling: Optional[str],
    scales: Any,
    check_values: bool,
) -> None:
    flags = int(Flag.CHECK_VALUES) if check_values else 0
    try:
        _native.kv_transfer(flags, *source, *target, source_slots, target_slots, first_row, remapped, scaling, scales)
    except (ValueError, RuntimeError) as error:
        _native.reraise(error)
