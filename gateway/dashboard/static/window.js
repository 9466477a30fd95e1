// The window over time: both pressures, admitted sessions and their limit, KV that they are expected to
// hold and may hold; and the changes with their reasons.

import { clock, count, el, h, setText, show, words } from "./dom.js";
import { fitCanvas } from "./paint.js";
import { MOVES } from "./words.js";

const SPAN_S = 600;
const CHART_PX = 138;
const LEFT_PX = 64;
const SHOWN_CHANGES = 12;
const LANES = [
  { name: "pressure", top: 4, height: 42 },
  { name: "sessions", top: 52, height: 32 },
  { name: "KV tokens", top: 90, height: 32 },
];

export class WindowPanel {
  #model;
  #chosen = null;
  #canvas = h("canvas", { role: "img" });
  #changes = h("ol", { className: "changes scrolls", tabIndex: 0, role: "region", "aria-label": "Changes of the window" });
  #empty = h("p", { className: "hint" }, "No limit has been set or moved yet: nothing was overloaded. Pressures appear here once engines report.");
  #colours = null;
  #legend = h("p", { className: "keys-of" },
    h("span", { className: "k-gpu" }, "GPU"), h("span", { className: "k-cpu" }, "tools (CPU)"),
    h("span", { className: "k-bad" }, "overload"), h("span", { className: "k-limit" }, "limit"), h("span", { className: "k-in" }, "in use"), h("span", { className: "k-change" }, "change"));

  constructor(model, onChange) {
    this.#model = model;
    el("window-body").append(this.#canvas, this.#legend, this.#empty, this.#changes);
    el("pool").addEventListener("change", (event) => {
      this.#chosen = event.target.value;
      onChange();
    });
  }

  restyle() {
    this.#colours = null;
  }

  paint(nowS) {
    const ids = [...this.#model.pools.keys()];
    const select = el("pool");
    select.hidden = ids.length < 2;
    show(select, ids.join("\n"), () => ids.map((id) => h("option", { value: id }, id)));
    const pool = this.#model.pools.get(this.#chosen ?? ids[0]) ?? this.#model.pools.get(ids[0]);
    if (pool !== undefined) select.value = pool.id;
    const points = pool?.points ?? [];
    const isBare = points.length === 0;
    this.#canvas.hidden = this.#legend.hidden = isBare;
    this.#empty.hidden = !isBare;
    this.#changes.hidden = isBare;
    setText(el("window-now"), isBare ? "" : sentence(points.at(-1)));
    if (isBare) return;
    this.#canvas.setAttribute("aria-label", `The last ten minutes. Now: ${sentence(points.at(-1))}`);
    this.#chart(points, pool.changes, nowS);
    const last = pool.changes.at(-1);
    show(this.#changes, `${pool.id} ${last?.at_s} ${last?.times}`, () => 
      pool.changes.length > 0 ? pool.changes.slice(-SHOWN_CHANGES).reverse().map(change) : h("li", { className: "dim" }, "The limit has not changed."));
  }

  #chart(points, changes, nowS) {
    const width = el("window-body").clientWidth;
    fitCanvas(this.#canvas, width, CHART_PX);
    this.#colours ??= readColours();
    const ctx = this.#canvas.getContext("2d");
    const colours = this.#colours;
    const x = (atS) => LEFT_PX + ((atS - nowS + SPAN_S) / SPAN_S) * (width - LEFT_PX - 4);
    ctx.clearRect(0, 0, width, CHART_PX);
    ctx.font = "10.5px ui-sans-serif, system-ui, sans-serif";
    let begin = points.findIndex((point) => point.at_s >= nowS - SPAN_S);
    begin = begin < 0 ? points.length - 1 : Math.max(0, begin - 1);
    const seen = points.slice(begin);
    const most = (...names) => Math.max(1e-9, ...seen.flatMap((point) => names.map((name) => point[name] ?? 0)));
    const tops = [Math.max(1.5, Math.min(4, most("gpu", "cpu"))), most("admitted", "sessions") * 1.15, most("demand", "budget") * 1.15];
    LANES.forEach((lane, i) => this.#frame(ctx, lane, tops[i], width, i === 0));
    ctx.strokeStyle = colours.dim;
    for (const at of changes) if (at.at_s > nowS - SPAN_S) line(ctx, x(at.at_s), CHART_PX - 20, x(at.at_s), CHART_PX - 16);
    const plot = (lane, top, name, style) => step(ctx, seen, name, x, (v) => lane.top + lane.height * (1 - Math.min(1, v / top)), nowS, style);
    plot(LANES[1], tops[1], "admitted", { fill: colours.fill, stroke: colours.decode, base: LANES[1].top + LANES[1].height });
    plot(LANES[1], tops[1], "sessions", { stroke: colours.ink });
    plot(LANES[2], tops[2], "demand", { fill: colours.fill, stroke: colours.decode, base: LANES[2].top + LANES[2].height });
    plot(LANES[2], tops[2], "budget", { stroke: colours.ink });
    plot(LANES[0], tops[0], "gpu", { stroke: colours.prefill, width: 1.8 });
    plot(LANES[0], tops[0], "cpu", { stroke: colours.queue, width: 1.8, dash: [5, 3] });
    ctx.fillStyle = colours.dim;
    ctx.textAlign = "center";
    for (let ago = 0; ago <= SPAN_S; ago += width < 420 ? 300 : 120) {
      const at = x(nowS - ago);
      ctx.textAlign = ago === 0 ? "right" : ago === SPAN_S ? "left" : "center";
      ctx.fillText(ago === 0 ? "now" : `−${ago / 60} min`, at, CHART_PX - 5);
    }
    ctx.textAlign = "left";
  }

  #frame(ctx, lane, top, width, isPressure) {
    const { dim, grid, bad } = this.#colours;
    ctx.strokeStyle = grid;
    ctx.lineWidth = 1;
    line(ctx, LEFT_PX, lane.top + lane.height, width - 4, lane.top + lane.height);
    ctx.fillStyle = dim;
    ctx.textAlign = "left";
    ctx.fillText(lane.name, 0, lane.top + 10);
    ctx.fillText(`0 – ${count(top)}`, 0, lane.top + 23, LEFT_PX - 6);
    if (!isPressure) return;
    ctx.strokeStyle = bad;
    ctx.setLineDash([2, 3]);
    line(ctx, LEFT_PX, lane.top + lane.height * (1 - 1 / top), width - 4, lane.top + lane.height * (1 - 1 / top));
    ctx.setLineDash([]);
  }
}

function sentence(point) {
  const parts = [];
  if (Number.isFinite(point.admitted)) parts.push(`${count(point.admitted)} admitted${point.sessions === null ? "" : `, limit ${Math.floor(point.sessions)}`}`);
  if (point.waiting > 0) parts.push(`${count(point.waiting)} wait`);
  if (Number.isFinite(point.gpu)) parts.push(`GPU ${point.gpu.toFixed(2)}`);
  if (Number.isFinite(point.cpu)) parts.push(`CPU ${point.cpu.toFixed(2)}`);
  return parts.join(" · ");
}

function change(at) {
  return h("li", {},
    h("time", {}, clock(at.at_s)),
    h("span", { className: "why", title: MOVES[at.reason] ?? words(at.reason) }, `${words(at.reason)}${at.times > 1 ? ` ×${at.times}` : ""}`),
    h("span", { className: "dim" }, `sessions ${at.sessions === null ? "unlimited" : Math.floor(at.sessions)}, KV tokens ${at.kv_budget === null ? "unlimited" : count(at.kv_budget)}${Number.isFinite(at.level) ? `, ${Math.floor(at.level)} for one tenant` : ""}`),
  );
}

function readColours() {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(["ink", "dim", "rule", "grid", "bad", "decode", "prefill", "queue", "fill"].map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

function line(ctx, x0, y0, x1, y1) {
  ctx.beginPath();
  ctx.moveTo(Math.round(x0) + 0.5, Math.round(y0) + 0.5);
  ctx.lineTo(Math.round(x1) + 0.5, Math.round(y1) + 0.5);
  ctx.stroke();
}

/** A value holds until the next one; where there is none, there is no line. */
function step(ctx, points, name, x, y, nowS, { stroke, width = 1.3, dash = [], fill, base }) {
  ctx.strokeStyle = stroke;
  ctx.lineWidth = width;
  ctx.setLineDash(dash);
  ctx.beginPath();
  let isDown = false;
  const area = [];
  points.forEach((point, i) => {
    const value = point[name];
    const from = Math.max(LEFT_PX, x(point.at_s));
    const to = Math.max(LEFT_PX, x(points[i + 1]?.at_s ?? nowS));
    if (!Number.isFinite(value)) {
      isDown = false;
      return;
    }
    if (isDown) ctx.lineTo(from, y(value));
    else ctx.moveTo(from, y(value));
    ctx.lineTo(to, y(value));
    area.push([from, to, y(value)]);
    isDown = true;
  });
  ctx.stroke();
  ctx.setLineDash([]);
  if (fill === undefined) return;
  ctx.fillStyle = fill;
  for (const [from, to, top] of area) ctx.fillRect(from, top, to - from, base - top);
}
