"""Records: what is told about each rule, beside its code. Read, filled in for each rule, and checked for completeness.

src/<room>/records/*.toml hold [[record]] tables. One record may serve several rules ("rules" are slugs or patterns such
as "prefill-*-cuda"); {argument}, {call}, {general} and the words of arguments.toml are then filled in for each of them.
"""

import dataclasses
import fnmatch
import functools
import hashlib
import json
import pathlib
import re
import tomllib
from typing import Any

import rule_source

SCHEMA_VERSION = 1
TEXTS = ("documentation", "triggerScenarios", "commonSituations", "handlingStrategy", "backgroundTag")
LISTS = ("solutions", "preventionTips", "tags")
CODES = ("validationCode", "typeGuard", "tryCatchPattern")
EXAMPLES = ("cpp", "python")
# Keys beside those. values: regular expressions for placeholders; derived: values made from others; aliases: other
# projects' wording of the same refusal; related: slugs to name first; runs: where the Python example runs.
OTHER = ("rules", "values", "derived", "aliases", "related", "runs")
GENERAL_NAMES = {"sparse_mla_q8kv8_prefill_fwd": "prefill", "sparse_attn_v4_paged_decode": "decode"}
ERROR_TYPES = {"FileError": "file"}


class RecordError(Exception):
    pass


@dataclasses.dataclass(frozen=True)
class Rule:
    slug: str
    contract: str
    entry_point: str
    error_class: str
    scope: str
    stage: str
    argument: str
    message: str
    fix: str

    @property
    def is_fault(self) -> bool:
        return self.error_class == "FileError"

    @property
    def general(self) -> str:
        return GENERAL_NAMES.get(self.entry_point, self.entry_point)

    @property
    def call(self) -> str:
        """The function that asks for the rule: the contract's, unless only the general one does."""
        return self.general if self.scope == "general" else self.entry_point

    @property
    def shown(self) -> str:
        """The message as people know it: with the function's name in it."""
        return self.message.replace("{call}", self.call)


@dataclasses.dataclass
class Told:
    """A rule and what its record says of it, with every word filled in."""

    rule: Rule
    record: dict[str, Any]
    source: rule_source.Source
    pattern: str
    groups: list[str]
    related: list[str] = dataclasses.field(default_factory=list)

    @functools.cached_property
    def id(self) -> str:
        return record_id(self.rule.slug)


def record_id(slug: str) -> str:
    """The first 16 hex digits of SHA-256 of the slug: it is made of the slug alone and so never changes."""
    return hashlib.sha256(slug.encode()).hexdigest()[:16]


def load_rules(path: pathlib.Path) -> list[Rule]:
    return [Rule(**rule) for rule in json.loads(path.read_text(encoding="utf-8"))]


def record_files() -> list[pathlib.Path]:
    files = sorted(rule_source.ROOT.glob("src/*/records/*.toml"))
    return [file for file in files if file.name != "arguments.toml"]


# ---- messages -------------------------------------------------------------------------------------------------------

