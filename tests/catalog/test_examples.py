"""Every record's Python is true: what stands first is refused by that very rule, what stands second is not.

Examples that a CPU call can break run for real; those about devices are checked on fake CUDA tensors, those that only the
contract refuses on fake tensors with device rules left out. The check before the
call and the type guard have to tell the two apart. Transfers of cache rows have no Python function yet: their examples run,
and the check before the call tells them apart. Examples about files are read by the command line.
"""

import contextlib
import json
import os
import shutil

import pytest

from catalog_support import BUILD, ROOT, sparse_mla

EXAMPLES = json.loads((BUILD / "catalog/examples.json").read_text(encoding="utf-8")) if (BUILD / "catalog/examples.json").exists() else []
CALLS = [example for example in EXAMPLES if example["topic"] in ("prefill", "decode")]
TRANSFERS = [example for example in EXAMPLES if example["topic"] == "kv"]
FILES = [example for example in EXAMPLES if example["topic"] == "files"]
# Checks that look at one tensor's numbers and cannot hold for every way to break a rule about several.
NOT_TOLD_APART = {"prefill-out-alignment", "decode-out-alignment"}


def slug_of(example):
    return example["slug"]


def test_there_are_examples():
    assert len(CALLS) >= 160 and len(TRANSFERS) >= 70 and len(FILES) >= 36


@pytest.fixture(scope="module")
def sparse_mla_package():
    import sys

    package = BUILD / "python"
    assert (package / "sparse_mla").is_dir(), f"{package}: the Python package is not built (make python)"
    sys.path.insert(0, str(package))
    import sparse_mla

    return sparse_mla


@contextlib.contextmanager
def on(where):
    """The device that examples run on: the CPU; or, as fake tensors, which need no GPU and no memory, CUDA ("cuda") or
    none in particular ("meta")."""
    if where not in ("cuda", "meta"):
        yield "cpu"
        return
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        yield "cuda:0" if where == "cuda" else "cpu"


def ran(example, part, package, device):
    import python_preamble as preamble
    import torch

    torch.manual_seed(1)
    if example["topic"] == "prefill":
        names = preamble.prefill_names(device)
    elif example["topic"] == "kv":
        names = preamble.kv_names(device)
    else:
        names = preamble.decode_names(device, two_pools="second-pool" in example["slug"] and "in-contract" not in example["slug"])
    names |= {"torch": torch, "sparse_mla": package, "device": device}
    exec(compile(example[part], f"{example['slug']} {part}", "exec"), names)
    return names


def arguments_of(example, names, package):
    import python_preamble as preamble

    if example["topic"] == "prefill":
        return preamble.prefill_arguments(names)
    return preamble.decode_arguments(names, is_general(example), package.PagedPool)


def is_general(example):
    is_output_of_decode = example["topic"] == "decode" and example["argument"] in ("out", "lse")
    return example["runs"] == "cpu" or example["scope"] == "general" or is_output_of_decode


def function_of(example):
    if is_general(example):
        return example["topic"]
    return {"prefill": "sparse_mla_q8kv8_prefill_fwd", "decode": "sparse_attn_v4_paged_decode"}[example["topic"]]


def broken_by(example, names, package):
    arguments = arguments_of(example, names, package)
    how = {"check_values": example["runs"] == "cpu", "device_rules": example["runs"] != "meta"}
    return package.check(function_of(example), **how, **arguments)


def call(example, names, package):
    return getattr(package, function_of(example))(**arguments_of(example, names, package))


@pytest.mark.parametrize("example", [one for one in CALLS if one["before"]], ids=slug_of)
def test_what_is_refused_is_refused_by_that_rule(example, sparse_mla_package):
    with on(example["runs"]) as device:
        names = ran(example, "before", sparse_mla_package, device)
        violations = broken_by(example, names, sparse_mla_package)
        assert example["slug"] in [violation.slug for violation in violations]
        if example["runs"] == "cpu":
            error = ValueError if example["topic"] == "prefill" else RuntimeError
            with pytest.raises(error) as raised:
                call(example, names, sparse_mla_package)
            assert str(raised.value) == violations[0].message


@pytest.mark.parametrize("example", CALLS, ids=slug_of)
def test_what_is_accepted_is_accepted(example, sparse_mla_package):
    with on(example["runs"]) as device:
        names = ran(example, "after", sparse_mla_package, device)
        assert [violation.slug for violation in broken_by(example, names, sparse_mla_package)] == []
        if example["runs"] == "cpu":
            call(example, names, sparse_mla_package)


