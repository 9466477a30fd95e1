"""The agent execution graph (AEG): what is known of how conversations of one agent type go on.

Source: SAGA (arXiv 2605.00528), §3.2: G = (V, E, P, φ), inferred from traffic; §3.3, tiers of what is known;
Alg. 1, latencies by tool. MARS (§4.2): each session is annotated with its work.

Symbols: V → `Node`, and START, END; φ → `Node.tools`; E, P → `Node.following`; H_t → `Node.pauses`; *explicit
hints*, *implicit traces*, *cold start* → `Tier`.

A conversation is a walk. It begins at START; each answer is a step to the node of the tools that it asks for;
at END nobody comes back. Of each node it is counted what followed, END among it, and how long the pause
was until then: so P(return) and the law of pauses hang on the step. How much a turn adds to the context, and
whether a conversation is near its end, hangs on how many turns it made: sessions differ more in that than
steps do, and a chain of steps alone forgets it. So these two are kept by number of turns (`lifetimes.py`).
Together they give the chance that a session is there some turns from now, and what it holds then: remaining
turns, remaining KV time and peak footprint are sums over that.

What was hardly seen is expected to be like its broader class: a way of saying it → the node → all nodes that
ask for tools, or do not → the same of the family (one owner, one client software) → a prior.

Deviations: a node is the exact set of tools of a step, not a position in a plan. Nobody says that a
conversation is over: an end is supposed after a silence (`conversations.py`), and taken back if it was none.

Invariants: pure; nothing that one owner teaches is read for another one; probabilities lie in [0, 1],
whatever the history; memory is bounded: at most `max_types` types (whoever has most of them loses its
longest unseen first), of each at most `MAX_NODES` nodes and `_MAX_WORDS` ways of saying each.
"""