INTEGER = r"-?\d+"
NUMBER = r"-?(?:nan|inf|\d[\d.]*(?:e[-+]?\d+)?)"
TUPLE = r"\([-\d, ]*\)"
DTYPE = r"torch\.[a-z0-9_]+"
DEVICE = r"[a-z]+(?::\d+)?"
# Placeholders of messages, by name. What is not here is an integer in a call's message and any text in a file's.
VALUES = {
    "shape": TUPLE, "strides": TUPLE, "expected_shape": TUPLE, "dtype": DTYPE, "q_dtype": DTYPE, "expected_dtype": DTYPE,
    "device": DEVICE, "q_device": DEVICE, "source_device": DEVICE, "position": r"\[[\d, ()]*\]", "value": NUMBER,
    "previous": NUMBER, "sm_scale": NUMBER, "softmax_scale": NUMBER, "format": r"[a-z0-9_]+",
    "pair": r"[a-z_.]+ and [a-z_.]+",
}
FILE_VALUES = {
    "size": r"\d+", "limit": r"\d+", "header": r"\d+", "left": r"\d+", "rank": r"\d+", "begin": r"\d+", "end": r"\d+",
    "shape": TUPLE, "entry_point": r"\w+", "name": r'(?:"[^"]*"|[\w.]+)', "other": r'"[^"]*"', "key": r'(?:"[^"]*"|[\w.]+)',
}
KV_VALUES = {"expected": ".+", "found": ".+", "why": ".+"}
# Tensors that a rule about several of them can name, in {name}.
NAMES = {
    "sparse_mla_q8kv8_prefill_fwd": "q kv indices q_scale kv_scale attn_sink topk_length out max_logits lse".split(),
    "sparse_attn_v4_paged_decode": (
        "q unified_kv kv_indices kv_indptr kv_scales attn_sink out lse second_pool.unified_kv second_pool.kv_indices "
        "second_pool.kv_indptr second_pool.kv_scales"
    ).split(),
    "kv_transfer": (
        "source source.scales target target.scales source_slots target_slots remapped scales"
    ).split(),
}


def escaped(text: str) -> str:
    """Text as std::regex and JavaScript both read it: only what means something to either is escaped."""
    return re.sub(r"([\\^$.|?*+()\[\]{}])", r"\\\1", text)


def value_pattern(name: str, rule: Rule, own: dict[str, str]) -> str:
    if name in own:
        return own[name]
    if rule.is_fault:
        return FILE_VALUES.get(name, ".+")
    if name == "call":
        names = [rule.general] if rule.scope == "general" else [rule.entry_point]
        if rule.scope == "both" and rule.general not in names:
            names.append(rule.general)
        return "|".join(names)
    if name == "name":
        return "|".join(escaped(tensor) for tensor in NAMES[rule.entry_point])
    if name in KV_VALUES and rule.entry_point == "kv_transfer":
        return KV_VALUES[name]
    return VALUES.get(name, INTEGER)


def pattern_of(template: str, rule: Rule, own: dict[str, str]) -> tuple[str, list[str]]:
    pattern, groups = "", []
    for part in re.split(r"(\{\w+\})", template):
        if re.fullmatch(r"\{\w+\}", part):
            groups.append(part[1:-1])
            pattern += f"({value_pattern(part[1:-1], rule, own)})"
        else:
            pattern += escaped(part)
    return pattern, groups


def message_pattern(rule: Rule, record: dict[str, Any]) -> tuple[str, list[str]]:
    """A regular expression for the whole message, other wordings included, and what its groups are called."""
    patterns, groups = [], []
    for template in [rule.message, *record.get("aliases", {}).get(rule.slug, [])]:
        pattern, names = pattern_of(template, rule, record.get("values", {}))
        patterns.append(pattern)
        groups += names
    return (patterns[0] if len(patterns) == 1 else "(?:" + "|".join(patterns) + ")"), groups


# ---- filling in -----------------------------------------------------------------------------------------------------


@functools.cache
def arguments() -> dict[str, dict[str, dict[str, str]]]:
    path = rule_source.ROOT / "src" / "contract" / "records" / "arguments.toml"
    return tomllib.loads(path.read_text(encoding="utf-8"))


def words_of(rule: Rule) -> dict[str, str]:
    words = {"argument": rule.argument, "entry_point": rule.entry_point, "general": rule.general, "call": rule.call}
    words |= arguments().get(rule.entry_point, {}).get(rule.argument, {})
    return words


def as_text(value: str, is_code: bool) -> str:
    """Code keeps its lines; prose may be broken anywhere in its file."""
    return value.strip("\n") if is_code else " ".join(value.split())


def filled(value: Any, words: dict[str, str], is_code: bool = False) -> Any:
    """The value with each {word} that is known replaced; other braces are left, code has its own."""
    if value is None:
        return None
    return re.sub(r"\{(\w+)\}", lambda match: words.get(match.group(1), match.group()), as_text(value, is_code))


