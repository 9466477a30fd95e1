// A session's own page: what it is, whom it belongs to, its waterfall, each decision, the steps that it took.

import { cachedShare, clock, costOf, count, duration, h, percent, plural, shownTenant, words } from "./dom.js";
import { Model } from "./model.js";
import { KeyRequired, reasonOf } from "./stream.js";
import { Timeline } from "./timeline.js";
import { Waterfall } from "./waterfall.js";
import { EDGES, PLACES, REFUSALS, THREADS, WAITS, evidence } from "./words.js";

const MAX_CHILDREN = 12;
/** Sub-agents whose turns are fetched, too. */
const MAX_STEPS = 300;

export const hrefOf = (id) => `#session=${encodeURIComponent(id)}`;

export class SessionPage {
  waterfall = null;
  #root;
  #control;
  #on;
  #id = null;
  #model = null;
  #timeline = new Timeline();

  /** `on`: open(turn, how), announce(text), key(), changed(), and what comes of it: prices(). */
  constructor(root, control, on) {
    this.#root = root;
    this.#control = control;
    this.#on = on;
  }

  get model() {
    return this.#model;
  }

  async load(id) {
    this.#id = id;
    this.waterfall = null;
    this.#root.replaceChildren(h("p", { className: "hint", role: "status" }, "Asking the gateway …"));
    let page;
    let prices;
    let children = [];
    try {
      [page, prices] = await Promise.all([this.#control.json(`sessions/${encodeURIComponent(id)}`), this.#on.prices()]);
      const below = page.kin.filter((row) => row.parent === id).slice(0, MAX_CHILDREN);
      children = await Promise.all(below.map((row) => this.#control.json(`sessions/${encodeURIComponent(row.session)}`).catch(() => null)));
    } catch (error) {
      if (error instanceof KeyRequired) return this.#on.key();
      if (this.#id !== id) return;
      const why = error.status === 404 ? "Unknown or expired session id." : `The gateway did not answer (${reasonOf(error)}).`;
      const again = h("button", { type: "button" }, "Ask again");
      again.addEventListener("click", () => this.load(id));
      return this.#root.replaceChildren(h("p", { className: "hint warn", role: "alert" }, why), again);
    }
    if (this.#id !== id) return;
    this.#show(id, page, children.filter((child) => child !== null), prices);
  }

  leave() {
    this.#id = this.waterfall = null;
  }

  paint(nowMs) {
    if (this.waterfall !== null) this.waterfall.paint(nowMs, this.#model.nowS);
  }

  /** So that all of it is in view. */
  fit() {
    const turns = [...this.#model.turns.values()];
    const firstS = Math.min(...turns.map((turn) => turn.arriveS));
    this.#timeline.isFollowing = false;
    if (turns.length > 0) this.#timeline.fit(firstS, this.#model.nowS);
    this.#on.changed();
  }

  zoom(factor) {
    this.#timeline.zoom(factor, this.#timeline.width / 2, this.#model.nowS);
    this.#on.changed();
  }

  pan(share) {
    this.#timeline.pan(share * this.#timeline.width);
    this.#on.changed();
  }

  #show(id, page, children, prices) {
    const model = this.#model = new Model();
    for (const each of [page, ...children]) take(model, each);
    const session = model.sessions.get(id);
    const row = page.session;
    const title = h("h2", { tabIndex: -1 }, "Session ", h("code", {}, id));
    const parts = this.#waterfallParts(id);
    this.#root.replaceChildren(
      h("header", { className: "session-head" }, title, h("p", {}, h("a", { href: hrefOf(id) }, "Link to this page"))),
      h("div", { className: "columns" },
        section("What it is", facts(row, session, prices)),
        section("Lineage", lineage(id, row, page.kin, session))),
      section("Over time", h("div", {}, parts.tools, parts.root)),
      section(`Decisions${page.is_cut ? " of its newest turns" : ""}`, this.#decisions(session)),
      section("Steps", steps(session)),
    );
    this.waterfall = new Waterfall(model, this.#timeline, parts, {
      open: this.#on.open, announce: this.#on.announce, moved: this.#on.changed, changed: this.#on.changed, listed() {}, stop() {},
    });
    this.fit();
    title.focus({ preventScroll: true });
    this.#on.announce(`Session ${id}, ${row?.turns ?? session?.turnCount ?? 0} turns`);
  }

  #waterfallParts(id) {
    const bars = h("canvas", { className: "bars", "aria-hidden": "true" });
    const axis = h("canvas", { className: "axis", "aria-hidden": "true" });
    const rowsIn = h("div", { className: "rows-in", role: "presentation" });
    const rows = h("div", { className: "rows", role: "treegrid", "aria-label": `Conversations of ${id} over time`, "aria-describedby": "rows-how", tabIndex: -1 }, rowsIn);
    const tip = h("div", { className: "tip", "aria-hidden": "true", hidden: true });
    const button = (name, label, does) => {
      const made = h("button", { type: "button", "aria-label": label }, name);
      made.addEventListener("click", does);
      return made;
    };
    const tools = h("div", { className: "group", role: "toolbar", "aria-label": "What the waterfall shows" },
      button("−", "Zoom out", () => this.zoom(1.6)), button("+", "Zoom in", () => this.zoom(1 / 1.6)), button("Fit", "Fit all of it", () => this.fit()));
    return { root: h("div", { className: "waterfall of-session" }, axis, rows, bars, tip), rows, rowsIn, bars, axis, tip, tools };
  }

  #decisions(session) {
    const turns = [...(session?.threads.values() ?? [])].flatMap((thread) => thread.turns).sort((a, b) => a.arriveS - b.arriveS);
    if (turns.length === 0) return h("p", { className: "dim" }, "None of its turns is kept any more.");
    return h("div", { className: "scrolls-x", tabIndex: 0, role: "region", "aria-label": "Decisions" },
      h("table", { className: "decisions" },
        h("thead", {}, h("tr", {}, ...["turn", ...DECIDED].map((name) => h("th", { scope: "col" }, name)))),
        h("tbody", {}, ...turns.map((turn) => this.#decision(turn)))));
  }

  #decision(turn) {
    const open = h("button", { type: "button", "aria-label": `Turn ${turn.number}: what was decided` }, String(turn.number ?? "?"));
    open.addEventListener("click", () => this.#on.open(turn, { isByKey: true }));
    const why = turn.waits.map((wait) => WAITS[wait.reason] ?? words(wait.reason));
    const waited = turn.waitedMs >= 1 || why.length > 0 ? duration((turn.waitedMs ?? 0) / 1000) : "no";
    const there = turn.refused ? `refused: ${REFUSALS[turn.refused] ?? words(turn.refused)}` : turn.reason ? PLACES[turn.reason] ?? words(turn.reason) : "";
    const came = turn.firstS !== null && turn.submitS !== null ? duration(turn.firstS - turn.submitS) : "–";
    const hoped = turn.expected ? duration(turn.expected.first_token_ms / 1000) : "–";
    const tools = turn.thread.tools.filter((span) => span.turn === turn.id).flatMap((span) => span.names);
    const cells = [
      clock(turn.arriveS), EDGES[turn.edge] ?? words(turn.edge ?? ""), small(waited, why.join("; then ")), small(turn.replica ?? "–", there), `${hoped}, ${came}`,
      Number.isFinite(turn.usage.prompt_tokens) ? `${count(turn.usage.prompt_tokens)}, ${Number.isFinite(turn.usage.cached_tokens) ? percent(turn.hit.share) : "not reported"}` : "–",
      tools.join(", ") || "–", turn.refused ? "refused" : turn.outcome === null ? words(turn.phase) : turn.status >= 400 ? `answered ${turn.status}` : words(turn.outcome),
    ];
    return h("tr", { className: turn.isBad ? "has-errors" : "" }, h("th", { scope: "row" }, open), ...cells.map((cell, at) => h("td", { "data-name": DECIDED[at] }, cell)));
  }
}

const DECIDED = ["came", "how it follows", "waited", "where, and why there", "first token: expected, came", "prompt, of it cached", "tools", "end"];
const section = (title, content) => h("section", { className: "part" }, h("h3", {}, title), content);
const small = (text, note) => h("span", {}, text, note ? h("small", {}, note) : null);

/** Records of a page, oldest first. */
function take(model, page) {
  const records = page.turns.flatMap((turn) => turn.records).sort((a, b) => a.at_s - b.at_s);
  const { session: row } = page;
  if (row !== null) {
    const session = model.session(row.session, row.started_s, row.tenant ?? undefined);
    Object.assign(session, { source: row.source, confidence: row.confidence, schema: row.schema, parent: row.parent, model: row.model });
    // Turns are numbered from the first, of which the oldest may be kept no more.
    session.turnCount = Math.max(0, row.turns - page.turns.filter((turn) => turn.records.some((record) => record.type === "turn_arrive")).length);
  }
  for (const record of records) model.apply(record.type, record);
  if (row !== null && row.ended_s !== null) model.apply("session_end", { at_s: row.ended_s, session: row.session, turns: row.turns, reason: row.end_reason });
}

function facts(row, session, prices) {
  if (row === null && session === undefined) return h("p", { className: "dim" }, "Unknown.");
  const of = row ?? {};
  const facts = [
    ["first words", of.first_words || null], ["tenant", shownTenant(of.tenant)], ["client", of.schema ?? session?.client], ["model", of.model], ["recognised", session?.source ? evidence(session.source, session.confidence) : null],
    ["began", of.started_s ? `${new Date(of.started_s * 1000).toLocaleDateString()} ${clock(of.started_s)}` : null], ["lasted", duration(of.last_s - of.started_s)],
    ["turns", String(of.turns)], ["errors", String(of.troubles)],
    ["prompt tokens", `${count(of.prompt_tokens)}, cached: ${cachedShare(of)}`], ["output tokens", count(of.output_tokens)], ["cost", costOf([of], prices)],
    ["end", of.ended_s ? `${clock(of.ended_s)}, ${words(of.end_reason ?? "")}` : "not ended, or not seen"],
  ];
  return h("dl", { className: "facts" }, ...facts.filter(([, value]) => value !== null && value !== undefined).flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

/** Whom it runs for, its own conversations, and who runs for it: a list in lists. */
function lineage(id, row, kin, session) {
  const byId = new Map(kin.map((each) => [each.session, each]));
  const above = [];
  for (let at = row?.parent; at && !above.some((each) => each.id === at); at = byId.get(at)?.parent) above.unshift({ id: at, row: byId.get(at) });
  const link = (each, of) => h("span", {}, h("a", { href: hrefOf(each) }, each), of ? h("small", {}, `${plural(of.turns, "turn")}, ${duration(of.last_s - of.started_s)}${of.troubles ? `, ${plural(of.troubles, "error")}` : ""}`) : null);
  const threads = [...(session?.threads.values() ?? [])].slice(1).map((thread) => h("li", {}, h("code", {}, thread.id), h("small", {}, `${THREADS[thread.edge] ?? "conversation"}: ${EDGES[thread.edge] ?? words(thread.edge ?? "")}, ${plural(thread.turns.length, "turn")}`)));
  const children = kin.filter((each) => each.parent === id).map((each) => h("li", {}, link(each.session, each)));
  let tree = h("li", {}, h("strong", { "aria-current": "page" }, id), h("ul", {}, ...threads, ...children));
  for (const each of above.reverse()) tree = h("li", {}, link(each.id, each.row), h("ul", {}, tree));
  return h("ul", { className: "lineage", "aria-label": "Lineage" }, tree);
}

/** The tools of each answer of its first conversation, beside the expected next step. */
function steps(session) {
  const thread = session?.threads.values().next().value;
  const path = [];
  let expected = null;
  for (const turn of thread?.turns ?? []) {
    if (turn.outcome !== "finished") continue;
    const tools = [...new Set(thread.tools.filter((span) => span.turn === turn.id).flatMap((span) => span.names))].sort();
    const name = tools.join(" + ") || "answer";
    const hoped = expected === null ? null : expected.next === null ? "the end" : [...expected.next].sort().join(" + ") || "answer";
    const last = path.at(-1);
    const isSame = hoped === null || hoped === name;
    if (last !== undefined && last.name === name && isSame && last.isSame) last.times += 1;
    else path.push({ name, times: 1, hoped, isSame, confidence: expected?.confidence });
    expected = turn.predicted ?? null;
  }
  if (path.length === 0) return h("p", { className: "dim" }, "None of its answers came to its end.");
  return h("ol", { className: "path", "aria-label": "Steps" }, ...path.slice(-MAX_STEPS).map((step) => h("li", { className: step.isSame ? "" : "other" },
    h("b", {}, step.name), step.times > 1 ? h("span", {}, ` ${step.times} times`) : null,
    step.isSame ? null : h("small", {}, `${step.hoped} was expected (${percent(step.confidence)} sure)`))));
}
