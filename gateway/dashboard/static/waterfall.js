// The waterfall: rows of sessions over time. Labels are elements, and only those in view exist; bars are
// painted on one canvas. One row has the keyboard's focus, and one of its turns.

import { clock, costOf, count, duration, h, percent, plural, setText, shownTenant } from "./dom.js";
import { ROW_PX, fitCanvas, paintAxis, paintBars, readPalette } from "./paint.js";
import { hitOfRow, listRows, phaseOfRow } from "./rows.js";
import { phaseOf } from "./turns.js";
import { EDGES, PHASES, REFUSALS, WAITS } from "./words.js";

const LIST_EVERY_MS = 300;
const LABELS_EVERY_MS = 200;
const SPARE_ROWS = 4;
const AXIS_PX = 24;
const TOUCH_PX = 5;

export class Waterfall {
  view = { order: "newest", show: "all", filter: "", folded: new Set() };
  rows = [];
  openTurn = null;
  #model;
  #timeline;
  #parts;
  #on;
  #elements = new Map();
  #active = { key: null, turn: null };
  #listed = { of: -1, atMs: -Infinity, isStale: true, isMoved: false };
  #labelsMs = -Infinity;
  #palette = null;

  /** `parts`: root, rows, rowsIn, bars, axis, tip; `on`: open(turn), stop(session), announce(text), moved(), changed(). */
  constructor(model, timeline, parts, on) {
    this.#model = model;
    this.#timeline = timeline;
    this.#parts = parts;
    this.#on = on;
    parts.rows.addEventListener("scroll", () => on.changed(), { passive: true });
    parts.rows.addEventListener("keydown", (event) => this.#key(event));
    parts.rows.addEventListener("focusin", (event) => this.#focused(event));
    new ResizeObserver(() => on.changed()).observe(parts.rows);
    this.#listenToPointer();
  }

  restyle() {
    this.#palette = null;
  }

  relist() {
    this.#listed.isStale = true;
  }

  /** Whether what happens lately changes a pixel: how long a frame may be put off, in ms. */
  get patienceMs() {
    return (this.#timeline.spanS / Math.max(1, this.#timeline.width)) * 1000;
  }

  paint(nowMs, nowS) {
    const { rows: scroller, bars, axis, rowsIn, root } = this.#parts;
    if (this.#listed.isStale || (this.#listedBy !== this.#listed.of && nowMs - this.#listed.atMs > LIST_EVERY_MS)) this.#list(nowMs);
    const labelPx = rowsIn.firstElementChild === null ? 0 : this.#labelPx();
    const height = scroller.clientHeight;
    const width = Math.max(40, scroller.clientWidth - (labelPx || this.#labelPx()));
    this.#timeline.width = width;
    this.#timeline.follow(nowS);
    const resized = fitCanvas(bars, width, height) | fitCanvas(axis, width, AXIS_PX);
    this.#palette ??= readPalette(bars.getContext("2d"));
    const top = scroller.scrollTop;
    const first = Math.max(0, Math.floor(top / ROW_PX) - SPARE_ROWS);
    const last = Math.min(this.rows.length, Math.ceil((top + height) / ROW_PX) + SPARE_ROWS);
    this.#showLabels(first, last, nowMs, resized);
    const inView = this.rows.slice(first, last);
    for (let i = 0; i < inView.length; i += 1) inView[i].y = (first + i) * ROW_PX - top;
    for (const row of inView) row.spawnY = row.depth > 0 ? this.#parentY(row, top) : null;
    paintBars(bars.getContext("2d"), this.#palette, this.#timeline, inView, {
      height, nowS, activeTurn: root.contains(document.activeElement) ? this.#active.turn : null, openTurn: this.openTurn,
    });
    paintAxis(axis.getContext("2d"), this.#palette, this.#timeline, AXIS_PX, nowS);
  }

  /** What the list follows: how sessions are, too, where that says which are listed, or in which order. */
  get #listedBy() {
    const { order, show, filter } = this.view;
    return show === "all" && filter === "" && order !== "recent" ? this.#model.shape : this.#model.version;
  }

  get rowsInView() {
    const { scrollTop, clientHeight } = this.#parts.rows;
    return this.rows.slice(Math.floor(scrollTop / ROW_PX), Math.ceil((scrollTop + clientHeight) / ROW_PX));
  }

  focusRow() {
    const row = this.#activeRow() ?? this.rows[0];
    if (row !== undefined) this.#activate(row, this.#active.turn, { isFocused: true });
  }

  #labelPx() {
    return parseFloat(getComputedStyle(this.#parts.root).getPropertyValue("--label-px")) || 120;
  }

  #parentY(row, top) {
    for (let i = row.index - 1; i >= 0; i -= 1) if (this.rows[i].depth < row.depth) return i * ROW_PX - top;
    return null;
  }

  #list(nowMs) {
    const scroller = this.#parts.rows;
    const anchor = this.#anchor(scroller.scrollTop);
    const { rows, sessions } = listRows(this.#model, this.view);
    const hasTenant = this.#model.tenants.size > 1;
    rows.forEach((row, index) => Object.assign(row, { index, hasTenant, prices: this.#model.snapshot?.prices, y: 0, spawnY: null }));
    this.rows = rows;
    this.#listed = { of: this.#listedBy, atMs: nowMs, isStale: false, isMoved: true };
    this.#labelsMs = -Infinity;
    this.#parts.rowsIn.style.height = `${rows.length * ROW_PX}px`;
    scroller.setAttribute("aria-rowcount", String(rows.length));
    if (anchor !== null) {
      const row = rows.find((one) => one.key === anchor.key);
      if (row !== undefined) scroller.scrollTop = row.index * ROW_PX - anchor.offset;
    }
    this.#on.listed({ rows: rows.length, sessions });
  }

  /** The row that stays where it is when others appear above: the focused one, else the topmost once scrolled. */
  #anchor(top) {
    const isFocused = this.#parts.rows.contains(document.activeElement);
    const active = isFocused ? this.#activeRow() : undefined;
    if (active !== undefined) return { key: active.key, offset: active.index * ROW_PX - top };
    if (top < ROW_PX) return null;
    const row = this.rows[Math.floor(top / ROW_PX)];
    return row === undefined ? null : { key: row.key, offset: row.index * ROW_PX - top };
  }

  #showLabels(first, last, nowMs, resized) {
    const wanted = new Map();
    for (let i = first; i < last; i += 1) wanted.set(this.rows[i].key, this.rows[i]);
    const active = this.#activeRow();
    if (active !== undefined) wanted.set(active.key, active); // the focus survives scrolling away
    let isNew = false;
    const isDue = resized || nowMs - this.#labelsMs > LABELS_EVERY_MS;
    for (const [key, parts] of this.#elements) {
      if (wanted.has(key)) continue;
      parts.row.remove();
      this.#elements.delete(key);
    }
    for (const [key, row] of wanted) {
      let parts = this.#elements.get(key);
      if (parts === undefined) {
        parts = makeLabel(key);
        this.#elements.set(key, parts);
        isNew = true;
        fillLabel(parts, row, this.#model.nowS);
      } else if (isDue) fillLabel(parts, row, this.#model.nowS);
      const isActive = key === this.#active.key || (active === undefined && row.index === first);
      parts.row.tabIndex = isActive ? 0 : -1;
      const top = `translateY(${row.index * ROW_PX}px)`;
      if (parts.row.style.transform !== top) parts.row.style.transform = top;
    }
    if (isDue) this.#labelsMs = nowMs;
    if (isNew || this.#listed.isMoved) this.#arrange([...wanted.values()]);
  }

  /** Elements stand in the order of their rows, for readers of the screen. The focused one must not be moved. */
  #arrange(rows) {
    this.#listed.isMoved = false;
    const inOrder = rows.sort((a, b) => a.index - b.index).map((row) => this.#elements.get(row.key).row);
    const focused = inOrder.find((element) => element === document.activeElement) ?? null;
    const { rowsIn } = this.#parts;
    let isBehind = focused === null;
    for (const element of inOrder) {
      if (element === focused) isBehind = true;
      else if (isBehind) rowsIn.append(element);
      else rowsIn.insertBefore(element, focused);
    }
  }

  #activeRow() {
    return this.#active.key === null ? undefined : this.rows.find((row) => row.key === this.#active.key);
  }

  #activate(row, turn, { isFocused }) {
    this.#active = { key: row.key, turn: turn !== null && turn.thread === row.thread ? turn : null };
    if (isFocused) {
      const scroller = this.#parts.rows;
      const top = row.index * ROW_PX;
      if (top < scroller.scrollTop) scroller.scrollTop = top;
      else if (top + ROW_PX > scroller.scrollTop + scroller.clientHeight) scroller.scrollTop = top + ROW_PX - scroller.clientHeight;
      this.#showLabels(Math.floor(scroller.scrollTop / ROW_PX), Math.min(this.rows.length, Math.ceil((scroller.scrollTop + scroller.clientHeight) / ROW_PX)), -Infinity, true);
      this.#elements.get(row.key)?.row.focus({ preventScroll: true });
    }
    if (this.#active.turn !== null) {
      this.#timeline.reveal(this.#active.turn.arriveS, this.#active.turn.overS ?? this.#model.nowS);
      this.#on.announce(describe(this.#active.turn));
      this.#on.moved();
    }
    this.#on.changed();
  }

  #focused(event) {
    const key = event.target.closest("[role=row]")?.dataset.key;
    if (key !== undefined && key !== this.#active.key) this.#active = { key, turn: null };
    this.#on.changed();
  }

  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
    const row = this.#activeRow() ?? this.rows[0];
    if (row === undefined) return;
    const page = Math.max(1, Math.floor(this.#parts.rows.clientHeight / ROW_PX) - 1);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (event.key in steps) {
      const index = Math.min(this.rows.length - 1, Math.max(0, row.index + steps[event.key]));
      this.#activate(this.rows[index], null, { isFocused: true });
    } else if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
      this.#step(row, event.key === "ArrowLeft" ? -1 : 1);
    } else if (event.key === "Enter") {
      const turn = this.#active.turn ?? row.thread?.turns.at(-1);
      if (turn !== undefined) {
        this.#activate(row, turn, { isFocused: true });
        this.#on.open(turn, { isByKey: true });
      }
    } else if (event.key === " ") this.#fold(row);
    else if (event.key.toLowerCase() === "x" && row.session.endedS === null) this.#on.stop(row.session);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  #step(row, by) {
    const turns = row.thread?.turns ?? [];
    if (turns.length === 0) return;
    const at = turns.indexOf(this.#active.turn);
    const next = at < 0 ? turns.length - 1 : Math.min(turns.length - 1, Math.max(0, at + by));
    this.#activate(row, turns[next], { isFocused: true });
  }

  #fold(row) {
    if (row.hidden === 0) return;
    const { folded } = this.view;
    if (!folded.delete(row.session.id)) folded.add(row.session.id);
    this.relist();
    this.#on.changed();
  }

  // The pointer: a drag pans, a click opens, the wheel scrolls, and zooms with Ctrl.

  #listenToPointer() {
    const { rows } = this.#parts;
    const pointers = new Map();
    let dragged = 0;
    rows.addEventListener("pointerdown", (event) => {
      dragged = 0;
      if (this.#xOf(event) >= 0) pointers.set(event.pointerId, event.clientX);
    });
    rows.addEventListener("pointermove", (event) => {
      const last = pointers.get(event.pointerId);
      if (last === undefined) return this.#hover(event);
      const byPx = event.clientX - last;
      if (pointers.size === 1) {
        dragged += Math.abs(byPx);
        if (dragged <= TOUCH_PX) return;
        this.#timeline.pan(-byPx);
      } else {
        const others = [...pointers].filter(([id]) => id !== event.pointerId).map(([, x]) => x);
        const before = Math.max(20, Math.abs(last - others[0]));
        this.#timeline.zoom(before / Math.max(20, Math.abs(event.clientX - others[0])), this.#xOf(event), this.#model.nowS);
        dragged = Infinity;
      }
      pointers.set(event.pointerId, event.clientX);
      this.#parts.tip.hidden = true;
      this.#on.moved();
    });
    for (const name of ["pointerup", "pointercancel", "pointerleave"]) rows.addEventListener(name, (event) => pointers.delete(event.pointerId));
    rows.addEventListener("pointerleave", () => (this.#parts.tip.hidden = true));
    rows.addEventListener("click", (event) => {
      if (dragged > TOUCH_PX) return;
      const { row, turn } = this.#hit(event);
      if (row === undefined) return;
      if (event.target.closest(".fold")) return this.#fold(row);
      if (event.target.closest(".stop")) return this.#on.stop(row.session);
      this.#activate(row, turn, { isFocused: true });
      if (turn !== null) this.#on.open(turn, { isByKey: false });
    });
    rows.addEventListener("wheel", (event) => {
      if (event.ctrlKey || event.metaKey) this.#timeline.zoom(Math.exp(event.deltaY / 300), this.#xOf(event), this.#model.nowS);
      else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.#timeline.pan(event.deltaX || event.deltaY);
      else return;
      event.preventDefault();
      this.#on.moved();
    }, { passive: false });
  }

  #xOf(event) {
    return event.clientX - this.#parts.bars.getBoundingClientRect().left;
  }

  #hit(event) {
    const { rows } = this.#parts;
    const row = this.rows[Math.floor((event.clientY - rows.getBoundingClientRect().top + rows.scrollTop) / ROW_PX)];
    const x = this.#xOf(event);
    if (row === undefined || row.thread === null || x < 0) return { row, turn: null };
    let best = null;
    for (const turn of row.thread.turns) {
      const from = this.#timeline.x(turn.arriveS) - 3;
      const to = this.#timeline.x(turn.overS ?? this.#model.nowS) + 3;
      if (x >= from && x <= to) best = turn;
    }
    return { row, turn: best };
  }

  #hover(event) {
    const { tip, root } = this.#parts;
    const { turn } = this.#hit(event);
    tip.hidden = turn === null;
    if (turn === null) return;
    setText(tip, describe(turn));
    const box = root.getBoundingClientRect();
    const left = Math.min(event.clientX - box.left + 12, box.width - tip.offsetWidth - 8);
    const below = event.clientY - box.top + 18;
    tip.style.left = `${Math.max(4, left)}px`;
    tip.style.top = `${below + tip.offsetHeight > box.height ? below - tip.offsetHeight - 30 : below}px`;
  }
}

function makeLabel(key) {
  const fold = h("span", { className: "fold", "aria-hidden": "true" });
  const name = h("span", { className: "name" });
  const kind = h("span", { className: "kind" });
  const phase = h("span", { className: "phase" });
  const hit = h("span", { className: "hit" });
  const stop = h("button", { type: "button", className: "stop", tabIndex: -1, title: "Stop this session (X)", hidden: true }, "Stop");
  const summary = h("span", { className: "sr" });
  const row = h(
    "div", { className: "row", role: "row", tabIndex: -1, dataset: { key } },
    h("div", { className: "label", role: "rowheader" }, fold, name, kind, phase, hit, stop),
    h("div", { className: "cell", role: "gridcell" }, summary),
  );
  return { row, fold, name, kind, phase, hit, stop, summary };
}

function fillLabel(parts, row, nowS) {
  const phase = phaseOfRow(row, nowS);
  const { session } = row;
  const hit = hitOfRow(row);
  setText(parts.name, row.name);
  setText(parts.kind, row.depth > 0 && row.key !== session.id ? row.kind : aboutOf(row, nowS));
  parts.kind.title = [parts.kind.textContent, session.view?.first_words].filter(Boolean).join("\n");
  setText(parts.phase, phase);
  setText(parts.hit, hit === null ? "" : percent(hit));
  setText(parts.fold, row.hidden === 0 ? "" : row.isFolded ? `▸${row.hidden}` : "▾");
  if (parts.phase.dataset.phase !== phase) parts.phase.dataset.phase = phase;
  parts.stop.hidden = session.endedS !== null || row.key !== session.id;
  parts.row.dataset.depth = String(Math.min(row.depth, 4));
  parts.row.setAttribute("aria-level", String(row.depth + 1));
  parts.row.setAttribute("aria-rowindex", String(row.index + 1));
  if (row.hidden > 0) parts.row.setAttribute("aria-expanded", String(!row.isFolded));
  else parts.row.removeAttribute("aria-expanded");
  const turns = row.thread?.turns ?? [];
  setText(parts.summary, `${session.turnCount} ${session.turnCount === 1 ? "turn" : "turns"}${turns.length > 0 ? `; the last one: ${describe(turns.at(-1))}` : ""}`);
}

const WORKS = ["queue", "prefill", "decode"];

const aboutOf = ({ kind, session, hasTenant, prices }, nowS) =>
  [kind, plural(session.turnCount, "turn"), duration((WORKS.includes(phaseOf(session)) ? nowS : session.lastS) - session.startedS), quoted(session.view?.first_words), ...spent(session, prices), hasTenant ? shownTenant(session.tenant) : ""].filter(Boolean).join(" · ");

const quoted = (words) => (words ? `“${words.length > 40 ? `${words.slice(0, 39)}…` : words}”` : "");

/** With prices the cost of its turns that are known, and the tokens of all. */
function spent(session, prices) {
  const turns = [...session.threads.values()].flatMap((thread) => thread.turns);
  const cost = costOf(turns.map((turn) => ({ model: turn.model, ...turn.usage })), prices);
  const of = turns.length < session.turnCount ? ` of the last ${plural(turns.length, "turn")}` : "";
  return [cost === null ? "" : `cost ${cost}${of}`, session.tokens > 0 ? `${count(session.tokens)} tokens` : ""];
}

/** A turn in one line. */
function describe(turn) {
  const parts = [`turn ${turn.number ?? "?"}, ${clock(turn.arriveS)}`];
  if (turn.edge !== null && turn.edge !== undefined && turn.edge !== "continues") parts.push(EDGES[turn.edge] ?? turn.edge);
  if (turn.refused) return [...parts, `refused: ${REFUSALS[turn.refused] ?? turn.refused}`].join(" · ");
  const queuedS = turn.submitS === null ? null : turn.submitS - turn.arriveS;
  if (turn.submitS === null) parts.push(turn.isOver ? "ended in the queue" : `waits: ${WAITS[turn.waits.at(-1)?.reason] ?? "not decided yet"}`);
  else {
    if (queuedS > 0.001) parts.push(`queue ${duration(queuedS)}`);
    const [decodeS, name] = [turn.decodeS, turn.isStreamed ? "decode" : "generating (not streamed)"];
    const promptS = decodeS ?? turn.overS;
    if (turn.isStreamed) parts.push(promptS === null ? "prefill" : `prefill ${duration(promptS - turn.submitS)}`);
    if (decodeS !== null) parts.push(turn.overS === null ? name : `${name} ${duration(turn.overS - decodeS)}`);
    parts.push(`on ${turn.replica}`);
  }
  if (turn.hit !== null) parts.push(`cache hit ${percent(turn.hit.share)}${turn.hit.isExpected ? " expected" : ""}`);
  if (turn.outcome !== null && turn.outcome !== "finished") parts.push(turn.outcome.replaceAll("_", " "));
  return parts.join(" · ");
}

/** What the phases look like, into a list. */
export function showLegend(list) {
  list.append(...PHASES.map(({ id, name, says }) => h("li", {}, h("i", { className: `swatch s-${id}`, "aria-hidden": "true" }), h("b", {}, name), h("span", { className: "says" }, ` ${says}`))),
    h("li", {}, h("i", { className: "swatch s-hit", "aria-hidden": "true" }), h("b", {}, "cache hit")),
    h("li", {}, h("i", { className: "swatch s-trouble", "aria-hidden": "true" }, "×"), h("b", {}, "refused or failed")));
}
