// Learned graphs: which step follows which, of each type of agent. Drawn, and as a table.

import { count, duration, h, percent, show, svg } from "./dom.js";

const NODE = { width: 140, height: 40, gapX: 60, gapY: 36 };
const TOP_PX = 62;
const DRAWN_NODES = 14;
const DRAWN_FROM = 0.05;
/** Edges less likely than that are in the table alone, */
const TOLD_FROM = 0.15;
/** and the figures of those less likely than that. */
const LIKELY = 0.2;
const first = (object, ...names) => names.map((name) => object[name]).find((value) => value !== undefined && value !== null);

export class GraphsView {
  #root;
  #control;
  #state = { kind: "loading" };

  constructor(root, control) {
    this.#root = root;
    this.#control = control;
  }

  async load() {
    try {
      const answer = await this.#control.json("graphs");
      this.#state = { kind: "loaded", graphs: Array.isArray(answer) ? answer : answer.graphs ?? [] };
    } catch (error) {
      this.#state = { kind: "failed", why: error.status === 404 ? "this gateway does not offer them" : error.message };
    }
    this.paint();
  }

  paint() {
    const { kind, graphs, why } = this.#state;
    show(this.#root, JSON.stringify(this.#state), () => {
      if (kind === "loading") return h("p", { className: "hint" }, "Loading …");
      if (kind === "failed") return h("p", { className: "hint" }, `Graphs could not be read: ${why}.`);
      if (graphs.length === 0) return h("p", { className: "hint" }, "No graph is learned yet. The gateway draws one for each type of agent once enough of its runs were seen; let some agents finish.");
      return graphs.map(section);
    });
  }
}

function section(graph, at) {
  const name = String(first(graph, "name", "agent") ?? `Type ${graph.id ?? at + 1}`);
  const nodes = new Map((graph.nodes ?? []).map((node) => [String(node.id), { ...node, id: String(node.id), label: String(node.label ?? node.id) }]));
  const edges = (graph.edges ?? []).map((edge) => ({ from: String(edge.from), to: String(edge.to), p: edge.probability, seen: edge.count }));
  for (const edge of edges) for (const id of [edge.from, edge.to]) if (!nodes.has(id)) nodes.set(id, { id, label: id });
  const facts = [`${count(graph.tasks)} conversations`, `${count(graph.steps)} steps`, graph.is_known === false ? "not enough yet to act on" : "ends are acted on"];
  const titleId = `graph-${at}`;
  return h("section", { className: "graph", "aria-labelledby": titleId },
    h("h3", { id: titleId }, name),
    h("p", { className: "dim" }, facts.join(" · ")),
    nodes.size > 0 ? h("div", { className: "scrolls-x", tabIndex: 0, role: "region", "aria-label": `Drawing of ${name}` }, drawing(name, ...commonest(nodes, edges))) : null,
    edges.length > 0 ? table(nodes, edges) : null);
}

/** What a drawing has room for; the table has all. */
function commonest(nodes, edges) {
  const kept = [...nodes.values()].sort((a, b) => (b.visits ?? 0) - (a.visits ?? 0)).slice(0, DRAWN_NODES);
  const ids = new Set(kept.map((node) => node.id));
  return [kept, edges.filter((edge) => ids.has(edge.from) && ids.has(edge.to) && (edge.p ?? 1) >= DRAWN_FROM)];
}

/** Columns by the fewest likely steps from where it begins; what is reached by unlikely ones alone stands behind. */
function columns(nodes, edges) {
  const entered = new Set(edges.filter((edge) => edge.from !== edge.to).map((edge) => edge.to));
  const begins = nodes.filter((node) => !entered.has(node.id)).map((node) => node.id);
  const column = new Map();
  let wave = begins.length > 0 ? begins : nodes.slice(0, 1).map((node) => node.id);
  for (let at = 0; wave.length > 0; at += 1) {
    for (const id of wave) column.set(id, at);
    const next = (from, least) => edges.filter((edge) => from(edge.from) && !column.has(edge.to) && (edge.p ?? 1) >= least).map((edge) => edge.to);
    const likely = next((id) => wave.includes(id), LIKELY);
    wave = [...new Set(likely.length > 0 ? likely : next((id) => column.has(id), 0))];
  }
  for (const node of nodes) if (!column.has(node.id)) column.set(node.id, 0);
  return column;
}

