// Written by `python -m tools.reasons`; change gateway/dashboard/sentences.py, not this file.

/** Why a turn waits. */
export const WAITS = {
  "concurrency_full": "all replicas that could run it were at `max_running_per_replica`",
  "window_full": "as many sessions were active as the limit allows",
  "tools_full": "the hosts of their tools had as many sessions as they can bear",
  "kv_full": "the active sessions are expected to need all of the KV cache",
  "behind_others": "other sessions waited already",
  "tenant_sessions": "its tenant had as many active sessions as its limit allows",
  "others_late": "its tenant's sessions had more than their share, and the others' turns were late",
  "no_replica": "no replica that could run it answered",
  "home_lost": "its replica was lost, and sessions move from there one by one",
};

/** Why it ran there. */
export const PLACES = {
  "least_loaded": "it has no home yet, and least went on there",
  "state_lives_there": "the stored state that it builds on lives there",
  "retried_elsewhere": "the replica that was tried before gave no answer",
  "session_lives_there": "its session's earlier turns ran there, so its KV cache may still be there",
  "home_is_full": "more live at its home than fit there, so they lose what they left",
  "home_is_busy": "its home ran far more than the others, or turns there were far later than elsewhere",
  "home_is_gone": "its home could not run it",
  "cheaper": "elsewhere it would not have been done so much sooner that it is worth the price",
};

/** Why it was refused. */
export const REFUSALS = {
  "malformed_http": "it was not valid HTTP",
  "headers_too_large": "its headers were too large",
  "body_too_large": "its body was too large",
  "unsupported_upgrade": "it asked for another protocol",
  "unsupported_coding": "its body is compressed in a way that is not known here",
  "request_timeout": "it was not sent in time",
  "unauthenticated": "it brought no valid key",
  "forbidden": "its key may not do this",
  "kv_field": "it named where an engine is to fetch KV cache from, which its key may not",
  "unknown_model": "nobody serves that model",
  "unknown_path": "no replica has that path, and one under /v1 was meant",
  "state_not_found": "it builds on state that is not known",
  "memory_full": "the gateway holds as many bytes, or connections, as it may",
  "queue_full": "the waiting room was full",
  "queue_timeout": "it waited as long as it may",
  "tenant_share": "the waiting room was full, and its tenant had the largest part of it",
  "tenant_quota": "its tenant has used up what it may have",
  "bound_reached": "its session, its kind of agent or its tenant has reached an operator's bound",
  "session_stopped": "an operator has stopped its session",
  "no_replica": "no replica that could run it answered",
  "draining": "the gateway is shutting down",
  "upstream_unreachable": "no replica could be reached",
  "upstream_timeout": "the replica did not answer in time",
  "upstream_broken": "the replica gave no answer that could be read",
  "upstream_broken_twice": "two attempts broke off, and a third might cost another replica",
  "local_fault": "the gateway could not open a connection",
  "internal": "the gateway failed",
};

/** Why the window was moved. */
export const MOVES = {
  "capacity": "engines said how much fits",
  "healthy": "no overload, little lost",
  "state_lost": "KV was lost that came back",
  "kv_overflow": "with their next turns sessions would hold more than fits, so the newest wait",
  "engines_have_time": "more may be in than fit: engines have the time to compute again what is lost",
  "engines_have_no_time": "only as many may be in as fit: engines have no time to compute lost state again",
  "preemptions": "engines preempted turns",
  "kv_full": "turns queued behind a full KV cache",
  "tools_slow": "tools slower than while fewer ran",
  "host_load": "the tools' hosts are loaded",
  "others_late": "turns of tenants within their share are late, so nobody may hold far more than its own",
  "others_in_time": "turns of tenants within their share are in time again",
};

/** How a turn follows another one. */
export const EDGES = {
  "opens": "opens a conversation",
  "continues": "continues the conversation",
  "retries": "repeats an attempt that failed",
  "forks": "a second branch of the conversation",
  "rewinds": "takes the conversation back",
  "compacts": "goes on from a summary of the conversation",
  "serves": "a side request, such as a title",
  "spawned": "a sub-agent, started by a tool call",
  "quotes": "another conversation that was handed an answer",
};

/** How its session was recognised. */
export const SOURCES = {
  "turnpike-header": "its client stated the session",
  "client-id": "an id of the client's own",
  "state-id": "stored state that it builds on",
  "call-id": "a tool call id that came back",
  "echo": "our own answer came back",
  "prefix": "the conversation is known",
  "retry": "the same request again",
  "quote": "it quotes a known conversation",
  "adjacent": "it came at once after an answer",
  "connection": "its body could not be read, so it is its connection's",
  "new": "first turn of a new session",
};
