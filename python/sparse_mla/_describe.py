"""Tensors as the compiled module takes them where it must not, or cannot, take the tensor itself.

A description is `("sparse_mla.Tensor", dtype, device, shape, strides, address)`; strides count elements.
"""

from __future__ import annotations

import sys
from typing import Any

from ._kinds import kind_of

Description = tuple[str, str, str, tuple[int, ...], tuple[int, ...], int]

_TENSOR = "sparse_mla.Tensor"
_NOT_A_TENSOR = "sparse_mla.NotATensor"
# Where tensors without memory (fake, meta) are said to lie: each storage in a range of its own, so that views of one
# storage overlap and others do not.
_RANGE = 1 << 44
_MAX_RANGES = 1 << 18


class Describer:
    """Describes the arguments of one call."""

    def __init__(self) -> None:
        self._ranges: dict[int, int] = {}

    def __call__(self, value: Any) -> Any:
        """A description of a tensor; None as it is; anything else under the name of its type."""
        if value is None:
            return None
        kind = kind_of(value)
        if kind == "torch":
            return self._torch(value)
        if kind == "numpy":
            return numpy_array(value)
        if kind == "cupy":
            return cupy_array(value)
        if kind == "jax":
            return self._jax(value)
        return (_NOT_A_TENSOR, type(value).__name__)

    def _torch(self, tensor: Any) -> Description:
        return (
            _TENSOR,
            str(tensor.dtype),
            str(tensor.device) if tensor.device.type in ("cpu", "cuda") else "meta",
            tuple(int(size) for size in tensor.shape),
            tuple(int(stride) for stride in tensor.stride()),
            self._torch_address(tensor),
        )

    def _torch_address(self, tensor: Any) -> int:
        if tensor.numel() == 0:
            return 0
        torch = sys.modules["torch"]
        if type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.device.type != "meta":
            return int(tensor.data_ptr())
        number = self._ranges.setdefault(tensor.untyped_storage()._cdata, len(self._ranges) + 1)
        return int(number % _MAX_RANGES * _RANGE + tensor.storage_offset() * tensor.element_size())

    def _jax(self, array: Any) -> Description:
        device = next(iter(array.devices()))
        shape = tuple(array.shape)
        return (
            _TENSOR,
            array.dtype.name,
            "cpu" if device.platform == "cpu" else f"cuda:{device.local_hardware_id}",
            shape,
            _row_major(shape),
            0 if array.size == 0 else array.unsafe_buffer_pointer(),
        )


def numpy_array(array: Any) -> Description:
    """A NumPy array, ml_dtypes included: they have no code in NumPy's DLPack export."""
    if not array.dtype.isnative:
        raise ValueError(f"arrays must have this machine's byte order, got dtype {array.dtype.str}")
    return (_TENSOR, array.dtype.name, "cpu", array.shape, _in_elements(array), array.ctypes.data)


def cupy_array(array: Any) -> Description:
    device = f"cuda:{array.device.id}"
    return (_TENSOR, array.dtype.name, device, array.shape, _in_elements(array), array.data.ptr)


def _in_elements(array: Any) -> tuple[int, ...]:
    steps = tuple(divmod(stride, array.itemsize) for stride in array.strides)
    if any(rest for _, rest in steps):
        raise ValueError(f"strides must be whole elements of {array.itemsize} bytes, got {array.strides} bytes")
    return tuple(step for step, _ in steps)


def _row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))
