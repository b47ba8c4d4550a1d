/* Curves, drawn by uPlot. A chart knows how to take its data from an overview; axes, smoothing and theme are shared. */

const LINES = ["--c1", "--c2", "--c3", "--c4", "--c5", "--c6", "--c7", "--c8"];
const SHARE = { range: [0, 1], format: (value) => percent(value) };

/* keys: [column, label]; the first that a run has is the one that stands for the chart when runs are compared. */
const CHARTS = [
  { id: "reward", title: "Reward", keys: [["mean_reward", "mean reward"]] },
  { id: "correct", title: "Correct and formatted", ...SHARE, keys: [["mean_correct", "passes every test"], ["format_rate", "has a code block"]] },
  { id: "pass", title: "Held-out Pass@1", note: "Bands: 95% intervals. Of one run, dashed: greedy; of several, a dash for each further split.", ...SHARE, kind: "evals" },
  { id: "groups", title: "Groups by outcome", kind: "stack", note: "Only mixed groups teach.", keys: [["rollouts/all_solved", "all pass", "--v-passed"], ["rollouts/some_solved", "mixed", "--c1"], ["rollouts/none_solved", "none pass", "--v-wrong"]] },
  { id: "false", title: "False positives", note: "Wrong programs that the reward pays, at most, over the run so far (95%); those that pass all public tests, by step.", ...SHARE, keys: [["reward/fpr_upper", "paid, at most"], ["reward/public_fpr", "pass public tests"]] },
  { id: "loss", title: "Loss", keys: [["loss", "loss per token"]] },
  { id: "kl", title: "Sampler against trainer", note: "Near 0 when samples are on-policy.", zero: 1e-6, keys: [["kl_sample_train", "KL estimate"]] },
  { id: "ratio", title: "Largest |ratio − 1|", zero: 1e-5, keys: [["ratio_max", "largest |p/q − 1|"]] },
  { id: "clip", title: "Tokens clipped", ...SHARE, keys: [["clip_fraction", "clipped"]] },
  { id: "reference", title: "KL to the first model", keys: [["kl_reference", "KL estimate"]] },
  { id: "entropy", title: "Entropy estimate", note: "Mean surprise per sampled token, in nats.", keys: [["entropy", "entropy"]] },
  { id: "length", title: "Response length", note: "Tokens per completion.", keys: [["rollouts/length_mean", "mean"], ["rollouts/length_max", "longest"]] },
  { id: "truncated", title: "Cut off at max_tokens", ...SHARE, keys: [["truncated_rate", "truncated"]] },
  { id: "masked", title: "Completions masked", note: "Not trained on, by reason.", keys: [["masked/overlong", "too long"], ["masked/sandbox_error", "no verdict"], ["masked/checker_error", "broken checker"]] },
  { id: "skipped", title: "Groups skipped", keys: [["groups_skipped", "skipped"], ["groups_total", "all"], ["groups_refilled", "drawn anew"]] },
  { id: "staleness", title: "Staleness", note: "Optimizer steps between sampling and training.", keys: [["staleness/mean", "mean"]] },
  { id: "tokens", title: "Tokens per step", keys: [["tokens/completion", "completions"], ["tokens/prompt", "prompts"]], format: compact },
  { id: "rate", title: "Completion tokens per second", kind: "rate", format: compact },
];
const TIME_CHART = { id: "time", title: "Seconds per step", kind: "stack", tall: true, format: (value) => `${number(value)} s`,
  keys: [["time/sample", "sample", "--c1"], ["time/score", "score", "--c2"], ["time/wait", "wait for rollouts", "--c6"], ["time/train", "train", "--c3"]] };
const EVALUATION_CHART = { id: "evaluation-time", title: "Seconds per evaluation", dots: true, format: (value) => `${number(value)} s`, keys: [["time/eval", "evaluate"]] };
const VERDICT_CHART = { id: "verdicts", title: "Verdicts over time", kind: "stack", tall: true, share: true, ...SHARE,
  keys: Object.entries(VERDICTS).map(([name, each]) => [`verdicts/${name}`, words(name), each.color]) };
