"""Turns: how soon they answer, and what of their prompts was computed again.

A token is *recomputed* if an earlier turn left it in a cache, by the workload's own account of what prompts
share within a session, and it was not found there: evicted, or cached on another replica. A preempted turn's
second prefill counts as well; it is what the engines computed beyond what the turns needed.
"""

import msgspec

from lab.simulator.measures.histogram import Histogram
from lab.simulator.results import TurnOutcome


class Turns(msgspec.Struct):
    count: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    preemptions: int = 0
    refusals: int = 0
    first_token_s: Histogram = msgspec.field(default_factory=Histogram)
    """From when the client asked first."""
    waited_s: Histogram = msgspec.field(default_factory=Histogram)
    """In the gateway, and between refusals."""
    queued_s: Histogram = msgspec.field(default_factory=Histogram)
    """In the engine, before it ran."""

    def turn_done(self, outcome: TurnOutcome) -> None:
        self.count += 1
        self.prompt_tokens += outcome.prompt_tokens
        self.cached_tokens += outcome.cached_tokens
        self.output_tokens += outcome.output_tokens
        self.preemptions += outcome.preemptions
        self.refusals += outcome.refusals
        self.first_token_s.add(outcome.first_token_s - outcome.arrival_s)
        self.waited_s.add(outcome.waited_s)
        self.queued_s.add(max(0.0, outcome.began_s - outcome.arrival_s - outcome.waited_s))

    @property
    def hit_rate(self) -> float | None:
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None
