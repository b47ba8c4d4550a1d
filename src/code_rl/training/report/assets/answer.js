/* The top of the page: did it learn, on what, for how long, at what cost; then what the diagnostics found. */

/* Several runs: which is better; below it each section is of the run that its title names. */
function better(views) {
  return h("section", { id: "better", class: "hero", "aria-labelledby": "better-title" },
    h("p", { class: "eyebrow" }, "Which is better?"), h("h1", { id: "better-title" }, views[0].better.headline), h("p", { class: "lede" }, views[0].better.sentence));
}

/* A section's title, with the run that it is of where several are shown. */
const titled = (title, view) => (view.of ? `${title} · ${view.of}` : title);

function hero(view) {
  const answer = view.answer;
  return h("section", { id: "answer", class: `hero tone-${answer.tone}`, "aria-labelledby": "answer-title" },
    h("div", { class: "hero-top" },
      h("div", {}, h("p", { class: "eyebrow" }, titled("Did it learn?", view)), h("h1", { id: "answer-title" }, answer.headline), h("p", { class: "lede" }, answer.sentence)),
      factList(view)),
    stats(view));
}

function stats(view) {
  const { totals, progress } = view;
  const cards = [
    ["Steps", progress.planned ? `${count(progress.done)} / ${count(progress.planned)}` : count(progress.done), progress.finished ? "finished" : "so far"],
    ["Wall time", duration(totals.seconds), `${duration(totals.stages.eval)} of it evaluating`],
    ["Completions", compact(totals.completions), `${percent((totals.verdicts.passed || 0) / (totals.completions || 1), 0)} passed`],
    ["Tokens", compact(totals.tokens.completion + totals.tokens.eval), `${compact(totals.tokens.completion)} for training`],
    ["Cost", ...totals.cost.split(" for ")],
  ];
  return h("dl", { class: "stats" }, cards.map(([label, value, note]) =>
    h("div", {}, h("dt", {}, label), h("dd", {}, h("span", { class: "figure" }, value), h("span", { class: "small" }, note)))));
}

/* Before and after as two dots on one line, with their intervals. */
function heldOut(views) {
  const names = [...new Set(views.flatMap((view) => view.splits.map((split) => split.name)))];
  const rows = names.flatMap((name) => views.flatMap((view) => view.splits.filter((split) => split.name === name).map((split) => ({ view, split }))));
  if (!rows.length) return null;
  const many = views.length > 1, ends = new Set(rows.filter(({ split }) => split.after).map(({ split }) => split.after.step));
  const after = (end) => `after ${plural(end.step + 1, "step")}`;
  const body = rows.map(({ view, split }) => h("tr", {},
    h("th", { scope: "row" }, split.name, h("span", { class: "small" }, [many ? view.name : null, split.problems ? plural(split.problems, "problem") : null].filter(Boolean).join(", "))),
    h("td", { class: "dumbbell", vars: many ? { "--run": `var(${LINES[views.indexOf(view) % LINES.length]})` } : {} }, dumbbell(split)),
    h("td", { class: "num" }, side(split.before)),
    h("td", { class: "num strong" }, side(split.after), split.after && ends.size > 1 ? h("span", { class: "small" }, after(split.after)) : null),
    h("td", { class: "num" }, split.change ? [h("span", { class: split.change.low > 0 ? "up" : split.change.high < 0 ? "down" : null }, points(split.change.value)), split.change.low === undefined ? null : h("span", { class: "small" }, `${points(split.change.low)} to ${points(split.change.high)}`)] : "–"),
    h("td", { class: "num optional" }, pair(split, "pass_k"), (split.after || split.before).k ? h("span", { class: "small" }, `of ${(split.after || split.before).k} samples`) : null),
    h("td", { class: "num optional" }, pair(split, "greedy")),
    h("td", { class: "num optional" }, pair(split, "format"))));
  const twice = views.map((view) => [view, view.splits.reduce((sum, split) => sum + (split.trained || 0), 0)]).filter(([, number]) => number);
  const never = rows.every(({ split }) => split.trained === 0);
  const what = ["Pass@1 on " + (never ? "problems that are never trained on" : "held-out problems"), ...twice.map(([view, number]) => `${count(number)} of them ${number === 1 ? "is" : "are"} also among those ${many ? `that ${view.name} trains on` : "to train on"}`)].join("; ") + ".";
  return section("held-out", "Held-out problems", `${what} Bars are 95% intervals over problems.`,
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Held-out results" }, h("table", { class: "table held-out" },
      h("thead", {}, h("tr", {}, ["Split", "", "Before", ends.size === 1 ? `After ${plural([...ends][0] + 1, "step")}` : "After", "Points", "Pass@k", "Greedy", "Format"].map((name, at) =>
        h("th", { scope: "col", class: at > 4 ? "num optional" : at > 1 ? "num" : null }, name || h("span", { class: "scale" }, h("span", {}, "0%"), h("span", {}, "50%"), h("span", {}, "100%")))))),
      h("tbody", {}, body))));
}