const HEALTH_CHART = { id: "health", title: "Sandbox trouble", keys: [["verdicts/sandbox_error", "no verdict"], ["sandbox/retries", "retries"]] };
const KNOWN = new Set([...CHARTS, TIME_CHART, EVALUATION_CHART, VERDICT_CHART, HEALTH_CHART].flatMap((chart) => (chart.keys || []).map(([key]) => key)).concat(["time/step", "n_datums"]));

/* The mean of a named part of one's own reward. */
const PART = "reward_part/";

/* Gaps between ticks of steps, which are whole and count from 0, as on the console; an evaluation before training stands at −1. */
const WHOLE = Array.from({ length: 9 }, (_, power) => [1, 2, 5].map((each) => each * 10 ** power)).flat();
const view = { axis: "step", smooth: 0 };
const AXES = { step: ["Step", (table) => table.step], elapsed: ["Time", (table) => table.elapsed.map((s) => s / 3600)], spent: ["Tokens", (table) => table.spent] };

function smoothed(values, weight) {
  let mean = null, mass = 0;
  return values.map((value) => {
    if (value === null || value === undefined) return null;
    mean = (mean === null ? 0 : mean) * weight + value * (1 - weight);
    mass = mass * weight + (1 - weight);
    return mean / mass;
  });
}

const has = (table, key) => Object.hasOwn(table.columns, key) && table.columns[key].some((value) => value !== null);
const axisOf = (table) => AXES[view.axis][1](table);

/* Several runs on one axis: the union of their places, each run's values where it has some. */
function align(parts) {
  if (parts.length === 1) return [parts[0].x, parts[0].values];
  const joined = uPlot.join(parts.map((part) => [part.x, ...part.values]));
  return [joined[0], joined.slice(1)];
}

/* What a chart draws: {x, series: [{label, color, values, faint, band}]}; null when no run has any of it. */
function drawn(chart, runs, chosen) {
  if (chart.kind === "evals") return drawnEvals(runs);
  if (chart.kind === "stack") return drawnStack(chart, runs[chosen]);
  const series = [], parts = [];
  runs.forEach((run, at) => {
    const table = run.steps;
    let keys = (chart.kind === "rate" ? ["rate"] : chart.keys.filter(([key]) => has(table, key)));
    if (chart.id === "entropy") keys = keys.slice(0, 1);
    if (runs.length > 1) keys = keys.slice(0, 1);
    const values = keys.map((key) => (key === "rate" ? rate(table) : table.columns[key[0]]));
    if (!keys.length || (chart.kind === "rate" && !values[0].some((value) => value !== null))) return;
    const columns = [];
    keys.forEach((key, place) => {
      const label = runs.length > 1 ? run.name : key === "rate" ? "tokens per second" : key[1];
      const line = LINES[(runs.length > 1 ? at : place) % LINES.length];
      if (view.smooth) { columns.push(values[place]); series.push({ label, color: line, faint: true }); }
      columns.push(view.smooth ? smoothed(values[place], view.smooth) : values[place]);
      series.push({ label, color: line, dots: chart.dots });
    });
    parts.push({ x: axisOf(table), values: columns });
  });
  if (!parts.length) return null;
  const [x, columns] = align(parts);
  return { x, columns, series };
}

function rate(table) {
  const tokens = table.columns["tokens/completion"] || [], seconds = table.columns["time/step"] || [];
  return table.step.map((_, at) => (tokens[at] && seconds[at] ? tokens[at] / seconds[at] : null));
}

