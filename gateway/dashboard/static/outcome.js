// What comes of it all, since the gateway began: sessions in time, and what was not computed again.

import { count, el, h, percent, show } from "./dom.js";

const MIN_JUDGED = 20; // as in gateway/dashboard/sentences.py
const share = (of, all) => (all >= MIN_JUDGED ? percent(of / all) : `not enough data (${all} judged)`);

/** `snapshot`: null before there is one; the line is hidden while there is nothing to say. */
export function showOutcome(snapshot) {
  const outcome = snapshot?.outcome ?? null;
  const place = el("outcome");
  place.hidden = outcome === null || (outcome.sessions === 0 && outcome.turns_judged === 0 && outcome.cached_tokens === 0);
  if (!place.hidden) show(place, JSON.stringify(outcome), () => figures(outcome).map(([name, value, says]) =>
    h("div", { title: says }, h("dt", {}, name), h("dd", {}, value))));
}

function figures(of) {
  return [
    ["sessions ended", count(of.sessions), "since the gateway began"],
    ["sessions in time", share(of.in_time, of.judged), `${of.in_time} of ${of.judged}: within α × what they would have taken alone`],
    ["turns in time", share(of.turns_in_time, of.turns_judged), `${of.turns_in_time} of ${of.turns_judged}`],
    ["prompt tokens not computed again", of.cached_tokens > 0 ? count(of.cached_tokens) : "not reported", "found in engines' prefix caches"],
  ];
}
