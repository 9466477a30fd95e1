// What is over: sessions and percentiles of a stretch of time. The query stands in the page's address.

import { cachedShare, clock, count, duration, explained, h, percent, plural, shownTenant, words } from "./dom.js";
import { hrefOf } from "./session.js";
import { KeyRequired, reasonOf } from "./stream.js";

const RANGES = [["900", "the last 15 minutes"], ["3600", "the last hour"], ["21600", "the last 6 hours"], ["86400", "the last day"], ["604800", "the last week"], ["", "from … to …"]];
const MEASURES = [["queue_ms", "in the queue"], ["first_token_ms", "first token"], ["run_ms", "on the replica"]];
const SHARES = ["p50", "p90", "p99"];
const FIELDS = ["range", "from", "to", "tenant", "model", "session", "trouble"];

export class HistoryView {
  #root;
  #control;
  #on;
  #form = null;
  #result = h("div", { className: "history-result", "aria-live": "polite" });
  #queries = 0;

  /** `on`: changed(hash) when the query changes, key(). */
  constructor(root, control, on) {
    this.#root = root;
    this.#control = control;
    this.#on = on;
  }

  /** `wanted`: URLSearchParams. */
  load(wanted) {
    if (this.#form === null) this.#build();
    for (const name of FIELDS) {
      const field = this.#form.elements[name];
      if (field.type === "checkbox") field.checked = wanted.get(name) === "1";
      else field.value = wanted.get(name) ?? (name === "range" ? (wanted.has("from") ? "" : "86400") : "");
    }
    this.#showRange();
    return this.#ask();
  }

  #build() {
    const field = (name, label, input) => h("label", {}, h("span", {}, label), Object.assign(input, { name }));
    const text = () => h("input", { type: "search", autocomplete: "off" });
    const range = h("select", {}, ...RANGES.map(([value, name]) => h("option", { value }, name)));
    this.#form = h("form", { className: "history-form", role: "search", "aria-label": "What is over" },
      field("range", "When", range),
      field("from", "from", h("input", { type: "datetime-local", step: 1 })), field("to", "to", h("input", { type: "datetime-local", step: 1 })),
      field("tenant", "Tenant", text()), field("model", "Model", text()), field("session", "Session begins with", text()),
      h("label", { className: "check" }, Object.assign(h("input", { type: "checkbox" }), { name: "trouble" }), h("span", {}, "Errors only")),
      h("button", { type: "submit", className: "main" }, "Show"));
    range.addEventListener("change", () => this.#showRange());
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#on.changed(`#history?${this.#wanted()}`);
      this.#ask();
    });
    this.#root.replaceChildren(this.#form, this.#result);
  }

  #showRange() {
    for (const name of ["from", "to"]) this.#form.elements[name].parentElement.hidden = this.#form.elements.range.value !== "";
  }

  #wanted() {
    const wanted = new URLSearchParams();
    const isRange = this.#form.elements.range.value !== "";
    for (const name of FIELDS) {
      const field = this.#form.elements[name];
      const value = field.type === "checkbox" ? (field.checked ? "1" : "") : field.value.trim();
      if (value !== "" && !(isRange && (name === "from" || name === "to"))) wanted.set(name, value);
    }
    return wanted;
  }

  async #ask() {
    const wanted = this.#wanted();
    const query = new URLSearchParams();
    const timeOf = (name) => (wanted.has(name) ? new Date(wanted.get(name)).getTime() / 1000 : null);
    const toS = wanted.has("range") ? null : timeOf("to");
    const fromS = wanted.has("range") ? Date.now() / 1000 - Number(wanted.get("range")) : timeOf("from");
    if (fromS !== null) query.set("from_s", fromS);
    if (toS !== null) query.set("to_s", toS);
    for (const name of ["tenant", "model", "session", "trouble"]) if (wanted.has(name)) query.set(name, wanted.get(name));
    const number = (this.#queries += 1);
    try {
      const found = await this.#control.json(`history?${query}`);
      if (number === this.#queries) this.#result.replaceChildren(...result(found));
    } catch (error) {
      if (error instanceof KeyRequired) return this.#on.key();
      if (number !== this.#queries) return;
      const why = error.status === 404 ? ["History is off: start ", h("code", {}, "turnpike history"), " and set ", h("code", {}, "history.url"), "."] : [`The gateway did not answer (${reasonOf(error)}).`];
      this.#result.replaceChildren(h("p", { className: "hint warn" }, ...why));
    }
  }
}

function result(found) {
  const ms = (value) => (Number.isFinite(value) ? duration(value / 1000) : "–");
  const day = (atS) => new Date(atS * 1000).toLocaleDateString(undefined, { month: "short", day: "numeric" });
  const turns = found.sample < found.turns ? `${count(found.turns)} turns; percentiles are of ${count(found.sample)} of them` : `${count(found.turns)} turns`;
  const since = found.since_s === null ? "" : ` The history begins on ${day(found.since_s)} at ${clock(found.since_s)}.`;
  const ends = Object.entries(found.outcomes).sort(([, a], [, b]) => b - a).map(([name, n]) => `${words(name)} ${percent(n / found.sample)}`).join(", ");
  const figures = h("table", { className: "percentiles" }, h("caption", {}, "Of turns"),
    h("thead", {}, h("tr", {}, ...["", ...SHARES].map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, ...MEASURES.map(([name, says]) => h("tr", {}, explained(h("th", { scope: "row" }, says)), ...SHARES.map((share) => h("td", {}, ms(found.percentiles[name][share])))))));
  const names = ["session", "last seen", "lasted", "tenant", "model", "turns", "errors", "prompt tokens, cached", "end"];
  const rows = found.sessions.map((row) => h("tr", { className: row.troubles ? "has-errors" : "" },
    h("th", { scope: "row" }, h("a", { href: hrefOf(row.session) }, row.session)),
    ...[`${day(row.last_s)} ${clock(row.last_s)}`, duration(row.last_s - row.started_s), shownTenant(row.tenant) ?? "–", row.model ?? "–", String(row.turns), String(row.troubles),
      `${count(row.prompt_tokens)}, ${cachedShare(row)}`, row.ended_s === null ? "–" : words(row.end_reason ?? "")].map((cell) => h("td", {}, cell))));
  return [
    h("p", { className: "hint" }, `${turns}.${ends ? ` Ends: ${ends}.` : ""}${since}`), figures,
    rows.length === 0 ? h("p", { className: "dim" }, "No sessions match.")
      : h("div", { className: "scrolls-x", tabIndex: 0, role: "region", "aria-label": "Sessions" },
        h("table", { className: "found" }, h("caption", {}, rows.length < 100 ? plural(rows.length, "session") : `The ${rows.length} sessions seen last`),
          h("thead", {}, h("tr", {}, ...names.map((name) => h("th", { scope: "col" }, name)))), h("tbody", {}, ...rows))),
  ];
}
