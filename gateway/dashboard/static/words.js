// What the stream's words mean, in sentences for the person who reads them.

/** The phases of a session, in the order in which a turn goes through them. */
export const PHASES = [
  { id: "queue", name: "queue", says: "waits in the gateway" },
  { id: "prefill", name: "prefill", says: "sent; no token yet" },
  { id: "decode", name: "decode", says: "generates" },
  { id: "tool", name: "tool", says: "its tools run" },
  { id: "idle", name: "idle", says: "nothing runs" },
];

export const WAITS = {
  concurrency_full: "every replica that could run it had as many turns as it may",
  window_full: "as many sessions were in as may be",
  tools_full: "as many sessions were in as the hosts of their tools can bear",
  kv_full: "the sessions that were in are expected to need all of the KV cache",
  behind_others: "other sessions waited already",
  no_replica: "no replica that could run it answered",
  home_lost: "its replica was lost, and sessions move from there one by one",
  tenant_sessions: "as many of the tenant's sessions were in as it may have",
  others_late: "the tenant's sessions had more than their share, and the others' turns were late",
};

export const PLACES = {
  least_loaded: "the least went on there",
  state_lives_there: "the state that it builds on is stored there",
  retried_elsewhere: "another replica had failed to answer",
  session_lives_there: "its session's earlier turns ran there, so their KV cache may still be there",
  home_is_full: "more live at its session's home than fit there, so they lose what they left",
  home_is_busy: "its session's home ran far more than the others",
  stolen: "it idled, and took the session over from a replica that had too many",
  home_is_gone: "its session's home could not run it",
};

/** Why the window was moved. */
export const MOVES = {
  capacity: "engines said how much fits",
  healthy: "no overload, little lost",
  state_lost: "KV was lost that came back",
  kv_overflow: "with their next turns sessions would hold more than fits, so the newest wait",
  engines_have_time: "more may be in than fit: engines have the time to compute again what is lost",
  engines_have_no_time: "only as many may be in as fit: engines have no time to compute again what is lost",
  preemptions: "engines preempted turns",
  kv_full: "turns queued behind a full KV cache",
  tools_slow: "tools slower than while fewer ran",
  host_load: "the tools' hosts are loaded",
  others_late: "turns of tenants within their share are late, so nobody may hold far more than its own",
  others_in_time: "turns of tenants within their share are in time again",
};

export const REFUSALS = {
  queue_full: "the waiting room was full",
  queue_timeout: "it had waited as long as it may",
  tenant_share: "the waiting room was full, and this tenant had the largest part of it",
  tenant_quota: "the tenant had used up what it may have",
  bound_reached: "the session, its kind of agent or the tenant had reached an operator's bound",
  session_stopped: "an operator had stopped the session",
  no_replica: "no replica could run it",
  draining: "the gateway was about to stop",
  memory_full: "the gateway's memory for bodies was full",
  unknown_model: "no pool serves this model",
  state_not_found: "the state that it builds on is not known",
  upstream_unreachable: "no replica could be reached",
  upstream_timeout: "the replica did not answer in time",
  upstream_broken: "the replica broke off before it answered",
  local_fault: "the gateway could not open a connection",
};

export const EDGES = {
  opens: "opens a conversation",
  continues: "continues the conversation",
  retries: "repeats an attempt that failed",
  forks: "a second branch of the conversation",
  rewinds: "takes the conversation back",
  compacts: "goes on from a summary of the conversation",
  serves: "a side request, such as a title",
  spawned: "a sub-agent, started by a tool call",
  quotes: "another conversation that was handed an answer",
};

/** What a conversation that is not a session's first is called in a row. */
export const THREADS = { spawned: "sub-agent", serves: "side", forks: "branch", quotes: "quotes", compacts: "summary" };

export const SOURCES = {
  "turnpike-header": "its client stated the session",
  "client-id": "an id of the client's own",
  "state-id": "stored state that it builds on",
  "call-id": "a tool call id that came back",
  echo: "our own answer came back",
  prefix: "the conversation is known",
  retry: "the same request again",
  quote: "it quotes a known conversation",
  adjacent: "it came at once after an answer",
  new: "nothing links it to an earlier turn",
};

export const KEYS = [
  ["↑ ↓", "session above, below; Page Up, Page Down, Home, End"],
  ["← →", "turn before, after"],
  ["Enter", "what was known and decided about the turn"],
  ["Esc", "close it, and back to the row"],
  ["Space", "fold or unfold sub-agents"],
  ["X", "stop the session, for who may act; it asks first"],
  ["+ −", "zoom in, out"],
  ["Shift ← →", "earlier, later"],
  ["0", "fit the sessions in view"],
  ["L", "follow what happens now"],
  ["/", "filter"],
  ["G", "graphs, and back"],
  ["H", "history, and back"],
  ["T", "theme: auto, light, dark"],
  ["?", "this list"],
];
