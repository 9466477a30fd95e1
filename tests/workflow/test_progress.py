"""How far conversations have come: steps, ends that are supposed, taken back and certain, and what is
predicted."""

from typing import Any

import msgspec
import pytest

from gateway.domain.decision import Edge, SessionRef, SessionSource
from gateway.domain.ids import SessionId, ThreadId
from gateway.domain.request import (
    Answer,
    ExplicitId,
    NewItems,
    Protocol,
    RequestFacts,
    ToolCall,
    Transcript,
    Usage,
    Work,
)
from gateway.workflow.agent_types import Tier
from gateway.workflow.nodes import END
from gateway.workflow.progress import Progress, ProgressConfig
from tests.tool_probe.test_text_calls import answer as text_answer


class World:
    def __init__(self, **settings: Any) -> None:
        self.progress = Progress(msgspec.convert(settings, ProgressConfig))
        self.now = 0.0

    def turn(
        self, session: str, *tools: str, edge: Edge = Edge.CONTINUES, gap_s: float = 1.0, **more: Any
    ) -> Any:
        self.now += gap_s
        known, found = ref(session, edge), facts(**more)
        self.progress.arrived(known, found, now=self.now)
        self.now += 1.0
        return self.progress.answered(known, found, answer(*tools), now=self.now)

    def task(self, session: str, *steps: str) -> Any:
        pause: Any = None
        for tools in steps:
            pause = self.turn(session, *tools.split())
        return pause


def ref(session: str, edge: Edge = Edge.CONTINUES) -> SessionRef:
    return SessionRef(
        session=SessionId(session),
        source=SessionSource.CALL_ID,
        confidence=1.0,
        thread=ThreadId(f"{session}.1"),
        edge=edge,
    )


def facts(tool_count: int = 3, looks: tuple[int, ...] = (), is_final: bool = False) -> RequestFacts:
    explicit = ExplicitId(schema="x", session="y", final=True) if is_final else None
    return RequestFacts(
        protocol=Protocol.CHAT,
        work=Work.GENERATE,
        tool_count=tool_count,
        body_bytes=4000,
        explicit=explicit,
        transcript=Transcript(agent_type=7, new=NewItems(100, looks)),
    )


def answer(*tools: str) -> Answer:
    calls = tuple(ToolCall(f"c{number}", name) for number, name in enumerate(tools))
    return Answer(
        status=200, tool_calls=calls, has_terminal=True, usage=Usage(prompt_tokens=100, output_tokens=10)
    )


def test_little_is_said_before_enough_was_seen():
    world = World()
    pause = world.turn("s", "read")
    assert pause is not None and pause.tier is Tier.UNKNOWN and not pause.is_confident
    assert pause.tools == ("read",)


def test_a_plan_is_predicted_and_its_end():
    world = World(types={"min_steps": 50})
    for number in range(40):
        world.task(f"s{number}", "read", "edit", "test", "")
        world.now += 100.0
    middle = world.task("t", "read", "edit")
    assert middle is not None and middle.tier is Tier.INFERRED and middle.next == ("test",)
    assert middle.is_confident and middle.ends < 0.1 and 1.5 < middle.steps_left < 3.0
    assert middle.output_tokens_left == pytest.approx(10 * middle.steps_left, rel=0.2)
    last = world.task("t", "test", "")
    assert last is not None and last.next is None and last.ends > 0.8 and last.steps_left < 0.5
    assert world.progress.predicted > 10 and world.progress.mispredicted <= 3


def test_a_misprediction_is_noticed_at_the_next_answer():
    world = World(types={"min_steps": 50})
    for number in range(40):
        world.task(f"s{number}", "read", "edit", "test", "")
        world.now += 100.0
    before = world.progress.mispredicted
    world.task("t", "read", "build")
    assert world.progress.mispredicted == before + 1


def test_an_answer_without_calls_is_the_end_until_it_goes_on():
    world = World()
    world.turn("s", "read")
    world.turn("s")
    known: Any = world.progress.thread(ThreadId("s.1"))
    assert known is not None and known.gone is not None and not known.is_over
    world.turn("s", "read")
    assert known.gone is None
    edges = {(start, to) for start, to, _, _ in known.graph.edges()}
    assert (1, END) not in edges


def test_silence_behind_calls_ends_a_conversation_and_coming_back_undoes_it():
    world = World(gone_after_s=300.0)
    world.turn("s", "read")
    known: Any = world.progress.thread(ThreadId("s.1"))
    world.task("other", "read", "read", "read")
    said = known.forecast
    world.turn("other", "read", gap_s=70.0)
    assert known is not None and known.gone is not None and not known.is_over
    assert known.gone is not said and known.gone.of(END) != said.of(END)  # the other one has taught since
    world.turn("other", "read", gap_s=400.0)
    world.turn("other", "read", gap_s=400.0)
    assert known.is_over and known.graph.tasks == 1
    world.turn("s", "read")
    assert not known.is_over and known.gone is None and known.graph.tasks == 0


