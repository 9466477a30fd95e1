"""Which gateway has the session that a request belongs to?

Source: ours (docs/design/several-gateways.md). A session lives at one gateway, which alone decides for it;
whoever receives a turn of it passes the request on. Three rules, the first that applies:

1. this gateway knows evidence of the request: here, without a look-up;
2. the store knows a gateway that published some of it: there; if that is gone, at its heir, with what it
   published: where it would begin if it was new;
3. nobody knows it, so it begins something new: at the home of its tenant if that has a quota, which is so
   counted in one place; else of what it names as its session; else of its client, but here if that gateway is
   busy.

All of a client's sessions are at one gateway, so what relates them to one another (a sub-agent's task,
a summary, a title) is seen by who has all of it, and never needs to be shared.

While the store is down the third rule takes the place of the second, and finds what began by it.

Where two gateways publish the same answer or id, given to sessions of their own, the store returns the
earlier value to the later one; that one marks the entry and notifies all. From then on it proves nothing
anywhere (`gateway/workflow/traces.py`), but still leads to a gateway, which may guess.

Invariants: rule 1 does no I/O; every look-up is bounded by the store's deadline; evidence of one tenant never
leads to a session of another.
"""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

import msgspec

from gateway.core.commands import Publish
from gateway.domain.ids import SessionId, TenantId
from gateway.domain.request import ExplicitId, RequestFacts, Work
from gateway.domain.turn_trace import TurnTrace
from gateway.identity import evidence
from gateway.identity.explicit_ids import SCHEMAS
from gateway.shared_state.allowances import Allowances
from gateway.shared_state.protocol import Entry, Store, StoreUnavailable
from gateway.shared_state.remote import GATHER_S
from gateway.wire.hashing import hash_text

# Stored responses are gone on with after a night; engines forget them when they restart.
_STATE_TTL_S: Final = 86_400.0
# Longer than it takes until what a gateway published can be read. A conversation that goes on and that
# nobody knows is looked up once more after that.
_SECOND_LOOK_S: Final = 2 * GATHER_S
_MAX_ADOPTED: Final = 8
# That an entry takes in Redis besides its key and value.
_ENTRY_BYTES: Final = 120


class Peer(msgspec.Struct, frozen=True):
    """Another gateway, by its heartbeat."""

    is_busy: bool = False
    """It takes no new sessions that could begin elsewhere."""


class Place(msgspec.Struct, frozen=True):
    """Where a request is to be decided."""

    owner: str | None = None
    """None: here."""
    takes_over_session: bool = False
    """The owner's by now, who may not have what the one that is gone knew: `inherited` says it."""
    adopted: tuple[TurnTrace, ...] = ()
    """What gateways that are gone knew of its session, oldest first; where it is decided here."""


HERE: Final = Place()


