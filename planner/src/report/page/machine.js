// Hosts with their devices, switches, bridges, PCIe, NICs and the fabric; devices coloured by their place on an axis.

const hosts_per_page = 8;
const cell = {width: 38, height: 36, gap: 4, per_row: 8};
const machine = data.machine;
const axis_names = {ring: "ring", ulysses: "ulysses", tensor: "tensor", data: "data", stage: "pipeline"};
const device_at = new Map(machine.devices.map((device) => [String(device.id), device]));
const mesh_view = {axis: "ring", first: 0, picked: 0};

const degree = (name) => 1 + Math.max(0, ...machine.devices.map((device) => device[name]));
const same_group = (a, b, along) =>
  a.rank >= 0 && b.rank >= 0 && Object.keys(axis_names).every((name) => name === along || a[name] === b[name]);

function gb_s(value) {
  return value === null ? "unknown bandwidth" : `${three(value)} GB/s`;
}

function device_text(device) {
  if (device.rank < 0) return `device ${device.id}: idle`;
  const seats = Object.entries(axis_names).filter(([name]) => degree(name) > 1).map(([name, text]) => `${text} ${device[name]}`);
  const nics = machine.nics.filter((nic) => device.nics.includes(nic.id)).map((nic) => nic.name || `NIC ${nic.id}`);
  return [`device ${device.id}: rank ${device.rank}`, seats.join(", "), nics.length ? `nearest: ${nics.join(", ")}` : ""].filter(Boolean).join("\n");
}

/// A device at its place; lights up its group along the chosen axis.
function device_node(device, x, y) {
  const hue = device.rank < 0 ? "" : " c" + (device[mesh_view.axis] % 12);
  const place = device.rank < 0 ? "idle" : `r${device.ring} u${device.ulysses}`;
  const node = shape("g", {class: "device" + hue, "data-device": device.id},
    shape("rect", {x, y, width: cell.width, height: cell.height, rx: 5}),
    words(x + cell.width / 2, y + 15, device.rank < 0 ? "" : device.rank, "mid strong"),
    words(x + cell.width / 2, y + 28, place, "mid small"));
  const mark = (on) => document.querySelectorAll("[data-device]").forEach((other) =>
    other.classList.toggle("peer", on && same_group(device, device_at.get(other.dataset.device), mesh_view.axis)));
  node.addEventListener("pointerenter", () => mark(true));
  node.addEventListener("pointerleave", () => mark(false));
  hover(node, device_text(device));
  return device.rank < 0 ? node : pressable(node, () => pick_rank(group_rank(device)));
}

/// Rank within the ranks that share a sequence.
const group_rank = (device) => Math.floor(device.rank / degree("tensor")) % (degree("ring") * degree("ulysses"));

/// Places of the devices of a host, and the height that they take.
function places_of(devices, top) {
  const places = new Map();
  devices.forEach((device, i) => {
    const row = Math.floor(i / cell.per_row), column = i % cell.per_row;
    places.set(device.id, {x: column * (cell.width + cell.gap), y: top + row * (cell.height + 14)});
  });
  return {places, bottom: top + Math.ceil(devices.length / cell.per_row) * (cell.height + 14) - 14};
}

/// A bar over the whole host; the parts of the text that fit stand on it, all of them in its tip.
function plate(y, width, parts, style) {
  const fitting = parts.filter((part, i) => i === 0 || 6 * parts.slice(0, i + 1).join(", ").length < width);
  const group = shape("g", {}, shape("rect", {x: 0, y, width, height: 17, rx: 4, class: style}),
    words(width / 2, y + 12.5, fitting.join(", "), "mid small"));
  return hover(group, `${parts.join(", ")}, one direction`);
}

