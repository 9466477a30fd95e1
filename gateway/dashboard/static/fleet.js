// The fleet: of each replica its health, its load, and whose context its KV cache may hold.

import { clock, count, el, h, percent, plural, setText, show } from "./dom.js";

const SEGMENTS = 24;

export class FleetPanel {
  #model;

  constructor(model) {
    this.#model = model;
  }

  paint(nowS) {
    const replicas = [...this.#model.replicas.values()].sort((a, b) => a.id.localeCompare(b.id, "en", { numeric: true }));
    const up = replicas.filter((replica) => replica.state === "up").length;
    setText(el("fleet-now"), replicas.length === 0 ? "" : `${up} of ${replicas.length} up · ${count(sum(replicas, (one) => one.running))} run${this.#model.snapshot?.store_down ? " · the shared store is down" : ""}`);
    const contexts = contextsByReplica(this.#model);
    const most = Math.max(8, ...replicas.map((replica) => replica.running + (replica.view?.engine_waiting ?? 0)));
    // Where no engine says what fits, bars compare replicas with each other.
    const scale = Math.max(...replicas.map((one) => sum(contexts.get(one.id) ?? [], (context) => context.tokens))) / 0.85;
    const key = JSON.stringify(replicas.map((one) => [one.id, one.state, one.why, one.running, one.view?.ejected_until_s, one.view?.kv_used, one.view?.kv_retained, retainedOf(one.view), one.view?.plugin, one.view?.engine_waiting, summary(contexts.get(one.id))]));
    show(el("fleet-body"), key, () =>
      replicas.length === 0
        ? h("p", { className: "hint" }, "No replica is known yet: discovery or registration has named none.")
        : [h("ul", { className: "replicas" }, ...replicas.map((replica) => card(replica, contexts.get(replica.id) ?? [], most, scale))), explain()],
    );
  }
}

const sum = (all, of) => all.reduce((total, one) => total + of(one), 0);
const summary = (contexts = []) => [contexts.length, Math.round(sum(contexts, (one) => one.tokens) / 500), contexts.filter((one) => one.runs).length];

/** What sessions last ran with, by replica: their context is there, or was the last time. */
function contextsByReplica(model) {
  const found = new Map();
  for (const session of model.sessions.values()) {
    if (session.endedS !== null) continue;
    for (const thread of session.threads.values()) {
      const turn = thread.turns.at(-1);
      if (turn === undefined) continue;
      const runs = turn.phase === "prefill" || turn.phase === "decode";
      const done = runs ? turn : thread.turns.findLast((one) => one.usage.prompt_tokens > 0);
      if (done === undefined || done.replica === null) continue;
      const tokens = runs ? turn.expected?.prompt_tokens ?? 0 : done.usage.prompt_tokens + (done.usage.output_tokens ?? 0);
      if (!(tokens > 0)) continue;
      if (!found.has(done.replica)) found.set(done.replica, []);
      found.get(done.replica).push({ session: session.id, tokens, runs });
    }
  }
  for (const contexts of found.values()) contexts.sort((a, b) => b.runs - a.runs || b.tokens - a.tokens);
  return found;
}

function card(replica, contexts, most, scale) {
  const view = replica.view ?? {};
  const isUp = replica.state !== "down";
  const running = replica.running;
  const waiting = view.engine_waiting ?? 0;
  return h("li", { className: "replica", dataset: { state: replica.state } },
    h("div", { className: "replica-head" },
      h("span", { className: "health", dataset: { state: replica.state } }, replica.state),
      h("strong", { title: [view.engine, view.version, ...(view.models ?? [])].filter(Boolean).join(" ") }, replica.id),
      h("span", { className: "dim" }, isUp ? [replica.state === "up" ? null : replica.why, view.ejected_until_s ? `tried again at ${clock(view.ejected_until_s)}` : null, `${count(running)} run`, waiting > 0 ? `${count(waiting)} wait there` : null, Number.isFinite(view.sessions) ? `${plural(view.sessions, "session")} cached here` : null].filter(Boolean).join(" · ")
        : `${replica.why || "does not answer"}${replica.changedS === null ? "" : `, since ${clock(replica.changedS)}`}`)),
    isUp ? h("div", { className: "meters" },
      h("span", { className: "meter-name" }, "load"), loadBar(running, waiting, most), h("span", { className: "meter-value" }, count(running + waiting)),
      h("span", { className: "meter-name" }, "KV held"), heldBar(view), h("span", { className: "meter-value" }, Number.isFinite(view.kv_used) ? percent(view.kv_used) : "–"),
      h("span", { className: "meter-name" }, "contexts"), kvBar(view, contexts, scale), h("span", { className: "meter-value" }, count(sum(contexts, (one) => one.tokens)))) : null,
    isUp && view.plugin?.length > 0 ? h("p", { className: "dim" }, `plugin: ${view.plugin.map(feature).join(" · ")}`) : null);
}

/** A feature of the engine's plugin: on, or why not; how often it acted; what that saved. */
function feature(one) {
  const parts = [`${one.name} ${one.state}`];
  if (one.acted > 0) parts.push(`acted ${plural(one.acted, "time")}`);
  if (one.saved_s >= 0.05) parts.push(`saved about ${one.saved_s.toFixed(1)} s of prefill`);
  return parts.join(", ");
}

function loadBar(running, waiting, most) {
  const bar = h("div", { className: "meter", role: "img", "aria-label": `${running} running, ${waiting} waiting in the engine` });
  bar.append(segment("runs", running / most), segment("waits", waiting / most));
  return bar;
}

function heldBar(view) {
  const isTold = Number.isFinite(view.kv_used);
  const retained = view.kv_retained ?? 0;
  const kept = retained > 0 ? `, ${percent(retained)} is retained for sessions that pause` : "";
  const says = isTold ? `requests that run hold ${percent(view.kv_used)} of the KV cache${kept}` : "the engine does not say what is held";
  const bar = h("div", { className: "meter", role: "img", "aria-label": says, title: says });
  if (!isTold) return bar;
  bar.append(segment("runs", view.kv_used));
  let untold = retained;
  for (const one of retainedOf(view)) {
    const share = Math.min(untold, one.retained_tokens / view.kv_tokens);
    bar.append(segment("rests", share, `${one.session}: ${count(one.retained_tokens)} tokens are retained`));
    untold -= share;
  }
  if (untold > 0) bar.append(segment("rests", untold));
  return bar;
}

/** The sessions that the engine says it retains something for. */
const retainedOf = (view) => (view?.kv_tokens > 0 ? (view.kv_of_sessions ?? []).filter((one) => one.retained_tokens > 0) : []);

function kvBar(view, contexts, scale) {
  const total = sum(contexts, (one) => one.tokens);
  const resting = contexts.filter((one) => !one.runs);
  const capacity = view.kv_tokens ?? null;
  const whole = Math.max(capacity ?? scale, total, 1);
  const says = `${contexts.length - resting.length} contexts in use, ${resting.length} resting, ${count(total)} tokens`;
  const label = capacity === null ? `${says}; the engine does not say how many fit` : `${says}, of ${count(capacity)} that fit`;
  const bar = h("div", { className: "meter kv", role: "img", "aria-label": label, title: label });
  for (const one of contexts.slice(0, SEGMENTS)) bar.append(segment(one.runs ? "runs" : "rests", one.tokens / whole, `${one.session}: ${count(one.tokens)} tokens${one.runs ? "" : ", rests"}`));
  const rest = sum(contexts.slice(SEGMENTS), (one) => one.tokens);
  if (rest > 0) bar.append(segment("rests", rest / whole, `${contexts.length - SEGMENTS} more: ${count(rest)} tokens`));
  if (capacity !== null && total > capacity) {
    const edge = h("i", { className: "fits", title: `${count(capacity)} tokens fit` });
    edge.style.left = `${(100 * capacity) / whole}%`;
    bar.append(edge);
  }
  return bar;
}

function segment(kind, share, title) {
  const part = h("i", { className: kind, title });
  part.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
  return part;
}

function explain() {
  return h("p", { className: "keys-of" }, h("span", { className: "k-runs" }, "in use"), h("span", { className: "k-rests" }, "resting: may be retained"), h("span", { className: "k-fits" }, "what fits"));
}

