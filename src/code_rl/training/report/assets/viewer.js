/* The rollout viewer: choose a group on the left, read it on the right. Every group is in the index; texts of a sample are in the page. */

const PAGE = 60;

class Viewer {
  constructor(runs, source) {
    this.runs = runs;
    this.source = source;
    this.state = { run: 0, step: null, problem: null, verdict: "", flagged: false, search: "", group: null, sample: 0, shown: PAGE };
    this.texts = new Map();
    this.list = h("ol", { class: "group-list" });
    this.list.addEventListener("keydown", (event) => this.arrows(event));
    this.tally = h("p", { class: "small", "aria-live": "polite" });
    this.detail = h("div", { class: "detail", "aria-live": "off" });
    this.head = h("div", { class: "viewer-head" });
    this.note = h("p", { class: "section-note" });
    this.node = section("rollouts", "Rollouts", null, this.note, this.head,
      h("div", { class: "viewer" }, h("div", { class: "master" }, this.tally, this.list), this.detail));
    this.node.classList.add("rollouts");
  }

  /* Read the index (again). What is chosen stays chosen where it still exists. */
  async load() {
    const index = await this.source(this.state.run).index();
    if (!index) return;
    this.index = index;
    this.rows = index.step.map((step, at) => ({ at, step, group: index.group[at], problem: index.problem[at], letters: index.letters[at], kept: Boolean(index.bits[at] & 1), flagged: Boolean(index.bits[at] & 2) }));
    this.steps = [...new Set(this.rows.map((row) => row.step))];
    this.keptSteps = [...new Set(this.rows.filter((row) => row.kept).map((row) => row.step))];
    const facts = this.runs[this.state.run].rollouts;
    fill(this.note, `${plural(facts.groups, "group")} of ${plural(facts.problems, "problem")} were sampled. `, this.keptSteps.length < this.steps.length ? `This page carries the texts of ${facts.rule}; verdicts of all groups can be filtered and followed.` : "All of them are in this page.");
    if (!this.rows.length) return fill(this.detail, h("p", { class: "empty" }, "No rollouts to look at."));
    if (this.state.step === null || !this.steps.includes(this.state.step)) this.state.step = this.keptSteps[this.keptSteps.length - 1] ?? this.steps[this.steps.length - 1];
    this.controls();
    this.draw();
    if (this.state.group === null) this.open(this.matches().find((row) => row.kept && /[^ps?]/.test(row.letters)) || this.matches().find((row) => row.kept), 0, true);
    else this.mark();
  }

  controls() {
    const steps = this.keptSteps;
    this.slider = h("input", { type: "range", id: "step-slider", min: 0, max: Math.max(0, steps.length - 1), value: Math.max(0, steps.indexOf(this.state.step)), on: { input: (event) => this.go(steps[Number(event.target.value)]) } });
    this.stepLabel = h("output", { for: "step-slider", class: "figure" }, String(this.state.step));
    const move = (by) => () => { const at = Math.min(steps.length - 1, Math.max(0, Number(this.slider.value) + by)); this.slider.value = at; this.go(steps[at]); };
    const verdicts = ["", ...Object.keys(VERDICTS).filter((name) => this.rows.some((row) => row.letters.includes(VERDICTS[name].letter)))];
    const flagged = this.rows.filter((row) => row.flagged).length;
    fill(this.head, this.runs.length > 1 ? h("label", { class: "field" }, "Run", h("select", { on: { change: (event) => this.run(Number(event.target.value)) } }, this.runs.map((run, at) => h("option", { value: at, selected: at === this.state.run }, run.name)))) : null,
      h("div", { class: "field steps" }, h("label", { for: "step-slider" }, "Step ", this.stepLabel), h("div", { class: "row" }, h("button", { type: "button", class: "icon", "aria-label": "Earlier step", on: { click: move(-1) } }, "‹"), this.slider, h("button", { type: "button", class: "icon", "aria-label": "Later step", on: { click: move(1) } }, "›"))),
      h("label", { class: "field" }, "Verdict", h("select", { id: "verdict-filter", on: { change: (event) => this.filter({ verdict: event.target.value }) } }, verdicts.map((name) => h("option", { value: name, selected: name === this.state.verdict }, name ? words(name) : "any")))),
      h("label", { class: "field grow" }, "Search in all steps", h("input", { type: "search", id: "search", placeholder: "problem, statement or code", autocomplete: "off", spellcheck: "false", value: this.state.search, on: { input: (event) => { clearTimeout(this.typing); this.typing = setTimeout(() => this.search(event.target.value), 200); } } })),
      h("label", { class: "field check" }, h("input", { type: "checkbox", id: "flagged-filter", checked: this.state.flagged, on: { change: (event) => this.filter({ flagged: event.target.checked }) } }), ` Flagged only (${count(flagged)})`));
  }

