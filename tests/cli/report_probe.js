"use strict";
// Runs in a page of usp report after its own scripts, and sends what is wrong to the parent window. The page's data
// and functions are in scope.

const found = [];
const expect = (holds, fault) => { if (!holds) found.push(fault); };
const all_of = (selector) => [...document.querySelectorAll(selector)];
const fire = (node, type, more = {}) => node.dispatchEvent(new PointerEvent(type, {bubbles: true, clientX: 50, clientY: 50, ...more}));
const near = (a, b, share = 0.01) => Math.abs(a - b) <= share * Math.max(Math.abs(a), Math.abs(b)) + 0.5;

function scrolls(node) {
  for (let up = node; up; up = up.parentElement)
    if (["auto", "scroll"].includes(getComputedStyle(up).overflowX)) return true;
  return false;
}

function nothing_outside() {
  expect(document.documentElement.scrollWidth <= innerWidth, `the page is ${document.documentElement.scrollWidth} px wide`);
  for (const node of all_of("main *, footer")) {
    if (scrolls(node)) continue;
    const box = node.getBoundingClientRect();
    if (box.width === 0 || box.height === 0) continue;
    if (box.right > innerWidth + 1 || box.left < -1)
      return expect(false, `<${node.tagName} class=${node.getAttribute("class")}> '${node.textContent.slice(0, 40)}' spans ${box.left} to ${box.right}`);
  }
}

function texts_apart() {
  for (const svg of all_of("main svg")) {
    const boxes = [...svg.querySelectorAll("text")].map((node) => [node.getBoundingClientRect(), node.textContent]);
    for (let i = 0; i < boxes.length; ++i)
      for (let j = i + 1; j < boxes.length; ++j) {
        const [a, b] = [boxes[i][0], boxes[j][0]];
        const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left), high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        if (wide > 2 && high > 4) return expect(false, `'${boxes[i][1]}' and '${boxes[j][1]}' overlap`);
      }
  }
}

function bars_are_as_long_as_they_say() {
  const shown = Math.min(6, data.candidates.length);
  for (const [id, amount] of [["time", (i) => data.candidates[i].time_per_token_s], ["memory", (i) => data.plan.candidates[i].memory_bytes]]) {
    const bars = all_of(`#${id} .bar .parts`).map((node) => node.getBoundingClientRect().width);
    expect(bars.length === shown, `${bars.length} bars of ${id}`);
    bars.forEach((width, i) => expect(near(width / bars[0], amount(i) / amount(0)), `bar ${i} of ${id} is ${width / bars[0]} of the first`));
  }
  all_of("#time .bar").slice(0, shown).forEach((bar, i) => {
    const whisker = bar.querySelector(".whisker").getBoundingClientRect(), parts = bar.querySelector(".parts").getBoundingClientRect();
    expect(near(whisker.right - parts.left, parts.width * (1 + data.plan.candidates[i].band), 0.02), `whisker of bar ${i}`);
  });
}

function candidates_light_up_together() {
  const last = Math.min(5, data.candidates.length - 1), bar = all_of("#time .bar")[last];
  fire(bar, "pointerenter");
  const lit = all_of(".lit");
  expect(lit.length >= 3 && lit.every((node) => node.dataset.candidate === String(last)), `${lit.length} nodes light up`);
  expect(!data.plan.candidates[last].fits_memory || lit.some((node) => node.tagName === "circle"), "no point lights up");
  fire(bar, "pointerleave");
  expect(all_of(".lit").length === 0, "a candidate stays lit");
  all_of("#candidates tbody tr")[last].click();
  expect(document.querySelector("#terms h3").textContent.startsWith(`#${last + 1} `), "the terms are not those of the selected candidate");
  expect(all_of("#time .chosen").length === 1, "no bar is marked as selected");
}

function values_show_on_hover() {
  const part = document.querySelector("#time .parts i");
  fire(part, "pointermove");
  expect(!tip.hidden && tip.textContent.includes(data.candidates[0].terms[0].name), `the tip says '${tip.textContent}'`);
  const box = tip.getBoundingClientRect();
  expect(box.right <= innerWidth && box.left >= 0, "the tip lies outside");
  fire(part, "pointerleave");
  expect(tip.hidden, "the tip stays");
}

