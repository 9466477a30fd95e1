// Which rows the waterfall has, in which order: a session, below it its other conversations and the
// sessions that run on its behalf.

import { isActive, phaseOf, phaseOfThread, shownPhase } from "./turns.js";
import { THREADS } from "./words.js";

const ORDERS = {
  newest: (a, b) => b.startedS - a.startedS,
  oldest: (a, b) => a.startedS - b.startedS,
  recent: (a, b) => (a.endedS !== null) - (b.endedS !== null) || b.lastS - a.lastS,
};

const SHOWN = {
  all: () => true,
  active: isActive,
  live: (session) => session.endedS === null,
  waiting: (session) => phaseOf(session) === "queue",
  trouble: (session) => session.troubles > 0,
};

/** `folded`: ids of sessions whose children are hidden. Returns rows and how many sessions they are of. */
export function listRows(model, { order, show, filter, folded }) {
  const wanted = filter.toLowerCase().split(/\s+/).filter(Boolean);
  const children = new Map();
  const roots = [];
  for (const session of model.sessions.values()) {
    if (session.parent !== null && session.parent !== session.id && model.sessions.has(session.parent)) {
      if (!children.has(session.parent)) children.set(session.parent, []);
      children.get(session.parent).push(session);
    } else roots.push(session);
  }
  const rows = [];
  let sessions = 0;
  const isShown = (session) => SHOWN[show](session, model.nowS) && wanted.every((word) => text(session, model.nowS).includes(word));
  const add = (session, depth) => {
    const below = (children.get(session.id) ?? []).sort(ORDERS.oldest);
    const mine = isShown(session);
    if (mine) {
      sessions += 1;
      const threads = [...session.threads.values()].filter((thread) => thread.turns.length > 0 || thread.tools.length > 0);
      const isFolded = folded.has(session.id);
      const hidden = Math.max(0, threads.length - 1) + below.length;
      rows.push({ key: session.id, session, thread: threads[0] ?? null, depth, isFolded, hidden, name: session.id, kind: kindOf(session) });
      if (!isFolded) for (const thread of threads.slice(1)) {
        const name = thread.id.startsWith(session.id) ? thread.id.slice(session.id.length) || thread.id : thread.id;
        rows.push({ key: `${session.id} ${thread.id}`, session, thread, depth: depth + 1, isFolded: false, hidden: 0, name, kind: THREADS[thread.edge] ?? "thread" });
      }
      if (isFolded) return;
    }
    if (depth < 8) for (const child of below) add(child, mine ? depth + 1 : depth);
  };
  for (const session of roots.sort(ORDERS[order])) add(session, 0);
  return { rows, sessions };
}

const kindOf = (session) => session.client ?? session.schema ?? session.model ?? session.view?.agent ?? "";

export function phaseOfRow(row, nowS) {
  if (row.session.endedS !== null) return "ended";
  const isWhole = row.thread === null || row.isFolded;
  return shownPhase(isWhole ? phaseOf(row.session) : phaseOfThread(row.thread), row.session, nowS);
}

function text(session, nowS) {
  const tools = [];
  for (const thread of session.threads.values()) for (const span of thread.tools.slice(-4)) tools.push(...span.names);
  return [session.id, session.tenant, kindOf(session), session.view?.first_words, session.model, shownPhase(phaseOf(session), session, nowS), ...tools].join(" ").toLowerCase();
}

/** Share of the prompts that was cached, of the row's last turn that says. */
export function hitOfRow(row) {
  const turns = row.thread?.turns ?? [];
  for (let i = turns.length - 1; i >= 0 && i >= turns.length - 5; i -= 1) {
    const hit = turns[i].hit;
    if (hit !== null && !hit.isExpected) return hit.share;
  }
  return null;
}
