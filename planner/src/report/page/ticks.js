// The schedule of a rank in one layer: kernels, exposed time and transfers from start to due.

const tick_view = {layer: 0, pass: "forward", rank: 0, redraw: () => {}};
const lane_height = 20, max_tick_rows = 64;

const pass_of = () => data.ticks[tick_view.layer][tick_view.pass];
const pass_length_us = (pass) => 1e6 * pass.ticks.reduce((sum, tick) => sum + tick.time_s, 0);

/// Events of the picked rank in the pass, from its begin.
function picked_events() {
  const layer = data.ticks[tick_view.layer];
  const split = pass_length_us(layer.forward) * (1 - 1e-9), backward = tick_view.pass === "backward";
  return layer.events.filter((event) => event.rank === tick_view.rank && event.begin_us >= split === backward)
    .map((event) => ({...event, begin_us: event.begin_us - (backward ? pass_length_us(layer.forward) : 0)}));
}

function event_text(event) {
  const args = event.args, lines = [event.name, seconds(event.time_us * 1e-6)];
  if (args.bytes !== undefined) {
    const chunk = args.chunk === null ? "" : `, head chunk ${args.chunk}`;
    lines.push(`${args.transfer}${chunk}: ${bytes(args.bytes)}, tick ${args.start_tick} to ${args.due_tick}`,
      args.link ? `link: ${args.link === "inside" ? "inside the host" : args.link}` : "",
      event.time_us > 0 ? `${three(args.bytes / event.time_us / 1e3)} GB/s are enough to hide it` : "");
  } else {
    lines.push(`${rate(args.pairs_per_head)} pairs of query and key per head`);
  }
  return lines.filter(Boolean).join("\n");
}

/// Lanes of the trace in the order in which they are drawn.
function lanes_of(events) {
  const used = [...new Set(events.map((event) => event.lane))].sort((a, b) => a - b);
  const sends = used.filter((lane) => lane % 2 === 1), receives = used.filter((lane) => lane > 0 && lane % 2 === 0);
  return [0, ...sends, ...receives];
}
const lane_name = (lane) => lane === 0 ? "kernels" : lane % 2 === 1 ? "sends" : "receives";
const lane_hue = (lane) => lane === 0 ? "c0" : lane % 2 === 1 ? "c1" : "c2";

function tick_picture(width) {
  const events = picked_events(), lanes = lanes_of(events), pass = pass_of(), total = pass_length_us(pass);
  const left = 64, right = width - 6, top = 8, bottom = top + lanes.length * (lane_height + 5);
  const x = axis(0, total, left, right), nodes = [];
  let begin = 0;
  pass.ticks.forEach((tick, t) => {
    const end = begin + 1e6 * tick.time_s, busy = begin + 1e6 * tick.compute_s;
    nodes.push(shape("line", {x1: x(begin), x2: x(begin), y1: top - 4, y2: bottom, class: "grid"}));
    if (end > busy * (1 + 1e-9))
      nodes.push(hover(shape("rect", {x: x(busy), width: Math.max(0, x(end) - x(busy)), y: top, height: lane_height, class: "exposed"}),
        `tick ${t}: transfers that show, ${seconds((end - busy) * 1e-6)}\nin hosts ${seconds(tick.intra_node_s)}, between hosts ${seconds(tick.inter_node_s)}`));
    begin = end;
  });
  lanes.forEach((lane, row) => {
    const y = top + row * (lane_height + 5);
    if (row === 0 || lane_name(lane) !== lane_name(lanes[row - 1])) nodes.push(words(left - 8, y + 14, lane_name(lane), "end small"));
    for (const event of events.filter((e) => e.lane === lane)) {
      const span = Math.max(1, x(event.begin_us + event.time_us) - x(event.begin_us));
      nodes.push(hover(shape("rect", {x: x(event.begin_us), width: span, y, height: lane_height, class: `part ${lane_hue(lane)}`}), event_text(event)));
      const text = lane === 0 ? event.name.replace(/^.*: /, "") : event.name.replace(/^(send|receive) /, "");
      if (span > 7 * text.length + 6) nodes.push(words(x(event.begin_us) + 4, y + 14, text, "inked"));
    }
  });
  const room = Math.max(2, Math.floor((right - left) / 110));
  nodes.push(shape("line", {x1: left, x2: right, y1: bottom, y2: bottom, class: "axis"}));
  for (let i = 0; i <= room; ++i)
    nodes.push(words(x((total * i) / room), bottom + 16, seconds((total * i * 1e-6) / room), i === 0 ? "" : i === room ? "end" : "mid"));
  return picture(width, bottom + 22, `Schedule of rank ${tick_view.rank}, ${tick_view.pass}`, ...nodes);
}

