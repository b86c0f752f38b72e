// Headline, commands, how sure the plan is, inputs and sources; then all parts are drawn.

function draw_answer() {
  const q = data.question, best = data.plan.best, v = data.plan.verdict;
  const lead = v.runner_up === null ? ["-", data.alone || "nothing to compare"]
    : v.tie ? ["a tie", `with the next mesh: ${percent(v.margin)} apart`] : [percent(v.margin), "ahead of the next mesh"];
  const tiles = [
    [rate(best.tokens_per_s), "tokens/s, all devices"],
    [rate(best.tokens_per_s / q.devices), "tokens/s per device"],
    [seconds(best.time_s), q.training ? "a training step" : "a forward step"],
    [band(best.band), "band of the times"],
    [percent(best.mfu), `MFU, ${flop_rate(best.flop_per_s_per_device)} per device`],
    [(best.memory_bytes / 2 ** 30).toFixed(2) + " GiB", `of ${bytes(data.card_bytes)} per device`, best.memory_bytes / data.card_bytes],
    lead,
  ];
  const box = by_id("answer");
  box.append(element("h1", {text: `${q.model}, ${tokens(q.seq)} tokens, on ${q.cluster} (${q.devices} devices in ${q.hosts} ${q.hosts === 1 ? "host" : "hosts"})`}),
    element("p", {class: "layout", text: best.description}),
    element("ul", {class: "tiles"}, ...tiles.map(([value, name, share]) => element("li", {}, element("strong", {text: value}), element("span", {text: name}),
      share === undefined ? "" : element("div", {class: "meter"}, element("i", {style: `width:${Math.min(100, 100 * share)}%`}))))));
  const warnings = [...data.plan.notes, ...v.flag_costs.map((cost) => `${cost.flag} ${cost.slowdown < 0 ? "gains" : "costs"} ${percent(Math.abs(cost.slowdown))}: without it ${cost.without}`)];
  if (!data.plan.calibration.calibrated) warnings.unshift("Uncalibrated: all times come from data sheets.");
  if (warnings.length) box.append(element("div", {class: "warning"}, list_of(warnings)));
}

async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "copied";
  } catch {
    const range = document.createRange();  // the browser allows no clipboard here: select it for the reader
    range.selectNodeContents(button.parentElement.querySelector("code"));
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    button.textContent = "selected";
  }
  setTimeout(() => { button.textContent = "copy"; }, 1500);
}

function draw_commands() {
  const box = by_id("commands");
  const codes = [], frameworks = element("select", {"aria-label": "framework", change: () => write()},
    ...data.frameworks.map((name) => element("option", {value: name, text: name})));
  const write = () => codes.forEach(([code, text]) => { code.textContent = text.replace("FRAMEWORK", frameworks.value); });
  const list = element("div", {class: "pair"});
  box.append(element("div", {class: "controls"}, element("label", {}, "framework", frameworks)), list);
  for (const {what, command} of data.commands) {
    const code = element("code", {tabindex: 0});
    codes.push([code, command]);
    list.append(element("div", {class: "command"}, element("div", {}, element("small", {text: what}), code),
      element("button", {text: "copy", click: (event) => copy(code.textContent, event.target)})));
  }
  write();
}

function draw_verdict() {
  const box = by_id("verdict"), v = data.plan.verdict;
  if (v.runner_up === null) box.append(element("p", {text: `There is nothing to compare: ${data.alone || "no other mesh fits"}.`}));
  else box.append(element("p", {text: `Runner-up: ${v.runner_up}, ${percent(v.margin)} slower per token. ` +
    (v.tie ? "That is a tie: the bands of the terms that differ are wider than the lead." : "The lead is wider than the bands of the terms that differ.")}));
  if (v.tie_breaking_measurements.length) box.append(element("h3", {text: "What would settle it"}), list_of(v.tie_breaking_measurements));
  if (v.sensitive_terms.length) box.append(element("h3", {text: "The choice is sensitive to"}), list_of(v.sensitive_terms));
  const reasons = new Map();
  for (const r of data.plan.rejected) reasons.set(r.reason, [...(reasons.get(r.reason) || []), `(${r.mesh.ring}, ${r.mesh.ulysses})`]);
  if (reasons.size)
    box.append(folded(`${data.plan.rejected.length} meshes are not possible: why`, table("", ["reason", "ring, ulysses"],
      [...reasons].map(([reason, meshes]) => [reason, meshes.slice(0, 8).join(" ") + (meshes.length > 8 ? ` and ${meshes.length - 8} more` : "")]), [])));
}

function draw_inputs() {
  const box = by_id("inputs"), c = data.plan.calibration;
  box.append(table("", ["input", "value"], Object.entries(data.question.rows), []));
  box.append(element("p", {text: `Calibration: ${c.name}${c.calibrated ? "" : " (uncalibrated: data-sheet rates)"}.`}));
  if (c.sources.length) box.append(folded("measurements it rests on", list_of(c.sources)));
  if (c.extrapolations.length) box.append(element("h3", {text: "Extrapolated"}), list_of(c.extrapolations));
  for (const [name, lines] of Object.entries(data.notes))
    if (name !== "plan" && lines.length) box.append(folded(`notes: ${name}`, list_of(lines)));
}

draw_answer();
draw_commands();
draw_bars();
draw_candidates();
draw_pareto();
draw_terms();
draw_mesh();
draw_ticks();
draw_sweep();
draw_verdict();
draw_inputs();
select_candidate(0);
document.documentElement.dataset.drawn = "true";
