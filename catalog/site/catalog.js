// The index page: search as you type, and the traceback box.
"use strict";

const rules = catalogData.rules;
const bySlug = new Map(rules.map((rule) => [rule.slug, rule]));

function element(name, properties = {}, children = []) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

function linkTo(rule) {
  return element("a", { href: `errors/${rule.slug}.html` }, [element("code", { textContent: rule.message })]);
}

function listOf(title, some) {
  if (some.length === 0) return [];
  return [element("p", { textContent: title }), element("ul", {}, some.map((rule) => element("li", {}, [linkTo(rule)])))];
}

function shownValues(values) {
  const rows = Object.entries(values).map(([name, value]) =>
    element("div", {}, [element("dt", { textContent: name }), element("dd", { textContent: value })]));
  return rows.length > 0 ? [element("dl", {}, rows)] : [];
}

function shownMatch(result) {
  const { rule, values } = result;
  const related = rule.related.map((slug) => bySlug.get(slug)).filter((one) => one !== undefined);
  return element("div", { className: "found" }, [
    element("p", { className: "name" }, [linkTo(rule)]),
    ...shownValues(values),
    element("p", {}, [element("strong", { textContent: "Fix: " }), filledFix(rule, values)]),
    ...listOf("Another call says this too:", result.alsoPossible),
    ...listOf("Also in this text:", result.earlier),
    ...listOf("Related:", related),
  ]);
}

function shownNearest(nearest) {
  return element("div", { className: "found" }, [
    element("p", { className: "name", textContent: "No message of this library is in this text." }),
    ...listOf("The nearest three:", nearest),
  ]);
}

function explain(text) {
  const place = document.getElementById("found");
  if (text.trim() === "") {
    place.replaceChildren();
    return;
  }
  const result = findRule(text, rules);
  place.replaceChildren(result.found ? shownMatch(result) : shownNearest(result.nearest));
}

function search(text) {
  const words = text.toLowerCase().split(/\s+/).filter((word) => word !== "");
  let shown = 0;
  for (const item of document.querySelectorAll("li.rule")) {
    item.hidden = !words.every((word) => item.dataset.words.includes(word));
    shown += item.hidden ? 0 : 1;
  }
  for (const group of document.querySelectorAll(".group")) group.hidden = !group.querySelector("li.rule:not([hidden])");
  document.getElementById("none").hidden = shown > 0;
  document.getElementById("count").textContent = shown === 1 ? "1 rule" : `${shown} rules`;
}

// Typing is never held up by matching a long traceback.
function whenTypingRests(action, milliseconds) {
  let timer = 0;
  return (event) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(event.target.value), milliseconds);
  };
}

document.getElementById("traceback").addEventListener("input", whenTypingRests(explain, 120));
document.getElementById("search").addEventListener("input", (event) => search(event.target.value));
document.addEventListener("keydown", (event) => {
  const isTyping = ["INPUT", "TEXTAREA"].includes(document.activeElement.tagName);
  if (event.key !== "/" || isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  document.getElementById("search").focus();
});
search(document.getElementById("search").value);
explain(document.getElementById("traceback").value);
