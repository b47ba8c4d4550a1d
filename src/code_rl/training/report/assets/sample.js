/* One group in full: problem, history, matrix of tests and samples, and one completion to read. */

const MATRIX_ROWS = 40;

function showGroup(viewer, row, samples, problem) {
  const name = viewer.index.names[row.problem];
  const head = h("header", { class: "detail-head" }, h("div", {}, h("p", { class: "eyebrow" }, `Step ${row.step}, ${groupName(row.group)}`), h("h3", { class: "problem-name" }, name)),
    h("button", { type: "button", class: "button", id: "follow", on: { click: () => viewer.follow(row.problem) } }, "Follow this problem"));
  if (!samples) return fill(viewer.detail, head, historyOf(viewer, row), h("p", { class: "empty" }, "The texts of this group are not in the page: it carries a sample. Its verdicts: ", dots(row.letters)), h("p", { class: "small" }, "Filled marks above can be opened."));
  fill(viewer.detail, head, historyOf(viewer, row), problemText(problem), matrix(viewer, row, samples, problem), h("div", { class: "sample", id: "sample" }));
  showSample(viewer, row, samples, problem);
}

/* A place that was filled anew has a number for each time. */
const ATTEMPT = 65536;
const groupName = (group) => `group ${group % ATTEMPT}${group < ATTEMPT ? "" : `, drawn anew${group < 2 * ATTEMPT ? "" : ` for the ${Math.floor(group / ATTEMPT)}th time`}`}`;

/* How this problem went over the run: one mark per appearance. */
function historyOf(viewer, row) {
  const all = viewer.history(row.problem);
  if (all.length < 2) return null;
  const every = Math.ceil(all.length / 240), shown = all.filter((each, at) => at % every === 0 || each === row);
  return h("div", { class: "history", role: "group", "aria-label": `${plural(all.length, "appearance")} of this problem` }, h("span", { class: "small" }, "This problem over the run: share that passes"),
    h("div", { class: "history-marks" }, shown.map((each) => {
      const judged = each.letters.replace(/[s?]/g, ""), rate = judged ? [...judged].filter((letter) => letter === "p").length / judged.length : 0;
      return h("button", { type: "button", class: `mark${each === row ? " here" : ""}${each.kept ? "" : " absent"}`, title: `step ${each.step}: ${solved(each.letters)}`, "aria-label": `step ${each.step}: ${solved(each.letters)}`, vars: { "--share": `${Math.round(100 * rate)}%` }, on: { click: () => viewer.open(each, 0) } });
    })), h("div", { class: "row spread small" }, h("span", {}, `step ${all[0].step}`), h("span", {}, `step ${all[all.length - 1].step}`)));
}

