"""Two tenants with the same agents, greetings and ids: nothing of one's words or sessions reaches the
other."""

import random
from typing import Any

import msgspec

from gateway.core import events as ev
from gateway.domain.fleet import Abilities, ReplicaFacts
from gateway.domain.ids import PoolId, ReplicaId
from gateway.domain.records import TurnArrived
from gateway.server.proxy.decision_headers import receipts
from tests.workflow.world import World, call, result, said, user

_TENANTS = ("alpha", "beta")
_WITH_PLUGIN = ReplicaFacts(
    id=ReplicaId("a"), pool=PoolId("pool"), abilities=Abilities(turnpike_hints=True, session_header=True)
)
_SHARED = ("call_0", "call_1", "session-1", "Hello", "hunter2 " * 40)


def make(rng: random.Random) -> list[dict[str, Any]]:
    """Turns: who asks, what in which place of which conversation, and how it is answered."""
    return [
        {
            "tenant": rng.choice(_TENANTS),
            "talk": rng.randrange(2),
            "starts_anew": rng.randrange(4) == 0,
            "says": rng.choice((*_SHARED, None)),
            "echoes": rng.choice((*_SHARED[:2], None, None)),
            "session": rng.choice((_SHARED[2], None, None)),
            "calls": rng.choice((*_SHARED[:2], None)),
            "answer": rng.choice((*_SHARED[3:], None)),
            "after_s": rng.choice((0.0, 1.0, 400.0)),
        }
        for _ in range(rng.randrange(2, 8))
    ]


def check(turns: list[dict[str, Any]]) -> None:
    world = World()
    talks: dict[tuple[str, int], list[dict[str, Any]]]
    talks = {(tenant, talk): [] for tenant in _TENANTS for talk in range(2)}
    _ = world.play >> ev.ReplicaCameUp(_WITH_PLUGIN)
    owners: dict[str, str] = {}
    for turn in turns:
        _check_turn(world, talks, owners, turn)
    for hint in world.play.hints:
        assert not _named(hint.hint), "a tenant's words in a hint"


def _check_turn(
    world: World,
    talks: dict[tuple[str, int], list[dict[str, Any]]],
    owners: dict[str, str],
    turn: dict[str, Any],
) -> None:
    tenant, play = turn["tenant"], world.play
    seen = len(play.records)
    talk = talks[tenant, turn["talk"]]
    if turn["starts_anew"]:
        talk.clear()
    if turn["echoes"] is not None:
        talk.append(result(turn["echoes"], f"{tenant} output"))
    talk.append(user(turn["says"] or f"{tenant} secret"))
    headers: dict[str, Any] = {} if turn["session"] is None else {"X_Session_ID": turn["session"]}
    arrived, told = _ask(world, talk, tenant, turn["after_s"], headers)
    assert not _named(told), "a tenant's words in a receipt or a hint"
    for each in (arrived.session, arrived.parent):
        if each is not None:
            assert owners.setdefault(each, tenant) == tenant, "a session of two tenants"
    text, calls = turn["answer"] or f"{tenant} answer", []
    if turn["calls"] is not None:
        calls = [call(turn["calls"], f"{tenant}_tool")]
    world.answer(arrived, text, *calls)
    talk.append(said(text, *calls))
    others = {each for each in _TENANTS if each != tenant}
    for record in play.records[seen:]:
        known = msgspec.json.encode(record).decode()
        assert not (_named(known) & others), f"another tenant's words in {type(record).__name__}"


def _ask(
    world: World, talk: list[dict[str, Any]], tenant: str, after_s: float, headers: dict[str, Any]
) -> tuple[TurnArrived, str]:
    """What was recorded, and what client and engine were told."""
    play, take = world.play, world.play.take
    told: list[str] = []

    def noted() -> Any:
        decision = take()
        told.append(receipts(decision).decode() + (getattr(decision, "hint", None) or ""))
        return decision

    play.take = noted  # type: ignore[method-assign]  # the world takes it, and keeps nothing
    try:
        tools = [{"type": "function", "function": {"name": f"{tenant}_tool"}}]
        arrived = world.ask(talk, tools=tools, tenant=tenant, after=after_s, **headers)
    finally:
        play.take = take  # type: ignore[method-assign]
    return arrived, "".join(told)


def _named(text: str) -> set[str]:
    return {tenant for tenant in _TENANTS if tenant in text}
