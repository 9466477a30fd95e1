"""Lessons: what a turn that was answered teaches of its session, of sessions of its type, and of the engines.

Invariants: what a session holds is learned of every turn, what its type is like of a bounded number a second,
of which no tenant can take another's share; a session that drops out of that sample never comes back, so what
it taught is as if we had looked away.
"""

import math
from typing import Final

from gateway.admission.applicant import Applicant, TurnOutcome
from gateway.admission.limits import Limits
from gateway.admission.sessions import Member, Places, ThreadState
from gateway.domain.decision import Edge
from gateway.domain.ids import TenantId, ThreadId

_PER_S: Final = 50
"""In all; whoever had less than its share of them may have that nevertheless."""
_CONTINUING: Final = (Edge.CONTINUES, Edge.RETRIES)
_NO_THREAD: Final = ThreadId("")


class Lessons:
    def __init__(self, places: Places, limits: Limits) -> None:
        self._places = places
        self._limits = limits
        self._given = 0
        self._given_to: dict[TenantId, int] = {}
        self._since_s = -math.inf

    def learn(
        self,
        member: Member,
        applicant: Applicant,
        outcome: TurnOutcome,
        *,
        may_find_warm: bool,
        is_studied: bool,
    ) -> None:
        """`may_find_warm`: when it began, what its session left behind was still there, for all we know.
        `is_studied`: as `may_study` said of this turn."""
        places, usage = self._places, outcome.usage
        self._limits.gpu.studied.add(float(is_studied))
        thread = applicant.thread or _NO_THREAD
        before = member.threads.get(thread)
        before_tokens = before.tokens if before is not None else None
        prompt = usage.prompt_tokens if usage.prompt_tokens is not None else applicant.prompt_tokens
        tokens = prompt + (usage.output_tokens or 0)
        if is_studied:
            grown = tokens - before_tokens if before_tokens else None
            self._study(applicant, outcome, before, grown=grown, may_find_warm=may_find_warm)
        life = self._limits.life_of(outcome.replica)
        places.remember(member, thread, tokens, prompt, outcome.replica, life)
        if not outcome.has_calls and member.held > 2 * tokens:
            # A sub-agent that is done, a title: what it leaves behind is of no use to the others.
            if any(other.tokens > tokens for other in member.threads.values()):
                places.thread_is_over(member, thread)
        member.is_spilled = False

    def may_study(self, member: Member, *, now: float) -> bool:
        """Whether a turn of it that ends now teaches something. To be asked once a turn."""
        if not member.is_studied:
            return False
        if now >= self._since_s + 1.0:
            self._since_s, self._given = now, 0
            self._given_to.clear()
        had = self._given_to.get(member.tenant, 0)
        if self._given >= _PER_S and had >= _PER_S // max(1, len(self._given_to)):
            member.is_studied = False
        else:
            self._given += 1
            self._given_to[member.tenant] = had + 1
        return member.is_studied

    def _study(
        self,
        applicant: Applicant,
        outcome: TurnOutcome,
        before: ThreadState | None,
        *,
        grown: float | None,
        may_find_warm: bool,
    ) -> None:
        limits, usage = self._limits, outcome.usage
        continues = applicant.edge in _CONTINUING
        if usage.prompt_tokens is not None and may_find_warm and continues:
            is_there = before is not None and before.replica == outcome.replica
            if before is not None and is_there and before.life == limits.life_of(outcome.replica):
                left = min(before.prompt_tokens, usage.prompt_tokens)
                computed = usage.prompt_tokens - (usage.cached_tokens or 0)
                limits.gpu.saw_warm_turn(
                    left,
                    usage.cached_tokens,
                    token_s=outcome.prefill_s / max(1, computed) if outcome.prefill_s is not None else None,
                    is_pool_half_empty=limits.is_half_empty(),
                )
        if grown is not None and continues:
            limits.grown.add(grown)