function drawnEvals(runs) {
  const series = [], parts = [];
  runs.forEach((run, at) => {
    const table = run.evals;
    const x = view.axis === "step" ? table.step : table.step.map((step) => place(run.steps, step));
    const columns = [];
    run.splits.forEach((split, number) => {
      const line = LINES[(runs.length > 1 ? at : number) % LINES.length];
      const of = (name) => table.columns[`eval/${split.name}/${name}`];
      const label = runs.length > 1 ? `${run.name} · ${split.name}` : split.name;
      const mark = runs.length > 1 && number ? [[8, 4], [2, 3], [8, 3, 2, 3]][(number - 1) % 3] : null;
      if (of("pass@1_low") && of("pass@1_high")) {
        columns.push(of("pass@1_low"), of("pass@1_high"));
        series.push({ label, color: line, edge: true }, { label, color: line, edge: true, band: true });
      }
      for (const [name, text, dash] of [["pass@1", label, mark], ["mean_correct", `${label}, greedy`, [4, 4]]])
        if (of(name) && (runs.length === 1 || name === "pass@1")) { columns.push(of(name)); series.push({ label: text, color: line, dash, dots: true }); }
    });
    if (columns.length) parts.push({ x, values: columns });
  });
  if (!parts.length) return null;
  const [x, columns] = align(parts);
  return { x, columns, series };
}

/* Where on the chosen axis a step ends. */
function place(table, step) {
  const axis = axisOf(table), at = table.step.findIndex((each) => each >= step);
  return step < 0 || !axis.length ? 0 : axis[at < 0 ? axis.length - 1 : at];
}

/* A step waits for its rollouts, which are sampled and scored in that time; where steps overlap, those of another step. Only one of the two adds up. */
function drawnStack(chart, run) {
  const table = run.steps, twice = run.overlaps ? ["time/sample", "time/score"] : ["time/wait"];
  const keys = chart.keys.filter(([key]) => has(table, key) && !twice.includes(key));
  if (!keys.length) return null;
  const raw = keys.map(([key]) => (view.smooth ? smoothed(table.columns[key].map((value) => value || 0), view.smooth) : table.columns[key].map((value) => value || 0)));
  const sums = table.step.map((_, at) => raw.reduce((sum, column) => sum + column[at], 0));
  const below = new Array(table.step.length).fill(0);
  const columns = raw.map((column) => column.map((value, at) => (below[at] += chart.share ? value / (sums[at] || 1) : value)));
  const own = raw.map((column) => column.map((value, at) => (chart.share ? value / (sums[at] || 1) : value)));
  return { x: axisOf(table), columns: columns.reverse(), own: own.reverse(), series: keys.map(([, label, line]) => ({ label, color: line, fill: true })).reverse() };
}

/* What a chart would show as level lines, in words; null where something moves, or there is too little to tell. */
function constant(chart, data, format) {
  if (data.x.length < 3 || chart.kind === "evals" || chart.tall || data.series.some((each) => each.fill)) return null;
  const levels = data.columns.map((column) => [...new Set(column.filter((value) => value !== null && value !== undefined))]);
  if (levels.some((level) => level.length !== 1)) return null;
  const shown = data.series.map((each, at) => [each, levels[at][0]]).filter(([each]) => !each.faint), title = chart.title.toLowerCase();
  return shown.length === 1 ? `${title} ${format(shown[0][1])}` : `${title}: ${shown.map(([each, level]) => `${each.label} ${format(level)}`).join(", ")}`;
}

