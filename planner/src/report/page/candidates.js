// The candidates as a table, as points of time and memory, and the terms of the selected one.

const listed_candidates = 8;

function draw_candidates() {
  const box = by_id("candidates"), plans = data.plan.candidates;
  const rows = plans.map((plan, i) => [`${i + 1}`, plan.description, seconds(1 / plan.tokens_per_s), band(plan.band),
    seconds(plan.time_s), percent(plan.mfu), bytes(plan.memory_bytes) + (plan.fits_memory ? "" : " (too much)")]);
  const list = table("Best first", ["#", "layout", "per token", "band", "step", "MFU", "memory"], rows, [2, 3, 4, 5, 6]);
  list.querySelectorAll("tr").forEach((row) => [3, 4, 5].forEach((i) => row.children[i].classList.add("wide")));
  list.querySelectorAll("tbody tr").forEach((row, i) => {
    of_candidate(row, i);
    if (i >= listed_candidates) row.classList.add("more");
  });
  box.append(list);
  if (plans.length > listed_candidates)
    box.append(element("button", {text: `all ${plans.length}`, click: (event) => {
      box.classList.add("all");
      event.target.remove();
    }}));
  box.append(element("p", {class: "note", text: `${data.plan.priced_schedules} attention schedules were priced.`}));
}

function draw_pareto() {
  const box = by_id("pareto");
  const fitting = data.plan.candidates.map((plan, i) => ({i, plan, time: 1 / plan.tokens_per_s})).filter((c) => c.plan.fits_memory);
  const front = new Set(data.plan.pareto);
  const chart = element("div");
  box.append(element("h3", {text: "Time against memory"}),
    element("p", {class: "hint", text: "Filled: no other candidate is both faster and smaller. The line joins them."}), chart);
  drawn(chart, (width) => {
    const height = 300, frame = {left: 70, right: width - 14, top: 12, bottom: height - 46};
    const times = fitting.map((c) => c.time), sizes = fitting.map((c) => c.plan.memory_bytes);
    const pad = 0.08 * (Math.max(...times) - Math.min(...times)) || 0.05 * Math.max(...times);
    const x = axis(Math.min(...times) - pad, Math.max(...times) + pad, frame.left, frame.right);
    const y = axis(0.9 * Math.min(...sizes), 1.05 * Math.max(...sizes), frame.bottom, frame.top);
    const nodes = frame_of(frame, x, y, {x: seconds, y: round_bytes, unit: 2 ** 30, x_name: "time per token", width});
    const on_front = fitting.filter((c) => front.has(c.i)).sort((a, b) => a.time - b.time);
    nodes.push(shape("polyline", {class: "curve", points: on_front.map((c) => `${x(c.time)},${y(c.plan.memory_bytes)}`).join(" ")}));
    for (const c of [...fitting].reverse())
      nodes.push(hover(of_candidate(shape("circle", {cx: x(c.time), cy: y(c.plan.memory_bytes), r: front.has(c.i) ? 6 : 4.5,
        class: "point" + (front.has(c.i) ? " front" : "") + (c.i === selection.candidate ? " chosen" : "")}), c.i),
        `#${c.i + 1} ${c.plan.description}\n${seconds(c.time)} per token, ${bytes(c.plan.memory_bytes)}`));
    return picture(width, height, "Candidates by time per token and memory", ...nodes);
  });
}

/// A linear scale from values to pixels, with `least` and `most`.
function axis(least, most, from, to) {
  const at = (value) => from + ((to - from) * (value - least)) / (most - least || 1);
  return Object.assign(at, {least, most});
}

/// Grid and labels. @param names printers x and y, unit of y, x_name
function frame_of(frame, x, y, names) {
  const nodes = [];
  for (const value of ticks_to(y.most, names.unit))
    if (value >= y.least)
      nodes.push(shape("line", {x1: frame.left, x2: frame.right, y1: y(value), y2: y(value), class: "grid"}),
        words(frame.left - 6, y(value) + 4, names.y(value), "end"));
  const room = Math.max(2, Math.floor((frame.right - frame.left) / 90));
  for (let i = 0; i <= room; ++i) {
    const value = x.least + ((x.most - x.least) * i) / room;
    nodes.push(words(x(value), frame.bottom + 18, names.x(value), i === 0 ? "" : i === room ? "end" : "mid"));
  }
  nodes.push(shape("line", {x1: frame.left, x2: frame.right, y1: frame.bottom, y2: frame.bottom, class: "axis"}),
    words(frame.right, frame.bottom + 36, names.x_name, "end small"));
  return nodes;
}

function draw_terms() {
  const box = by_id("terms");
  selection.listeners.push((index) => {
    const candidate = data.candidates[index], plan = data.plan.candidates[index];
    box.replaceChildren(element("h3", {text: `#${index + 1} ${plan.description}`}));
    if (!candidate) {
      box.append(element("p", {class: "note", text: `The terms of the first ${data.candidates.length} candidates are kept.`}));
      return;
    }
    const time = candidate.terms.map((term) => [explained(term.name, term.reason), seconds(term.time_s),
      percent(term.time_s / plan.time_s), band(term.band)]);
    time.push(["step", seconds(plan.time_s), "100%", band(plan.band)]);
    const memory = [...candidate.memory, ...candidate.host_memory.map((row) => ({...row, name: row.name + " (host)"}))]
      .map((row) => [explained(row.name, row.reason), bytes(row.bytes)]);
    memory.push(["device", bytes(plan.memory_bytes)]);
    const pair = element("div", {class: "pair"},
      table("A step, by term", ["term", "time", "share", "band"], time, [1, 2, 3]),
      table("Memory, by row", ["row", "bytes"], memory, [1]));
    pair.querySelectorAll("tbody tr:last-child").forEach((row) => row.classList.add("total"));
    box.append(pair);
  });
}
