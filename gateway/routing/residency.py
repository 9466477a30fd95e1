"""Residency: how much of each conversation's KV cache is on each replica.

Source: SAGA (§5.1): the predicate cached(w, s).

Symbols: cached(w, s) → `held`, in tokens.

Deviations: SAGA asks its workers. A stock server tells nothing but, with each answer, how much of that prompt
it found (`cached_tokens`); so what it holds is estimated. It evicts what was used least recently: what a
conversation left there is gone once about as many tokens were written behind it as the cache has room for.
That number, the *horizon*, is learned from what was found and what was not. Where an engine tells which
blocks of a session it holds (`told`), that is believed instead, and where it holds fewer than a conversation
left, they are those from its beginning.

What all conversations of an agent begin with is kept apart: it belongs to none of them and outlives them.

Invariants: `held` is never more than was left; nothing is held where a replica was lost; at most
`max_conversations` are remembered, each on at most `_PLACES` replicas, the least recently used go first.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from gateway.domain.ids import ReplicaId, SessionId, ThreadId
from gateway.domain.request import Usage

_PLACES: Final = 4
_UNKNOWN_HORIZON: Final = 500_000.0
_HORIZON_SHARE: Final = 0.7
"""Of the KV cache, before anything was learned: the rest is what runs."""
_LESSON: Final = 0.2
_MISSED, _FOUND = 0.5, 0.9
"""Shares of what was expected to be found."""
_AGENTS: Final = 4096

Conversation = tuple[SessionId, ThreadId]


class ResidencyConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    max_conversations: Annotated[int, Meta(ge=1)] = 200_000
    """Conversations of which it is remembered what they left where."""


class _Left(msgspec.Struct, eq=False):
    tokens: float
    written: float
    """Of the replica, when it was left."""
    life: int
    """Of the replica."""


class _Replica(msgspec.Struct, eq=False):
    life: int
    """What was left in an earlier one is gone."""
    written: float = 0.0
    """Tokens that were computed there, as far as we know."""
    kv_tokens: float | None = None
    horizon: float | None = None
    told: dict[SessionId, float] | None = None
    """What the engine says, if it does."""
    named: OrderedDict[SessionId, None] = msgspec.field(default_factory=OrderedDict)
    """Of which sessions it ever said something. It may know some by other names, or not at all."""

    def reach(self) -> float:
        if self.horizon is not None:
            return self.horizon
        return _HORIZON_SHARE * self.kv_tokens if self.kv_tokens is not None else _UNKNOWN_HORIZON


class Residency:
    def __init__(self, config: ResidencyConfig) -> None:
        self._max = config.max_conversations
        self._left: OrderedDict[Conversation, dict[ReplicaId, _Left]] = OrderedDict()
        self._agents: OrderedDict[int, dict[ReplicaId, _Left]] = OrderedDict()
        self._shared_tokens: dict[int, float] = {}
        self._replicas: dict[ReplicaId, _Replica] = {}
        self._lives = 0

    # --- questions ---------------------------------------------------------------------------------

    def held(self, conversation: Conversation, replica: ReplicaId) -> float:
        """Tokens of it that a turn of it would find there."""
        known, places = self._replicas.get(replica), self._left.get(conversation)
        left = places.get(replica) if places is not None else None
        if known is None or left is None:
            return 0.0
        if known.told is not None and conversation[0] in known.named:
            return min(left.tokens, known.told.get(conversation[0], 0.0)) if left.life == known.life else 0.0
        return left.tokens * _survives(known, left)

    def shared(self, agent: int, replica: ReplicaId) -> float:
        """Tokens that a new conversation of this agent would find there, of what all of them begin with."""
        known, places = self._replicas.get(replica), self._agents.get(agent)
        left = places.get(replica) if places is not None else None
        if known is None or left is None:
            return 0.0
        return self._shared_tokens.get(agent, 0.0) * _survives(known, left)

    def context(self, conversation: Conversation) -> float:
        """Tokens that it had last, wherever they are."""
        places = self._left.get(conversation)
        return max([left.tokens for left in places.values()]) if places else 0.0

    # --- what happens ------------------------------------------------------------------------------

    def turn_over(
        self, conversation: Conversation, replica: ReplicaId, usage: Usage, *, agent: int, opens: bool
    ) -> None:
        """A turn was answered. `opens`: nothing of its conversation was there before."""
        prompt = usage.prompt_tokens
        if prompt is None:
            return
        known = self._of(replica)
        output = usage.output_tokens or 0
        if usage.cached_tokens is not None:
            self._learn(conversation, replica, known, prompt, usage.cached_tokens, agent, opens=opens)
        found = usage.cached_tokens
        known.written += output + (prompt - found if found is not None else prompt / 2)
        if agent:
            self._remember_agent(agent, replica, known)
        places = self._left.get(conversation)
        if places is None:
            places = self._left[conversation] = {}
            if len(self._left) > self._max:
                self._left.popitem(last=False)
        else:
            self._left.move_to_end(conversation)
            places.pop(replica, None)
        places[replica] = _Left(float(prompt + output), known.written, known.life)
        if len(places) > _PLACES:
            del places[next(iter(places))]

    def forget(self, conversation: Conversation) -> None:
        self._left.pop(conversation, None)

    def lost(self, replica: ReplicaId) -> None:
        """Nothing that it held is there any more."""
        known = self._replicas.get(replica)
        if known is not None:
            known.life = self._new_life()
            known.told = {} if known.told is not None else None

    def replica_left(self, replica: ReplicaId) -> None:
        """It is no member any more."""
        self._replicas.pop(replica, None)
        for places in self._agents.values():
            places.pop(replica, None)

    def has_room_for(self, replica: ReplicaId, kv_tokens: float) -> None:
        """The engine said how many tokens fit."""
        self._of(replica).kv_tokens = kv_tokens

    def told(self, replica: ReplicaId, tokens: Mapping[SessionId, float] | None) -> None:
        """What the engine holds of its sessions; None: it does not say any more."""
        known = self._of(replica)
        known.told = dict(tokens) if tokens is not None else None
        for session in tokens or ():
            known.named[session] = None
        while len(known.named) > self._max:
            known.named.popitem(last=False)

    def _of(self, replica: ReplicaId) -> _Replica:
        return self._replicas.get(replica) or self._replicas.setdefault(replica, _Replica(self._new_life()))

    def _new_life(self) -> int:
        self._lives += 1
        return self._lives

    # --- lessons -----------------------------------------------------------------------------------

    def _learn(
        self,
        conversation: Conversation,
        replica: ReplicaId,
        known: _Replica,
        prompt: int,
        cached: int,
        agent: int,
        *,
        opens: bool,
    ) -> None:
        if opens:
            if cached and agent and self._agents.get(agent):
                before = self._shared_tokens.get(agent, float(cached))
                self._shared_tokens[agent] = before + 0.5 * (cached - before)
            return
        places = self._left.get(conversation)
        left = places.get(replica) if places is not None else None
        expected = min(left.tokens, prompt) if left is not None else 0.0
        if left is None or expected < 1.0 or left.life != known.life:
            return
        age, share = known.written - left.written, cached / expected
        if share >= _FOUND and age > known.reach():
            known.horizon = age
        elif share < _MISSED and age < known.reach():
            known.horizon = known.reach() + _LESSON * (age - known.reach())

    def _remember_agent(self, agent: int, replica: ReplicaId, known: _Replica) -> None:
        places = self._agents.get(agent)
        if places is None:
            places = self._agents[agent] = {}
            if len(self._agents) > _AGENTS:
                oldest, _ = self._agents.popitem(last=False)
                self._shared_tokens.pop(oldest, None)
        else:
            self._agents.move_to_end(agent)
        left = places.get(replica)
        if left is None:
            places[replica] = _Left(0.0, known.written, known.life)
        else:
            left.written, left.life = known.written, known.life


def _survives(known: _Replica, left: _Left) -> float:
    """The share of what was left that should be there still: it goes from its end, around the horizon."""
    if left.life != known.life:
        return 0.0
    age, horizon = known.written - left.written, known.reach()
    if age <= 0.9 * horizon:
        return 1.0
    return max(0.0, (1.1 * horizon - age) / (0.2 * horizon))
