// Training runs: their curves, samples and heads, drawn as they train, several of them together.

import { brief, lineChart, lineClass } from "./charts.js";
import { keepingFocus, make } from "./page/state.js";
import { makeTask } from "./page/task.js";

const AGAIN = 2000; // milliseconds between two questions
const DASHES = { training: 0, validation: 1 }; // of curves: others are solid too
const MEASURES = ["entropy", "evenness", "distance", "confidence", "first", "last", "own", "previous", "punctuation"];

export const view = { route: "runs", title: "Training", show };

// What is known of one run; `add` takes an answer of the server.
function makeRun(name) {
  const run = { name, after: "", panels: new Map(), validations: [] };
  run.add = (news) => {
    if (news.restarted) [run.panels, run.validations] = [new Map(), []];
    for (const [panel, curve, step, value] of news.points) {
      if (!run.panels.has(panel)) run.panels.set(panel, new Map());
      const curves = run.panels.get(panel);
      if (!curves.has(curve)) curves.set(curve, []);
      curves.get(curve).push([step, value]);
    }
    run.validations.push(...news.validations);
    run.after = news.after;
    return news.points.length + news.validations.length > 0 || news.restarted;
  };
  return run;
}

function show(box, studio) {
  const told = make("p", { id: "runs-told", className: "quiet", role: "status" });
  const charts = make("div", { id: "charts" });
  const samples = make("section", { id: "samples" });
  const measure = make("select", { id: "runs-measure" }, ...MEASURES.map((name) => new Option(name, name)));
  const panels = make("div", { className: "panels" });
  const label = make("label", { htmlFor: measure.id, textContent: "Heads over the samples of each validation: " });
  const heads = make("section", { id: "run-heads", hidden: true }, make("h3", { textContent: "Heads" }), make("p", { className: "controls" }, label, measure), panels);
  box.append(make("h2", { textContent: view.title }), told, charts, heads, samples);
  measure.addEventListener("change", () => studio.go({ measure: measure.value }, { replace: true }));
  const task = makeTask(box, studio);
  let runs = [];

  const follow = () =>
    task.run(async (signal, settled) => {
      const { runs: names } = await studio.ask("studio/given", undefined, signal);
      if (!names.length) return (told.textContent = "No run: start the studio with the folder of one, as in regard studio runs/mine.");
      runs = names.map(makeRun);
      for (;;) {
        const changed = [];
        for (const run of runs) {
          for (let complete = false; !complete; ) {
            const news = await studio.ask(`studio/run?${new URLSearchParams({ name: run.name, after: run.after })}`, undefined, signal);
            changed.push(run.add(news));
            complete = news.complete;
          }
        }
        if (changed.some(Boolean) || !charts.childElementCount) draw();
        settled();
        await task.wait(AGAIN);
      }
    });

  function draw() {
    const several = runs.length > 1;
    const known = new Map();
    runs.forEach((run, number) => { // a colour for each run, in all charts
      for (const [panel, curves] of run.panels) {
        if (!known.has(panel)) known.set(panel, []);
        for (const [name, points] of curves) known.get(panel).push({ name: !several ? name : name === panel ? run.name : `${run.name} ${name}`, points, number, dash: DASHES[name] });
      }
    });
    const names = [...known.keys()].toSorted((a, b) => order(a) - order(b) || a.localeCompare(b));
    charts.replaceChildren(...names.map((name) => figure(name, known.get(name))));
    const last = Math.max(0, ...runs.flatMap((run) => [...run.panels.values()].flatMap((curves) => [...curves.values()].map((points) => points.at(-1)[0]))));
    told.textContent = names.length ? `${runs.map(({ name }) => name).join(", ")}: ${last.toLocaleString("en")} steps.` : "Nothing is logged yet.";
    drawHeads();
    drawSamples();
  }

  const order = (name) => (name === "loss" ? 0 : name === "learning rate" ? 2 : 1);

  function figure(title, curves) {
    const head = make("thead", {}, make("tr", {}, ...["curve", "step", "last"].map((name) => make("th", { scope: "col", textContent: name }))));
    const lines = curves.map((curve) => {
      const { name, points } = curve;
      const key = make("span", { className: `key ${lineClass(curve)}` });
      key.setAttribute("aria-hidden", "true");
      return make("tr", {}, make("th", { scope: "row" }, key, make("span", { textContent: name })), make("td", { textContent: points.at(-1)[0].toLocaleString("en") }), make("td", { textContent: brief(points.at(-1)[1]) }));
    });
    const table = make("table", {}, make("caption", { className: "heard", textContent: title }), head, make("tbody", {}, ...lines));
    return make("figure", { className: "panel" }, make("figcaption", { textContent: title }), lineChart(title, curves), table);
  }

  function drawHeads() {
    const by = MEASURES.includes(studio.parameters.measure) ? studio.parameters.measure : "entropy";
    measure.value = by;
    const figures = runs.flatMap((run) => {
      const curves = new Map();
      for (const { step, heads: known } of run.validations)
        for (const head of known) {
          const name = `${head.map}, head ${head.head}`;
          if (!curves.has(name)) curves.set(name, []);
          if (Number.isFinite(head[by])) curves.get(name).push([step, head[by]]); // a measure may be missing, or have no value
        }
      const given = [...curves].filter(([, points]) => points.length).map(([name, points], number) => ({ name, points, number }));
      return given.length ? [figure(runs.length > 1 ? `${run.name}: ${by} of heads` : `${by} of heads`, given)] : [];
    });
    heads.hidden = !runs.some((run) => run.validations.some((each) => each.heads.length));
    panels.replaceChildren(...figures);
  }

  function drawSamples() {
    const parts = runs.flatMap((run) => {
      const last = run.validations.findLast((each) => each.samples.length);
      if (!last) return [];
      const names = ["source", "output", "reference"];
      const head = make("thead", {}, make("tr", {}, ...names.map((name) => make("th", { scope: "col", textContent: name }))));
      const lines = last.samples.map((sample) => make("tr", {}, ...names.map((name) => make("td", { className: "text", textContent: sample[name] ?? "" }))));
      return [make("div", { className: "wide", tabIndex: 0, role: "region", label: `Samples of ${run.name}` }, make("table", {}, make("caption", { textContent: `${run.name}, step ${last.step.toLocaleString("en")}` }), head, make("tbody", {}, ...lines)))];
    });
    samples.hidden = !parts.length;
    keepingFocus(samples, () => samples.replaceChildren(make("h3", { textContent: "Samples" }), ...parts));
  }

  follow();
  return { update: () => runs.length && draw(), close: task.stop };
}