  run(at) { Object.assign(this.state, { run: at, step: null, problem: null, group: null }); this.texts.clear(); fill(this.detail); this.load(); }
  go(step) { Object.assign(this.state, { step, problem: null, search: "", shown: PAGE }); document.getElementById("search").value = ""; this.found = null; this.draw(); this.open(this.matches().find((row) => row.kept), 0, true); }
  filter(change) { Object.assign(this.state, change, { shown: PAGE }); this.draw(); }

  follow(problem) { Object.assign(this.state, { problem, search: "", shown: PAGE }); this.found = null; document.getElementById("search").value = ""; this.draw(); this.detail.querySelector(".history")?.scrollIntoView({ block: "nearest" }); }

  /* Names are searched at once, texts one by one as they are unpacked. */
  async search(words) {
    const sought = words.trim().toLowerCase();
    Object.assign(this.state, { search: sought, problem: null, shown: PAGE });
    this.found = null;
    const run = (this.searching = sought ? {} : null);
    if (!sought) return this.draw();
    const names = this.index.names.map((name) => name.toLowerCase().includes(sought));
    this.found = new Set(this.rows.filter((row) => names[row.problem]).map((row) => row.at));
    this.draw();
    const statements = new Map();
    for (const row of this.rows) {
      if (!row.kept || this.found.has(row.at)) continue;
      if (!statements.has(row.problem)) statements.set(row.problem, JSON.stringify((await this.source(this.state.run).problem(row.problem)) || "").toLowerCase().includes(sought));
      const hit = statements.get(row.problem) || ((await this.group(row)) || []).some((sample) => sample.text.toLowerCase().includes(sought));
      if (run !== this.searching) return;
      if (hit) { this.found.add(row.at); if (this.found.size % 20 === 1) this.draw(); }
    }
    this.searching = null;
    this.draw();
  }

  matches() {
    const { step, problem, verdict, flagged, search } = this.state;
    const letter = verdict ? VERDICTS[verdict].letter : "";
    const everywhere = problem !== null || search || flagged;
    return this.rows.filter((row) => (everywhere || row.step === step) && (problem === null || row.problem === problem) && (!letter || row.letters.includes(letter)) && (!flagged || row.flagged) && (!this.found || this.found.has(row.at)));
  }

  draw() {
    const rows = this.matches(), { problem, search, flagged, step, shown } = this.state;
    this.stepLabel.textContent = problem !== null || search || flagged ? "all" : String(step);
    const where = problem !== null ? ["following ", h("b", {}, this.index.names[problem]), " ", h("button", { type: "button", class: "link", on: { click: () => this.filter({ problem: null }) } }, "stop")] : [search ? `found${this.searching ? " so far" : ""} for “${search}”` : flagged ? "flagged, all steps" : `in step ${step}`];
    fill(this.tally, `${plural(rows.length, "group")} `, where);
    const visible = rows.slice(0, shown);
    fill(this.list, visible.map((row) => h("li", {}, h("button", { type: "button", class: `group-row${row.kept ? "" : " absent"}`, data: { at: row.at }, "aria-pressed": "false", on: { click: () => this.open(row, 0) } },
      h("span", { class: "group-name" }, h("b", {}, this.index.names[row.problem]), row.flagged ? h("span", { class: "flag", title: "a program is flagged" }, "⚑") : null),
      h("span", { class: "group-meta" }, `step ${row.step} · ${row.group < ATTEMPT ? "" : "drawn anew · "}${solved(row.letters)}${row.kept ? "" : " · text not in page"}`), dots(row.letters)))),
      rows.length > shown ? h("li", {}, h("button", { type: "button", class: "link", on: { click: () => this.filter2(shown) } }, `show ${Math.min(PAGE * 4, rows.length - shown)} more`)) : null,
      rows.length ? null : h("li", { class: "empty" }, "Nothing matches."));
    this.mark();
  }
  filter2(shown) { this.state.shown = shown + PAGE * 4; this.draw(); }

