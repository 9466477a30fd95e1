"""What the engine is told of a conversation: the typed hint of `turnpike-vllm`, as it travels.

The request carries a provisional one, because an engine frees a request's blocks before any gateway has seen
the end of its answer; another follows at the pause, when it is known what the answer asks for.

Invariants: hints about a thread have growing numbers; a hint is text of less than
`turnpike_vllm.hints.MAX_TEXT` characters; no id in it is the client's.
"""

from typing import Final

from gateway.domain.ids import SessionId, ThreadId
from gateway.workflow.retention import RetentionDecision

try:
    from turnpike_vllm.hints import MAX_SECONDS, VERSION, Hint, sign
except ImportError:  # a gateway may be installed without it, and then has nothing to say to engines
    HAS_CONTRACT = False
else:
    HAS_CONTRACT = True

GONE: Final = RetentionDecision(reuse=0.0, retain_s=0.0, returns_in_s=None)


def signed(hint: str, key: str) -> str:
    return sign(hint, key)


class Hints:
    """Writes hints, and numbers them; None where the contract is not installed."""

    def __init__(self) -> None:
        self._number = 0

    def at_end(self, session: SessionId) -> str | None:
        if not HAS_CONTRACT:
            return None
        self._number += 1
        return Hint(session=session, seq=self._number, is_finished=True).as_json()

    def write(
        self,
        session: SessionId,
        thread: ThreadId,
        decision: RetentionDecision,
        *,
        is_final: bool = False,
        age_s: float | None = None,
        service_class: str | None = None,
    ) -> str | None:
        """`service_class`: `reactive` or `proactive`."""
        if not HAS_CONTRACT:
            return None
        self._number += 1
        returns_in_s = decision.returns_in_s
        # As `Hint.as_json` writes it, in a tenth of the time. Ids are ours: they need no escaping.
        said = (
            f'{{"v":{VERSION},"session":"{session}","seq":{self._number},"thread":"{thread}",'
            f'"retain_s":{min(decision.retain_s, MAX_SECONDS):.3f},"reuse":{decision.reuse:.4f}'
        )
        if service_class is not None:
            said += f',"class":"{service_class}"'
        if age_s is not None:
            said += f',"age_s":{max(0.0, age_s):.3f}'
        if returns_in_s is not None:
            said += f',"prefetch_in_s":{min(returns_in_s, MAX_SECONDS):.3f}'
        if is_final:
            said += ',"final":true'
        return said + "}"
