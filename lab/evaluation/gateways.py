"""Replays recorded exchanges through several gateways that share a store; each goes to one at random.

The brains, the directory and the store are the real ones; passing a request on to the gateway that has its
session is a call. What a gateway published can be read before the next event: recorded moments lie further
apart than that takes. Recorded time passes faster than the store's: what lapses within a session's life is
taken out when its recorded time has come.
"""

import asyncio
import random
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Self

from gateway.core import events as ev
from gateway.core.commands import Command, Publish
from gateway.core.coordinator import Coordinator
from gateway.domain.ids import TenantId
from gateway.domain.request import RequestFacts
from gateway.shared_state.directory import Directory, Peer, name_key
from gateway.shared_state.opening import open_store
from gateway.shared_state.protocol import Entry, Store
from lab.evaluation.memory_store import MemoryStore
from lab.evaluation.recording import Exchange
from lab.evaluation.replay import Placed, Replay, recorded_brain, request_of

IN_MEMORY: Final = "memory://"
"""The URL of a store in this process."""
_CLIENT: Final = "recorded"
"""Where all requests come from: nothing but their content tells them apart."""
_IDLE_S: Final = 3600.0
_TOLD_AFTER_S: Final = 0.1
"""So long it takes until a gateway hears what another one tells all (`gateway/server/cluster/peers.py`)."""
_PATIENCE_S: Final = 1.0
"""Of a store: here nothing is decided without it."""


class _Gateway:
    def __init__(
        self,
        name: str,
        store: Store,
        peers: dict[str, Peer],
        found_twins: Callable[[Sequence[int]], None],
        *,
        now: float,
    ) -> None:
        """`found_twins`: told what the other gateways will hear of."""
        self.now = now
        self.brain: Coordinator = recorded_brain(now=now, prefix=name, publishes=True)
        self._tell = found_twins
        self.directory = Directory(
            store, name, peers, self._knows, found_twins=self._found_twins, idle_s=_IDLE_S
        )

    def _found_twins(self, names: Sequence[int]) -> None:
        self.brain.handle(ev.AmbiguousEvidence(tuple(names)), now=self.now)
        self._tell(names)

    def _knows(self, tenant: TenantId, facts: RequestFacts) -> bool:
        return self.brain.sessions.sessions.knows(tenant, facts, now=self.now)