/* Settings in which the runs differ. */
function differences(views) {
  if (views.length < 2) return null;
  const names = [...new Set(views.flatMap((view) => view.settings.map(([name]) => name)))].filter((name) => !["log_path", "resolved", "checksum"].includes(name));
  const of = (view, name) => (view.settings.find(([each]) => each === name) || [name, "–"])[1];
  const rows = names.filter((name) => new Set(views.map((view) => of(view, name))).size > 1);
  return section("differences", "What differs", rows.length ? null : "Their settings are the same.", rows.length ? h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Settings that differ" }, h("table", { class: "table settings" },
    h("thead", {}, h("tr", {}, ["Setting", ...views.map((view) => view.name)].map((text) => h("th", { scope: "col" }, text)))),
    h("tbody", {}, rows.map((name) => h("tr", {}, h("th", { scope: "row" }, name), views.map((view) => h("td", {}, of(view, name)))))))) : null);
}

const side = (each) => (each ? [percent(each.score), each.low !== undefined ? h("span", { class: "small" }, `${(100 * each.low).toFixed(0)}–${(100 * each.high).toFixed(0)}`) : null] : "–");
const pair = (split, key) => [split.before, split.after].filter((each) => each && each[key] !== undefined && each[key] !== null).map((each) => (100 * each[key]).toFixed(0)).join(" → ") || "–";

function dumbbell(split) {
  const x = (value) => `${3 + 94 * value}%`;
  const drawing = h("svg", { class: "bell", role: "img", "aria-label": `${split.name}: ${[split.before, split.after].filter(Boolean).map((each) => percent(each.score)).join(" to ")}` });
  for (const at of [0, 0.25, 0.5, 0.75, 1]) drawing.append(h("line", { class: "tick", x1: x(at), x2: x(at), y1: 3, y2: 31 }));
  for (const [each, name, y] of [[split.before, "before", 11], [split.after, "after", 23]]) {
    if (!each) continue;
    if (each.low !== undefined) drawing.append(h("rect", { class: `interval ${name}`, x: x(each.low), y: y - 3, width: `${94 * Math.max(0.005, each.high - each.low)}%`, height: 6, rx: 3 }));
    drawing.append(h("circle", { class: `dot ${name}`, cx: x(each.score), cy: y, r: 5 }));
  }
  return drawing;
}

function factList(view) {
  return h("dl", { class: "facts" }, view.facts.map(([label, value]) => h("div", {}, h("dt", {}, label), h("dd", {}, value))));
}

const SEVERITY = { bad: ["✗", "Problem"], warning: ["!", "Warning"], note: ["i", "Note"] };

function findings(view) {
  const cards = view.findings.map((finding) => h("article", { class: `finding ${finding.severity}`, data: { name: finding.name } },
    h("h3", {}, h("span", { class: "badge", "aria-hidden": "true" }, SEVERITY[finding.severity][0]), h("span", { class: "visually-hidden" }, `${SEVERITY[finding.severity][1]}: `), finding.title),
    h("p", { class: "evidence" }, finding.evidence),
    h("dl", {}, h("dt", {}, "Likely cause"), h("dd", {}, finding.cause), h("dt", {}, "What to do"), h("dd", {}, finding.remedy))));
  const calm = h("p", { class: "calm" }, h("span", { class: "badge ok", "aria-hidden": "true" }, "✓"), "Nothing found: rewards, format, loss, truncation, time limits and the sandbox look as they should.");
  return section("findings", titled("Diagnostics", view), cards.length ? "Worst first. Each with its likely cause and what to do; more in docs/troubleshooting.md." : null, cards.length ? h("div", { class: "findings" }, cards) : calm);
}

function notices(view) {
  return view.notices.length ? h("ul", { class: "notices", "aria-label": "Notices" }, view.notices.map((text) => h("li", {}, text))) : null;
}

function settingsTable(view) {
  return section("settings", titled("Settings", view), null, h("details", {}, h("summary", {}, "All settings"),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "All settings" }, h("table", { class: "table settings" }, h("tbody", {}, view.settings.map(([name, value]) => h("tr", {}, h("th", { scope: "row" }, name), h("td", {}, value))))))));
}
