"""Gateways that each see a part of the traffic learn what one would that sees all of it."""

import math
import random
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from gateway.core import events as ev
from gateway.core.coordinator import Coordinator
from gateway.domain.by_agent import AgentKey
from gateway.domain.ids import PoolId, ReplicaId, RequestId, TenantId
from gateway.domain.lessons import PERIOD_S, Notes, ToolRan
from gateway.domain.request import Answer, RequestFacts, ToolCall, Usage
from gateway.shared_state.lessons import Lessons
from gateway.shared_state.protocol import Entry, StoreUnavailable
from gateway.wire.endpoints import classify
from gateway.wire.facts import read_facts
from gateway.workflow.agent_types import AgentType
from gateway.workflow.steps import Step
from lab.evaluation.memory_store import MemoryStore
from lab.evaluation.replay import recorded_brain

CHAT = classify("POST", "/v1/chat/completions")
POOL, REPLICA = PoolId("pool"), ReplicaId("a")


class Kind(msgspec.Struct, frozen=True):
    """Agents of one prompt."""

    name: str
    tenant: TenantId
    tool: str
    tool_s: float
    prompt: int
    grows: int
    turns: float
    at: tuple[int, ...]
    """The gateways that see them."""

    def facts(self, session: str, messages: list[dict[str, Any]], *, is_last: bool = False) -> RequestFacts:
        head = {"role": "system", "content": f"You are a {self.name} and work with great care."}
        tools = [{"type": "function", "function": {"name": self.tool}}]
        body = msgspec.json.encode(
            {"model": "m", "messages": [head, *messages], "tools": tools, "stream": True}
        )
        headers = [(b"user-agent", b"agent/1"), (b"x-turnpike-session", session.encode())]
        if is_last:
            headers.append((b"x-turnpike-final", b"1"))
        return read_facts(CHAT, headers, body)

    def agents(self) -> tuple[AgentType, AgentKey]:
        facts = self.facts("s", [{"role": "user", "content": "go"}])
        script = facts.transcript
        return AgentType(script.agent_type, facts.client, False, self.tenant), AgentKey(
            self.tenant, script.agent_type or script.agent
        )


ACME, BETA = TenantId("acme"), TenantId("beta")
KINDS = (
    Kind("coder", ACME, "bash", 4.0, 9000, 700, 9.0, (0, 1)),
    Kind("searcher", ACME, "fetch", 0.4, 2500, 1500, 4.0, (0,)),
    Kind("writer", BETA, "edit", 12.0, 5000, 300, 6.0, (1,)),
)
Event = tuple[float, int, ev.Event]
"""When, at which gateway, what."""


def session_of(kind: Kind, number: int, start_s: float, rng: random.Random) -> Iterator[Event]:
    at, now = rng.choice(kind.at), start_s
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"Do task {number}"}]
    tokens, left = int(kind.prompt * rng.uniform(0.8, 1.2)), 0
    turn = 0
    while True:
        turn += 1
        request = RequestId(f"r-{number}-{turn}")
        is_last = rng.random() < 1.0 / kind.turns
        is_said = is_last and rng.random() < 0.8  # others are gone while their tools run
        output = rng.randint(40, 200)
        first_s = 0.02 + (tokens - left) * 1e-4 * rng.lognormvariate(0.0, 0.1)
        took_s = first_s + output * 0.01 * rng.lognormvariate(0.0, 0.1)
        asked = ToolCall(id=f"call_{number:08x}{turn:08x}", name=kind.tool)
        usage = Usage(prompt_tokens=tokens, cached_tokens=left, output_tokens=output)
        answer = Answer(status=200, tool_calls=() if is_said else (asked,), usage=usage, has_terminal=True)
        yield (
            now,
            at,
            ev.RequestArrived(request, kind.tenant, kind.facts(f"s{number}", messages, is_last=is_said)),
        )
        yield now, at, ev.ResponseStarted(request, 200)
        yield now + first_s, at, ev.FirstTokenSeen(request)
        yield now + took_s, at, ev.ResponseFinished(request, answer)
        if is_last:
            return
        now += took_s + kind.tool_s * rng.lognormvariate(0.0, 0.4)
        call = {"id": asked.id, "type": "function", "function": {"name": kind.tool, "arguments": "{}"}}
        messages += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": asked.id, "content": "x" * rng.randint(20, 400)},
        ]
        left, tokens = tokens + output, tokens + output + int(kind.grows * rng.uniform(0.5, 1.5))


