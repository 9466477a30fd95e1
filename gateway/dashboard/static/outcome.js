// What comes of it all, since the gateway began: sessions in time, and what was not computed again.

import { count, duration, el, h, percent, show } from "./dom.js";

const share = (of, all) => (all > 0 ? percent(of / all) : "–");

/** `snapshot`: null before there is one; the line is hidden while there is nothing to say. */
export function showOutcome(snapshot) {
  const outcome = snapshot?.outcome ?? null;
  const place = el("outcome");
  place.hidden = outcome === null || (outcome.sessions === 0 && outcome.turns_judged === 0 && outcome.cached_tokens === 0);
  if (!place.hidden) show(place, JSON.stringify(outcome), () => figures(outcome, snapshot.currency).map(([name, value, says]) =>
    h("div", { title: says }, h("dt", {}, name), h("dd", {}, value))));
}

function figures(of, currency) {
  const rows = [
    ["sessions ended", count(of.sessions), "since the gateway began"],
    ["sessions in time", share(of.in_time, of.judged), `${of.in_time} of ${of.judged}: within α × what they would have taken alone`],
    ["turns in time", share(of.turns_in_time, of.turns_judged), `${of.turns_in_time} of ${of.turns_judged}`],
    ["prompt tokens not computed again", count(of.cached_tokens), `they would have taken ${duration(of.cached_s)} of a replica`],
  ];
  if (of.saved_s === 0 && of.error_s === 0) return rows;
  const about = "of replicas, against a balancer that sends the same turns round robin; ± by how much that may be wrong";
  rows.push(["saved", `${signed(of.saved_s, duration)} ± ${duration(of.error_s)}`, about]);
  if (of.saved_money !== null) rows.push(["saved", `${signed(of.saved_money, money)} ± ${money(of.error_money)} ${currency}`, about]);
  return rows;
}

const signed = (value, text) => (value < 0 ? `−${text(-value)}` : text(value));

const money = (value) => value.toFixed(2);
