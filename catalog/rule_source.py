"""Finds a rule's own lines in the source: the row that holds its slug and message, and the check that it names.

A row is written once for one slug (`.slug = "prefill-q-rank"`), or once for a family (`.slug = slug<A, "cuda">`), whose
slugs end in its text. Where the ends of several families fit, the one whose message has the most in common is it.
"""

import dataclasses
import functools
import hashlib
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent
ROW = re.compile(r"\.slug\s*=\s*")
FAULT_ROW = re.compile(r'FaultInfo\{Fault::\w+,\s*"([^"]+)"')
LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"')
LONGEST_SNIPPET = 44


@dataclasses.dataclass(frozen=True)
class Row:
    path: str
    line: int  # of the slug, from 1
    first: int
    last: int
    slug_end: str
    message_parts: tuple[str, ...]
    is_literal: bool


@dataclasses.dataclass(frozen=True)
class Source:
    path: str
    line: int
    first: int
    last: int
    code: str
    blob: str  # what `git hash-object` prints for the file


@functools.cache
def text_of(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


@functools.cache
def blob_sha(path: str) -> str:
    content = (ROOT / path).read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def line_at(text: str, index: int) -> int:
    return text.count("\n", 0, index) + 1


def matching_brace(text: str, opening: int) -> int:
    """The index of the `}` that closes the `{` at `opening`; braces in string literals don't count."""
    depth = 0
    for match in re.finditer(r'"(?:[^"\\]|\\.)*"|[{}]', text[opening:]):
        if match.group() == "{":
            depth += 1
        elif match.group() == "}":
            depth -= 1
            if depth == 0:
                return opening + match.start()
    raise ValueError("unbalanced braces")


def expression_at(text: str, start: int) -> str:
    """The initialiser that begins at `start`, up to the comma or brace that ends it."""
    depth = 0
    for match in re.finditer(r'"(?:[^"\\]|\\.)*"|[(){}<>,]', text[start:]):
        letter = match.group()
        if letter in "({<":
            depth += 1
        elif letter in ")}>":
            if depth == 0:
                return text[start : start + match.start()]
            depth -= 1
        elif letter == "," and depth == 0:
            return text[start : start + match.start()]
    return text[start:]


def unescaped(literal: str) -> str:
    return literal.replace('\\"', '"').replace("\\\\", "\\")


def literals(expression: str) -> tuple[str, ...]:
    joined = re.sub(r'"\s*\n\s*"', "", expression)
    return tuple(unescaped(part) for part in LITERAL.findall(joined))


def check_function(text: str, row_text: str, opening: int) -> int | None:
    """Where the function that a row's `.check = name<...>` names begins, if that is near above."""
    named = re.search(r"\.check\s*=\s*(?:[\w:]+<[^>]*>::)?(\w+)", row_text)
    if not named:
        return None
    definitions = list(re.finditer(rf"^(?:template [^\n]*\n)?[^\n;]*\b{named.group(1)}\(const [^\n]*\{{", text[:opening], re.M))
    return definitions[-1].start() if definitions else None


@functools.cache
def rows_of(path: str) -> tuple[Row, ...]:
    text = text_of(path)
    rows = []
    for match in ROW.finditer(text):
        opening = text.rfind("{", 0, text.rfind(".id", 0, match.start()))
        closing = matching_brace(text, opening)
        row_text = text[opening:closing]
        slug_literals = literals(expression_at(text, match.end()))
        message = re.search(r"\.message\s*=\s*", row_text)
        if not slug_literals or not message:
            continue
        first, last = line_at(text, opening), line_at(text, closing)
        check = check_function(text, row_text, opening)
        if check is not None and last - line_at(text, check) < LONGEST_SNIPPET:
            first = line_at(text, check)
        is_literal = text[match.end()] == '"'
        rows.append(
            Row(path, line_at(text, match.start()), first, min(last, first + LONGEST_SNIPPET - 1), slug_literals[-1],
                literals(expression_at(row_text, message.end())), is_literal)
        )
    return tuple(rows)


def fault_row(path: str, slug: str) -> Row | None:
    text = text_of(path)
    for match in FAULT_ROW.finditer(text):
        if match.group(1) == slug:
            closing = matching_brace(text, text.index("{", match.start()))
            line = line_at(text, match.start())
            return Row(path, line, line, line_at(text, closing), slug, (), True)
    return None


def common_letters(message: str, parts: tuple[str, ...]) -> int:
    """How much of a message its row's literals make up; -1 where one of them is not in it."""
    position = total = 0
    for part in parts:
        found = message.find(part, position)
        if found < 0:
            return -1
        position = found + len(part)
        total += len(part)
    return total


def rule_row(slug: str, message: str, paths: list[str]) -> Row:
    candidates = []
    for path in paths:
        for row in rows_of(path):
            if row.is_literal and row.slug_end == slug:
                return row
            letters = common_letters(message, row.message_parts)
            if not row.is_literal and slug.endswith("-" + row.slug_end.lstrip("-")) and letters >= 0:
                candidates.append((letters, len(row.slug_end), row))
    if not candidates:
        raise LookupError(f"{slug}: no row of {', '.join(paths)} makes this rule")
    return max(candidates, key=lambda candidate: candidate[:2])[2]


def source_of(slug: str, message: str, is_fault: bool) -> Source:
    if is_fault:
        row = fault_row("src/files/faults.h", slug)
        if row is None:
            raise LookupError(f"{slug}: not in src/files/faults.h")
    else:
        paths = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "src" / "contract").glob("*.[hc]*") if path.is_file())
        row = rule_row(slug, message, paths)
    lines = text_of(row.path).splitlines()[row.first - 1 : row.last]
    return Source(row.path, row.line, row.first, row.last, "\n".join(lines), blob_sha(row.path))