def filled_example(example: dict[str, Any], words: dict[str, str]) -> dict[str, str]:
    return {part: filled(text, words, is_code=True) for part, text in example.items()}


def filled_record(record: dict[str, Any], rule: Rule) -> dict[str, Any]:
    words = words_of(rule)
    told: dict[str, Any] = {key: record[key] for key in ("values", "derived", "related", "aliases", "runs") if key in record}
    if "runs" in words:
        told.setdefault("runs", words["runs"])
    told |= {key: filled(record.get(key), words) for key in TEXTS}
    told |= {key: [filled(item, words) for item in record.get(key, [])] for key in LISTS}
    told |= {key: filled(record.get(key), words, is_code=True) for key in CODES}
    told |= {language: filled_example(record.get(language, {}), words) for language in EXAMPLES}
    own_tags = [rule.argument.replace("second_pool.", ""), rule.general]
    told["tags"] = list(dict.fromkeys(told["tags"] + [tag for tag in own_tags if tag not in ("file", "files")]))
    return told


# ---- completeness ---------------------------------------------------------------------------------------------------

LEAST_LETTERS = {"documentation": 70, "triggerScenarios": 25, "commonSituations": 35, "handlingStrategy": 4, "backgroundTag": 4}


def faults_of(record: dict[str, Any], slug: str) -> list[str]:
    faults = [f"{key} is missing or too short" for key, least in LEAST_LETTERS.items() if len(record.get(key) or "") < least]
    faults += [f"{key} has nothing" for key in ("solutions", "preventionTips") if not record.get(key)]
    faults += ["validationCode is missing"] if not record.get("validationCode") else []
    for language in EXAMPLES:
        example = record.get(language) or {}
        if not example.get("after"):
            faults.append(f"{language}.after is missing")
        if not example.get("before") and not example.get("why_not_before"):
            faults.append(f"{language}.before is missing, and no why_not_before says why")
    for key in (*TEXTS, "solutions", "preventionTips"):
        for text in [record[key]] if isinstance(record.get(key), str) else record.get(key) or []:
            left = re.search(r"\{[a-z_]+\}", text)
            if left:
                faults.append(f"{key} has the unknown word {left.group()}")
    return [f"{slug}: {fault}" for fault in faults]


def read_records(path: pathlib.Path) -> list[dict[str, Any]]:
    try:
        records = tomllib.loads(path.read_text(encoding="utf-8")).get("record", [])
    except tomllib.TOMLDecodeError as error:
        raise RecordError(f"{path}: {error}") from None
    known = {*TEXTS, *LISTS, *CODES, *EXAMPLES, *OTHER}
    for record in records:
        for key in record:
            if key not in known:
                raise RecordError(f"{path}: unknown key {key!r} in the record of {record.get('rules')}")
    return records


def assign(rules: list[Rule]) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """The record of each slug, and what is wrong: rules without one or with two, records without a rule.

    A record that names a slug takes it from records whose pattern fits it too.
    """
    named: dict[str, dict[str, Any]] = {}
    fitting: dict[str, dict[str, Any]] = {}
    faults = []
    for path in record_files():
        where = path.relative_to(rule_source.ROOT)
        for record in read_records(path):
            for wanted in record["rules"]:
                slugs = [rule.slug for rule in rules if fnmatch.fnmatchcase(rule.slug, wanted)]
                if not slugs:
                    faults.append(f"{where}: no rule is called {wanted}")
                found = fitting if "*" in wanted else named
                faults += [f"{where}: {slug} has another record already" for slug in slugs if slug in found]
                found.update(dict.fromkeys(slugs, record))
    found = fitting | named
    return found, faults + [f"{rule.slug}: no record in src/*/records" for rule in rules if rule.slug not in found]


