"""The site in a headless Chromium: from file://, without network, by keyboard, light and dark, phone to desktop."""

import json
import os
import pathlib
import random
import re
import shutil

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import sync_playwright

from catalog_support import ROOT

SIZES = {"phone": (360, 740), "tablet": (820, 1100), "desktop": (1360, 900)}
TRACEBACK = """Traceback (most recent call last):
  File "serve.py", line 88, in forward
    out, max_logits, lse = sparse_mla_q8kv8_prefill_fwd(q, kv, indices, scale, q_scale, kv_scale)
ValueError: Q8KV8 sparse-prefill topk width must be a positive multiple of 128, got 300
"""
CASES = json.loads((ROOT / "tests/catalog/matching_cases.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def browser():
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    assert chromium, "the tests of the site need Debian's chromium (packages/apt.txt)"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser, site):
    """A page whose console errors, failed loads and requests to anywhere but the site fail the test."""
    context = browser.new_context(viewport={"width": 1360, "height": 900})
    page = context.new_page()
    faults = []
    page.on("console", lambda message: faults.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("requestfailed", lambda request: faults.append(f"failed: {request.url}"))
    page.on("request", lambda request: faults.append(request.url) if not request.url.startswith(site.as_uri()) else None)
    yield page
    context.close()
    assert faults == []


@pytest.fixture
def index(page, site):
    page.goto((site / "index.html").as_uri())
    return page


def shown_rules(page):
    return page.locator("li.rule:visible").count()


def test_search_as_you_type(index, records):
    assert shown_rules(index) == len(records)
    for words, at_least in (("topk", 3), ("topk 128", 1), ("FP8 decode", 3), ("sparse_attn_v4_paged_decode", 20), ("contiguous", 10)):
        index.locator("#search").fill("")
        index.locator("#search").press_sequentially(words)
        assert at_least <= shown_rules(index) < len(records), words
        for text in index.locator("li.rule:visible").evaluate_all("items => items.map(item => item.dataset.words)"):
            assert all(word.lower() in text for word in words.split())
        count = shown_rules(index)
        assert index.locator("#count").inner_text() == ("1 rule" if count == 1 else f"{count} rules")
    index.locator("#search").fill("no such words")
    assert shown_rules(index) == 0 and index.locator("#none").is_visible() and not index.locator(".group:visible").count()
    index.locator("#search").fill("")
    assert shown_rules(index) == len(records)


def test_a_pasted_traceback_is_explained_and_its_links_lead_on(index):
    index.locator("#traceback").fill(TRACEBACK)
    found = index.locator("#found .found")
    found.wait_for()
    assert "pad indices to 384 slots with -1" in found.inner_text()
    assert "topk\n300" in found.inner_text()
    found.locator(".name a").click()
    assert index.url.endswith("/errors/prefill-topk-multiple-of-128.html")
    assert "topk width must be a positive multiple of 128" in index.locator("h1").inner_text()
    related = index.locator("ul.related a").first
    target = related.get_attribute("href")
    related.click()
    assert index.url.endswith(f"/errors/{target}")
    index.get_by_role("link", name="All errors").click()
    assert index.url.endswith("/index.html")


def test_no_match_shows_the_nearest_three(index):
    index.locator("#traceback").fill("topk should be a multiple of 128")
    index.locator("#found .found").wait_for()
    assert "nearest three" in index.locator("#found").inner_text()
    assert index.locator("#found a").count() == 3
    index.locator("#traceback").fill("")
    index.locator("#found .found").wait_for(state="detached")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["text"].strip().splitlines()[-1][:40])
def test_the_page_gives_the_same_answers_as_the_program(shared_index, case):
    answer = shared_index.evaluate("text => { const found = findRule(text, catalogData.rules); return {...found, fix: found.found ? filledFix(found.rule, found.values) : null} }", case["text"])
    if case["slug"] is None:
        assert not answer["found"]
        assert [rule["slug"] for rule in answer["nearest"]] == case["nearest"]
        return
    assert answer["rule"]["slug"] == case["slug"]
    assert answer["fix"] == case["fix"]
    assert [rule["slug"] for rule in answer["alsoPossible"]] == case.get("also", [])


@pytest.fixture(scope="module")
def shared_index(browser, site):
    context = browser.new_context()
    page = context.new_page()
    page.goto((site / "index.html").as_uri())
    yield page
    context.close()


def random_message(record, generator):
    """The record's message with values that its placeholders may have, made from the pattern's own groups."""
    texts = {
        "position": "[3, 2]", "value": "nan", "previous": "7", "pair": "source and target.scales", "format": "v4_584",
        "why": "whose exponent bias is 8", "found": "None",
    }
    expected = {"scales-given": "None", "-rank": "(rows, D)", "-dtype": "torch.float16"}
    values = {"shape": ["(2, 64, 576)", "(5,)", "()"], "dtype": ["torch.int64", "torch.bfloat16"], "device": ["cpu", "cuda:3"]}

    def value(match):
        name = match.group(1)
        for ending, choices in values.items():
            if name.endswith(ending):
                return generator.choice(choices)
        if name == "strides":
            return "(73728, 1152, 2)"
        if name == "name":
            return "source_slots" if record["slug"].startswith("kv-") else "attn_sink"
        if name == "expected":
            return next((text for end, text in expected.items() if record["slug"].endswith(end)), "576")
        return texts.get(name, str(generator.randrange(5000)))

    return re.sub(r"\{(\w+)\}", value, record["errorMessage"])


def test_messages_with_random_values_find_their_rule_in_the_page(shared_index, records):
    generator = random.Random(5)
    told = [record for record in records if record["errorClass"] != "FileError"]
    messages = [f"{record['errorClass']}: {random_message(record, generator)}" for record in told]
    found = shared_index.evaluate("texts => texts.map(text => findRule(text, catalogData.rules)).map(one => one.found ? one.rule.slug : null)", messages)
    assert list(zip(messages, found)) == list(zip(messages, [record["slug"] for record in told]))
    for record, message in zip(told, messages):  # and the pattern alone, as other programs would use it
        assert re.fullmatch(record["messagePattern"], message.split(": ", 1)[1]), message


def test_a_long_paste_does_not_hang(shared_index):
    milliseconds = shared_index.evaluate("""() => { const text = ("x".repeat(300) + " kv must be ( [ ' \\n").repeat(2000);
        const start = performance.now(); findRule(text, catalogData.rules); return performance.now() - start; }""")
    assert milliseconds < 5000


def test_everything_works_by_keyboard(index):
    index.keyboard.press("Tab")
    assert index.evaluate("document.activeElement.className") == "skip"
    index.keyboard.press("Tab")
    assert index.evaluate("document.activeElement.id") == "traceback"
    index.keyboard.press("Tab")
    assert index.evaluate("document.activeElement.id") == "search"
    index.locator("h1").click()
    index.keyboard.press("/")
    assert index.evaluate("document.activeElement.id") == "search"
    index.keyboard.type("prefill-q-rank")
    index.keyboard.press("Tab")
    index.keyboard.press("Enter")
    index.wait_for_url("**/errors/prefill-q-rank.html")


def test_every_link_leads_to_a_file_and_none_leaves_the_site(site):
    for path in site.rglob("*.html"):
        if path.name == "404.html":
            continue
        text = path.read_text(encoding="utf-8")
        assert "http://" not in re.sub(r'xmlns="http://www.w3.org[^"]*"', "", text) and "https://" not in text, path
        for link in re.findall(r'(?:href|src)="([^"#]+)', text):
            assert (path.parent / link).exists(), (path, link)


def body_colours(page):
    return page.evaluate("[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]")


def brightness(colour):
    return sum(int(number) for number in re.findall(r"\d+", colour)[:3])


def test_dark_mode(index):
    index.emulate_media(color_scheme="light")
    paper, ink = body_colours(index)
    assert brightness(paper) > 700 > 200 > brightness(ink)
    index.emulate_media(color_scheme="dark")
    paper, ink = body_colours(index)
    assert brightness(paper) < 100 < 600 < brightness(ink)


PAGES = ["index.html", "errors/prefill-row-alignment.html", "errors/decode-second-pool-kv-scales-shape.html", "errors/json-syntax.html"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", PAGES)
def test_axe_finds_no_fault(page, site, path, scheme):
    page.emulate_media(color_scheme=scheme)
    page.goto((site / path).as_uri())
    if path == "index.html":
        page.locator("#traceback").fill(TRACEBACK)
        page.locator("#found .found").wait_for()
    results = Axe().run(page, options={"preload": False})  # which would ask for style sheets by XMLHttpRequest
    assert results.violations_count == 0, results.generate_report()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("path", PAGES)
def test_nothing_is_wider_than_the_screen(page, site, path, size):
    width, height = SIZES[size]
    page.set_viewport_size({"width": width, "height": height})
    page.goto((site / path).as_uri())
    if path == "index.html":
        page.locator("#traceback").fill(TRACEBACK)
        page.locator("#found .found").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for name in ("#traceback", "#search", "h1", "pre"):
        for box in [one.bounding_box() for one in page.locator(name).all()]:
            assert box is None or box["x"] + box["width"] <= width + 0.5, (name, box)
    # Pictures to look at: SPARSE_MLA_SCREENSHOTS=folder
    if folder := os.environ.get("SPARSE_MLA_SCREENSHOTS"):
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            page.screenshot(path=pathlib.Path(folder) / f"{path.split('/')[-1][:-5]}-{size}-{scheme}.png")


def test_the_list_is_there_without_scripts(browser, site):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((site / "index.html").as_uri())
    assert page.locator("li.rule:visible").count() > 190
    page.locator("li.rule a").first.click()
    assert page.locator("h1").is_visible()
    context.close()


def test_the_served_site_loads_under_its_content_security_policy(browser, program):
    from test_http import Server

    server = Server()
    context = browser.new_context()
    page = context.new_page()
    faults = []
    page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    page.goto(f"http://127.0.0.1:{server.port}/")
    page.locator("#traceback").fill(TRACEBACK)
    page.locator("#found .name a").click()
    assert "multiple of 128" in page.locator("h1").inner_text()
    context.close()
    assert server.stop() == 0
    assert faults == []