function sliders_move_the_answer() {
  for (const input of all_of("#sweep input")) {
    const name = input.dataset.axis, {result, place} = result_with(name);
    input.value = input.max;
    input.dispatchEvent(new Event("input"));
    const at = result.axes.map((axis) => Number(document.querySelector(`#sweep input[data-axis=${axis.name}]`).value));
    const point = result.points.find((p) => p.at.every((value, i) => value === at[i]));
    const text = document.querySelector(".readout").textContent;
    expect(point && point.at[place] === Number(input.max), `the ${name} slider stands at ${at}`);
    expect(text.includes(point.feasible ? point.name : point.reason), `the answer at the last ${name} is '${text}'`);
  }
  expect((data.sweep === null) === (all_of("#sweep input").length === 0), "sliders without a sweep, or none with one");
}

function ranks_can_be_picked() {
  const ranks = [...new Set(data.ticks[0].events.map((event) => event.rank))];
  const title = () => document.querySelector("#ticks svg title").textContent;
  const select = all_of("#ticks select").find((node) => node.getAttribute("aria-label") === "rank");
  select.value = String(ranks[ranks.length - 1]);
  select.dispatchEvent(new Event("change"));
  expect(title().includes(`rank ${ranks[ranks.length - 1]},`), `the schedule is that of '${title()}'`);
  const events = data.ticks[0].events.filter((event) => event.rank === ranks[ranks.length - 1]);
  const pass = all_of("#ticks select").find((node) => node.getAttribute("aria-label") === "pass");
  let drawn_events = all_of("#ticks svg .part").length;
  if (pass) {
    pass.value = "backward";
    pass.dispatchEvent(new Event("change"));
    drawn_events += all_of("#ticks svg .part").length;
  }
  expect(drawn_events === events.length, `${drawn_events} of ${events.length} events are drawn`);
  const device = document.querySelector("#mesh .device");
  device.dispatchEvent(new Event("click"));
  expect(title().includes("rank 0,"), "selecting the first device does not show rank 0");
}

function the_machine_is_drawn() {
  const hosts = Math.min(8, data.machine.hosts);
  expect(all_of("#mesh .host").length === hosts, `${all_of("#mesh .host").length} hosts`);
  const devices = data.machine.devices.filter((device) => device.host < hosts);
  expect(all_of("#mesh .device").length === devices.length, `${all_of("#mesh .device").length} devices`);
  const direct = data.machine.links.filter((link) => devices.some((device) => device.id === link.a) && devices.some((device) => device.id === link.b));
  expect(all_of("#mesh path.wire").length === direct.length, `${all_of("#mesh path.wire").length} direct links of ${direct.length}`);
  const nics = data.machine.nics.filter((nic) => nic.host < hosts && devices.length);
  expect(all_of("#mesh rect.nic").length >= nics.length, `${all_of("#mesh rect.nic").length} NICs`);
}

function commands_can_be_copied() {
  const buttons = all_of("#commands button");
  expect(buttons.length === data.commands.length, `${buttons.length} commands`);
  const select = document.querySelector("#commands select");
  select.value = data.frameworks[1];
  select.dispatchEvent(new Event("change"));
  const codes = all_of("#commands code").map((node) => node.textContent);
  expect(codes.some((text) => text.endsWith(`--to ${data.frameworks[1]}`)), "the framework is not in the command");
  expect(codes[0] === data.commands[0].command, `the first command is '${codes[0]}'`);
}

function text_stays_text() {
  expect(all_of("img").length === 0 && all_of("script").length === 3, "the input made elements");
  expect(document.querySelector("h1").textContent.includes(data.question.model), "the model's name is not shown as it is");
}

function brightness() {
  const [r, g, b] = getComputedStyle(document.body).backgroundColor.match(/\d+/g).map(Number);
  return (r + g + b) / 3;
}

for (const check of [nothing_outside, texts_apart, bars_are_as_long_as_they_say, candidates_light_up_together, values_show_on_hover,
  the_machine_is_drawn, ranks_can_be_picked, sliders_move_the_answer, commands_can_be_copied, text_stays_text, nothing_outside])
  try {
    check();
  } catch (error) {
    found.push(`${check.name}: ${error}`);
  }
if (document.documentElement.dataset.drawn !== "true") found.push("the page was not drawn to its end");
parent.postMessage({page: location.pathname.split("/").pop(), width: innerWidth, faults: found, dark: brightness() < 128}, "*");