/// Switches above the devices, with a link to each.
function switch_nodes(devices, places, width) {
  const domain = machine.domains[devices[0].domain];
  if (devices[0].domain < 0 || !domain.switched) return [];
  const parts = ["NVLink switch", `${gb_s(domain.gb_s)} per device`, domain.hosts > 1 ? `one domain over ${domain.hosts} hosts` : ""].filter(Boolean);
  const wires = devices.slice(0, cell.per_row).map((device) => {
    const x = places.get(device.id).x + cell.width / 2;
    return shape("line", {x1: x, x2: x, y1: 17, y2: places.get(device.id).y, class: "wire fast"});
  });
  return [...wires, plate(0, width, parts, "plate")];
}

/// Direct links as arcs above the devices.
function bridge_nodes(devices, places) {
  const here = new Set(devices.map((device) => device.id));
  return machine.links.filter((link) => here.has(link.a) && here.has(link.b)).map((link) => {
    const a = places.get(link.a), b = places.get(link.b);
    const x1 = a.x + cell.width / 2, x2 = b.x + cell.width / 2, rise = a.y === b.y ? Math.min(24, 6 + Math.abs(x2 - x1) / 8) : 0;
    const d = `M${x1},${a.y} Q${(x1 + x2) / 2},${Math.min(a.y, b.y) - 2 * rise} ${x2},${b.y}`;
    const lanes = link.lanes > 0 ? `, ${link.lanes} lanes` : "";
    return hover(shape("path", {d, class: "wire fast"}), `${link.kind} between devices ${link.a} and ${link.b}${lanes}, ${gb_s(link.gb_s)}`);
  });
}

function nic_nodes(host, devices, places, top, width) {
  const nics = machine.nics.filter((nic) => nic.host === host);
  if (nics.length === 0) return {nodes: [], bottom: top};
  const room = width / nics.length, size = Math.min(cell.width, room - 3);
  const x_of = (i) => i * room + room / 2, y = top + 26;
  const wires = devices.flatMap((device) => nics.map((nic, i) => device.nics.includes(nic.id) ? shape("line", {class: "wire",
    x1: places.get(device.id).x + cell.width / 2, y1: places.get(device.id).y + cell.height, x2: x_of(i), y2: y}) : "").filter(Boolean));
  const boxes = nics.map((nic, i) => hover(shape("g", {},
    shape("line", {x1: x_of(i), x2: x_of(i), y1: y + 18, y2: y + 28, class: "wire"}),
    shape("rect", {x: x_of(i) - size / 2, y, width: size, height: 18, rx: 4, class: "nic"}),
    size > 26 ? words(x_of(i), y + 13, "NIC", "mid small") : ""), `${nic.name || "NIC " + nic.id}: ${gb_s(nic.gb_s)}, one direction`));
  return {nodes: [...wires, ...boxes], bottom: y + 28};
}

function host_node(host) {
  const devices = machine.devices.filter((device) => device.host === host);
  if (devices.length === 0) return "";
  const columns = Math.min(cell.per_row, devices.length), width = Math.max(150, columns * (cell.width + cell.gap) - cell.gap);
  const switched = devices[0].domain >= 0 && machine.domains[devices[0].domain].switched;
  const {places, bottom} = places_of(devices, switched ? 28 : machine.links.length ? 34 : 4);
  const nodes = [...switch_nodes(devices, places, width), ...bridge_nodes(devices, places)];
  const nics = nic_nodes(host, devices, places, switched ? bottom : bottom + 30, width);
  if (!switched) {
    const parts = machine.pcie_gb_s === null ? ["PCIe"] : ["PCIe", `${gb_s(machine.pcie_gb_s)} per slot`];
    for (const device of devices) {
      const x = places.get(device.id).x + cell.width / 2, y = places.get(device.id).y + cell.height;
      nodes.push(shape("line", {x1: x, x2: x, y1: y, y2: bottom + 12, class: "wire"}));
    }
    nodes.push(...nics.nodes, plate(bottom + 12, width, parts, "nic"));
  } else {
    nodes.push(...nics.nodes);
  }
  nodes.push(...devices.map((device) => device_node(device, places.get(device.id).x, places.get(device.id).y)));
  const drawing = picture(width, Math.max(nics.bottom, bottom + (switched ? 4 : 30)) + 2, `Host ${host}`, ...nodes);
  if (columns < cell.per_row) drawing.style.maxWidth = `${width * 1.3}px`;
  return element("div", {class: "host"}, element("h3", {text: `host ${host}`}), drawing);
}