def relatedness(one: Told, other: Told) -> tuple[int, ...]:
    named = one.record.get("related", [])
    if other.rule.slug in named:
        return (100 - named.index(other.rule.slug),)
    same_call = one.rule.entry_point == other.rule.entry_point
    score = 3 * (one.record["backgroundTag"] == other.record["backgroundTag"])
    score += 3 * (same_call and one.rule.argument == other.rule.argument)
    score += len(set(one.record["tags"]) & set(other.record["tags"]))
    return (score + same_call,)


def tell(rules: list[Rule]) -> list[Told]:
    """Every rule with its record, in the rules' order. Throws RecordError with everything that is wrong."""
    found, faults = assign(rules)
    told = []
    for rule in rules:
        if rule.slug not in found:
            continue
        if not found[rule.slug].get("tags"):
            faults.append(f"{rule.slug}: tags has nothing")
        record = filled_record(found[rule.slug], rule)
        faults += faults_of(record, rule.slug)
        source = rule_source.source_of(rule.slug, rule.message, rule.is_fault)
        pattern, groups = message_pattern(rule, record)
        told.append(Told(rule, record, source, pattern, groups))
    slugs = {rule.slug for rule in rules}
    for one in told:
        faults += [f"{one.rule.slug}: related {slug} is no rule" for slug in one.record.get("related", []) if slug not in slugs]
        others = [other for other in told if other is not one]
        others.sort(key=lambda other, one=one: relatedness(one, other), reverse=True)
        one.related = [other.rule.slug for other in others[:5]]
    if faults:
        raise RecordError("\n".join(faults))
    return told


# ---- the public record ----------------------------------------------------------------------------------------------


def example_part(comment: str, title: str, code: str) -> str:
    return f"{comment} {title}\n{code}"


def example_text(record: dict[str, Any]) -> str:
    parts = []
    for language, comment, name in (("cpp", "//", "C++"), ("python", "#", "Python")):
        example = record[language]
        if "before" in example:
            parts.append(example_part(comment, f"{name}, before", example["before"]))
            parts.append(example_part(comment, f"{name}, after", example["after"]))
        else:
            parts.append(example_part(comment, f"{name}: {example['why_not_before']}", example["after"]))
    return "\n".join(parts)


def public_record(told: Told, at: str) -> dict[str, Any]:
    rule, record, source = told.rule, told.record, told.source
    return {
        "id": told.id,
        "slug": rule.slug,
        "errorMessage": rule.shown,
        "messagePattern": told.pattern,
        "errorType": ERROR_TYPES.get(rule.error_class, "validation"),
        "errorClass": rule.error_class,
        "severity": "error",
        "filePath": source.path,
        "lineNumber": source.line,
        "sourceCode": source.code,
        "sourceCodeStart": source.first,
        "sourceCodeEnd": source.last,
        "documentation": record["documentation"],
        "triggerScenarios": record["triggerScenarios"],
        "commonSituations": record["commonSituations"],
        "solutions": record["solutions"],
        "exampleFix": example_text(record),
        "handlingStrategy": record["handlingStrategy"],
        "validationCode": record["validationCode"],
        "typeGuard": record["typeGuard"],
        "tryCatchPattern": record["tryCatchPattern"],
        "preventionTips": record["preventionTips"],
        "tags": record["tags"],
        "backgroundTag": record["backgroundTag"],
        "analyzedSha": source.blob,
        "analyzedAt": at,
        "schemaVersion": SCHEMA_VERSION,
    }


def matching_entry(told: Told) -> dict[str, Any]:
    """What finding a rule by its message needs, in the page and in C++ alike."""
    rule = told.rule
    return {
        "slug": rule.slug,
        "id": told.id,
        "call": rule.call,
        "entryPoint": rule.entry_point,
        "names": list(dict.fromkeys([rule.entry_point, rule.general])),
        "errorClass": rule.error_class,
        "argument": rule.argument,
        "message": rule.shown,
        "pattern": told.pattern,
        "groups": told.groups,
        "fix": rule.fix or told.record["solutions"][0],
        "derived": told.record.get("derived", {}),
        "tags": told.record["tags"],
        "related": told.related,
    }
