"use strict";
// What all parts of the page share: its data, elements, numbers as people read them, hovering.

const data = JSON.parse(document.getElementById("data").textContent);
const svg_namespace = document.getElementById("empty").namespaceURI;
const by_id = (id) => document.getElementById(id);

/// Attributes: "text" is content, functions are listeners, the others are set as they are.
function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") node.textContent = value;
    else if (typeof value === "function") node.addEventListener(name, value);
    else if (value !== undefined && value !== null && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}
const element = (tag, attributes = {}, ...children) => filled(document.createElement(tag), attributes, children);
const shape = (tag, attributes = {}, ...children) =>
  filled(document.createElementNS(svg_namespace, tag), attributes, children);
const words = (x, y, text, style = "") => shape("text", {x, y, class: style, text});

/// A picture in pixels of its container.
function picture(width, height, title, ...children) {
  return shape("svg", {viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title},
    shape("title", {text: title}), ...children);
}

// Numbers as the command line prints them.
const three = (value) => String(Number(value.toPrecision(3)));
function flop_rate(value) {
  for (const [unit, name] of [[1e15, "P"], [1e12, "T"], [1e9, "G"]])
    if (value >= 0.9995 * unit) return `${three(value / unit)} ${name}FLOP/s`;
  return `${three(value / 1e6)} MFLOP/s`;
}
function seconds(value) {
  if (value === 0) return "0";
  if (value >= 999.5) {
    const s = Math.round(value), minutes = Math.floor(s / 60), hours = Math.floor(minutes / 60), days = Math.floor(hours / 24);
    if (hours === 0) return `${minutes}m ${s % 60}s`;
    return days === 0 ? `${hours}h ${minutes % 60}m` : `${days}d ${hours % 24}h`;
  }
  if (value >= 1) return three(value) + " s";
  if (value >= 1e-3) return three(value * 1e3) + " ms";
  return value >= 1e-6 ? three(value * 1e6) + " us" : three(value * 1e9) + " ns";
}
function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  for (; value >= 1024 && unit + 1 < units.length; ++unit) value /= 1024;
  return `${value.toFixed(unit === 0 ? 0 : 2)} ${units[unit]}`;
}
const round_bytes = (value) => bytes(value).replace(".00 ", " ");
function rate(value) {
  if (value >= 1e6) return (value / 1e6).toFixed(2) + "M";
  if (value >= 1e3) return (value / 1e3).toFixed(1) + "K";
  return value >= 100 ? value.toFixed(0) : three(value);
}
function tokens(value) {
  if (value >= 1 << 20 && value % (1 << 20) === 0) return value / (1 << 20) + "M";
  return value >= 1024 && value % 1024 === 0 ? value / 1024 + "K" : String(value);
}
const percent = (share, digits = 1) => (100 * share).toFixed(digits) + "%";
const band = (share) => "\u00b1" + percent(share, 0);

/// Round values from 0 up to `most`, about five; multiples of `unit`.
function ticks_to(most, unit = 1) {
  const span = most / unit;
  if (!(span > 0)) return [0];
  let step = 10 ** Math.floor(Math.log10(span / 5));
  for (const factor of [2, 2.5, 2]) if (span / step > 6) step *= factor;
  const list = [];
  for (let i = 0; i * step <= span * (1 + 1e-9); ++i) list.push(i * step * unit);
  return list;
}

const tip = by_id("tip");
function show_tip(text, x, y) {
  tip.textContent = text;
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = Math.min(x + 14, innerWidth - box.width - 8);
  const top = y + 18 + box.height > innerHeight ? y - box.height - 10 : y + 18;
  tip.style.left = Math.max(4, left) + "px";
  tip.style.top = Math.max(4, top) + "px";
}
/// Shows `text` (or what it returns) beside the pointer, and at the node while it has the focus.
function hover(node, text) {
  const now = () => (typeof text === "function" ? text() : text);
  node.addEventListener("pointermove", (event) => show_tip(now(), event.clientX, event.clientY));
  node.addEventListener("pointerleave", () => { tip.hidden = true; });
  node.addEventListener("focus", () => {
    const box = node.getBoundingClientRect();
    show_tip(now(), box.left, box.bottom);
  });
  node.addEventListener("blur", () => { tip.hidden = true; });
  return node;
}

/// Space and enter are clicks.
function pressable(node, action) {
  node.setAttribute("tabindex", "0");
  node.setAttribute("role", "button");
  node.addEventListener("click", action);
  node.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    action();
  });
  return node;
}

/// The node is of a candidate: it lights up with all others of it, and a click selects the candidate.
const selection = {candidate: 0, listeners: []};
function of_candidate(node, index) {
  const all = () => document.querySelectorAll(`[data-candidate="${index}"]`);
  node.dataset.candidate = index;
  for (const event of ["pointerenter", "focus"]) node.addEventListener(event, () => all().forEach((n) => n.classList.add("lit")));
  for (const event of ["pointerleave", "blur"]) node.addEventListener(event, () => all().forEach((n) => n.classList.remove("lit")));
  return pressable(node, () => select_candidate(index));
}
function select_candidate(index) {
  selection.candidate = index;
  document.querySelectorAll("[data-candidate]").forEach((node) =>
    node.classList.toggle("chosen", node.dataset.candidate === String(index)));
  selection.listeners.forEach((listener) => listener(index));
}

/// Draws into a box now and whenever its width changes. @param draw from the width in pixels to a node
function drawn(box, draw) {
  let width = 0;
  const redraw = () => {
    const now = Math.floor(box.clientWidth);
    if (now < 1 || now === width) return;
    width = now;
    box.replaceChildren(draw(width));
  };
  new ResizeObserver(redraw).observe(box);
  redraw();
  return () => { width = 0; redraw(); };
}

/// A table of rows of cells: text, or a node. @param numbers columns that are aligned right
function table(caption, header, rows, numbers) {
  const cell = (tag, value, i) => element(tag, {class: numbers.includes(i) ? "num" : undefined},
    value instanceof Node ? value : document.createTextNode(value));
  return element("table", {}, caption ? element("caption", {text: caption}) : "",
    element("thead", {}, element("tr", {}, ...header.map((name, i) => cell("th", name, i)))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map((value, i) => cell("td", value, i))))));
}
/// A name with its explanation below.
const explained = (name, reason) =>
  element("span", {}, document.createTextNode(name), reason ? element("small", {text: reason}) : "");
const list_of = (items) => element("ul", {}, ...items.map((text) => element("li", {text})));
const folded = (summary, ...children) => element("details", {}, element("summary", {text: summary}), ...children);
