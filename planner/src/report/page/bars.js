// Stacked bars of the candidates: time per token with whiskers, memory against the card.

const max_bars = 6;

/// @param chart title, hint, print, unit, limit, limit_name, parts(candidate) and total(candidate, plan), band(plan)
function stacked_bars(box, chart) {
  const candidates = data.candidates.slice(0, max_bars), plans = data.plan.candidates;
  const parts = candidates.map(chart.parts);
  const sums = parts.map((list) => list.reduce((sum, part) => sum + part.amount, 0));
  const names = [...new Set(parts.flat().map((part) => part.name))];
  const hue = (name) => "c" + (names.indexOf(name) % 12);
  const most = Math.max(chart.limit || 0, ...sums.map((sum, i) => sum * (1 + chart.band(plans[i])))) * 1.02;
  const at = (value) => (100 * value) / most + "%";
  box.append(element("h3", {text: chart.title}), element("p", {class: "hint", text: chart.hint}));
  candidates.forEach((candidate, i) => {
    const share = chart.band(plans[i]);
    const pieces = parts[i].map((part) => hover(element("i", {class: hue(part.name), style: `width:${(100 * part.amount) / sums[i]}%`}),
      `#${i + 1} ${part.name}: ${chart.print(part.amount)}, ${percent(part.amount / sums[i])}`));
    const track = element("div", {class: "track"}, element("div", {class: "parts", style: `width:${at(sums[i])}`}, ...pieces));
    if (share > 0) {
      const low = sums[i] / (1 + share), high = sums[i] * (1 + share);
      track.append(element("div", {class: "whisker", style: `left:${at(low)};width:${at(high - low)}`}));
    }
    if (chart.limit) track.append(element("div", {class: "limit", style: `left:${at(chart.limit)}`}));
    box.append(of_candidate(element("div", {class: "bar"}, element("div", {class: "bar-head"},
      element("span", {text: `#${i + 1} ${candidate.name}${plans[i].fits_memory ? "" : " (does not fit)"}`}),
      element("b", {text: chart.total(candidate, plans[i])})), track), i));
  });
  box.append(scale_below(most, chart), legend_of(names, hue, chart), parts_table(chart, names, parts, sums));
}

function scale_below(most, chart) {
  return element("div", {class: "scale"}, ...ticks_to(most, chart.unit).map((value) => {
    const share = value / most;
    return element("span", {class: value === 0 ? "first" : share > 0.9 ? "last" : "", style: `left:${100 * share}%`,
      text: value === 0 ? "0" : chart.print(value).replace(".00 ", " ")});
  }));
}

function legend_of(names, hue, chart) {
  const key = chart.limit ? [element("li", {}, element("i", {class: "limit-key"}), chart.limit_name)] : [];
  return element("ul", {class: "legend"}, ...names.map((name) => element("li", {}, element("i", {class: hue(name)}), name)), ...key);
}

function parts_table(chart, names, parts, sums) {
  const rows = names.map((name) => [name, ...parts.map((list) => {
    const amount = list.filter((part) => part.name === name).reduce((sum, part) => sum + part.amount, 0);
    return amount > 0 ? chart.print(amount) : "-";
  })]);
  rows.push(["total", ...sums.map(chart.print)]);
  const box = element("div", {style: "overflow-x:auto"},
    table("", ["part", ...parts.map((list, i) => `#${i + 1}`)], rows, parts.map((list, i) => i + 1)));
  return folded("as a table", box);
}

function draw_bars() {
  stacked_bars(by_id("time"), {
    title: "Time per token", hint: "of the whole job: replicas count. Whiskers: where the truth is expected.",
    print: seconds, unit: 1e-9, band: (plan) => plan.band,
    parts: (candidate) => {
      const step = candidate.terms.reduce((sum, term) => sum + term.time_s, 0);
      return candidate.terms.map((term) => ({name: term.name, amount: (term.time_s * candidate.time_per_token_s) / step}));
    },
    total: (candidate, plan) => `${seconds(candidate.time_per_token_s)} ${band(plan.band)}, step ${seconds(plan.time_s)}`,
  });
  stacked_bars(by_id("memory"), {
    title: "Memory of the fullest rank", hint: "by what holds it.",
    print: bytes, unit: 2 ** 30, band: () => 0, limit: data.card_bytes,
    limit_name: `the card: ${bytes(data.card_bytes)}`,
    parts: (candidate) => candidate.memory.map((row) => ({name: row.name, amount: row.bytes})),
    total: (candidate, plan) => bytes(plan.memory_bytes),
  });
}