function drawing(name, nodes, edges) {
  const column = columns(nodes, edges);
  const filled = [];
  const places = new Map();
  for (const node of nodes) {
    const at = column.get(node.id);
    const row = (filled[at] = (filled[at] ?? 0) + 1) - 1;
    places.set(node.id, { x: 12 + at * (NODE.width + NODE.gapX), y: TOP_PX + row * (NODE.height + NODE.gapY) });
  }
  const width = 24 + filled.length * (NODE.width + NODE.gapX);
  const height = TOP_PX + 34 + Math.max(...Array.from(filled, (rows) => rows ?? 0)) * (NODE.height + NODE.gapY);
  const picture = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${name}: ${nodes.length} steps, ${edges.length} transitions; the table below lists them` });
  picture.append(svg("defs", {}, arrowhead("head", "head"), arrowhead("head-back", "head back")));
  for (const edge of edges) picture.append(...arrow(edge, places));
  for (const node of nodes) {
    const { x, y } = places.get(node.id);
    const told = [Number.isFinite(node.visits) ? `${count(node.visits)}×` : null, Number.isFinite(node.pause_p50_s) ? `then ${duration(node.pause_p50_s)}` : null].filter(Boolean).join(" · ");
    const more = Number.isFinite(node.pause_p95_s) ? `, 95 % within ${duration(node.pause_p95_s)}` : "";
    picture.append(svg("g", {}, svg("title", {}, `${node.label}: ${told}${more}`), svg("rect", { x, y, width: NODE.width, height: NODE.height, rx: 4, class: "node" }),
      svg("text", { x: x + 10, y: y + (told === "" ? 24 : 17), class: "node-name" }, short(node.label, 17)), svg("text", { x: x + 10, y: y + 32, class: "node-fact" }, told)));
  }
  return picture;
}

function arrowhead(id, kind) {
  const shape = { id, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 8, markerHeight: 8, markerUnits: "userSpaceOnUse", orient: "auto" };
  return svg("marker", shape, svg("path", { d: "M0,0 L8,4 L0,8 z", class: kind }));
}

const short = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

function arrow(edge, places) {
  const [a, b] = [places.get(edge.from), places.get(edge.to)];
  const weight = 0.8 + 2.6 * (edge.p ?? 0.3);
  const middle = NODE.height / 2;
  let path;
  let at;
  if (edge.from === edge.to) {
    path = `M${a.x + 50},${a.y} C${a.x + 40},${a.y - 24} ${a.x + 90},${a.y - 24} ${a.x + 80},${a.y - 2}`;
    at = [a.x + 89, a.y - 8];
  } else if (b.x > a.x + NODE.width + NODE.gapX) {
    const top = Math.min(a.y, b.y) - 26;
    path = `M${a.x + NODE.width - 24},${a.y} C${a.x + NODE.width},${top} ${b.x},${top} ${b.x + 24},${b.y - 4}`;
    at = [(a.x + NODE.width + b.x) / 2 - 10, top + 3];
  } else if (b.x > a.x) {
    const [x0, x1] = [a.x + NODE.width, b.x];
    path = `M${x0},${a.y + middle} C${x0 + 30},${a.y + middle} ${x1 - 30},${b.y + middle} ${x1 - 4},${b.y + middle}`;
    at = [(x0 + x1) / 2 - 12, (a.y + b.y) / 2 + middle - 5];
  } else if (b.x === a.x) {
    // Side by side: down on the right, up on the left; the table has the figures.
    const isDown = b.y > a.y;
    const x = a.x + (isDown ? NODE.width : 0);
    const out = x + (isDown ? 1 : -1) * Math.min(26, 8 + Math.abs(b.y - a.y) / 12);
    path = `M${x},${a.y + middle + 8} C${out},${a.y + middle + 8} ${out},${b.y + middle - 8} ${x + (isDown ? 3 : -3)},${b.y + middle - 8}`;
    at = null;
  } else {
    const low = Math.max(a.y, b.y) + NODE.height + 16;
    path = `M${a.x + NODE.width / 2},${a.y + NODE.height} C${a.x + NODE.width / 2},${low} ${b.x + NODE.width / 2},${low} ${b.x + NODE.width / 2},${b.y + NODE.height + 4}`;
    at = [(a.x + b.x + NODE.width) / 2 - 12, low + 10];
  }
  const parts = [svg("path", { d: path, class: b.x > a.x ? "edge" : "edge back", "stroke-width": weight, "marker-end": b.x > a.x ? "url(#head)" : "url(#head-back)" })];
  if (edge.p >= TOLD_FROM && at !== null) parts.push(svg("text", { x: at[0], y: at[1], class: "edge-p" }, percent(edge.p)));
  return parts;
}

function table(nodes, edges) {
  const label = (id) => nodes.get(id).label;
  return h("details", {}, h("summary", {}, `${edges.length} transitions as a table`),
    h("table", {}, h("thead", {}, h("tr", {}, ...["after", "comes", "probability", "seen"].map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, ...edges.map((edge) => h("tr", {}, h("td", {}, label(edge.from)), h("td", {}, label(edge.to)), h("td", {}, percent(edge.p)), h("td", {}, edge.seen === undefined ? "–" : count(edge.seen)))))));
}
