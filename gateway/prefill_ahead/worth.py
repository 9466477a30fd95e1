"""Prefill ahead: what is known of a next prompt is computed while its tools run, if that pays (U1).

Source: Sutradhara (arXiv 2601.12967), §4.1: parallel execution by prompt splitting.

Symbols: P_2a, the part that depends on no tool → the history under the next system prompt, with the last
answer behind it.

Theory of operation. A conversation that goes on under the system prompt that it had finds its history in the
cache: nothing is known of its next prompt that is not there. One that goes on under another one finds
nothing. Where that is foreseen, the history is sent ahead under it. If the guess is right, the same work is
done a little sooner, and the next turn is as much quicker as fits in the pause. If it is wrong, those that
run there were held up for nothing.

Deviations: the paper's orchestrator knows the next system prompt, sends ahead always, and the engine pins
what was computed; here it is a guess, and it must pay.

Invariants: pure.
"""

from enum import Enum
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from gateway.domain.request import Usage
from gateway.routing.placement import HOLDS_UP

# A next turn that found so much of what was computed for it used it; or all but
_ALL_OF_IT: Final = 0.9
# tokens: engines find whole blocks, and these have up to so many.
_LAST_BLOCK: Final = 128


class PrefillAheadConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    enabled: bool = False
    """While tools run, what is known of the next prompt is computed, if it will stand under another system
    prompt than the last one (docs/design/overlap.md)."""
    least_share: Annotated[float, Meta(gt=0, le=1)] = 0.5
    """How likely the next system prompt must be."""
    min_seen: Annotated[int, Meta(ge=1)] = 1
    """Conversations that must have gone on behind such a step, before one is guessed."""
    least_s: Annotated[float, Meta(ge=0)] = 0.05
    """What takes less to compute is not worth a request."""
    max_concurrent: Annotated[int, Meta(ge=1, le=100)] = 2
    """At a time, on one replica."""
    max_sessions: Annotated[int, Meta(ge=1)] = 20_000
    """Sessions that pause, of which it is remembered what they wait for."""
    kept_bytes: Annotated[int, Meta(ge=0)] = 256 << 20
    """Of requests whose conversations may go on, and of their answers, kept to be sent ahead; the
    oldest go first."""


def pays(
    config: PrefillAheadConfig, *, prefill_s: float, pause_s: float, probability: float, running: int
) -> bool:
    """Whether it is worth computing. `pause_s`: until the next turn comes, if it does; `probability`: that it
    comes and is as guessed; `running`: turns of others that run there.

    What is right is no more work than without: it is only done sooner."""
    if prefill_s < config.least_s:
        return False
    gained_s = probability * min(prefill_s, pause_s)
    lost_s = (1.0 - probability) * HOLDS_UP * prefill_s * running
    return gained_s > lost_s


class Outcome(Enum):
    """What became of a prefill ahead."""

    USED = "used"
    PARTLY_USED = "partly_used"
    WRONG = "wrong"
    """The next turn stood under another system prompt."""
    LOST = "lost"
    """The next turn stood under that one, and found nothing of it: it ran elsewhere, or too late."""
    LATE = "late"
    """The next turn came before it was done; what was computed by then is found, and not counted."""
    GAVE_WAY = "gave_way"
    """To others; so is what was computed by then."""
    CANCELLED = "cancelled"
    """No next turn came, or none that got an answer."""
    FAILED = "failed"


def outcome_of(computed: Usage | None, found: Usage | None, *, is_right: bool) -> tuple[Outcome, int]:
    """What became of a prefill whose next turn is over, and how many of its tokens that found.

    `computed`: None if it did not come to its end; `found`: None if the turn got no answer; `is_right`: its
    system prompt was foreseen."""
    if not is_right:
        return Outcome.WRONG, 0
    if found is None or found.prompt_tokens is None:
        return Outcome.CANCELLED, 0
    if computed is None or computed.prompt_tokens is None:
        return Outcome.LATE, 0
    before = computed.cached_tokens or 0
    most = max(0, computed.prompt_tokens - before)
    used = max(0, min(found.cached_tokens or 0, computed.prompt_tokens) - before)
    if used >= _ALL_OF_IT * most or most - used < _LAST_BLOCK:
        return Outcome.USED, used
    return (Outcome.PARTLY_USED if used else Outcome.LOST), used
