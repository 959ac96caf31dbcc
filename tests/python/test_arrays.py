"""NumPy and JAX arrays: the same bits as torch tensors, returned in their kind."""

import ml_dtypes
import numpy as np
import pytest
import torch

import sparse_mla
from cases import decode_call, ml_array, prefill_call


def as_numpy(call):
    return {name: ml_array(value) if isinstance(value, torch.Tensor) else value for name, value in call.items()}


def same_bits(array, tensor):
    return np.array_equal(np.asarray(array).view(np.uint8), ml_array(tensor).view(np.uint8))


@pytest.mark.parametrize("changes", [{}, {"sink": True, "lengths": True, "d_v": 64}], ids=str)
def test_numpy_prefill(changes):
    call = prefill_call(**changes)
    results = sparse_mla.prefill(**as_numpy(call))
    assert [type(result) for result in results] == [np.ndarray] * 3
    assert [result.dtype for result in results] == [ml_dtypes.bfloat16, np.float32, np.float32]
    assert all(same_bits(array, tensor) for array, tensor in zip(results, sparse_mla.prefill(**call)))


@pytest.mark.parametrize("changes", [{}, {"fp8": False, "dtype": torch.float16}], ids=str)
def test_numpy_decode(changes):
    call = decode_call(**changes)
    arrays = as_numpy(call)
    out, lse = sparse_mla.decode(**arrays, return_lse=True)
    wanted, wanted_lse = sparse_mla.decode(**call, return_lse=True)
    assert out.dtype == arrays["q"].dtype
    assert same_bits(out, wanted) and same_bits(lse, wanted_lse)


def test_numpy_buffers_and_strided_views():
    call = as_numpy(prefill_call())
    pool = np.zeros((400, 1, 640), ml_dtypes.float8_e4m3fn)
    pool[..., :576] = call["kv"]
    out = np.zeros((3, 8, 512), ml_dtypes.bfloat16)
    given = sparse_mla.prefill(**{**call, "kv": pool[..., :576]}, out=out)[0]
    assert given is out and np.array_equal(out.view(np.uint16), sparse_mla.prefill(**call)[0].view(np.uint16))
    out.flags.writeable = False
    with pytest.raises(ValueError, match="outputs must be writeable arrays"):
        sparse_mla.prefill(**call, out=out)


def test_numpy_scales_with_a_strided_last_dimension():
    call = as_numpy(decode_call())
    expected = sparse_mla.decode(**call)
    call["kv_scales"] = np.asfortranarray(call["kv_scales"])
    assert np.array_equal(sparse_mla.decode(**call).view(np.uint16), expected.view(np.uint16))


def test_numpy_errors_are_the_contracts():
    call = as_numpy(prefill_call())
    with pytest.raises(ValueError) as raised:
        sparse_mla.prefill(**{**call, "kv": call["kv"].astype(np.float32)})
    assert str(raised.value) == "kv must be torch.float8_e4m3fn, got torch.float32"
    with pytest.raises(ValueError) as raised:
        sparse_mla.prefill(**{**call, "q_scale": 0.5})
    assert str(raised.value) == "q_scale must be a torch.Tensor"
    with pytest.raises(ValueError) as raised:
        sparse_mla.sparse_mla_q8kv8_prefill_fwd(**call)
    assert str(raised.value) == "q must be a CUDA tensor"
    with pytest.raises(ValueError, match="byte order"):
        sparse_mla.prefill(**{**call, "indices": call["indices"].astype(">i4")})
    assert [v.message for v in sparse_mla.check("prefill", **{**call, "indices": call["indices"].astype(np.int64)})] == [
        "indices must be int32, got torch.int64"
    ]


def test_jax():
    jax = pytest.importorskip("jax")
    call, paged = prefill_call(sink=True), decode_call()
    to_jax = lambda values: {k: jax.numpy.asarray(v) if isinstance(v, np.ndarray) else v for k, v in as_numpy(values).items()}
    results = sparse_mla.prefill(**to_jax(call))
    assert all(isinstance(result, jax.Array) for result in results)
    assert all(same_bits(array, tensor) for array, tensor in zip(results, sparse_mla.prefill(**call)))
    assert same_bits(sparse_mla.decode(**to_jax(paged)), sparse_mla.decode(**paged))
    with pytest.raises(TypeError, match="JAX arrays"):
        sparse_mla.prefill(**to_jax(call), out=results[0])
