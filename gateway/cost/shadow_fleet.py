"""What would a fleet have done with the same turns, had somebody else placed them? Played along, in numbers
only.

Source: a replica is what `roofline.py` takes it for: prompts are computed one after another, and rows that
decode go on beside them, a token a step. How long both take is asked of whoever has watched the real ones
(`estimator.py`). What is cached there is `shadow_cache.py`.

Deviations: a fluid: between two events of a replica all its rows advance alike. A prompt begins when what it
needs fits beside what runs, as vLLM's `--scheduler-reserve-full-isl` has it; nothing is preempted, and no
step has noise.

Invariants: events happen in the order of their times; the turns of a conversation run one after another; a
replica is never ahead of `until_s`, and takes no room while it has nothing to do; at most `MAX_BEHIND` turns
are not over, further ones are left out; a call of `play` ends after so many events as it is given.
"""

import heapq
from collections import deque
from collections.abc import Callable, Hashable
from typing import Final, Protocol

import msgspec

from gateway.cost.shadow_cache import ShadowCache
from gateway.domain.ids import ReplicaId

MAX_BEHIND: Final = 20_000
EVENTS: Final = 256
"""That a call plays at most: some 2 ms."""
_CHUNK: Final = 8192
"""Tokens of a prompt in a step; while it is computed a row gets a token for each."""
_NEVER: Final = float("inf")
_DUE_S: Final = 1e-6
"""What is over within so long, is over now: more than the grain of a clock that counts from 1970 (0.2 µs),
below which nothing would ever pass."""


class Costs(Protocol):
    """What a replica's engine takes, in seconds."""

    def prompt_s(self, replica: ReplicaId, new_tokens: float, cached_tokens: float) -> float:
        """A prompt, alone."""
        ...

    def step_s(self, replica: ReplicaId, rows: int, context_tokens: float) -> float:
        """A step of so many rows that decode, whose contexts are so long together."""
        ...

    def kv_tokens(self, replica: ReplicaId) -> float | None:
        """As many as fit; None if nobody says."""
        ...


class ShadowTurn(msgspec.Struct, kw_only=True, gc=False, eq=False):
    conversation: Hashable
    known: float
    """Tokens of its prompt that were there before it."""
    prompt: float
    output: float
    found: float | None = None
    """Of its prompt, that are cached; None: what the shadow's own caches hold."""
    sent_s: float = 0.0
    first_s: float = 0.0
    """When its prompt was computed."""
    ended_s: float | None = None
    then: "list[Callable[[ShadowTurn], object]]" = []
    """Told of its end."""

    @property
    def tokens(self) -> float:
        return self.prompt + self.output


class Totals(msgspec.Struct):
    """Of all replicas together."""

    busy_s: float = 0.0
    """There was something to compute."""
    computed_tokens: float = 0.0
    """Of prompts."""
    found_tokens: float = 0.0
    """Of prompts, that the shadow's caches held."""
    given_tokens: float = 0.0
    """Of prompts, that were not computed: as was said, or as its caches held them."""


