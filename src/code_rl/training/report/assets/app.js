/* Puts the page together, and reloads it while the run goes on. */

(() => {
  const page = JSON.parse(document.getElementById("data").textContent);
  const runs = page.runs;
  let chosen = 0;
  const sources = new Map();
  const source = (run) => { if (!sources.has(run)) sources.set(run, new PageSource(run)); return sources.get(run); };
  const charts = new Charts(runs, chosen), viewer = new Viewer(runs, source);
  const top = h("div", { class: "top" }), below = h("div", {}), after = h("div", {});

  function themeButton() {
    const names = { auto: "◐ Auto", light: "☀ Light", dark: "☾ Dark" }, order = Object.keys(names);
    let now = "auto";
    const button = h("button", { type: "button", class: "button quiet", "aria-label": "Colour theme: auto", on: { click: () => {
      now = order[(order.indexOf(now) + 1) % 3];
      if (now === "auto") delete document.documentElement.dataset.theme; else document.documentElement.dataset.theme = now;
      button.textContent = names[now];
      button.setAttribute("aria-label", `Colour theme: ${now}`);
      charts.draw(true);
    } } }, names.auto);
    return button;
  }

  const status = h("span", { class: "status on", role: "status" }, page.live ? `running, as of ${page.made}` : null);
  const bar = h("header", { class: "bar" }, h("span", { class: "brand" }, "code-rl"), h("span", { class: "run-name" }, runs.map((run) => run.name).join(" · ")), status,
    h("nav", { "aria-label": "Sections" }, [["answer", "Answer"], ["findings", "Diagnostics"], ["curves", "Curves"], ["time", "Time"], ["verdicts", "Verdicts"], ["rollouts", "Rollouts"], ["settings", "Settings"]].map(([id, text]) => h("a", { href: `#${id}` }, text))), themeButton());

  function picker() {
    return runs.length > 1 ? h("div", { class: "picker" }, segmented("Run", runs.map((run, at) => [String(at), run.name]), String(chosen), (value) => { chosen = charts.chosen = Number(value); around(); charts.draw(true); })) : null;
  }

  /* Everything that is not a chart or the viewer is made anew. */
  function around() {
    const run = runs[chosen];
    const many = runs.length > 1;
    fill(top, many ? better(runs) : null, many ? heldOut(runs) : null, many ? differences(runs) : null, picker(), notices(run), hero(run), many ? null : heldOut(runs), findings(run));
    fill(after, settingsTable(run), h("footer", { class: "foot" }, h("p", {}, `Made by ${page.by}, ${page.made}. `, h("span", { class: "mono" }, run.path)), h("p", { class: "small" }, "This file loads nothing from anywhere. Charts: uPlot (MIT). Highlighting: Prism (MIT).")));
  }

  around();
  fill(below, charts.nodes.curves, charts.nodes.time, charts.nodes.health, viewer.node);
  fill(document.getElementById("app"), bar, h("main", {}, top, below, after));
  charts.draw(true);
  const reloaded = performance.getEntriesByType("navigation")[0]?.type === "reload";
  viewer.restore(location.hash, !reloaded).then((done) => done || viewer.load());
  addEventListener("hashchange", () => viewer.restore(location.hash));
  for (const query of ["(prefers-color-scheme: dark)", "print"]) matchMedia(query).addEventListener("change", () => charts.draw(true));

  if (!page.live) return;
  /* A reader is not interrupted: the page waits until nobody has touched it for a minute. */
  const every = 10_000, quiet = 60_000;
  let touched = -quiet;
  for (const kind of ["pointerdown", "keydown", "wheel"]) addEventListener(kind, () => { touched = performance.now(); });
  setInterval(() => { if (performance.now() - touched >= quiet) location.reload(); }, every);
})();
