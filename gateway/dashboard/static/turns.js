// A turn, a conversation, and in which phase they are.

export class Turn {
  thread = null;
  number = null;
  waits = [];
  attempts = [];
  submitS = null;
  firstS = null;
  endS = null;
  refusedS = null;
  /** When it was last seen, of a turn whose end fell into a gap. */
  lostS = null;
  usage = {};
  expected = null;
  isStreamed = true;
  replica = null;
  outcome = null;

  constructor(id, atS) {
    this.id = id;
    this.arriveS = atS;
  }

  get isOver() {
    return this.endS !== null || this.refusedS !== null || this.lostS !== null;
  }

  /** It was refused, left or cut, or its answer is an error. */
  get isBad() {
    return Boolean(this.refused) || (this.outcome !== null && (this.outcome !== "finished" || this.status >= 400));
  }

  get overS() {
    return this.endS ?? this.refusedS ?? this.lostS;
  }

  get phase() {
    if (this.isOver) return "over";
    if (this.submitS === null) return "queue";
    return this.decodeS === null ? "prefill" : "decode";
  }

  /** Where nothing is streamed the end of the prompt is not seen: all of it is generating. */
  get decodeS() {
    return this.isStreamed ? this.firstS : this.submitS;
  }

  /** Cached share of the prompt: as reported, else as expected, else null. */
  get hit() {
    const { prompt_tokens: prompt, cached_tokens: cached } = this.usage;
    if (prompt > 0 && Number.isFinite(cached)) return { share: cached / prompt, isExpected: false };
    if (this.expected?.prompt_tokens > 0) return { share: this.expected.cached_tokens / this.expected.prompt_tokens, isExpected: true };
    return null;
  }
}

export const newThread = (id, session) => ({
  id, session, turns: [], tools: [], firstS: Infinity, lastS: -Infinity, edge: null, parentTurn: null,
});

export function phaseOfThread(thread) {
  let best = "idle";
  for (let i = thread.turns.length - 1; i >= 0 && i >= thread.turns.length - 8; i -= 1) {
    const phase = thread.turns[i].phase;
    if (phase === "decode") return "decode";
    if (phase === "prefill" || (phase === "queue" && best === "idle")) best = phase;
  }
  if (best === "idle" && thread.tools.some((span, i) => span.endS === null && i >= thread.tools.length - 8)) return "tool";
  return best;
}

/** Whether something goes on: neither idle, nor in a tool for so long that its agent may be gone. */
export function isActive(session, nowS) {
  const phase = phaseOf(session);
  return !["ended", "idle"].includes(phase) && (phase !== "tool" || nowS - session.lastS < 600);
}

/** A minute without anything is an end, unless a record ends it earlier. */
const FINISHED_S = 60;

/** What a phase is for those who look at the whole session: idle, finished, or stopped by an operator. */
export function shownPhase(phase, session, nowS) {
  if (session.isStopped && ["idle", "tool"].includes(phase)) return "stopped";
  return phase !== "idle" || nowS - session.lastS < FINISHED_S ? phase : "finished";
}

/** A snapshot's states of sessions of whose turns nothing is known. */
const STATES = { waiting: "queue", generating: "decode", tool: "tool", idle: "idle" };
const RANK = { decode: 4, prefill: 3, queue: 2, tool: 1, idle: 0 };

export function phaseOf(session) {
  if (session.endedS !== null) return "ended";
  let best = "idle";
  for (const thread of session.threads.values()) {
    const phase = phaseOfThread(thread);
    if (RANK[phase] > RANK[best]) best = phase;
  }
  if (session.threads.size === 0 && session.view !== null) return STATES[session.view.state] ?? "idle";
  return best;
}
