"""Which system prompt and tools will a conversation's next turn have? Learned from those that went on.

Source: Sutradhara (arXiv 2601.12967), §4.3: an orchestrator makes the next system prompt by rules of its own,
from the tools that were called.

Symbols: a system prompt with its tools → `Transcript.agent`, its hash.

Deviations: the orchestrator knows its rules; here they are counted, behind each type of agent
and step. A share is the count over all that went on, and one more: what was seen a few times is not certain.

Invariants: nothing that one owner teaches is read for another one; at most `max_steps` steps are remembered,
and `_MOST` agents behind each; the agents that a step distinguishes are counted against all that followed it.
"""

from typing import Final

import msgspec

from gateway.domain.ids import TenantId
from gateway.domain.tenant_lru import TenantLru
from gateway.workflow.aeg.graph import ToolSet

_MOST: Final = 16
# Counts behind one step are halved then: an orchestrator that was changed is learned anew soon.
_FADES_AT: Final = 64.0


class Expected(msgspec.Struct, frozen=True, gc=False):
    agent: int
    share: float
    """How likely, if the conversation goes on."""
    seen: float
    """Times that conversations went on behind such a step, of late."""


class _Followed(msgspec.Struct, eq=False):
    seen: float = 0.0
    counts: dict[int, float] = {}


class NextAgents:
    def __init__(self, max_steps: int) -> None:
        self._steps: TenantLru[TenantId, tuple[int, ToolSet], _Followed] = TenantLru(max_steps)

    def __len__(self) -> int:
        return len(self._steps)

    def learn(self, owner: TenantId, agent_type: int, tools: ToolSet, followed_by: int) -> None:
        known = self._steps.get(owner, (agent_type, tools))
        if known is None:
            known = _Followed()
            self._steps.put(owner, (agent_type, tools), known)
        known.seen += 1.0
        if followed_by in known.counts or len(known.counts) < _MOST:
            known.counts[followed_by] = known.counts.get(followed_by, 0.0) + 1.0
        if known.seen >= _FADES_AT:
            known.seen /= 2
            known.counts = {each: count / 2 for each, count in known.counts.items() if count > 1.0}

    def expected(self, owner: TenantId, agent_type: int, tools: ToolSet) -> Expected | None:
        known = self._steps.get(owner, (agent_type, tools))
        if known is None or not known.counts:
            return None
        likeliest = max(known.counts, key=known.counts.__getitem__)
        return Expected(likeliest, known.counts[likeliest] / (known.seen + 1.0), known.seen)