function problemText(problem) {
  if (!problem) return null;
  const tests = problem.tests.map((test) => h("tr", {}, h("th", { scope: "row" }, test.test === null ? "–" : String(test.test)), h("td", {}, h("pre", {}, test.input)), h("td", {}, h("pre", {}, test.expected))));
  return h("details", { class: "problem", open: true }, h("summary", {}, "Problem"), h("p", { class: "statement" }, problem.statement || "(no statement was logged)"),
    tests.length ? h("details", {}, h("summary", {}, plural(tests.length, "public test")), h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Public tests" }, h("table", { class: "table tests" }, h("thead", {}, h("tr", {}, ["Test", "Input", "Expected"].map((text) => h("th", { scope: "col" }, text)))), h("tbody", {}, tests)))) : null,
    problem.prompt ? h("details", {}, h("summary", {}, "Prompt, as the model read it"), h("pre", { class: "prompt" }, problem.prompt)) : null);
}

/* What is known of sample s on test t: all tests before the first failure passed; of those behind it only how many did, if a reward asked for all. */
function outcome(sample, test) {
  const failed = sample.failure && sample.failure.test !== null ? sample.failure.test : null;
  if (failed === test) return [sample.verdict, verdictSign(sample.verdict)];
  if (sample.passed !== null && test < (failed ?? sample.passed)) return ["passed", "✓"];
  return failed !== null && sample.passed > failed ? ["not recorded", "·"] : ["not run", ""];
}

function matrix(viewer, row, samples, problem) {
  const total = Math.max(0, ...samples.map((sample) => sample.total || 0));
  const open = new Map((problem ? problem.tests : []).map((test) => [test.test, test]));
  const failing = new Set(samples.map((sample) => sample.failure?.test).filter((test) => test !== null && test !== undefined));
  let shown = [...Array(Math.min(total, 100000)).keys()];
  if (total > MATRIX_ROWS) shown = shown.filter((test) => test < 12 || failing.has(test) || open.has(test)).slice(0, 2 * MATRIX_ROWS);
  const heading = h("tr", {}, h("th", { scope: "col" }, h("span", { class: "visually-hidden" }, "Test")), samples.map((sample, at) => h("th", { scope: "col" }, h("button", { type: "button", class: `pill ${verdictClass(sample.verdict)}`, data: { sample: at }, "aria-label": `Sample ${at}: ${words(sample.verdict)}`, title: `${words(sample.verdict)}${sample.reward === null ? "" : `, reward ${number(sample.reward)}`}`, on: { click: () => choose(viewer, row, samples, problem, at) } }, String(at)))));
  const body = shown.map((test) => h("tr", {}, h("th", { scope: "row" }, `${test}`, open.has(test) ? h("span", { class: "small" }, " public") : null), samples.map((sample, at) => {
    const [state, sign] = outcome(sample, test);
    return h("td", {}, h("button", { type: "button", tabindex: "-1", class: `cell ${state === "not run" || state === "not recorded" ? "v-none" : verdictClass(state)}`, data: { sample: at, test }, "aria-label": `Sample ${at}, test ${test}: ${words(state)}`, title: `test ${test}, sample ${at}: ${words(state)}`, on: { click: () => choose(viewer, row, samples, problem, at, test) } }, sign));
  })));
  return h("div", { class: "matrix-box" }, h("div", { class: "row spread" }, h("h4", {}, "Tests × samples"), h("span", { class: "small" }, "Empty cells were not run: the judge stops at the first failure, unless a reward asks for all tests; then only how many passed is recorded (·).")),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Tests by samples" }, h("table", { class: "matrix" }, h("thead", {}, heading), h("tbody", {}, body))),
    shown.length < total ? h("p", { class: "small" }, `${count(total - shown.length)} of ${count(total)} tests, on which no sample failed first, are not drawn.`) : null);
}

function choose(viewer, row, samples, problem, sample, test) {
  viewer.state.sample = sample;
  viewer.remember();
  showSample(viewer, row, samples, problem, test);
}

function showSample(viewer, row, samples, problem, test) {
  const at = Math.min(viewer.state.sample, samples.length - 1), sample = samples[at];
  const node = document.getElementById("sample");
  if (!sample) return fill(node, h("p", { class: "empty" }, "This group has no completions."));
  for (const each of viewer.detail.querySelectorAll("[data-sample]")) each.classList.toggle("chosen", Number(each.dataset.sample) === at);
  viewer.reading = viewer.reading === "tokens" && sample.pieces ? "tokens" : "code";
  const text = h("div", { class: "text-box" });
  const show = (how) => { viewer.reading = how; fill(text, how === "tokens" ? shaded(sample) : [...earlier(sample), ...[completion(sample.text)].flat()]); };
  const step = (by) => h("button", { type: "button", class: "icon", "aria-label": by < 0 ? "Previous sample" : "Next sample", disabled: at + by < 0 || at + by >= samples.length, on: { click: () => choose(viewer, row, samples, problem, at + by) } }, by < 0 ? "‹" : "›");
  fill(node, h("header", { class: "sample-head" }, h("div", { class: "row" }, step(-1), h("h4", {}, `Sample ${at}`), step(1), h("span", { class: `tag ${verdictClass(sample.verdict)}` }, words(sample.verdict)), (sample.flags || []).map((flag) => h("span", { class: "tag flagged" }, `⚑ ${flag}`)), sample.truncated ? h("span", { class: "tag" }, "cut off") : null, sample.masked ? h("span", { class: "tag" }, `masked: ${words(sample.masked)}`) : null),
      sample.pieces ? segmented("Show", [["code", "Code"], ["tokens", "Token probabilities"]], viewer.reading, show) : null),
    h("dl", { class: "figures" }, [["reward", sample.reward === null ? "no verdict" : number(sample.reward)], ["advantage", sample.advantage === null ? "none" : number(sample.advantage)], ["tests passed", sample.total === null ? "–" : `${number(sample.passed)} of ${number(sample.total)}`], ["tokens", count(sample.length)]].map(([label, value]) => h("div", {}, h("dt", {}, label), h("dd", {}, value)))),
    failure(sample, problem, test), text);
  show(viewer.reading);
}

function failure(sample, problem, asked) {
  const failed = sample.failure, test = asked ?? (failed ? failed.test : null);
  if (test === null || test === undefined) return failed ? h("div", { class: "failure" }, h("p", {}, failed.message)) : null;
  const [state] = outcome(sample, test);
  const shown = problem?.tests.find((each) => each.test === test);
  const open = Boolean(shown) || (failed && failed.test === test && failed.public);
  return h("div", { class: `failure ${state === "passed" ? "fine" : state === "not run" || state === "not recorded" ? "unknown" : ""}`, id: "test-detail" },
    h("p", {}, h("b", {}, `Test ${test}`), open ? " (public): " : " (hidden): ", state === "not run" ? "not run, an earlier test failed" : words(state)),
    failed && failed.test === test ? h("p", { class: "mono" }, failed.message) : null,
    shown ? h("div", { class: "io" }, h("div", {}, h("span", { class: "small" }, "input"), h("pre", {}, shown.input)), h("div", {}, h("span", { class: "small" }, "expected"), h("pre", {}, shown.expected)), failed && failed.test === test && failed.got ? h("div", {}, h("span", { class: "small" }, "got"), h("pre", {}, failed.got)) : null) : open ? null : h("p", { class: "small" }, "Inputs and outputs of hidden tests are not logged."));
}

/* The turns before the last: each answer, and what was said to it. */
function earlier(sample) {
  return (sample.turns || []).flatMap((turn, at) => [h("p", { class: "small" }, `Turn ${at + 1}: `, h("span", { class: `tag ${verdictClass(turn.verdict)}` }, words(turn.verdict)), " on the public tests"), ...[completion(turn.text)].flat(), h("blockquote", { class: "said" }, h("pre", {}, turn.said))])
    .concat(sample.turns ? h("p", { class: "small" }, `Turn ${sample.turns.length + 1}, which counts:`) : []);
}

/* Prose as it is, fenced code highlighted; everything as text nodes. */
function completion(text) {
  const parts = text.split(/^(```[^\n]*)$/m), nodes = [];
  let inside = null;
  for (const part of parts) {
    if (part.startsWith("```")) { nodes.push(h("div", { class: "fence" }, part)); inside = inside === null ? [] : null; continue; }
    if (part.trim() === "") continue;
    nodes.push(inside === null && parts.length > 1 ? h("div", { class: "prose" }, part.trim()) : code(part.replace(/^\n|\n$/g, "")));
  }
  return nodes.length ? nodes : h("p", { class: "empty" }, "(empty)");
}

function code(text) {
  const node = h("code", {});
  const walk = (tokens, parent) => { for (const token of [tokens].flat()) if (typeof token === "string") parent.append(token); else { const span = h("span", { class: `t-${token.type}` }); walk(token.content, span); parent.append(span); } };
  walk(text.length > 60000 ? text : Prism.tokenize(text, Prism.languages.python), node);
  return h("pre", { class: "code", tabindex: "0" }, node);
}

/* Each token on a ground the darker, the less likely it was. */
function shaded(sample) {
  const node = h("code", {});
  sample.pieces.forEach((piece, at) => {
    const logprob = sample.logprobs[at];
    const text = piece === "\n" ? "⏎\n" : piece;
    if (logprob === null) return node.append(h("span", { class: "gap" }, text));
    const level = Math.min(5, Math.floor(-logprob / 100 / 0.7 + (logprob < -5 ? 1 : 0)));
    node.append(h("span", { class: `tok l${level}`, title: `${percent(Math.exp(logprob / 100), 1)} (log ${(logprob / 100).toFixed(2)})` }, text));
  });
  return [h("p", { class: "small legend-tokens" }, "probability: ", [["l0", "near 1"], ["l1", "< 95%"], ["l2", "< 50%"], ["l3", "< 25%"], ["l4", "< 12%"], ["l5", "< 6%"]].map(([level, text]) => h("span", { class: `tok ${level}` }, text))), h("pre", { class: "code tokens", tabindex: "0" }, node)];
}