class Chart {
  constructor(chart) {
    this.chart = chart;
    this.titled = !chart.keys || chart.title !== chart.keys[0][0];
    this.legend = h("div", { class: "legend" });
    this.plot = h("div", { class: "plot", role: "img" });
    this.node = h("figure", { class: `card chart${chart.tall ? " tall" : ""}`, id: `chart-${chart.id}` },
      h("figcaption", {}, h("h3", {}, chart.title), chart.note ? h("p", { class: "small" }, chart.note) : null), this.legend, this.plot);
    this.format = chart.format || number;
  }
  /* New data: the same plot when its series are the same, else a new one. */
  show(runs, chosen, fresh) {
    const data = drawn(this.chart, runs, chosen);
    const zero = this.chart.zero || 0; /* below it a figure is rounding, and a curve of it says nothing */
    if (data) data.columns = data.columns.map((column) => column.map((value) => (value === null || value === undefined ? value : Math.abs(value) < zero ? 0 : Math.abs(value) < 1e15 ? value : null)));
    this.flat = data ? constant(this.chart, data, this.format) : null;
    this.node.hidden = !data || Boolean(this.flat);
    if (!data) return false;
    if (this.flat) return true;
    this.data = data;
    const shape = JSON.stringify(data.series);
    if (!fresh && this.uplot && shape === this.shape) this.uplot.setData([data.x, ...data.columns]);
    else this.make(shape);
    this.label(null);
    return true;
  }
  make(shape) {
    this.uplot?.destroy();
    this.shape = shape;
    const { series, x } = this.data, ink = color("--ink-2"), grid = color("--grid");
    const axis = { stroke: ink, grid: { stroke: grid, width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    const bands = series.flatMap((each, at) => (each.band ? [{ series: [at + 1, at], fill: alpha(color(each.color), 0.15) }] : each.fill && at + 1 < series.length ? [{ series: [at + 1, at + 2], fill: alpha(color(each.color), 0.75) }] : []));
    const options = {
      ...this.size(), padding: [8, 10, 0, 0],
      legend: { show: false }, cursor: { sync: { key: "step" }, y: false, points: { size: 6 }, drag: { x: true, y: false } },
      scales: { x: { time: false, range: (_, low, high) => (high - low > 1e-9 * Math.max(1e-3, Math.abs(high)) ? [low, high] : [low - 1, high + 1]) }, y: { range: this.chart.range || ((_, low, high) => (series[0].fill ? [0, high > 1e-9 ? high * 1.04 : 1] : room(low, high))) } },
      axes: [{ ...axis, size: 28, space: 60, incrs: view.axis === "step" ? WHOLE : undefined, values: (_, ticks) => ticks.map((tick) => (view.axis === "step" && tick < 0 ? "start" : view.axis === "elapsed" ? (x[x.length - 1] < 2 ? `${Number((tick * 60).toFixed(1))}m` : `${Number(tick.toFixed(2))}h`) : compactAxis(tick))) },
        { ...axis, size: 54, space: 34, values: (_, ticks) => ticks.map((tick) => (this.chart.range ? `${Math.round(100 * tick)}%` : compactAxis(tick))) }],
      series: [{}, ...series.map((each, at) => ({ label: each.label, stroke: each.edge ? "transparent" : each.faint ? alpha(color(each.color), 0.3) : color(each.color), width: each.edge ? 0 : each.faint ? 1 : each.fill ? 1 : 2,
        dash: each.dash || undefined, spanGaps: true, points: { show: each.dots && !each.edge ? true : alone(this.data.columns[at]), size: 6, fill: color(each.color) },
        fill: each.fill && each === series[series.length - 1] ? alpha(color(each.color), 0.75) : undefined }))],
      bands,
      hooks: { setCursor: [(plot) => this.label(plot.cursor.idx)] },
    };
    fill(this.plot);
    this.uplot = new uPlot(options, [x, ...this.data.columns], this.plot);
  }
  /* The legend doubles as read-out: values under the cursor, else the last ones. */
  label(at) {
    const { series, columns, own, x } = this.data;
    const shown = series.map((each, number) => [each, (own || columns)[number]]).filter(([each]) => !each.faint && !each.edge);
    const value = (column) => { for (let place = at ?? column.length - 1; place >= 0; place--) if (column[place] !== null && column[place] !== undefined) return column[place]; return null; };
    if (own) shown.reverse();
    fill(this.legend, shown.slice(0, 9).map(([each, column]) => h("span", { class: each.dash ? "key dashed" : "key" }, h("i", { vars: { "--swatch": color(each.color) } }), `${each.label} `, h("b", {}, this.format(value(column))))));
    const first = shown[0] && shown[0][1].find((each) => each !== null && each !== undefined);
    if (at === null) this.plot.setAttribute("aria-label", `${this.chart.title}: ${shown.map(([each, column]) => `${each.label} ${this.format(value(column))}`).join(", ")}${first === undefined ? "" : `, over ${plural(x.length, "point")}`}`);
  }
  /* A chart fills its card, whose row may have a longer caption. */
  size() { return { width: Math.max(120, this.plot.clientWidth || 320), height: Math.max(this.chart.tall ? 240 : 190, this.plot.clientHeight) }; }
  resize() { if (this.uplot && this.plot.clientWidth) this.uplot.setSize(this.size()); }
}

const alone = (column) => column.filter((value) => value !== null && value !== undefined).length < 2;
const compactAxis = (tick) => (Math.abs(tick) >= 1e4 ? compact(tick) : Math.abs(tick) < 1e-3 && tick ? tick.toExponential(1).replace(".0e", "e").replace(/-/g, "−") : String(Number(tick.toPrecision(6))).replace("-", "−"));
function room(low, high) {
  if (low === null || high === null) return [0, 1];
  const size = Math.max(Math.abs(low), Math.abs(high)), flat = high - low <= 1e-9 * size || high - low < 1e-12;
  if (flat) return size < 1e-10 ? [-1, 1] : [low - 0.1 * size, high + 0.1 * size];
  const gap = (high - low) * 0.08;
  return [low >= 0 && low < high * 0.4 ? 0 : low - gap, high + gap];
}

function alpha(hex, share) {
  const n = parseInt(hex.slice(1), 16);
  return `rgba(${n >> 16}, ${(n >> 8) & 255}, ${n & 255}, ${share})`;
}

class Charts {
  constructor(runs, chosen) {
    this.runs = runs;
    this.chosen = chosen;
    const points = Math.max(...runs.map((run) => run.steps.step.length));
    view.smooth = points > 500 ? 0.94 : points > 100 ? 0.8 : 0;
    const axis = segmented("Horizontal axis", Object.entries(AXES).map(([key, [label]]) => [key, label]), view.axis, (value) => { view.axis = value; this.draw(true); });
    const smooth = h("label", { class: "slider" }, "Smoothing", h("input", { type: "range", min: 0, max: 0.98, step: 0.02, value: view.smooth, on: { input: (event) => { view.smooth = Number(event.target.value); this.draw(true); } } }));
    this.curves = h("div", { class: "grid" });
    this.others = h("div", { class: "grid" });
    this.more = h("details", { class: "more", on: { toggle: () => this.all.forEach((chart) => chart.resize()) } }, h("summary", {}, "Every other metric"), this.others, this.rest);
    this.time = h("div", {});
    this.health = h("div", {});
    this.note = h("p", { class: "section-note" });
    this.level = h("p", { class: "small level" });
    this.rest = h("p", { class: "small level" });
    this.nodes = {
      curves: section("curves", "Curves", matchMedia("(hover: hover)").matches ? "Hover to read all charts at one place; drag to zoom, double-click to zoom out." : "Touch a chart to read all of them at that place.", h("div", { class: "toolbar" }, axis, smooth), this.note, this.curves, this.level, this.more),
      time: section("time", "Where the time went", null, this.time),
      health: section("verdicts", "Verdicts and sandbox", null, this.health),
    };
    this.nodes.of = [this.nodes.time, this.nodes.health].map((node) => node.querySelector("h2").appendChild(h("span", {})));
    this.all = [];
    new ResizeObserver(() => this.all.forEach((chart) => chart.resize())).observe(this.curves);
  }
  draw(fresh) {
    const names = new Set(this.runs.flatMap((run) => Object.keys(run.steps.columns)));
    const others = [...names].filter((name) => !KNOWN.has(name) && !name.startsWith("eval/") && !name.startsWith("verdicts/") && !name.startsWith("rollouts/")).sort();
    const wanted = others.join("\n");
    if (!this.all.length || wanted !== this.names) this.build(others, wanted);
    for (const chart of this.all) chart.show(this.runs, this.chosen, fresh);
    const flat = this.all.filter((chart) => chart.flat);
    for (const [node, titled] of [[this.level, true], [this.rest, false]]) {
      const shown = flat.filter((chart) => chart.titled === titled).map((chart) => chart.flat);
      fill(node, shown.length ? `Constant over the run: ${shown.join(" · ")}.` : "");
    }
    const every = this.runs[this.chosen].steps.every;
    fill(this.note, every > 1 ? `One step in ${every} is drawn.` : "");
    this.note.hidden = every <= 1;
    for (const each of this.nodes.of) fill(each, this.runs[this.chosen].of ? ` · ${this.runs[this.chosen].of}` : "");
    this.more.hidden = !this.others.children.length;
    this.totals();
  }
  build(others, wanted) {
    this.names = wanted;
    const make = (chart) => new Chart(chart);
    const curves = CHARTS.map(make), rest = others.slice(0, 120).map((name, at) => make({ id: `other-${at}`, title: name.replace(PART, "Reward: "), keys: [[name, ""]] })), part = others.map((name) => name.startsWith(PART));
    const [time, evaluation, verdicts, health] = [TIME_CHART, EVALUATION_CHART, VERDICT_CHART, HEALTH_CHART].map(make);
    fill(this.curves, [...curves, ...rest.filter((_, at) => part[at])].map((chart) => chart.node));
    fill(this.others, rest.filter((_, at) => !part[at]).map((chart) => chart.node));
    this.bars = h("div", { class: "card" });
    this.counts = h("div", { class: "card" });
    fill(this.time, h("div", { class: "grid wide" }, this.bars, time.node, evaluation.node));
    fill(this.health, h("div", { class: "grid wide" }, this.counts, verdicts.node, health.node));
    this.all = [...curves, time, evaluation, verdicts, health, ...rest];
  }
  totals() {
    const { stages, seconds, tokens } = this.runs[this.chosen].totals;
    const names = { wait: ["Waiting for rollouts", "--c6"], sample: ["Sampling", "--c1"], score: ["Scoring, after the last sample", "--c2"], train: ["Training", "--c3"], eval: ["Evaluating", "--c4"], other: ["Everything else", "--c8"] };
    const rows = Object.entries(stages).filter(([, value]) => value > 0.005 * seconds).map(([key, value]) => [...names[key], value, duration(value)]);
    fill(this.bars, h("h3", {}, "Whole run"), h("p", { class: "small" }, `${duration(seconds)} of wall time`), ranked(rows, seconds),
      h("h3", { class: "spaced" }, "Tokens"), ranked([["Completions, training", "--c1", tokens.completion, compact(tokens.completion)], ["Prompts, training", "--c2", tokens.prompt, compact(tokens.prompt)], ["Completions, evaluation", "--c4", tokens.eval, compact(tokens.eval)]], tokens.completion + tokens.prompt + tokens.eval));
    const { verdicts, completions, retries } = this.runs[this.chosen].totals;
    const lost = verdicts.sandbox_error || 0;
    fill(this.counts, h("h3", {}, "All verdicts"), ranked(Object.entries(verdicts).map(([name, value]) => [words(name), Object.hasOwn(VERDICTS, name) ? VERDICTS[name].color : "--c8", value, `${count(value)} · ${percent(value / (completions || 1))}`]), completions),
      h("h3", { class: "spaced" }, "Sandbox health"), h("p", { class: lost ? "health bad" : "health good" }, lost ? `${plural(lost, "completion")} without a verdict, masked out of their groups.` : "Every program got a verdict."), retries === null ? null : h("p", { class: "small" }, `${plural(retries, "retry", "retries")} were needed.`));
  }
}

function ranked(rows, whole) {
  return h("dl", { class: "ranked" }, rows.map(([label, line, value, text]) => h("div", {}, h("dt", {}, label), h("dd", {}, text), h("span", { class: "bar", "aria-hidden": "true", vars: { "--share": `${(100 * value) / (whole || 1)}%`, "--swatch": `var(${line})` } }))));
}
