// What the page calls things. What the stream's words mean is in reasons.js, which the gateway makes of
// gateway/dashboard/sentences.py, so that a terminal says the same.

import { GLOSSARY } from "./glossary.js";
import { SOURCES } from "./reasons.js";

export { EDGES, MOVES, PLACES, REFUSALS, SOURCES, WAITS } from "./reasons.js";

export const evidence = (source, confidence) => (source === "new" ? SOURCES.new : `${SOURCES[source] ?? source} (${Math.round(confidence * 100)} % sure)`);

/** The phases of a session, in the order in which a turn goes through them. */
export const PHASES = ["queue", "prefill", "decode", "tool", "idle"].map((id) => ({ id, name: id, says: GLOSSARY[id] }));

/** What a conversation that is not a session's first is called in a row. */
export const THREADS = { spawned: "sub-agent", serves: "side", forks: "branch", compacts: "summary" };

export const KEYS = [
  ["↑ ↓", "session above, below; Page Up, Page Down, Home, End"],
  ["← →", "turn before, after"],
  ["Enter", "what was known and decided about the turn"],
  ["Esc", "close it, and back to the row"],
  ["Space", "fold or unfold sub-agents"],
  ["X", "stop the session, if you may act; a dialog confirms it"],
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
