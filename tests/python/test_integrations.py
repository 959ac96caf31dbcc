"""integrations.sglang against a stand-in for SGLang's package tree."""

import importlib
import subprocess
import sys

import pytest

import sparse_mla
from sparse_mla.integrations import sglang

PREFILL = "sglang.kernels.ops.attention.sparse_mla_q8kv8_prefill_sm90"
DECODE = "sglang.kernels.ops.attention.dsv4.unified_kv_kernels.paged_decode"
OLD_PREFILL = "sglang.jit_kernel.sparse_mla_q8kv8_prefill_sm90"
BACKEND = "sglang.srt.layers.attention.backend"


def write_module(root, name, text=""):
    path = root
    for part in name.split(".")[:-1]:
        path = path / part
        path.mkdir(exist_ok=True)
        (path / "__init__.py").touch()
    (path / f"{name.split('.')[-1]}.py").write_text(text)


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A function that makes a package tree of the same shape and puts it on the path."""

    def make(*modules):
        for module in modules:
            name = "sparse_attn_v4_paged_decode" if module == DECODE else "sparse_mla_q8kv8_prefill_fwd"
            write_module(tmp_path, module, f"def {name}(*args, **kwargs):\n    return 'sglang'\n")
        write_module(tmp_path, BACKEND, "".join(f"from {m} import *\n" for m in modules))
        monkeypatch.syspath_prepend(str(tmp_path))

    yield make
    sglang.uninstall()
    for name in [name for name in sys.modules if name.split(".")[0] == "sglang"]:
        del sys.modules[name]


def test_install_and_uninstall(tree):
    tree(PREFILL, DECODE)
    backend = importlib.import_module(BACKEND)  # has imported both names before
    changed = sglang.install()
    assert sorted(changed) == sorted(
        [
            f"{PREFILL}.sparse_mla_q8kv8_prefill_fwd",
            f"{DECODE}.sparse_attn_v4_paged_decode",
            f"{BACKEND}.sparse_mla_q8kv8_prefill_fwd",
            f"{BACKEND}.sparse_attn_v4_paged_decode",
        ]
    )
    prefill, decode = importlib.import_module(PREFILL), importlib.import_module(DECODE)
    assert prefill.sparse_mla_q8kv8_prefill_fwd is sparse_mla.sparse_mla_q8kv8_prefill_fwd
    assert backend.sparse_attn_v4_paged_decode is decode.sparse_attn_v4_paged_decode is sparse_mla.sparse_attn_v4_paged_decode
    assert sglang.install() == []
    assert sorted(sglang.uninstall()) == sorted(changed)
    assert prefill.sparse_mla_q8kv8_prefill_fwd() == backend.sparse_attn_v4_paged_decode() == "sglang"
    assert sglang.uninstall() == []


def test_an_older_tree(tree):
    tree(OLD_PREFILL)
    assert f"{OLD_PREFILL}.sparse_mla_q8kv8_prefill_fwd" in sglang.install()


def test_what_others_put_there_since_is_left_alone(tree):
    tree(PREFILL)
    sglang.install()
    module = importlib.import_module(PREFILL)
    module.sparse_mla_q8kv8_prefill_fwd = "theirs"
    assert sglang.uninstall() == []
    assert module.sparse_mla_q8kv8_prefill_fwd == "theirs"


def test_a_version_without_the_functions(tree):
    tree()
    with pytest.raises(ImportError, match="this sglang has neither entry point; looked in sglang.kernels"):
        sglang.install()


def test_an_import_error_inside_sglang_is_not_hidden(tree, tmp_path):
    tree(PREFILL)
    write_module(tmp_path, PREFILL, "import a_module_that_is_not_there\n")
    with pytest.raises(ModuleNotFoundError, match="a_module_that_is_not_there"):
        sglang.install()


def test_without_sglang_it_says_so():
    code = "import sparse_mla.integrations.sglang as s\ntry:\n    s.install()\nexcept ImportError as e:\n    print(e)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120).stdout
    assert out.startswith("sglang is not installed")
