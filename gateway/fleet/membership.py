"""Membership: which replicas the fleet has, by what was set, found or registered (U5).

Source: Sutradhara (§4.4), membership by heartbeat.

Deviations: a member that is merely silent is not lost at once: it is lost when its time to live has passed,
and health checks know sooner. What a list says (a file, DNS) is a member for as long as the list says it.

Invariants: an address is a member at most once, under one name; a name is never given to two members at a
time; of each pool at most `most` have joined that were not set.
"""

import re
from collections.abc import Collection
from typing import Final

import msgspec

from gateway.domain.ids import PoolId, ReplicaId

MOST: Final = 1024
"""Of a pool, found or registered."""
_NAME_CHARACTERS: Final = 63
SET: Final = "set"
REGISTERED: Final = "registered"


class Member(msgspec.Struct, frozen=True, kw_only=True):
    name: ReplicaId
    pool: PoolId
    url: str
    origin: str
    """`set`, `registered`, or the list that it stands in."""


class Changes(msgspec.Struct, frozen=True):
    joined: tuple[Member, ...] = ()
    left: tuple[Member, ...] = ()


class MembershipError(Exception):
    """Why somebody cannot be a member, for a person."""


class Membership:
    def __init__(self, members: Collection[Member], *, most: int = MOST) -> None:
        self._most = most
        self._members = {member.name: member for member in members}
        self._expires_s: dict[ReplicaId, float] = {}

    def __contains__(self, name: ReplicaId) -> bool:
        return name in self._members

    def settings_say(self, members: Collection[Member]) -> Changes:
        """Those that are set from now on. Who was found or has registered under the address or the name of
        one of them gives way."""
        wanted = {member.name: member for member in members}
        urls = {member.url for member in members}
        left = tuple(
            member
            for member in self._members.values()
            if wanted.get(member.name) != member
            and (member.origin == SET or member.name in wanted or member.url in urls)
        )
        for member in left:
            del self._members[member.name]
            self._expires_s.pop(member.name, None)
        joined = tuple(member for member in members if member.name not in self._members)
        self._members.update({member.name: member for member in joined})
        return Changes(joined, left)

    def list_says(self, pool: PoolId, origin: str, urls: Collection[str]) -> Changes:
        """All that this list says now; what it said before and says no more, leaves."""
        wanted = dict.fromkeys(url.rstrip("/") for url in urls)
        left = [member for member in self.of_list(pool, origin) if member.url not in wanted]
        for member in left:
            del self._members[member.name]
        joined = [
            self._join(pool, url, origin)
            for url in wanted
            if self._find(url) is None and self._of_pool(pool) < self._most
        ]
        return Changes(tuple(joined), tuple(left))

    def of_list(self, pool: PoolId, origin: str) -> list[Member]:
        return [each for each in self._members.values() if each.origin == origin and each.pool == pool]

    def heartbeat(
        self, pool: PoolId, url: str, name: str | None, *, ttl_s: float, now: float
    ) -> tuple[Member, bool]:
        """The member, and whether it has just joined. Raises MembershipError."""
        url = url.rstrip("/")
        member = self._find(url)
        is_new = member is None
        if member is None:
            if self._of_pool(pool) >= self._most:
                raise MembershipError(f"pool {pool} has as many members as it may have, {self._most}")
            if name is not None and ReplicaId(name) in self._members:
                raise MembershipError(f"there is another member of the name {name}")
            member = self._join(pool, url, REGISTERED, name)
        elif member.pool != pool or (name is not None and member.name != name):
            raise MembershipError(f"{url} is a member already: {member.name} of pool {member.pool}")
        if member.origin == REGISTERED:
            self._expires_s[member.name] = now + ttl_s
        return member, is_new

    def withdraw(self, name: ReplicaId) -> Member:
        """It says that it leaves. Raises MembershipError if that is not for it to say."""
        member = self._members.get(name)
        if member is None or member.origin != REGISTERED:
            raise MembershipError(f"no member of the name {name} has registered")
        del self._members[name], self._expires_s[name]
        return member

    def expired(self, *, now: float) -> tuple[Member, ...]:
        """Those that were not heard of for too long; they are members no more."""
        gone = [name for name, expires_s in self._expires_s.items() if expires_s <= now]
        for name in gone:
            del self._expires_s[name]
        return tuple(self._members.pop(name) for name in gone)

    def _find(self, url: str) -> Member | None:
        return next((member for member in self._members.values() if member.url == url), None)

    def _of_pool(self, pool: PoolId) -> int:
        return sum(each.pool == pool and each.origin != SET for each in self._members.values())

    def _join(self, pool: PoolId, url: str, origin: str, name: str | None = None) -> Member:
        """Without a name of its own it is called by its address; clients read that in receipts, so operators
        who mind name their replicas."""
        address = re.sub(r"[^A-Za-z0-9]+", "-", url.split("://", 1)[-1]).strip("-")
        stem = f"{pool}-{address}"[:_NAME_CHARACTERS]
        chosen, number = ReplicaId(name or stem), 2
        while chosen in self._members:
            chosen, number = ReplicaId(f"{stem[: _NAME_CHARACTERS - 4]}-{number}"), number + 1
        self._members[chosen] = Member(name=chosen, pool=pool, url=url, origin=origin)
        return self._members[chosen]
