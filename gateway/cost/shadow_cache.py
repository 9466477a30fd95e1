"""What would a fleet's KV caches have held, had turns run elsewhere? A cache that is kept in numbers only.

Source: ghost lists (Megiddo and Modha, *ARC*, FAST 2003): entries without contents, by which a cache tells
what another policy would have found.

Each replica keeps, of each conversation, how many tokens it holds beyond what the conversation shares with
the one that it began with; those least recently used go first, and of a conversation its end, as vLLM's
prefix cache frees blocks.

Deviations: tokens, not blocks. What a turn computes is held from when it is sent; nothing is held on purpose.

Invariants: a replica holds at most its capacity, and at most `MAX_HELD` conversations; of at most
`MAX_CONVERSATIONS` it is known what they begin with; of more than `MAX_REPLICAS` the one that was there first
is forgotten; what is found is at most what was held.
"""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, NamedTuple

MAX_CONVERSATIONS: Final = 32_768
MAX_HELD: Final = 16_384
MAX_REPLICAS: Final = 4_096
_MAX_PARTS: Final = 8
"""Forks of forks: beyond, a conversation is taken to share nothing."""
_ENDLESS: Final = float("inf")


class _Beginning(NamedTuple):
    """What a conversation shares with another one."""

    of: Hashable
    tokens: float


class _Replica:
    def __init__(self) -> None:
        self.held: OrderedDict[Hashable, float] = OrderedDict()
        """Conversation → tokens of its own, the least recently used first."""
        self.tokens = 0.0

    def put(self, conversation: Hashable, tokens: float) -> None:
        self.tokens += tokens - self.held.pop(conversation, 0.0)
        if tokens > 0:
            self.held[conversation] = tokens

    def shrink(self, capacity: float) -> None:
        while self.held and (self.tokens > capacity or len(self.held) > MAX_HELD):
            oldest, tokens = next(iter(self.held.items()))
            over = self.tokens - capacity
            left = tokens - over if len(self.held) <= MAX_HELD else 0.0
            if left > 0:
                self.held[oldest] = left
                self.tokens = capacity
                return
            del self.held[oldest]
            self.tokens -= tokens


class ShadowCache:
    """Of all replicas of a pool."""

    def __init__(self) -> None:
        self._replicas: dict[Hashable, _Replica] = {}
        self._beginnings: OrderedDict[Hashable, _Beginning] = OrderedDict()

    def begins_with(self, conversation: Hashable, other: Hashable, tokens: float) -> None:
        """To be told before the conversation's first turn: so many of its tokens are the other one's."""
        self._beginnings[conversation] = _Beginning(other, tokens)
        if len(self._beginnings) > MAX_CONVERSATIONS:
            self._beginnings.popitem(last=False)

    def found(self, replica: Hashable, conversation: Hashable, known_tokens: float) -> float:
        """Tokens that a turn finds there which goes on with so many that were there before it."""
        there = self._replicas.get(replica)
        return min(known_tokens, self._held(there, conversation)) if there is not None else 0.0

    def computed(
        self, replica: Hashable, conversation: Hashable, tokens: float, *, capacity: float | None
    ) -> None:
        """A turn ran there: its prompt and answer are held, so many tokens. `capacity`: tokens that fit; None
        if that is not known."""
        there = self._replicas.get(replica)
        if there is None:
            there = self._replicas[replica] = _Replica()
            if len(self._replicas) > MAX_REPLICAS:
                # Turns that are played late run on replicas that have left.
                del self._replicas[next(iter(self._replicas))]
        self._hold(there, conversation, tokens)
        if capacity is not None or len(there.held) > MAX_HELD:
            there.shrink(capacity if capacity is not None else float("inf"))

    def lost(self, replica: Hashable) -> None:
        """Its cache is gone."""
        self._replicas.pop(replica, None)

    def _held(self, there: _Replica, conversation: Hashable) -> float:
        """From its first token on, without a gap."""
        total = 0.0
        for part, begin, end in reversed(self._parts(conversation)):
            total = begin + there.held.get(part, 0.0)
            if total < end < _ENDLESS:
                return total
            total = min(total, end)
        return total

    def _hold(self, there: _Replica, conversation: Hashable, tokens: float) -> None:
        """The beginning last: what others begin with stays longest."""
        for part, begin, end in self._parts(conversation):
            own = max(0.0, min(tokens, end) - begin)
            there.put(part, own if part == conversation else max(own, there.held.get(part, 0.0)))

    def _parts(self, conversation: Hashable) -> list[tuple[Hashable, float, float]]:
        """Of what it consists, its own part first: whose, from which token, to which."""
        parts: list[tuple[Hashable, float, float]] = []
        part, end = conversation, _ENDLESS
        for _ in range(_MAX_PARTS):
            begins = self._beginnings.get(part)
            begin = min(begins.tokens, end) if begins is not None and len(parts) < _MAX_PARTS - 1 else 0.0
            parts.append((part, begin, end))
            if begins is None:
                break
            part, end = begins.of, begin
        return parts