class _Replica:
    """While it has anything to do."""

    def __init__(
        self, name: ReplicaId, costs: Costs, cache: ShadowCache, totals: Totals, at_s: float
    ) -> None:
        self.name = name
        self.at_s = at_s
        self._totals = totals
        self.waiting: deque[ShadowTurn] = deque()
        self.rows: list[tuple[float, int, ShadowTurn]] = []
        """By the number of the step in which they end."""
        self.steps = 0.0
        """Of which all rows have had a token."""
        self.context = 0.0
        """Of the rows together."""
        self.prompt: ShadowTurn | None = None
        """That is computed."""
        self.left_s = 0.0
        self.steps_per_s = 0.0
        self._costs = costs
        self._cache = cache
        self._numbers = 0

    def begin(self) -> None:
        """The next prompt, if none is computed and it fits; says how fast what is there goes on."""
        if self.prompt is None and self.waiting:
            first = self.waiting[0]
            fits = self._costs.kv_tokens(self.name)
            if fits is None or not self.rows or self.context + first.tokens <= fits:
                self.prompt = self.waiting.popleft()
                held = self._cache.found(self.name, self.prompt.conversation, self.prompt.known)
                held = min(held, self.prompt.prompt - 1)
                found = self.prompt.found if self.prompt.found is not None else held
                self._totals.found_tokens += held
                self._totals.given_tokens += found
                self._cache.computed(self.name, self.prompt.conversation, self.prompt.tokens, capacity=fits)
                new = max(1.0, self.prompt.prompt - found)
                self._totals.computed_tokens += new
                steps, name = 1 + new // _CHUNK, self.name
                self.left_s = self._costs.prompt_s(name, new, found)
                if self.rows:  # what they read, in each of its steps
                    alone_s = self._costs.step_s(name, 1, 1.0)
                    self.left_s += steps * max(
                        0.0, self._costs.step_s(name, len(self.rows), self.context) - alone_s
                    )
                self.steps_per_s = steps / self.left_s
        if self.prompt is None and self.rows:
            self.steps_per_s = 1 / self._costs.step_s(self.name, len(self.rows), self.context)

    def next_s(self) -> float:
        """When something of it is over."""
        ends_s = self.at_s + self.left_s if self.prompt is not None else _NEVER
        if self.rows:
            ends_s = min(ends_s, self.at_s + max(0.0, self.rows[0][0] - self.steps) / self.steps_per_s)
        return ends_s

    def advance(self, to_s: float) -> None:
        passed_s = to_s - self.at_s
        self.at_s = to_s
        if self.prompt is None and not self.rows:
            return
        self._totals.busy_s += passed_s
        self.left_s -= passed_s
        if self.rows:
            self.steps += passed_s * self.steps_per_s

    def over(self) -> list[ShadowTurn]:
        """The turns that end now."""
        ended = []
        if self.prompt is not None and self.left_s <= _DUE_S:
            turn, self.prompt = self.prompt, None
            turn.first_s = self.at_s
            self._numbers += 1
            heapq.heappush(self.rows, (self.steps + turn.output - 1, self._numbers, turn))
            self.context += turn.tokens
        while self.rows and self.rows[0][0] - self.steps <= _DUE_S * self.steps_per_s:
            turn = heapq.heappop(self.rows)[2]
            self.context -= turn.tokens
            turn.ended_s = self.at_s
            ended.append(turn)
        if not self.rows:
            self.context = 0.0
        return ended


class ShadowFleet:
    def __init__(self, costs: Costs, place: Callable[[], ReplicaId | None] = lambda: None) -> None:
        """`place`: the replica of a turn that arrives and was sent to none; None if there is none."""
        self.cache = ShadowCache()
        self.totals = Totals()
        self.behind = 0
        """Turns that are not over."""
        self.left_out = 0
        self._costs = costs
        self._place = place
        self._replicas: dict[ReplicaId, _Replica] = {}
        self._next: dict[ReplicaId, float] = {}
        """When something of it is over. Here, as above, are those that have anything to do."""
        self._arrivals: list[tuple[float, int, ReplicaId | None, ShadowTurn]] = []
        self._numbers = 0
        self._now = 0.0

    def send(self, turn: ShadowTurn, replica: ReplicaId | None, *, at_s: float) -> bool:
        """`replica`: None if it is placed when it arrives. False if it is left out."""
        if self.behind >= MAX_BEHIND:
            self.left_out += 1
            return False
        self.behind += 1
        self._numbers += 1
        turn.sent_s = max(at_s, self._now)
        heapq.heappush(self._arrivals, (turn.sent_s, self._numbers, replica, turn))
        return True

    def play(self, until_s: float, *, events: int = EVENTS) -> bool:
        """False if there were more than so many: the rest is for the next call."""
        for _ in range(events):
            arrives_s = self._arrivals[0][0] if self._arrivals else _NEVER
            first = min(self._next, key=self._next.__getitem__, default=None)
            ends_s = self._next[first] if first is not None else _NEVER
            now = min(arrives_s, ends_s)
            if now > until_s or now == _NEVER:
                return True
            self._now = now
            if ends_s <= arrives_s:
                assert first is not None
                replica = self._replicas[first]
                replica.advance(now)
                ended = replica.over()
            else:
                _, _, name, turn = heapq.heappop(self._arrivals)
                name = name or self._place()
                if name is None:
                    self.behind -= 1
                    self.left_out += 1
                    continue
                replica = self._replicas.get(name) or self._joined(name)
                replica.advance(now)
                replica.waiting.append(turn)
                ended = []
            replica.begin()
            if (next_s := replica.next_s()) < _NEVER:
                self._next[replica.name] = next_s
            else:
                del self._replicas[replica.name]
                self._next.pop(replica.name, None)
            for turn in ended:
                self.behind -= 1
                for told in turn.then:
                    told(turn)
                turn.then = []
        return False

    def _joined(self, name: ReplicaId) -> _Replica:
        made = self._replicas[name] = _Replica(name, self._costs, self.cache, self.totals, self._now)
        return made
