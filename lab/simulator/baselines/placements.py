"""Where other gateways send a turn, behind our admission: what our placement is compared with.

Source: vLLM's production stack (`session`: a hash ring over replicas; `prefixaware`: the replica that has
seen the longest beginning of the prompt) and smg, SGLang's gateway (`cache_aware`: the same if enough of the
prompt was seen there, else where the least was seen; the shortest queue where queues are far apart), and
llm-d (`prefix-cache-scorer` and `queue-scorer`, weighted as its guides do, 3 to 2).
SAGA's rule is in `session_affinity.py`.

Symbols: production stack's trie and smg's radix trees → what was sent where, by conversation and by what the
conversations of an agent share; smg's `cache_threshold`, `balance_abs_threshold`, `balance_rel_threshold` →
`THRESHOLD`, `FAR_APART`, `FAR_APART_SHARE`, with its defaults.

Deviations: the beginning of a prompt that is known is known exactly, by its conversation, and that which
agents share by what engines found of it; the originals compare texts, and forget. llm-d's queue is what a
replica runs, as behind our admission hardly anything waits in it, and its KV use is left out.

Invariants: the chosen replica is one of the candidates; nothing is ever forgotten.
"""

import zlib
from bisect import bisect
from collections.abc import Callable, Sequence
from typing import Final

from gateway.domain.decision import Placement, PlacementReason, SessionRef
from gateway.domain.fleet import ReplicaLoad
from gateway.domain.ids import ReplicaId, SessionId, ThreadId
from gateway.domain.request import Usage
from gateway.routing.placement_policy import NOTHING_KNOWN, PlacementPolicy, Query
from lab.simulator.baselines.session_affinity import SessionAffinity

THRESHOLD: Final = 0.3
FAR_APART: Final = 64
FAR_APART_SHARE: Final = 1.5
PREFIX_WEIGHT: Final = 3.0
LOAD_WEIGHT: Final = 2.0
_ON_THE_RING: Final = 160


def _there(replica: ReplicaId) -> Placement:
    return Placement(replica=replica, reason=PlacementReason.LEAST_LOADED)


class RoundRobin(PlacementPolicy):
    def __init__(self) -> None:
        super().__init__()
        self._turn = 0

    def place(
        self, candidates: Sequence[ReplicaLoad], session: SessionRef | None, query: Query = NOTHING_KNOWN
    ) -> Placement:
        self._turn += 1
        return _there(candidates[self._turn % len(candidates)].replica)


class FewestRunning(PlacementPolicy):
    def place(
        self, candidates: Sequence[ReplicaLoad], session: SessionRef | None, query: Query = NOTHING_KNOWN
    ) -> Placement:
        return self._by_load.place(candidates)


class SessionHash(PlacementPolicy):
    """As the production stack's `session` router."""

    def __init__(self) -> None:
        super().__init__()
        self._rings: dict[frozenset[ReplicaId], tuple[list[int], list[ReplicaId]]] = {}

    def place(
        self, candidates: Sequence[ReplicaLoad], session: SessionRef | None, query: Query = NOTHING_KNOWN
    ) -> Placement:
        names = frozenset(load.replica for load in candidates)
        if names not in self._rings:
            points = sorted(
                (zlib.crc32(f"{name}#{point}".encode()), name)
                for name in names
                for point in range(_ON_THE_RING)
            )
            self._rings[names] = ([at for at, _ in points], [name for _, name in points])
        ring, owners = self._rings[names]
        stated = session.session if session is not None else ""
        return _there(owners[bisect(ring, zlib.crc32(stated.encode())) % len(owners)])


