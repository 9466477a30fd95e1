// What comes of it all, since the gateway began: sessions in time, and what was not computed again.

import { count, el, h, percent, show } from "./dom.js";

const MIN_JUDGED = 20; // as in gateway/dashboard/sentences.py
const share = (of, all) => (all >= MIN_JUDGED ? percent(of / all) : `not enough data (${all} judged)`);

/** `snapshot`: null before there is one; the line is hidden while there is nothing to say. */
export function showOutcome(snapshot) {
  const outcome = snapshot?.outcome ?? null;
  const changing = changes(snapshot?.conduct ?? []);
  const place = el("outcome");
  const isEmpty = outcome === null || (outcome.sessions === 0 && outcome.turns_judged === 0 && outcome.cached_tokens === 0);
  place.hidden = isEmpty && changing.length === 0;
  if (!place.hidden) show(place, JSON.stringify([outcome, changing]), () => [...(isEmpty ? [] : figures(outcome)), ...changing].map(([name, value, says]) =>
    h("div", { className: name === CHANGING ? "is-bad" : "" }, h("dt", {}, name), h("dd", { title: says }, value))));
}

const CHANGING = "changing prompts";
const PLACES = { system: "the system prompt", tools: "a tool", tool_order: "the order of the tools", message: "the first message" };

/** Clients whose prompts no cache can hold, those that cost most first: as gateway/cli/running.py says it. */
function changes(conduct) {
  const habits = conduct.filter((each) => each.changed >= Math.max(5, 0.2 * each.turns));
  return habits.sort((a, b) => b.again_tokens - a.again_tokens).slice(0, 3).map((each) => {
    const where = `${PLACES[each.part] ?? each.part}${each.part === "system" ? ` at character ${each.at}` : ""}`;
    const cost = each.measured > 0 ? `: ${count(each.again_tokens)} tokens computed again` : "";
    return [CHANGING, `${each.client || "a client without a name"}, ${where}, ${percent(each.changed / each.turns)} of turns${cost}`, `agent type ${each.agent || "unknown"}`];
  });
}

function figures(of) {
  return [
    ["sessions ended", count(of.sessions)],
    ["sessions in time", share(of.in_time, of.judged), `${of.in_time} of ${of.judged}`],
    ["turns in time", share(of.turns_in_time, of.turns_judged), `${of.turns_in_time} of ${of.turns_judged}`],
    ["prompt tokens not computed again", of.cached_tokens > 0 ? count(of.cached_tokens) : "not reported"],
  ];
}