def test_a_session_that_is_over_teaches_and_is_forgotten():
    world = World()
    world.turn("s", "read")
    ended: Any = world.progress.thread(ThreadId("s.1"))
    graph = ended.graph
    world.progress.session_over(SessionId("s"))
    world.progress.session_over(SessionId("s"))
    assert graph.tasks == 1 and len(world.progress) == 0


def test_side_requests_are_no_steps_and_broken_answers_none_either():
    world = World()
    assert world.turn("s", edge=Edge.SERVES) is None and len(world.progress) == 0
    world.progress.arrived(ref("s"), facts(), now=1.0)
    assert world.progress.answered(ref("s"), facts(), None, now=2.0) is None
    assert world.progress.answered(ref("nobody"), facts(), answer("x"), now=2.0) is None


def title(world: World, session: str) -> None:
    """A request with another prompt, without tools, which begins the session."""
    world.now += 1.0
    known = msgspec.structs.replace(facts(tool_count=0), transcript=Transcript(agent_type=8))
    world.progress.arrived(ref(session, Edge.OPENS), known, now=world.now)
    world.progress.answered(ref(session, Edge.OPENS), known, answer(), now=world.now)


def test_what_opens_with_another_prompt_is_a_conversation_of_its_own():
    world = World()
    for number in range(20):
        title(world, f"s{number}")
        world.turn(f"s{number}", "read", edge=Edge.OPENS)
        world.task(f"s{number}", "")
        world.now += 100.0
    title(world, "t")
    known: Any = world.progress.thread(ThreadId("t.1"))
    assert known.agent.kind == 8 and known.forecast.of(END) > 0.9 and known.graph.tasks == 20
    world.turn("t", "read", edge=Edge.OPENS)
    known = world.progress.thread(ThreadId("t.1"))
    assert known.agent.kind == 7 and known.walk.steps == 1 and known.forecast.of(END) < 0.2
    world.progress.session_over(SessionId("t"))
    assert world.progress.thread(ThreadId("t.1")) is None


def test_the_answer_of_a_conversation_that_was_left_is_no_step_of_the_next():
    world = World()
    title(world, "s")
    first = msgspec.structs.replace(facts(tool_count=0), transcript=Transcript(agent_type=8))
    world.progress.arrived(ref("s"), first, now=2.0)
    world.progress.arrived(ref("s", Edge.OPENS), facts(), now=2.1)
    assert world.progress.answered(ref("s"), first, answer(), now=2.2) is None
    known: Any = world.progress.thread(ThreadId("s.1"))
    assert known.is_live and known.walk.steps == 0
    pause: Any = world.progress.answered(ref("s"), facts(), answer("read"), now=2.3)
    assert pause.tools == ("read",)


def test_sub_agents_are_graphs_of_their_own():
    world = World()
    world.turn("s", "task")
    world.turn("child", "read", edge=Edge.SPAWNED)
    both: list[Any] = [world.progress.thread(ThreadId(f"{name}.1")) for name in ("s", "child")]
    parent, child = both
    assert child.agent.is_child and child.graph is not parent.graph


def test_a_client_that_says_it_ends_is_believed():
    pause = World().turn("s", "finish", is_final=True)
    assert pause.tier is Tier.STATED and pause.next is None and pause.is_confident and pause.ends == 1.0


def test_code_blocks_become_steps_when_they_are_run():
    world = World()
    tools = []
    for looks in ((), (1, 2), (3, 2), (4, 2)):
        known = facts(tool_count=0, looks=looks)
        world.progress.arrived(ref("s"), known, now=world.now)
        said = msgspec.structs.replace(text_answer("bash", is_code=True), has_terminal=True)
        pause: Any = world.progress.answered(ref("s"), known, said, now=world.now)
        tools.append(pause.tools)
        world.now += 1.0
    assert tools == [(), (), ("bash",), ("bash",)]


def test_memory_is_bounded():
    world = World(max_threads=10)
    for number in range(50):
        world.turn(f"s{number}", "read")
    assert len(world.progress) == 10


def test_a_young_type_borrows_from_its_family():
    world = World(types={"min_steps": 50})
    for number in range(40):
        world.task(f"s{number}", "read", "edit", "test", "")
    young = msgspec.structs.replace(facts(), transcript=Transcript(agent_type=8))
    world.progress.arrived(ref("young"), young, now=world.now)
    pause: Any = world.progress.answered(ref("young"), young, answer("read"), now=world.now + 1)
    assert pause.tier is Tier.INFERRED and pause.next == ("edit",)