function draw_hosts(box) {
  const last = Math.min(machine.hosts, mesh_view.first + hosts_per_page), nodes = [];
  for (let host = mesh_view.first; host < last; ++host) nodes.push(host_node(host));
  box.replaceChildren(...nodes);
  mark_picked();
}

function mark_picked() {
  document.querySelectorAll("[data-device]").forEach((node) => {
    const device = device_at.get(node.dataset.device);
    node.classList.toggle("picked", device.rank >= 0 && device.data === 0 && device.stage === 0 && device.tensor === 0 &&
      group_rank(device) === mesh_view.picked);
  });
}

function mesh_controls(box, hosts) {
  const axes = Object.keys(axis_names).filter((name) => degree(name) > 1);
  mesh_view.axis = axes.includes("ring") ? "ring" : axes[0] || "ring";
  const controls = element("div", {class: "controls"});
  if (axes.length > 0) controls.append("colour by");
  for (const name of axes)
    controls.append(element("button", {text: `${axis_names[name]} (${degree(name)})`, "aria-pressed": String(name === mesh_view.axis), click: (event) => {
      mesh_view.axis = name;
      controls.querySelectorAll("[aria-pressed]").forEach((b) => b.setAttribute("aria-pressed", String(b === event.target)));
      draw_hosts(hosts);
    }}));
  if (machine.hosts > hosts_per_page) {
    const where = element("span");
    const turn = (by) => element("button", {text: by < 0 ? "previous hosts" : "next hosts", click: () => {
      const pages = Math.ceil(machine.hosts / hosts_per_page), page = mesh_view.first / hosts_per_page;
      mesh_view.first = ((page + by + pages) % pages) * hosts_per_page;
      update();
    }});
    const update = () => {
      where.textContent = `hosts ${mesh_view.first} to ${Math.min(machine.hosts, mesh_view.first + hosts_per_page) - 1} of ${machine.all_hosts}`;
      draw_hosts(hosts);
    };
    controls.append(turn(-1), where, turn(1));
    update();
  }
  box.append(controls);
}

function draw_mesh() {
  const box = by_id("mesh"), hosts = element("div", {class: "hosts"});
  box.append(element("p", {class: "hint", text: "The number is the rank; r is its place on the ring, u in the Ulysses group. " +
    "Point at a device to see its group along the chosen axis; select it to see its schedule below."}));
  mesh_controls(box, hosts);
  box.append(hosts);
  draw_hosts(hosts);
  if (machine.all_hosts > 1 && machine.nics.length > 0) {
    const kinds = {rail: "rail-optimised fabric", fat_tree: "fat-tree fabric", none: "no fabric"};
    const rule = machine.fabric === "rail" ? ": NICs of one index share a leaf switch" : machine.leaves.length ? `: ${machine.leaves.length} leaf switches` : "";
    box.append(element("div", {class: "fabric", text: `${kinds[machine.fabric] || "a fabric of unknown kind"} between ${machine.all_hosts} hosts${rule}`}));
  }
  if (machine.hosts < machine.all_hosts)
    box.append(element("p", {class: "note", text: `The page holds the first ${machine.hosts} of ${machine.all_hosts} hosts.`}));
  const rows = data.plan.best.axes.map((axis) => [axis.axis, `${axis.degree}`, axis.links,
    axis.groups.length ? `${axis.groups[0].slice(0, 16).join(" ")}${axis.groups[0].length > 16 ? " ..." : ""}` : "", axis.transport]);
  if (rows.length) {
    const list = table("Axes and the links they use", ["axis", "degree", "where", "first group", "transport"], rows, [1]);
    list.querySelectorAll("tr").forEach((row) => [3, 4].forEach((i) => row.children[i].classList.add("wide")));
    box.append(list);
  }
}