def traffic(*, sessions: int, seed: int) -> list[Event]:
    rng, start_s = random.Random(seed), 0.0
    found: list[Event] = []
    for number in range(sessions):
        start_s += rng.expovariate(1.0 / 2.5)
        found += session_of(rng.choice(KINDS), number, start_s, rng)
    return sorted(found, key=lambda each: each[0])


def brain_of(name: str, *, publishes: bool = True) -> Coordinator:
    return recorded_brain(now=0.0, prefix=name, publishes=publishes)


def handle(brain: Coordinator, event: ev.Event, *, now: float) -> None:
    while (due_s := brain.next_deadline_s()) is not None and due_s <= now:
        brain.handle(ev.TimerFired(), now=now)
    brain.handle(event, now=now)


def predictions(brain: Coordinator) -> dict[str, float]:
    """What it expects of agents of each kind."""
    found = {"engine turn": brain.forecasts.turn_s(REPLICA, 1000, 8000, 200)}
    usage = Usage(prompt_tokens=8000, cached_tokens=0)
    found["engine prefill"] = brain.forecasts.prefill_s(REPLICA, usage) or math.nan
    conversations, pool = brain.sessions.predictor.conversations, brain.admission.pools[POOL]
    for kind in KINDS:
        agent, key = kind.agents()
        durations = conversations.learned.of(kind.tenant).durations
        ran = Step((kind.tool,))
        behind, after = conversations.returns.behind(agent, ran), conversations.returns.behind(agent, Step())
        told = {
            "returns": behind.share,
            "ends": 1.0 - after.share,
            "gap_median": behind.quantile_s(0.5) or math.nan,
            "gap_p95": behind.quantile_s(0.95) or math.nan,
            "tool_median": durations.quantile_s(agent.key, (kind.tool,), 0.5) or math.nan,
            "tool_p90": durations.quantile_s(agent.key, (kind.tool,), 0.9) or math.nan,
            "observation": durations.observation_bytes(agent.key, (kind.tool,)) or math.nan,
            "grows": pool.footprints.growth(key, 3),
            "ends_then": pool.footprints.end_chance(key, 2),
            "turn": pool.footprints.turn_s(key),
            "cycle": pool.footprints.cycle_s(key),
            "tool_pause": pool.gaps.tool_s(key),
            "goes_on": conversations.graphs.of(agent).next((kind.tool,))[1],
        }
        found |= {f"{kind.name} {name}": value for name, value in told.items()}
    return found


def worst(of: Coordinator, than: Coordinator) -> tuple[float, str]:
    """The largest relative difference, and of what."""
    expected, said = predictions(than), predictions(of)
    off = {name: abs(said[name] / value - 1.0) for name, value in expected.items()}
    return max((math.inf if math.isnan(by) else by, name) for name, by in off.items())


class Gateways:
    def __init__(self, *stores: Any) -> None:
        names = [f"g{number}" for number in range(len(stores))]
        self.stores = stores
        self.brains = [brain_of(name) for name in names]
        self.lessons = [
            Lessons(store, name, [other for other in names if other != name])
            for store, name in zip(stores, names, strict=True)
        ]

    async def exchange(self, *, now: float) -> None:
        for brain, lessons, store in zip(self.brains, self.lessons, self.stores, strict=True):
            assert brain.taught.notes is not None
            lessons.publish(brain.taught.notes.take())
            await store.flush()
        for brain, lessons in zip(self.brains, self.lessons, strict=True):
            async for batch in lessons.receive():
                brain.handle(ev.LessonsReceived(tuple(batch)), now=now)


@pytest.mark.slow
async def test_two_that_see_half_of_the_traffic_each_expect_what_one_does_that_sees_all(open_another):
    gateways = Gateways(await open_another(), await open_another())
    alone, untaught = brain_of("one", publishes=False), [brain_of("u0"), brain_of("u1")]
    exchange_s = 0.0
    for now, at, event in traffic(sessions=160, seed=7):
        if now >= exchange_s:
            exchange_s = now + PERIOD_S
            await gateways.exchange(now=now)
        for brain in (alone, untaught[at], gateways.brains[at]):
            handle(brain, event, now=now)
    for brain in (alone, *untaught, *gateways.brains):
        handle(brain, ev.TimerFired(), now=now + 400.0)  # who is silent is over
    await gateways.exchange(now=now + 400.0)
    for brain, without in zip(gateways.brains, untaught, strict=True):
        by, what = worst(brain, alone)
        assert by < 0.05, what
        assert worst(without, alone)[0] > 0.5, "it makes a difference"


