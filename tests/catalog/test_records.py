"""The records: valid against the schema that is shipped, complete, and true about the source."""

import json
import re
import shutil
import subprocess
import sys

import jsonschema
import pytest

from catalog_support import BUILD, ROOT

# An id is made of its slug alone and never changes: links to a record last.
KNOWN_IDS = {
    "prefill-q-rank": "12cde27a1165361f",
    "prefill-topk-multiple-of-128": "99826ea333545e11",
    "decode-q-cuda": "a3917398019e3527",
    "safetensors-hole": "d59ec56329f1f8bd",
}


@pytest.fixture(scope="module")
def validator():
    schema = json.loads((ROOT / "catalog/schema/error-record.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)


def test_every_record_is_valid(validator, answers):
    assert len(answers) >= 196
    faults = {answer["record"]["slug"]: [error.message for error in validator.iter_errors(answer)] for answer in answers}
    assert {slug: found for slug, found in faults.items() if found} == {}


@pytest.mark.parametrize("field, value", [("id", "XYZ"), ("solutions", []), ("lineNumber", "12"), ("httpStatus", 400)])
def test_the_validator_refuses_what_is_wrong(validator, answers, field, value):
    wrong = json.loads(json.dumps(answers[0]))
    wrong["record"][field] = value
    assert not validator.is_valid(wrong)


def test_ids_are_unique_and_never_change(records):
    ids = {record["slug"]: record["id"] for record in records}
    assert len(set(ids.values())) == len(records)
    assert {slug: ids[slug] for slug in KNOWN_IDS} == KNOWN_IDS


def test_the_list_of_all_has_the_same_records(site, records):
    everything = json.loads((site / "api/errors/index.json").read_text(encoding="utf-8"))
    assert sorted(everything["records"], key=lambda record: record["id"]) == sorted(records, key=lambda record: record["id"])


def test_the_source_is_the_rule_itself(records):
    for record in records:
        lines = (ROOT / record["filePath"]).read_text(encoding="utf-8").splitlines()
        first, last = record["sourceCodeStart"], record["sourceCodeEnd"]
        assert first <= record["lineNumber"] <= last, record["slug"]
        assert "\n".join(lines[first - 1 : last]) == record["sourceCode"], record["slug"]
        row = re.sub(r'"\s*\n\s*"', "", record["sourceCode"])
        literals = [literal.replace('\\"', '"').strip() for literal in re.findall(r'"((?:[^"\\]|\\.)*)"', row)]
        parts = [max(re.split(r"\{\w+\}", literal), key=len).strip() for literal in literals]
        assert any(len(part) > 4 and part in record["errorMessage"] for part in parts), record["slug"]


def test_the_sha_is_that_of_the_file(records):
    for path in {record["filePath"] for record in records}:
        made = subprocess.run(["git", "hash-object", path], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
        assert {record["analyzedSha"] for record in records if record["filePath"] == path} == {made}


def test_texts_read_well(records):
    for record in records:
        for key in ("documentation", "triggerScenarios", "commonSituations"):
            text = record[key]
            assert text[0].isupper() or text.split()[0].replace("_", "").replace(".", "").isascii(), (record["slug"], key)
            assert text.rstrip('"').endswith((".", "?", ")")), (record["slug"], key, text[-30:])
            assert "  " not in text and not re.search(r"\{\w+\}", text), (record["slug"], key)


def build(root, rules, out):
    command = [sys.executable, root / "catalog/build.py", "--rules", rules, "--out", out]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.fixture
def copy(tmp_path):
    for folder in ("catalog", "src"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def test_a_complete_set_builds(copy):
    done = build(copy, BUILD / "catalog/rules.json", copy / "out")
    assert done.returncode == 0, done.stderr


def test_a_rule_without_a_record_fails_the_build(copy):
    rules = json.loads((BUILD / "catalog/rules.json").read_text(encoding="utf-8"))
    rules.append(rules[0] | {"slug": "prefill-q-mood", "message": "q must be content, got {dtype}"})
    (copy / "rules.json").write_text(json.dumps(rules), encoding="utf-8")
    source = copy / "src/contract/prefill_rules.cc"
    source.write_text(
        source.read_text(encoding="utf-8")
        + '{.id = "D", .slug = "prefill-q-mood", .message = "q must be content, got {dtype}"}\n', encoding="utf-8")
    done = build(copy, copy / "rules.json", copy / "out")
    assert done.returncode == 1
    assert "prefill-q-mood: no record" in done.stderr


@pytest.mark.parametrize("field", ["documentation", "solutions", "validationCode", "cpp.after", "tags"])
def test_an_incomplete_record_fails_the_build(copy, field):
    path = copy / "src/contract/records/dtypes.toml"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(f"\n{field} = ", f"\n# {field} = ", 1) if field == "tags" else remove(text, field), encoding="utf-8")
    done = build(copy, BUILD / "catalog/rules.json", copy / "out")
    assert done.returncode == 1
    assert "prefill-q-dtype: " in done.stderr and field.split(".")[0] in done.stderr


def remove(text, field):
    """Without the first value of that field, whichever quotes it has."""
    quoted = re.compile(rf'^{re.escape(field)} = (?:"""[\s\S]*?"""|\'\'\'[\s\S]*?\'\'\'|\[[\s\S]*?^\])\n', re.M)
    return quoted.sub("", text, count=1)


def test_a_record_without_a_rule_fails_the_build(copy):
    path = copy / "src/contract/records/dtypes.toml"
    path.write_text(path.read_text(encoding="utf-8").replace('"prefill-q-dtype"', '"prefill-q-dtipe"'), encoding="utf-8")
    done = build(copy, BUILD / "catalog/rules.json", copy / "out")
    assert done.returncode == 1
    assert "no rule is called prefill-q-dtipe" in done.stderr and "prefill-q-dtype: no record" in done.stderr
