"""Membership: the fleet's replicas by settings, discovery and registration (U5).

Source: Sutradhara (§4.4), membership by heartbeat.

Deviations: a silent member is lost only after its time to live; health checks notice sooner. Entries of a
list (a file, DNS) are members while they are listed.

Invariants: an address is a member at most once, under one name; two members never have one name; of each pool
at most `most` members are not from settings.
"""

import re
from collections.abc import Collection
from typing import Final

import msgspec

from gateway.domain.ids import PoolId, ReplicaId

# Of a pool, discovered or registered.
MOST: Final = 1024
_NAME_CHARACTERS: Final = 63
SET: Final = "set"
REGISTERED: Final = "registered"


class Member(msgspec.Struct, frozen=True, kw_only=True):
    name: ReplicaId
    pool: PoolId
    url: str
    origin: str
    """`set`, `registered`, or the name of its list."""


class Changes(msgspec.Struct, frozen=True):
    joined: tuple[Member, ...] = ()
    left: tuple[Member, ...] = ()


class MembershipError(Exception):
    """Its message is for a person."""


class Membership:
    def __init__(self, members: Collection[Member], *, most: int = MOST) -> None:
        self._most = most
        self._members = {member.name: member for member in members}
        self._expires_s: dict[ReplicaId, float] = {}

    def __contains__(self, name: ReplicaId) -> bool:
        return name in self._members

    def replace_configured(self, members: Collection[Member]) -> Changes:
        """They replace discovered and registered members with the same address or name."""
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

    def replace_listed(self, pool: PoolId, origin: str, urls: Collection[str]) -> Changes:
        """`urls`: the complete list."""
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
        """Raises MembershipError for a member that has not registered."""
        member = self._members.get(name)
        if member is None or member.origin != REGISTERED:
            raise MembershipError(f"no member of the name {name} has registered")
        del self._members[name], self._expires_s[name]
        return member

    def expired(self, *, now: float) -> tuple[Member, ...]:
        """Removes members without a heartbeat in time."""
        gone = [name for name, expires_s in self._expires_s.items() if expires_s <= now]
        for name in gone:
            del self._expires_s[name]
        return tuple(self._members.pop(name) for name in gone)

    def _find(self, url: str) -> Member | None:
        return next((member for member in self._members.values() if member.url == url), None)

    def _of_pool(self, pool: PoolId) -> int:
        return sum(each.pool == pool and each.origin != SET for each in self._members.values())

    def _join(self, pool: PoolId, url: str, origin: str, name: str | None = None) -> Member:
        """The default name is the address, which clients see in receipts."""
        address = re.sub(r"[^A-Za-z0-9]+", "-", url.split("://", 1)[-1]).strip("-")
        stem = f"{pool}-{address}"[:_NAME_CHARACTERS]
        chosen, number = ReplicaId(name or stem), 2
        while chosen in self._members:
            chosen, number = ReplicaId(f"{stem[: _NAME_CHARACTERS - 4]}-{number}"), number + 1
        self._members[chosen] = Member(name=chosen, pool=pool, url=url, origin=origin)
        return self._members[chosen]
