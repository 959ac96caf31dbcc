"""The static site: an index, a page for each rule, JSON for programs. Pages work without a server and without scripts."""

import html
import json
import pathlib
import re
import string
from typing import Any

import records

FOLDER = pathlib.Path(__file__).resolve().parent / "site"
ASSETS = ("style.css", "match.js", "catalog.js", "icon.svg")
SECTIONS = {
    "sparse_mla_q8kv8_prefill_fwd": ("Prefill", "sparse_mla_q8kv8_prefill_fwd and prefill"),
    "sparse_attn_v4_paged_decode": ("Decode", "sparse_attn_v4_paged_decode and decode"),
    "kv_transfer": ("KV cache", "append, dequantise, convert and gather"),
    "files": ("Files", "captured calls, results and descriptions"),
}
ASKED_BY = {"contract": "the contract's entry point only", "general": "the general function only", "both": "both functions"}
LOOKS_AT = {
    "metadata": "always",
    "device": "unless device rules are left out",
    "values": "on CPU tensors, and on CUDA tensors where values are checked",
    "run": "when the call is about to run",
}


def text(value: str) -> str:
    return html.escape(value, quote=True)


def message_html(message: str) -> str:
    """The message with places for line breaks behind underscores, and its placeholders marked."""
    parts = []
    for part in re.split(r"(\{\w+\})", message):
        is_placeholder = re.fullmatch(r"\{\w+\}", part)
        parts.append(f"<var>{text(part)}</var>" if is_placeholder else text(part).replace("_", "_<wbr>"))
    return "".join(parts)


def template(name: str) -> string.Template:
    return string.Template((FOLDER / name).read_text(encoding="utf-8"))


def paragraph_list(items: list[str], kind: str) -> str:
    return f"<{kind}>" + "".join(f"<li>{text(item)}</li>" for item in items) + f"</{kind}>"


def code_block(code: str, label: str) -> str:
    """A block that scrolls sideways by keyboard too, and so needs a name and a place in the tab order."""
    return f'<pre tabindex="0" role="region" aria-label="{text(label)}"><code>{text(code)}</code></pre>'


def example_html(record: dict[str, Any]) -> str:
    parts = []
    for key, name in (("cpp", "C++"), ("python", "Python")):
        example = record[key]
        parts.append(f'<section class="language"><h3>{name}</h3>')
        if "before" in example:
            parts.append(f'<p class="label bad">Refused</p>{code_block(example["before"], name + ", refused")}')
        else:
            parts.append(f'<p class="note">{text(example["why_not_before"])}.</p>')
        parts.append(f'<p class="label good">Accepted</p>{code_block(example["after"], name + ", accepted")}</section>')
    return "".join(parts)


def optional_code(title: str, code: str | None) -> str:
    return f"<h2>{title}</h2>{code_block(code, title)}" if code else ""


def related_html(told: records.Told, by_slug: dict[str, records.Told]) -> str:
    items = "".join(
        f'<li><a href="{slug}.html"><code>{message_html(by_slug[slug].rule.shown)}</code></a>'
        f"<span>{text(by_slug[slug].rule.call if not by_slug[slug].rule.is_fault else 'files')}</span></li>"
        for slug in told.related
    )
    return f'<ul class="related">{items}</ul>'


def facts_html(told: records.Told) -> str:
    rule = told.rule
    facts = [("Raised as", f"<code>{text(rule.error_class)}</code>")]
    if rule.is_fault:
        facts.append(("Raised by", "the reader and writer of files"))
    else:
        facts.append(("Argument", f"<code>{text(rule.argument)}</code>"))
        facts.append(("Asked by", f"{text(ASKED_BY[rule.scope])} (<code>{text(rule.call)}</code>)"))
        facts.append(("Looked at", text(LOOKS_AT[rule.stage])))
        facts.append(("Contract", text(rule.contract) if rule.contract[1:].isdigit() else "a rule of this library's own"))
    facts.append(("Rule", f"<code>{text(rule.slug)}</code>"))
    return "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts)


def rule_page(told: records.Told, by_slug: dict[str, records.Told], at: str) -> str:
    rule, record, source = told.rule, told.record, told.source
    return template("rule.html").substitute(
        title=text(rule.shown),
        message=message_html(rule.shown),
        section=SECTIONS[rule.entry_point][0],
        facts=facts_html(told),
        documentation=text(record["documentation"]),
        triggers=text(record["triggerScenarios"]),
        situations=text(record["commonSituations"]),
        solutions=paragraph_list(record["solutions"], "ol"),
        example=example_html(record),
        validation=optional_code("Check before the call", record["validationCode"]),
        guard=optional_code("Type guard", record["typeGuard"]),
        catch=optional_code("Catch and fall back", record["tryCatchPattern"]),
        prevention=paragraph_list(record["preventionTips"], "ul"),
        tags="".join(f"<li>{text(tag)}</li>" for tag in record["tags"]),
        where=f"{text(source.path)}:{source.line}",
        first_line=source.first,
        source=code_block(source.code, f"{source.path}, lines {source.first} to {source.last}"),
        related=related_html(told, by_slug),
        id=told.id,
        at=at,
    )


def index_item(told: records.Told) -> str:
    rule = told.rule
    words = " ".join([rule.shown, rule.slug, told.id, rule.entry_point, rule.general, rule.error_class, *told.record["tags"]])
    return (
        f'<li class="rule" data-words="{text(words.lower())}"><a href="errors/{rule.slug}.html">'
        f"<code>{message_html(rule.shown)}</code></a>"
        f'<p><span class="slug">{text(rule.slug)}</span> {text(" · ".join(told.record["tags"]))}</p></li>'
    )


def index_page(told: list[records.Told], at: str) -> str:
    sections = []
    for entry_point, (title, what) in SECTIONS.items():
        ours = [one for one in told if one.rule.entry_point == entry_point]
        if ours:
            items = "".join(index_item(one) for one in ours)
            sections.append(
                f'<section class="group" aria-labelledby="{entry_point}"><h2 id="{entry_point}">{title} '
                f"<small>{text(what)}, {len(ours)} rules</small></h2><ul class=\"rules\">{items}</ul></section>"
            )
    return template("index.html").substitute(count=len(told), sections="".join(sections), at=at)


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def site(told: list[records.Told], public: list[dict[str, Any]], matching: dict[str, Any], at: str) -> dict[str, str]:
    by_slug = {one.rule.slug: one for one in told}
    files = {f"assets/{name}": (FOLDER / name).read_text(encoding="utf-8") for name in ASSETS}
    # </ cannot end a script element this way, and what follows the first brace is JSON, which C++ reads.
    files["assets/data.js"] = "const catalogData = " + compact(matching).replace("</", "<\\/") + ";\n"
    files["index.html"] = index_page(told, at)
    files["404.html"] = template("404.html").substitute(at=at)
    for one, record in zip(told, public):
        files[f"errors/{one.rule.slug}.html"] = rule_page(one, by_slug, at)
        files[f"api/errors/{one.id}"] = json.dumps({"record": record, "datasetVersion": at}, ensure_ascii=False, indent=1) + "\n"
    files["api/errors/index.json"] = compact({"records": public, "datasetVersion": at}) + "\n"
    return files
