"""The agent execution graph (AEG): a model of the conversations of one agent type.

Source: SAGA (arXiv 2605.00528), §3.2: G = (V, E, P, φ), inferred from traffic; §3.3, tiers; Alg. 1, latencies
by tool. MARS (§4.2): each session is annotated with its work.

Symbols: V → `Node`, and START, END; φ → `Node.tools`; E, P → `Node.following`; H_t → `Node.pauses`; *explicit
hints*, *implicit traces*, *cold start* → `Tier`.

A conversation is a walk from START; each answer is a step to the node of its tool calls; END is the last.
Each node counts its successors, END among them, and the pauses until then: P(return) and the distribution of
pauses depend on the step. Growth of the context and the hazard of an end depend on the number of turns
(`lifetimes.py`): sessions differ more in that than steps do, and a chain of steps has no memory of it.
Together they give the chance that a session exists some turns from now, and its size then: remaining turns,
remaining KV time and peak footprint are sums over that.

Scarce evidence backs off to the broader class: the opening words of a step → its node → all nodes with tools,
or without → the same of the family (one owner, one client software) → a prior.

Deviations: a node is the exact set of tools of a step, not a position in a plan. Ends are not reported: a
long silence is taken for one (`conversations.py`), until a turn follows after all.

Invariants: pure; evidence of one owner is never read for another; probabilities lie in [0, 1], whatever the
history; memory is bounded: at most `max_types` types (the owner with most of them loses its longest unseen
first), each with at most `MAX_NODES` nodes, each with `_MAX_WORDS` words.
"""
