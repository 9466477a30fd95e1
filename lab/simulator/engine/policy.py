"""The seam for what plugin an engine from within: baselines and ablations override what they need.

Every hook asks one question. One that is not overridden is never called, costs nothing and leaves vLLM
exactly as it is.
"""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from lab.simulator.engine.turn import EngineTurn


class Retained(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Blocks that are held though no request runs on them."""

    turn: EngineTurn
    """Whose prompt and output they are."""
    since_s: float
    until_s: float
    blocks: int


class EnginePolicy:
    """One engine's plugin. Times are the simulation's."""

    waiting_grace_s: float = 1.0
    """So long do retained blocks keep a waiting request out, if others run."""
    keeps_openings: bool = False
    """With `eviction_rank`: texts that prompts of several sessions open with are overwritten last."""
    shrinks_chunks: bool = False
    """A prompt's chunk shrinks to what fits, down to one block, before anything is released or preempted."""
    kv_used: Callable[[], float] = staticmethod(lambda: 0.0)
    """Share of the engine's blocks that are held; the engine sets it."""

    def priority(self, turn: EngineTurn, *, now: float) -> int:
        """How urgent is this turn, for `SchedulingPolicy.PRIORITY`? The lowest runs first."""
        raise NotImplementedError

    def order_waiting(self, waiting: Sequence[EngineTurn], *, now: float) -> Sequence[EngineTurn]:
        """In which order should those that wait be let in? All of them, once each. Asked before each step."""
        raise NotImplementedError

    def retain_until(self, turn: EngineTurn, *, now: float) -> float | None:
        """A turn ended: until when should its blocks be held? None for not at all.

        They are let go before that when the conversation's next turn has taken them over, or under pressure:
        at once for a running request that needs a block or if nothing runs, after `waiting_grace_s` for one
        that waits.
        """
        raise NotImplementedError

    def release_order(self, retained: Sequence[Retained], *, now: float) -> Sequence[Retained]:
        """Under pressure: what is let go first? Not overridden: what would be held the shortest."""
        raise NotImplementedError

    def eviction_rank(self, turn: EngineTurn, *, now: float) -> float:
        """Whose cached blocks, that nobody uses, should be overwritten first? Those of the lowest rank.

        Asked for the latest turn of every conversation that has such blocks, when one is needed. Of a turn
        the last block goes first. Not overridden: whatever was used the longest time ago.
        """
        raise NotImplementedError


HOOKS: Final = ("priority", "order_waiting", "retain_until", "release_order", "eviction_rank")


def overridden(policy: EnginePolicy | None, hook: str) -> bool:
    """Whether the policy has something to say there."""
    assert hook in HOOKS
    return policy is not None and getattr(type(policy), hook) is not getattr(EnginePolicy, hook)
