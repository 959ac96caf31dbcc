// Finds the rule behind a message, a slug, an id or a whole traceback. catalog/matching.cc does the same step by step;
// tests/catalog/matching_cases.json holds both to the same answers.
//
// 1. A word of the text that is a slug or an id names its rule; the last such word wins.
// 2. Else each line is searched for messages. A message may begin at the line's start or behind a blank, a quote, an
//    opening bracket or a backtick; it must end at a word's end. The longest one in a line is it, the last line that has
//    one names the rule: that is what was raised last.
// 3. Rules of one wording are told apart by the exception's name and by function names in the text.
// 4. Nothing found: the three rules whose wording has the most letter triples in common with a line.
"use strict";

const kMaxLines = 4000;
const kMaxLine = 2000;

// Names that say which exception was raised, by the record's errorClass.
const kErrorNames = {
  ValueError: ["ValueError", "InvalidCall", "std::invalid_argument"],
  RuntimeError: ["RuntimeError", "RefusedCall", "std::runtime_error"],
  FileError: ["FileError"],
};

function matcher(rule) {
  return { rule, pattern: new RegExp(`(?:${rule.pattern})(?![A-Za-z0-9_])`, "y") };
}

const mayPrecede = (letter) => letter === undefined || /[\s"'`(\[]/.test(letter);

// The longest messages in a line: several where rules share their wording.
function messagesIn(line, matchers) {
  let best = [];
  for (let start = 0; start < line.length; ++start) {
    if (!mayPrecede(line[start - 1])) continue;
    for (const { rule, pattern } of matchers) {
      pattern.lastIndex = start;
      const match = pattern.exec(line);
      if (!match) continue;
      const length = match[0].length;
      if (best.length > 0 && best[0].length > length) continue;
      if (best.length > 0 && best[0].length < length) best = [];
      best.push({ rule, length, values: valuesOf(rule, match) });
    }
  }
  return best;
}

function valuesOf(rule, match) {
  const values = {};
  rule.groups.forEach((name, i) => {
    if (match[i + 1] !== undefined) values[name] = match[i + 1];
  });
  return values;
}

function likelihood(rule, line, text) {
  let score = 0;
  for (const name of kErrorNames[rule.errorClass] || []) {
    if (line.includes(name)) score += 8;
    else if (text.includes(name)) score += 2;
  }
  if (text.includes(rule.entryPoint)) score += 4;
  for (const word of text.split(/[^A-Za-z0-9_]+/)) {
    if (word !== rule.entryPoint && rule.names.includes(word)) return score + 1;
  }
  return score;
}

// Likeliest first; rules that are equally likely keep the table's order.
function ranked(messages, line, text) {
  const scored = messages.map((message) => ({ message, score: likelihood(message.rule, line, text) }));
  return scored.sort((a, b) => b.score - a.score).map((one) => one.message);
}

function namedRule(text, rules) {
  let named = null;
  for (const word of text.split(/[^A-Za-z0-9-]+/)) {
    const rule = rules.find((one) => one.slug === word || one.id === word);
    if (rule) named = rule;
  }
  return named;
}

function triples(text) {
  const letters = ` ${text.toLowerCase().replace(/[^a-z0-9]+/g, " ").trim()} `;
  const found = new Set();
  for (let i = 0; i + 3 <= letters.length; ++i) found.add(letters.slice(i, i + 3));
  return found;
}

function similarity(a, b) {
  let common = 0;
  for (const triple of a) common += b.has(triple) ? 1 : 0;
  return a.size + b.size === 0 ? 0 : (2 * common) / (a.size + b.size);
}

function nearestRules(lines, rules) {
  const asked = lines.slice(-20).map((line) => triples(line.replace(/^.*(?:Error|what\(\)):\s*/, "")));
  const scored = rules.map((rule) => {
    const wordings = [triples(rule.message), triples(rule.slug)];
    return { rule, score: Math.max(0, ...asked.flatMap((one) => wordings.map((wording) => similarity(one, wording)))) };
  });
  return scored.sort((a, b) => b.score - a.score).slice(0, 3).map((one) => one.rule);
}

// {found: true, rule, values, alsoPossible, earlier} or {found: false, nearest}.
function findRule(text, rules) {
  const lines = text.split("\n").map((line) => line.trim().slice(0, kMaxLine)).filter((line) => line !== "").slice(-kMaxLines);
  const matchers = rules.map(matcher);
  const named = namedRule(text, rules);
  const hits = [];
  for (const line of lines) {
    const messages = messagesIn(line, matchers);
    if (messages.length > 0) hits.push(ranked(messages, line, text));
  }
  if (named) {
    const told = hits.flat().reverse().find((message) => message.rule === named);
    return { found: true, rule: named, values: told ? told.values : {}, alsoPossible: [], earlier: [] };
  }
  if (hits.length === 0) return { found: false, nearest: nearestRules(lines, rules) };
  const [main, ...others] = hits[hits.length - 1];
  const earlier = hits.slice(0, -1).map((messages) => messages[0].rule).filter((rule) => rule !== main.rule);
  return {
    found: true, rule: main.rule, values: main.values, alsoPossible: others.map((message) => message.rule),
    earlier: [...new Set(earlier)],
  };
}

// A value made from another: the next positive multiple.
function derivedValue({ of, multiple }, values) {
  const number = Number(values[of]);
  if (values[of] === undefined || !Number.isSafeInteger(number)) return undefined;
  return String(number <= 0 ? multiple : Math.ceil(number / multiple) * multiple);
}

// The rule's shortest fix with the message's values in it. A clause whose values the message does not tell is left out;
// where that would leave nothing, the first clause stays with <names> in place of values.
function filledFix(rule, values) {
  const all = { ...values };
  for (const [name, how] of Object.entries(rule.derived)) {
    const value = derivedValue(how, values);
    if (value !== undefined) all[name] = value;
  }
  const clauses = rule.fix.split("; ");
  const filled = clauses.map((clause) => clause.replace(/\{(\w+)\}/g, (whole, name) => (name in all ? all[name] : whole)));
  const told = filled.filter((clause) => !/\{\w+\}/.test(clause));
  return told.length > 0 ? told.join("; ") : filled[0].replace(/\{(\w+)\}/g, "<$1>");
}
