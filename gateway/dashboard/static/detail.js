// One turn: what was known, what was decided, why, and what the alternatives would have cost.

import { clock, count, duration, explained, fieldName, fieldValue, h, percent, shownTenant, words } from "./dom.js";
import { hrefOf } from "./session.js";
import { reasonOf } from "./stream.js";
import { EDGES, PHASES, PLACES, REFUSALS, WAITS, evidence } from "./words.js";

const HIDDEN_FACTS = new Set(["type", "turn", "session", "thread", "parent", "tenant", "at_s"]);

export class DetailPanel {
  #root;
  #model;
  #control;
  #on;
  #turn = null;
  #decision = { kind: "none" };
  #shown = "";

  /** `on.closed()` after the panel was closed. */
  constructor(root, model, control, on) {
    this.#root = root;
    this.#model = model;
    this.#control = control;
    this.#on = on;
    root.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.preventDefault();
      this.close();
    });
  }

  get turn() {
    return this.#turn;
  }

  async open(turn, { isByKey }) {
    this.#turn = turn;
    this.#decision = { kind: "loading" };
    this.#root.hidden = false;
    this.paint();
    if (isByKey) this.#root.querySelector("h2").focus();
    await this.#load(turn);
  }

  close() {
    if (this.#turn === null) return;
    this.#turn = null;
    this.#shown = "";
    this.#root.hidden = true;
    this.#root.replaceChildren();
    this.#on.closed();
  }

  async #load(turn) {
    const seen = `${turn.phase} ${turn.waits.length}`;
    let decision;
    try {
      decision = { kind: "loaded", seen, of: await this.#control.json(`turns/${encodeURIComponent(turn.id)}`) };
    } catch (error) {
      decision = { kind: "failed", seen, why: error.status === 404 ? "The gateway has forgotten this turn; what follows is what this page saw." : `The gateway did not answer (${reasonOf(error)}); what follows is what this page saw.` };
    }
    if (this.#turn !== turn) return;
    this.#decision = decision;
    this.paint();
  }

  paint() {
    const turn = this.#turn;
    if (turn === null) return;
    const { kind, seen } = this.#decision;
    if (kind !== "loading" && seen !== `${turn.phase} ${turn.waits.length}`) {
      this.#decision = { ...this.#decision, seen: `${turn.phase} ${turn.waits.length}` };
      this.#load(turn); // it went on; so did its decision
    }
    const key = [turn.id, kind, seen, turn.phase, turn.waits.length, turn.isOver ? "" : Math.floor(this.#model.nowS)].join(" ");
    if (key === this.#shown) return;
    this.#shown = key;
    const focused = this.#root.contains(document.activeElement) ? document.activeElement.dataset.keep : undefined;
    const { scrollTop } = this.#root;
    this.#root.replaceChildren(this.#head(turn), phases(turn, this.#model.nowS), ...this.#body(turn));
    this.#root.scrollTop = scrollTop;
    if (focused !== undefined) this.#root.querySelector(`[data-keep="${focused}"]`)?.focus();
  }

  #head(turn) {
    const session = turn.thread?.session;
    const close = h("button", { type: "button", className: "close", "aria-label": "Close", "aria-keyshortcuts": "Escape", dataset: { keep: "close" } }, "✕");
    close.addEventListener("click", () => this.close());
    return h("header", {},
      h("div", {},
        h("h2", { id: "detail-title", tabIndex: -1, dataset: { keep: "title" } }, `Turn ${turn.number ?? ""}`.trim()),
        h("p", { className: "ids" }, h("code", {}, turn.id), session === undefined ? "" : " of ", session === undefined ? "" : h("code", {}, turn.thread.id)),
        session === undefined ? "" : h("p", {}, h("a", { href: hrefOf(session.id), dataset: { keep: "session" } }, "Its session's page"))),
      close);
  }

  #body(turn) {
    const { kind, of, why } = this.#decision;
    if (kind === "loading") return [h("p", { className: "hint" }, "Asking the gateway …")];
    const parts = [];
    if (kind === "failed") parts.push(h("p", { className: "hint warn", role: "status" }, why));
    const decision = of ?? {};
    parts.push(part("Decided", decided(turn, decision)));
    parts.push(part("Why", reasons(turn, decision)));
    parts.push(part("Alternatives", alternatives(turn, decision)));
    parts.push(part("Expected, and what came", outcome(turn, decision)));
    const predicted = turn.predicted ?? decision.records?.findLast((record) => record.type === "step_predict");
    if (predicted) parts.push(part("Expected to follow", prediction(predicted)));
    parts.push(part("Known", facts(known(turn, decision))));
    if (decision.window) parts.push(part("The window then", facts(Object.entries(decision.window).filter(([name]) => !["type", "pool"].includes(name)))));
    if (decision.records?.length > 0) parts.push(records(decision.records));
    return parts;
  }
}

const part = (title, content) => h("section", {}, h("h3", {}, title), content);

/** Each phase with its part of the whole; the names stand beside the bars. */
function phases(turn, nowS) {
  const overS = turn.overS ?? nowS;
  const cut = (from, to) => (from === null || from === undefined ? null : Math.max(0, (to ?? overS) - from));
  const spans = { queue: cut(turn.arriveS, turn.attempts[0]?.submitS ?? turn.submitS), prefill: turn.isStreamed ? cut(turn.submitS, turn.firstS) : null, decode: cut(turn.decodeS) };
  const whole = Math.max(1e-6, overS - turn.arriveS);
  const list = h("ol", { className: "phases", "aria-label": "Phases of the turn" });
  for (const { id, name } of PHASES.filter((phase) => phase.id in spans)) {
    const bar = h("i", { className: `swatch s-${id}` });
    bar.style.width = `${Math.max(0.5, (100 * (spans[id] ?? 0)) / whole)}%`;
    list.append(h("li", { dataset: { phase: id } }, h("span", {}, id === "decode" && !turn.isStreamed ? "generating (not streamed)" : name), h("span", { className: "track" }, (spans[id] ?? 0) < 0.0005 ? "" : bar),
      h("span", { className: "figure" }, spans[id] === null ? "–" : duration(spans[id]), turn.phase === id ? " …" : "")));
  }
  return list;
}

function decided(turn, { decided: of }) {
  const outcomeOf = of?.outcome ?? (turn.refused ? "refused" : turn.submitS === null ? "waiting" : "dispatched");
  if (outcomeOf === "refused") {
    const reason = of?.refusal ?? turn.refused;
    return h("p", { className: "verdict bad" }, `Refused: ${REFUSALS[reason] ?? words(reason)}.`);
  }
  if (outcomeOf === "left" || (turn.submitS === null && turn.outcome === "client_left")) {
    return h("p", { className: "verdict" }, `Its client left after ${duration((turn.overS ?? turn.arriveS) - turn.arriveS)} in the queue.`);
  }
  if (outcomeOf === "waiting") return h("p", { className: "verdict" }, "It waits for a place.");
  const replica = of?.replica ?? turn.replica;
  const attempts = of?.attempts ?? turn.attempt ?? 1;
  return h("p", { className: "verdict" }, "Sent to ", h("strong", {}, replica ?? "a replica"), attempts > 1 ? `, the ${attempts}. that was tried` : "",
    (of?.queue_ms ?? turn.waitedMs ?? 0) < 1 ? ", at once." : `, after ${duration((of?.queue_ms ?? turn.waitedMs) / 1000)} in the queue.`);
}

function reasons(turn, { why }) {
  const sentences = Array.isArray(why) ? why : typeof why === "string" ? [why] : [];
  if (sentences.length === 0) {
    const wait = turn.waits.at(-1);
    if (wait !== undefined) sentences.push(`It waited because ${WAITS[wait.reason] ?? words(wait.reason)}.`);
    if (turn.reason) sentences.push(`It ran there because ${PLACES[turn.reason] ?? words(turn.reason)}.`);
    if (turn.wouldWait) sentences.push(`It would have waited (admission only looks on): ${WAITS[turn.wouldWait] ?? words(turn.wouldWait)}.`);
  }
  if (sentences.length === 0) return h("p", { className: "dim" }, "Not decided yet.");
  return h("ul", { className: "why-list" }, ...sentences.map((sentence) => h("li", {}, sentence)));
}

function alternatives(turn, { alternatives: others, expected }) {
  if (others === undefined) return h("p", { className: "dim" }, "Unknown.");
  if (others.length === 0) return h("p", { className: "dim" }, "There was no other place to go.");
  const mine = expected ?? turn.expected;
  const chosen = { replica: turn.replica, first_token_ms: mine?.first_token_ms, completion_ms: mine?.completion_ms, isChosen: true };
  const rows = [...(turn.replica === null ? [] : [chosen]), ...others.map((other) => (typeof other === "object" ? other : { replica: String(other) }))];
  const more = (row) => (Number.isFinite(row.completion_ms) && Number.isFinite(chosen.completion_ms) && !row.isChosen ? signed((row.completion_ms - chosen.completion_ms) / 1000) : "");
  return h("div", { className: "scrolls-x", tabIndex: 0, role: "region", "aria-label": "Alternatives" },
    h("table", { className: "alternatives" },
      h("thead", {}, h("tr", {}, ...["replica", "first token", "complete", "cost"].map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, ...rows.map((row) => h("tr", { className: row.isChosen ? "chosen" : "" },
        h("th", { scope: "row" }, row.replica ?? "–", row.isChosen ? h("small", {}, "chosen") : h("small", {}, [Number.isFinite(row.running) ? `${row.running} run` : null, row.why_not].filter(Boolean).join(" · "))),
        h("td", {}, ms(row.first_token_ms)), h("td", {}, ms(row.completion_ms)), h("td", {}, more(row)))))));
}

const ms = (value) => (Number.isFinite(value) ? duration(value / 1000) : "–");
const signed = (seconds) => `${seconds < 0 ? "−" : "+"}${duration(Math.abs(seconds))}`;

function outcome(turn, { expected, became }) {
  const hoped = expected ?? turn.expected ?? {};
  const usage = became?.usage ?? turn.usage ?? {};
  const range = (name) => (Number.isFinite(hoped[`${name}_ms`]) ? `${duration(hoped[`${name}_ms`] / 1000)}${Number.isFinite(hoped[`${name}_p10_ms`]) ? ` (${duration(hoped[`${name}_p10_ms`] / 1000)} – ${duration(hoped[`${name}_p90_ms`] / 1000)})` : ""}` : "–");
  const lived = (from, to) => (from === null || to === null ? "–" : duration(to - from));
  const tokens = (of, name) => (Number.isFinite(of[name]) ? count(of[name]) : "–");
  const hit = (of) => (of.prompt_tokens > 0 && Number.isFinite(of.cached_tokens) ? `${count(of.cached_tokens)} (${percent(of.cached_tokens / of.prompt_tokens)})` : of.prompt_tokens > 0 ? "not reported" : "–");
  const rows = [
    ["first token", range("first_token"), lived(turn.submitS, turn.firstS)],
    ["complete", range("completion"), lived(turn.submitS, turn.endS)],
    ["prompt tokens", tokens(hoped, "prompt_tokens"), tokens(usage, "prompt_tokens")],
    ["of them cached", hit(hoped), hit(usage)],
    ["output tokens", tokens(hoped, "output_tokens"), tokens(usage, "output_tokens")],
  ];
  const end = became?.outcome ?? turn.outcome;
  if (end) rows.push(["end", "", [words(end), became?.status ?? turn.status].filter((one) => one !== null && one !== undefined).join(", ")]);
  return h("table", { className: "outcome" },
    h("thead", {}, h("tr", {}, ...["", "expected", "came"].map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, ...rows.map(([name, ...cells]) => h("tr", {}, explained(h("th", { scope: "row" }, name)), ...cells.map((cell) => h("td", {}, cell))))));
}

/** What the execution graph of its type of agent says. */
function prediction(of) {
  const next = of.next === null ? "the end of the conversation" : of.next.length > 0 ? of.next.join(", ") : "an answer without tools";
  const rest = Object.entries(of).filter(([name, value]) => !HIDDEN_FACTS.has(name) && !["next", "confidence", "tools"].includes(name) && value !== null);
  return h("div", {}, h("p", {}, h("strong", {}, next), ` (${percent(of.confidence)} sure)`),
    facts([["after", of.tools?.length > 0 ? of.tools : "an answer without tools"], ...rest]));
}

function known(turn, { known: of }) {
  const session = turn.thread?.session;
  const source = of?.source ?? turn.source;
  const fields = [["tenant", shownTenant(turn.tenant)], ["model", of?.model ?? turn.model], ["how it follows", EDGES[of?.edge ?? turn.edge] ?? turn.edge],
    ["session known by", source ? evidence(source, of?.confidence ?? turn.confidence) : undefined], ["client", session?.client ?? session?.schema ?? undefined],
    ["arrived", clock(turn.arriveS)]];
  const shown = new Set(["model", "edge", "source", "confidence", "client"]);
  const rest = of ? Object.entries(of) : [["protocol", turn.protocol], ["body_bytes", turn.bytes], ["messages", turn.messages], ["tools", turn.tools]];
  return [...fields, ...rest.filter(([name, value]) => !HIDDEN_FACTS.has(name) && !shown.has(name) && value !== null)].filter(([, value]) => value !== undefined && value !== null);
}

function facts(entries) {
  return h("dl", { className: "facts" }, ...entries.flatMap(([name, value]) => [h("dt", {}, fieldName(name)), h("dd", {}, fieldValue(name, value))]));
}

function records(all) {
  const began = all[0].at_s;
  return h("details", {}, h("summary", {}, `${all.length} records`),
    h("ol", { className: "records" }, ...all.map((record) => h("li", {}, h("code", {}, `+${duration(record.at_s - began)} ${record.type}`), " ",
      h("span", { className: "dim" }, Object.entries(record).filter(([name, value]) => !HIDDEN_FACTS.has(name) && value !== null && typeof value !== "object").map(([name, value]) => `${fieldName(name)} ${fieldValue(name, value)}`).join(", "))))));
}
