"""The package as a whole: documentation's examples, types, what it links, what it needs, how it installs."""

import doctest
import importlib
import os
import pkgutil
import shutil
import subprocess
import sys
import zipfile

import pytest

import sparse_mla


def modules():
    yield "sparse_mla"
    for module in pkgutil.walk_packages(sparse_mla.__path__, "sparse_mla."):
        if not module.name.endswith(("__main__", "_native_module")):
            yield module.name


@pytest.mark.parametrize("name", list(modules()))
def test_examples_in_docstrings(name):
    module = importlib.import_module(name)
    failed, _ = doctest.testmod(module, extraglobs={}, optionflags=doctest.ELLIPSIS)
    assert failed == 0


@pytest.mark.parametrize("name", [n for n in sparse_mla.__all__ if callable(getattr(sparse_mla, n)) and n[0].islower()])
def test_every_public_function_has_an_example(name):
    documentation = getattr(sparse_mla, name).__doc__ or ""
    assert ">>>" in documentation or name in ("rules", "cuda_unavailable_reason")


def test_examples_in_the_guide(root):
    failed, attempted = doctest.testfile(str(root / "docs" / "python.md"), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert failed == 0 and attempted > 5


def test_types(root):
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--cache-dir", os.devnull], cwd=root, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout


def test_types_of_calls(root, tmp_path):
    """What a user's own checker says about right and wrong calls."""
    source = tmp_path / "user.py"
    source.write_text(
        "import torch, sparse_mla\n"
        "t = torch.zeros(1)\n"
        "out, m, l = sparse_mla.prefill(t, t, t, 1.0)\n"
        "reveal_type(out)\n"
        "reveal_type(sparse_mla.decode(t, t, t, t, None, 1.0))\n"
        "reveal_type(sparse_mla.decode(t, t, t, t, t, 1.0, return_lse=True))\n"
        "sparse_mla.prefill(t, t, t)\n"
        "sparse_mla.prefill(t, t, t, 1.0, 0.5)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--cache-dir", os.devnull, "--config-file", os.devnull, str(source)],
        cwd=tmp_path, capture_output=True, text=True, timeout=600, env={**os.environ, "MYPYPATH": str(root / "python")},
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if "user.py" in line]
    assert 'Revealed type is "torch._tensor.Tensor"' in lines[0]
    assert 'Revealed type is "torch._tensor.Tensor"' in lines[1]
    assert 'tuple[torch._tensor.Tensor, torch._tensor.Tensor]' in lines[2]
    assert "user.py:7: error" in lines[3] and any("user.py:8: error" in line for line in lines[4:])


def test_the_module_links_neither_python_nor_torch(package_path):
    module = package_path / "sparse_mla" / "_native_module.so"
    dynamic = subprocess.run(["readelf", "-d", str(module)], capture_output=True, text=True, check=True).stdout
    needed = [line for line in dynamic.splitlines() if "NEEDED" in line]
    assert any("libtvm_ffi" in line for line in needed) and any("libsparse_mla" in line for line in needed)
    assert not any("python" in line or "torch" in line or "c10" in line for line in needed)
    symbols = subprocess.run(["readelf", "-Ws", str(module)], capture_output=True, text=True, check=True).stdout
    assert " Py" not in symbols and "_Py" not in symbols


def test_it_serves_numpy_without_torch():
    code = """
import sys
sys.modules["torch"] = None  # as if it were not installed
import numpy, sparse_mla
import ml_dtypes
pool = numpy.full((4, 64), 2, ml_dtypes.bfloat16)
q = numpy.zeros((1, 1, 64), ml_dtypes.bfloat16)
slots, indptr = numpy.arange(3, dtype=numpy.int32), numpy.array([0, 3], numpy.int32)
out = sparse_mla.decode(q, pool, slots, indptr, None, 1.0)
assert (out == 2).all()
try:
    sparse_mla.prefill([1], [1], [1], 1.0)
except TypeError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "q must be a torch.Tensor or a NumPy, CuPy or JAX array, got list", done.stderr


def test_a_missing_module_is_named(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", "import sparse_mla"],
        capture_output=True, text=True, timeout=120,
        env={**os.environ, "SPARSE_MLA_NATIVE_MODULE": str(tmp_path / "none.so")},
    )  # fmt: skip
    assert "ImportError: sparse_mla: the compiled module is not at" in done.stderr


def test_python_m_is_the_command_line():
    done = subprocess.run([sys.executable, "-m", "sparse_mla", "--version"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and sparse_mla.__version__ in done.stdout
    done = subprocess.run([sys.executable, "-m", "sparse_mla", "no-such-command"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and done.stderr


def test_one_version_everywhere(root):
    assert f'version = "{sparse_mla.__version__}"' in (root / "pyproject.toml").read_text()
    assert f"project(sparse_mla VERSION {sparse_mla.__version__}" in (root / "CMakeLists.txt").read_text()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a compiler")
def test_pip_install(root, tmp_path):
    """`pip install .` in a fresh environment: one wheel for every Python, and it runs from outside the tree."""
    wheels = tmp_path / "wheels"
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--no-deps", "--disable-pip-version-check", "-q", "-w", str(wheels),
         "--config-settings=cmake.define.SPARSE_MLA_CUDA=OFF", f"--config-settings=build-dir={tmp_path}/build", str(root)],
        check=True, timeout=1500,
    )  # fmt: skip
    (wheel,) = wheels.glob("*.whl")
    assert wheel.name.startswith("sparse_mla-") and "-py3-none-" in wheel.name
    target = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert "sparse_mla/_native_module.so" in names and "sparse_mla/libsparse_mla.so.0" in names
    assert "sparse_mla/py.typed" in names and "sparse_mla/bin/sparse-mla" in names
    assert not [name for name in names if name.split("/")[0] not in ("sparse_mla", f"sparse_mla-{sparse_mla.__version__}.dist-info")]
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(target), str(wheel)], check=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["PYTHONPATH"] = str(target)
    code = "import sparse_mla; print(sparse_mla.__file__, len(sparse_mla.rules()))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith(str(target)), done.stderr
    done = subprocess.run([sys.executable, "-m", "sparse_mla", "--version"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert sparse_mla.__version__ in done.stdout, done.stderr
