"""What one tenant's sessions teach decides nothing about another's: the brain with and without them."""

from typing import Any

import pytest

from gateway.core import events as ev
from gateway.core.commands import Dispatch
from gateway.domain.engine import EngineSignals
from gateway.domain.ids import ReplicaId
from gateway.domain.records import TurnWaited
from gateway.domain.request import Transcript, Usage
from tests.core.playbook import Playbook, arrived, finished, started, stated

AGENT = Transcript(agent=7, agent_type=7)
"""The same prompt and tools, whoever sends them."""
SHARED = {"share_learned": True}


class World:
    """A brain, and turns of sessions that all are of one agent type."""

    def __init__(self, *, replicas: str = "a", kv_tokens: int | None = None, **settings: Any) -> None:
        settings["core"] = {"max_wait_s": 3600}
        self.play = Playbook(replicas=replicas, have_homes=True, **settings)
        self.decided: list[Any] = []
        """What became of the turns of the tenant that is looked at, and when."""
        for name in replicas.split() if kv_tokens else ():
            _ = self.play >> ev.EngineReported(ReplicaId(name), EngineSignals(kv_tokens=kv_tokens))

    def ask(
        self,
        tenant: str,
        session: str,
        number: int,
        *,
        body_bytes: int,
        kind: Transcript = AGENT,
        final: bool = False,
    ) -> str:
        request = f"{session}-{number}"
        told = stated(session, final=final)
        _ = self.play >> arrived(
            request, tenant, body_bytes=body_bytes, explicit=told, transcript=kind, tool_count=1
        )
        self._note()
        return request

    def answer(self, request: str, tokens: int, *calls: str) -> None:
        _ = self.play >> started(request)
        _ = self.play >> finished(request, *calls, usage=Usage(prompt_tokens=tokens, output_tokens=10))
        self._note()

    def pass_time(self, seconds: float) -> None:
        """No timer is late by more than a tenth of a second."""
        for _ in range(int(10 * seconds)):
            _ = self.play.later(0.1)
            self._note()

    def _note(self) -> None:
        for decision in self.play.decisions:
            assert isinstance(decision, Dispatch)
            if decision.request.startswith("quiet"):
                self.decided.append((round(self.play.now, 1), decision.request, decision.placement.replica))
        self.play.decisions.clear()

    def lie(self, *, sessions: int, turns: int, tokens: int, gap_s: float) -> None:
        """Another tenant's sessions, that grow by so much a turn; then all of them are over."""
        for session in range(sessions):
            for number in range(turns):
                name = f"loud-{session}"
                is_last = number == turns - 1
                turn = self.ask("loud", name, number, body_bytes=1_000 * (number + 1), final=is_last)
                self.play.now += 1.0
                self.answer(turn, tokens * (number + 1), *(() if is_last else (f"c-{turn}",)))
                self.play.now += gap_s

    def quiet(self, session: int, number: int, *, tokens: int = 20_000) -> str:
        return self.ask("quiet", f"quiet-{session}", number, body_bytes=4 * tokens)


def held(world: World) -> None:
    """Two may be in: one computes, one has its tools run, and a third one waits for that one's place."""
    world.quiet(0, 0)
    world.answer(world.quiet(1, 0), 20_000, "call_quiet")
    world.quiet(2, 0)
    world.pass_time(130)


def grown(world: World) -> None:
    """They fit for now, and as far as anybody knows they do when they have grown."""
    for session in range(3):
        turn = world.quiet(session, 0, tokens=15_000)
        world.pass_time(1)
        world.answer(turn, 15_000, f"call_{session}")
    for session in range(3):
        world.quiet(session, 1, tokens=16_000)


SCENES: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "how long a place is held": (
        held,
        {"admission": {"policy": "session-cap", "session_cap": 2}},
        {"sessions": 30, "turns": 3, "tokens": 1_000, "gap_s": 0.5},
    ),
    "how large sessions become": (
        grown,
        {"kv_tokens": 150_000},
        {"sessions": 30, "turns": 3, "tokens": 20_000, "gap_s": 0.5},
    ),
}


def decided(scene: str, *, is_lied_to: bool, **more: Any) -> Any:
    plays, settings, lies = SCENES[scene]
    world = World(**settings, **more)
    if is_lied_to:
        world.lie(**lies)
    world.play.now = 10_000.0
    plays(world)
    waited = [
        (wait.turn, wait.reason) for wait in world.play.seen(TurnWaited) if wait.turn.startswith("quiet")
    ]
    assert world.decided
    return world.decided, waited


@pytest.mark.parametrize("scene", SCENES)
def test_nothing_that_one_tenant_teaches_decides_about_another(scene):
    assert decided(scene, is_lied_to=True) == decided(scene, is_lied_to=False)


@pytest.mark.parametrize("scene", SCENES)
def test_it_does_where_the_operator_says_that_tenants_share(scene):
    assert decided(scene, is_lied_to=True, workflow=SHARED) != decided(scene, is_lied_to=False)


@pytest.mark.slow
def test_what_is_learned_of_many_tenants_with_many_agents_is_bounded():
    world = World(kv_tokens=10**9, workflow={"progress": {"types": {"max_types": 20}}})
    for number in range(600):
        kind = Transcript(agent=number, agent_type=number)
        name = f"s{number}"
        turn = world.ask(f"tenant-{number % 60}", name, 0, body_bytes=4_000, kind=kind)
        world.play.now += 1.0
        world.answer(turn, 1_000, f"c-{number}")
        turn = world.ask(f"tenant-{number % 60}", name, 1, body_bytes=8_000, kind=kind, final=True)
        world.play.now += 1.0
        world.answer(turn, 2_000)
    admission: Any = world.play.brain.admission
    [pool] = admission.pools.values()
    assert len(world.play.brain.sessions.conversations.graphs) == 20
    assert len(admission._cpu._usual) <= 512
    assert not pool.places.members and not pool.places.residents.agents
