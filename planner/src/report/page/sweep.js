// Sliders over plans that were made at other lengths, NIC rates and numbers of hosts.

const axis_titles = {seq: "tokens of a sequence", nic: "NIC, one direction", nodes: "hosts"};
const sweep_view = {at: {}};

/// The result that varies an axis, and its place there.
function result_with(name) {
  for (const result of data.sweep.results) {
    const place = result.axes.findIndex((axis) => axis.name === name);
    if (place >= 0) return {result, place, axis: result.axes[place]};
  }
  return null;
}
const swept_axes = () => data.sweep.results.flatMap((result) => result.axes);
const value_text = (axis, i) => axis.name === "seq" ? tokens(axis.values[i].number) : axis.values[i].text;

/// The point at the sliders, with axis `name` moved to index `i`.
function point_at(result, name, i) {
  const at = result.axes.map((axis) => axis.name === name ? i : sweep_view.at[axis.name]);
  return result.points.find((point) => point.at.every((value, k) => value === at[k]));
}

function base_index(axis) {
  const base = data.sweep.base[axis.name];
  return axis.values.findIndex((value) => Math.abs(value.number - base) < 1e-9 * Math.max(1, base));
}

/// Sweeps of one axis each: another axis moved means the others are as asked.
function moved(name, i) {
  if (data.sweep.results.length > 1)
    for (const axis of swept_axes()) sweep_view.at[axis.name] = base_index(axis);
  sweep_view.at[name] = i;
  sweep_view.moved = name;
}

function readout() {
  const shown = result_with(sweep_view.moved), point = point_at(shown.result, sweep_view.moved, sweep_view.at[sweep_view.moved]);
  const base = data.plan.best, per_token = 1 / base.tokens_per_s;
  if (!point.feasible) return [element("p", {}, element("strong", {text: "Nothing fits. "}), point.reason)];
  const lead = !point.runner_up ? "no other mesh fits" : point.tie ? `a tie with ${point.runner_up}` : `ahead of ${point.runner_up} by ${percent(point.margin)}`;
  return [element("p", {}, element("strong", {text: point.name})),
    element("p", {text: `step ${seconds(point.time_s)} ${band(point.band)}, ${rate(1 / point.time_per_token_s)} tokens/s, ` +
      `${seconds(point.time_per_token_s)} per token (${(point.time_per_token_s / per_token).toFixed(2)} x the plan's), ${bytes(point.memory_bytes)}`}),
    element("p", {class: "note", text: `${lead}; most memory: ${point.binding_row}`})];
}

/// One value along an axis of the sweep.
function curve_picture(width, name, value, print, limit, title) {
  const {result, axis: along} = result_with(name);
  const height = 210, frame = {left: 70, right: width - 16, top: 12, bottom: height - 46};
  const points = along.values.map((v, i) => point_at(result, name, i));
  const most = Math.max(limit || 0, ...points.filter((p) => p.feasible).map((p) => value(p) * (limit ? 1 : 1 + p.band))) * 1.04 || 1;
  const x = axis(0, Math.max(1, along.values.length - 1), frame.left + 8, frame.right - 12), y = axis(0, most, frame.bottom, frame.top);
  const nodes = [];
  for (const tick of ticks_to(most, limit ? 2 ** 30 : 1e-12))
    nodes.push(shape("line", {x1: frame.left, x2: frame.right, y1: y(tick), y2: y(tick), class: "grid"}), words(frame.left - 6, y(tick) + 4, tick === 0 ? "0" : print(tick).replace(".00 ", " "), "end"));
  const every = Math.ceil((along.values.length * 62) / (frame.right - frame.left));
  along.values.forEach((v, i) => {
    if (i % every === 0) nodes.push(words(x(i), frame.bottom + 18, value_text(along, i).replace(" GB/s", ""), "mid"));
  });
  nodes.push(shape("line", {x1: frame.left, x2: frame.right, y1: frame.bottom, y2: frame.bottom, class: "axis"}),
    words(frame.right, frame.bottom + 36, axis_titles[name] + (name === "nic" ? ", GB/s" : ""), "end small"));
  const good = points.map((p, i) => ({p, i})).filter(({p}) => p.feasible);
  if (!limit)
    nodes.push(shape("polygon", {class: "band", points: [...good.map(({p, i}) => `${x(i)},${y(value(p) * (1 + p.band))}`),
      ...[...good].reverse().map(({p, i}) => `${x(i)},${y(value(p) / (1 + p.band))}`)].join(" ")}));
  else nodes.push(shape("line", {x1: frame.left, x2: frame.right, y1: y(limit), y2: y(limit), class: "cap"}));
  nodes.push(shape("polyline", {class: "curve", points: good.map(({p, i}) => `${x(i)},${y(value(p))}`).join(" ")}));
  points.forEach((p, i) => {
    const here = i === sweep_view.at[name];
    if (!p.feasible) nodes.push(hover(words(x(i), frame.bottom - 6, "\u00d7", "mid strong"), `${value_text(along, i)}: ${p.reason}`));
    else nodes.push(hover(shape("circle", {cx: x(i), cy: y(value(p)), r: here ? 7 : 4.5, class: "point" + (here ? " chosen" : p.lead_changed ? " front" : "")}),
      `${value_text(along, i)}: ${print(value(p))}\n${p.name}`));
  });
  return picture(width, height, title, ...nodes);
}

function slider(axis, update) {
  const output = element("output"), index = sweep_view.at[axis.name];
  const input = element("input", {type: "range", min: 0, max: axis.values.length - 1, step: 1, value: index, "aria-label": axis_titles[axis.name], "data-axis": axis.name,
    input: () => { moved(axis.name, Number(input.value)); update(); }});
  const show = () => {
    input.value = sweep_view.at[axis.name];
    output.textContent = value_text(axis, sweep_view.at[axis.name]) + (sweep_view.at[axis.name] === base_index(axis) ? " (as asked)" : "");
  };
  return {node: element("label", {}, axis_titles[axis.name], output, input), show};
}

function draw_sweep() {
  const box = by_id("sweep");
  if (!data.sweep) {
    box.append(element("p", {text: "Not swept: packed documents fix the length, or the machine is too large to plan it again here; usp whatif does."}));
    return;
  }
  for (const axis of swept_axes()) sweep_view.at[axis.name] = base_index(axis);
  const first = swept_axes()[0].name;
  sweep_view.moved = first;
  const answer = element("div", {class: "readout", "aria-live": "polite"}), time = element("div"), memory = element("div");
  const redraws = [], sliders = swept_axes().map((axis) => slider(axis, () => update()));
  const update = () => {
    sliders.forEach((s) => s.show());
    answer.replaceChildren(...readout());
    redraws.forEach((redraw) => redraw());
  };
  const alone = data.sweep.results.length > 1 ? "Each slider moves alone: the others return to what was asked. " : "";
  box.append(element("p", {class: "hint", text: alone + "Every point is the best plan there. Filled points: another layout leads than at the point before. Shaded: the band."}),
    element("div", {class: "sliders"}, ...sliders.map((s) => s.node)), answer,
    element("div", {class: "pair"}, element("div", {}, element("h3", {text: "Time per token"}), time),
      element("div", {}, element("h3", {text: "Memory of the fullest rank"}), memory)));
  const along = () => data.sweep.results.length > 1 ? sweep_view.moved : first;
  redraws.push(drawn(time, (width) => curve_picture(width, along(), (p) => p.time_per_token_s, seconds, 0, "Time per token")));
  redraws.push(drawn(memory, (width) => curve_picture(width, along(), (p) => p.memory_bytes, bytes, data.card_bytes, "Memory")));
  update();
}