function tick_table() {
  const pass = pass_of();
  const rows = pass.ticks.slice(0, max_tick_rows).map((tick, t) =>
    [`${t}`, seconds(tick.compute_s), seconds(tick.intra_node_s), seconds(tick.inter_node_s), seconds(tick.time_s)]);
  const list = table(`Of the slowest rank${pass.ticks.length > max_tick_rows ? `, the first ${max_tick_rows} ticks` : ""}`,
    ["tick", "kernels", "in hosts", "between hosts", "length"], rows, [1, 2, 3, 4]);
  return folded("ticks as a table", element("div", {style: "overflow-x:auto"}, list));
}

function pick_rank(rank) {
  mesh_view.picked = tick_view.rank = rank;
  mark_picked();
  tick_view.redraw();
}

/// A drop-down list of [value, text].
function chooser(name, options, change) {
  const select = element("select", {"aria-label": name, change: () => change(select.value)},
    ...options.map(([value, text]) => element("option", {value, text})));
  return {node: element("label", {}, name, select), select};
}

function draw_ticks() {
  const box = by_id("ticks");
  if (data.ticks.length === 0) {
    const why = data.plan.best.unexecutable_reason;
    box.append(element("p", {text: why ? `There is no schedule to draw: ${why}.` : "No layer computes softmax attention."}));
    return;
  }
  const controls = element("div", {class: "controls"}), chart = element("div"), after = element("div");
  const ranks = [...new Set(data.ticks[0].events.map((event) => event.rank))];
  const ulysses = degree("ulysses");
  const rank = chooser("rank", ranks.map((r) => [r, `${r} (ring ${Math.floor(r / ulysses)}, ulysses ${r % ulysses})`]), (value) => pick_rank(Number(value)));
  const pass = chooser("pass", [["forward", "forward"], ["backward", "backward"]], (value) => { tick_view.pass = value; tick_view.redraw(); });
  const layer = chooser("layers", data.ticks.map((l, i) => [i, `${l.layers} ${l.kind}`]), (value) => { tick_view.layer = Number(value); tick_view.redraw(); });
  if (data.ticks.length > 1) controls.append(layer.node);
  if (data.ticks[0].backward) controls.append(pass.node);
  if (ranks.length) controls.append(rank.node);
  controls.append(element("span", {class: "note", text: `the first ${ranks.length} of ${data.ticks[0].ranks} ranks of a group`}));
  box.append(element("p", {class: "hint", text: "A transfer lies between the tick in which it may start and the end of the one in which it is due. " +
    "Shaded: what transfers add to the kernels."}), controls, chart, after);
  const redraw = drawn(chart, (width) => {
    const p = pass_of();
    after.replaceChildren(element("p", {class: "note", text: `One layer, ${tick_view.pass}: ${seconds(p.time_s)} ${band(p.band)}, of it kernels ` +
      `${seconds(p.compute_s)}, exposed ${seconds(p.exposed_s)}.`}), tick_table());
    return tick_picture(width);
  });
  tick_view.redraw = () => {
    if (!ranks.includes(tick_view.rank)) {
      after.replaceChildren(element("p", {class: "note", text: `Rank ${tick_view.rank} is not among those that the page holds; ` +
        `usp explain plan.json --rank ${tick_view.rank} prints its schedule.`}));
      return;
    }
    rank.select.value = String(tick_view.rank);
    redraw();
  };
}