  mark() {
    const { group } = this.state;
    for (const button of this.list.querySelectorAll(".group-row")) button.setAttribute("aria-pressed", String(group !== null && Number(button.dataset.at) === this.at(group)));
  }
  at(group) { const [step, number] = group; return this.rows.findIndex((row) => row.step === step && row.group === number); }

  arrows(event) {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!by) return;
    const buttons = [...this.list.querySelectorAll(".group-row")];
    const next = buttons[buttons.indexOf(document.activeElement) + by];
    if (next) { event.preventDefault(); next.focus(); }
  }

  async group(row) {
    const key = `${row.step}/${row.group}`;
    if (!this.texts.has(key)) {
      if (this.texts.size > 400) this.texts.clear();
      this.texts.set(key, await this.source(this.state.run).group(row.step, row.group));
    }
    return this.texts.get(key);
  }

  async open(row, sample, quiet) {
    if (!row) return fill(this.detail, h("p", { class: "empty" }, "Choose a group."));
    this.state.group = [row.step, row.group];
    this.state.sample = sample;
    this.mark();
    const turn = (this.turn = {});
    const [samples, problem] = await Promise.all([this.group(row), this.source(this.state.run).problem(row.problem)]);
    if (turn !== this.turn) return;
    const letter = this.state.verdict ? VERDICTS[this.state.verdict].letter : "";
    if (samples && !sample && letter) this.state.sample = Math.max(0, row.letters.indexOf(letter));
    else if (samples && !sample && quiet) this.state.sample = Math.max(0, samples.findIndex((each) => each.verdict !== "passed"));
    showGroup(this, row, samples, problem);
    if (!quiet) { this.remember(); if (matchMedia("(max-width: 860px)").matches) this.detail.scrollIntoView({ block: "start" }); }
  }

  history(problem) { return this.rows.filter((row) => row.problem === problem); }

  remember() {
    const [step, group] = this.state.group;
    try { history.replaceState(null, "", `#rollout/${this.state.run}/${step}/${group}/${this.state.sample}`); } catch { /* some hosts of the page do not allow it */ }
  }
  /* A link of the form #rollout/run/step/group/sample opens that sample. */
  async restore(hash, scrolls = true) {
    const match = /^#rollout\/(\d+)\/(\d+)\/(\d+)\/(\d+)$/.exec(hash);
    if (!match) return false;
    const [run, step, group, sample] = match.slice(1).map(Number);
    if (run < this.runs.length) this.state.run = run;
    await this.load();
    const row = this.rows?.find((each) => each.step === step && each.group === group);
    if (!row) return false;
    this.state.step = row.step;
    this.controls();
    this.draw();
    await this.open(row, sample);
    if (scrolls) this.node.scrollIntoView();
    return true;
  }
}

const solved = (letters) => { const judged = letters.replace(/[s?]/g, ""); return judged ? `${[...judged].filter((each) => each === "p").length} of ${judged.length} pass` : "no verdicts"; };
function dots(letters) {
  const sorted = [...letters.slice(0, 64)];
  return h("span", { class: "dots", "aria-hidden": "true" }, sorted.map((letter) => h("i", { class: `dot-cell ${Object.hasOwn(BY_LETTER, letter) ? `v-${letter}` : "v-unknown"}` })));
}
