"""Which background work may share a step with work that somebody waits for?

Source: Agent.xpu, §4.4 (preemption at chunk and iteration boundaries), §4.5 (slack-aware piggybacking,
    starvation prevention).
Symbols: B_rf → what `Piggyback.plan` keeps; "threshold age" → ``age_s``.
Deviations: B_rf is 3 on the paper's hardware; here it is what the measured slack allows (``added_tpot`` of a
    reactive step's time). An aged prefill gets tokens of the step instead of a second accelerator, its two
    privileges being a prefill slot and a place in the batch past the bound. "Evicted" means left out of this
    step, with its KV kept.
Invariants: a step without reactive work leaves nobody out; reactive rows are never left out; an aged one
    is never left out; a prefill that is let in gets at least one block's tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from turnpike_vllm.step_time import StepTimeModel

NO_BOUND: Final = 1 << 40


@dataclass(frozen=True, kw_only=True)
class ClassesConfig:
    added_tpot: float = 0.10
    """How much longer background work may make a step that somebody waits for."""
    preempt_s: float = 0.05
    """How long a step of background work alone may last while a reactive session lives: its next request
    waits for two of them at most (one runs, one is queued), hence for 0.1 s."""
    age_s: float = 20.0
    """Background work that got no service for so long has aged."""
    aged_tpot: float = 1.0
    """How much longer it may make such a step once it has aged."""
    least_tokens: int = 64
    """Tokens that background prompts get of a step without reactive work, at least; and that aged ones get of
    what ``aged_tpot`` allows beside it, at most."""


class BackgroundRequest(NamedTuple):
    """A background request that runs."""

    key: object
    context: int
    """Tokens behind it."""
    admitted: float
    is_prefill: bool
    is_aged: bool


class StepShare(NamedTuple):
    """What background work gets of one step."""

    left_out: frozenset[object]
    prefill_tokens: int
    """At most so many tokens of background prompts, aged ones included."""
    aged_tokens: int
    """Aged prompts get so many in any case."""


ALL: Final = StepShare(frozenset(), NO_BOUND, NO_BOUND)


@dataclass
class Piggyback:
    config: ClassesConfig
    pace: StepTimeModel

    def plan(
        self,
        rows: Sequence[BackgroundRequest],
        *,
        reactive_rows: int,
        reactive_context: int,
        reactive_prefill: int,
        is_reactive_alive: bool,
    ) -> StepShare:
        """``reactive_rows`` decode, with ``reactive_context`` tokens behind them; so many tokens of reactive
        prompts are computed; whether a reactive session lives at all."""
        if not reactive_rows and not reactive_prefill:
            return self._alone(rows) if is_reactive_alive else ALL
        return self._beside(rows, reactive_rows, reactive_context, reactive_prefill)

    def _alone(self, rows: Sequence[BackgroundRequest]) -> StepShare:
        decoding = [each for each in rows if not each.is_prefill]
        tokens = self.pace.tokens_within(
            self.config.preempt_s, rows=len(decoding), context=sum(each.context for each in decoding)
        )
        bound = max(tokens, self.config.least_tokens)
        return StepShare(frozenset(), bound, bound)

    def _beside(
        self, rows: Sequence[BackgroundRequest], decoding: int, context: int, prefill: int
    ) -> StepShare:
        config, pace = self.config, self.pace
        takes_s = pace.predict(rows=decoding, context=context, prefill=prefill)
        within_s = (1.0 + config.added_tpot) * takes_s
        left_out: set[object] = set()
        # The longest leave first, then the newest (§4.5): the shortest and oldest are let in first.
        for request in sorted(rows, key=lambda each: (each.context, each.admitted)):
            if request.is_prefill:
                continue
            longer = context + request.context
            fits = pace.predict(rows=decoding + 1, context=longer, prefill=prefill) <= within_s
            if request.is_aged or fits:
                decoding, context = decoding + 1, longer
            else:
                left_out.add(request.key)
        aged_s = (1.0 + config.aged_tpot) * takes_s
        room = 0 if prefill else pace.tokens_within(within_s, rows=decoding, context=context)
        aged = pace.tokens_within(aged_s, rows=decoding, context=context) - prefill
        return StepShare(frozenset(left_out), room, max(0, min(aged, config.least_tokens)))