class Directory:
    def __init__(
        self,
        store: Store,
        origin: str,
        peers: Mapping[str, Peer],
        knows: Callable[[TenantId, RequestFacts], bool],
        *,
        found_twins: Callable[[Sequence[int]], None],
        idle_s: float,
        with_quotas: Collection[TenantId] = (),
        allowances: Allowances | None = None,
    ) -> None:
        """`origin`: this gateway's name; `peers`: those of the others that live; `knows`: whether the brain
        has evidence of a request; `found_twins`: called with the names of what two gateways gave; `idle_s`:
        for how long sessions are remembered; `allowances`: None if tenants may publish without limit."""
        self.origin = origin
        # What a name leads to begins so; the turn that left it follows.
        self._owner = origin.encode("ascii") + b" "
        self._store = store
        self._peers = peers
        self._knows = knows
        self._found_twins = found_twins
        store.on_replaced.append(self._replaced)
        self._idle_s = idle_s
        self.with_quotas = frozenset(with_quotas)
        self._allowances = allowances
        # Entries that were over their tenant's allowance.
        self.withheld = 0
        # The others may have taken this gateway for gone, and its sessions over: it looks these up, too.
        self.is_in_doubt = False

    def is_here(self, tenant: TenantId, facts: RequestFacts) -> bool:
        if facts.work not in (Work.GENERATE, Work.TUNNEL) and not facts.state_ids and not facts.stores:
            return True
        return not self.is_in_doubt and self._knows(tenant, facts)

    async def find(self, tenant: TenantId, client: str, facts: RequestFacts) -> Place:
        names = evidence.of_request(tenant, facts)
        try:
            found = await self._look_up(names) if names else []
            if not found and self._knows(tenant, facts):
                return HERE  # the store has lost it
            if not found and (facts.transcript.blocks or facts.state_ids):
                await asyncio.sleep(_SECOND_LOOK_S)
                found = await self._look_up(names)
            if found:
                owner = found[0][0]
                if owner == self.origin and not self.is_in_doubt:
                    return HERE
                if owner in self._peers:
                    return Place(owner)
                lost = [turn for owner, turn in found if owner not in self._peers]
                traces = await self._traces(tenant, facts, lost)
                if owner == self.origin and not traces:
                    return HERE
                if traces:
                    home = self._home(tenant, client, facts).owner if owner != self.origin else None
                    heir = await self._heir(tenant, traces[-1].session, home or self.origin)
                    if heir != self.origin:
                        return Place(heir, takes_over_session=True)
                    return HERE if owner == self.origin else Place(adopted=tuple(traces))
        except StoreUnavailable:
            if self._knows(tenant, facts):
                return HERE
        return self._home(tenant, client, facts)

    async def owner_of(self, tenant: TenantId, stated: str) -> str | None:
        """Another gateway that lives and has a session which its client calls so, in whichever way."""
        try:
            found = await self._look_up([evidence.of_stated(tenant, each.name, stated) for each in SCHEMAS])
        except StoreUnavailable:
            return None
        return next((owner for owner, _ in found if owner in self._peers), None)

    async def inherited(self, tenant: TenantId, facts: RequestFacts) -> tuple[TurnTrace, ...]:
        """What a gateway knew of the session whose heir this one is. That it is gone, who passed the request
        on may have found first."""
        try:
            found = await self._look_up(evidence.of_request(tenant, facts))
            traces = await self._traces(tenant, facts, [turn for _, turn in found])
            if traces:
                await self._heir(tenant, traces[-1].session, self.origin)
            return tuple(traces)
        except StoreUnavailable:
            return ()

    async def _look_up(self, names: Sequence[int]) -> list[tuple[str, bytes]]:
        values = await self._store.find([name_key(name) for name in names])
        found, twins = [], []
        for name, value in zip(names, values, strict=True):
            if value is not None:
                if value.startswith(_MARK):
                    twins.append(name)
                owner, _, turn = value.removeprefix(_MARK).partition(b" ")
                found.append((owner.decode("ascii"), turn))
        if twins:
            self._found_twins(twins)
        return found

    def _replaced(self, entry: Entry, there: bytes) -> None:
        if entry.value is None or not entry.value.startswith(self._owner):
            return
        if not there.startswith(self._owner):  # another's, or marked
            self._store.publish([Entry(entry.key, _MARK + entry.value, entry.ttl_s)])
            self._found_twins([int.from_bytes(entry.key[len(_NAME) :], "big")])

    async def _traces(self, tenant: TenantId, facts: RequestFacts, turns: Sequence[bytes]) -> list[TurnTrace]:
        keys = [_turn_key(tenant, turn) for turn in dict.fromkeys(turns)]
        values = await self._store.find(keys[:_MAX_ADOPTED])
        traces = []
        for value in values:
            with contextlib.suppress(msgspec.MsgspecError):  # nothing, or of another version of us
                traces.append(_TRACE.decode(value or b""))
        ours = _of_one_session([trace for trace in traces if trace.tenant == tenant], facts.explicit)
        if ours:
            stops = await self._store.find([_stop_key(trace.session) for trace in ours])
            for trace, stop in zip(ours, stops, strict=True):
                trace.stopped_for_s = float(stop) if stop is not None else 0.0
        return ours

    async def _heir(self, tenant: TenantId, session: SessionId, heir: str) -> str:
        """Who has a session whose gateway is gone: `heir`, but if one that lives was named before."""
        key, value = b"h:%s %s" % (session.encode("ascii"), tenant.encode()), heir.encode("ascii")
        named = (await self._store.claim(key, value, self._idle_s)).decode("ascii")
        if named == self.origin or named in self._peers:
            return named
        self._store.publish([Entry(key, value, self._idle_s)])
        return heir

    def _home(self, tenant: TenantId, client: str, facts: RequestFacts) -> Place:
        stated, has_quota = facts.explicit, tenant in self.with_quotas
        if has_quota:
            of = str(tenant)
        elif stated is not None:
            of = f"{tenant} {stated.schema} {stated.parent or stated.session}"
        else:
            of = f"{tenant} {client}"
        home = max((self.origin, *self._peers), key=lambda origin: hash_text(f"{origin} {of}"))
        if home == self.origin:
            return HERE
        if self._peers[home].is_busy and stated is None and not has_quota:
            return HERE
        return Place(home)

    def stopped(self, session: SessionId, for_s: float) -> None:
        self._store.publish([Entry(_stop_key(session), b"%f" % for_s, for_s)])

    def publish(self, command: Publish) -> None:
        """Takes effect for the others within milliseconds; nobody waits for it.

        What is too much for its tenant is withheld: another gateway takes the next turn for a new session's.
        """
        turn = command.request.encode("ascii")
        trace = command.trace
        ttl_s = self._idle_s if command.lasts_s is None else min(command.lasts_s, self._idle_s)
        if trace is not None and trace.states:
            ttl_s = _STATE_TTL_S
        value = self._owner + turn
        entries = [Entry(name_key(name), value, ttl_s, True) for name in command.given]
        if command.names:
            entries += [Entry(name_key(name), value, ttl_s) for name in command.names]
        size = len(entries) * (_ENTRY_BYTES + _NAME_BYTES + len(value))
        if trace is not None:
            key, encoded = _turn_key(command.tenant, turn), _ENCODER.encode(trace)
            entries.append(Entry(key, encoded, ttl_s))
            size += _ENTRY_BYTES + len(key) + len(encoded)
        if self._allowances is not None and not self._allowances.take(command.tenant, size * ttl_s):
            self.withheld += len(entries)
            return
        self._store.publish(entries)


_ENCODER: Final = msgspec.msgpack.Encoder()
_TRACE: Final = msgspec.msgpack.Decoder(TurnTrace)


def _of_one_session(traces: Sequence[TurnTrace], stated: ExplicitId | None) -> list[TurnTrace]:
    """Of what evidence led to, the strongest first, that of the session which that is of, oldest first:
    weaker evidence, such as an answer that others were given, too, may be of another one, which is not to be
    torn in two. An id that is stated for several sessions is none of any's own."""
    session = traces[0].session if traces else None
    ours = [each for each in traces if each.session == session or (stated is not None and not each.keys)]
    return sorted(ours, key=lambda trace: trace.turns)


_NAME: Final = b"n:"
_NAME_BYTES: Final = 10
# Before the value of a name that is two gateways'.
_MARK: Final = b"?"


def name_key(name: int) -> bytes:
    return _NAME + name.to_bytes(8, "big")


def _stop_key(session: SessionId) -> bytes:
    return b"s:" + session.encode("ascii")


def _turn_key(tenant: TenantId, turn: bytes) -> bytes:
    return b"t:%s %s" % (turn, tenant.encode())
