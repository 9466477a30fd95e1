// The figures in the head of the page.

import { count, el, h, show } from "./dom.js";

import { phaseOf, isActive, shownPhase } from "./turns.js";

/** How much of everything there is now, as the page counts it. */
export function showCounters(model) {
  let [running, waiting] = [0, 0];
  let [active, idle, finished] = [0, 0, 0];
  for (const session of model.sessions.values()) {
    if (session.endedS !== null) continue;
    if (isActive(session, model.nowS)) active += 1;
    else if (shownPhase(phaseOf(session), session, model.nowS) === "finished") finished += 1;
    else idle += 1;
    for (const thread of session.threads.values()) for (const turn of thread.turns.slice(-8)) {
      const phase = turn.phase;
      waiting += phase === "queue";
      running += phase === "prefill" || phase === "decode";
    }
  }
  const refused = model.refusedLately();
  const all = [["active", active], ["idle", idle], ["finished", finished], ["run", running], ["wait", waiting], ["tools", model.counts.tools], ["refused", refused]];
  show(el("counters"), JSON.stringify(all), () => all.map(([name, number]) =>
    h("div", { className: name === "refused" && number > 0 ? "is-bad" : "" }, h("dt", {}, name), h("dd", {}, count(number)))));
}