class _Seen(PlacementPolicy):
    """What was sent where."""

    def __init__(self) -> None:
        super().__init__()
        self._conversations: dict[tuple[SessionId, ThreadId], dict[ReplicaId, int]] = {}
        self._agents: dict[int, set[ReplicaId]] = {}
        self._agent_of: dict[tuple[SessionId, ThreadId], int] = {}
        self._shared_bytes: dict[int, int] = {}
        self._tree_bytes: dict[ReplicaId, int] = {}

    def seen(self, session: SessionRef | None, query: Query, replica: ReplicaId) -> int:
        """Bytes of the prompt's beginning."""
        if session is None:
            return 0
        own = self._conversations.get((session.session, session.thread), {}).get(replica, 0)
        is_known = replica in self._agents.get(query.agent.agent_type, ())
        shared = self._shared_bytes.get(query.agent.agent_type, 0) if is_known else 0
        return min(query.text_bytes, max(own, shared))

    def send(self, session: SessionRef | None, query: Query, replica: ReplicaId) -> Placement:
        if session is not None:
            more = query.text_bytes - self.seen(session, query, replica)
            self._tree_bytes[replica] = self._tree_bytes.get(replica, 0) + more
            places = self._conversations.setdefault((session.session, session.thread), {})
            places[replica] = query.text_bytes
            self._agent_of[session.session, session.thread] = query.agent.agent_type
            self._agents.setdefault(query.agent.agent_type, set()).add(replica)
        return _there(replica)

    def turn_over(
        self, session: SessionRef, replica: ReplicaId, usage: Usage, *, pauses: bool, now: float
    ) -> None:
        """The first turn of a conversation finds what it shares with others."""
        key = (session.session, session.thread)
        places = self._conversations.get(key, {})
        if session.parent is None and len(places) == 1 and usage.cached_tokens and usage.prompt_tokens:
            share = usage.cached_tokens / usage.prompt_tokens
            found = int(share * places.get(replica, 0))
            agent = self._agent_of[key]
            self._shared_bytes[agent] = max(self._shared_bytes.get(agent, 0), found)


class PrefixTrie(_Seen):
    """As the production stack's `prefixaware` router: load counts for nothing."""

    def place(
        self, candidates: Sequence[ReplicaLoad], session: SessionRef | None, query: Query = NOTHING_KNOWN
    ) -> Placement:
        seen = [(self.seen(session, query, load.replica), load.replica) for load in candidates]
        most = max(seen)[0]
        best = [replica for found, replica in seen if found == most]
        named = session.session if session is not None else ""
        return self.send(session, query, best[zlib.crc32(named.encode()) % len(best)])


class CacheAware(_Seen):
    """As smg's `cache_aware` policy."""

    def place(
        self, candidates: Sequence[ReplicaLoad], session: SessionRef | None, query: Query = NOTHING_KNOWN
    ) -> Placement:
        running = [load.running for load in candidates]
        most, least = max(running), min(running)
        if most - least > FAR_APART and most > FAR_APART_SHARE * least:
            shortest = min(candidates, key=lambda load: load.running)
            return self.send(session, query, shortest.replica)
        found, best = max((self.seen(session, query, load.replica), load.replica) for load in candidates)
        if query.text_bytes and found / query.text_bytes > THRESHOLD:
            return self.send(session, query, best)
        smallest = min(candidates, key=lambda load: self._tree_bytes.get(load.replica, 0))
        return self.send(session, query, smallest.replica)


class PrefixScore(_Seen):
    """As llm-d's scorers, summed: of the prompt what was seen there, and how little runs."""

    def place(
        self, candidates: Sequence[ReplicaLoad], session: SessionRef | None, query: Query = NOTHING_KNOWN
    ) -> Placement:
        running = [load.running for load in candidates]
        most, least = max(running), min(running)

        def score(load: ReplicaLoad) -> float:
            matched = self.seen(session, query, load.replica) / max(1, query.text_bytes)
            idle = (most - load.running) / (most - least) if most > least else 1.0
            return PREFIX_WEIGHT * matched + LOAD_WEIGHT * idle

        return self.send(session, query, max(candidates, key=score).replica)


PLACEMENTS: Final[dict[str, Callable[[], PlacementPolicy]]] = {
    "round-robin": RoundRobin,
    "least-loaded": FewestRunning,
    "session-hash": SessionHash,
    "prefix-trie": PrefixTrie,
    "cache-aware": CacheAware,
    "prefix-score": PrefixScore,
    "affinity": SessionAffinity,
}
"""Of others, by name."""
