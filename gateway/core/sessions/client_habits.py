"""What clients do that costs them: prompts that no cache can hold, lost ids, leaving while they wait.

Source: ours (docs/reference/observability.md). A prefix cache ends where a prompt first differs from the one
before. So of each conversation the hashes of what its last prompt began with are kept, and compared
when the next turn continues it. A clock in the system prompt, a counter, tools in another order: something
changed, and what stands behind it did not. Where the messages differ as well (a summary took their place, the
oldest were dropped), the conversation is another one, and nothing is found.

Invariants: nothing is rewritten, and nothing is decided by it; hashes only; a turn costs one comparison; at
most `_MAX_KNOWN` pairs of a client and an agent type are known, those seen last.
"""

from collections import OrderedDict
from typing import Final

import msgspec

from gateway.domain.decision import Edge, SessionRef, SessionSource
from gateway.domain.request import Answer, PromptHead, RequestFacts
from gateway.identity.prompt_head import HASH_BYTES, SEGMENT_BYTES
from gateway.workflow.turns import Turn

_MAX_KNOWN: Final = 64
_MAX_LEFT: Final = 8
_ASIDE: Final = (Edge.SERVES, Edge.RETRIES)


class ConductView(msgspec.Struct, kw_only=True):
    """Turns of one agent type of one client."""

    client: str
    agent: str
    turns: int = 0
    """Turns with an earlier answer in their history."""
    unlinked: int = 0
    """Of these, those without proof of their session."""
    changed: int = 0
    """Of these, those with an early change of the prompt."""
    part: str = ""
    """Part of the newest change: `tools`, `tool_order`, `system` or `message` (the conversation's first
    one)."""
    at: int = 0
    """Place of it: the number of the tool, from 0, or about the byte of `system`."""
    measured: int = 0
    """Changed turns with reported cached tokens."""
    again_tokens: int = 0
    """Their tokens that the previous prompt had, too, and that were computed again."""
    left_after_s: list[float] = []
    """Seconds after which the newest clients left without an answer."""


class Conduct:
    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, int], ConductView] = OrderedDict()

    def arrived(self, turn: Turn, ref: SessionRef, facts: RequestFacts) -> None:
        after, thread = facts.transcript.head, turn.thread
        edge = ref.edge if ref.guess is None else ref.guess.edge
        if edge in _ASIDE or after is None:
            return
        before, thread.head = thread.head, after
        if before is None:
            thread.agent_type = facts.transcript.agent_type
        if facts.transcript.blocks or facts.state_ids:
            view = self._view(turn, facts)
            view.turns += 1
            view.unlinked += ref.source is SessionSource.NEW
            if before is not None and edge is Edge.CONTINUES and before != after:
                turn.changed = first_change(before, after)
                if turn.changed is not None:
                    view.part, view.at = turn.changed
                    view.changed += 1

    def ended(
        self, turn: Turn | None, facts: RequestFacts, answer: Answer | None, *, left_after_s: float | None
    ) -> None:
        """`left_after_s`: its client left so long after it came, and had got nothing."""
        if turn is None:
            return
        if left_after_s is not None:
            view = self._view(turn, facts)
            view.left_after_s = [*view.left_after_s, round(left_after_s, 2)][-_MAX_LEFT:]
        if answer is None or answer.usage.prompt_tokens is None or turn.is_side:
            return
        thread, prompt, cached = turn.thread, answer.usage.prompt_tokens, answer.usage.cached_tokens
        if turn.changed is not None and thread.head_tokens and cached is not None:
            view = self._view(turn, facts)
            view.measured += 1
            view.again_tokens += max(0, min(prompt, thread.head_tokens) - cached)
        thread.head_tokens = prompt

    def views(self) -> tuple[ConductView, ...]:
        return tuple(
            each for each in self._known.values() if each.changed or each.unlinked or each.left_after_s
        )

    def _view(self, turn: Turn, facts: RequestFacts) -> ConductView:
        key = facts.client_name, turn.thread.agent_type
        if (view := self._known.get(key)) is None:
            view = self._known[key] = ConductView(client=key[0], agent=f"{key[1]:016x}" if key[1] else "")
            if len(self._known) > _MAX_KNOWN:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        return view


def first_change(before: PromptHead, after: PromptHead) -> tuple[str, int] | None:
    """In which part the second stops being the first, and where, if what stands behind that is the same."""
    pairs = [one == other for one, other in zip(_split(before.opening), _split(after.opening), strict=False)]
    if not all(pairs[1:] or pairs):
        return None
    if before.tools != after.tools:
        some, others = _split(before.tools), _split(after.tools)
        return ("tool_order", 0) if sorted(some) == sorted(others) else ("tools", _differs_at(some, others))
    if before.system != after.system:
        return "system", SEGMENT_BYTES * _differs_at(_split(before.system), _split(after.system))
    return None if all(pairs) else ("message", 0)


def _split(hashes: bytes) -> list[bytes]:
    return [hashes[at : at + HASH_BYTES] for at in range(0, len(hashes), HASH_BYTES)]


def _differs_at(some: list[bytes], others: list[bytes]) -> int:
    both = enumerate(zip(some, others, strict=False))
    return next((at for at, (one, other) in both if one != other), min(len(some), len(others)))
