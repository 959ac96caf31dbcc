"""The calls on NumPy, CuPy and JAX arrays: views of their memory go in, new arrays of the same kind come out.

float8 and bfloat16 are ml_dtypes' types, as these libraries have them.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import tvm_ffi

from . import _native
from ._describe import Describer, numpy_array


class _Library(Protocol):
    """What the calls need of an array library."""

    def empty(self, shape: tuple[int, ...], dtype: str) -> Any: ...
    def describe(self, value: Any) -> Any: ...
    def stream(self) -> AbstractContextManager[Any]: ...
    def finished(self, output: Any) -> Any:
        """What the caller gets for a buffer from `empty` that the kernel has been given."""
    def refuse_output(self, value: Any) -> None:
        """Raises TypeError where the library's arrays cannot be written to."""


def dtype_named(name: str) -> Any:
    """The NumPy dtype of that name, ml_dtypes' included."""
    import numpy

    if name in ("bfloat16", "float8_e4m3fn"):
        import ml_dtypes

        return numpy.dtype(getattr(ml_dtypes, name))
    return numpy.dtype(name)


class _NumPy:
    def __init__(self, _like: Any) -> None:
        self.describe = Describer()

    def empty(self, shape: tuple[int, ...], dtype: str) -> Any:
        import numpy

        return numpy.empty(shape, dtype_named(dtype))

    def stream(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def finished(self, output: Any) -> Any:
        return output

    def refuse_output(self, value: Any) -> None:
        if value is not None and not value.flags.writeable:
            raise ValueError("outputs must be writeable arrays, got a read-only one")


class _CuPy:
    def __init__(self, like: Any) -> None:
        self._cupy = sys.modules["cupy"]
        self._device = like.device.id
        self.describe = Describer()

    def empty(self, shape: tuple[int, ...], dtype: str) -> Any:
        with self._cupy.cuda.Device(self._device):
            return self._cupy.empty(shape, dtype_named(dtype))

    def stream(self) -> AbstractContextManager[Any]:
        device = tvm_ffi.device("cuda", self._device)
        return tvm_ffi.use_raw_stream(device, self._cupy.cuda.get_current_stream(self._device).ptr)

    def finished(self, output: Any) -> Any:
        return output

    def refuse_output(self, value: Any) -> None:
        pass


class _Jax:
    """JAX's arrays are values: a result is made before anyone has seen it, and handed out when it is complete."""

    def __init__(self, like: Any) -> None:
        self._jax = sys.modules["jax"]
        self._device = next(iter(like.devices()))
        self._describer = Describer()

    def describe(self, value: Any) -> Any:
        if isinstance(value, self._jax.Array):
            value.block_until_ready()
        return self._describer(value)

    def empty(self, shape: tuple[int, ...], dtype: str) -> Any:
        import numpy

        if self._device.platform == "cpu":
            return numpy.empty(shape, dtype_named(dtype))
        return self._jax.numpy.zeros(shape, dtype_named(dtype), device=self._device)

    def stream(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def finished(self, output: Any) -> Any:
        if self._device.platform == "cpu":
            return self._jax.device_put(output, self._device)
        _native.synchronize(self._device.local_hardware_id, 0)
        return output

    def refuse_output(self, value: Any) -> None:
        if value is not None:
            raise TypeError("outputs cannot be given with JAX arrays, which are never written to; leave them out")


_LIBRARIES: dict[str, type[_NumPy] | type[_CuPy] | type[_Jax]] = {"numpy": _NumPy, "cupy": _CuPy, "jax": _Jax}


def _call(function: Any, library: _Library, arguments: list[Any], full_length: int) -> None:
    try:
        with library.stream():
            missing = function(*arguments)
            if missing:
                padding = [None] * (full_length - len(arguments))
                workspace = library.describe(library.empty((missing,), "uint8"))
                function(*arguments, *padding, workspace)
    except (ValueError, RuntimeError) as error:
        _native.reraise(error)


def prefill(
    kind: str, flags: int, inputs: tuple[Any, ...], outputs: tuple[Any, Any, Any], workspace: Any
) -> tuple[Any, Any, Any]:
    """As _torch.prefill, on arrays of `kind`."""
    q, d_v = inputs[0], inputs[6]
    library = _LIBRARIES[kind](q)
    made = [None, None, None]
    for index, (given, dtype) in enumerate(zip(outputs, ("bfloat16", "float32", "float32"))):
        library.refuse_output(given)
        if given is None and q.ndim == 3 and 0 <= d_v <= q.shape[2]:
            made[index] = library.empty((*q.shape[:2], d_v) if index == 0 else tuple(q.shape[:2]), dtype)
    results = [given if new is None else new for given, new in zip(outputs, made)]
    arguments = [_argument(library, value) for value in (*inputs, *results)]
    if workspace is not None:
        arguments.append(library.describe(workspace))
    _call(_native.prefill, library, [flags, *arguments], 13)
    first, second, third = (value if new is None else library.finished(new) for value, new in zip(results, made))
    return first, second, third


def decode(
    kind: str,
    flags: int,
    inputs: tuple[Any, ...],
    out: Any,
    lse: Any,
    wants_lse: bool,
    d_v: int,
    second: tuple[Any, ...],
    workspace: Any,
) -> tuple[Any, Any]:
    """As _torch.decode, on arrays of `kind`."""
    q = inputs[0]
    library = _LIBRARIES[kind](q)
    inputs = (*inputs[:6], _last_dim_dense(inputs[6]))
    second = (*second[:3], _last_dim_dense(second[3]))
    library.refuse_output(out)
    library.refuse_output(lse)
    made_out = made_lse = None
    if q.ndim == 3 and 0 <= d_v <= q.shape[2]:
        if out is None:
            made_out = library.empty((*q.shape[:2], d_v or q.shape[2]), q.dtype.name)
        if lse is None and wants_lse:
            made_lse = library.empty(tuple(q.shape[:2]), "float32")
    results = (out if made_out is None else made_out, lse if made_lse is None else made_lse)
    arguments = [_argument(library, value) for value in (*inputs, *results, d_v, *second)]
    if workspace is not None:
        arguments.append(library.describe(workspace))
    _call(_native.decode, library, [flags, *arguments], 15)
    return (
        out if made_out is None else library.finished(made_out),
        lse if made_lse is None else library.finished(made_lse),
    )


def _argument(library: _Library, value: Any) -> Any:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else library.describe(value)


def _last_dim_dense(scales: Any) -> Any:
    strides = getattr(scales, "strides", None)
    if strides is None or len(strides) != 2 or strides[1] == scales.itemsize:
        return scales
    return scales.copy()


__all__ = ["decode", "dtype_named", "numpy_array", "prefill"]
