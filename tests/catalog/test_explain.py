"""sparse-mla explain and catalog build, as commands."""

import json
import re

from catalog_support import sparse_mla

MESSAGE = "ValueError: sparse_mla_q8kv8_prefill_fwd requires h_q padded to a positive multiple of 64, got 48"


def explained(*arguments, text=None):
    done = sparse_mla("explain", "--json", *arguments, text=text)
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)


def test_a_slug_an_id_and_a_message_find_the_same_rule():
    _, by_message = explained(MESSAGE)
    record = by_message["record"]
    for what in (record["slug"], record["id"], f"see {record['id']}"):
        code, answer = explained(what)
        assert (code, answer["record"]) == (0, record)


def test_the_messages_values_are_put_into_the_fix():
    code, answer = explained(MESSAGE)
    assert code == 0
    assert answer["values"] == {"call": "sparse_mla_q8kv8_prefill_fwd", "h_q": "48"}
    assert answer["fix"].startswith("pad q to 64 heads")
    assert len(answer["related"]) == 5
    shown = sparse_mla("explain", MESSAGE)
    assert shown.returncode == 0
    assert "h_q = 48" in shown.stdout and "pad q to 64 heads" in shown.stdout and "Related errors" in shown.stdout
    assert "# Python, before" in shown.stdout and "// C++, after" in shown.stdout


def test_an_unquoted_message_is_several_arguments():
    assert explained(*"kv must be contiguous".split())[1]["record"]["slug"] == "prefill-kv-contiguous"


def test_a_traceback_on_standard_input():
    text = 'Traceback (most recent call last):\n  File "a.py", line 3, in f\n    decode(q)\nRuntimeError: out must be contiguous\n'
    for arguments in ((), ("-",)):
        code, answer = explained(*arguments, text=text)
        assert (code, answer["record"]["slug"]) == (0, "decode-out-contiguous")
        assert [other["slug"] for other in answer["alsoPossible"]] == ["prefill-out-contiguous"]


def test_sglangs_wording():
    assert explained("Triton sparse_attn_v4_paged_decode requires CUDA/HIP tensors")[1]["record"]["slug"] == "decode-q-cuda"


def test_no_match_gives_the_nearest_three_and_1():
    code, answer = explained("topk should be a multiple of 128")
    assert (code, answer["found"], len(answer["nearest"])) == (1, False, 3)
    assert answer["nearest"][0]["slug"] == "prefill-topk-multiple-of-128"
    shown = sparse_mla("explain", "topk should be a multiple of 128")
    assert shown.returncode == 1 and "nearest three" in shown.stdout and shown.stderr == ""


def test_bytes_that_are_no_text_are_survived():
    done = sparse_mla("explain", "--json", text="\udcff kv must be contiguous" .encode("utf-8", "surrogateescape").decode("latin-1"))
    assert json.loads(done.stdout)["record"]["slug"] == "prefill-kv-contiguous"


def test_every_message_that_check_prints_is_explained(tmp_path):
    description = {
        "entry_point": "sparse_mla_q8kv8_prefill_fwd",
        "args": {
            "q": {"shape": [2, 48, 576], "dtype": "torch.bfloat16", "device": "cpu"},
            "kv": {"shape": [1024, 2, 512], "dtype": "torch.float8_e4m3fn", "strides": [2048, 1024, 2]},
            "indices": {"shape": [3, 1, 100], "dtype": "torch.int64"},
            "sm_scale": 0.04, "q_scale": 1.0, "kv_scale": None,
            "topk_length": {"shape": [2], "dtype": "torch.int32", "values": [7, 900]},
        },
    }
    path = tmp_path / "call.json"
    path.write_text(json.dumps(description))
    violations = json.loads(sparse_mla("check", "--json", str(path)).stdout)["violations"]
    assert len(violations) > 8
    for violation in violations:
        code, answer = explained(f"{violation['error_class']}: {violation['message']}")
        assert (code, answer["record"]["slug"]) == (0, violation["slug"])
        for clause in answer["fix"].split("; "):  # what the message tells is as the rule itself says it
            assert "<" in clause or clause in violation["fix"], (clause, violation["fix"])


def test_build_says_what_it_wrote_and_where_it_cannot(tmp_path):
    done = sparse_mla("catalog", "build", str(tmp_path / "a/b"))
    files = [path for path in (tmp_path / "a/b").rglob("*") if path.is_file()]
    assert done.returncode == 0 and int(re.match(r"\d+", done.stdout).group()) == len(files) > 400
    (tmp_path / "file").write_text("")
    done = sparse_mla("catalog", "build", str(tmp_path / "file/site"))
    assert done.returncode == 1 and done.stderr.startswith("sparse-mla: ") and done.stderr.count("\n") == 1