@pytest.mark.parametrize("example", CALLS + TRANSFERS, ids=slug_of)
def test_the_check_before_the_call_tells_the_two_apart(example, sparse_mla_package):
    check = compile(example["validation"], f"{example['slug']} validation", "exec")
    with on(example["runs"]) as device:
        exec(check, ran(example, "after", sparse_mla_package, device))
        if example["before"] and example["slug"] not in NOT_TOLD_APART:
            names = ran(example, "before", sparse_mla_package, device)
            with pytest.raises((AssertionError, ValueError)):
                exec(check, names)


@pytest.mark.parametrize("example", [one for one in CALLS + TRANSFERS if one["guard"]], ids=slug_of)
def test_the_type_guard_tells_the_two_apart(example, sparse_mla_package):
    import inspect

    with on(example["runs"]) as device:
        for part, expected in (("after", True), ("before", False)):
            if example[part] is None:
                continue
            names = ran(example, part, sparse_mla_package, device)
            known = set(names)
            exec(compile(example["guard"], f"{example['slug']} guard", "exec"), names)
            (guard,) = (value for name, value in names.items() if name not in known)
            assert guard(*(names[name] for name in inspect.signature(guard).parameters)) is expected, part


@pytest.mark.parametrize("example", [one for one in CALLS if one["catch"]], ids=slug_of)
def test_the_fall_back_runs_on_cpu_tensors(example, sparse_mla_package):
    """The contract's function refuses CPU tensors, so what stands behind `except` is what runs."""
    names = ran(example | {"nothing": ""}, "nothing", sparse_mla_package, "cpu")
    exec(compile(example["catch"], f"{example['slug']} catch", "exec"), names)


def file_names(folder):
    header = {
        "__metadata__": {"entry_point": "sparse_mla_q8kv8_prefill_fwd", "sm_scale": "0.25"},
        "q": {"dtype": "F8_E4M3", "shape": [1, 1, 16], "data_offsets": [0, 16]},
        "kv": {"dtype": "F8_E4M3", "shape": [2, 1, 16], "data_offsets": [16, 48]},
        "indices": {"dtype": "I32", "shape": [1, 1, 2], "data_offsets": [48, 56]},
    }
    description = {
        "entry_point": "sparse_mla_q8kv8_prefill_fwd",
        "args": {
            "q": {"shape": [2, 64, 576], "dtype": "torch.float8_e4m3fn"},
            "kv": {"shape": [1024, 1, 576], "dtype": "torch.float8_e4m3fn"},
            "indices": {"shape": [2, 1, 256], "dtype": "torch.int32"},
            "sm_scale": 0.0417,
        },
    }
    return {
        "json": json, "os": os, "shutil": shutil, "path": str(folder / "call.safetensors"), "header": header,
        "data": bytes(56), "raw": None, "description": description, "text": None, "dtype": "torch.float8_e4m3fn",
    }


def write_file(names, path, how):
    if how == "description":
        content = (names["text"] or json.dumps(names["description"])).encode()
    elif names["raw"] is not None:
        content = names["raw"]
    else:
        text = json.dumps(names["header"]).encode()
        content = len(text).to_bytes(8, "little") + text + names["data"]
    with open(path, "wb") as file:
        file.write(content)


def used_file(example, part, folder):
    """What the command line says of the file that the example leaves."""
    folder.mkdir()
    names = file_names(folder)
    path = names["path"]
    write_file(names, path, "call")
    exec(compile(example[part], f"{example['slug']} {part}", "exec"), names)
    how = example["runs"]
    if how == "write":
        return sparse_mla("make-case", "prefill", "--s-q", "1", "--s-kv", "8", "--topk", "128", "--output", names["path"])
    if names["path"] == path:
        write_file(names, path, how)
    if how == "result":
        return sparse_mla("compare", names["path"], names["path"])
    return sparse_mla("check", names["path"])


@pytest.mark.parametrize("example", FILES, ids=slug_of)
def test_examples_about_files(example, tmp_path):
    if example["before"]:
        done = used_file(example, "before", tmp_path / "before")
        assert done.returncode == 1 and done.stderr.startswith("sparse-mla: ")
        explained = json.loads(sparse_mla("explain", "--json", text=done.stderr).stdout)
        assert explained["record"]["slug"] == example["slug"], done.stderr
    if example["slug"] == "file-unstorable":  # a description takes what a capture cannot hold
        example = example | {"runs": "description"}
    done = used_file(example, "after", tmp_path / "after")
    assert done.returncode in (0, 2), done.stderr  # 2: a call that breaks the contract, in a file that is fine


@pytest.mark.parametrize("example", FILES, ids=slug_of)
def test_checks_of_files_compile(example):
    compile(example["validation"], f"{example['slug']} validation", "exec")
