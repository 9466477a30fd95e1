"""What the control listener answers about how things are, as JSON.

Nothing here holds the event loop for longer than some hundred sessions or records take: in between, requests
go on. What was made for one is given to all who ask soon after; how soon depends on how long it took to make.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from itertools import islice
from typing import Any, Final

import msgspec

from gateway import __version__
from gateway.budgets.budgets import PriceConfig
from gateway.core.coordinator import Coordinator
from gateway.core.snapshot import MAX_SESSIONS, Gauges, SessionViews, take_gauges
from gateway.dashboard.explain import Explainer, Explanation
from gateway.dashboard.turn_log import TurnLog
from gateway.domain.engine import EngineSignals, PluginReport
from gateway.domain.ids import ReplicaId, RequestId, SessionId
from gateway.domain.records import Record
from gateway.telemetry.ring import Ring

_SESSIONS_AT_ONCE: Final = 50
_RECORDS_AT_ONCE: Final = 1000
_LEAST_AGE_S: Final = 0.5
_LATELY_S: Final = 10.0
# A snapshot serves for so many times what it took to make.
_SHARE: Final = 50
_NO_RING: Final = Ring(0, 0)


class Views:
    def __init__(
        self,
        brain: Coordinator,
        ring: Ring | None,
        signals: Mapping[ReplicaId, EngineSignals],
        plugins: Mapping[ReplicaId, PluginReport],
        *,
        clock: Callable[[], float],
        outcome: Callable[[], Any] = lambda: None,
        prices: Mapping[str, PriceConfig] | None = None,
    ) -> None:
        """`outcome`: sessions in time. `prices`: by model. `signals`, `plugins`: the newest reports of
        engines; their owner keeps them up to date."""
        self._brain = brain
        self._ring = ring if ring is not None else _NO_RING
        self._signals = signals
        self._plugins = plugins
        self._clock = clock
        self.began_s = clock()
        self._log = TurnLog(self._ring)
        self._making = asyncio.Lock()
        self._made = b""
        self._fresh_until_s = float("-inf")
        self._viewed_s = float("-inf")
        self._outcome, self._prices = outcome, prices
        # Where agents connect, as a URL; None before they can.
        self.listens_at: str | None = None
        self.is_store_up: Callable[[], bool | None] = lambda: None
        self.failing: Callable[[], list[str]] = list
        # Whoever knows them puts them here.
        self.first_words: Mapping[SessionId, str] = {}
        # Whoever learns graphs puts itself here.
        self.graphs: Callable[[], list[Any]] = list

    @property
    def is_looked_at(self) -> bool:
        return self._clock() - self._viewed_s < _LATELY_S

    async def snapshot(self) -> bytes:
        async with self._making:
            self._viewed_s = began_s = self._clock()
            if began_s >= self._fresh_until_s:
                self._made = await self._make()
                ended_s = self._clock()
                self._fresh_until_s = ended_s + max(_LEAST_AGE_S, _SHARE * (ended_s - began_s))
            return self._made

    def gauges(self) -> bytes:
        self._viewed_s = self._clock()
        gauges = take_gauges(self._brain, self._signals, self._plugins, now=self._viewed_s)
        return msgspec.json.encode({**self._about(gauges), "pools": gauges.pools})

    def _about(self, gauges: Gauges) -> dict[str, Any]:
        return {
            "at_s": gauges.at_s,
            "began_s": self.began_s,
            "version": __version__,
            "listen": self.listens_at,
            "store_down": self.is_store_up() is False,
            "failing": self.failing(),
            "outcome": self._outcome(),
            "prices": self._prices,
            **{name: getattr(gauges, name) for name in _SHOWN},
        }

    async def explain(self, turn: RequestId) -> Explanation | None:
        running = {state.facts.id: state.running for state in self._brain.fleet if state.is_up}
        explainer = Explainer(turn, running)
        async for some in self._newest_first():
            explainer.read(some)
        return explainer.explanation()

    async def session(self, session: SessionId) -> dict[str, Any] | None:
        """Its turns with the records that the ring has of them. None if nothing is known of it."""
        while not self._log.catch_up(_RECORDS_AT_ONCE):  # noqa: ASYNC110
            await asyncio.sleep(0)
        live, views = self._brain.sessions.sessions.get(session), SessionViews(self._brain, self.first_words)
        row = _session_row(views.view(live, self._log.of(session), now=self._clock())) if live else None
        found: dict[RequestId, list[Record]] = {}
        async for some in self._newest_first():
            for record in some:
                if getattr(record, "session", None) == session and hasattr(record, "turn"):
                    found.setdefault(record.turn, []).insert(0, record)
        turns = sorted(found.items(), key=lambda item: item[1][0].at_s)
        if not turns and row is None:
            return None
        return {
            "session": row,
            "kin": [],
            "turns": [{"turn": turn, "records": records} for turn, records in turns],
            "is_cut": False,
        }

    async def _newest_first(self) -> AsyncIterator[list[Record]]:
        records = self._ring.newest_first()
        while some := list(islice(records, _RECORDS_AT_ONCE)):
            yield some
            await asyncio.sleep(0)

    async def _make(self) -> bytes:
        brain, log, encode = self._brain, self._log, msgspec.json.encode
        for _ in range(2 * self._ring.size // _RECORDS_AT_ONCE + 2):  # more keep coming
            if log.catch_up(_RECORDS_AT_ONCE):
                break
            await asyncio.sleep(0)
        number = log.number
        gauges = take_gauges(brain, self._signals, self._plugins, now=self._clock())
        pools = [msgspec.structs.replace(pool, updates=log.updates(pool.id)) for pool in gauges.pools]
        about = {**self._about(gauges), "seq": number, "pools": pools}
        views = SessionViews(brain, self.first_words)
        newest = list(islice(brain.sessions.sessions.newest_first(), MAX_SESSIONS))
        sessions = []
        for start in range(0, len(newest), _SESSIONS_AT_ONCE):
            some = newest[start : start + _SESSIONS_AT_ONCE]
            part = [views.view(each, log.of(each.id), now=gauges.at_s) for each in some]
            sessions.append(encode(part)[1:-1])
            await asyncio.sleep(0)
        return b'%s,"sessions":[%s]}' % (encode(about)[:-1], b",".join(sessions))


_SHOWN: Final = (
    *("session_count", "running", "waiting", "active_tools", "waiting_by", "replicas", "tenants", "conduct"),
)


_OF_A_ROW: Final = (
    *("tenant", "parent", "source", "confidence", "first_words", "started_s", "turns", "troubles"),
    *("prompt_tokens", "cached_tokens", "output_tokens"),
)


def _session_row(view: Any) -> dict[str, Any]:
    return {
        "session": view.id,
        "schema": view.schema or view.client or None,
        "model": view.last_turns[-1].model if view.last_turns else None,
        "last_s": view.last_seen_s,
        "ended_s": None,
        "end_reason": None,
        **{name: getattr(view, name) for name in _OF_A_ROW},
    }
