"""Work stealing: an idle replica takes a session over from one that has too many (S7).

Source: SAGA (§3.1, §5.2).

Symbols: T_idle → `idle_s`; R_max → `ratio`; w_i → the thief; w_j → the victim.

Deviations: §5.2 triggers on idleness *or* the ratio, and its safeguard (a) wants both at once: so do we. What
is stolen is a session between two turns, whose tools run: in front of stock servers a turn that was sent
cannot be called back, and one that waits in the gateway goes wherever there is room. Load is what the
sessions that live on a replica take there, as all of them are idle now and then. SAGA moves the KV cache; in
front of stock servers the thief computes it, from the prompt of the last turn, while the session's tools run.

Invariants: a session is stolen at most `most` times, and never within `cooldown_s` of the last time, so not
back either; a steal that is claimed before the thief has what was stolen, when it has got busier than the
victim, or later than `valid_s`, is refused, and the session stays; memory is bounded by the sessions that
pause and were stolen.
"""

import random
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from gateway.domain.fleet import ReplicaLoad
from gateway.domain.ids import ReplicaId, RequestId, SessionId
from gateway.routing.kv_ledger import Conversation

_Seconds = Annotated[float, Meta(ge=0, le=86_400)]
_REMEMBERED: Final = 20_000
_TRIED: Final = 8
"""Sessions of a victim that are looked at, before it keeps all."""


class StealingConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    enabled: bool = False
    """Replicas that idle take sessions over from those that have too many. In simulations it makes no
    difference (docs/design/routing.md)."""
    idle_s: _Seconds = 0.1
    """How long a replica must have run nothing."""
    ratio: Annotated[float, Meta(ge=1, le=100)] = 2.0
    """How many times as much as the thief, with the stolen session, the victim must bear."""
    cooldown_s: _Seconds = 60.0
    """A session that was stolen stays for so long."""
    most: Annotated[int, Meta(ge=0, le=100)] = 3
    """Times that a session may be stolen."""
    valid_s: _Seconds = 300.0
    """A steal that was not claimed for so long is void."""


class Steal(msgspec.Struct, eq=False):
    conversation: Conversation
    turn: RequestId
    """Its last one."""
    victim: ReplicaId
    thief: ReplicaId
    decided_s: float
    is_there: bool = False
    """The thief has what the turn left."""


class _Past(msgspec.Struct, eq=False):
    """Of a session that was stolen."""

    times: int
    last_s: float


class Stealing:
    def __init__(self, config: StealingConfig, rng: random.Random) -> None:
        self._config = config
        self._rng = rng
        self._pausing: dict[ReplicaId, OrderedDict[Conversation, RequestId]] = {}
        """Their last turns, by replica; who pauses for longest first."""
        self._at: dict[Conversation, ReplicaId] = {}
        self._idle_since_s: dict[ReplicaId, float] = {}
        self._decided: dict[Conversation, Steal] = {}
        self._past: OrderedDict[SessionId, _Past] = OrderedDict()

    # --- what happens ------------------------------------------------------------------------------

    def paused(self, conversation: Conversation, replica: ReplicaId, turn: RequestId) -> None:
        """Its tools run now, as that turn's answer asked for."""
        self.goes_on(conversation)
        self._pausing.setdefault(replica, OrderedDict())[conversation] = turn
        self._at[conversation] = replica

    def goes_on(self, conversation: Conversation) -> None:
        """Its next turn came, or it ended."""
        replica = self._at.pop(conversation, None)
        if replica is not None:
            del self._pausing[replica][conversation]

    def session_ended(self, conversation: Conversation) -> None:
        self.goes_on(conversation)
        self._decided.pop(conversation, None)
        self._past.pop(conversation[0], None)

    def look(
        self,
        loads: Sequence[ReplicaLoad],
        burden: Callable[[ReplicaId, int], float],
        has_room: Callable[[ReplicaId, SessionId], bool],
        *,
        now: float,
    ) -> Steal | None:
        """Whether somebody steals now. To be asked at least whenever a turn ends.

        `burden`: what a replica bears with so many more sessions than live there; `has_room`: for what this
        session will hold, as expected.
        """
        if not self._at:
            return None
        thief = self._thief(loads, burden, now=now)
        if thief is None:
            return None
        least = self._config.ratio * burden(thief, 1)
        victims = [
            load.replica
            for load in loads
            if load.running > 1 and load.replica != thief and burden(load.replica, 0) >= least
        ]
        if not victims:
            return None
        victim = self._rng.choice(victims)
        conversation = self._oldest(victim, thief, has_room, now=now)
        if conversation is None:
            return None
        turn = self._pausing[victim][conversation]
        steal = self._decided[conversation] = Steal(conversation, turn, victim, thief, now)
        self._idle_since_s[thief] = now  # it has something to wait for
        return steal

    def moved(self, steal: Steal, *, is_there: bool) -> None:
        """The thief has what was stolen, or will not; that is tried once in a pause."""
        steal.is_there = is_there
        if not is_there and self._decided.get(steal.conversation) is steal:
            del self._decided[steal.conversation]
            self.goes_on(steal.conversation)

    # --- at the next turn --------------------------------------------------------------------------

    def claim(
        self, conversation: Conversation, loads: Sequence[ReplicaLoad], *, now: float
    ) -> ReplicaId | None:
        """Where a turn goes that was stolen; None if it was not, or not any more."""
        steal = self._decided.pop(conversation, None)
        if steal is None or not steal.is_there or now - steal.decided_s > self._config.valid_s:
            return None
        running = {load.replica: load.running for load in loads}
        if steal.thief not in running or running[steal.thief] > running.get(steal.victim, 0):
            return None
        past = self._past.pop(conversation[0], None)
        times = past.times + 1 if past is not None else 1
        self._past[conversation[0]] = _Past(times, now)
        if len(self._past) > _REMEMBERED:
            self._past.popitem(last=False)
        return steal.thief

    def replica_lost(self, replica: ReplicaId) -> None:
        self._idle_since_s.pop(replica, None)

    def replica_left(self, replica: ReplicaId) -> None:
        for conversation in self._pausing.pop(replica, ()):
            del self._at[conversation]

    # --- who ---------------------------------------------------------------------------------------

    def _thief(
        self, loads: Sequence[ReplicaLoad], burden: Callable[[ReplicaId, int], float], *, now: float
    ) -> ReplicaId | None:
        """Of those that have idled for long enough, the one that bears least."""
        found, fewest = None, float("inf")
        for load in loads:
            if load.running:
                self._idle_since_s.pop(load.replica, None)
                continue
            since_s = self._idle_since_s.setdefault(load.replica, now)
            if now - since_s >= self._config.idle_s and (bears := burden(load.replica, 1)) < fewest:
                found, fewest = load.replica, bears
        return found

    def _oldest(
        self,
        victim: ReplicaId,
        thief: ReplicaId,
        has_room: Callable[[ReplicaId, SessionId], bool],
        *,
        now: float,
    ) -> Conversation | None:
        """Of those that pause there, who may be stolen, finds room, and has paused for longest."""
        for tried, conversation in enumerate(self._pausing.get(victim, ())):
            if tried >= _TRIED:
                return None
            past = self._past.get(conversation[0])
            if conversation in self._decided or not has_room(thief, conversation[0]):
                continue
            if past is None or (
                past.times < self._config.most and now - past.last_s >= self._config.cooldown_s
            ):
                return conversation
        return None
