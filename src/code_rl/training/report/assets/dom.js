"use strict";
/* Elements are made with h() and text nodes only: no markup is ever parsed, so untrusted text stays text. */

const ATTRIBUTES = new Set(["id", "class", "type", "role", "title", "for", "value", "min", "max", "step", "placeholder", "open", "disabled",
  "tabindex", "scope", "colspan", "hidden", "name", "checked", "selected", "autocomplete", "spellcheck", "viewBox", "d", "x", "y", "x1", "x2", "y1", "y2",
  "cx", "cy", "r", "width", "height", "rx", "transform", "text-anchor", "dominant-baseline", "preserveAspectRatio", "focusable"]);
const SVG = new Set(["svg", "g", "path", "rect", "line", "circle", "text"]);

function h(tag, given, ...children) {
  const node = SVG.has(tag) ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(given || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    else if (name === "vars") for (const [key, each] of Object.entries(value)) node.style.setProperty(key, each);
    else if (name === "data") for (const [key, each] of Object.entries(value)) node.dataset[key] = each;
    else if (name === "href") { if (String(value).startsWith("#")) node.setAttribute("href", value); }
    else if (ATTRIBUTES.has(name) || name.startsWith("aria-")) node.setAttribute(name, value === true ? "" : value);
    else throw new Error(`attribute ${name}`);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

function fill(node, ...children) {
  node.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

// A half goes to the even digit, as in the sentences that Python writes: 6.25 is 6.2 in both.
const fixed = (value, digits) => new Intl.NumberFormat("en", { minimumFractionDigits: digits, maximumFractionDigits: digits, useGrouping: false, roundingMode: "halfEven" }).format(value);
const percent = (value, digits = 1) => (value === null || value === undefined ? "–" : `${fixed(100 * value, digits)}%`);
const points = (value) => `${value > -0.0005 ? "+" : "−"}${fixed(Math.abs(100 * value), 1)}`;
const count = (value) => (value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en-US"));

function compact(value) {
  if (value === null || value === undefined) return "–";
  for (const [size, unit] of [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e4, "k"]])
    if (Math.abs(value) >= size) return `${Number((value / (unit === "k" ? 1e3 : size)).toPrecision(3))}${unit}`;
  return Math.round(value).toLocaleString("en-US");
}

function number(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1e5) return compact(value);
  if (size < 1e-3) return value.toExponential(1).replace(/-/g, "−");
  return String(Number(value.toPrecision(size >= 100 ? 5 : 3)));
}

function duration(seconds) {
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${(seconds / 60).toFixed(1)} min`;
  if (seconds < 48 * 3600) return `${(seconds / 3600).toFixed(1)} h`;
  return `${(seconds / 86400).toFixed(1)} days`;
}

const words = (name) => name.replace(/_/g, " ");
const plural = (n, one, many) => `${count(n)} ${n === 1 ? one : many || `${one}s`}`;

/* Verdicts: letter, colour variable, sign. The sign carries the meaning too, for those who see no colours. */
const VERDICTS = {
  passed: { letter: "p", color: "--v-passed", sign: "✓" },
  wrong_answer: { letter: "w", color: "--v-wrong", sign: "✗" },
  runtime_error: { letter: "r", color: "--v-runtime", sign: "!" },
  time_limit: { letter: "t", color: "--v-time", sign: "◷" },
  memory_limit: { letter: "m", color: "--v-memory", sign: "▦" },
  output_limit: { letter: "o", color: "--v-output", sign: "≡" },
  compile_error: { letter: "c", color: "--v-compile", sign: "∅" },
  no_code: { letter: "n", color: "--v-nocode", sign: "–" },
  sandbox_error: { letter: "s", color: "--v-sandbox", sign: "?" },
  checker_error: { letter: "k", color: "--v-sandbox", sign: "?" },
};
const BY_LETTER = Object.fromEntries(Object.entries(VERDICTS).map(([name, each]) => [each.letter, name]));
const verdictClass = (name) => (Object.hasOwn(VERDICTS, name) ? `v-${VERDICTS[name].letter}` : "v-unknown");
const verdictSign = (name) => (Object.hasOwn(VERDICTS, name) ? VERDICTS[name].sign : "?");

const color = (variable) => getComputedStyle(document.documentElement).getPropertyValue(variable).trim() || "#888888";

function section(id, title, note, ...children) {
  return h("section", { id, "aria-labelledby": `${id}-title` },
    h("div", { class: "section-head" }, h("h2", { id: `${id}-title` }, title), note ? h("p", { class: "section-note" }, note) : null), ...children);
}

function segmented(label, options, chosen, choose) {
  const group = h("div", { class: "segmented", role: "group", "aria-label": label });
  for (const [value, text] of options)
    group.append(h("button", { type: "button", "aria-pressed": String(value === chosen), data: { value }, on: { click: () => {
      for (const each of group.children) each.setAttribute("aria-pressed", String(each.dataset.value === value));
      choose(value);
    } } }, text));
  return group;
}