# --- how they get there ----------------------------------------------------------------------------


def batch_of(*names: str) -> bytes:
    notes = Notes()
    for name in names:
        notes.note(ACME, ToolRan(1, name, 1.0, 10.0, False))
    return notes.take()


async def names_in(lessons: Lessons) -> list[str]:
    found: list[str] = []
    await note_names(lessons, found)
    return found


async def note_names(lessons: Lessons, found: list[str]) -> None:
    async for batch in lessons.receive():
        found += [each.name for _, each in batch if isinstance(each, ToolRan)]


async def test_a_batch_is_read_once_by_each(store):
    teacher, pupils = Lessons(store, "a", []), [Lessons(store, name, ["a"]) for name in "bc"]
    teacher.publish(batch_of("one", "two"))
    teacher.publish(b"")
    teacher.publish(batch_of("three"))
    await store.flush()
    for pupil in pupils:
        assert await names_in(pupil) == ["one", "two", "three"]
        assert await names_in(pupil) == []
    teacher.publish(batch_of("four"))
    await store.flush()
    assert [await names_in(pupil) for pupil in pupils] == [["four"], ["four"]]


async def test_who_starts_catches_up_and_what_lapsed_is_counted():
    now = 0.0
    store = MemoryStore(lambda: now)
    teacher, pupil = Lessons(store, "a", []), Lessons(store, "b", ["a"])
    teacher.publish(batch_of("first"))
    assert await names_in(pupil) == ["first"]
    for number in range(100):
        now += PERIOD_S
        teacher.publish(batch_of(str(number)))
    newcomer, there = Lessons(store, "c", ["a"]), [str(number) for number in range(40, 100)]
    assert await names_in(newcomer) == there[:8], "a round is bounded"
    rest: list[str] = []
    for _ in range(20):
        await note_names(newcomer, rest)
    assert rest == there[8:] and newcomer.missed == 0
    late: list[str] = []
    for _ in range(8):  # it skips what is gone
        await note_names(pupil, late)
    assert late == there and pupil.missed == 40
    now += 1000.0
    assert await names_in(Lessons(store, "d", ["a"])) == []


@pytest.mark.parametrize("newest", [b"", b"-1", b"x", b"9" * 40, b"999999999999999", b"\xd9\xa1"])
async def test_a_number_that_makes_no_sense_costs_nothing_later(newest):
    store = MemoryStore(lambda: 0.0)
    teacher, pupil = Lessons(store, "a", []), Lessons(store, "b", ["a"])
    store.publish([Entry(b"l1:a", newest, 60.0)])
    assert await names_in(pupil) == []
    teacher.publish(batch_of("one"))
    assert await names_in(pupil) == ["one"]


class Broken(MemoryStore):
    """Does not answer to the `fails_at`-th look-up."""

    fails_at = -1

    async def find(self, keys: Any) -> Any:
        self.fails_at -= 1
        if self.fails_at == -1:
            raise StoreUnavailable
        return await super().find(keys)


@pytest.mark.parametrize("fails_at", [0, 1, 2])
async def test_what_could_not_be_read_is_read_later_and_once(fails_at):
    store = Broken(lambda: 0.0)
    teacher, pupil = Lessons(store, "a", []), Lessons(store, "me", list("abcdefghi"))
    others = [Lessons(store, name, []) for name in "bcdefghi"]
    for each in (teacher, *others):
        for number in range(3):
            each.publish(batch_of(f"{each is teacher}{number}"))
    store.fails_at = fails_at
    seen: list[str] = []
    with pytest.raises(StoreUnavailable):
        await note_names(pupil, seen)
    for _ in range(3):
        await note_names(pupil, seen)
    assert sorted(seen) == sorted(["True0", "True1", "True2", *(["False0", "False1", "False2"] * 8)])