class ReplayAmong(Replay):
    def __init__(
        self,
        exchanges: Sequence[Exchange],
        store: Store,
        runner: asyncio.Runner,
        *,
        count: int,
        without_ids: bool,
        kills_one: bool = False,
        are_busy: bool = False,
        seed: int = 0,
        tenant: TenantId,
    ) -> None:
        """`kills_one`: the gateway that has most turns is killed when half of the exchanges have arrived;
        `are_busy`: new sessions begin wherever they come in; `seed`: which gateway gets what; `tenant`: whose
        they are, another one's for each replay that shares a store."""
        super().__init__(exchanges, without_ids=without_ids, tenant=tenant)
        self._store, self._runner = store, runner
        self._rng = random.Random(seed)  # noqa: S311 - no secret
        names = [f"g{number}" for number in range(count)]
        self._peers = {name: {o: Peer(is_busy=are_busy) for o in names if o != name} for name in names}
        now = exchanges[0].t if exchanges else 0.0
        self._gateways = {
            name: _Gateway(name, store, self._peers[name], self._found_twins, now=now) for name in names
        }
        self._twins: deque[tuple[float, tuple[int, ...]]] = deque()
        """What two gateways gave, and when the others hear of it."""
        self._of: dict[str, str] = {}
        """Which gateway each request went to."""
        self._lapses: dict[int, float] = {}
        """When names that do so soon mean nothing any more."""
        self._kill_at = len(exchanges) // 2 if kills_one else None
        self.passed_on = 0

    def _arrive(self, number: int, now: float) -> None:
        if number == self._kill_at:
            for lost in self._kill():
                self._arrive(lost, now)  # its client sends it again
        self._forget_lapsed(now)
        for gateway in self._gateways.values():
            gateway.now = now
        while self._twins and self._twins[0][0] <= now:
            twins = ev.AmbiguousEvidence(self._twins.popleft()[1])
            for gateway in self._gateways.values():
                gateway.brain.handle(twins, now=now)
        facts = self.facts_of(number)
        here = self._rng.choice(sorted(self._gateways))
        directory = self._gateways[here].directory
        request = ev.RequestArrived(request_of(number), self.tenant, facts)
        self._of[request.request] = here
        if not directory.is_here(self.tenant, facts):
            place = self._runner.run(directory.find(self.tenant, _CLIENT, facts))
            for trace in place.adopted:
                self._gateways[here].brain.handle(ev.SessionAdopted(trace), now=now)
            if place.owner is not None:
                self._of[request.request] = place.owner
                self.passed_on += 1
                owner = self._gateways[place.owner]
                if place.takes_over_session and not owner.directory.is_here(self.tenant, facts):
                    for trace in self._runner.run(owner.directory.inherited(self.tenant, facts)):
                        owner.brain.handle(ev.SessionAdopted(trace), now=now)
        self._send(request, now)

    def _found_twins(self, names: Sequence[int]) -> None:
        now = max(gateway.now for gateway in self._gateways.values())
        self._twins.append((now + _TOLD_AFTER_S, tuple(names)))

    def _forget_lapsed(self, now: float) -> None:
        lapsed = [name for name, until_s in self._lapses.items() if until_s < now]
        if lapsed:
            self._store.publish([Entry(name_key(name), None, _IDLE_S) for name in lapsed])
            for name in lapsed:
                del self._lapses[name]
            self._runner.run(self._store.flush())

    def _kill(self) -> list[int]:
        """Returns which requests it was answering."""
        had = list(self._of.values())
        lost = max(self._gateways, key=had.count)
        gone = self._gateways.pop(lost)
        for peers in self._peers.values():
            peers.pop(lost, None)
        return sorted(int(request) for request in gone.brain.live)

    def handle(self, event: ev.Event, *, now: float) -> list[Command]:
        assert isinstance(event, ev.RequestEvent)
        of = self._gateways[self._of[event.request]]
        of.now = now
        commands = of.brain.handle(event, now=now)
        published = [each for each in commands if isinstance(each, Publish)]
        for each in published:
            of.directory.publish(each)
            if each.lasts_s is not None:
                self._lapses.update(dict.fromkeys(each.names, now + each.lasts_s))
        if published:
            self._runner.run(self._store.flush())
        return commands


class SharedReplays:
    """Replays of one recording after the other, by gateways that share one store; a context manager."""

    def __init__(
        self, url: str, *, count: int, without_ids: bool, kills_one: bool = False, are_busy: bool = False
    ) -> None:
        """`url`: of the store. To enter it, and each replay, raises ConnectionError where the store is away:
        gateways would decide alone, and the figures would be of something else."""
        self._url = url
        self._how = partial(
            ReplayAmong, count=count, without_ids=without_ids, kills_one=kills_one, are_busy=are_busy
        )
        self._runner = asyncio.Runner()
        self._run = secrets.token_hex(8)
        self._count = 0

    def __enter__(self) -> Self:
        if self._url == IN_MEMORY:
            self._store: Store = MemoryStore(self._runner.get_loop().time)
        else:
            self._store = self._runner.run(open_store(self._url, deadline_s=_PATIENCE_S))
        try:
            self._must_be_up()
        except ConnectionError:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._store.aclose())
        self._runner.close()

    def __call__(self, exchanges: Sequence[Exchange]) -> list[Placed]:
        """Where every turn was put, in order of arrival."""
        self._count += 1
        self._store.on_replaced.clear()  # the gateways of the replay before are gone
        tenant = TenantId(f"recorded-{self._run}-{self._count}")
        found = self._how(exchanges, self._store, self._runner, seed=self._count, tenant=tenant).run()
        self._must_be_up()
        return found

    def _must_be_up(self) -> None:
        if not self._store.is_up:
            raise ConnectionError("the shared store does not answer")
