// Learned graphs: which step follows which, of each type of agent. Drawn, and as a table.

import { count, fieldName, fieldValue, h, percent, show, svg } from "./dom.js";

const NODE = { width: 132, height: 40, gapX: 84, gapY: 18 };
const SHOWN_EDGES = 80;
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
  const name = String(first(graph, "name", "agent", "agent_type", "type", "id") ?? `graph ${at + 1}`);
  const nodes = nodesOf(graph);
  const edges = edgesOf(graph);
  const facts = Object.entries(graph).filter(([key, value]) => !["nodes", "edges", "name", "agent", "agent_type", "type", "id"].includes(key) && (typeof value !== "object" || value === null));
  const known = new Map(nodes.map((node) => [node.id, node]));
  for (const edge of edges) for (const id of [edge.from, edge.to]) if (!known.has(id)) known.set(id, { id, facts: [] });
  const titleId = `graph-${at}`;
  return h("section", { className: "graph", "aria-labelledby": titleId },
    h("h3", { id: titleId }, name),
    facts.length > 0 ? h("p", { className: "dim" }, facts.map(([key, value]) => `${fieldName(key)} ${fieldValue(key, value)}`).join(" · ")) : null,
    known.size > 0 ? h("div", { className: "scrolls-x", tabIndex: 0, role: "region", "aria-label": `Drawing of ${name}` }, drawing(name, [...known.values()], edges)) : null,
    edges.length > 0 ? table(edges) : null);
}

function nodesOf(graph) {
  const nodes = graph.nodes ?? [];
  const list = Array.isArray(nodes) ? nodes : Object.entries(nodes).map(([id, of]) => ({ id, ...(typeof of === "object" ? of : {}) }));
  return list.map((node) => {
    if (typeof node !== "object") return { id: String(node), facts: [] };
    const id = String(first(node, "id", "name", "tool", "step", "label"));
    const facts = Object.entries(node).filter(([key, value]) => !["id", "name", "tool", "step", "label"].includes(key) && typeof value === "number");
    return { id, facts };
  });
}

function edgesOf(graph) {
  const edges = graph.edges ?? graph.transitions ?? [];
  const list = Array.isArray(edges) ? edges : Object.entries(edges).flatMap(([from, to]) => Object.entries(to).map(([id, p]) => ({ from, to: id, probability: p })));
  return list
    .map((edge) => {
      const [from, to, p] = Array.isArray(edge) ? edge : [first(edge, "from", "source", "after"), first(edge, "to", "target", "next"), first(edge, "probability", "p", "share")];
      return { from: String(from), to: String(to), p, seen: Array.isArray(edge) ? undefined : first(edge, "count", "seen", "n") };
    })
    .sort((a, b) => (b.p ?? 0) - (a.p ?? 0))
    .slice(0, SHOWN_EDGES);
}

/** Columns by the fewest steps from where it begins. */
function columns(nodes, edges) {
  const entered = new Set(edges.filter((edge) => edge.from !== edge.to).map((edge) => edge.to));
  const column = new Map();
  let wave = nodes.filter((node) => !entered.has(node.id)).map((node) => node.id);
  if (wave.length === 0) wave = nodes.slice(0, 1).map((node) => node.id);
  for (let at = 0; wave.length > 0; at += 1) {
    for (const id of wave) column.set(id, at);
    wave = [...new Set(wave.flatMap((id) => edges.filter((edge) => edge.from === id && !column.has(edge.to)).map((edge) => edge.to)))];
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
    places.set(node.id, { x: 12 + at * (NODE.width + NODE.gapX), y: 26 + row * (NODE.height + NODE.gapY + 10) });
  }
  const width = 24 + filled.length * (NODE.width + NODE.gapX);
  const height = 70 + Math.max(...filled.map((rows) => rows ?? 0)) * (NODE.height + NODE.gapY + 10);
  const picture = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${name}: ${nodes.length} steps, ${edges.length} transitions; the table below lists them` });
  picture.append(svg("defs", {}, arrowhead("head", "head"), arrowhead("head-back", "head back")));
  for (const edge of edges) picture.append(...arrow(edge, places));
  for (const node of nodes) {
    const { x, y } = places.get(node.id);
    const label = svg("text", { x: x + 10, y: y + (node.facts.length > 0 ? 17 : 24), class: "node-name" }, short(node.id, 18));
    const group = svg("g", {}, svg("title", {}, node.id), svg("rect", { x, y, width: NODE.width, height: NODE.height, rx: 4, class: "node" }), label);
    if (node.facts.length > 0) group.append(svg("text", { x: x + 10, y: y + 32, class: "node-fact" }, short(node.facts.slice(0, 2).map(([key, value]) => `${fieldName(key)} ${fieldValue(key, value)}`).join(", "), 24)));
    picture.append(group);
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
    path = `M${a.x + 30},${a.y} C${a.x + 20},${a.y - 26} ${a.x + 70},${a.y - 26} ${a.x + 60},${a.y}`;
    at = [a.x + 72, a.y - 12];
  } else if (b.x > a.x) {
    const [x0, x1] = [a.x + NODE.width, b.x];
    path = `M${x0},${a.y + middle} C${x0 + 40},${a.y + middle} ${x1 - 40},${b.y + middle} ${x1 - 5},${b.y + middle}`;
    at = [x1 - 38, b.y + middle - 5 + (a.y === b.y ? 0 : a.y < b.y ? -6 : 8)];
  } else {
    const low = Math.max(a.y, b.y) + NODE.height + 16;
    path = `M${a.x + NODE.width / 2},${a.y + NODE.height} C${a.x + NODE.width / 2},${low} ${b.x + NODE.width / 2},${low} ${b.x + NODE.width / 2},${b.y + NODE.height + 4}`;
    at = [(a.x + b.x + NODE.width) / 2 - 12, low + 10];
  }
  const parts = [svg("path", { d: path, class: b.x > a.x ? "edge" : "edge back", "stroke-width": weight, "marker-end": b.x > a.x ? "url(#head)" : "url(#head-back)" })];
  if (Number.isFinite(edge.p)) parts.push(svg("text", { x: at[0], y: at[1], class: "edge-p" }, percent(edge.p)));
  return parts;
}

function table(edges) {
  return h("details", {}, h("summary", {}, `${edges.length} transitions as a table`),
    h("table", {}, h("thead", {}, h("tr", {}, ...["after", "comes", "probability", "seen"].map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, ...edges.map((edge) => h("tr", {}, h("td", {}, edge.from), h("td", {}, edge.to), h("td", {}, percent(edge.p)), h("td", {}, edge.seen === undefined ? "–" : count(edge.seen)))))));
}
